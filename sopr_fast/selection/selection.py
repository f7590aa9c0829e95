"""Predict the returns of policies, and say which to deploy, keep or measure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..argument_types import LogLike, PoliciesLike, ReturnsLike
from ..estimators import Estimator
from ..estimators.log_support import agreement_in_words, is_unsupported, missed_in_words, unsupported_in_words
from ..estimators.methods import read_methods
from ..estimators.simulator import guessed
from ..inputs.logs import load_transitions
from ..inputs.policies import load_policies
from ..inputs.returns import check_groups, check_ordered, find_returns, is_ordered
from ..results.numbers import Numbers, chance
from ..results.result import Result
from ..results.tables import Column, column, to_text, wrapped
from ..runtime.checks import integer
from ..runtime.text import list_names, percent, printable, suggest
from .compared import read
from .doubts import doubts
from .predictions import EPISODES, SHORT_EPISODES, Predictions
from .values import default_method, of_log, of_method, without_values
from .verdict import Verdict, decide, judge

if TYPE_CHECKING:
    import pandas

_LISTED = 5  # policies


def select(
    policies: PoliciesLike,
    log: LogLike,
    returns: ReturnsLike | None = None,
    *,
    incumbent: str | None = None,
    progress: Mapping[str, float] | None = None,
    groups: Mapping[str, str] | None = None,
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
        groups: Run of each policy by name, for progress; None if all are of one run.
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
    names = list(loaded)
    if incumbent is not None and incumbent not in names:
        near = suggest(str(incumbent), names)
        raise ValueError(f"the incumbent {printable(incumbent)} is none of the policies{near}: {list_names(names)}")
    table = pandas.DataFrame(np.nan, names, ["return", "error", "rollouts"])
    if returns is not None:
        table = find_returns(returns, names)
    if groups is not None and progress is None:
        raise ValueError("groups are the runs of progress=…: pass both, or leave groups out")
    shares = None if progress is None else trained_shares(progress, names, groups)
    compared, measured = read(loaded, log, table, incumbent)
    known = np.isfinite(measured.pooled[0])
    told = of_log(compared)
    if method is not None and method.needs_rewards and not compared.has_rewards:
        remedy = f"pass {without_values(compared)}, or give returns and no simulator"
        raise ValueError(f"simulator: {method.name} learns from rewards, and the log holds none: {remedy}")
    if method is not None or not known.all():  # else nothing is left to predict
        told |= of_method(compared, method or default_method(compared), checkpoints, seed)
    if "values" not in told and not known.any():
        raise ValueError(f"{told['facts'][-1]}, and no return is known: pass returns=…, or {without_values(compared)}")
    return Selection(
        measured=measured,
        distances=compared.distances,
        seed=seed,
        episodes=SHORT_EPISODES if compared.is_of_single_steps else EPISODES,
        settings={
            "seed": seed,
            "policies": len(names),
            "compared states": compared.states,
            "values by": told.get("method", "nothing"),
        },
        progress=None if shares is None else _standardised(shares[measured.firsts]),
        are_costs=compared.has_rewards and compared.log.are_costs,
        **told,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Predictions, Result):
    """Known policies and candidates, their predicted returns, and what to do.

    Attributes are those of `Predictions`.
    """

    def __post_init__(self) -> None:
        """Refuse costs that are given as returns where the log tells them apart."""
        above = np.flatnonzero(self.returns > self.bounds[1] + 1e-3 * abs(self.bounds[1]))
        if self.are_costs and len(above):
            name, value = self.names[above[0]], self.returns[above[0]]
            shown = Numbers([value, self.bounds[1]])
            raise ValueError(
                f"the return of policy {name!r} is {shown(value)}, but returns are the negative of the log's costs, at "
                f"most {shown(self.bounds[1])}: if it is a cost, say so, {{{name!r}: {{'cost': {value:g}}}}}"
            )

    @property
    def headline(self) -> str:
        """The verdict and its reason."""
        return str(self.verdict)

    @cached_property
    def verdict(self) -> Verdict:
        """What to do: "deploy", "keep" or "measure", as one imperative with its reason."""
        return judge(self)

    def measure_next(self, k: int = 1) -> list[str]:
        """Return the policies whose measurement is expected to gain most, the first to measure first.

        Args:
            k: How many, 1 or more; fewer if fewer may be better than what is known.

        Raises:
            ValueError: `k` is not a whole number of 1 or more.
        """
        return [self.names[i] for i in decide(self, integer(1)("k", k))[1]]

    def update(self, returns: ReturnsLike | None = None, *, log: LogLike | None = None) -> Selection:
        """Return the selection after policies were measured, as `select` with all returns does.

        Without a log nothing is trained. With one, the networks of the simulator also learn from its episodes, in an
        eighth of their updates, and all policies are rolled out again.

        Args:
            returns: Returns by name, as for `select`. They replace earlier ones of the same name. None with a log that
                holds episodes of policies whose returns are known already.
            log: Measured episodes, of any policies, see `sopr_fast.load_log`. Those of several calls count together.

        Raises:
            TypeError: Returns have no names.
            ValueError: No policy has a return, or one is not finite; or the log has other columns than the first one,
                or no simulator learns from it. See also `load_log`.

        Warns:
            UserWarning: A name is of no policy.
        """
        told: dict[str, Any] = {}
        if log is not None:
            if self.tune is None:
                raise ValueError(
                    "values are not by a simulator, which could learn from further episodes: call select again, with a "
                    "log that holds them too"
                )
            told = self.tune(load_transitions(log))
        if is_ordered(returns):
            raise TypeError(f"returns must be by name, or a file or data frame, got {type(returns).__name__}")
        if returns is not None or log is None:
            told["measured"] = self.measured.update(returns)
        return replace(self, **told)

    @property
    def doubts(self) -> list[str]:
        """What the known returns leave open."""
        return doubts(self)

    @property
    def flags(self) -> list[str]:
        """P remarks: "incumbent", "measured", "cannot be ranked", "not in the log", "3 copies", several, or ""."""
        unsupported = np.where(is_unsupported(self.unsupported, self.known), "not in the log", "")
        flags = np.where(self.known, "measured", np.where(self.rankable, unsupported, "cannot be ranked")).tolist()
        flags = ["incumbent" if name == self.incumbent else flag for name, flag in zip(self.names, flags, strict=True)]
        counts = [f"{len(own)} copies" if len(own) > 1 else "" for own in self.measured.copies]
        return [", ".join(filter(None, pair)) for pair in zip(flags, counts, strict=True)]

    @property
    def notes(self) -> list[str]:
        """What to bear in mind, one sentence for each kind, without full stops."""
        unshown = unsupported_in_words(self.names, self.unsupported, self.known) + missed_in_words(self.state_error)
        outside = [] if self.outside is None else guessed(self.names, np.where(self.known, 0, self.outside))
        agreed, known = agreement_in_words(self.agreement), self.measured.note()
        return [*agreed, *self.unrankable(), *unshown, *outside, *self.doubts, *self.facts, *known]

    def columns(self) -> dict[str, list[Any]]:
        """Return one list for each column of the table, the highest return or lowest cost first; values in `unit`."""
        shown, low, high = self.shown
        table = {
            "policy": self.names,
            self.unit: shown.tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
            "best": self.probability_best.tolist(),
            "known": self.known.tolist(),
            "note": self.flags,
            "distance": self.distance_ratio.tolist(),
            "copies": self.measured.copies,
        }
        for name, shares in (("outside", self.outside), ("unsupported", self.unsupported)):
            if shares is not None:
                table[name] = shares.tolist()
        if self.values is not None:
            table[self.method] = (-self.values if self.are_costs else self.values).tolist()
        return {name: [column[i] for i in self.order] for name, column in table.items()}

    def cells(self) -> list[Column]:
        """Return the columns of text and report, the highest return or lowest cost first."""
        columns, show = self.columns(), Numbers(self.shown[0])
        cells = [Column("policy", columns["policy"])]
        cells += [column(head, columns[head], show) for head in (self.unit, "low", "high")]
        cells.append(column("best", columns["best"], chance))
        if self.outside is not None:
            cells.append(column("outside", columns["outside"], lambda share: "" if np.isnan(share) else percent(share)))
        return [*cells, Column("", columns["note"])]

    @property
    def legend(self) -> str:
        """What the headings of `cells` mean."""
        outside = "; outside: simulated steps that leave the log" if self.outside is not None else ""
        return f"low, high: 80 % interval; best: probability of being the best policy{outside}"

    def table(self, rows: int | None = None) -> str:
        """Return verdict, policies and notes as text of 80 columns, see `Ranking.table`."""
        agreed = agreement_in_words(self.agreement)
        verdict = [*map(wrapped, (f"{self.verdict.text}.", self.verdict.reason, *agreed))]
        shortened = "; all rows: JSON, to_pandas()" if rows is not None and len(self.names) > rows else ""
        below = map(wrapped, [self.legend + shortened, *self.notes[len(agreed) :]])
        return "\n".join([*verdict, "", to_text(self.cells(), rows), "", *below])

    def unrankable(self) -> list[str]:
        """Return a note on candidates that cannot be ranked; none if there are none."""
        names = [self.names[i] for i in self.order if not self.rankable[i]]
        if not names:
            return []
        listed = list_names(names, _LISTED)
        if self.covariance is not None:
            return [f"This log says nothing of {listed}: it hardly takes their actions"]
        act = "it acts" if len(names) == 1 else "they act"
        return [f"What known {self.unit}s say of {listed} rests on assumptions: {act} unlike every known policy"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON (NaN where a number is undefined)."""
        verdict = self.verdict
        return {
            "verdict": verdict.kind,
            "policies": list(verdict.policies),
            "text": verdict.text,
            "reason": verdict.reason,
            "table": self.columns(),
            "evidence": self.evidence,
            "incumbent": self.incumbent,
            "notes": self.notes,
        }


def trained_shares(
    progress: Mapping[str, float], names: Sequence[str], groups: Mapping[str, str] | None = None
) -> pandas.Series:
    """Return how far each policy (P,) was trained, as a share of the last step of its run.

    It is NaN for a policy without a step, or whose run has no other one. ValueError is raised if a name is unknown, or
    a step is not a finite number above 0.
    """
    import pandas

    if not hasattr(progress, "items"):
        raise TypeError(f"progress must be by name, {{policy: step}}, got {type(progress).__name__}")
    progress = dict(progress)
    if strangers := [name for name in progress if name not in names]:
        raise ValueError(f"progress: there is no policy {strangers[0]!r}; the policies are {list_names(list(names))}")
    for name, step in progress.items():
        if not isinstance(step, Real) or not 0 < step < np.inf:
            raise ValueError(f"progress of {name!r} must be a number of steps above 0, got {step!r}")
    runs = [""] * len(names) if groups is None else check_groups(groups, names)
    steps = pandas.Series([progress.get(name, np.nan) for name in names], dtype=float)
    of_run = steps.groupby(runs)
    return (steps / of_run.transform("max")).where(of_run.transform("nunique") > 1)


def _standardised(shares: pandas.Series) -> np.ndarray:
    """Return shares (P,) with mean 0 and standard deviation 1; NaN for policies without one."""
    return ((shares - shares.mean()) / (shares.std(ddof=0) or 1.0)).to_numpy()
