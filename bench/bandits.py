"""How often intervals of importance weighting and doubly robust values hold, over simulated logs of a bandit.

    python bench/bandits.py [LOGS]

Each log has 3,000 visits, five features and eight actions, whose clicks follow logistic models, and is of a softmax
policy. If Open Bandit Pipeline (obp) is installed, its estimators value the same policies from the same logs.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from importlib.util import find_spec

import numpy as np

VISITS, FEATURES, ACTIONS = 3000, 5, 8


def problem(seed: int) -> tuple[np.ndarray, dict, dict[str, np.ndarray], dict[str, float]]:
    """Return states, a log, probabilities (N, A) of policies, and their true values over these states' distribution."""
    random = np.random.default_rng(seed)
    weights = np.random.default_rng(0).standard_normal((FEATURES, ACTIONS))

    def chances(states: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(1.5 - states @ weights + 0.5 * (states**2).mean(1, keepdims=True)))

    def softmax(states: np.ndarray, gain: float) -> np.ndarray:
        scores = np.exp(gain * (states @ weights))
        return scores / scores.sum(1, keepdims=True)

    def act(states: np.ndarray) -> dict[str, np.ndarray]:
        best = np.eye(ACTIONS)[(states @ weights).argmax(1)]
        return {"greedy": best, "soft": softmax(states, 1.0), "uniform": np.full((len(states), ACTIONS), 1 / ACTIONS)}

    states = random.standard_normal((VISITS, FEATURES))
    logged = softmax(states, 0.3)
    taken = (logged.cumsum(1) > random.random((VISITS, 1))).argmax(1)
    rows = np.arange(VISITS)
    log = {
        "states": states,
        "actions": taken,
        "rewards": (random.random(VISITS) < chances(states)[rows, taken]).astype(float),
        "probabilities": logged[rows, taken],
        "terminals": np.ones(VISITS, bool),
    }
    many = np.random.default_rng(1).standard_normal((1_000_000, FEATURES))
    truth = {name: float((own * chances(many)).sum(1).mean()) for name, own in act(many).items()} if seed == 0 else {}
    return states, log, act(states), truth


def ours(log: dict, policies: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return values and intervals of each estimator."""
    from sopr_fast import load_policies
    from sopr_fast.estimators import DoublyRobust, ImportanceWeighting

    loaded = load_policies(policies, action_count=ACTIONS)
    found = {}
    for estimator in (ImportanceWeighting(discount=1.0), DoublyRobust(discount=1.0)):
        estimates = estimator.estimate(loaded, log)
        found[f"sopr_fast {estimator.name}"] = estimates.values, estimates.intervals(0.95)
    return found


def of_obp(log: dict, policies: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the same by obp: self-normalised weighting, and doubly robust with its cross-fitted logistic model."""
    from obp.ope import DoublyRobust, RegressionModel, SelfNormalizedInverseProbabilityWeighting
    from sklearn.linear_model import LogisticRegression

    own = {"reward": log["rewards"], "action": log["actions"], "pscore": log["probabilities"]}
    own["position"] = np.zeros(VISITS, int)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for estimator in (SelfNormalizedInverseProbabilityWeighting(), DoublyRobust()):
        values, ends = [], []
        for chosen in policies.values():
            given = own | {"action_dist": chosen[:, :, None]}
            if isinstance(estimator, DoublyRobust):
                model = RegressionModel(n_actions=ACTIONS, base_model=LogisticRegression(max_iter=300))
                fitted = {key: own[key] for key in ("action", "reward", "pscore", "position")}
                predicted = model.fit_predict(
                    context=log["states"], **fitted, action_dist=given["action_dist"], n_folds=5, random_state=0
                )
                given["estimated_rewards_by_reg_model"] = predicted
            values.append(estimator.estimate_policy_value(**given))
            interval = estimator.estimate_interval(**given, alpha=0.05, n_bootstrap_samples=200, random_state=0)
            ends.append([interval["95.0% CI (lower)"], interval["95.0% CI (upper)"]])
        found[f"obp {type(estimator).__name__}"] = np.array(values), np.array(ends)
    return found


def main(logs: int = 200) -> None:
    """Print, for each estimator and policy, mean error, root mean squared error, and coverage of 95 % intervals."""
    warnings.simplefilter("ignore")
    truth = np.array(list(problem(0)[3].values()))
    peers = [ours, of_obp] if find_spec("obp") else [ours]
    values, inside, widths = defaultdict(list), defaultdict(list), defaultdict(list)
    for seed in range(logs):
        _, log, policies, _ = problem(seed)
        for peer in peers:
            for name, (found, ends) in peer(log, policies).items():
                values[name].append(found)
                inside[name].append((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
                widths[name].append(ends[:, 1] - ends[:, 0])
    print(f"{logs} logs of {VISITS:,} visits; true values of {', '.join(policies)}: {truth.round(4).tolist()}")
    for name, estimated in values.items():
        error = np.array(estimated) - truth
        print(f"{name}: bias {error.mean(0).round(4).tolist()}, rmse {np.sqrt((error**2).mean(0)).round(4).tolist()}")
        held, width = (np.mean(each[name], 0).round(3).tolist() for each in (inside, widths))
        print(f"  95 % intervals hold {held}, widths {width}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
