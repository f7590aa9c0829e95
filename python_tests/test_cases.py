"""The commands of docs/cases.md run as they are written, on files as the libraries that they name write them."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas
import pytest
import torch
from support import doc_pages
from support.needs import needs
from support.programs import export_onnx

from sopr_fast import example
from sopr_fast.cli import main as cli

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore")]

CASES = re.split(r"^\*\*(\d+)\. ", (doc_pages.ROOT / "docs" / "cases.md").read_text(), flags=re.MULTILINE)[1:]
COMMANDS = {
    int(number): re.findall(r"^sopr-fast (.*)$", text, re.MULTILINE)
    for number, text in zip(CASES[::2], CASES[1::2], strict=True)
}
BRIEF = {  # what makes training short, and cannot be in the page
    "select": ["--set", "updates=100", "hidden=16,16", "horizon=5"],
    "evaluate": ["--set", "updates=100", "hidden=16,16", "horizon=5"],
    "fit": ["--steps", "5", "--subsets", "5", "--subset-size", "256", "--clusters", "8"],
}


@pytest.mark.parametrize("case", range(1, 12))
def test_the_commands_of_a_case_run(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    FILES[case]()
    assert COMMANDS[case]
    for line in COMMANDS[case]:
        words = shlex.split(line)
        brief = [] if case == 8 else BRIEF.get(words[0], [])  # a bandit trains nothing
        assert cli.main([*words, *brief]) == 0, f"{line}\n{capsys.readouterr().err}"
        assert capsys.readouterr().out


def test_policies_of_the_last_case_run_in_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_log(example.pendulum()[1])
    code = re.search(r"^policies = sopr_fast.load_policies\((\{.*\})\)$", CASES[-1], re.MULTILINE)[1]
    Path("rules.py").write_text(f"import numpy as np\n\npolicies = {code}\n")
    given = re.search(r"`(--policies rules.py:policies)`", CASES[-1])[1]
    assert cli.main(["select", *given.split(), "--log", "log.hdf5", *BRIEF["select"]]) == 0
    assert "left" in capsys.readouterr().out


def write_log(log, path="log.hdf5"):
    with h5py.File(path, "w") as file:
        for name, array in log.items():
            file[name] = array


def write_returns(path, returns):
    pandas.Series(returns, name="return").rename_axis("name").to_csv(path)


def stable_baselines3():
    needs("stable_baselines3")
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback

    small = {"policy_kwargs": {"net_arch": [16, 16]}, "gradient_steps": 1, "train_freq": 20, "device": "cpu"}
    model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=200, seed=0, **small)
    every = CheckpointCallback(save_freq=200, save_path="runs")
    model.learn(800, [every, EvalCallback(model.get_env(), eval_freq=400, log_path="runs", verbose=0)])
    model.save_replay_buffer("replay_buffer.pkl")
    write_returns("measured.csv", {"rl_model_600_steps": -900.0})


def offline():
    """Write policies of offline RL and the log that they learned from."""
    _, log, returns = example.pendulum()
    write_log(log, "dataset.h5")
    shutil.copytree(example.PENDULUM / "policies", "policies")
    write_returns("returns.csv", dict([*returns.items()][:3]))


def incumbent():
    """Write the runs of several algorithms and of one seed in production."""
    _, log, returns = example.pendulum()
    write_log(log)
    for name in returns:
        folder = Path("runs") / ("run1" if name == "cql-1000" else f"run-{name}")
        folder.mkdir(parents=True)
        (folder / "best.npz").write_bytes((example.PENDULUM / "policies" / f"{name}.npz").read_bytes())
    known = {f"run-{name}/best": value for name, value in returns.items() if name != "cql-1000"}
    known |= {"run1/best": returns["cql-1000"]}
    write_returns("returns.csv", {name: value for name, value in known.items() if "4000" not in name or "bc" in name})


def states():
    arrays = np.load(Path(example.__file__).parent / "halfcheetah.npz")
    for i in range(16):
        folder = Path("known" if i < 12 else "candidates")
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"halfcheetah-{i:03d}.npz", **{n: x[i] if x.ndim > 1 else x for n, x in arrays.items()})
    write_returns("returns.csv", {f"halfcheetah-{i:03d}": value for i, value in enumerate(example.returns()[:12])})
    np.save("states.npy", example.states())


def table():
    random, rows = np.random.default_rng(0), []
    for stay in range(30):
        x, speed = random.normal(size=2)
        for hour in range(24):
            u = random.uniform(-1, 1)
            rows.append((x, speed, u, -(x**2) - 0.1 * u**2, stay, hour))
            x, speed = x + 0.1 * speed, 0.9 * speed + u
    pandas.DataFrame(rows, columns=["x", "speed", "u", "r", "stay", "hour"]).to_csv("log.csv", index=False)
    Path("policies").mkdir()
    for i in range(4):
        np.savez(f"policies/gain-{i}.npz", **{"mean.weight": np.full((1, 2), -float(i)), "mean.bias": np.zeros(1)})


def bandit():
    random, count = np.random.default_rng(0), 3000
    visits = pandas.DataFrame(random.standard_normal((count, 2)), columns=["age", "hour"])
    chances = random.dirichlet([2, 2, 2], count)
    visits["ad"] = [random.choice(3, p=chance) for chance in chances]
    visits["p"] = chances[np.arange(count), visits["ad"]]
    visits["click"] = (random.random(count) < 1 / (1 + np.exp(1 - visits["age"] * visits["ad"]))).astype(int)
    visits.to_csv("visits.csv", index=False)
    Path("policies").mkdir()
    np.save("policies/old.npy", (visits["age"] > 0) * 2)
    np.save("policies/two.npy", np.full(count, 2))


def discrete():
    """Write policies of one file each that does not say how many actions there are."""
    random = np.random.default_rng(0)
    steps = random.integers(4, size=600)
    states = np.stack([np.cos(steps), np.sin(steps)], 1).cumsum(0)
    last = np.arange(600) % 20 == 19
    log = {"observations": states, "actions": steps, "rewards": -np.abs(states).sum(1), "timeouts": last}
    write_log(log | {"terminals": np.zeros(600, bool)})
    Path("runs").mkdir()
    for i in range(3):
        export_onnx(Greedy(torch.nn.Linear(2, 4)), f"runs/dqn-{i}.onnx", shape=(2,))


class Greedy(torch.nn.Sequential):
    def forward(self, states):
        return super().forward(states).argmax(1)


def actions_of_another_program():
    states()
    assert cli.main(shlex.split(COMMANDS[5][0]) + BRIEF["fit"]) == 0
    Path("actions").mkdir()
    for name, policy in list(example.policies().items())[12:16]:
        np.save(f"actions/{name}.npy", policy(example.states()))


NETWORKS = """
import torch


def make_actor():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Tanh())
"""


def state_dicts():
    write_log(example.pendulum()[1])
    for folder in ("train", "checkpoints"):
        Path(folder).mkdir()
    Path("train/networks.py").write_text(NETWORKS)
    for i in range(3):
        torch.manual_seed(i)
        network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        torch.save({"actor": network.state_dict(), "epoch": i}, f"checkpoints/{i}.pt")


FILES = {
    1: stable_baselines3,
    2: offline,
    3: offline,
    4: incumbent,
    5: states,
    6: incumbent,
    7: table,
    8: bandit,
    9: discrete,
    10: actions_of_another_program,
    11: state_dicts,
}
