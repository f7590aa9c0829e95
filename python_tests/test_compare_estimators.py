"""`bench/compare_estimators.py` on a small folder laid out like those of `bench.paper`."""

import csv
import json
import shutil
import sys
from dataclasses import replace

import compare_estimators
import h5py
import numpy as np
import pytest
from fitted import Fitted
from problems import TINY, ladder, log
from scipy.stats import spearmanr

from sopr_fast.estimators import BehaviourQ, NearestPolicy
from sopr_fast.inputs.policies import load
from sopr_fast.selection import evaluate

SPLIT = {"train": [0, 2, 3, 5], "validation": [1], "test_set_2": [6, 4, 7]}
RNG = np.random.default_rng(0)
RETURNS, OFFLINE_RETURNS = RNG.normal(size=8), RNG.normal(size=5)


def write_set(folder, gains, returns):
    """Write linear actors with the given gains, and their returns."""
    folder.mkdir(parents=True, exist_ok=True)
    weight = np.random.default_rng(7).standard_normal((2, 3))
    np.savez(
        folder / "policies.npz",
        **{"mean.weight": np.reshape(gains, (-1, 1, 1)) * weight, "mean.bias": np.zeros((len(gains), 2))},
    )
    with (folder / "returns.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["policy", "return_mean"], *enumerate(returns)])


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "hopper"
    write_set(folder, np.linspace(0.1, 1.5, 8), RETURNS)
    write_set(folder / "test_set_1/medium", np.linspace(1.4, 0.3, 5), OFFLINE_RETURNS)
    (folder / "split.json").write_text(json.dumps(SPLIT))
    (folder / "logs").mkdir()
    with h5py.File(folder / "logs/medium.hdf5", "w") as file:
        file["observations"], file["next_observations"] = RNG.normal(size=(2, 300, 3)).astype(np.float32)
        file["actions"] = RNG.normal(size=(300, 2)).astype(np.float32)
        file["rewards"] = RNG.normal(size=300).astype(np.float32)
        file["timeouts"] = np.arange(300) % 20 == 19
    return folder


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """Function that runs the script on folders and returns the runs and the table that it wrote."""
    out = tmp_path / "out.json"

    def run(options, *folders):
        data = ["--data", *map(str, folders or [folder]), "--out", str(out)]
        fixed = ["--test", "paper", "--log", "medium", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", ["compare_estimators.py", *data, *fixed, *options.split()])
        compare_estimators.main()
        return json.loads(out.read_text())["runs"], out.with_suffix(".md").read_text()

    return run


def test_test_sets_of_the_paper(folder, run):
    runs, _ = run("--methods NearestPolicy ImportanceWeighting FQE --updates 5 --runs 2")
    assert [(run["run"], run["method"]) for run in runs] == [
        (i, method) for i in (0, 1) for method in ("NearestPolicy", "ImportanceWeighting", "FQE")
    ]
    online = dict(enumerate(load(folder / "policies.npz").values()))
    offline = {str(i): policy for i, policy in enumerate(load(folder / "test_set_1/medium/policies.npz").values())}
    train, second = ({str(i): online[i] for i in SPLIT[part]} for part in ("train", "test_set_2"))
    known = {"known": train, "returns": RETURNS[SPLIT["train"]]}
    states = folder / "logs/medium.hdf5"
    tests = {"I": (offline, OFFLINE_RETURNS), "II": (second, RETURNS[SPLIT["test_set_2"]])}
    for name, (policies, returns) in tests.items():
        candidates = {f"x{i}": policy for i, policy in policies.items()}
        nearest = NearestPolicy().estimate(candidates, states, **known).values
        for measured in runs:
            judged = measured["judged"][name]
            assert judged["returns"] == returns.tolist()
            assert judged["spearman"] == pytest.approx(spearmanr(judged["scores"], returns).statistic, nan_ok=True)
            assert ("converged" in judged) == (measured["method"] == "FQE")
            if measured["method"] == "NearestPolicy":
                assert judged["scores"] == nearest.tolist()


def cells(block):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]


def test_table_of_two_sets_and_folders(folder, run):
    other = folder.parent / "walker"
    shutil.copytree(folder, other)
    run("--methods NearestPolicy --runs 2")
    runs, text = run("--methods NearestPolicy ImportanceWeighting --updates 5 --runs 2", folder, other)
    assert sorted((run["data"], run["method"], run["run"]) for run in runs) == sorted(
        (data, method, i)
        for data in ("hopper", "walker")
        for method in ("NearestPolicy", "ImportanceWeighting")
        for i in (0, 1)
    )
    for name, block in zip(("I", "II"), text.split("\n\n"), strict=True):
        heads, _, *rows = cells(block)
        assert heads[:7] == [name, "runs", "updates", "Spearman", "hopper", "walker", "worst"]
        assert [row[:3] for row in rows] == [
            ["return of the nearest policy", "4", ""],
            ["importance weighting", "4", "5"],
        ]
        nearest, weighted = ([float(cell) for cell in row[3:7]] for row in rows)
        once = next(run["judged"][name]["spearman"] for run in runs if run["method"] == "NearestPolicy")
        assert nearest == pytest.approx([once] * 4, abs=1e-3, nan_ok=True)
        each = [run["judged"][name]["spearman"] for run in runs if run["method"] == "ImportanceWeighting"]
        mean = np.mean(each)
        assert weighted == pytest.approx([mean, mean, mean, min(each)], abs=1e-3)


def test_runs_with_other_updates_are_rejected(run):
    def done(methods, updates):
        runs, _ = run(f"--methods {methods} --updates {updates} --runs 1")
        return [(run["method"], run.get("updates")) for run in runs]

    both = [("NearestPolicy", None), ("ImportanceWeighting", 5)]
    assert done("NearestPolicy ImportanceWeighting", 5) == both
    with pytest.raises(SystemExit, match="holds runs of ImportanceWeighting with --updates 5"):
        done("NearestPolicy ImportanceWeighting", 6)
    assert done("NearestPolicy FQE", 6) == [*both, ("FQE", 6)]


TINY_STEPS = replace(TINY, steps=2)
POLICIES, HELD_OUT = ladder([0.1, 0.3, 0.5, 0.7, 0.9, 1.1]), ladder([0.2, 0.6])


def test_columns_are_resumed_with_the_same_validation_set_and_inputs_alone(tmp_path):
    critic, nearest = BehaviourQ(updates=1, hidden=(4,)), NearestPolicy(rows=16)
    variants = [
        Fitted(TINY_STEPS),
        Fitted(TINY_STEPS, (HELD_OUT, [0.2, 0.6])),
        Fitted(TINY_STEPS, (HELD_OUT, [0.2, 0.7])),
        Fitted(TINY_STEPS, (ladder([0.2, 0.4]), [0.2, 0.6])),
        Fitted(TINY_STEPS, critic=critic),
        Fitted(TINY_STEPS, features=(critic, nearest)),
        Fitted(TINY_STEPS, features=(nearest,)),
        Fitted(TINY_STEPS, shrinkage=1.0),
    ]
    assert len(set(map(repr, variants))) == len(variants)
    states = log()
    transitions = {"observations": states, "next_observations": np.roll(states, -1, 0), "rewards": states[:, 0]}
    transitions |= {"actions": states[:, :2], "terminals": states[:, 0] > 2}
    options = {"folds": [([0, 2, 4], [1, 3, 5])], "discount": 0.9, "checkpoints": tmp_path, "progress": False}
    methods = {"critic": variants[4], "features": variants[5]}
    values = evaluate(POLICIES, np.arange(6.0), transitions, methods=methods, **options).values
    assert values.keys() == methods.keys()
    evaluate(POLICIES, np.arange(6.0), transitions, methods={"SOPR": variants[1]}, **options)
    with pytest.raises(ValueError, match=r"sopr-\w+\.json holds values of another log, other policies"):
        evaluate(POLICIES, np.arange(6.0), transitions, methods={"SOPR": variants[2]}, **options)
