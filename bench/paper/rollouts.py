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
    """One rollout of T steps.

    Attributes:
        states: (T + 1, dim_s) float32.
        actions: (T, dim_a) float32.
        rewards: (T,) float64.
        log_probs: Log-densities (T,) of drawn actions, or None.
        terminal: Whether the last state is terminal.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    log_probs: np.ndarray | None
    terminal: bool


def roll_out(layers: Layers, environment: str, seeds: Sequence[int], *, stochastic: bool = False) -> list[Episode]:
    """Roll out one episode per seed.

    Each episode equals a plain loop over `gymnasium.make(environment)`, reset with the seed, whatever runs next to it.
    Drawn actions use noise (steps, dim_a) from `numpy.random.default_rng([seed, 1])`.

    Args:
        layers: The actor.
        environment: Gymnasium's name.
        seeds: Seeds of the episodes.
        stochastic: Draw actions instead of acting by the mean.
    """
    episodes = []
    for first in range(0, len(seeds), _AT_ONCE):
        episodes += _roll_out(Actor(layers), environment, seeds[first : first + _AT_ONCE], stochastic)
    return episodes


def _roll_out(actor: Actor, environment: str, seeds: Sequence[int], stochastic: bool) -> list[Episode]:
    pool = _environments.setdefault(environment, [])
    pool += [make_environment(environment) for _ in range(len(seeds) - len(pool))]
    states = np.stack([pool[i].reset(seed=int(seed))[0] for i, seed in enumerate(seeds)])
    limit = pool[0].spec.max_episode_steps
    noise = None
    if stochastic:
        noise = np.stack(
            [np.random.default_rng([seed, 1]).standard_normal((limit, actor.action_dim)) for seed in seeds]
        )
    steps: list[list[tuple]] = [[] for _ in seeds]  # state, action, reward and log-density of each
    terminals = np.zeros(len(seeds), bool)
    running, t = np.arange(len(seeds)), 0
    while len(running):
        actions, log_probs = actor.act(states[running], None if noise is None else noise[running, t])
        going = np.ones(len(running), bool)
        for k, i in enumerate(running):
            before = states[i].copy()
            states[i], reward, terminal, truncated, _ = pool[i].step(actions[k])
            steps[i].append((before, actions[k], reward, None if log_probs is None else log_probs[k]))
            if terminal or truncated:
                terminals[i], going[k] = terminal, False
        running, t = running[going], t + 1
    return [_episode(*rows) for rows in zip(steps, states, terminals.tolist(), strict=True)]


def _episode(steps: list[tuple], last: np.ndarray, terminal: bool) -> Episode:
    states, actions, rewards, log_probs = zip(*steps, strict=True)
    densities = None if log_probs[0] is None else np.array(log_probs, np.float32)
    whole = np.array([*states, last], np.float32)
    return Episode(whole, np.array(actions, np.float32), np.array(rewards, np.float64), densities, terminal)


def _returns(layers: Layers, environment: str, seeds: Sequence[int]) -> list[tuple[float, int]]:
    """Return the undiscounted return and the length of each episode."""
    return [(sum(e.rewards.tolist()), len(e.rewards)) for e in roll_out(layers, environment, seeds)]


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
    run = partial(_returns, environment=environment, seeds=seeds)
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
