"""Replay buffers of Stable-Baselines3, in memory or as records of their pickles."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...inputs.named_arrays import flatten

_ARRAYS = ("observations", "actions", "rewards", "dones", "next_observations", "timeouts")
_ROUNDING = 1e-3  # of actions scaled to [-1, 1] in float32


def of_buffer(buffer: Any) -> dict[str, Any]:
    """Return the filled rows of a `ReplayBuffer` of Stable-Baselines3, or a record of one, oldest first."""
    content, kind = vars(buffer), getattr(buffer, "source", type(buffer).__name__)
    if missing := [key for key in ("observations", "actions", "rewards", "dones", "pos") if content.get(key) is None]:
        raise ValueError(f"a {kind} without {', '.join(missing)}, not a replay buffer of Stable-Baselines3")
    stored = flatten({key: content[key] for key in _ARRAYS if content.get(key) is not None})
    arrays = {key: np.asarray(values) for key, values in stored.items()}
    size, end = len(arrays["dones"]), int(content["pos"])
    if not 0 <= end <= size or any(values.ndim < 2 or len(values) != size for values in arrays.values()):
        raise ValueError("damaged: its arrays and its position do not fit each other")
    has_next = any(key.startswith("next_observations") for key in arrays)
    rows = np.roll(np.arange(size), -end) if content.get("full") else np.arange(end)
    if content.get("full") and not has_next:  # by optimize_memory_usage
        rows = rows[1:]  # the oldest observation was overwritten by the newest next one
    if not len(rows):
        raise ValueError("an empty replay buffer")
    done = arrays.pop("dones")[rows].astype(bool)
    cut = arrays.pop("timeouts", np.zeros_like(done)).reshape(-1, done.shape[1])
    flags = {"dones": done}  # without the steps that a limit cut
    if content.get("handle_timeout_termination") and len(cut) == size:
        flags = {"terminals": done & ~cut[rows].astype(bool), "truncations": cut[rows].astype(bool)}
    kept = {key: values[rows] for key, values in arrays.items()} | flags
    kept["environment"] = np.tile(np.arange(done.shape[1]), (len(rows), 1))
    kept["actions"] = _unscaled(kept["actions"], content.get("action_space"))
    return {key: x.swapaxes(0, 1).reshape(done.size, *x.shape[2:]) for key, x in kept.items()}  # one after another


def _unscaled(actions: np.ndarray, space: Any) -> np.ndarray:
    """Return the actions (steps, environments, dim_a) that the environment got.

    Off-policy algorithms of Stable-Baselines3 store actions of a bounded space scaled to [-1, 1].
    """
    if not hasattr(space, "low") or not hasattr(space, "high"):
        return actions
    low, high = (np.asarray(getattr(space, side)).reshape(-1) for side in ("low", "high"))
    if low.shape != high.shape or low.shape != actions.shape[2:]:
        raise ValueError("damaged: its actions and its action space do not fit each other")
    if not np.isfinite([low, high]).all() or (np.all(low == -1) and np.all(high == 1)):
        return actions
    if (largest := np.abs(actions).max()) > 1 + _ROUNDING:
        raise ValueError(
            f"actions up to {largest:.3g}, but Stable-Baselines3 stores actions of a space from {low.min():g} "
            f"to {high.max():g} scaled to [-1, 1]; if these are what the environment got, write the arrays to .npz"
        )
    return low + 0.5 * (actions + 1) * (high - low)
