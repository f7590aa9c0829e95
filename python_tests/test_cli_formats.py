"""`sopr-fast fit` and `rank` on folders that mix kinds of policy files, with a log in D4RL's layout."""

import csv
import pickle

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import spearmanr
from test_cli import TINY
from torch import nn

from sopr_fast.cli.main import main
from sopr_fast.inputs.policies import load

DS, DA, ROWS = 4, 2, 600
WEIGHT = np.random.default_rng(7).standard_normal((DA, DS)).astype(np.float32)


def net(gain):
    """tanh(gain * WEIGHT @ state), better the larger the gain."""
    module = nn.Sequential(nn.Linear(DS, DA), nn.Tanh())
    with torch.no_grad():
        module[0].weight.copy_(torch.from_numpy(gain * WEIGHT))
        module[0].bias.zero_()
    return module.eval()


def write_npz(path, gain):
    np.savez(path, **{"mean.weight": gain * WEIGHT, "mean.bias": np.zeros(DA)})


def write_npy(path, gain):
    np.save(path, np.tanh(observations() @ (gain * WEIGHT).T))


def write_pkl(path, gain):
    weights = {"last_fc/weight": gain * WEIGHT, "last_fc/bias": np.zeros(DA, np.float32)}
    path.write_bytes(pickle.dumps({**weights, "nonlinearity": "relu", "output_distribution": "tanh_gaussian"}))


WRITERS = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".pkl": write_pkl,
    ".pt": lambda path, gain: torch.save(net(gain).state_dict(), path),
    ".safetensors": lambda path, gain: save_file(net(gain).state_dict(), path),
}


def observations():
    return np.random.default_rng(0).standard_normal((ROWS, DS)).astype(np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A log in D4RL's layout and twelve policies with returns, of five kinds, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("log.hdf5", "w") as file:
        file["observations"] = observations()
        file["actions"] = np.zeros((ROWS, DA), np.float32)
        file["rewards"] = np.zeros(ROWS, np.float32)
        file["terminals"] = file["timeouts"] = np.arange(ROWS) % 100 == 99
        file["metadata/algorithm"] = "none"
    (tmp_path / "deployed").mkdir()
    gains = np.random.default_rng(1).permutation(np.linspace(0.1, 1.5, 12))
    for i, gain in enumerate(gains):
        suffix = list(WRITERS)[i % len(WRITERS)]
        WRITERS[suffix](tmp_path / "deployed" / f"p{i:02d}{suffix}", gain)
    with open("returns.csv", "w", newline="") as file:
        csv.writer(file).writerows([["name", "return"], *([f"p{i:02d}", gain] for i, gain in enumerate(gains))])
    return tmp_path


def fit():
    return main(
        f"fit --policies deployed --returns returns.csv --states log.hdf5 --out model.safetensors "
        f"{TINY} --steps 60 --squash tanh".split()
    )


def rank(*options):
    return main(["rank", "--model", "model.safetensors", "--policies", "new", "--states", "log.hdf5", *options])


def test_ranks_a_folder_of_many_kinds(folder, capsys):
    new = folder / "new"
    new.mkdir()
    gains = {f"c{suffix[1:]}": gain for suffix, gain in zip(WRITERS, np.linspace(1.4, 0.2, len(WRITERS)), strict=True)}
    for (name, gain), (suffix, write) in zip(gains.items(), WRITERS.items(), strict=True):
        write(new / f"{name}{suffix}", gain)

    states = torch.from_numpy(observations())
    for policy in load(new, squash="tanh").values():  # every file says the same function in its own way
        expected = np.tanh(observations() @ (gains[policy.name] * WEIGHT).T)
        np.testing.assert_allclose(policy.act(states, torch.arange(ROWS)), expected, atol=1e-5)

    assert fit() == 0
    capsys.readouterr()
    assert rank("--csv", "--squash", "tanh") == 0
    scores = {row["policy"]: float(row["score"]) for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert set(scores) == set(gains)
    assert spearmanr([scores[name] for name in gains], list(gains.values())).statistic > 0.9
