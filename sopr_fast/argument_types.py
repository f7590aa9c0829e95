"""Types of what public functions accept. The page on files lists what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, TypeAlias

from numpy.typing import ArrayLike

PathLike: TypeAlias = "str | os.PathLike[str]"
"""Path of a file or folder."""

PolicyLike: TypeAlias = "Callable[..., Any] | ArrayLike | PathLike | Any"
"""A function or module from states to actions, an object with `predict`, actions in every logged state, or a path."""

PoliciesLike: TypeAlias = "Mapping[str, PolicyLike] | Sequence[PolicyLike] | PolicyLike"
"""Policies by name, or a file or folder of them."""

LogLike: TypeAlias = "ArrayLike | Sequence[Any] | Mapping[str, Any] | Sized | PathLike"
"""Transitions or (rows, dim_s) states: a path, frame, dictionary of arrays, list of episodes or dataset."""

ReturnsLike: TypeAlias = "Mapping[str, Any] | ArrayLike | Sequence[Any] | PathLike"
"""Returns, or returns of rollouts, by name or in order; or a file or folder of them."""
