"""Policies, logs and returns of a task as `sets/` holds them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pandas
import torch

import sopr_fast
from sopr_fast.inputs.logs import Transitions
from sopr_fast.inputs.policies import Actor
from sopr_fast.inputs.policies.output import Bounds

from . import tasks
from .tasks import Task


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


def is_discrete(space: gymnasium.Space) -> bool:
    return isinstance(space, gymnasium.spaces.Discrete)


def load(task: Task, log: str) -> tuple[dict[str, Any], Transitions, pandas.DataFrame]:
    """Return the policies of a task by name, one of its logs, and the table of policies with their returns."""
    folder = tasks.SETS / task.name
    table = read_table()
    table = table[table["task"] == task.environment].set_index("name")
    with np.load(folder / "policies.npz") as arrays:
        policies = networks(task, arrays, table)
    return policies, load_log(folder / "log.npz", log), table


def read_table() -> pandas.DataFrame:
    """Return the policies of all tasks with their returns."""
    file = tasks.SETS / "policies.csv"
    return pandas.read_csv(file) if file.exists() else pandas.DataFrame(columns=["task"])


def load_log(file: Path, log: str) -> Transitions:
    """Return the episodes of a file that belong to a log; the last row of each holds only its last state."""
    with np.load(file) as arrays:
        last, terminal = arrays["is_last"], arrays["is_terminal"]
        step = np.flatnonzero(~last)
        whole = Transitions.from_arrays(
            states=arrays["observations"][step],
            actions=arrays["actions"][step],
            rewards=arrays["rewards"][step],
            next_states=arrays["observations"][step + 1],
            terminals=terminal[step + 1],
            truncations=last[step + 1] & ~terminal[step + 1],
            episodes=np.cumsum(arrays["is_first"])[step],
        )
        return whole.take(np.flatnonzero(arrays[f"in_{log}"]))


def networks(task: Task, arrays: Mapping[str, np.ndarray], table: pandas.DataFrame) -> dict[str, Any]:
    """Return the policies of a table from arrays `<name>.<layer>.weight` and `.bias`; actions are within bounds."""
    space = gymnasium.make(task.environment).action_space
    bounds = None if is_discrete(space) else Bounds(torch.tensor(space.low), torch.tensor(space.high))
    actors = {}
    for name, row in table.iterrows():
        layers = []
        while f"{name}.{len(layers)}.weight" in arrays:
            parts = (arrays[f"{name}.{len(layers)}.{part}"] for part in ("weight", "bias"))
            layers.append(tuple(torch.from_numpy(part).float() for part in parts))
        acting = {"activation": row["activation"], "squash": row["squash"], "clip": bounds}
        scale = bounds if row["squash"] else None
        actors[name] = Actor(name, layers, is_discrete=bounds is None, scale=scale, **acting)
    return sopr_fast.load_policies(actors)


def roll_out(task: Task, policy: Any) -> list[float]:
    """Return the undiscounted returns of the task's rollouts; all policies see the same seeds."""
    environments = [gymnasium.make(task.environment) for _ in range(task.rollouts)]
    states = np.stack([environment.reset(seed=1000 + i)[0] for i, environment in enumerate(environments)])
    totals, running = np.zeros(task.rollouts), list(range(task.rollouts))
    while running:
        actions = policy(states[running].astype(np.float32))
        going = []
        for action, i in zip(actions, running, strict=True):
            states[i], reward, terminal, truncated, _ = environments[i].step(action)
            totals[i] += reward
            if not (terminal or truncated):
                going.append(i)
        running = going
    return totals.tolist()


def measure(task: Task, policies: Sequence[Any], count: int) -> Transitions:
    """Return so many episodes of each policy, in turn."""
    recorder = Recorder(gymnasium.make(task.environment))
    for policy, seed in itertools.product(policies, range(count)):
        (state, _), over = recorder.reset(seed=seed), False
        while not over:
            state, _, terminal, truncated, _ = recorder.step(policy(state))
            over = terminal or truncated
    names = ("states", "actions", "rewards", "next_states", "terminals", "truncations")
    return Transitions.from_arrays(**dict(zip(names, map(np.array, zip(*recorder.rows, strict=True)), strict=True)))
