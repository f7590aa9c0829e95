"""Doubly robust values of policies in contextual bandits."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch

from ..runtime.progress import each
from .log import Log
from .policy_actions import PolicyActions
from .reward_estimator import Evaluated, RewardEstimator

_FOLDS = 5
_PENALTY = 10.0  # of the ridge regression, in rows
_BLOCKS = 1000  # of steps, over whose sums errors are computed


@dataclass(frozen=True)
class DoublyRobust(RewardEstimator):
    """Doubly robust value of discrete actions in logs of one-step episodes (Dudík et al., 2011).

    A reward model predicts the reward of every action; importance weights, by the log's probabilities, correct what it
    misses. The value is right if the probabilities are, however wrong the model is. The model is a ridge regression on
    standardised states, one for each action, cross-fitted in five folds.

    Diagnostics:
        reward_error: Squared error of the reward model on rows that it has not seen, as a share of the variance.
    """

    def _evaluate(self, actions: PolicyActions, checkpoint: str | os.PathLike | None) -> Evaluated:
        log, steps = actions.log, actions.log.transitions
        if steps.longest != 1 or not log.discrete or steps.log_probs is None:
            raise ValueError(
                "DoublyRobust needs discrete actions, episodes of one step (max_episode_steps=1) and the probabilities "
                "of logged actions (columns={'probabilities': …}); for other logs, use importance weighting or FQE"
            )
        rewards, logged = steps.rewards.astype(np.float64), log.actions.numpy().argmax(1)
        predicted = self._predict(log, rewards, logged, actions.seed)
        everywhere = torch.arange(log.count, device="cpu")
        rows, density = np.arange(len(rewards)), np.exp(-steps.log_probs.astype(np.float64))
        missed = rewards - predicted[rows, logged]

        found = []
        for p in each(range(len(actions.policies)), "weighting", "policy"):
            (chosen,) = actions.of(slice(p, p + 1))(everywhere).double().numpy()
            weights = chosen[rows, logged] * density
            terms = (chosen * predicted).sum(1) + weights * missed
            found.append(replicated(terms.mean(), terms - terms.mean()))
        error = float((missed**2).mean() / rewards.var()) if rewards.var() > 0 else 0.0
        return np.array(found)[:, 0], np.array(found)[:, 1:], {"reward_error": error}

    def _predict(self, log: Log, rewards: np.ndarray, logged: np.ndarray, seed: int) -> np.ndarray:
        """Return the rewards (N, A) of all actions, predicted by models that have not seen the row."""
        states = log.states(torch.arange(log.count, device="cpu")).double().numpy()
        features = np.column_stack([np.ones(len(states)), states])
        fold = np.random.default_rng([seed, 5]).permutation(len(states)) % _FOLDS
        predicted = np.empty((len(states), log.action_dim))
        penalty = _PENALTY * np.eye(features.shape[1])
        for k in range(_FOLDS):
            train, level = fold != k, rewards[fold != k].mean() if (fold != k).any() else 0.0
            for action in range(log.action_dim):
                x = features[train & (logged == action)]
                y = rewards[train & (logged == action)] - level
                predicted[fold == k, action] = level + features[fold == k] @ np.linalg.solve(x.T @ x + penalty, x.T @ y)
        return predicted.clip(rewards.min(), rewards.max())


def replicated(value: float, terms: np.ndarray) -> np.ndarray:
    """Return a value that is a mean over N steps, and replicates of it, (1 + R,).

    `terms` (N,) are what every step adds to N times the value, less its mean. The replicates' variance is that of the
    value; those of two policies vary together as their values do, since they rest on the same steps.
    """
    count = len(terms)
    blocks = min(count, _BLOCKS)
    sums = np.bincount(np.arange(count) % blocks, terms, blocks) / count
    return np.append(value, value + np.sqrt(blocks) * sums)
