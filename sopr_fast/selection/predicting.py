"""Predict the returns of policies, and say which to deploy, keep or measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..estimators import BehaviourQ, DoublyRobust, Estimator, ImportanceWeighting, Simulator
from ..estimators.methods import read_methods
from ..estimators.simulator import unfinished
from ..inputs.accepted import LogLike, PoliciesLike, ReturnsLike
from ..inputs.logs import Transitions
from ..inputs.policies import Policies, load_policies
from ..inputs.returns import check_ordered, find_returns
from ..results.estimates import Estimates
from ..runtime.checks import integer
from ..runtime.text import list_names, printable, suggest
from .compared import Compared, possible_returns, read
from .folds import checkpoint_file, quiet, read_groups
from .predictions import EPISODES, SHORT_EPISODES
from .selection import Selection

if TYPE_CHECKING:
    import pandas


def select(
    policies: PoliciesLike,
    log: LogLike,
    returns: ReturnsLike | None = None,
    *,
    incumbent: str | None = None,
    progress: Mapping[str, float] | None = None,
    groups: Mapping[str, str] | None = None,
    exclude: Collection[str] = (),
    simulator: Estimator | str | None = None,
    checkpoints: str | os.PathLike | None = None,
    seed: int = 0,
) -> Selection:
    """Predict the returns of policies from a log and known returns, and say which to deploy, keep or measure.

    The returns of all policies are a Gaussian process over action distance. The value that a simulator learned from
    the log gives each policy is a noisy measurement of its return; a log without rewards gives none. Without known
    returns, only the simulator decides. Of a bandit's log with probabilities, importance weighting gives values and
    their standard errors.

    Args:
        policies: Policies to choose from, see `sopr_fast.load_policies`. Those with a return are known, every other
            one is a candidate.
        log: Logged transitions, see `sopr_fast.load_log`; or only states, see `sopr_fast.fit`.
        returns: Known returns by name: a mapping from name to return or to the returns of rollouts, a file, folder or
            data frame; or of all policies in order, NaN where unknown. See `sopr_fast.load_returns`.
        incumbent: Name of the policy in use; by default the best known one is to be beaten.
        progress: Training step of each snapshot of a run, by name. Later snapshots are expected to return more; values
            and known returns correct that.
        groups: Run of each policy by name; None finds runs in the names. Only used with progress.
        exclude: Names of policies to leave out, such as those that are too risky to run.
        simulator: Estimator that learns from rewards, or its name, whose values count as measurements; None for
            `estimators.Simulator()`, or importance weighting for a bandit.
        checkpoints: Folder to keep the trained simulator in, and to resume from.
        seed: Seed of everything random.

    Returns:
        Predicted returns, intervals, probabilities and a verdict.

    Raises:
        ValueError: The incumbent is no policy, or the log has no rewards and no return is known.
        ImportError, MemoryError, OSError, RuntimeError, TypeError: See `load_policies`, `load_log`, `load_returns`.

    Warns:
        UserWarning: The log or the returns look wrong.
    """
    import pandas

    seed = integer(0)("seed", seed)
    method = None if simulator is None else next(iter(read_methods([simulator]).values()))
    if method is not None and method.supervised:
        raise ValueError(
            f"simulator: {method.name} learns from known returns, as select does itself: name a method that learns "
            "from rewards, or compare both by evaluate"
        )
    loaded = load_policies(policies)
    check_ordered("returns", returns, loaded)
    everyone, loaded = list(loaded), _leave_out(loaded, exclude, incumbent)
    names = list(loaded)
    table = pandas.DataFrame(np.nan, names, ["return", "error", "rollouts"])
    if returns is not None:
        table = find_returns(returns, everyone).loc[names]
    shares = None if progress is None else trained_shares(progress, names, read_groups(groups, names))
    compared, measured = read(loaded, log, table, incumbent)
    known = np.isfinite(measured.pooled[0])
    told = _of_log(compared)
    if method is not None and method.needs_rewards and not compared.has_rewards:
        remedy = f"pass {_remedy(compared)}, or give returns and no simulator"
        raise ValueError(f"simulator: {method.name} learns from rewards, and the log holds none: {remedy}")
    if method is not None or not known.all():  # else nothing is left to predict
        told |= _of_method(compared, method or _default(compared), checkpoints, seed)
    if shares is not None and (lone := [name for name in progress or () if np.isnan(shares[names.index(name)])]):
        alone = f"Progress of {list_names(lone)} has no effect: no other policy of the run has another step"
        told["facts"] = [*told["facts"], alone]
    if "values" not in told and not known.any():
        raise ValueError(f"{told['facts'][-1]}, and no return is known: pass returns=…, or {_remedy(compared)}")
    return Selection(
        measured=measured,
        distances=compared.distances,
        seed=seed,
        episodes=SHORT_EPISODES if compared.is_of_single_steps else EPISODES,
        settings={
            "seed": seed,
            "policies": len(names),
            "compared states": compared.states,
            "mean": told.get("method", "constant"),
        },
        progress=None if shares is None else _standardised(shares[measured.firsts]),
        are_costs=compared.has_rewards and compared.log.are_costs,
        **told,
    )


def _leave_out(policies: Policies, exclude: Collection[str], incumbent: str | None) -> Policies:
    """Return the policies but for those to exclude; raise ValueError if one of these, or the incumbent, is none."""
    if isinstance(exclude, str):
        raise TypeError(f"exclude is a text: pass a list, [{exclude!r}]")
    if strangers := [name for name in exclude if name not in policies]:
        near = suggest(strangers[0], policies) or f"; the policies are {list_names(list(policies))}"
        raise ValueError(f"exclude: there is no policy {strangers[0]!r}{near}")
    left = policies.take(name for name in policies if name not in exclude)
    if not left:
        raise ValueError("exclude leaves no policy to choose from")
    if incumbent is not None and incumbent not in left:
        raise ValueError(f"the incumbent {printable(incumbent)} is none of the policies: {list_names(list(left))}")
    return left


def trained_shares(progress: Mapping[str, float], names: Sequence[str], runs: Sequence[str]) -> pandas.Series:
    """Return how far each policy (P,) was trained, as a share of the last step of its run.

    It is NaN for a policy without a step, or whose run has no other one. ValueError is raised if a name is unknown, or
    a step is not a finite number above 0.
    """
    import pandas

    if strangers := [name for name in progress if name not in names]:
        raise ValueError(f"progress: there is no policy {strangers[0]!r}; the policies are {list_names(list(names))}")
    for name, step in progress.items():
        if not 0 < step < np.inf:
            raise ValueError(f"progress of {name!r} must be a number of steps above 0, got {step}")
    steps = pandas.Series([progress.get(name, np.nan) for name in names], dtype=float)
    of_run = steps.groupby(list(runs))
    return (steps / of_run.transform("max")).where(of_run.transform("nunique") > 1)


def _standardised(shares: pandas.Series) -> np.ndarray:
    """Return shares (P,) with mean 0 and standard deviation 1; 0 for policies without one."""
    return ((shares - shares.mean()) / (shares.std(ddof=0) or 1.0)).fillna(0).to_numpy()


def _default(compared: Compared) -> Estimator | None:
    """Return the method whose values count if none is named; None if only known returns can tell."""
    if compared.is_bandit:
        return ImportanceWeighting()
    if compared.has_rewards and compared.can_roll_out:
        return Simulator()
    if compared.has_rewards and compared.log.longest == 1:
        return BehaviourQ(updates=3000)  # of one step, which needs no action in another state
    return None


def _remedy(compared: Compared) -> str:
    """Return what to do if nothing tells of any policy."""
    if compared.has_rewards:
        return "policies that can act in any state, or simulator='BehaviourQ'"
    _, separator, unread = getattr(compared.log, "summary", "").partition("; not read: ")
    return f"a log with rewards: name them by load_log(…, columns={{'rewards': …}}){separator}{unread}"


def _of_log(compared: Compared) -> dict[str, Any]:
    """Return what a log tells without any method: fields of `Selection`."""
    if not compared.has_rewards:
        return {"facts": compared.facts}
    spread = float(compared.log.returns.std())
    return {"facts": compared.facts, "bounds": possible_returns(compared.log), "logged_spread": spread}


def _of_method(compared: Compared, method: Estimator | None, folder: Any, seed: int) -> dict[str, Any]:
    """Return what a method tells: fields of `Selection`."""
    if method is None:
        lack = "Policies are arrays of actions" if compared.has_rewards else "The log holds no rewards"
        return {"facts": [*compared.facts, f"{lack}, so only known returns and action distances count"]}
    file = checkpoint_file(folder, method)
    with quiet():  # intervals and notes say so
        estimates = method.estimate(compared.policies, compared.log, seed=seed, checkpoint=file)
    return _told(method, compared, estimates)


def _told(method: Estimator, compared: Compared, estimates: Estimates) -> dict[str, Any]:
    """Return what estimates by a method tell: fields of `Selection`."""
    values, found, replicates = np.asarray(estimates.values, np.float64), estimates.diagnostics, estimates.replicates
    if not np.isfinite(values).all():
        name = compared.names[int(np.argmin(np.isfinite(values)))]
        raise ValueError(
            f"the simulator gives policy {name!r} no finite value; train it longer, or leave the policy out"
        )
    told: dict[str, Any] = {"values": values, "method": method.name}
    if isinstance(method, ImportanceWeighting | DoublyRobust) and compared.is_bandit:
        return told if replicates is None else told | {"covariance": np.atleast_2d(np.cov(replicates))}
    facts = [*compared.facts, *unfinished(compared.names, np.asarray(found.get("unfinished", 0)))]
    if isinstance(method, BehaviourQ) and compared.log.longest > 1:
        facts.append(f"Values by {method.name} are not returns of episodes: rely on the order of the candidates only")
    if replicates is not None and (lost := np.isnan(estimates.standard_errors)).any():
        few = list_names([compared.names[i] for i in np.flatnonzero(lost)], 5)
        facts.append(f"{method.name} knows no error of {few}: the log hardly covers what they do")
    if "inside" in found:
        told |= {"outside": 1 - np.asarray(found["inside"], np.float64), "members": replicates}
    if "tuned" in found:
        told["tune"] = partial(_tune, method, compared, found["tuned"])
    rest = {name: found[name] for name in ("state_error", "unsupported", "unlived") if name in found}
    return told | {"facts": facts} | rest


def _tune(method: Estimator, compared: Compared, tuned: Callable, episodes: Transitions) -> dict[str, Any]:
    """Return what a simulator and the log tell after further episodes: fields of `Selection`."""
    together = replace(compared, log=compared.log.followed_by(episodes))
    with quiet():
        return _of_log(together) | _told(method, together, tuned(episodes))
