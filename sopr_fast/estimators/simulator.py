"""A simulator learned from the log, in which policies are rolled out to the end of their episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions
from ..inputs.logs.schema import LIMIT
from ..inputs.policies import Actor, Layout, Policy
from ..inputs.policies.actor import stacks
from ..native import torch_on_one_thread
from ..results.estimates import Estimates
from ..results.metrics import agreement
from ..runtime.checks import TOO_LARGE, integer, option, optional, widths
from ..runtime.devices import without_autocast
from ..runtime.options import current
from ..runtime.progress import each
from ..runtime.text import list_names, percent
from .dynamics import Dynamics
from .estimator import Estimator, Request
from .learning import learn
from .log import read
from .log_support import STOCHASTIC, agreement_in_words, missed_in_words, unsupported
from .member_errors import HONEST
from .policy_actions import PolicyActions, refuse_arrays

_USUAL = 0.99  # quantile of the disagreement over logged rows
_LEAST_USUAL = 0.1  # disagreement that is no doubt, as a share of the usual change of state
_MOST_PENALTY = 1.0  # times the mean size of a reward
_TOLERANCE = 0.2  # how far a state may leave the range of a column, in standard deviations
_OVER = 1e-3  # survival below which a rollout has ended
_MOST_OUTSIDE = 0.5  # share of steps
_STEPS, _FEWEST_ROLLOUTS, _FEWEST_NOISY = 2000, 2, 16  # of each policy
_OUTLIERS = 0.01  # share of the rows that do not count in it, such as hits of a wall
_UNFINISHED = 0.1  # share of rollouts
_TUNING = 8  # times as many updates train the networks as let them learn from further episodes
_ROWS = 16384  # rollouts that step together


@dataclass(frozen=True)
class Simulator(Estimator):
    """Return of each policy in a simulator that is learned from the log.

    Several networks learn changes of state, rewards and ends of episodes; in the last quarter of their updates also
    from states that they reach themselves. In each of them policies roll out for about 2,000 steps, all from the same
    initial states of the log; other networks take other ones. A return is undiscounted, over `horizon` steps; each
    reward is lowered where the networks disagree more than on the log. The value is the mean over the networks, and its
    standard error 1.5 times their standard deviation. Stochastic policies sample their actions. Arrays of actions are
    refused, because rollouts reach new states.

    What the networks miss of held-out rows is added as noise if it is over a quarter of the change of state, even
    without the worst hundredth of the rows.

    The same seed gives the same values for any number of threads. `Estimates.replicates` are the (P, M) returns in each
    network, and `Estimates.agreement` says whether they order the policies alike.

    Attributes:
        updates: Gradient steps of each network, of 256 rows.
        hidden: Widths of the networks' hidden layers.
        members: M, the number of networks; errors need two.
        horizon: Steps of a rollout; None for the log's time limit, or if that is unknown, for its longest episode.

    Diagnostics:
        state_error: Squared error on held-out rows without the worst hundredth, as a share of the mean squared change
            of state.
        length: (P,) mean lengths of the rollouts' episodes.
        unlived: (P,) size of what rollouts would earn from their ends to the horizon, at the log's mean reward.
        inside: (P,) share of steps within the log's range.
        unsupported: See `FQE`.
        unfinished: (P,) share of rollouts that no terminal state has ended; 0 if the horizon or time limit is known.
        curve: See `FQE`.
        tuned: Function of further `Transitions`, such as measured episodes: the estimates after the networks have
            learned from them too, in an eighth of the updates, with half of each batch from them.

    Warns:
        UncertainEstimateWarning: Over half of a policy's steps leave the log's range, or over a tenth of its rollouts
            are unfinished.
    """

    updates: int = option(8000, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    members: int = option(4, integer(1))
    horizon: int | None = option(None, optional(integer(1)))

    def _estimate(self, request: Request) -> Estimates:
        refuse_arrays(request.policies)
        layout, log = read(request.policies, request.transitions)
        options: dict[str, Any] = {"members": self.members, "hidden": self.hidden, "updates": self.updates}
        options["seed"] = request.seed
        with torch_on_one_thread():
            model = Dynamics(log, **options)
        curve = learn(model, self.updates, "simulator", request.checkpoint, lambda: (options, *log.identity()))
        return self._value(request, layout, model, curve, partial(self._tuned, request, model, log.transitions))

    def _value(
        self, request: Request, layout: Layout, model: Dynamics, curve: dict[str, list], tuned: Callable
    ) -> Estimates:
        """Roll out all policies."""
        log = model.log
        limit = self.horizon or log.transitions.limit
        horizon = int(limit if np.isfinite(limit) else np.diff(log.transitions.episodes).max())
        with torch_on_one_thread():
            missing = model.missing()
            errors = missing.square().mean(1).sort().values  # of held-out rows, as shares of the usual change
            state_error = float(errors[: len(errors) - int(_OUTLIERS * len(errors))].mean().nan_to_num())
            is_noisy = state_error > STOCHASTIC
            fewest = _FEWEST_NOISY if is_noisy else _FEWEST_ROLLOUTS
            rollouts = max(fewest, min(-(-_STEPS // horizon), len(log.initial)))
            noise = missing * model.change_scale if is_noisy else None
            rolled = _roll_out(model, request, layout, rollouts, horizon, noise)
        rolled["unfinished"] *= np.isinf(limit)
        rolled["unsupported"] = unsupported(PolicyActions(request.policies, layout, log))
        going_on = log.transitions.rewards[~log.transitions.terminals]
        rolled["unlived"] = abs(float(going_on.sum())) / max(1, len(going_on)) * (horizon - rolled["length"])
        for note in guessed(request.names, 1 - rolled["inside"]) + unfinished(request.names, rolled["unfinished"]):
            log.doubt(note)
        members = rolled.pop("values")
        return Estimates(
            request.names,
            members.mean(1),
            HONEST * members.std(1, ddof=1) if self.members > 1 else np.full(len(members), np.nan),
            replicates=members if self.members > 1 else None,
            method=self.name,
            diagnostics={**rolled, "state_error": state_error, "curve": curve, "tuned": tuned},
            notes=[*agreement_in_words(agreement(members)), *missed_in_words(state_error), *log.facts],
        )

    def _tuned(self, request: Request, model: Dynamics, earlier: Transitions, episodes: Transitions) -> Estimates:
        """Return estimates of the same policies after the networks have learned from further episodes too."""
        together, updates = earlier.followed_by(episodes), -(-self.updates // _TUNING)
        layout, log = read(request.policies, together, model.log)
        with torch_on_one_thread(), torch.inference_mode(False), without_autocast(torch.device("cpu")):
            tuned = model.going_on(log, updates)
            curve = learn(tuned, updates, "tuning the simulator")
            return self._value(request, layout, tuned, curve, partial(self._tuned, request, model, together))


def _roll_out(
    model: Dynamics, request: Request, layout: Layout, rollouts: int, horizon: int, noise: Tensor | None
) -> dict[str, np.ndarray]:
    """Roll out P policies in each of M models R times, from initial states that all policies share, but no two models.

    Of the `noise` (…, dim_s), one row is drawn for every rollout and step, and added to the states of all policies.

    Returns:
        (P, M) float64 "values", (P,) float64 "length", "inside" and "unfinished", see `Simulator`.
    """
    log, policies, count, members = model.log, request.policies, len(request.policies), model.members
    generator = torch.Generator().manual_seed(request.seed)
    order = torch.randperm(len(log.initial), generator=generator, device="cpu")
    chosen = order.repeat(-(-members * rollouts // len(order)))[: members * rollouts]
    states = log.states(log.initial[chosen]).repeat(count, 1)  # (P * M * R, dim_s)
    model_of = torch.arange(members, device="cpu").repeat_interleave(rollouts).repeat(count)
    logged = log.evaluated_rows(_ROWS)
    usual = model.step_forward(log.states(logged), log.actions[logged], 0 * logged)[3]
    usual = usual.quantile(_USUAL).clamp(min=_LEAST_USUAL)
    low, high = log.range()
    totals = torch.zeros(3, len(states), dtype=torch.float64, device="cpu")
    alive = torch.ones_like(totals[0])
    acting: list[Policy] = []
    for _ in each(range(horizon), "rolling out", "step"):
        going = alive.view(count, -1).amax(1) > _OVER
        if not going.any():
            continue
        rows = going.repeat_interleave(members * rollouts).nonzero()[:, 0]
        still = [policies[p] for p in going.nonzero()[:, 0].tolist()]
        if still != acting:
            acting, groups = still, stacks(still)
        raw = log.denormalise(states[rows]).view(len(acting), -1, log.state_dim)
        taken = _act(acting, groups, raw, None if layout.kind == "action" else generator)
        actions = log.normalise_actions(taken.flatten(0, 1))
        added = torch.zeros_like(states[: members * rollouts])
        if noise is not None:
            added = noise[torch.randint(len(noise), (len(added),), generator=generator, device="cpu")]
        added = added.repeat(len(acting), 1)
        inputs = states[rows], actions, model_of[rows], added
        parts = map(model.step_forward, *(each.split(_ROWS) for each in inputs))
        states[rows], rewards, ends, disagreement = map(torch.cat, zip(*parts, strict=True))
        within = ((states[rows] > low - _TOLERANCE) & (states[rows] < high + _TOLERANCE)).all(1)
        doubt = model.reward_size * (disagreement / usual - 1).clamp(0, _MOST_PENALTY)
        totals[:, rows] += alive[rows] * torch.stack([rewards - doubt, torch.ones_like(rewards), within])
        alive[rows] *= 1 - ends
    totals[2] /= totals[1]
    means = torch.cat([totals, alive[None]]).view(4, count, members, rollouts).mean(3).numpy()
    names = ("length", "inside", "unfinished")
    return {"values": means[0], **dict(zip(names, means[1:].mean(2), strict=True))}


@torch.no_grad()
def _act(
    policies: list[Policy],
    groups: list[tuple[list[int], Actor | None]],
    states: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Return actions (P, B, dim_a) in states (P, B, dim_s) of each policy, sampled with the same noise if with any."""
    key = 0 if generator is None else int(torch.randint(2**62, (), generator=generator, device="cpu"))
    taken = [*states]
    for places, stack in groups:
        actions = None if stack is None else stack._output(states[places], None).mean
        if actions is None or not (actions.abs() < TOO_LARGE).all():  # acting alone names the policy
            actions = torch.stack([_alone(policies[place], states[place], key) for place in places])
        for place, own in zip(places, actions, strict=True):
            taken[place] = own
    return torch.stack(taken)


def _alone(policy: Policy, states: Tensor, key: int) -> Tensor:
    noise = torch.Generator().manual_seed(key)
    return torch.cat([policy.output(batch).sample(noise) for batch in states.split(current().batch_size)])


def guessed(names: list[str], shares: np.ndarray) -> list[str]:
    """Return a note on policies most of whose steps (P,) leave the log's range; or none."""
    far = [f"{names[i]!r} ({percent(shares[i])} of steps)" for i in np.flatnonzero(shares > _MOST_OUTSIDE)]
    text = (
        f"rollouts of {list_names(far, 5)} leave the range of the log, where the simulator guesses; measure these "
        "policies, or log more of what they do"
    )
    return [text] if far else []


def unfinished(names: list[str], shares: np.ndarray) -> list[str]:
    """Return a note on policies whose rollouts have often not ended (P,), though no time limit is known; or none."""
    cut = [names[i] for i in np.flatnonzero(shares > _UNFINISHED)]
    text = (
        f"{list_names(cut, 5)} {'is' if len(cut) == 1 else 'are'} still running where the log's longest episode ends; "
        f"the time limit is unknown, so returns may be higher (lower, if rewards are negative): {LIMIT}"
    )
    return [text] if cut else []
