"""Types of what public functions accept. The page on files lists what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Protocol, TypeAlias


class ArrayLike(Protocol):
    """An array, tensor, series or data frame."""

    def __array__(self, *args: Any, **options: Any) -> Any:
        """Return the values."""


class Predicts(Protocol):
    """A model with `predict`, as of Stable-Baselines3, d3rlpy or scikit-learn."""

    @property
    def predict(self) -> Callable[..., Any]:
        """Function from states to actions."""


NumbersLike: TypeAlias = "ArrayLike | Sequence[float]"
"""Numbers, one for each policy."""

PathLike: TypeAlias = "str | os.PathLike[str]"
"""Path of a file or folder."""

PolicyLike: TypeAlias = "Callable[..., Any] | Predicts | ArrayLike | PathLike"
"""A function or module from states to actions, an object with `predict`, actions in every logged state, or a path."""

PoliciesLike: TypeAlias = "Mapping[str, PolicyLike] | Sequence[PolicyLike] | PolicyLike"
"""Policies by name, or a file or folder of them."""

StatesLike: TypeAlias = "ArrayLike | Sequence[Any] | Mapping[str, Any] | Sized | PathLike"
"""(rows, dim_s) states, or a log of which the states are taken: a path, `Transitions`, `Subsets`, a Minari dataset."""

LogLike: TypeAlias = "StatesLike"
"""Transitions: a path, data frame, dictionary of arrays, list of episodes or dataset; or only states."""

ReturnsLike: TypeAlias = "Mapping[str, Any] | ArrayLike | Sequence[Any] | PathLike"
"""Returns, or returns of rollouts, by name, in order or in records; or a file or folder of them."""
