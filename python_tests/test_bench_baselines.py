"""`bench/baselines.py` on a small folder as `bench.paper` makes."""

import csv
import json
import sys

import baselines
import h5py
import numpy as np
import pytest

from sopr_fast.baselines import NearestPolicy
from sopr_fast.policies import load

SPLIT = {"train": [0, 2, 3, 5], "validation": [1], "test_set_2": [6, 4, 7]}
RNG = np.random.default_rng(0)
RETURNS, OFFLINE_RETURNS = RNG.normal(size=8), RNG.normal(size=5)


def write_set(folder, gains, returns):
    """Linear actors whose gains differ, and their returns."""
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


@pytest.mark.parametrize("test", ["I", "II"])
def test_the_papers_test_sets(folder, test, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    methods = "NearestPolicy ImportanceWeighting --updates 5 --runs 2 --threads 1"
    command = f"baselines.py --data {folder} --out {out} --test {test} --log medium --methods {methods}"
    monkeypatch.setattr(sys, "argv", command.split())
    baselines.main()
    runs = json.loads(out.read_text())["runs"]
    assert [(run["run"], run["method"]) for run in runs] == [
        (i, method) for i in (0, 1) for method in ("NearestPolicy", "ImportanceWeighting")
    ]
    online = dict(enumerate(load(folder / "policies.npz")))
    offline = {str(i): policy for i, policy in enumerate(load(folder / "test_set_1/medium/policies.npz"))}
    train, asked = ({str(i): online[i] for i in SPLIT[part]} for part in ("train", "test_set_2"))
    known = NearestPolicy(train, RETURNS[SPLIT["train"]])
    states = folder / "logs/medium.hdf5"
    nearest = known.estimate({f"x{name}": p for name, p in (offline if test == "I" else asked).items()}, states)
    expected = OFFLINE_RETURNS if test == "I" else RETURNS[SPLIT["test_set_2"]]
    for run in runs:
        assert run["returns"] == expected.tolist()
        if run["method"] == "NearestPolicy":
            assert run["scores"] == nearest.values.tolist()
    heads, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in out.with_suffix(".md").open())
    assert heads[:3] == ["", "runs", "updates"]
    assert [row[:3] for row in rows] == [["return of the nearest policy", "2", ""], ["importance weighting", "2", "5"]]
    assert all(len(row) == len(heads) for row in rows)


def test_runs_with_other_updates_are_not_mixed(folder, tmp_path, monkeypatch):
    out = tmp_path / "out.json"

    def run(methods, updates):
        command = f"baselines.py --data {folder} --out {out} --test II --log medium --threads 1 --methods {methods}"
        monkeypatch.setattr(sys, "argv", [*command.split(), "--updates", str(updates), "--runs", "1"])
        baselines.main()
        return [(run["method"], run.get("updates")) for run in json.loads(out.read_text())["runs"]]

    done = [("NearestPolicy", None), ("ImportanceWeighting", 5)]
    assert run("NearestPolicy ImportanceWeighting", 5) == done
    with pytest.raises(SystemExit, match="holds runs of ImportanceWeighting with --updates 5"):
        run("NearestPolicy ImportanceWeighting", 6)
    assert run("NearestPolicy FQE", 6) == [*done, ("FQE", 6)]
