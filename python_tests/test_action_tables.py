"""Actions computed elsewhere: tables in parquet files, and the recipe of docs/scaling.md."""

import csv
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from problems import TINY, ladder, log, training_gains

import sopr_fast
from sopr_fast.cli.main import main as command
from sopr_fast.inputs.policies import load
from sopr_fast.sopr.subsets import Subsets

GAINS = training_gains()
ROWS = 600
PAGE = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()


@pytest.fixture(scope="module")
def ranker():
    with warnings.catch_warnings(action="ignore"):
        known = ladder(GAINS)
        return sopr_fast.fit(known, GAINS, log(ROWS), config=TINY)


def write(path: Path, actions: np.ndarray, form: str = "numbered") -> None:
    numbered = {f"actions_{i}": column for i, column in enumerate(actions.T)}
    columns = numbered if form == "numbered" else {"action": list(actions)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=100)


@pytest.mark.parametrize("form", ["numbered", "lists"])
def test_tables_rank_as_arrays_do(form, ranker, tmp_path):
    candidates = {name: policy(log(ROWS)) for name, policy in ladder([0.3, 0.8, 1.2]).items()}
    for name, actions in candidates.items():
        write(tmp_path / f"{name}.parquet", actions, form)
    ranking = ranker.rank(load(tmp_path), log(ROWS))
    expected = ranker.rank(candidates, log(ROWS))
    assert ranking.names == expected.names
    assert np.array_equal(ranking.scores, expected.scores) and np.array_equal(ranking.distances, expected.distances)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": [1.0, 2.0]}, "expected one of the columns actions, action, act, acts; found reward"),
        ({"action_0": [1.0], "action_2": [1.0]}, "numbers of the columns action_0, action_2 leave some out: add these"),
        ({"action": [1.0], "action_1": [1.0]}, "there are 'action' and 'action_1': leave only the"),
        ({"action": [1.0, None]}, "'action' has no value at row 1"),
        ({"action": [[1.0], [2.0, 3.0]]}, "lists of different lengths, 1 and 2 at row 1"),
        ({"action": ["left", "right"]}, "give words as indices of discrete actions"),
        ({"action": [1.0, 2.0, 3.0]}, "has actions for 3 states, the data has 2"),
    ],
)
def test_bad_tables_are_refused_with_the_file(columns, message, tmp_path):
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises((TypeError, ValueError), match=message):
        load(path).for_log(2)[0].act(np.zeros((2, 3)), torch.arange(2))


def test_a_log_among_policies_is_told_as_such(tmp_path):
    write(tmp_path / "run.parquet", np.zeros((ROWS, 2)))
    states = {"obs_0": np.zeros(2), "actions_0": np.zeros(2)}
    pyarrow.parquet.write_table(pyarrow.table(states), tmp_path / "with-states.parquet")
    assert len(load(tmp_path)) == 2
    log_file = pyarrow.table({**states, "reward": np.zeros(2)})
    pyarrow.parquet.write_table(log_file, tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"table\.parquet: a log \(it holds 'reward'\), not a policy: move it out"):
        load(tmp_path)
    with pytest.warns(UserWarning, match="skipped .*a log"):
        assert len(load(tmp_path, skip=True)) == 2
    (tmp_path / "table.parquet").unlink()
    np.savez(tmp_path / "data.npz", observations=np.zeros((2, 3)), actions=np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"data\.npz: a log \(it holds 'observations'\), not a policy"):
        load(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_workers_compute_actions_in_the_drawn_states_alone(ranker, tmp_path, monkeypatch, capsys):
    blocks = dict(re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE))
    for name, code in blocks.items():
        small = code.replace("size=1024", f"size={TINY.subset_size}")
        (tmp_path / name).write_text(small.replace("clusters=16", f"clusters={TINY.clusters}"))
    for folder in ("runs", "actions"):
        (tmp_path / folder).mkdir()
    for i in range(5):
        weight = np.random.default_rng(i).normal(size=(2, 4)).astype(np.float32)
        np.savez(tmp_path / f"runs/run-{i}.npz", **{"mean.weight": weight, "mean.bias": np.zeros(2, np.float32)})
    ranker.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "log.npy", log(ROWS))
    monkeypatch.chdir(tmp_path)
    for arguments in (["draw.py"], ["work.py", "0", "2"], ["work.py", "1", "2"]):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, *arguments], env=environment, check=True)
    options = ["--model", "model.safetensors", "--policies", "actions", "--states", "subsets.safetensors", "--csv"]
    assert command(["rank", *options]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    ranking = ranker.rank(load("runs"), Subsets.load("subsets.safetensors"))
    expected = dict(zip(ranking.names, ranking.scores.tolist(), strict=True))
    assert {row["policy"]: float(row["score"]) for row in rows} == expected
