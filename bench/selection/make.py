"""Train the policies of a task, write its logs, train offline policies on one of them, and measure all returns."""

from __future__ import annotations

import importlib
import itertools
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pandas
import torch

import sopr_fast
from sopr_fast.inputs.policies import Actor

from . import tasks
from .archive import Recorder, is_discrete, load_log, networks, read_table, roll_out
from .tasks import LOG_ROWS, OFFLINE_UPDATES, SEEDS, SNAPSHOTS, Task

_NETWORK = {"net_arch": [64, 64]}
_ENVIRONMENTS = 8  # that PPO and A2C step at once
ON_POLICY = ("ppo", "a2c")
_OFF_POLICY = {"learning_rate": 1e-3, "train_freq": 2, "learning_starts": 500}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 256, "batch_size": 256, "learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.9},
    "a2c": {"learning_rate": 1e-3, "n_steps": 16},
    "sac": _OFF_POLICY, "td3": _OFF_POLICY, "sbx_sac": _OFF_POLICY, "sbx_td3": _OFF_POLICY,
    "sbx_tqc": _OFF_POLICY,
    "dqn": {"learning_rate": 1e-3, "batch_size": 64, "train_freq": 8, "gradient_steps": 4, "learning_starts": 1000,
            "target_update_interval": 500, "exploration_fraction": 0.2},
}  # fmt: skip


def make(task: Task, work: Path) -> None:
    """Make policies, returns and logs of a task; finished parts in the folder of work are kept.

    Args:
        task: The task.
        work: Folder for runs, outside of git.
    """
    torch.set_num_threads(1)
    for algorithm in task.steps:
        for seed in SEEDS:
            _once(work / f"{algorithm}-{seed}", partial(_train, task, algorithm, seed))
    _once(work / "log.npz", partial(_write_log, [work / f"{each}-{SEEDS[0]}" for each in task.logged]))
    for algorithm in offline_algorithms(task):
        _once(work / f"offline-{algorithm}", partial(_train_offline, task, work / "log.npz", algorithm))
    _once(work / "policies.csv", partial(_measure, task, work))
    _archive(task, work)


def offline_algorithms(task: Task) -> tuple[str, ...]:
    """Return the algorithms of offline RL that fit the task's actions."""
    space = gymnasium.make(task.environment).action_space
    return ("bc", "cql", "dqn", "nfq") if is_discrete(space) else ("bc", "td3bc", "cql", "iql")


def _once(product: Path, build: Callable[[Path], None]) -> None:
    if not product.exists():
        temporary = product.with_name(f"{product.name}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        product.parent.mkdir(parents=True, exist_ok=True)
        build(temporary)
        temporary.rename(product)
        print(product, flush=True)


def _train(task: Task, algorithm: str, seed: int, folder: Path) -> None:
    """Write the snapshots of a run, evenly spaced in steps, and what it saw if it is logged."""
    from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv

    options = {**ALGORITHMS[algorithm], **task.options}
    if "action_noise" in options:
        sigma = np.full(gymnasium.make(task.environment).action_space.shape, 0.1**0.5 * options["action_noise"])
        options["action_noise"] = OrnsteinUhlenbeckActionNoise(0 * sigma, sigma, theta=0.05, dt=1)
    is_on_policy = algorithm in ON_POLICY
    recorders = [Recorder(gymnasium.make(task.environment)) for _ in range(_ENVIRONMENTS if is_on_policy else 1)]
    is_jax = algorithm.startswith("sbx_")
    library = importlib.import_module("sbx" if is_jax else "stable_baselines3")
    learner = getattr(library, algorithm.removeprefix("sbx_").upper())(
        "MlpPolicy", DummyVecEnv([lambda r=r: r for r in recorders]), seed=seed, policy_kwargs=dict(_NETWORK),
        device="cpu", **options,
    )  # fmt: skip
    folder.mkdir()
    for k in range(SNAPSHOTS):
        learner.learn(task.steps[algorithm] // SNAPSHOTS, reset_num_timesteps=k == 0)
        if is_jax:
            np.savez(folder / f"{k}.npz", **_jax_layers(learner))
        else:
            learner.save(folder / f"{k}.zip")
    if seed == SEEDS[0] and algorithm in task.logged:
        np.savez(folder / "seen.npz", **_arrays(recorders))


def _jax_layers(learner: Any) -> dict[str, np.ndarray]:
    """Return the layers up to the mean."""
    parts = learner.policy.actor_state.params["params"]
    arrays = {}
    for i, name in enumerate(["hidden_0", "hidden_1", "mean"]):
        arrays[f"{name}.weight"] = np.asarray(parts[f"Dense_{i}"]["kernel"]).T
        arrays[f"{name}.bias"] = np.asarray(parts[f"Dense_{i}"]["bias"])
    return arrays


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


def _write_log(runs: list[Path], product: Path) -> None:
    """Write whole episodes of two runs in RLDS's layout, in which a further row holds an episode's last state.

    Evenly spaced episodes of the first run fill the log "replay", those of both runs in equal parts the log "mixture".
    """
    parts: list[dict[str, np.ndarray]] = []
    for run, rows_of_replay in zip(runs, (LOG_ROWS, 0), strict=True):
        seen = dict(np.load(run / "seen.npz"))
        ends = np.flatnonzero(seen["terminals"] | seen["timeouts"]) + 1
        in_replay, in_mixture = (_spread(len(ends), rows / ends[-1]) for rows in (rows_of_replay, LOG_ROWS / 2))
        for i in np.flatnonzero(in_replay | in_mixture):
            rows = slice(ends[i - 1] if i else 0, ends[i])
            last = np.append(np.zeros(rows.stop - rows.start, bool), True)
            steps = {
                "observations": [seen["observations"][rows], seen["next_observations"][rows][-1:]],
                **{name: [seen[name][rows], np.zeros_like(seen[name][:1])] for name in ("actions", "rewards")},
                "is_first": [np.roll(last, 1)],
                "is_last": [last],
                "is_terminal": [last & seen["terminals"][rows.stop - 1]],
                "in_replay": [in_replay[i : i + 1]],
                "in_mixture": [in_mixture[i : i + 1]],
            }
            parts.append({name: np.concatenate(values) for name, values in steps.items()})
    with product.open("wb") as file:
        np.savez_compressed(file, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _spread(count: int, share: float) -> np.ndarray:
    """Return (count,) bool that marks a share, evenly spaced."""
    places = np.floor(np.arange(count + 1) * share)
    return places[1:] > places[:-1] if share < 1 else np.ones(count, bool)


def _train_offline(task: Task, file: Path, algorithm: str, folder: Path) -> None:
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # d3rlpy logs a lot
    log = load_log(file, task.offline)
    space = gymnasium.make(task.environment).action_space
    discrete = is_discrete(space)
    actions = log.actions.astype(int) if discrete else np.clip(log.actions / space.high, -1, 1)
    data = d3rlpy.dataset.MDPDataset(
        log.states, actions, log.rewards, log.terminals, log.timeouts, action_size=int(space.n) if discrete else None
    )
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
    }[algorithm, discrete]()
    d3rlpy.seed(0)
    learner = config.create(device="cpu")
    learner.build_with_dataset(data)
    folder.mkdir()
    for k, updates in enumerate(np.diff([0, *OFFLINE_UPDATES]).tolist()):
        quiet = d3rlpy.logging.NoopAdapterFactory()
        learner.fit(data, n_steps=updates, n_steps_per_epoch=updates, logger_adapter=quiet, show_progress=False)
        _save_network(learner, folder / f"{k}.npz")


def _save_network(learner: Any, file: Path) -> None:
    """Write the layers of the network that acts, the standardisation of the states folded into the first one."""
    modules, scaler = vars(learner.impl.modules), learner.observation_scaler
    network = modules.get("policy") or modules.get("imitator") or modules["q_funcs"][0]
    first, *others = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)][:3]  # 4: deviations
    weight, bias = (part.detach().numpy() for part in (first.weight, first.bias))
    weight = weight / (scaler.std + scaler.eps)
    arrays = {"hidden_0.weight": weight, "hidden_0.bias": bias - weight @ scaler.mean}
    for name, layer in zip(("hidden_1", "mean"), others, strict=True):
        arrays |= {f"{name}.{part}": values.detach().numpy() for part, values in layer.named_parameters()}
    is_of_values = learner.get_action_type().name == "DISCRETE"
    np.savez(file, **arrays, activation="relu", squash="none" if is_of_values else "tanh")


def _measure(task: Task, work: Path, product: Path) -> None:
    """Write `policies.npz` with the layers in half precision, and the table of returns of just these."""
    arrays: dict[str, np.ndarray] = {}
    table = []
    runs = [f"{algorithm}-{seed}" for algorithm in task.steps for seed in SEEDS]
    for run in [*runs, *(f"offline-{algorithm}" for algorithm in offline_algorithms(task))]:
        for file in sorted((work / run).glob("[0-9].*")):
            (actor,) = sopr_fast.load_policies(file).values()
            name = f"{run}-{file.stem}"
            arrays |= {f"{name}.{key}": value for key, value in _layers(actor).items()}
            table.append({"name": name, "run": run, "activation": actor.activation, "squash": actor.squash})
    np.savez_compressed(work / "policies.npz", **arrays)
    frame = pandas.DataFrame(table).set_index("name")
    measured = [roll_out(task, policy) for policy in networks(task, arrays, frame).values()]
    frame["return"] = np.mean(measured, axis=1)
    frame["error"] = np.std(measured, axis=1) / task.rollouts**0.5
    frame["rollouts"] = task.rollouts
    frame.to_csv(product, float_format="%.6g", lineterminator="\n")


def _archive(task: Task, work: Path) -> None:
    """Copy what a task's study reads, and put its returns into the table of all tasks."""
    (tasks.SETS / task.name).mkdir(parents=True, exist_ok=True)
    for file in ("policies.npz", "log.npz"):
        shutil.copy(work / file, tasks.SETS / task.name)
    own = pandas.read_csv(work / "policies.csv")
    own.insert(0, "task", task.environment)
    others = read_table()
    table = pandas.concat([others[others["task"] != task.environment], own])
    table.to_csv(tasks.SETS / "policies.csv", index=False, float_format="%.6g", lineterminator="\n")


def _layers(actor: Actor) -> dict[str, np.ndarray]:
    """Return the layers as float16."""
    layers, rest = [], actor._parameters[0]
    for inputs, outputs in itertools.pairwise(actor._sizes):
        weight, bias, rest = rest.split([inputs * outputs, outputs, len(rest) - (inputs + 1) * outputs])
        layers.append((weight.view(outputs, inputs), bias))
    return {
        f"{i}.{part}": tensor.numpy().astype(np.float16)
        for i, layer in enumerate(layers)
        for part, tensor in zip(("weight", "bias"), layer, strict=True)
    }
