"""`bench.selection.real_sets` on a small problem."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from selection_problems import Scripted, gains, log, true_values


def test_a_seed_of_the_estimators_needs_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent)
    real_sets = importlib.import_module("bench.selection.real_sets")
    policies = gains(16)
    returns = true_values(policies)
    seeds = []

    class Seeded(Scripted):
        def estimate(self, policies, log, *, seed, **options):
            seeds.append(seed)
            return super().estimate(policies, log, **options)

    families = np.array(["sac"] * 12 + ["trpo"] * 4)
    values = np.array(list(returns.values()))
    source = real_sets.Source("hopper medium", "hopper", log(), policies, values, 0 * values, families)
    monkeypatch.setattr(real_sets, "sources", lambda *_: [source])
    monkeypatch.setitem(real_sets.VARIANTS, "once", Seeded(returns))
    monkeypatch.setitem(real_sets.VARIANTS, "learner", Seeded(returns, supervised=True, needs_rewards=False))

    def compute(folder, seed):
        options = f"columns --methods once learner --splits 1 --seed {seed} --out {folder}"
        monkeypatch.setattr(sys, "argv", ["real_sets", *options.split()])
        real_sets.main()

    compute(tmp_path / "1", 1)
    assert set(seeds) == {1}
    count = len(seeds)
    compute(tmp_path / "1", 1)
    assert len(seeds) == count
    with pytest.raises(ValueError, match="holds values of another log, other policies, returns, folds or options"):
        compute(tmp_path / "1", 2)
    compute(tmp_path / "2", 2)
    assert seeds[count:] == [2] * count
