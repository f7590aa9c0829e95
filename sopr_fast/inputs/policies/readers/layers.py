"""Layers of an actor from named arrays, with checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....runtime.warn import warn
from ...logs.keys import list_names
from ..actor import Layer

Arrays = Mapping[str, Any]  # tensors, or values that numpy.asarray accepts
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SCALING = re.compile(
    r"(obs?|observations?|states?|inputs?|actions?)_?(rms|means?|stds?|vars?|norm\w*|stat(s|istics)|scal\w+|bias|low|high)"
    r"|max_action|running_mean\w*|(vec_?)?normali[sz]\w+"
)


def unwrap(weights: Any) -> Any:
    """Return the state dict in a checkpoint that keeps it under a usual name, else the content itself."""
    if isinstance(weights, dict):
        return next((weights[key] for key in _WRAPPERS if isinstance(weights.get(key), dict)), weights)
    return weights


def warn_of_scaling(name: str, contents: Mapping[Any, Any]) -> None:
    """Warn of what a file holds beside the layers of policy `name` that seems to scale its states or actions."""
    keys = [
        str(key)
        for key, value in contents.items()
        if _SCALING.fullmatch(str(key).lower()) and not isinstance(value, bool | str | None)
    ]
    if keys:
        warn(
            f"policy {name!r}: {list_names(keys)} beside its layers are not read; if they scale states or actions, "
            "save the whole policy as TorchScript or ONNX instead"
        )


def floats(arrays: Arrays, key: str) -> Tensor:
    """Return array `key` in float32.

    Raises:
        ValueError: There is no such array, or it is not of finite floats.
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
    elif values.numel() * values.element_size() > values.untyped_storage().nbytes():
        raise ValueError(f"{key} is a tensor of repeated values; save its .contiguous() copy")
    if not isinstance(values, Tensor) or not values.is_floating_point() or not values.isfinite().all():
        raise ValueError(f"{key} must be finite floats, got dtype {values.dtype}")
    return values.detach().float().contiguous()


def layer(arrays: Arrays, name: str, *, separator: str = ".", bias: bool = True) -> Layer:
    """Return weight (out, in) and bias (out,) of a layer.

    Args:
        arrays: Arrays by name.
        name: Name of the layer.
        separator: Text between the name of the layer and "weight" or "bias".
        bias: Whether there must be a bias; if False, a missing one is zeros.

    Raises:
        ValueError: An array is missing, not of finite floats, or of a wrong shape.
    """
    weight_key, bias_key = (f"{name}{separator}{part}" for part in ("weight", "bias"))
    weight = floats(arrays, weight_key)
    if weight.numel() == 0:
        raise ValueError(f"{weight_key} has shape {tuple(weight.shape)}, which holds no weights")
    if weight.dim() == 2 and not bias and bias_key not in arrays:
        return weight, weight.new_zeros(len(weight))
    offset = floats(arrays, bias_key)
    if weight.dim() != 2 or offset.shape != weight.shape[:1]:
        raise ValueError(
            f"{weight_key} {tuple(weight.shape)} and {bias_key} {tuple(offset.shape)} are not a layer, "
            "expected (out, in) and (out,)"
        )
    return weight, offset


def perceptron(arrays: Arrays, names: Iterable[str], *, separator: str = ".", bias: bool = True) -> list[Layer]:
    """Return the layers `names`, each of which reads the output of the one before; see `layer`.

    Raises:
        ValueError: See `layer`; or the width of a layer does not fit the one before.
    """
    result: list[Layer] = []
    for name in names:
        result.append(layer(arrays, name, separator=separator, bias=bias))
        reads = result[-1][0].shape[1]
        if len(result) > 1 and reads != len(result[-2][0]):
            raise ValueError(
                f"{name}{separator}weight reads {reads} values, the layer before gives {len(result[-2][0])}"
            )
    return result


def numbered(arrays: Arrays, prefix: str) -> list[str]:
    """Return the names "prefix0", "prefix2", … of the layers of an `nn.Sequential`, in order.

    Raises:
        ValueError: A layer is not linear.
    """
    numbers = {int(m[1]) for key in arrays if (m := re.fullmatch(re.escape(prefix) + r"(\d{1,9})\.\w+", key))}
    names = [f"{prefix}{i}" for i in sorted(numbers)]
    for name in names:
        weight = arrays.get(f"{name}.weight")
        if weight is None or np.ndim(weight) != 2:
            raise ValueError(f"{name} is not a linear layer (layer and batch normalisation are not read)")
    return names
