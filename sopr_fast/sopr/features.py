"""What else is known of a policy than its actions: numbers of its own, values of its actions (beyond the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..policies import Layout
from ..runtime.checks import TOO_LARGE

_ROWS = 1 << 16  # (state, action) rows shown to a critic at once


def read_features(features: Mapping[str, Any], names: Sequence[str]) -> Tensor:
    """(P, F) float32 of the named policies, from a mapping of policy name to a number or F numbers.

    Raises:
        TypeError, ValueError: no mapping; names the policy without features, or whose are of another number, not finite
            or too large.
    """
    if not isinstance(features, Mapping):
        raise TypeError(f"features must map policy names to numbers, got {type(features).__name__}")
    rows: list[np.ndarray] = []
    for name in names:
        if name not in features:
            raise ValueError(f"features hold nothing for policy {name!r}")
        try:
            row = np.atleast_1d(np.asarray(features[name], np.float64))
        except (TypeError, ValueError) as error:
            raise TypeError(f"features of policy {name!r} must be numbers: {error}") from error
        if row.ndim != 1 or (rows and len(row) != len(rows[0])):
            expected = f"({len(rows[0])},) as policy {names[0]!r}" if rows else "(F,)"
            raise ValueError(f"features of policy {name!r} have shape {row.shape}, expected {expected}")
        if not (np.abs(row) < TOO_LARGE).all():
            raise ValueError(
                f"features of policy {name!r} are not finite, or too large to reckon with (limit {TOO_LARGE:g}): "
                f"{row.tolist()}"
            )
        rows.append(row)
    return torch.from_numpy(np.stack(rows)).float()


def check_critic(critic: Callable[[Tensor, Tensor], Any] | None) -> None:
    """Raises TypeError for what cannot be called."""
    if critic is not None and not callable(critic):
        raise TypeError(f"critic must be callable on (states, actions), got {type(critic).__name__}")


def critic_values(critic: Callable[[Tensor, Tensor], Any], states: Tensor, actions: Tensor) -> Tensor:
    """(N, C) float32 of actions (N, dim_a).

    Raises:
        ValueError: the critic returns another shape, or values that are not finite.
    """
    parts = []
    for first in range(0, len(states), _ROWS):
        rows = slice(first, first + _ROWS)
        values = torch.as_tensor(critic(states[rows], actions[rows]), dtype=torch.float32, device="cpu").detach()
        count = len(states[rows])
        if values.dim() not in (1, 2) or values.shape[-1] != count:
            raise ValueError(f"the critic returned shape {tuple(values.shape)}, expected ({count},) or (C, {count})")
        values = values.reshape(-1, count)
        if not values.isfinite().all():
            raise ValueError("the critic returned values that are not finite")
        parts.append(values.T)
    return torch.cat(parts)


@dataclass(frozen=True)
class CriticColumns:
    """Columns that a critic adds to each (state, action) row, standardised.

    Attributes:
        critic: (states (N, dim_s), actions (N, dim_a)) → values (N,) or (C, N), arrays or tensors; discrete actions
            come as one-hot or probabilities. None where a file was read: no file keeps it.
        mean, scale: (C,) of its values on the training policies' rows.
    """

    critic: Callable[[Tensor, Tensor], Any] | None
    mean: Tensor
    scale: Tensor

    @classmethod
    def fill(
        cls, critic: Callable[[Tensor, Tensor], Any], states: Tensor, columns: Tensor, layout: Layout, training: int
    ) -> CriticColumns:
        """Writes standardised values of all policies to the last C of the columns (P, U, dim_c + C).

        Args:
            training: how many policies, the first ones, give mean and scale.

        Raises:
            ValueError: see `critic_values`.
        """
        values = columns[..., layout.width :]
        for into, policy in zip(values, columns, strict=True):
            into.copy_(critic_values(critic, states, policy[:, : layout.action_dim]))
        mean = torch.stack([each.double().mean(0) for each in values[:training]]).mean(0)
        variance = torch.stack([(each.double() - mean).square().mean(0) for each in values[:training]]).mean(0)
        scale = torch.where(variance > 0, variance.sqrt(), 1.0).float()
        filled = cls(critic, mean.float(), scale)
        values.sub_(filled.mean).div_(filled.scale)
        return filled

    def append(self, states: Tensor, columns: Tensor, layout: Layout) -> Tensor:
        """(P, U, dim_c + C): the columns with the standardised values behind.

        Raises:
            ValueError: see `critic_values`, or another C.
        """
        values = [critic_values(self.critic, states, policy[:, : layout.action_dim]) for policy in columns]
        if values[0].shape[1] != len(self.mean):
            raise ValueError(
                f"the critic returned {values[0].shape[1]} values a row, the model was trained with {len(self.mean)}"
            )
        return torch.cat([columns, (torch.stack(values) - self.mean) / self.scale], 2)
