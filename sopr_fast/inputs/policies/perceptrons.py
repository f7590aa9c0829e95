"""Layers of multilayer perceptrons among named arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .actor import Layer
from .output import to_array

Arrays = Mapping[str, Any]  # tensors, or values that numpy.asarray accepts
_MOST_ARRAYS, _LONGEST_NAME = 10_000, 400  # a file that repeats long names in long ones would fill the memory


def flatten(content: Any) -> dict[str, Any]:
    """Return the values in nested mappings by dotted names, without states of optimisers.

    Slashes in names become dots. Of a tuple or list, the first item is read.
    """
    result: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            if "param_groups" not in value:
                for key, item in value.items():
                    add(f"{prefix}{key}.".replace("/", "."), item)
        elif prefix:
            result[prefix[:-1]] = value
        if len(prefix) > _LONGEST_NAME or len(result) > _MOST_ARRAYS:
            raise ValueError(f"more than {_MOST_ARRAYS:,} values, or one whose name is longer than {_LONGEST_NAME}")

    add("", content[0] if isinstance(content, tuple | list) and content else content)
    return result


def layer_names(arrays: Arrays, pattern: str, first: int = 0, step: int = 2) -> list[str]:
    """Return the layers named by a pattern with {} for the numbers `first`, `first + step`, …, up to a missing one."""
    names = (pattern.format(number) for number in itertools.count(first, step))
    return [*itertools.takewhile(lambda name: f"{name}.weight" in arrays, names)]


def finite(arrays: Arrays, key: str) -> np.ndarray:
    """Return array `key`, or raise ValueError if it is not of finite floats."""
    values = to_array(arrays[key])
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        hint = (
            "; if training diverged, leave the file out, in a folder by skip=True" if values.dtype.kind == "f" else ""
        )
        raise ValueError(f"{key} must be finite floats, got {values.dtype}{hint}")
    return np.array(values, order="C")


def floats(arrays: Arrays, key: str) -> Tensor:
    """Return array `key` in float32, or raise ValueError if it is not of finite floats."""
    return torch.from_numpy(finite(arrays, key).astype(np.float32))


def layer(arrays: Arrays, name: str) -> Layer:
    """Return weight (out, in) and bias (out,) of a layer, zeros without one, or raise ValueError if they do not fit."""
    weight_key, bias_key = f"{name}.weight", f"{name}.bias"
    weight = floats(arrays, weight_key)
    bias = floats(arrays, bias_key) if bias_key in arrays else weight.new_zeros(len(weight))
    if weight.dim() != 2 or weight.numel() == 0 or bias.shape != weight.shape[:1]:
        shapes = f"{weight_key} {tuple(weight.shape)} and {bias_key} {tuple(bias.shape)}"
        raise ValueError(f"{shapes} are not a layer, expected (out, in) and (out,)")
    return weight, bias


def perceptron(arrays: Arrays, names: Iterable[str]) -> list[Layer]:
    """Return the layers, each of which reads the output of the one before, or raise ValueError if widths do not fit."""
    result: list[Layer] = []
    for name in names:
        result.append(layer(arrays, name))
        reads = result[-1][0].shape[1]
        if len(result) > 1 and reads != len(result[-2][0]):
            raise ValueError(f"{name}.weight reads {reads} values, the layer before gives {len(result[-2][0])}")
    return result
