"""Rollouts side by side: many environments in step share one evaluation of the policy, over several processes."""

from __future__ import annotations

import atexit
import csv
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from sopr_fast.runtime.files import atomic_path
from sopr_fast.runtime.progress import progress_bar

from .actors import Actor, Layers
from .games import make_environment

_TOGETHER = 100  # environments in step
_environments: dict[str, list] = {}


@dataclass(frozen=True)
class Episode:
    """One rollout of T steps: states (T + 1, dim_s), actions (T, dim_a), rewards (T,), log-densities (T,) or None."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    log_probs: np.ndarray | None
    terminal: bool


def roll_out(
    layers: Layers, environment: str, seeds: Sequence[int], *, stochastic: bool = False, record: bool = False
) -> list[Episode | tuple[float, int]]:
    """An episode for every seed: whole if `record`, else its undiscounted return and length.

    Equals a plain loop over `gymnasium.make(environment)`, reset with the seed, of the same actor. Drawn actions take
    their noise from `numpy.random.default_rng([seed, 1])`, (steps, dim_a) standard normals.
    """
    found = []
    for first in range(0, len(seeds), _TOGETHER):
        found += _in_step(Actor(layers), environment, seeds[first : first + _TOGETHER], stochastic, record)
    return found


def _in_step(actor: Actor, environment: str, seeds: Sequence[int], stochastic: bool, record: bool) -> list:
    pool = _environments.setdefault(environment, [])
    pool += [make_environment(environment) for _ in range(len(seeds) - len(pool))]
    states = np.stack([pool[i].reset(seed=int(seed))[0] for i, seed in enumerate(seeds)])
    count, limit = len(seeds), pool[0].spec.max_episode_steps
    noise = None
    if stochastic:
        noise = np.stack(
            [np.random.default_rng([seed, 1]).standard_normal((limit, actor.action_dim)) for seed in seeds]
        )
    totals, lengths, terminals = np.zeros(count), np.zeros(count, int), np.zeros(count, bool)
    tracks = [([states[i].copy()], [], [], []) for i in range(count)] if record else None
    running, t = np.arange(count), 0
    while len(running):
        actions, log_probs = actor.act(states[running], None if noise is None else noise[running, t])
        going = np.ones(len(running), bool)
        for k, i in enumerate(running):
            states[i], reward, terminal, truncated, _ = pool[i].step(actions[k])
            totals[i] += reward
            if tracks:
                for track, value in zip(tracks[i], (states[i].copy(), actions[k], reward), strict=False):
                    track.append(value)
                if log_probs is not None:
                    tracks[i][3].append(log_probs[k])
            if terminal or truncated:
                lengths[i], terminals[i], going[k] = t + 1, terminal, False
        running, t = running[going], t + 1
    if not record:
        return list(zip(totals.tolist(), lengths.tolist(), strict=True))
    return [_episode(track, bool(terminals[i])) for i, track in enumerate(tracks)]


def _episode(track: tuple[list, ...], terminal: bool) -> Episode:
    states, actions, rewards, log_probs = (np.array(values, np.float32) for values in track)
    return Episode(states, actions, rewards, log_probs if len(log_probs) else None, terminal)


@cache
def workers(processes: int):
    """A pool of processes, each on one thread, kept for all stages; `imap` of it keeps the order of its tasks."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    before = {name: os.environ.get(name) for name in threads}
    os.environ.update(threads)
    pool = multiprocessing.get_context("spawn").Pool(processes)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    atexit.register(pool.terminate)
    return pool


def measure_returns(
    actors: Sequence[Layers], environment: str, rollouts: int, seed: int, partial_path: Path, processes: int
) -> np.ndarray:
    """Return mean, standard deviation and mean length (S, 3) of actors acting by their mean; every actor from the same
    seeds. Each is written to `partial_path` when done, and read from there when there."""
    done = _read_partial(partial_path, len(actors))
    seeds = [seed * 1_000_003 + i for i in range(rollouts)]
    run = partial(roll_out, environment=environment, seeds=seeds)
    with progress_bar(len(actors), "rollouts", "policy", show=True, initial=len(done)) as bar:
        for found in workers(processes).imap(run, actors[len(done) :]):
            returns, lengths = np.array(found).T
            done.append([returns.mean(), returns.std(), lengths.mean()])
            with atomic_path(partial_path) as temporary:
                np.savetxt(temporary, done, fmt="%.17g")
            bar.update()
    return np.array(done)


def _read_partial(path: Path, most: int) -> list[list[float]]:
    return np.loadtxt(path, ndmin=2).tolist()[:most] if path.exists() else []


def speed(layers: Layers, environment: str, processes: int, rollouts: int = 100) -> float:
    """Environment steps a second of `rollouts` episodes per process, once its environments are there."""
    run = partial(roll_out, layers, environment)
    workers(processes).map(run, [range(rollouts)] * processes, chunksize=1)
    begin = time.perf_counter()
    found = workers(processes).map(run, [range(rollouts)] * 2 * processes, chunksize=1)
    return sum(length for episodes in found for _, length in episodes) / (time.perf_counter() - begin)


def write_returns(path: Path, found: np.ndarray, **columns: Sequence) -> None:
    """A table that `sopr-fast fit --returns` reads: policy (its position), further columns, return and length."""
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", *columns, "return_mean", "return_std", "length_mean"])
        for i, row in enumerate(found.tolist()):
            writer.writerow([i, *(values[i] for values in columns.values()), *row])


def read_return_means(path: Path) -> np.ndarray:
    with path.open(newline="") as file:
        return np.array([float(row["return_mean"]) for row in csv.DictReader(file)])
