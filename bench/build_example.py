"""Build the states of the benchmarks and the embedded example from the folder of a whole run.

    python -m bench.build_example FOLDER

FOLDER holds policies.npz and replay.hdf5. Writes bench/halfcheetah/states.npz and sopr_fast/example (small actors that
imitate those of the run, with returns of their own; and policies of offline RL of the Pendulum task of
bench/selection). The READMEs of both folders describe the files. Takes ten minutes and needs the packages of
`sopr_fast[paper]`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch

from .paper.actors import Layers, read_stack, save_stack
from .paper.rollouts import measure_returns
from .selection.archive import load
from .selection.tasks import OFFLINE_UPDATES, SETS, TASKS, Task

ROOT = Path(__file__).parents[1]
WIDTH, STEPS, BATCH, STATES, ROLLOUTS = 64, 8000, 512, 60_000, 20
PENDULUM_STEPS = 200  # of an episode
OFFLINE = ("bc", "td3bc", "cql", "iql")


def main() -> None:
    source = Path(sys.argv[1])
    with h5py.File(source / "replay.hdf5") as replay:
        observations = replay["observations"][:].astype(np.float32)
    write_states(observations, ROOT / "bench" / "halfcheetah")
    write_example(source, observations, ROOT / "sopr_fast" / "example")
    write_pendulum(TASKS[0], ROOT / "sopr_fast" / "example" / "pendulum")


def write_states(observations: np.ndarray, target: Path) -> None:
    """Write 65,536 states in half precision."""
    rows = np.sort(np.random.default_rng(0).choice(len(observations), 65_536, replace=False))
    np.savez_compressed(target / "states.npz", observations=observations[rows].astype(np.float16))


def write_example(source: Path, observations: np.ndarray, target: Path) -> None:
    """Write small imitations of the actors, the imitations' own returns, and 8,192 states, in half precision."""
    with np.load(source / "policies.npz") as actors:
        layers = {key: torch.from_numpy(actors[key].astype(np.float32)) for key in actors.files}
    rows = np.random.default_rng(1).choice(len(observations), STATES, replace=False)
    save_stack(target / "halfcheetah.npz", imitate(layers, torch.from_numpy(observations[rows])))
    small = read_stack(target / "halfcheetah.npz")
    with tempfile.TemporaryDirectory() as folder:
        measured = measure_returns(small, "HalfCheetah-v4", ROLLOUTS, 0, Path(folder) / "returns", processes=1)
    table = [f"{i},{mean:.3f},{deviation:.3f}" for i, (mean, deviation, _) in enumerate(measured)]
    (target / "returns.csv").write_text("\n".join(["policy,return_mean,return_std", *table, ""]))
    rows = np.sort(np.random.default_rng(0).choice(len(observations), 8192, replace=False))
    np.savez_compressed(target / "states.npz", observations=observations[rows].astype(np.float16))


def write_pendulum(task: Task, target: Path) -> None:
    """Write every second episode of the log in half precision, and the policies of offline RL with their returns."""
    _, log, table = load(task, task.offline)
    rows = np.arange(len(log)) // PENDULUM_STEPS % 2 == 0
    parts = {"observations": log.states, "actions": log.actions, "rewards": log.rewards}
    half = {name: values[rows].astype(np.float16) for name, values in parts.items()}
    np.savez_compressed(target / "log.npz", **half, terminals=log.terminals[rows], timeouts=log.timeouts[rows])
    arrays = np.load(SETS / task.name / "policies.npz")
    names = {f"offline-{a}-{k}": f"{a}-{n}" for a in OFFLINE for k, n in enumerate(OFFLINE_UPDATES)}
    for name, short in names.items():
        layers = {
            f"{layer}.{part}": arrays[f"{name}.{i}.{part}"]
            for i, layer in enumerate(("hidden_0", "hidden_1", "mean"))
            for part in ("weight", "bias")
        }
        scale = {"action_scale": np.float32([2.0]), "action_bias": np.float32([0.0])}
        np.savez_compressed(target / "policies" / f"{short}.npz", **layers, **scale)
    returns = table["return"][list(names)].round(1)
    returns.rename(names).to_csv(target / "returns.csv", header=["return"], index_label="name", lineterminator="\n")


def imitate(layers: dict[str, torch.Tensor], states: torch.Tensor) -> list[Layers]:
    """Train one actor of two layers of 64 per given actor on its actions, all at once.

    Args:
        layers: Stacked actors (S, …), as in `policies.npz`.
        states: (N, dim_s) states to imitate in.

    Returns:
        S actors, for states as they are: the standardisation of the training is part of the first layer.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        actions = torch.cat([_act(layers, part) for part in states.split(4096)], dim=1)  # (S, N, dim_a)
    mean, deviation = states.mean(0), states.std(0)
    inputs = (states - mean) / deviation
    count, widths = len(actions), (states.shape[1], WIDTH, WIDTH, actions.shape[2])
    small = {}
    for name, before, after in zip(("hidden_0", "hidden_1", "mean"), widths, widths[1:], strict=False):
        small[f"{name}.weight"] = torch.randn(count, after, before, generator=generator) * (2 / before) ** 0.5
        small[f"{name}.bias"] = torch.zeros(count, after)
    parameters = [value.requires_grad_() for value in small.values()]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for step in range(STEPS):
        batch = torch.randint(len(inputs), (BATCH,), generator=generator)
        loss = (_act(small, inputs[batch]) - actions[:, batch]).square().mean((1, 2)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 1000 == 999:
            print(f"step {step + 1}: mean squared error {loss.item() / count:.5f}", flush=True)
    with torch.no_grad():
        small["hidden_0.weight"] /= deviation
        small["hidden_0.bias"] -= (small["hidden_0.weight"] @ mean[:, None])[..., 0]
    return [{key: value[i].detach().numpy() for key, value in small.items()} for i in range(count)]


def _act(layers: dict[str, torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    hidden = states.expand(len(layers["mean.weight"]), -1, -1)  # (S, N, width)
    for name in ("hidden_0", "hidden_1", "mean"):
        hidden = torch.baddbmm(layers[f"{name}.bias"][:, None], hidden, layers[f"{name}.weight"].mT)
        hidden = torch.tanh(hidden) if name == "mean" else torch.relu(hidden)
    return hidden


if __name__ == "__main__":
    main()
