"""`bench.selection`: policies, returns, log and results of one tiny task, from nothing."""

import numpy as np
import pandas
import pytest
from support.needs import needs

import sopr_fast
from sopr_fast import estimators
from sopr_fast.results.metrics import spearman


def test_make_and_study_of_a_tiny_task(tmp_path, monkeypatch):
    for package in ("stable_baselines3", "d3rlpy"):
        needs(package)
    from selection import archive, make, study, table, tasks

    for module, name, value in (
        (tasks, "SETS", tmp_path / "sets"),
        (table, "RESULTS", tmp_path / "results.csv"),
        (make, "SNAPSHOTS", 3),
        (make, "OFFLINE_UPDATES", (1, 2)),
        (make, "ALGORITHMS", {"a2c": {}, "dqn": {"learning_starts": 10}}),
        (study, "KNOWN", (0, 3)),
    ):
        monkeypatch.setattr(module, name, value)
    steps = {"a2c": 600, "dqn": 300}
    task = tasks.Task("CartPole-v1", steps, ("a2c", "dqn"), "mixture", chooses=False, rollouts=2)
    make.make(task, tmp_path / "work")
    policies, log, returns = archive.load(task, "mixture")
    replay = archive.load(task, "replay")[1]
    assert len(replay.rewards) < len(log.rewards)
    assert (log.states[: len(replay.states)] == replay.states).all()  # neither run fills its share
    assert list(policies) == list(returns.index)
    assert returns["run"].nunique() == 8  # two runs of two algorithms, and four offline algorithms
    assert log.terminals.any()
    seen = sopr_fast.load_log(tmp_path / "work" / "a2c-0" / "seen.npz")
    for part in ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "episodes"):
        np.testing.assert_array_equal(getattr(replay, part), getattr(seen, part))
    again = archive.roll_out(task, policies["a2c-0-2"])
    assert np.mean(again) == pytest.approx(returns["return"]["a2c-0-2"], rel=1e-5)

    simulator = estimators.Simulator(updates=2, members=1, hidden=(8,), horizon=5)
    results = tmp_path / "results.csv"
    study.run([task], ["mixture"], [0], tmp_path / "work", simulator, results)
    rows = pandas.read_csv(results)
    assert set(rows["kind"]) == set(table.KINDS)
    assert set(rows["method"]) | {"latest snapshot"} == set(table.METHODS)
    kept = simulator.estimate(policies, log, seed=0)
    offline = [name.startswith("offline") for name in policies]
    expected = spearman(returns["return"].to_numpy()[offline], kept.values[offline])
    own = rows[(rows["method"] == "select") & (rows["kind"] == "offline") & (rows["known"] == 0)]
    assert own["spearman"].item() == pytest.approx(expected, abs=1e-3, nan_ok=True)
    study.run([task], ["mixture"], [0], tmp_path / "nowhere", simulator, results)  # nothing is left to do
    monkeypatch.setattr(table, "TASKS", [task])
    assert table.markdown(table.results(chooses=False)).count("\n") == 1 + 4 * 3
