"""Layers of an actor out of named arrays, checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..actor import Layer

Arrays = Mapping[str, Any]  # tensors, or what numpy.asarray takes


def floats(arrays: Arrays, key: str) -> Tensor:
    """Array `key` in float32.

    Raises:
        ValueError: there is none, or it is not of finite floats.
    """
    if key not in arrays:
        raise ValueError(f"no array {key!r}, found {sorted(arrays)}")
    values = arrays[key]
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        plain = array.dtype.kind == "f"
        values = torch.from_numpy(np.array(array, dtype=np.float32)) if plain else array
    elif values.layout != torch.strided or values.is_meta or values.is_quantized:
        raise ValueError(f"{key} must be a dense tensor with values")
    if not isinstance(values, Tensor) or not values.is_floating_point() or not values.isfinite().all():
        raise ValueError(f"{key} must be finite floats, got dtype {values.dtype}")
    return values.detach().float().contiguous()


def layer(arrays: Arrays, name: str, *, separator: str = ".", bias: bool = True) -> Layer:
    """Weight (out, in) and bias (out,) of layer `name`; without `bias`, zeros where there is none."""
    weight_key, bias_key = (f"{name}{separator}{part}" for part in ("weight", "bias"))
    weight = floats(arrays, weight_key)
    if weight.dim() == 2 and not bias and bias_key not in arrays:
        return weight, weight.new_zeros(len(weight))
    offset = floats(arrays, bias_key)
    if weight.dim() != 2 or offset.shape != weight.shape[:1]:
        raise ValueError(
            f"{weight_key} {tuple(weight.shape)} and {bias_key} {tuple(offset.shape)} are no layer, "
            "expected (out, in) and (out,)"
        )
    return weight, offset


def perceptron(arrays: Arrays, names: Iterable[str], *, separator: str = ".", bias: bool = True) -> list[Layer]:
    """The layers `names`, each reading what the one before gives."""
    result: list[Layer] = []
    for name in names:
        result.append(layer(arrays, name, separator=separator, bias=bias))
        reads = result[-1][0].shape[1]
        if len(result) > 1 and reads != len(result[-2][0]):
            raise ValueError(
                f"{name}{separator}weight reads {reads} columns, the layer before has {len(result[-2][0])}"
            )
    return result


def numbered(arrays: Arrays, prefix: str) -> list[str]:
    """Names "prefix0", "prefix2", … of the layers of an `nn.Sequential`, in order.

    Raises:
        ValueError: a layer that is not linear.
    """
    found = {int(m[1]) for key in arrays if (m := re.fullmatch(re.escape(prefix) + r"(\d+)\.\w+", key))}
    names = [f"{prefix}{i}" for i in sorted(found)]
    for name in names:
        weight = arrays.get(f"{name}.weight")
        if weight is None or np.ndim(weight) != 2:
            raise ValueError(f"{name} is no linear layer (layer and batch normalisation are not read)")
    return names
