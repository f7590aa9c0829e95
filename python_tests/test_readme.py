"""What README says one can type, typed."""

import re
from pathlib import Path

import numpy as np
import pytest
from problems import TINY, ladder, log, training_gains

import sopr_fast
from sopr_fast import baselines, fitting
from sopr_fast.baselines import FQE

h5py = pytest.importorskip("h5py")
README = Path(__file__).parents[1] / "README.md"


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for module in (sopr_fast, fitting):
        monkeypatch.setattr(module, "Config", lambda **_: TINY)
    monkeypatch.setattr(baselines, "FQE", lambda updates: FQE(hidden=(8,), updates=3))
    gains, others = training_gains(), np.array([0.15, 0.75])
    states = log()
    with h5py.File("replay.hdf5", "w") as file:
        file["observations"] = states
        file["actions"] = ladder([1.0])["gain-1.000"](states)
        file["rewards"] = states[:, 0]
        file["terminals"] = file["timeouts"] = np.arange(len(states)) % 50 == 49
    known = {
        "policies": ladder(gains),
        "returns": gains,
        "states": states,
        "other_policies": ladder(others),
        "other_returns": others,
        "candidates": ladder([0.3, 1.2, 0.7]),
    }
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(block, known)
    assert known["ranking"].best == "gain-1.200" and "gain-1.500" in capsys.readouterr().out
