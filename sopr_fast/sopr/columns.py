"""What the model reads of policies: columns, critic values and features."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import Layout, Policy, check_fit, collect
from ..runtime import distributed
from ..runtime.arrays import as_numbers, fill_masked
from ..runtime.checks import TOO_LARGE
from ..runtime.limits import tile_bytes
from ..runtime.progress import progress_bar
from .subsets import Drawing, Subsets

_MEMORY_TILES = 4  # columns of so many tiles stay in memory
_TILE_BYTES = 256 << 20  # at most
_CRITIC_ROWS = 1 << 16  # (state, action) rows passed to a critic at once

Critic = Callable[[Tensor, Tensor], Any]


def collect_all(
    policies: list[Policy],
    drawn: Drawing | Subsets,
    layout: Layout,
    *,
    more: int = 0,
    shared: bool = False,
) -> Tensor:
    """Return the columns of every policy in every drawn state, (P, U, dim_c + `more`).

    They are kept on disk if they exceed 1 GiB, or a quarter of the free memory.

    Args:
        policies: P policies.
        drawn: U drawn states.
        layout: What the model reads of a policy.
        more: Further columns, left uninitialised.
        shared: Whether the processes of the group, which know the same policies, share them.

    Raises:
        OSError: The disk has no room for them.
        RuntimeError: A policy raised.
        ValueError: A policy returned something else than its layout.
    """
    shape = (len(policies), len(drawn.states), layout.width + more)
    if 4 * np.prod(shape) > _MEMORY_TILES * tile_bytes(_TILE_BYTES):
        columns = _on_disk(shape)
    else:
        columns = torch.empty(shape, dtype=torch.float32, device="cpu")
    out = columns[..., : layout.width]
    with progress_bar(len(columns), "acting", "policy") as bar:
        act = collect_shared if shared else collect
        act(policies, drawn.states, drawn.source, layout, progress=bar.update, out=out)
    return columns


def collect_shared(
    policies: Sequence[Policy],
    states: Tensor,
    source: Tensor,
    layout: Layout,
    *,
    progress: Callable[[int], Any] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the columns of every policy as `collect` does; processes share the policies, and each gets all columns."""
    group, size = distributed.current(), 4 * len(states) * layout.width
    if group.count == 1:
        return collect(policies, states, source, layout, progress=progress, out=out)
    if out is None:
        out = torch.empty(len(policies), len(states), layout.width, dtype=torch.float32, device="cpu")
    at_once = max(group.count, _TILE_BYTES // max(1, size))
    for first in range(0, len(policies), at_once):
        some, into = policies[first : first + at_once], out[first : first + at_once]
        own = group.part(len(some))
        with distributed.alone():
            collect(some[own], states, source, layout, progress=progress, out=into[own])
        into.copy_(group.gather(into[own]))
        if progress is not None:
            progress(len(some) - (own.stop - own.start))  # of other processes
    return out


def _on_disk(shape: tuple[int, ...]) -> Tensor:
    """Return uninitialised float32 in an unnamed file, with its space reserved where the platform can."""
    size = 4 * int(np.prod(shape))
    with tempfile.NamedTemporaryFile(prefix="sopr_fast-columns-") as file:
        if hasattr(os, "posix_fallocate"):  # else a full disk ends the process when it writes a page
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise OSError(
                    f"columns need {size / 2**30:.1f} GiB in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
                    "another folder"
                ) from error
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))


class Tiles:
    """Columns of policies, as many policies at a time as fit into 256 MiB, or a sixteenth of the free memory.

    Policies act at once if all columns fit into four times as much, so that a bad row is found before long work;
    otherwise in turn. Every drawn state is shown once.

    Attributes:
        policies: P policies.
        drawn: The drawn states.
        layout: What the model reads of a policy.
    """

    def __init__(self, policies: list[Policy], drawn: Drawing | Subsets, layout: Layout) -> None:
        self.policies, self.drawn, self.layout = policies, drawn, layout
        check_fit(policies, drawn.states, drawn.source, layout)
        policy_bytes = 4 * len(drawn.states) * layout.width
        size = tile_bytes(_TILE_BYTES)
        self._at_once = max(1, size // policy_bytes)
        self._kept = None
        if len(policies) * policy_bytes <= _MEMORY_TILES * size:
            self._kept = collect_all(policies, drawn, layout)

    def __iter__(self) -> Iterator[slice]:
        return (slice(first, first + self._at_once) for first in range(0, len(self.policies), self._at_once))

    def columns(self, tile: slice) -> Tensor:
        """Return the columns of a tile, (p, U, dim_c).

        Raises:
            RuntimeError: A policy raised.
            ValueError: A policy returned something else than its layout.
        """
        if self._kept is not None:
            return self._kept[tile]
        states, source = self.drawn.states, self.drawn.source
        return collect(self.policies[tile], states, source, self.layout)


def read_features(features: Any, names: Sequence[str]) -> Tensor:
    """Return the features of the named policies, (P, F) float64.

    Args:
        features: Mapping from name to a number or F numbers.
        names: P names.

    Raises:
        TypeError: Features are no mapping, or not numbers.
        ValueError: A policy has none, or its features differ in number, are not finite or are too large.
    """
    if not isinstance(features, Mapping):
        raise TypeError(f"features must map policy names to numbers, got {type(features).__name__}")
    rows: list[np.ndarray] = []
    for name in names:
        if name not in features:
            raise ValueError(f"features hold nothing for policy {name!r}")
        try:
            row = np.atleast_1d(as_numbers(features[name]).astype(np.float64))
        except (TypeError, ValueError) as error:
            raise TypeError(f"features of policy {name!r} must be numbers: {error}") from error
        if row.ndim != 1 or (rows and len(row) != len(rows[0])):
            expected = f"({len(rows[0])},) as policy {names[0]!r}" if rows else "(F,)"
            raise ValueError(f"features of policy {name!r} have shape {row.shape}, expected {expected}")
        if not (np.abs(row) < TOO_LARGE).all():
            raise ValueError(
                f"features of policy {name!r} are not finite or exceed the supported magnitude {TOO_LARGE:g}: "
                f"{row.tolist()}"
            )
        rows.append(row)
    return torch.from_numpy(np.stack(rows))


def features_for(count: int, features: Any, names: Sequence[str]) -> Tensor | None:
    """Return the features, (P, F), that a model of `count` features needs; None for a model without features.

    Raises:
        TypeError: See `read_features`.
        ValueError: See `read_features`; or the model was trained with features and none are given, or the reverse.
    """
    if not count:
        if features is not None:
            raise ValueError("this model was trained without features: give none")
        return None
    if features is None:
        raise ValueError(f"this model was trained with {count} features of each policy: give those of the candidates")
    values = read_features(features, names)
    if values.shape[1] != count:
        raise ValueError(f"policy {names[0]!r} has {values.shape[1]} features, the model was trained with {count}")
    return values


def check_critic(critic: Critic | None) -> None:
    """Raise TypeError if the critic cannot be called."""
    if critic is not None and not callable(critic):
        raise TypeError(f"critic must be callable on (states, actions), got {type(critic).__name__}")


def critic_values(critic: Critic, states: Tensor, actions: Tensor) -> Tensor:
    """Return the critic's values of actions, (N, C) float32.

    Args:
        critic: See `CriticColumns`.
        states: (N, dim_s) states.
        actions: (N, dim_a) actions.

    Raises:
        TypeError: The critic returns something else than numbers.
        ValueError: The critic returns another shape, or values that are not finite.
    """
    parts = []
    for first in range(0, len(states), _CRITIC_ROWS):
        rows = slice(first, first + _CRITIC_ROWS)
        # Copies, since a critic may change its arguments in place, and return the same memory again.
        values = fill_masked(critic(states[rows].clone(), actions[rows].clone()))
        if isinstance(values, np.ndarray):  # torch takes neither negative strides nor foreign byte orders
            values = values.astype(values.dtype.newbyteorder("="))
        try:
            values = torch.as_tensor(values, dtype=torch.float32, device="cpu").detach()
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"the critic must return numbers, got {type(values).__name__}: {error}") from error
        count = len(states[rows])
        if values.dim() not in (1, 2) or values.shape[-1] != count:
            raise ValueError(f"the critic returned shape {tuple(values.shape)}, expected ({count},) or (C, {count})")
        values = values.reshape(-1, count)
        if not values.isfinite().all():
            raise ValueError("the critic returned values that are not finite")
        parts.append(values.T.clone())
    return torch.cat(parts)


@dataclass(frozen=True)
class CriticColumns:
    """Standardised critic values, which join each (state, action) row (beyond the paper).

    Attributes:
        critic: Function from states (N, dim_s) and actions (N, dim_a) to values (N,) or (C, N), arrays or tensors;
            discrete actions are one-hot or probabilities. None after loading: files do not keep it.
        mean: (C,) mean of its values on the rows of the training policies.
        scale: (C,) standard deviation of its values there.
    """

    critic: Critic | None
    mean: Tensor
    scale: Tensor

    @classmethod
    def fill(cls, critic: Critic, states: Tensor, columns: Tensor, layout: Layout, training: int) -> CriticColumns:
        """Write standardised values to the last C columns of all policies and return their scale.

        Args:
            critic: See `CriticColumns`.
            states: (U, dim_s) drawn states.
            columns: (P, U, dim_c + C) columns, changed in place.
            layout: What the model reads of a policy.
            training: Number of training policies, the first ones, which determine mean and scale.

        Raises:
            ValueError: See `critic_values`.
        """
        values = columns[..., layout.width :]
        for into, policy in zip(values, columns, strict=True):
            into.copy_(critic_values(critic, states, policy[:, : layout.action_dim]))

        def over_policies(function: Callable[[Tensor], Tensor]) -> Tensor:
            own = torch.stack([none[0], *(function(each.double()).mean(0) for each in values[:training])])
            return distributed.current().gather(own[1:]).mean(0)

        none = values.new_zeros(1, values.shape[2], dtype=torch.float64)
        mean = over_policies(lambda policy: policy)
        variance = over_policies(lambda policy: (policy - mean).square())
        scale = torch.where(variance > 0, variance.sqrt(), 1.0).float()
        filled = cls(critic, mean.float(), scale)
        values.sub_(filled.mean).div_(filled.scale)
        return filled

    def with_critic(self, critic: Critic | None) -> CriticColumns:
        """Return the same with another critic, if one is given.

        Raises:
            ValueError: Neither has a critic.
        """
        if critic is None and self.critic is None:
            raise ValueError("this model was trained with a critic, which files do not keep: give critic=")
        return self if critic is None else replace(self, critic=critic)

    def append(self, states: Tensor, columns: Tensor, layout: Layout) -> Tensor:
        """Return the columns followed by standardised values, (P, U, dim_c + C).

        Args:
            states: (U, dim_s) drawn states.
            columns: (P, U, dim_c) columns.
            layout: What the model reads of a policy.

        Raises:
            ValueError: See `critic_values`; or the critic returns another C.
        """
        assert self.critic is not None
        values = [critic_values(self.critic, states, policy[:, : layout.action_dim]) for policy in columns]
        if values[0].shape[1] != len(self.mean):
            raise ValueError(
                f"the critic returned {values[0].shape[1]} values a row, the model was trained with {len(self.mean)}"
            )
        return torch.cat([columns, (torch.stack(values) - self.mean) / self.scale], 2)
