"""`bench.paper`: actors and rollouts next to plain loops, and studies on a small folder."""

import dataclasses
import json

import h5py
import numpy as np
import pytest
import torch
from paper.__main__ import main
from paper.actors import Actor, read_stack, save_stack
from paper.rollouts import roll_out
from paper.studies import cells, running, tables
from support.needs import needs
from torch import distributions as dist

from sopr_fast.inputs.policies import load_policies as load

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


def test_actor_agrees_with_the_package_reading_its_file(tmp_path):
    stack = [actor_layers(seed) for seed in range(3)]
    save_stack(tmp_path / "a.npz", stack)
    states, noise = np.random.default_rng(1).standard_normal((2, 40, 11)).astype(np.float32)
    read, policies = read_stack(tmp_path / "a.npz"), load(tmp_path / "a.npz")
    for mine, layers, theirs in zip(read, stack, policies.values(), strict=True):
        for key, values in layers.items():
            np.testing.assert_array_equal(mine[key], values)
        np.testing.assert_allclose(Actor(mine).act(states)[0], theirs(states), atol=1e-6)
        deviations = {f"mean.{part}": layers[f"log_std.{part}"] for part in ("weight", "bias")}
        np.savez(tmp_path / "deviations.npz", **layers | deviations, squash="none")
        std = np.exp(load(tmp_path / "deviations.npz")["deviations"](states))
        mean, std = (torch.from_numpy(x.astype(np.float64)) for x in (np.arctanh(theirs(states)), std))
        drawn, log_probs = Actor(mine).act(states, noise[:, :3])
        np.testing.assert_allclose(np.arctanh(drawn), mean + std * noise[:, :3], atol=1e-3)
        density = dist.TransformedDistribution(dist.Normal(mean, std), dist.TanhTransform())
        np.testing.assert_allclose(log_probs, density.log_prob(torch.from_numpy(drawn)).sum(1), atol=1e-2)


@pytest.fixture
def gymnasium():
    needs("mujoco", "make .venv/paper")
    return needs("gymnasium")


def plain_loop(environment, layers, seed, stochastic):
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
    episodes = roll_out(layers, name, seeds, stochastic=stochastic)
    for seed, episode in zip(seeds, episodes, strict=True):
        states, rewards = plain_loop(plain, layers, seed, stochastic)
        np.testing.assert_array_equal(episode.states, states)
        np.testing.assert_array_equal(episode.rewards, rewards)
    assert len({len(episode.rewards) for episode in episodes}) > 1 or len(seeds) == 1


SPLIT = {"train": list(range(8)), "validation": [8, 9, 10], "test_set_2": [11, 12, 13, 14]}
SIZES = dataclasses.replace(cells.SIZES["smoke"], rows=(64,))


def write_policies(path, gains, returns):
    path.parent.mkdir(parents=True, exist_ok=True)
    weight = np.random.default_rng(7).standard_normal((3, 11)) / 4
    np.savez(path, **{"mean.weight": np.reshape(gains, (-1, 1, 1)) * weight, "mean.bias": np.zeros((len(gains), 3))})
    lines = ["policy,return_mean", *(f"{i},{value}" for i, value in enumerate(returns))]
    (path.parent / "returns.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    game = folder / "smoke" / "hopper-v4"
    gains = rng.permutation(np.linspace(0.1, 1.5, 15))
    write_policies(game / "policies.npz", gains, 100 * gains)
    (game / "split.json").write_text(json.dumps(SPLIT))
    write_policies(game / "test_set_1" / "medium" / "policies.npz", [0.25, 0.95, 1.35], [25.0, 95, 135])
    (game / "logs").mkdir()
    with h5py.File(game / "logs" / "medium.hdf5", "w") as file:
        states = rng.standard_normal((401, 11)).astype(np.float32)
        file["observations"], file["next_observations"] = states[:-1], states[1:]
        file["next_observations"][19::20] += 1  # not the first states of the next episodes
        file["actions"] = np.clip(rng.standard_normal((400, 3)), -0.99, 0.99).astype(np.float32)
        file["rewards"] = rng.standard_normal(400).astype(np.float32)
        file["timeouts"] = np.arange(400) % 20 == 19
        file["terminals"] = np.zeros(400, bool)
        file["infos/action_log_probs"] = -np.ones(400, np.float32)
    return folder


def test_a_study_keeps_finished_cells_and_tables_say_what_its_file_says(sets, tmp_path, monkeypatch):
    monkeypatch.setitem(cells.SIZES, "smoke", SIZES)
    command = ["main", "--scale", "smoke", "--sets", str(sets), "--results", str(tmp_path)]
    command += ["--cells", "sopr-t", "nearest", "importance", "select"]
    main(command)
    rows = cells.read(tmp_path / "smoke" / "main.csv").to_dict("records")
    assert {(row["setting"].split()[0], row["test"]) for row in rows} == {
        (method, test)
        for method in ("sopr-t", "nearest-policy", "importance-weighting", "select")
        for test in ("I", "II")
    }
    text = (tmp_path / "smoke" / "main.md").read_text()
    for row in rows:
        if row["test"] == "II" and not np.isnan(row["spearman"]):
            label = f"| {tables.LABELS[row['setting'].split()[0]]} |"
            line = next(line for line in text.splitlines() if line.startswith(label))
            assert line.split(" | ")[1] == f"{row['spearman']:.2f}".replace("-", "−")
    monkeypatch.setattr(running, "_attempt", None)
    main(command)
