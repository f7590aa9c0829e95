"""Small decision processes whose values, action values and stationary distributions have closed forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from support.problems import transitions
from torch import distributions as dist

from sopr_fast.inputs.logs import Transitions


@dataclass(frozen=True)
class Tabular:
    """A process with S states, one-hot, and A discrete actions."""

    step: np.ndarray  # (S, A, S) probabilities of next states
    end: np.ndarray  # (S, A) probabilities of termination
    reward: np.ndarray  # (S, A)
    start: np.ndarray  # (S,) probabilities of initial states

    @classmethod
    def random(cls, seed: int = 0, states: int = 5, actions: int = 3, end: float = 0.0) -> Tabular:
        random = np.random.default_rng([seed, 99])
        step = random.dirichlet(np.full(states, 0.5), (states, actions))
        ends = end * 2 * random.random((states, actions))
        return cls(step, ends, random.normal(1.0, 1.0, (states, actions)), random.dirichlet(np.ones(states)))

    def policy(self, seed: int) -> np.ndarray:
        return np.random.default_rng([seed, 98]).dirichlet(np.ones(self.reward.shape[1]), len(self.reward))

    def q(self, policy: np.ndarray, discount: float) -> np.ndarray:
        """Return action values (S, A): Q = r + γ P_π Q."""
        size = self.reward.size
        follow = discount * self._pairs(policy)
        return np.linalg.solve(np.eye(size) - follow, self.reward.ravel()).reshape(self.reward.shape)

    def value(self, policy: np.ndarray, discount: float) -> float:
        return float(self.start @ (policy * self.q(policy, discount)).sum(1))

    def value_within(self, policy: np.ndarray, discount: float, horizon: int) -> float:
        """Return the discounted return of the first `horizon` steps."""
        pairs = (self.start[:, None] * policy).ravel()
        total = 0.0
        for t in range(horizon):
            total += discount**t * float(pairs @ self.reward.ravel())
            pairs = pairs @ self._pairs(policy)
        return total

    def occupancy(self, policy: np.ndarray, discount: float) -> np.ndarray:
        """Return (1 - γ) Σ γ^t Pr(s_t, a_t), (S, A); it sums to less than 1 if episodes terminate."""
        size = self.reward.size
        start = (1 - discount) * (self.start[:, None] * policy).ravel()
        return np.linalg.solve(np.eye(size) - discount * self._pairs(policy).T, start).reshape(self.reward.shape)

    def _pairs(self, policy: np.ndarray) -> np.ndarray:
        """Return the transition probabilities (S A, S A) of state-action pairs."""
        alive = self.step * (1 - self.end)[..., None]
        return (alive[..., None] * policy).reshape(self.reward.size, -1)

    def log(self, behaviour: np.ndarray, episodes: int, length: int, seed: int, log_probs: bool = False) -> Transitions:
        """Return logged episodes, cut after `length` steps; actions are one-hot."""
        random = np.random.default_rng([seed, 97])
        states, actions = self.reward.shape
        now = random.choice(states, episodes, p=self.start)
        rows: list[list] = [[] for _ in range(episodes)]
        alive = np.ones(episodes, bool)
        for t in range(length):
            for e in np.flatnonzero(alive):
                a = random.choice(actions, p=behaviour[now[e]])
                ended = random.random() < self.end[now[e], a]
                following = random.choice(states, p=self.step[now[e], a])
                rows[e].append((now[e], a, self.reward[now[e], a], following, ended, t == length - 1 and not ended))
                now[e], alive[e] = following, not ended
        s, a, r, following, ended, cut = (np.array(c) for c in zip(*(row for e in rows for row in e), strict=True))
        columns = np.eye(states)[s], np.eye(actions)[a], r, np.eye(states)[following], ended, cut
        return transitions(*columns, np.log(behaviour[s, a]) if log_probs else None)

    def estimated(self, log: Transitions) -> Tabular:
        """Return the process that a log's counts describe, with the log's initial states."""
        s, a, following = (x.argmax(1) for x in (log.states, log.actions, log.next_states))
        count = np.zeros(self.reward.shape)
        step, end, reward = np.zeros(self.step.shape), np.zeros(self.reward.shape), np.zeros(self.reward.shape)
        np.add.at(count, (s, a), 1)
        np.add.at(step, (s, a, following), ~log.terminals)
        np.add.at(end, (s, a), log.terminals)
        np.add.at(reward, (s, a), log.rewards)
        starts = log.states[log.episodes[:-1]]
        start = np.bincount(starts.argmax(1), minlength=len(self.start)) / len(starts)
        kept = np.maximum(count - end, 1)
        return Tabular(step / kept[..., None], end / count, reward / count, start)


class TablePolicy:
    def __init__(self, table: np.ndarray):
        self.table = table.astype(np.float32)

    def __call__(self, states: np.ndarray) -> dist.Categorical:
        return dist.Categorical(torch.from_numpy(self.table[states.argmax(1)]))


@dataclass(frozen=True)
class Linear:
    """A linear process with quadratic cost and one action: s' = A s + B a + noise, r = -s·C s - u a².

    Policies are a = gain·s + noise.
    """

    a: np.ndarray  # (2, 2)
    b: np.ndarray  # (2,)
    cost: np.ndarray  # (2, 2) C
    effort: float = 0.2  # u
    noise: float = 0.1  # standard deviation of the noise of each state

    @classmethod
    def small(cls) -> Linear:
        return cls(np.array([[0.9, 0.3], [-0.2, 0.8]]), np.array([0.0, 0.4]), np.diag([1.0, 0.5]))

    def value(
        self, gain: np.ndarray, discount: float, starts: np.ndarray, std: float = 0.0, horizon: int = 400
    ) -> float:
        """Return the mean of V(s) = -s·W s - w over `starts` (E, 2).

        Iterates W ← C + γ Fᵀ W F and w ← u σ² + γ (tr(W Σ) + w) `horizon` times; Σ is the covariance of a step.
        """
        closed = self.a + np.outer(self.b, gain)
        cost = self.cost + self.effort * np.outer(gain, gain)
        spread = self.noise**2 * np.eye(2) + std**2 * np.outer(self.b, self.b)
        w, constant = np.zeros_like(cost), 0.0
        for _ in range(horizon):
            constant = self.effort * std**2 + discount * (np.trace(w @ spread) + constant)
            w = cost + discount * closed.T @ w @ closed
        return float(-np.einsum("ei,ij,ej->e", starts, w, starts).mean() - constant)

    def log(self, gain: np.ndarray, std: float, episodes: int, length: int, seed: int) -> Transitions:
        random = np.random.default_rng([seed, 96])
        s = random.uniform(-1, 1, (episodes, 2))
        parts = []
        for _ in range(length):
            a = s @ gain + std * random.standard_normal(episodes)
            following = s @ self.a.T + a[:, None] * self.b + self.noise * random.standard_normal(s.shape)
            reward = -np.einsum("ei,ij,ej->e", s, self.cost, s) - self.effort * a**2
            parts.append((s, a[:, None], reward, following))
            s = following
        flat = [np.stack(part, 1).reshape(episodes * length, -1) for part in zip(*parts, strict=True)]
        return transitions(*flat, None, np.arange(1, episodes * length + 1) % length == 0)


class LinearGain:
    def __init__(self, gain: np.ndarray, std: float | None = None):
        self.gain, self.std = gain.astype(np.float32), std

    def __call__(self, states: np.ndarray):
        mean = (states @ self.gain)[:, None]
        return mean if self.std is None else dist.Normal(torch.from_numpy(mean), self.std)
