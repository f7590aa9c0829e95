"""Transformer encoder layers inside every segment of a ragged batch: both levels of the scoring model."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from .. import native
from . import composed
from .encoder_parameters import EncoderOptions, encoder_shapes
from .library import Fields, by_position, contiguous, current_device, define, longest_first, run_kernel
from .tensor_checks import check_are_tensors, check_arguments, check_dropout, is_checked

_log = logging.getLogger(__name__)
_TILE = 128  # rows


def long_tiles(offsets: Tensor) -> int:
    """Return the argument of `segment_encoder`; the host waits for a GPU.

    Args:
        offsets: (S, K + 1) int32, as there.
    """
    sizes = offsets.diff(dim=1)
    return int(torch.where(sizes > _TILE, sizes.add(_TILE - 1) // _TILE, 0).sum(1).max())


def segment_encoder(
    states: Tensor,  # (U, ds)
    columns: Tensor,  # (P, U, dc)
    rows: Tensor,  # (S, N)
    offsets: Tensor,  # (S, K + 1)
    parameters: Tensor,
    *,
    rng: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Encode every segment of every (policy, subset) with post-norm transformer layers (paper section 3.1).

    Token t of (p, s) is ``[states[rows[s, t]], columns[p, rows[s, t]]]``. Tokens attend only to
    tokens of their segment. The result of a segment is the mean of its tokens, 0 if it is empty.

    Args:
        states: (U, ds) float32, shared by all policies; ds may be 0.
        columns: (P, U, dc) float32.
        rows: (S, N) int32, indices of states; rows of a segment are adjacent.
        offsets: (S, K + 1) int32; segment k of subset s is ``rows[s, offsets[s, k]:offsets[s, k + 1]]``. Ascends
            from 0 to at most N; rows after the last segment are ignored, but must be indices of states too.
        parameters: Concatenated tensors of `encoder_shapes`, flat float32.
        rng: (2,) int64: seed and step. None disables dropout.
        options: Shape and precision of the layers, see `EncoderOptions`.

    Returns:
        (P, S, K, width) float32 if `pool`, else (P, S, N, width) in the order of `rows`, 0 after the last segment.
        Differentiable once in `parameters` and `columns`; the backward pass recomputes the forward pass and keeps only
        its inputs. A GPU uses tensor cores if `width` is 64, heads are 8, 16 or 32 wide and `feedforward` is a multiple
        of 32. There, fp32 means three products in TF32, which are as exact but give NaN where a value is infinite;
        SOPR_FAST_TENSOR_CORES=0 in the environment forbids them. The backward pass uses them if a block may also have
        144 KiB of shared memory in fp32, or 84 KiB in bf16. Its sums depend on how many blocks a GPU runs at a time,
        but not on their order. Elsewhere, and in code of torch.compile, torch and the other segment operators compute
        what is differentiated.

    Equivalent to::

        x = torch.cat([states[rows[s, a:b]], columns[p, rows[s, a:b]]], -1)  # a, b = offsets[s, k : k + 2]
        x = torch.relu(x @ weight.T + bias)                                  # if project
        out[p, s, k] = encoder(x[None])[0].mean(0)                           # torch.nn.TransformerEncoder
    """
    arguments = (states, columns, rows, offsets, parameters, rng, *EncoderOptions(**options))
    check_are_tensors(dict(zip(_ARGUMENTS, arguments, strict=True)), _SHAPES)
    differentiates = torch.is_grad_enabled() and (columns.requires_grad or parameters.requires_grad)
    if native.on_gpu(columns.device) and differentiates and not _tensor_cores_differentiate(*arguments):
        return composed.segment_encoder(states, columns, rows, offsets, parameters, rng=rng, **options)
    return _segment_encoder(*arguments)


_SHAPES = {
    "states": "states_count, state_width",
    "columns": "policies, states_count, column_width",
    "rows": "subsets, subset_size",
    "offsets": "subsets, clusters + 1",
    "parameters": "parameter_count",
    "rng": "2",
}
_ARGUMENTS = [*_SHAPES, *EncoderOptions._fields]
# What only some kernels and passes need.
_OTHERS: Fields = dict.fromkeys(("order", "out", "workspace", "tape", "blocks"))
_OTHERS |= dict.fromkeys(("longest", "layer", "site", "kept"), 0) | {"block_count": 1}
_fresh = functools.partial(torch.empty, dtype=torch.float32, device="cpu")


def fields_of(*arguments: Any) -> Fields:
    """Return the fields of the kernels from the arguments of the operator, those of a CPU with the segments' order."""
    fields = check_arguments(_SHAPES, dict(zip(_ARGUMENTS, arguments, strict=True)))
    return with_segments(contiguous(fields))


def with_segments(fields: Fields) -> Fields:
    """Add the fields of the kernels that are neither arguments, sizes nor results."""
    fields = _OTHERS | fields | {"bf16": fields["precision"] == "bf16"}
    if not native.on_gpu(fields["rows"].device):
        sizes = np.diff(fields["offsets"].numpy(), axis=1).ravel()
        fields |= {"order": longest_first(sizes), "longest": int(sizes.max(initial=0))}
    return fields


def run_on_cpu(kernel: str, fields: Fields, memory: Callable[[int], Tensor] = _fresh) -> None:
    """Run the kernel of a pass; `memory` makes a workspace of so many floats."""
    threads, values = native.threads(), by_position(native._cpu, "segment_encoder", fields)
    floats = native._cpu.segment_encoder_workspace(kernel.endswith("backward"), threads, *values)
    run_kernel(kernel, fields | {"threads": threads, "workspace": memory(floats)})


def tape_size(fields: Fields) -> int:
    """Return the floats that the activations of a policy take."""
    return native._cpu.segment_encoder_tape(*by_position(native._cpu, "segment_encoder", fields))


def _run(kernel: str, fields: Fields) -> None:
    fields, rows = with_segments(fields), fields["rows"]
    if not native.on_gpu(rows.device):
        run_on_cpu(kernel, fields)
        return
    values = by_position(native._cuda, "segment_encoder", fields)
    with current_device(rows.device):
        if kernel.endswith("backward"):
            if not native._cuda.segment_encoder_backward_uses_tensor_cores(*values):
                raise NotImplementedError("this operator has no gradient of this shape: call ops.segment_encoder")
            floats = native._cuda.segment_encoder_backward_workspace(fields["columns_grad"], *values)
        else:
            floats = native._cuda.segment_encoder_workspace(*values)
            if fields["bf16"] and not native._cuda.segment_encoder_uses_tensor_cores(*values):
                _log.info("segment_encoder: bf16 is computed in fp32, since tensor cores do not take this shape")
    run_kernel(kernel, fields | {"workspace": fields["states"].new_empty(floats)})


def _check_sizes(fields: Fields) -> None:
    width, heads, layers = fields["width"], fields["heads"], fields["layers"]
    inputs = fields["state_width"] + fields["column_width"]
    for name, least in [("width", 1), ("layers", 0), ("heads", 1), ("feedforward", 1)]:
        if fields[name] < least:
            raise ValueError(f"{name} must be at least {least}, got {fields[name]}")
    if width % heads:
        raise ValueError(f"heads must divide the width, got {heads} heads for width {width}")
    if fields["precision"] not in ("fp32", "bf16"):
        raise ValueError(f"precision must be 'fp32' or 'bf16', got {fields['precision']!r}")
    if inputs < 1:
        raise ValueError("states and columns must have at least one column between them")
    if not fields["project"] and inputs != width:
        raise ValueError(f"without project, the number of inputs, {inputs}, must equal the width, {width}")
    count = sum(map(math.prod, encoder_shapes(inputs, width, layers, fields["feedforward"], fields["project"])))
    if fields["parameters"].shape != (count,):
        raise ValueError(f"parameters must have shape ({count}), got {tuple(fields['parameters'].shape)}")
    last = max(0, layers - 1)
    check_dropout(fields["dropout"], fields["rng"], level=fields["level"], layer=last, heads=heads)
    if fields["clusters"] < 0:
        raise ValueError("offsets must have at least one column")


def _check_rows(fields: Fields) -> None:
    rows, offsets = fields["rows"], fields["offsets"]
    if not is_checked(rows):
        return
    ends, row, count = offsets.cpu().numpy(), rows.cpu().numpy(), fields["states_count"]
    wrong = (ends[:, 0] != 0) | (ends[:, -1] > row.shape[1]) | (ends[:, 1:] < ends[:, :-1]).any(1)
    if wrong.any():
        s = int(wrong.argmax())
        raise ValueError(f"offsets[{s}] must ascend from 0 to at most {row.shape[1]}, the number of rows")
    if row.size and (row.min() < 0 or row.max() >= count):
        raise ValueError(f"rows must be in [0, {count}), the range of states, got {row.min()} … {row.max()}")


def new_out(fields: Fields) -> tuple[Tensor]:
    """Return the result of a forward pass, to be filled."""
    tokens = fields["clusters" if fields["pool"] else "subset_size"]
    return (fields["columns"].new_empty(fields["policies"], fields["subsets"], tokens, fields["width"]),)


def _new_gradients(fields: Fields) -> tuple[Tensor, Tensor]:
    parameters, columns = fields["parameters"], fields["columns"]
    return torch.empty_like(parameters), torch.empty_like(columns) if fields["columns_grad"] else columns.new_empty(0)


def _check_gradient(fields: Fields) -> None:
    _check_sizes(fields)
    grad_out, tokens = fields["grad_out"], fields["clusters" if fields["pool"] else "subset_size"]
    if grad_out.shape[2] != tokens:
        raise ValueError(f"grad_out must have shape (P, S, {tokens}, E), got {tuple(grad_out.shape)}")


_TENSORS = "Tensor states, Tensor columns, Tensor rows, Tensor offsets, Tensor parameters, Tensor? rng"
_OPTIONS = ", ".join(f"{kind.__name__} {name}" for name, kind in get_type_hints(EncoderOptions).items())

_segment_encoder_backward = define(
    f"segment_encoder_backward(Tensor grad_out, bool columns_grad, {_TENSORS}, {_OPTIONS})"
    " -> (Tensor grad_parameters, Tensor grad_columns)",
    {**_SHAPES, "grad_out": "policies, subsets, tokens, width"},
    check_sizes=_check_gradient,
    check=_check_rows,
    new=_new_gradients,
    run=_run,
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    if ctx.needs_input_grad[0]:
        raise NotImplementedError("segment_encoder has no gradient of states; pass states.detach()")
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    columns_grad, arguments = ctx.needs_input_grad[1], (*ctx.saved_tensors, *ctx.options)
    grad_parameters, grad_columns = _segment_encoder_backward(grad_out, columns_grad, *arguments)
    nothing = [None] * (len(ctx.options) + 1)
    return None, grad_columns if columns_grad else None, None, None, grad_parameters, *nothing


def _tensor_cores_differentiate(*arguments: Any) -> bool:
    """Return whether a GPU has a kernel for the backward pass, or raise for sizes that fit no kernel."""
    fields = check_arguments(_SHAPES, dict(zip(_ARGUMENTS, arguments, strict=True)))
    _check_sizes(fields)
    if torch.compiler.is_compiling():  # torch cannot trace what asks
        return False
    with current_device(arguments[0].device):
        shape = with_segments(fields) | dict.fromkeys(_SHAPES)  # no addresses: fake tensors have none
        values = by_position(native._cuda, "segment_encoder", shape)
        return native._cuda.segment_encoder_backward_uses_tensor_cores(*values)


_segment_encoder = define(
    f"segment_encoder({_TENSORS}, {_OPTIONS}) -> Tensor out",
    _SHAPES,
    check_sizes=_check_sizes,
    check=_check_rows,
    new=new_out,
    run=_run,
    backward=_backward,
    setup_context=_setup_context,
)
