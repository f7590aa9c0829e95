"""Rollouts of many environments at once, over several processes."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas

from sopr_fast.runtime.files import atomic_path
from sopr_fast.runtime.progress import progress_bar

from .actors import Actor, Layers
from .games import make_environment

_AT_ONCE = 100  # environments
_environments: dict[str, list] = {}


@dataclass(frozen=True)
class Episode:
    """One rollout of T steps, float32.

    Attributes:
        states: (T + 1, dim_s).
        actions: (T, dim_a).
        rewards: (T,).
        log_probs: Log-densities (T,) of drawn actions, or None.
        terminal: Whether the last state is terminal.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    log_probs: np.ndarray | None
    terminal: bool


def roll_out(
    layers: Layers, environment: str, seeds: Sequence[int], *, stochastic: bool = False, record: bool = False
) -> list[Episode | tuple[float, int]]:
    """Roll out one episode per seed.

    Each episode equals a plain loop over `gymnasium.make(environment)`, reset with the seed, whatever runs next to it.
    Drawn actions use noise (steps, dim_a) from `numpy.random.default_rng([seed, 1])`.

    Args:
        layers: The actor.
        environment: Gymnasium's name.
        seeds: Seeds of the episodes.
        stochastic: Draw actions instead of acting by the mean.
        record: Return whole episodes.

    Returns:
        Per seed an `Episode` if `record`, else its undiscounted return and length.
    """
    episodes = []
    for first in range(0, len(seeds), _AT_ONCE):
        episodes += _roll_out(Actor(layers), environment, seeds[first : first + _AT_ONCE], stochastic, record)
    return episodes


def _roll_out(actor: Actor, environment: str, seeds: Sequence[int], stochastic: bool, record: bool) -> list:
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
    """Return a `multiprocessing` pool of processes with one thread each, which all stages share."""
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
    """Measure the returns of actors that act by their mean, all from the same seeds.

    Args:
        actors: S actors.
        environment: Gymnasium's name.
        rollouts: Episodes per actor.
        seed: Seed of the episodes' seeds.
        partial_path: File that keeps finished actors, so that a killed measurement resumes.
        processes: Number of processes.

    Returns:
        (S, 3) mean and standard deviation of the returns, and mean length.
    """
    done = np.loadtxt(partial_path, ndmin=2).tolist()[: len(actors)] if partial_path.exists() else []
    seeds = [seed * 1_000_003 + i for i in range(rollouts)]
    run = partial(roll_out, environment=environment, seeds=seeds)
    with progress_bar(len(actors), "rollouts", "policy", show=True, initial=len(done)) as bar:
        for episodes in workers(processes).imap(run, actors[len(done) :]):
            returns, lengths = np.array(episodes).T
            done.append([returns.mean(), returns.std(), lengths.mean()])
            with atomic_path(partial_path) as temporary:
                np.savetxt(temporary, done, fmt="%.17g")
            bar.update()
    return np.array(done)


def write_returns(path: Path, measured: np.ndarray, **columns: Sequence) -> None:
    """Write a CSV table of further columns (S,) and measured returns (S, 3), which `sopr-fast --returns` reads."""
    numbers = dict(zip(("return_mean", "return_std", "length_mean"), measured.T, strict=True))
    with atomic_path(path) as temporary:
        pandas.DataFrame({**columns, **numbers}).to_csv(temporary, index_label="policy", lineterminator="\n")


def read_return_means(path: Path) -> np.ndarray:
    """Load the mean returns (S,) of a table."""
    return pandas.read_csv(path, float_precision="round_trip")["return_mean"].to_numpy()
