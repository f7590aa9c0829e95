"""Stage 3: algorithms of d3rlpy on every log, and Test Set I from the snapshots of BEAR, CQL and CRR."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import Transitions
from sopr_fast.runtime.progress import progress_bar

from .actors import Layers, read_stack, save_stack
from .games import LOGS
from .manifest import Task, is_made, read_manifest, write_manifest
from .rollouts import measure_returns, read_return_means, write_returns

ALGORITHMS = ("bear", "cql", "crr")
REBRAC = {  # penalties of actor and critic, critics, learning rate; chosen in about 20 short runs by returns
    "halfcheetah": (0.001, 0.0, 2, 1e-3),
    "hopper": (0.001, 0.01, 5, 3e-4),
    "walker2d": (0.05, 0.05, 2, 1e-3),
    "walker2d-medium-replay": (0.02, 0.02, 2, 1e-3),
}


def train_all(task: Task) -> list[Path]:
    """Train every algorithm on every log, and return the paths `offline/LOG/ALGORITHM.npz` of the snapshots."""
    products = []
    for log in LOGS:
        transitions = None
        for algorithm in ALGORITHMS:
            product = task.folder / "offline" / log / f"{algorithm}.npz"
            products.append(product)
            if not is_made(task, product):
                if transitions is None:
                    transitions = sopr_fast.load_log(task.folder / "logs" / f"{log}.hdf5")
                train_one(task, product, algorithm, transitions, log)
    return products


def collect_test_sets(task: Task) -> list[Path]:
    """Choose Test Set I among all offline snapshots, and return its paths `test_set_1/LOG/policies.npz`."""
    return [
        collect(
            task,
            task.folder / "test_set_1" / log,
            {algorithm: task.folder / "offline" / log / f"{algorithm}.npz" for algorithm in ALGORITHMS},
        )
        for log in LOGS
    ]


def collect(task: Task, folder: Path, sources: dict[str, Path]) -> Path:
    """Measure the returns of snapshots, choose some, evenly spaced in return, and return their path `policies.npz`.

    Args:
        task: Game, scale and seed.
        folder: Where `policies.npz`, their `returns.csv`, and `all.csv` are written.
        sources: Algorithm -> file of its snapshots.
    """
    product, partial, begin = folder / "policies.npz", folder / "all.partial", time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    if is_made(task, product):
        return product
    actors, names, updates = [], [], []
    resumed = partial.exists()
    for algorithm, source in sources.items():
        actors += read_stack(source)
        steps = read_manifest(task, source)["snapshot_updates"]
        names += [algorithm] * len(steps)
        updates += steps
    measured = measure_returns(actors, task.environment, task.scale.rollouts, task.seed, partial, task.processes)
    write_returns(folder / "all.csv", measured, algorithm=names, updates=updates)
    chosen = evenly_spaced(read_return_means(folder / "all.csv"), task.scale.chosen)
    columns = {"algorithm": [names[i] for i in chosen], "updates": [updates[i] for i in chosen]}
    write_returns(folder / "returns.csv", measured[chosen], **columns)
    save_stack(product, [actors[i] for i in chosen])
    write_manifest(task, product, None if resumed else time.monotonic() - begin, of=len(actors))
    partial.unlink()
    return product


def evenly_spaced(returns: np.ndarray, count: int) -> list[int]:
    """Return the positions of `count` policies whose returns (S,) are evenly spaced, worst first.

    Each of `count` evenly spaced returns from the smallest to the largest takes the closest policy still free.
    """
    free, chosen = list(range(len(returns))), []
    for target in np.linspace(returns.min(), returns.max(), min(count, len(returns))):
        nearest = min(free, key=lambda i: abs(returns[i] - target))
        free.remove(nearest)
        chosen.append(nearest)
    return sorted(chosen, key=lambda i: returns[i])


def train_one(task: Task, product: Path, algorithm: str, log: Transitions, name: str) -> None:
    """Train one of `ALGORITHMS`, "bc", "bc-best" or "rebrac" on a log of some name, and write its snapshots."""
    total, count = task.scale.offline_updates, task.scale.offline_snapshots
    snapshots = [total * (i + 1) // count for i in range(count)]
    product.parent.mkdir(parents=True, exist_ok=True)
    learner, settings = _new(task, algorithm, log, name)
    kept: list[Layers] = []
    begin = time.monotonic()
    with progress_bar(total, f"{algorithm} {name}", "update", show=True) as bar:
        for step in range(total):
            learner.update(_batch(log, np.random.default_rng([task.seed, 4, step]), learner.batch_size))
            bar.update()
            if step + 1 in snapshots:
                kept.append(_layers(learner))
    save_stack(product, kept)
    seconds = time.monotonic() - begin
    write_manifest(task, product, seconds, algorithm=algorithm, options=settings, snapshot_updates=snapshots)


def _new(task: Task, algorithm: str, log: Transitions, name: str) -> tuple[Any, dict[str, Any]]:
    """Return an untrained algorithm, and what of its options is not d3rlpy's default."""
    import d3rlpy

    scale, options = task.scale, {}
    if scale.offline_batch is not None:
        options["batch_size"] = scale.offline_batch
    networks: dict[str, Any] = {}
    sizes = [scale.offline_hidden or 256] * 2
    if scale.offline_hidden is not None:
        actor = "encoder_factory" if algorithm.startswith("bc") else "actor_encoder_factory"
        networks[actor] = d3rlpy.models.VectorEncoderFactory(sizes)
    if algorithm == "bear":  # first imitates the log for 40,000 updates by default, which exceeds a short run
        options["warmup_steps"] = min(40_000, scale.offline_updates // 10)
    elif algorithm == "rebrac":
        actor_beta, critic_beta, critics, rate = REBRAC.get(f"{task.game}-{name}", REBRAC[task.game])
        options |= {"actor_beta": actor_beta, "critic_beta": critic_beta, "n_critics": critics, "tau": 0.02}
        options |= {"actor_learning_rate": rate, "critic_learning_rate": rate}
        networks["critic_encoder_factory"] = d3rlpy.models.VectorEncoderFactory(sizes, use_layer_norm=True)
        mean, std = log.states.mean(0, np.float64), log.states.std(0, np.float64)
        networks["observation_scaler"] = d3rlpy.preprocessing.StandardObservationScaler(mean=mean, std=std)
    kinds = {"bear": "BEAR", "cql": "CQL", "crr": "CRR", "bc": "BC", "bc-best": "BC", "rebrac": "ReBRAC"}
    config = getattr(d3rlpy.algos, f"{kinds[algorithm]}Config")(**options, **networks)
    torch.set_num_threads(task.threads)
    d3rlpy.seed(task.seed)
    learner = config.create(device=task.device)
    learner.create_impl((log.states.shape[1],), log.actions.shape[1])
    return learner, options


def _batch(log: Transitions, generator: np.random.Generator, size: int) -> Any:
    from d3rlpy.dataset import TransitionMiniBatch

    rows = generator.integers(len(log), size=size)
    return TransitionMiniBatch(
        observations=log.states[rows],
        actions=log.actions[rows],
        rewards=log.rewards[rows, None],
        next_observations=log.next_states[rows],
        next_actions=log.actions[np.minimum(rows + 1, len(log) - 1)],
        terminals=log.terminals[rows, None].astype(np.float32),
        intervals=np.ones((size, 1), np.float32),
        transitions=[],
    )


def _layers(learner: Any) -> Layers:
    """Return the policy's network. Its deterministic action is tanh(mean) for all algorithms."""
    policy = learner.impl.policy
    mean = policy._mu if hasattr(policy, "_mu") else policy._fc
    hidden = [module for module in policy._encoder.modules() if isinstance(module, torch.nn.Linear)]
    named = {**{f"hidden_{i}": layer for i, layer in enumerate(hidden)}, "mean": mean}
    layers = {}
    for name, layer in named.items():
        layers[f"{name}.weight"] = layer.weight.detach().cpu().numpy().copy()
        layers[f"{name}.bias"] = layer.bias.detach().cpu().numpy().copy()
    if (scaler := learner.observation_scaler) is not None:  # becomes part of the first layer
        weight = layers["hidden_0.weight"] / (scaler.std + scaler.eps)
        layers["hidden_0.bias"] = layers["hidden_0.bias"] - weight @ scaler.mean
        layers["hidden_0.weight"] = weight
    return layers
