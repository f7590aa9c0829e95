"""Scalars of TensorBoard's event files, without TensorBoard: records that each hold a small protobuf message."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...runtime.records import fields, records
from ..logs.files import check_regular, reading
from .evaluations import Evaluations

# Stable-Baselines3, Tianshou and RL Zoo evaluate; CleanRL, rsl_rl and rl_games log what training episodes return.
TAGS = (
    "eval/mean_reward",
    "test/reward",
    "eval/reward",
    "eval/episode_reward_mean",
    "charts/episodic_return",
    "rollout/ep_rew_mean",
    "Train/mean_reward",
    "rewards/step",
    "rewards/iter",
)
_ONE_EPISODE = "charts/episodic_return"  # logged for each episode
_EPISODES = 100  # the last ones, which are averaged
_FLOAT, _DOUBLE = 1, 2  # types of TensorProto


def is_event_file(path: Path) -> bool:
    """Return whether a file has the name of an event file, `events.out.tfevents.…`."""
    return ".tfevents." in path.name


def read(paths: list[Path], tag: str | None = None) -> Evaluations:
    """Read the returns in the event files of one run.

    Values of `charts/episodic_return`, one for each episode, are averaged over the last 100 up to each step. Several
    may end at one step, in parallel environments. Of other tags, the last value at a step counts.

    Args:
        paths: Event files, oldest first. From its first step on, a file replaces those before: the run was resumed or
            begun again in the same folder.
        tag: Tag of the returns; by default the first of `TAGS` that occurs.

    Raises:
        ValueError: A file is damaged, or has no such tag.
    """
    scalars: dict[str, list[tuple[int, float]]] = {}
    for path in paths:
        check_regular(path)
        of_file: dict[str, list[tuple[int, float]]] = {}
        with reading(path, "a TensorBoard event file"):
            for name, step, value in _scalars(path):
                of_file.setdefault(name, []).append((step, value))
        for name, points in of_file.items():
            first = min(step for step, _ in points)
            scalars[name] = [point for point in scalars.get(name, []) if point[0] < first] + points
    chosen = tag if tag is not None else next((name for name in TAGS if name in scalars), None)
    if chosen is None or chosen not in scalars:
        expected = repr(tag) if tag is not None else f"of {', '.join(TAGS[:3])}, …"
        raise ValueError(
            f"{paths[0]}: no tag {expected}; it has {', '.join(sorted(scalars)[:10]) or 'none'}; choose one with "
            "sopr_fast.load_returns(…, tag=…)"
        )
    is_episodic = chosen == _ONE_EPISODE
    points = sorted(scalars[chosen] if is_episodic else dict(scalars[chosen]).items(), key=lambda point: point[0])
    steps, values = (np.array(part, np.float64) for part in zip(*points, strict=True))
    if not np.isfinite(values).all():
        raise ValueError(f"{paths[0]}: {chosen} is not finite at step {steps[~np.isfinite(values)][0]:.0f}")
    errors = np.full(len(values), math.nan)
    if is_episodic:
        windows = [values[max(0, i - _EPISODES + 1) : i + 1] for i in range(len(values))]
        errors = np.array([part.std(ddof=1) / math.sqrt(len(part)) if len(part) > 1 else math.nan for part in windows])
        values = np.array([part.mean() for part in windows])
        last = np.append(steps[1:] != steps[:-1], True)
        steps, values, errors = steps[last], values[last], errors[last]
    return Evaluations(str(paths[0]), steps, values, errors)


def _scalars(path: Path) -> Iterator[tuple[str, int, float]]:
    """Yield tag, step and value of every scalar in a file."""
    for record in records(path):
        step, summaries = 0, []
        for number, value in fields(record):
            if number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
        for summary in summaries:
            for number, value in fields(summary):
                if number == 1 and isinstance(value, bytes) and (scalar := _scalar(value)) is not None:
                    yield scalar[0], step, scalar[1]


def _scalar(message: bytes) -> tuple[str, float] | None:
    """Return tag and value of a `Summary.Value`, None if it is no scalar."""
    tag, scalar = "", None
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, float):
            scalar = value
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    return None if scalar is None else (tag, scalar)


def _tensor(message: bytes) -> float | None:
    """Return the number in a `TensorProto` of one float or double, None for other tensors."""
    kind, content = 0, b""
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content = value
        elif number in (5, 6) and isinstance(value, float):
            return value
    if kind == _FLOAT and len(content) == 4:
        return struct.unpack("<f", content)[0]
    return struct.unpack("<d", content)[0] if kind == _DOUBLE and len(content) == 8 else None
