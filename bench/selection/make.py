"""Train the policies of a task, record its log, train offline policies on it, and measure all returns."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pandas
import torch

import sopr_fast
from sopr_fast.inputs.logs import Transitions
from sopr_fast.inputs.policies.actor import Actor
from sopr_fast.inputs.policies.output import Bounds

from .tasks import LOG_ROWS, OFFLINE_UPDATES, RETURNS, SEEDS, SETS, SNAPSHOTS, Task

_NETWORK = {"net_arch": [64, 64]}
_ENVIRONMENTS = 8  # that PPO and A2C step at once
ON_POLICY = ("ppo", "a2c")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 256, "batch_size": 256, "learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.9},
    "a2c": {"learning_rate": 1e-3, "n_steps": 16},
    "sac": {"learning_rate": 1e-3, "train_freq": 2, "learning_starts": 500},
    "td3": {"learning_rate": 1e-3, "train_freq": 2, "learning_starts": 500},
    "dqn": {"learning_rate": 1e-3, "batch_size": 64, "train_freq": 8, "gradient_steps": 4, "learning_starts": 1000,
            "target_update_interval": 500, "exploration_fraction": 0.2},
}  # fmt: skip


class Recorder(gymnasium.Wrapper):
    """Keep every transition that an environment makes, in order."""

    def __init__(self, environment: gymnasium.Env) -> None:
        super().__init__(environment)
        self.rows: list[tuple] = []

    def reset(self, **options: Any) -> tuple[Any, dict]:
        self._state, info = self.env.reset(**options)
        return self._state, info

    def step(self, action: Any) -> tuple:
        after, reward, terminal, truncated, info = self.env.step(action)
        self.rows.append((self._state, action, reward, after, terminal, truncated and not terminal))
        self._state = after
        return after, reward, terminal, truncated, info


def make(task: Task, work: Path) -> None:
    """Make policies, returns and log of a task; finished parts in the folder of work are kept.

    Args:
        task: The task.
        work: Folder for runs, outside of git.
    """
    torch.set_num_threads(1)
    runs = [(algorithm, seed) for algorithm in task.steps for seed in SEEDS]
    for algorithm, seed in runs:
        _once(work / f"{algorithm}-{seed}", partial(_train, task, algorithm, seed))
    _once(work / "log.npz", partial(_write_log, task, work))
    for algorithm in offline_algorithms(task):
        _once(work / f"offline-{algorithm}", partial(_train_offline, task, work, algorithm))
    _once(work / "policies.csv", partial(_measure, task, work))
    SETS.mkdir(exist_ok=True)
    arrays = {name: array for file in ("log", "policies") for name, array in np.load(work / f"{file}.npz").items()}
    np.savez_compressed(task.archive, **arrays)
    tables = [pandas.read_csv(work / "policies.csv").assign(task=task.environment)]
    if RETURNS.exists():
        table = pandas.read_csv(RETURNS)
        tables.insert(0, table[table["task"] != task.environment])
    pandas.concat(tables).to_csv(RETURNS, index=False, float_format="%.6g", lineterminator="\n")


def offline_algorithms(task: Task) -> tuple[str, ...]:
    """Return the algorithms of offline RL that fit the task's actions."""
    is_discrete = isinstance(gymnasium.make(task.environment).action_space, gymnasium.spaces.Discrete)
    return ("bc", "cql", "dqn", "nfq") if is_discrete else ("bc", "td3bc", "cql", "iql")


def _once(product: Path, build: Any) -> None:
    if not product.exists():
        temporary = product.with_name(f"{product.name}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        product.parent.mkdir(parents=True, exist_ok=True)
        build(temporary)
        temporary.rename(product)
        print(product, flush=True)


def _train(task: Task, algorithm: str, seed: int, folder: Path) -> None:
    """Write the snapshots of a run, evenly spaced in steps, and what it saw if it is logged."""
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv

    is_on_policy = algorithm in ON_POLICY
    recorders = [Recorder(gymnasium.make(task.environment)) for _ in range(_ENVIRONMENTS if is_on_policy else 1)]
    learner = getattr(stable_baselines3, algorithm.upper())(
        "MlpPolicy", DummyVecEnv([lambda r=r: r for r in recorders]), seed=seed, policy_kwargs=dict(_NETWORK),
        device="cpu", **ALGORITHMS[algorithm],
    )  # fmt: skip
    folder.mkdir()
    for k in range(SNAPSHOTS):
        learner.learn(task.steps[algorithm] // SNAPSHOTS, reset_num_timesteps=k == 0)
        learner.save(folder / f"{k}.zip")
    if seed == SEEDS[0] and algorithm in task.logged:
        np.savez(folder / "seen.npz", **_arrays(recorders))


def _arrays(recorders: list[Recorder]) -> dict[str, np.ndarray]:
    """Return whole episodes of all environments, in D4RL's layout and in the order of their ends."""
    episodes = []
    for recorder in recorders:
        ends = [i + 1 for i, row in enumerate(recorder.rows) if row[4] or row[5]]
        episodes += [(end, recorder.rows[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    rows = [row for _, episode in sorted(episodes, key=lambda pair: pair[0]) for row in episode]
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    arrays = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    return {name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in arrays.items()}


def _write_log(task: Task, work: Path, product: Path) -> None:
    """Write whole episodes of the logged runs, evenly spaced, until they fill the log."""
    parts = []
    for algorithm in task.logged:
        seen = dict(np.load(work / f"{algorithm}-{SEEDS[0]}" / "seen.npz"))
        ends = np.flatnonzero(seen["terminals"] | seen["timeouts"]) + 1
        starts, share = np.concatenate([[0], ends[:-1]]), LOG_ROWS / len(task.logged) / ends[-1]
        episode = np.arange(len(ends))
        kept = episode[np.floor((episode + 1) * share) > np.floor(episode * share)] if share < 1 else episode
        rows = np.concatenate([np.arange(starts[i], ends[i]) for i in kept])
        parts.append({name: array[rows] for name, array in seen.items()})
    log = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with product.open("wb") as file:
        np.savez_compressed(file, **log)


def _train_offline(task: Task, work: Path, algorithm: str, folder: Path) -> None:
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # d3rlpy logs a lot
    log = dict(np.load(work / "log.npz"))
    space = gymnasium.make(task.environment).action_space
    actions, is_discrete = log["actions"], isinstance(space, gymnasium.spaces.Discrete)
    actions = actions.reshape(len(actions), 1) if is_discrete else np.clip(actions / space.high, -1, 1)
    data = d3rlpy.dataset.MDPDataset(
        log["observations"], actions, log["rewards"], log["terminals"], log["timeouts"],
        action_size=int(space.n) if is_discrete else None,
    )  # fmt: skip
    network, rate = d3rlpy.models.encoders.VectorEncoderFactory([64, 64]), 1e-3
    common = {"batch_size": 128, "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler()}
    both = {"actor_encoder_factory": network, "critic_encoder_factory": network, "actor_learning_rate": rate,
            "critic_learning_rate": rate}  # fmt: skip
    one = {"encoder_factory": network, "learning_rate": rate}
    configs = d3rlpy.algos
    config = {
        ("bc", True): lambda: configs.DiscreteBCConfig(**one, **common),
        ("nfq", True): lambda: configs.NFQConfig(**one, **common),
        ("cql", True): lambda: configs.DiscreteCQLConfig(**one, **common),
        ("dqn", True): lambda: configs.DoubleDQNConfig(**one, **common),
        ("bc", False): lambda: configs.BCConfig(**one, **common),
        ("td3bc", False): lambda: configs.TD3PlusBCConfig(**both, **common),
        ("cql", False): lambda: configs.CQLConfig(conservative_weight=1.0, **both, **common),
        ("iql", False): lambda: configs.IQLConfig(value_encoder_factory=network, expectile=0.8, **both, **common),
    }[algorithm, is_discrete]()
    d3rlpy.seed(0)
    learner = config.create(device="cpu")
    learner.build_with_dataset(data)
    folder.mkdir()
    for k, updates in enumerate(np.diff([0, *OFFLINE_UPDATES]).tolist()):
        quiet = d3rlpy.logging.NoopAdapterFactory()
        learner.fit(data, n_steps=updates, n_steps_per_epoch=updates, logger_adapter=quiet, show_progress=False)
        learner.save(folder / f"{k}.d3")


def _measure(task: Task, work: Path, product: Path) -> None:
    """Write `policies.npz` with the layers in half precision, and the table of returns of just these."""
    arrays: dict[str, np.ndarray] = {}
    table = []
    folders = [f"{algorithm}-{seed}" for algorithm in task.steps for seed in SEEDS]
    for folder in [*folders, *(f"offline-{algorithm}" for algorithm in offline_algorithms(task))]:
        files = sorted([*(work / folder).glob("*.zip"), *(work / folder).glob("*.d3")])
        for file in files:
            actor = next(iter(sopr_fast.load_policies(file).values()))
            name = f"{folder}-{file.stem}"
            arrays |= {f"{name}.{key}": value for key, value in _layers(actor).items()}
            row = {"name": name, "run": folder, "activation": actor.activation, "squash": actor.squash}
            table.append(row | {"head": actor.head})
    np.savez_compressed(work / "policies.npz", **arrays)
    frame = pandas.DataFrame(table)
    actors = _actors(task, arrays, frame.set_index("name"))
    measured = [roll_out(task, actor) for actor in actors.values()]
    frame["return"] = [float(np.mean(returns)) for returns in measured]
    frame["error"] = [float(np.std(returns) / len(returns) ** 0.5) for returns in measured]
    frame["rollouts"] = task.rollouts
    frame.to_csv(product, index=False)


def _layers(actor: Actor) -> dict[str, np.ndarray]:
    """Return the layers as float16, the standardisation of the states folded into the first one."""
    layers = [*actor._hidden, actor._mean]
    if (scaler := actor.standardisation) is not None:
        weight, bias = layers[0]
        weight = weight / scaler.std.float()
        layers[0] = (weight, bias - weight @ scaler.mean.float())
    return {
        f"{i}.{part}": tensor.numpy().astype(np.float16)
        for i, layer in enumerate(layers)
        for part, tensor in zip(("weight", "bias"), layer, strict=True)
    }


def load(task: Task) -> tuple[dict[str, Actor], Transitions, pandas.DataFrame]:
    """Return the actors of a task by name, its log, and the table of returns."""
    table = pandas.read_csv(RETURNS)
    table = table[table["task"] == task.environment].set_index("name")
    with np.load(task.archive) as archive:
        arrays = dict(archive)
    log = sopr_fast.load_log({name: array for name, array in arrays.items() if "." not in name})
    return _actors(task, arrays, table), log, table


def _actors(task: Task, arrays: dict[str, np.ndarray], table: pandas.DataFrame) -> dict[str, Actor]:
    """Return the actors of a table, with actions in the units of the environment."""
    space = gymnasium.make(task.environment).action_space
    bounds = None
    if isinstance(space, gymnasium.spaces.Box):
        bounds = Bounds(torch.tensor(space.low), torch.tensor(space.high))
    return {
        name: Actor(
            name,
            list(_pairs(arrays, name)),
            activation=row["activation"],
            squash=bool(row["squash"]),
            head=row["head"],
            scale=bounds if row["squash"] else None,
            clip=bounds,
        )
        for name, row in table.to_dict("index").items()
    }


def _pairs(arrays: dict[str, np.ndarray], name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    i = 0
    while f"{name}.{i}.weight" in arrays:
        weight, bias = (torch.from_numpy(arrays[f"{name}.{i}.{part}"]).float() for part in ("weight", "bias"))
        yield weight, bias
        i += 1


def roll_out(task: Task, actor: Actor) -> list[float]:
    """Return the undiscounted returns of the task's rollouts; all policies see the same seeds."""
    environments = [gymnasium.make(task.environment) for _ in range(task.rollouts)]
    states = np.stack([environment.reset(seed=1000 + i)[0] for i, environment in enumerate(environments)])
    totals, running = np.zeros(task.rollouts), list(range(task.rollouts))
    while running:
        actions = actor(states[running].astype(np.float32))
        going = []
        for action, i in zip(actions, running, strict=True):
            states[i], reward, terminal, truncated, _ = environments[i].step(action)
            totals[i] += reward
            if not (terminal or truncated):
                going.append(i)
        running = going
    return totals.tolist()
