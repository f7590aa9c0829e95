"""Stages of `bench.paper`: rollouts beside a plain loop, killed and resumed runs beside uninterrupted ones."""

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from paper import __main__ as command_line
from paper import competent, offline, rollouts, sac, scores
from paper.__main__ import main
from paper.actors import Actor, read_stack, save_stack
from paper.games import find_game
from paper.logs import choose_behaviour, split
from paper.manifest import Task, claim, write_manifest
from paper.offline import evenly_spaced
from paper.rollouts import roll_out
from paper.scales import SCALES

import sopr_fast
from sopr_fast.inputs.policies import load

ROOT = Path(__file__).parents[1]
HOPPER, WIDE = (11, 64, 64), (17, 64, 64)  # HalfCheetah's and Walker2d's states are of one width


def actor_layers(seed=0, dims=HOPPER, actions=3):
    rng = np.random.default_rng(seed)
    sizes = {f"hidden_{i}": dims[i : i + 2] for i in range(len(dims) - 1)}
    sizes |= {"mean": (dims[-1], actions), "log_std": (dims[-1], actions)}
    layers = {}
    for name, (wide, high) in sizes.items():
        layers[f"{name}.weight"] = (rng.standard_normal((high, wide)) / np.sqrt(wide)).astype(np.float16)
        layers[f"{name}.bias"] = rng.standard_normal(high).astype(np.float16) / 10
    return layers


@pytest.mark.parametrize(
    "name, expected",
    [
        ("hopper", ("hopper", "Hopper-v4", None)),
        ("HalfCheetah-v5", ("halfcheetah", "HalfCheetah-v5", None)),
        ("Walker2d-v2", ("walker2d", "Walker2d-v4", None)),
        ("hopper-medium-v2", ("hopper", "Hopper-v4", "medium")),
        ("halfcheetah-full-replay-v0", ("halfcheetah", "HalfCheetah-v4", "full-replay")),
        ("walker2d-medium-expert-v5", ("walker2d", "Walker2d-v4", "medium-expert")),
    ],
)
def test_find_game(name, expected):
    game = find_game(name)
    assert (game.name, game.environment, game.log) == expected


@pytest.mark.parametrize("name", ["ant", "hopper-", "hopper-better-v2", "Hopper-v6", ""])
def test_find_game_rejects_unknown_names(name):
    with pytest.raises(ValueError, match="unknown (game|version) '"):
        find_game(name)


def test_action_is_independent_of_the_batch():
    rng, actor = np.random.default_rng(1), Actor(actor_layers(dims=(11, 96, 70), actions=3))
    states, noise = rng.standard_normal((70, 11)), rng.standard_normal((70, 3))
    means = np.stack([actor.act(state[None])[0][0] for state in states])
    alone = [actor.act(state[None], row[None]) for state, row in zip(states, noise, strict=True)]
    drawn, log_probs = np.concatenate([one for one, _ in alone]), np.concatenate([one for _, one in alone])
    for size in range(1, 71):
        rows = rng.choice(70, size, replace=False)
        aligned = np.empty(size * 11 + size % 8, np.float32)[size % 8 :].reshape(size, 11)  # at any address
        aligned[:] = states[rows]
        np.testing.assert_array_equal(actor.act(states[rows])[0], means[rows])
        np.testing.assert_array_equal(actor.act(aligned)[0], means[rows])
        actions, densities = actor.act(np.asfortranarray(states[rows]), noise[rows])
        np.testing.assert_array_equal(actions, drawn[rows])
        np.testing.assert_array_equal(densities, log_probs[rows])


ACT = """
import sys
import numpy as np
from paper.actors import Actor, read_stack
actions, _ = Actor(read_stack("a.npz")[0]).act(np.load("states.npy"))
np.save("actions.npy", actions)
"""


def test_action_is_independent_of_blas(tmp_path):
    save_stack(tmp_path / "a.npz", [actor_layers(dims=(11, 256, 256))])
    np.save(tmp_path / "states.npy", np.random.default_rng(0).standard_normal((100, 11)))
    environment = os.environ | {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", ACT], cwd=tmp_path, env=environment, check=True)
    expected, _ = Actor(read_stack(tmp_path / "a.npz")[0]).act(np.load(tmp_path / "states.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), expected)


def test_actor_agrees_with_the_package_reading_its_file(tmp_path):
    stack = [actor_layers(seed) for seed in range(3)]
    save_stack(tmp_path / "a.npz", stack)
    states, noise = np.random.default_rng(1).standard_normal((2, 40, 11)).astype(np.float32)
    read, policies = read_stack(tmp_path / "a.npz"), load(tmp_path / "a.npz", stochastic=True)
    for mine, layers, theirs in zip(read, stack, policies.values(), strict=True):
        for key, values in layers.items():
            np.testing.assert_array_equal(mine[key], values)
        output = theirs.output(torch.from_numpy(states))
        mean, std = output.mean.numpy(), output.std.numpy()
        np.testing.assert_allclose(Actor(mine).act(states)[0], mean, atol=1e-6)
        drawn, log_probs = Actor(mine).act(states, noise[:, :3])
        np.testing.assert_allclose(np.arctanh(drawn), np.arctanh(mean) + std * noise[:, :3], atol=1e-3)
        expected = theirs.log_prob(torch.from_numpy(states), torch.from_numpy(drawn))
        np.testing.assert_allclose(log_probs, expected, atol=1e-2)


def test_choose_behaviour():
    assert choose_behaviour(np.array([0.0, 50, 35, 90, 30, 80])) == (3, 2)
    assert choose_behaviour(np.array([9.0, 3, 1])) == (0, 0)


def test_evenly_spaced():
    returns = np.array([5.0, 0, 10, 9.9, 0.1, 2.4, 7.6])
    assert evenly_spaced(returns, 5) == [1, 5, 0, 6, 2]
    assert evenly_spaced(returns, 20) == [1, 4, 5, 0, 6, 3, 2]
    assert len(set(evenly_spaced(np.zeros(6), 4))) == 4


@pytest.fixture
def gymnasium():
    pytest.importorskip("mujoco", reason="needs the extra [paper]")
    return pytest.importorskip("gymnasium", reason="needs the extra [paper]")


def plain_loop(environment, layers, seed, stochastic):
    """Run one episode as in Gymnasium's documentation."""
    actor = Actor(layers)
    noise = np.random.default_rng([seed, 1]).standard_normal((1000, actor.action_dim))
    state, _ = environment.reset(seed=seed)
    states, rewards, over, t = [state], [], False, 0
    while not over:
        action, _ = actor.act(state[None], noise[t : t + 1] if stochastic else None)
        state, reward, terminal, truncated, _ = environment.step(action[0])
        states.append(state)
        rewards.append(reward)
        over, t = terminal or truncated, t + 1
    return np.array(states, np.float32), rewards


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize(
    "name, layers, seeds",
    [
        ("Hopper-v4", actor_layers(), [3, 1, 4, 1, 5, 9]),
        ("HalfCheetah-v4", actor_layers(dims=WIDE, actions=6), [3]),
        ("Walker2d-v5", actor_layers(10, WIDE, actions=6), [3, 1, 4]),
    ],
    ids=["hopper", "halfcheetah", "walker2d"],
)
def test_rollouts_equal_a_plain_loop(gymnasium, name, layers, seeds, stochastic):
    plain = gymnasium.make(name)
    returns = roll_out(layers, name, seeds, stochastic=stochastic)
    episodes = roll_out(layers, name, seeds, stochastic=stochastic, record=True)
    for seed, (total, length), episode in zip(seeds, returns, episodes, strict=True):
        states, rewards = plain_loop(plain, layers, seed, stochastic)
        assert (total, length) == (sum(rewards), len(rewards))
        np.testing.assert_array_equal(episode.states, states)
        np.testing.assert_array_equal(episode.rewards, np.array(rewards, np.float32))
    assert len({length for _, length in returns}) > 1 or len(seeds) == 1


class KilledPool:
    """Stand-in for `rollouts.workers` that is interrupted after some tasks."""

    def __init__(self, tasks):
        self.left = tasks

    def imap(self, run, tasks):
        for task in tasks:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield run(task)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_returns_resume(gymnasium, tmp_path, monkeypatch):
    whole, killed = (Task(find_game("hopper"), SCALES["smoke"], tmp_path / name) for name in ("whole", "killed"))
    for task in (whole, killed):
        task.folder.mkdir()
        save_stack(task.folder / "policies.npz", [actor_layers(seed) for seed in range(4)])
    monkeypatch.setattr(rollouts, "workers", lambda processes: KilledPool(4))
    sac.measure(whole)
    for tasks in (1, 2):
        monkeypatch.setattr(rollouts, "workers", lambda processes, tasks=tasks: KilledPool(tasks))
        with pytest.raises(KeyboardInterrupt):
            sac.measure(killed)
    monkeypatch.setattr(rollouts, "workers", lambda processes: KilledPool(1))
    sac.measure(killed)
    assert (killed.folder / "returns.csv").read_text() == (whole.folder / "returns.csv").read_text()
    manifests = [json.loads((task.folder / "returns.csv.json").read_text()) for task in (whole, killed)]
    seconds = [manifest.pop("seconds") for manifest in manifests]
    assert manifests[0] == manifests[1] and seconds[0] is not None
    assert seconds[1] is None  # the killed attempts were not timed


def test_killed_models_resume(tmp_path, monkeypatch):
    task = Task(find_game("hopper-medium-v2"), SCALES["smoke"], tmp_path)
    save_stack(tmp_path / "policies.npz", [actor_layers(seed) for seed in range(15)])
    rollouts.write_returns(tmp_path / "returns.csv", np.arange(45.0).reshape(15, 3))
    split(task)
    (tmp_path / "logs").mkdir()
    with h5py.File(tmp_path / "logs/medium.hdf5", "w") as file:
        file["observations"] = np.random.default_rng(0).standard_normal((200, 11)).astype(np.float32)
    (whole,) = scores.train_models(task)
    weights, manifest = whole.read_bytes(), Path(f"{whole}.json")
    assert json.loads(manifest.read_text())["seconds"] is not None
    manifest.unlink()

    def fail(*arguments, **options):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(sopr_fast.Ranker, "save", fail)
        scores.train_models(task)
    assert whole.with_suffix(".partial").exists()
    scores.train_models(task)
    assert whole.read_bytes() == weights and json.loads(manifest.read_text())["seconds"] is None
    assert not whole.with_suffix(".partial").exists()


@pytest.fixture
def online(gymnasium, tmp_path):
    """SAC of SBX before its first step, and its environment."""
    pytest.importorskip("sbx", reason="needs the extra [paper]")
    return sac._new(Task(find_game("hopper"), SCALES["smoke"], tmp_path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_snapshot_acts_as_the_policy_of_sbx(online):
    model, _ = online
    states = np.random.default_rng(0).standard_normal((50, 11)).astype(np.float32)
    expected, _ = model.predict(states, deterministic=True)
    np.testing.assert_allclose(Actor(sac._layers(model)).act(states)[0], expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_checkpoint_survives_a_second_save(online, tmp_path):
    for _ in range(2):
        sac._save(*online, tmp_path, seconds=1.0)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000000000"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("algorithm", offline.ALGORITHMS + competent.D3RLPY_FAMILIES)
def test_snapshot_acts_as_the_policy_of_d3rlpy(tmp_path, algorithm):
    pytest.importorskip("d3rlpy", reason="needs the extra [paper]")
    states = np.random.default_rng(0).standard_normal((50, 11)).astype(np.float32)
    log = SimpleNamespace(states=states, actions=np.zeros((50, 3), np.float32))
    learner, _ = offline._new(Task(find_game("hopper"), SCALES["smoke"], tmp_path), algorithm, log)
    with torch.no_grad():
        expected = torch.tanh(learner.impl.policy(torch.from_numpy(states)).mu).numpy()
    if algorithm not in ("bear", "crr"):  # whose predict draws
        np.testing.assert_allclose(learner.predict(states), expected, atol=1e-6)
    np.testing.assert_allclose(Actor(offline._layers(learner)).act(states)[0], expected, atol=1e-6)


def test_best_episodes_hold_a_share_of_the_rows():
    rewards = np.repeat([1.0, 3, 2, 5], 10).astype(np.float32)
    ends = np.arange(40) % 10 == 9
    states = (np.arange(40.0) + 100 * (np.arange(40) // 10))[:, None]
    log = sopr_fast.inputs.logs.Transitions.from_arrays(states, states, rewards, states + 1, timeouts=ends)
    best = competent.best_episodes(log, share=0.5)
    assert best.states[:, 0].tolist() == [*range(110, 120), *range(330, 340)] and best.episodes.tolist() == [0, 10, 20]
    assert len(competent.best_episodes(log, share=0.1)) == 10


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["logs"], "split.json does not exist: run the stage that makes it first"),
        (["offline"], "expert.hdf5: no such file: run the stage that makes it first"),
        (["distances"], "split.json does not exist: run the stage that makes it first"),
        (["models"], "split.json does not exist: run the stage that makes it first"),
        (["scores"], "split.json does not exist: run the stage that makes it first"),
        (["split", "--seed", "1"], "hopper-v4 was started with seed 0, not 1: choose another --out"),
        (
            ["sac", "--game", "ant"],
            "unknown game 'ant': expected hopper, halfcheetah, walker2d, or the gym or",
        ),
    ],
)
def test_stages_name_the_missing_file(tmp_path, capsys, arguments, message):
    claim(Task(find_game("hopper"), SCALES["smoke"], tmp_path / "smoke" / "hopper-v4"))
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error


@pytest.mark.parametrize("log", ["random", "medium-expert"])
@pytest.mark.parametrize("stage", ["all", "offline", "test-sets", "distances", "models", "scores"])
def test_unknown_log_is_rejected_before_any_work(tmp_path, capsys, monkeypatch, stage, log):
    monkeypatch.setattr(command_line, "_run", lambda stage, task: [])
    assert main([stage, "--game", f"hopper-{log}-v2", "--out", str(tmp_path)]) == 2
    assert f"error: unknown log {log!r}: the paper uses expert, medium, medium-replay" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stage", ["table", "summary", "speed"])
def test_reading_stages_write_nothing(tmp_path, capsys, stage):
    assert main([stage, "--out", str(tmp_path)]) == 2
    assert "does not exist: run the stage that makes it first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("available", [False, True])
def test_offline_training_uses_an_available_gpu(tmp_path, monkeypatch, available):
    devices = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(command_line, "_run", lambda stage, task: devices.append(task.device) or [])
    main(["offline", "--out", str(tmp_path)])
    main(["offline", "--out", str(tmp_path), "--device", "cuda:1"])
    assert devices == ["cuda" if available else "cpu", "cuda:1"]


def test_manifest_holds_what_a_product_was_made_with(tmp_path):
    task = Task(find_game("hopper"), SCALES["smoke"], tmp_path, processes=3, threads=4, device="cuda")
    write_manifest(task, tmp_path / "a.npz", 1.26)
    manifest = json.loads((tmp_path / "a.npz.json").read_text())
    expected = {"processes": 3, "threads": 4, "device": "cuda", "seconds": 1.3, "settings": task.settings()}
    assert {key: manifest[key] for key in expected} == expected


@pytest.fixture
def started(tmp_path):
    """Folders of one game with some products of one log, and of another game with none."""
    hopper, walker = (
        Task(find_game(name), SCALES["smoke"], tmp_path / f"smoke/{name}-v4") for name in ("hopper", "walker2d")
    )
    claim(hopper)
    claim(walker)
    for folder in ("logs", "offline/medium", "test_set_1/medium", "competent/medium", "scores"):
        (hopper.folder / folder).mkdir(parents=True)
    write_manifest(hopper, hopper.folder / "policies.npz", 107.2, snapshot_steps=[600, 1200])
    write_manifest(hopper, hopper.folder / "returns.csv", None, env_steps=12345)
    rollouts.write_returns(hopper.folder / "returns.csv", np.array([[50.0, 1, 2], [-4, 1, 2], [90, 1, 2]]))
    (hopper.folder / "split.json").write_text('{"expert": 2, "medium": 0}')
    write_manifest(hopper, hopper.folder / "logs/medium.hdf5", 5.0)
    for algorithm, seconds in (("bear", 4.4), ("cql", None)):
        product = hopper.folder / f"offline/medium/{algorithm}.npz"
        write_manifest(hopper, product, seconds, snapshot_updates=[10, 20])
    rollouts.write_returns(hopper.folder / "test_set_1/medium/all.csv", np.array([[7.0, 1, 2], [3, 1, 2], [9, 1, 2]]))
    for family, seconds in (("bc", 3.2), ("rebrac", 60.7)):
        write_manifest(hopper, hopper.folder / f"competent/medium/{family}.npz", seconds)
    rollouts.write_returns(
        hopper.folder / "competent/medium/all.csv",
        np.array([[5.0, 1, 2], [20, 1, 2], [45, 1, 2], [30, 1, 2]]),
        algorithm=["bc", "bc", "rebrac", "rebrac"],
    )
    (hopper.folder / "scores/medium.csv").write_text(
        "seed,test_set,method,spearman,kendall,regret@1,regret@3\n"
        + "".join(f'{seed},I,"{method}",0.{seed},0,0.5,0\n' for seed in (2, 4) for method in scores.METHODS)
    )
    return tmp_path


def test_summary_of_finished_products(started, capsys):
    assert main(["summary", "--out", str(started)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "-v4" in line]
    assert lines == [
        "| hopper-v4 | 1,200 | 107 | -4 | 50 | 90 | 12,345 |",
        "| walker2d-v4 |  |  |  |  |  |  |",
        f"| hopper-v4 expert |{'  |' * 11}",
        "| hopper-v4 medium | 400 | 20 | 4 | 20 |  |  |  | 3 | 9 |  |  |",
        *(f"| {log} |{'  |' * 11}" for log in ("hopper-v4 medium-replay", "hopper-v4 full-replay")),
        *(f"| walker2d-v4 {log} |{'  |' * 11}" for log in ("expert", "medium", "medium-replay", "full-replay")),
        "| hopper-v4 medium | 90 | 5 | 20 | 3 | 30 | 45 | 61 |  | 0.50 |",
    ]


def test_table_without_distances(started, capsys):
    assert main(["table", "--out", str(started)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "| hopper-v4 medium | I |  |" + " 0.30 | 0.50 | 0.00 |" * 3


def make(stage, out, *options):
    command = [sys.executable, "-m", "bench.paper", stage, "--out", str(out), "--processes", "1", *options]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process):
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


def kill_after(process, start):
    """Kill a process once it has printed a line that starts with `start`."""
    for line in process.stdout:
        if line.startswith(start):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def assert_same_stacks(a, b):
    for one, other in zip(read_stack(a), read_stack(b), strict=True):
        for key, values in one.items():
            np.testing.assert_array_equal(values, other[key])


@pytest.mark.slow
def test_all_stages_and_killed_runs(gymnasium, tmp_path):
    for needed in ("sbx", "d3rlpy"):
        pytest.importorskip(needed, reason="needs the extra [paper]")
    whole, killed = (tmp_path / part / "smoke" / "hopper-v4" for part in ("whole", "killed"))
    finish(make("all", tmp_path / "whole", "--game", "hopper-medium-v2"))

    kill_after(make("sac", tmp_path / "killed", "--checkpoint-seconds", "0"), "saved at step 800")
    assert not (killed / "policies.npz").exists() and list(killed.glob("sac/checkpoint-*"))
    finish(make("sac", tmp_path / "killed", "--checkpoint-seconds", "0"))
    assert_same_stacks(whole / "policies.npz", killed / "policies.npz")

    shutil.copy(whole / "split.json", killed)
    finish(make("logs", tmp_path / "killed"))  # needs the policies and the split alone
    with h5py.File(whole / "logs/medium.hdf5") as a, h5py.File(killed / "logs/medium.hdf5") as b:
        np.testing.assert_array_equal(a["observations"], b["observations"])
    kill_after(
        make("offline", tmp_path / "killed", "--game", "hopper-medium-v2", "--checkpoint-seconds", "0"),
        "saved at update 13",
    )
    finish(make("offline", tmp_path / "killed", "--game", "hopper-medium-v2"))
    for algorithm in ("bear", "cql", "crr"):
        assert_same_stacks(whole / f"offline/medium/{algorithm}.npz", killed / f"offline/medium/{algorithm}.npz")

    finish(make("competent", tmp_path / "whole", "--game", "hopper-medium-v2"))
    with open(whole / "competent/medium/all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == [family for family in competent.FAMILIES for _ in range(2)]
    assert [row["updates"] for row in rows[-2:]] == ["5", "10"]
    stack = read_stack(whole / "competent/medium/policies.npz")
    assert len(stack) == 3 and stack[0]["hidden_1.weight"].shape == (128, 128)

    again = finish(make("all", tmp_path / "whole", "--game", "hopper-medium-v2"))  # has nothing left to do
    assert again.count("hopper-v4") == 14
    assert "| hopper-v4 medium | II |" in finish(make("table", tmp_path / "whole"))
    assert "| hopper-v4 medium | 400 | 20 |" in finish(make("summary", tmp_path / "whole"))
    check_products(whole)


def check_products(folder):
    """Check every product with the readers of the package."""
    split = json.loads((folder / "split.json").read_text())
    assert sorted(split["train"] + split["validation"] + split["test_set_2"]) == list(range(15))
    online = list(load(folder / "policies.npz", stochastic=True).values())
    for name in ("expert", "medium", "medium-replay", "full-replay"):
        log = sopr_fast.inputs.logs.load(folder / "logs" / f"{name}.hdf5")
        assert len(log) == 400 and not (log.terminals & log.timeouts).any()
        inside = np.setdiff1d(np.arange(400), log.episodes[1:] - 1)
        np.testing.assert_array_equal(log.next_states[inside], log.states[inside + 1])
        if name in ("expert", "medium"):
            actor = online[split[name]]
            expected = actor.log_prob(torch.from_numpy(log.states), torch.from_numpy(log.actions)).numpy()
            inner = np.abs(log.actions).max(1) < 0.99
            np.testing.assert_allclose(log.log_probs[inner], expected[inner], atol=1e-2)
    assert len(load(folder / "test_set_1/medium/policies.npz")) == 3
    with open(folder / "distances/medium.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["test_set"], row["policies"]) for row in rows] == [("I", "3"), ("II", "3")]
    assert all(float(row["mean"]) > 0 for row in rows)
    with open(folder / "scores/medium.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    methods = ("SOPR-T", "nearest policy")
    assert [(row["test_set"], row["method"]) for row in rows] == list(itertools.product(("I", "II"), methods))
    assert all(-1 <= float(row["spearman"]) <= 1 and 0 <= float(row["regret@1"]) <= 1 for row in rows)
    for product in ("policies.npz", "returns.csv", "logs/expert.hdf5", "offline/medium/cql.npz"):
        manifest = json.loads((folder / f"{product}.json").read_text())
        assert manifest["settings"]["seed"] == 0 and manifest["versions"]["gymnasium"]
        assert manifest["seconds"] is not None  # no attempt was killed
