"""Replay buffers of Stable-Baselines3 and pickled arrays, read without executing the pickle."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.pickles import SB3_RECORDS, SPACE_RECORDS, Record, RefusedError, read_pickle
from ...runtime.text import printable
from ...runtime.warn import warn
from .files import check_memory, check_regular
from .keys import KEYS, MIXED_ENDS

_log = logging.getLogger("sopr_fast")
_RECORDS = (*SB3_RECORDS, *SPACE_RECORDS, "torch.device")
_ARRAYS = ("observations", "actions", "rewards", "dones", "next_observations", "timeouts")
_COPIES = 3  # of the file's bytes while it is read
_ROUNDING = 1e-3  # of actions scaled to [-1, 1] in float32


def read_pickled(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read the arrays of a pickle.

    It holds a replay buffer of Stable-Baselines3 or sb3-contrib, a dict of arrays, or a list of dicts of arrays, one
    for each episode, as Decision Transformer and D4RL's converters write it.

    Args:
        path: File.
        wanted: Names of the arrays to return; the others give empty arrays.

    Returns:
        Arrays by name, rows of a ring buffer in the order in which they were stored; of several environments, one
        environment after the other. Actions of a replay buffer are those that the environment got.

    Raises:
        MemoryError: The file is larger than the free memory.
        ValueError: The file is damaged, or holds something else; nothing in it is executed.

    Warns:
        UserWarning: Actions of a replay buffer exceed [-1, 1], so they are taken as they are; or its ends may include
            time limits.
    """
    check_regular(path)
    check_memory(path, _COPIES * path.stat().st_size)
    try:
        with path.open("rb") as file:
            content = read_pickle(file, records=_RECORDS)
        if isinstance(content, Record):
            return _of_buffer(content, path, wanted)
        if isinstance(content, Mapping):
            return _of_dict(content, wanted)
        if isinstance(content, list) and content and all(isinstance(item, Mapping) for item in content):
            return _of_episodes(content, wanted)
    except (AttributeError, RefusedError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path}: {error}") from error
    raise ValueError(f"{path}: expected a replay buffer or a dict of arrays, found a {type(content).__name__}")


def _of_buffer(buffer: Record, path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Return the filled rows of a `ReplayBuffer`, oldest first."""
    content = vars(buffer)
    if missing := [key for key in ("observations", "actions", "rewards", "dones", "pos") if key not in content]:
        raise ValueError(f"a {buffer.source} without {', '.join(missing)}, not a replay buffer of Stable-Baselines3")
    if isinstance(content["observations"], Mapping):
        names = ", ".join(map(str, content["observations"]))
        raise ValueError(
            f"its observations are by name ({printable(names)}); write the ones that policies read to an .npz file"
        )
    arrays = {key: np.asarray(content[key]) for key in _ARRAYS if content.get(key) is not None}
    size, end = len(arrays["dones"]), int(content["pos"])
    if not 0 <= end <= size or any(values.ndim < 2 or len(values) != size for values in arrays.values()):
        raise ValueError("damaged: its arrays and its position do not fit each other")
    is_overlaid = bool(content.get("optimize_memory_usage")) or "next_observations" not in arrays
    rows = np.roll(np.arange(size), -end) if content.get("full") else np.arange(end)
    if is_overlaid and content.get("full"):
        rows = rows[1:]  # the oldest observation was overwritten by the newest next one
    if not len(rows):
        raise ValueError("an empty replay buffer")
    done = arrays.pop("dones")[rows].astype(bool)
    if "terminals" in wanted and done.any() and not content.get("handle_timeout_termination"):
        warn(
            f"{path}: 'dones' are taken as terminals, since the buffer was filled with "
            "handle_timeout_termination=False; if a time limit cut episodes, write the arrays to an .npz file and add "
            "'timeouts' for the steps it cut"
        )
    cut = arrays.pop("timeouts", np.zeros_like(done)).reshape(-1, done.shape[1])
    cut = cut[rows].astype(bool) if len(cut) == size else np.zeros_like(done)
    ends = {"terminals": done & ~cut, "timeouts": cut}
    ends["timeouts"][-1] |= ~done[-1]  # the next environment, or nothing, follows
    kept = {key: values[rows] for key, values in arrays.items()}
    if "actions" in wanted:
        kept["actions"] = _unscaled(kept["actions"], content.get("action_space"), path)
    if is_overlaid:
        kept["next_observations"] = arrays["observations"][(rows + 1) % size]
        kept["next_observations"][done & ~cut] = kept["observations"][done & ~cut]  # the next episode begins there
    arrays = {key: _one_after_another(values) for key, values in kept.items()}
    return arrays | {key: _one_after_another(values) for key, values in ends.items()}


def _unscaled(actions: np.ndarray, space: Any, path: Path) -> np.ndarray:
    """Return the actions (steps, environments, dim_a) that the environment got.

    Off-policy algorithms of Stable-Baselines3 store actions of a bounded space scaled to [-1, 1].
    """
    if not isinstance(space, Record) or not space.source.endswith("box.Box"):
        return actions
    low, high = (np.asarray(getattr(space, side)).reshape(-1) for side in ("low", "high"))
    if low.shape != high.shape or low.shape != actions.shape[2:]:
        raise ValueError("damaged: its actions and its action space do not fit each other")
    if not np.isfinite([low, high]).all() or (np.all(low == -1) and np.all(high == 1)):
        return actions
    bounds = f"from {low.min():g} to {high.max():g}"
    if (largest := np.abs(actions).max()) > 1 + _ROUNDING:
        warn(
            f"{path}: actions up to {largest:.3g} are taken as they are: Stable-Baselines3 stores actions of a space "
            f"{bounds} scaled to [-1, 1]; if the environment got others, write the arrays to an .npz file"
        )
        return actions
    _log.info("%s: actions are scaled from [-1, 1] to the action space, %s", printable(path), bounds)
    return low + 0.5 * (actions + 1) * (high - low)


def _one_after_another(values: np.ndarray) -> np.ndarray:
    """Return (steps, environments, …) as (environments · steps, …)."""
    values = values.swapaxes(0, 1)
    return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])


def _of_dict(content: Mapping[Any, Any], wanted: Collection[str]) -> dict[str, np.ndarray]:
    return {str(key): np.asarray(values) if key in wanted else np.empty(0) for key, values in content.items()}


def _of_episodes(content: list[Mapping[Any, Any]], wanted: Collection[str]) -> dict[str, np.ndarray]:
    keys = [str(key) for key in content[0] if key in wanted]
    for place, episode in enumerate(content):
        if missing := [key for key in keys if key not in episode]:
            raise ValueError(f"episode {place} has no {missing[0]!r}")
    arrays = {key: np.concatenate([np.asarray(episode[key]) for episode in content]) for key in keys}
    if not keys:
        return arrays
    used = [key for names in KEYS.values() if (key := next((name for name in names if name in keys), None))]
    lengths = {key: [len(np.asarray(episode[key])) for episode in content] for key in used}
    for key in used[1:]:
        for place, (count, expected) in enumerate(zip(lengths[key], lengths[used[0]], strict=True)):
            if count != expected:
                raise ValueError(f"episode {place} has {count} {key!r} for {expected} {used[0]!r}")
    last = np.cumsum(lengths[used[0]]) - 1
    done = next((key for key in KEYS["terminals"] if key in arrays), None)
    stops = last if done is None else last[~arrays[done][last].reshape(len(last), -1).astype(bool).any(1)]
    cut = next((key for key in KEYS["timeouts"] if key in arrays), None)
    if cut is not None:
        arrays[cut][stops] = 1
    elif done not in MIXED_ENDS or (stops < last[-1]).any():  # else `done` may mark time limits
        arrays["timeouts"] = np.isin(np.arange(last[-1] + 1), stops)
    return arrays
