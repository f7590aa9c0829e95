"""What else is known of a policy than its actions: numbers of its own, values of its actions (beyond the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .policies import Layout

_ROWS = 1 << 16  # (state, action) rows shown to a critic at once


def read_features(features: Mapping[str, Any], names: Sequence[str]) -> Tensor:
    """(P, F) float32 of the named policies, from a mapping of policy name to a number or F numbers.

    Raises:
        TypeError, ValueError: no mapping, a policy without features, another number of them, or not finite (whose).
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
        if not np.isfinite(row).all():
            raise ValueError(f"features of policy {name!r} are not finite: {row.tolist()}")
        rows.append(row)
    return torch.from_numpy(np.stack(rows)).float()


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
    def fitted(cls, critic: Callable[[Tensor, Tensor], Any], states: Tensor, columns: Tensor, layout: Layout):
        """With mean and scale of the values at columns (M, U, dim_c).

        Raises:
            TypeError: critic is not callable.
            ValueError: see `values`.
        """
        if not callable(critic):
            raise TypeError(f"critic must be callable on (states, actions), got {type(critic).__name__}")
        zero, one = torch.tensor([[0.0], [1.0]], dtype=torch.float32, device="cpu")
        unscaled = cls(critic, zero, one)
        values = unscaled.values(states, columns, layout).double()
        scale = values.std((0, 1), correction=0)
        return replace(unscaled, mean=values.mean((0, 1)).float(), scale=torch.where(scale > 0, scale, 1.0).float())

    def values(self, states: Tensor, columns: Tensor, layout: Layout) -> Tensor:
        """(P, U, C) standardised values of the actions in columns (P, U, dim_c).

        Raises:
            ValueError: the critic returns another shape, or values that are not finite.
        """
        found = []
        for policy in columns:
            parts = []
            for first in range(0, len(states), _ROWS):
                rows = slice(first, first + _ROWS)
                values = self.critic(states[rows], policy[rows, : layout.action_dim])
                values = torch.as_tensor(values, dtype=torch.float32, device="cpu").detach()
                if values.dim() not in (1, 2) or values.shape[-1] != len(states[rows]):
                    count = len(states[rows])
                    raise ValueError(
                        f"the critic returned shape {tuple(values.shape)}, expected ({count},) or (C, {count})"
                    )
                values = values.reshape(-1, values.shape[-1])
                if not values.isfinite().all():
                    raise ValueError("the critic returned values that are not finite")
                parts.append(values.T)
            found.append(torch.cat(parts))
        return (torch.stack(found) - self.mean) / self.scale

    def append(self, states: Tensor, columns: Tensor, layout: Layout) -> Tensor:
        """(P, U, dim_c + C): the columns with the standardised values behind."""
        return torch.cat([columns, self.values(states, columns, layout)], 2)
