"""Checks of the operators' arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

_DTYPES = {
    **dict.fromkeys(("offsets", "rows", "labels", "steps_done"), torch.int32),
    **dict.fromkeys(("rng", "seeds"), torch.int64),
    "inertia": torch.float64,
}


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of the tensors of a name."""
    return _DTYPES.get(name, torch.float32)


def shape_of(shape: str, sizes: Mapping[Any, Any]) -> list[Any]:
    """Return the dimensions of a shape such as "segments + 1, width", as numbers where their sizes are known."""
    return [int(d) if d.isdecimal() else sizes.get(d, d) for d in shape.split(", ")]


def check_are_tensors(arguments: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise TypeError if an argument of these names is neither a tensor nor None."""
    for name in names:
        if not isinstance(arguments.get(name), Tensor | None):
            raise TypeError(f"{name} must be a tensor, got {type(arguments[name]).__name__}")


def check_arguments(shapes: Mapping[str, str], arguments: Mapping[str, Any], *, dtypes: bool = True) -> dict[str, Any]:
    """Return arguments and sizes; TypeError or ValueError for a tensor of another shape, or dtype if these count.

    None is no tensor. Shapes are dimensions, such as "segments + 1, width". A word has one size in all tensors, that of
    the argument of its name if there is one; a number is a size.
    """
    fields = dict(arguments)
    for name, shape in shapes.items():
        value = arguments.get(name)
        if value is None:
            continue
        if dtypes and value.dtype != (dtype := dtype_of(name)):
            raise TypeError(f"{name} must be {dtype}, got {value.dtype}")
        dimensions, actual = shape_of(shape, fields), value.shape
        if len(dimensions) != len(actual) or any(
            not isinstance(d, str) and d != size for d, size in zip(dimensions, actual, strict=True)
        ):
            raise ValueError(f"{name} must have shape ({', '.join(map(str, dimensions))}), got {tuple(actual)}")
        for d, size in zip(dimensions, actual, strict=True):
            if isinstance(d, str):
                word = d.removesuffix(" + 1")
                count = size - int(word != d)  # sizes may be symbols, which take no bool
                fields[word], fields[f"{word} + 1"] = count, count + 1
    return fields


def check_tensor(name: str, value: Any, shape: str) -> Tensor:
    """Return `value`, contiguous; raise as `check_arguments` does, or TypeError if it is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    check_arguments({name: shape}, {name: value})
    return value.contiguous()


def is_checked(values: Tensor) -> bool:
    """Return whether to look at values: on the CPU, and with SOPR_FAST_CUDA_DEBUG=1 on a GPU."""
    return values.device.type == "cpu" or os.environ.get("SOPR_FAST_CUDA_DEBUG", "0") != "0"


def check_offsets(fields: Mapping[str, Any]) -> None:
    """Raise ValueError unless consecutive segments cover all `tokens`, if offsets are checked at all."""
    offsets, total = fields["offsets"], fields["tokens"]
    if not is_checked(offsets):
        return
    ends = offsets.cpu().numpy()
    if len(ends) < 1 or ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"offsets must ascend from 0 to {total}, the number of rows")


def common_device(operator: str, *arguments: Any) -> torch.device:
    """Return the device of all tensors among the arguments; raise ValueError if they are on several."""
    devices = {argument.device for argument in arguments if isinstance(argument, Tensor)}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{operator}: tensors are on {names}; move all of them to one device")
    (device,) = devices
    return device


def check_reverse_mode(operator: str, *arguments: Any) -> None:
    """Raise NotImplementedError in transforms of `torch.func`, and in forward mode, whose tangents torch would drop."""
    if torch.compiler.is_compiling():
        return
    if torch._C._functorch.peek_interpreter_stack() is not None or any(
        isinstance(argument, Tensor) and unpack_dual(argument).tangent is not None for argument in arguments
    ):
        raise NotImplementedError(
            f"{operator} has no derivative in forward mode and by torch.func; use torch.autograd.grad or backward()"
        )


def check_dropout(
    probability: float, rng: Tensor | None, *, level: int, layer: int, site: int = 0, heads: int = 1
) -> bool:
    """Return whether anything is dropped; raise for an argument that the counters of csrc/philox.h cannot hold."""
    if level not in (0, 1):
        raise ValueError(f"level must be 0 or 1, got {level}")
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {probability}")
    if rng is None or probability == 0:
        return False
    check_tensor("rng", rng, "2")
    for name, value, most in (("layer", layer, 255), ("site", site, 3), ("heads", heads, 4096)):
        if not 0 <= value <= most:
            raise ValueError(f"with dropout, {name} must be between 0 and {most}, got {value}")
    return True


def check_problems(fields: Mapping[str, Any]) -> None:
    """Raise ValueError unless the points have columns, int32 numbers their rows, and there are as many as clusters."""
    count, clusters = fields["count"], fields["clusters"]
    if count >= 2**31:
        raise ValueError(f"points must have fewer than 2^31 rows a problem, got {count}; pass fewer")
    if fields["width"] < 1:
        raise ValueError(f"points must have at least one column, got shape {tuple(fields['points'].shape)}")
    if not 1 <= clusters <= count:
        raise ValueError(f"k must be between 1 and {count}, the number of points of a problem, got {clusters}")


def check_finite(name: str, values: Tensor, row_name: str) -> None:
    """Raise ValueError, naming the place, if an element of `values` (B, rows, D) is NaN or infinite."""
    if not values.numel() or all(bound.isfinite() for bound in values.aminmax()):
        return
    problem, row, column = (~values.isfinite()).nonzero()[0].tolist()
    value = values[problem, row, column].item()
    raise ValueError(f"{name} must be finite; problem {problem}, {row_name} {row}, column {column} is {value}")
