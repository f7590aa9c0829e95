"""Layers of an actor from named arrays, with checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..actor import Layer

Arrays = Mapping[str, Any]  # tensors, or values that numpy.asarray accepts


def floats(arrays: Arrays, key: str) -> Tensor:
    """Return array `key` in float32.

    Raises:
        ValueError: It is not of finite floats.
    """
    values = arrays[key]
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        values = torch.from_numpy(array.astype(np.float32)) if array.dtype.kind == "f" else array
    if not isinstance(values, Tensor) or not values.is_floating_point() or not values.isfinite().all():
        raise ValueError(f"{key} must be finite floats, got dtype {values.dtype}")
    return values.detach().float().contiguous()


def layer(arrays: Arrays, name: str) -> Layer:
    """Return weight (out, in) and bias (out,) of a layer, zeros if there is none.

    Raises:
        ValueError: An array is not of finite floats, or of a wrong shape.
    """
    weight_key, bias_key = f"{name}.weight", f"{name}.bias"
    weight = floats(arrays, weight_key)
    bias = floats(arrays, bias_key) if bias_key in arrays else weight.new_zeros(len(weight))
    if weight.numel() == 0 or weight.dim() != 2 or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{weight_key} {tuple(weight.shape)} and {bias_key} {tuple(bias.shape)} are not a layer, "
            "expected (out, in) and (out,)"
        )
    return weight, bias


def perceptron(arrays: Arrays, names: Iterable[str]) -> list[Layer]:
    """Return the layers `names`, each of which reads the output of the one before; see `layer`.

    Raises:
        ValueError: See `layer`; or the width of a layer does not fit the one before.
    """
    result: list[Layer] = []
    for name in names:
        result.append(layer(arrays, name))
        reads = result[-1][0].shape[1]
        if len(result) > 1 and reads != len(result[-2][0]):
            raise ValueError(f"{name}.weight reads {reads} values, the layer before gives {len(result[-2][0])}")
    return result
