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


def write_onnx(path, gain):
    axes = {"states": {0: "rows"}}
    torch.onnx.export(net(gain), (torch.zeros(3, DS),), path, dynamo=False, input_names=["states"], dynamic_axes=axes)


def write_sb3(path, gain):
    import gymnasium
    from stable_baselines3 import TD3

    class Still(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (DS,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (DA,), np.float32)

    model = TD3("MlpPolicy", Still(), policy_kwargs={"net_arch": []}, device="cpu")
    model.actor.mu.load_state_dict(net(gain).state_dict())
    model.save(path)


def write_d3(path, gain):
    import d3rlpy

    algorithm = d3rlpy.algos.TD3Config().create(device="cpu")
    algorithm.create_impl((DS,), DA)
    policy = algorithm.impl.policy  # two hidden layers that pass the states on, negative ones as their negatives
    weights = {name: torch.zeros_like(value) for name, value in policy.state_dict().items()}
    both = torch.cat([torch.eye(DS), -torch.eye(DS)])
    weights["_encoder._layers.0.weight"][: 2 * DS] = both
    weights["_encoder._layers.2.weight"][: 2 * DS, : 2 * DS] = torch.eye(2 * DS)
    weights["_fc.weight"][:, : 2 * DS] = gain * torch.from_numpy(WEIGHT) @ both.T
    policy.load_state_dict(weights)
    algorithm.save(str(path))


PLAIN = {
    ".npz": write_npz,
    ".npy": write_npy,
    ".pkl": write_pkl,
    ".pt": lambda path, gain: torch.save(net(gain).state_dict(), path),
    ".safetensors": lambda path, gain: save_file(net(gain).state_dict(), path),
}
LIBRARIES = {".onnx": ("onnx", write_onnx), ".zip": ("stable_baselines3", write_sb3), ".d3": ("d3rlpy", write_d3)}


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
        suffix = list(PLAIN)[i % len(PLAIN)]
        PLAIN[suffix](tmp_path / "deployed" / f"p{i:02d}{suffix}", gain)
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("libraries", [False, True], ids=["plain", "with libraries"])
def test_ranks_a_folder_of_many_kinds(folder, capsys, libraries):
    writers = dict(PLAIN)
    if libraries:
        for suffix, (module, write) in LIBRARIES.items():
            pytest.importorskip(module, reason="needs the extra [test-formats]")
            writers[suffix] = write
    new = folder / "new"
    new.mkdir()
    gains = {f"c{suffix[1:]}": gain for suffix, gain in zip(writers, np.linspace(1.4, 0.2, len(writers)), strict=True)}
    for (name, gain), (suffix, write) in zip(gains.items(), writers.items(), strict=True):
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
