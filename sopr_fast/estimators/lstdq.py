"""Least-squares temporal differences on the features of a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.options import choice, integer, number, option, widths
from ..runtime.shares import share_policies
from .behaviour_q import BehaviourQ
from .coverage import uncovered
from .critics import Critic
from .log import PolicyActions
from .reward_estimator import Problem, RewardEstimator

_CHUNK = 1 << 16  # (state, action) rows whose features are computed at once


@dataclass(frozen=True)
class LSTDQ(RewardEstimator):
    """Least-squares temporal differences for action values (Lagoudakis & Parr, 2003).

    One SARSA critic is trained on the log (see `BehaviourQ`). Its last hidden layer gives the features φ(s, a), and for
    each policy the weights w of a linear action value solve E[φ (φ - γ φ')ᵀ] w = E[φ r], where φ' belongs to the
    policy's next action. Values are solved for as differences from the mean return-to-go of the log, so that the ridge
    draws them toward it, and a constant added to all rewards of endless episodes moves all values alike. This costs a
    fraction of a second a policy. For discrete actions every action has features of its own.

    Attributes:
        updates: See `FQE`.
        batch_size: See `FQE`.
        hidden: Widths of the critic's hidden layers; () for states and actions themselves as features.
        learning_rate: See `FQE`.
        ridge: Number added to the diagonal of the matrix, in units of the features' mean square.
        rows: Largest number of logged rows in the means, evenly spaced.
        draws: See `FQE`.
        start: See `FQE`.

    Diagnostics:
        effective_sample_size: (P,) effective number of rows under the linear density ratios of the policies.
        uncovered: See `FQE`.
        critic: `Critic` of the logged behaviour.
        dropped_rows: See `FQE`.
        allowed: See `RewardEstimator`.

    Warns:
        UncertainEstimateWarning: A policy is uncovered in over 90 % of the states, or a value lies outside what rewards
            allow.
    """

    updates: int = option(4000, integer(1), "gradient steps of the critic")
    batch_size: int = option(256, integer(1), "transitions per step")
    hidden: tuple[int, ...] = option((128, 128), widths, "widths of the critic's hidden layers")
    learning_rate: float = option(1e-3, number(above=0), "learning rate of Adam")
    ridge: float = option(1e-3, number(above=0), "regularisation, in units of the features' mean square")
    rows: int = option(32768, integer(1), "largest number of logged rows in the means")
    draws: int = option(4, integer(1), "actions sampled in every state of a stochastic policy")
    start: str = option("initial", choice("initial", "data"), "states whose mean value is the estimate")

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request, timings = problem.log, problem.request, problem.request.timings
        actions = problem.actions(draws=self.draws, memory=0)
        with timings.stage("coverage"):
            uncovered_shares = uncovered(actions, log, progress=request.progress)
        with timings.stage("training"):
            estimator = BehaviourQ(self.updates, self.batch_size, self.hidden, self.learning_rate)
            critic, _ = estimator.train(log, problem.discount, request.seed, request.checkpoint, request.progress)
        with timings.stage("solving"):
            rows = log.evaluated_rows(self.rows)
            starts = log.initial if self.start == "initial" else rows

            def solve(part: slice) -> Tensor:  # (p, 2)
                own = actions.of(part)
                moments = _Moments(critic, own, rows, problem.discount)
                return moments.solve(_mean_features(critic, own, starts), self.ridge)

            solved = share_policies(
                len(problem.policies), solve, description="solving", progress=request.progress
            ).numpy()
            values, sizes = solved.T
        diagnostics = {
            "effective_sample_size": sizes,
            "uncovered": uncovered_shares,
            "critic": critic,
            "dropped_rows": actions.dropped_rows,
        }
        return values, None, diagnostics


class _Moments:
    """Means over logged rows that the values of P policies need; D is the number of features.

    Attributes:
        count: (P,) rows that count for each policy.
        square: (P, D, D) float64 means of φ φᵀ; one matrix for all policies where every row counts.
        following: (P, D, D) float64 means of φ γ φ'ᵀ.
        reward: (P, D) float64 means of φ (r - (1 - γ) b), without γ at terminals, where b is the `offset`.
        offset: Mean return-to-go of the log, from which values are differences.
        mean: (P, D) float64 means of φ.
    """

    @torch.no_grad()
    def __init__(self, critic: Critic, actions: PolicyActions, rows: Tensor, discount: float):
        log, policies = actions.log, len(actions.policies)
        self.offset = critic.scale.mean
        totals: list[Any] = [0.0] * 5
        for chunk in rows.split(max(64, _CHUNK // policies)):
            known = actions.has_next_action(chunk)
            counted = (
                torch.ones(1, len(chunk), dtype=torch.float64, device=log.device) if known is None else known.double()
            )
            own = _features(critic, log.states(chunk), log.actions[chunk]).double()  # (B, D)
            masked = counted[..., None] * own  # (P or 1, B, D)
            alive = discount * (1 - log.terminals[chunk])
            reward = log.rewards[chunk].double() - self.offset * (1 - alive.double())
            next_states = log.states(log.next[chunk])
            following: Any = 0.0
            for draw in range(actions.draws):
                taken = actions(log.next[chunk], draw)
                following = following + _features(critic, next_states, taken).double() / actions.draws
            parts = (
                counted.sum(1),
                masked.mT @ own,
                masked.mT @ (alive[:, None] * following),
                masked.mT @ reward,
                masked.sum(1),
            )
            totals = [total + part.cpu() for total, part in zip(totals, parts, strict=True)]
        self.count, *sums = totals
        means = [total / self.count.view(-1, *[1] * (total.dim() - 1)).clamp(min=1) for total in sums]
        self.square, self.following, self.reward, self.mean = means

    def solve(self, start: Tensor, ridge: float) -> Tensor:
        """Return the value and the effective number of rows of each policy, (P, 2) float64.

        Args:
            start: (P, D) float64 mean features of what each policy does first.
            ridge: See `LSTDQ`.
        """
        scale = self.square.diagonal(dim1=1, dim2=2).mean(1)
        identity = torch.eye(start.shape[1], dtype=torch.float64, device="cpu")
        matrix = self.square - self.following + (ridge * scale)[:, None, None] * identity
        # The density ratio of row i is proportional to φ_i · u; a value is the offset plus the mean ratio times reward.
        u = torch.linalg.solve(matrix.mT, start)
        values = self.offset + (u * self.reward).sum(1)
        total, square = (u * self.mean).sum(1), ((self.square @ u[..., None])[..., 0] * u).sum(1)
        return torch.stack([values, self.count * total.square() / square], 1)


def _features(critic: Critic, states: Tensor, actions: Tensor) -> Tensor:
    """Return features (..., B, D) of normalised states (B, dim_s) and actions (..., B, dim_a), and a constant."""
    value = critic.value
    inputs = states if value.discrete else torch.cat([states.expand(*actions.shape[:-1], -1), actions], -1)
    hidden = value.network.hidden(inputs)
    hidden = torch.cat([hidden / max(1, hidden.shape[-1]) ** 0.5, torch.ones_like(hidden[..., :1])], -1)
    return (hidden[..., None] * actions[..., None, :]).flatten(-2) if value.discrete else hidden


@torch.no_grad()
def _mean_features(critic: Critic, actions: PolicyActions, rows: Tensor) -> Tensor:
    """Return the mean features (P, D) float64 of the policies' actions in rows (B,) of the table of states."""
    total: Any = 0.0
    for chunk in rows.split(max(64, _CHUNK // len(actions.policies))):
        states = actions.log.states(chunk)
        for draw in range(actions.draws):
            total = total + _features(critic, states, actions(chunk, draw)).double().sum(1).cpu()
    return total / (len(rows) * actions.draws)
