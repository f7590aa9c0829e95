"""Digests of all scores, losses and estimates on the HalfCheetah set, to compare two versions of the code.

python bench/digests.py > before.txt        # then change the code and install it
python bench/digests.py | diff before.txt -
"""

from __future__ import annotations

import hashlib
import warnings

import halfcheetah
import numpy as np
import torch

import sopr_fast
from sopr_fast import estimators

SMALL = {"subset_size": 1024, "clusters": 16, "subsets": 12, "steps": 12}
CONFIGS = {
    "pairwise": {},
    "mlp": {"encoder": "mlp"},
}
ESTIMATORS = {
    "FQE": {"updates": 60},
    "BehaviourQ": {"updates": 60},
    "Simulator": {"updates": 60, "horizon": 10},
    "ImportanceWeighting": {"updates": 60},
    "DualDICE": {"updates": 60},
}


def main() -> None:
    warnings.simplefilter("ignore")
    policies, returns, states = halfcheetah.policies(), halfcheetah.returns(), halfcheetah.states()
    names = list(policies)
    known, held_out, candidates = ({name: policies[name] for name in names[i::3]} for i in range(3))
    by_name = dict(zip(names, returns, strict=True))
    for label, options in CONFIGS.items():
        config = sopr_fast.Config(**SMALL, **options)
        ranker = sopr_fast.fit(known, states, by_name, validation=(held_out, by_name), config=config)
        report(f"{label} losses", ranker.history["loss"])
        report(f"{label} scores", ranker.rank(candidates, states).scores)
    transitions = log(policies[names[20]], states)
    few = {name: policies[name] for name in names[::10]}
    nearest = estimators.NearestPolicy()
    report("NearestPolicy", nearest.estimate(candidates, transitions, known=known, returns=by_name).values)
    for name, options in ESTIMATORS.items():
        estimator = getattr(estimators, name)(**options)
        report(name, estimator.estimate(few, transitions).values)


def log(policy, states: np.ndarray) -> dict[str, np.ndarray]:
    """Return the transitions of one episode, whose rewards are the speed."""
    states = states[:4001].astype(np.float32)
    actions = policy.act(torch.from_numpy(states[:-1])).numpy()
    noise = np.random.default_rng(0).normal(0, 0.1, actions.shape)
    return {
        "observations": states[:-1],
        "actions": np.clip(actions + noise, -1, 1).astype(np.float32),
        "rewards": states[1:, 8],
        "next_observations": states[1:],
        "terminals": np.zeros(4000, bool),
        "timeouts": np.arange(4000) == 3999,
    }


def report(label: str, values) -> None:
    array = np.ascontiguousarray(np.asarray(values, np.float64))
    print(f"{label:<28} {hashlib.sha256(array).hexdigest()[:16]}  {array.ravel()[0]:.6g}", flush=True)


if __name__ == "__main__":
    main()
