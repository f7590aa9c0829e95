"""Transformer encoder layers inside every segment of a ragged batch: both levels of the scoring model."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from .. import native
from . import composed
from .encoder_parameters import EncoderOptions, encoder_shapes
from .library import by_position, call, call_cpu, contiguous, current_device, define, differentiable_once, longest_first
from .tensor_checks import check_are_tensors, check_arguments, check_dropout, common_device, is_checked

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
    width: int,
    layers: int,
    heads: int,
    feedforward: int,
    project: bool = True,
    pool: bool = True,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    level: int = 0,
    segment_base: int = 0,
    precision: str = "fp32",
    long_tiles: int = -1,
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
        width: Width E of the tokens.
        layers: Number of layers, as in torch.nn.TransformerEncoderLayer with ReLU, norm after, eps 1e-5.
        heads: Attention heads; must divide `width`.
        feedforward: Width of the feed-forward block.
        project: Apply a linear map and ReLU to the tokens first; otherwise ds + dc must equal `width`.
        pool: Return means of segments instead of tokens.
        dropout: Probability of dropping a value, in at most 256 layers of at most 4096 heads.
        rng: (2,) int64: seed and step. None disables dropout.
        level: Level of the encoder, 0 or 1, which selects other dropout masks; see csrc/philox.h.
        segment_base: Number of the first segment; segment (p, s, k) has number
            ``segment_base + (p * S + s) * K + k``.
        precision: ``"fp32"``, or ``"bf16"`` for the operands of the layers' matrix products, forward and backward;
            sums, residuals, norms and softmax stay in float32. bf16 is computed in fp32 without AVX512-BF16 and with
            heads of odd width; on a GPU, where tensor cores are not used.
        long_tiles: The most tiles of 128 rows that longer segments of a subset fill, see `long_tiles`: a GPU then
            launches no more kernels than they need. Unknown by default; too small a number loses segments.

    Returns:
        (P, S, K, width) float32 if `pool`, else (P, S, N, width) in the order of `rows`, 0 after the last segment.
        Differentiable once in `parameters` and `columns`; the backward pass recomputes the forward pass and keeps only
        its inputs. A GPU uses tensor cores if `width` is 64, heads are 8, 16 or 32 wide and `feedforward` is a multiple
        of 32. There, fp32 means three products in TF32, which are as exact but give NaN where a value is infinite;
        SOPR_FAST_TENSOR_CORES=0 in the environment forbids them. The backward pass does likewise, if a block may have
        144 KiB of shared memory in fp32 or 84 KiB in bf16; elsewhere, and in code of torch.compile, it runs in torch's
        operators and the other segment operators. Its sums depend on how many blocks a GPU runs at a time, but not on
        their order.

    Raises:
        NotImplementedError: `states` requires a gradient, or a second derivative or one in forward mode is requested.
        TypeError: An argument has another dtype.
        ValueError: An argument has another shape or is out of range, including (on the CPU) rows and offsets.

    Equivalent to::

        x = torch.cat([states[rows[s, a:b]], columns[p, rows[s, a:b]]], -1)  # a, b = offsets[s, k : k + 2]
        x = torch.relu(x @ weight.T + bias)                                  # if project
        out[p, s, k] = encoder(x[None])[0].mean(0)                           # torch.nn.TransformerEncoder
    """
    options = EncoderOptions(
        width, layers, heads, feedforward, project, pool, dropout, level, segment_base, precision, long_tiles
    )
    tensors = (states, columns, rows, offsets, parameters)
    check_are_tensors(dict(zip(_SHAPES, tensors, strict=False)), [*_SHAPES][: len(tensors)])
    device = common_device("segment_encoder", *tensors, rng)
    if torch.is_grad_enabled() and states.requires_grad:
        raise NotImplementedError("segment_encoder has no gradient of states; pass states.detach()")
    needs_gradients = torch.is_grad_enabled() and (columns.requires_grad or parameters.requires_grad)
    if needs_gradients and device.type == "cuda" and torch.compiler.is_compiling():  # cannot trace `_backward` there
        check_arguments(_SHAPES, dict(zip(_SHAPES, (*tensors, rng), strict=True)))
        _check_sizes(*tensors, rng, *options)
        return composed.segment_encoder(*tensors, rng=rng, **options._asdict())
    return _segment_encoder(*tensors, rng, *options)


def _check_sizes(*arguments: Any) -> None:
    (states, columns, _, offsets, parameters, rng), options = arguments[:6], EncoderOptions(*arguments[6:])
    inputs = states.shape[1] + columns.shape[2]
    for name, least in [("width", 1), ("layers", 0), ("heads", 1), ("feedforward", 1)]:
        value = getattr(options, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if options.width % options.heads:
        raise ValueError(f"heads must divide the width, got {options.heads} heads for width {options.width}")
    if options.precision not in ("fp32", "bf16"):
        raise ValueError(f"precision must be 'fp32' or 'bf16', got {options.precision!r}")
    if inputs < 1:
        raise ValueError("states and columns must have at least one column between them")
    if not options.project and inputs != options.width:
        raise ValueError(f"without project, the number of inputs, {inputs}, must equal the width, {options.width}")
    shapes = encoder_shapes(inputs, options.width, options.layers, options.feedforward, options.project)
    count = sum(map(math.prod, shapes))
    if len(parameters) != count:
        raise ValueError(f"parameters must have shape ({count}), got {tuple(parameters.shape)}")
    last = max(0, options.layers - 1)
    check_dropout(options.dropout, rng, level=options.level, layer=last, heads=options.heads)
    if offsets.shape[1] < 1:
        raise ValueError("offsets must have at least one column")


def _check_rows(states: Tensor, columns: Tensor, rows: Tensor, offsets: Tensor, *_: Any) -> None:
    if not is_checked(rows):
        return
    ends, row, count = offsets.cpu().numpy(), rows.cpu().numpy(), len(states)
    wrong = (ends[:, 0] != 0) | (ends[:, -1] > row.shape[1]) | (ends[:, 1:] < ends[:, :-1]).any(1)
    if wrong.any():
        s = int(wrong.argmax())
        raise ValueError(f"offsets[{s}] must ascend from 0 to at most {row.shape[1]}, the number of rows")
    if row.size and (row.min() < 0 or row.max() >= count):
        raise ValueError(f"rows must be in [0, {count}), the range of states, got {row.min()} … {row.max()}")


def _fields(tensors: tuple[Any, ...], options: EncoderOptions, **more: Any) -> dict[str, Any]:
    """Return the arguments of the kernels, with these instead of defaults."""
    states, columns, rows, offsets, *_ = tensors
    fields = {
        **dict(zip(_SHAPES, tensors, strict=True)),
        **options._asdict(),
        "policies": len(columns),
        "subsets": len(rows),
        "states_count": len(states),
        "state_width": states.shape[1],
        "column_width": columns.shape[2],
        "subset_size": rows.shape[1],
        "clusters": offsets.shape[1] - 1,
        "bf16": options.precision == "bf16",
        **dict.fromkeys(("order", "out", "workspace", "tape", "blocks")),
        **dict.fromkeys(("longest", "layer", "site", "kept"), 0),
        "block_count": 1,
    }
    del fields["precision"]
    return fields | more


_fresh = functools.partial(torch.empty, dtype=torch.float32, device="cpu")


def run_on_cpu(
    tensors: tuple[Any, ...],
    options: EncoderOptions,
    fields: Mapping[str, Any],
    *,
    memory: Callable[[int], Tensor] = _fresh,
    **gradients: Any,
) -> None:
    """Run the kernel of the forward pass or, with gradients, that of the backward pass, on the operator's arguments.

    `fields` are further arguments of the kernel, see `cpu_fields`; `memory` makes a workspace of so many floats.
    """
    arguments = _fields(tensors, options, **fields)
    threads, values = native.threads(), by_position(native._cpu, "segment_encoder", arguments)
    arguments["workspace"] = memory(native._cpu.segment_encoder_workspace(bool(gradients), threads, *values))
    call_cpu("segment_encoder_backward" if gradients else "segment_encoder", threads=threads, **arguments, **gradients)


def cpu_fields(offsets: Tensor) -> dict[str, Any]:
    """Return what CPU kernels know of the segments besides their offsets."""
    sizes = np.diff(offsets.numpy(), axis=1).ravel()
    return {"order": longest_first(sizes), "longest": int(sizes.max(initial=0))}


def tape_size(tensors: tuple[Any, ...], options: EncoderOptions, fields: Mapping[str, Any]) -> int:
    """Return the floats that the activations of a policy take."""
    arguments = _fields(tensors, options, **fields)
    return native._cpu.segment_encoder_tape(*by_position(native._cpu, "segment_encoder", arguments))


def _forward(*arguments: Any) -> Tensor:
    tensors, options = contiguous(*arguments[:6]), EncoderOptions(*arguments[6:])
    out = fake(*arguments)
    run_on_cpu(tensors, options, {**cpu_fields(tensors[3]), "out": out})
    return out


def _forward_cuda(*arguments: Any) -> Tensor:
    tensors, options = contiguous(*arguments[:6]), EncoderOptions(*arguments[6:])
    out = fake(*arguments)
    fields = _fields(tensors, options, out=out)
    values = by_position(native._cuda, "segment_encoder", fields)
    with current_device(out.device):
        if options.precision == "bf16" and not native._cuda.segment_encoder_uses_tensor_cores(*values):
            _log.info("segment_encoder: bf16 is computed in fp32, since tensor cores do not take this shape")
        fields["workspace"] = out.new_empty(native._cuda.segment_encoder_workspace(*values))
    call("segment_encoder", out.device, **fields)
    return out


def fake(*arguments: Any) -> Tensor:
    (_, columns, rows, offsets), options = arguments[:4], EncoderOptions(*arguments[6:])
    tokens = offsets.shape[1] - 1 if options.pool else rows.shape[1]
    return columns.new_empty(columns.shape[0], rows.shape[0], tokens, options.width)


def _backward_kernel(grad_out: Tensor, columns_grad: bool, *arguments: Any) -> tuple[Tensor, Tensor]:
    grad_out, *tensors = contiguous(grad_out, *arguments[:6])
    grad_parameters, grad_columns = _fake_backward(grad_out, columns_grad, *tensors)
    run_on_cpu(
        tuple(tensors),
        EncoderOptions(*arguments[6:]),
        cpu_fields(tensors[3]),
        grad_out=grad_out,
        grad_parameters=grad_parameters,
        grad_columns=grad_columns if columns_grad else None,
    )
    return grad_parameters, grad_columns


def _backward_cuda(grad_out: Tensor, columns_grad: bool, *arguments: Any) -> tuple[Tensor, Tensor]:
    grad_out, *tensors = contiguous(grad_out, *arguments[:6])
    fields = _fields(tuple(tensors), EncoderOptions(*arguments[6:]))
    with current_device(grad_out.device):
        floats = native._cuda.segment_encoder_backward_workspace(
            columns_grad, *by_position(native._cuda, "segment_encoder", fields)
        )
    grad_parameters, grad_columns = _fake_backward(grad_out, columns_grad, *tensors)
    call(
        "segment_encoder_backward",
        grad_out.device,
        **fields | {"workspace": grad_out.new_empty(floats)},
        grad_out=grad_out,
        grad_parameters=grad_parameters,
        grad_columns=grad_columns if columns_grad else None,
    )
    return grad_parameters, grad_columns


def _tensor_cores_differentiate(tensors: tuple[Any, ...], options: EncoderOptions) -> bool:
    shape = _fields(tensors, options) | dict.fromkeys(_SHAPES)  # no addresses: while torch traces, there are none
    with current_device(tensors[0].device):
        values = by_position(native._cuda, "segment_encoder", shape)
        return native._cuda.segment_encoder_backward_uses_tensor_cores(*values)


def _fake_backward(grad_out: Tensor, columns_grad: bool, *arguments: Any) -> tuple[Tensor, Tensor]:
    _, columns, _, _, parameters, *_ = arguments
    grad_columns = torch.empty_like(columns) if columns_grad else columns.new_empty(0)
    return torch.empty_like(parameters), grad_columns


_SHAPES = {
    "states": "U, ds",
    "columns": "P, U, dc",
    "rows": "S, N",
    "offsets": "S, K + 1",
    "parameters": "parameters",
    "rng": "2",
}
_TENSORS = "Tensor states, Tensor columns, Tensor rows, Tensor offsets, Tensor parameters, Tensor? rng"
_OPTIONS = ", ".join(f"{kind.__name__} {name}" for name, kind in get_type_hints(EncoderOptions).items())


def _check_backward_sizes(grad_out: Tensor, columns_grad: bool, *arguments: Any) -> None:
    _check_sizes(*arguments)
    tokens = fake(*arguments).shape[2]
    if grad_out.shape[2] != tokens or grad_out.shape[3] != EncoderOptions(*arguments[6:]).width:
        raise ValueError(f"grad_out must have {tokens} tokens of the model's width, got {tuple(grad_out.shape)}")


_segment_encoder_backward = define(
    f"segment_encoder_backward(Tensor grad_out, bool columns_grad, {_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor)",
    cpu=_backward_kernel,
    cuda=_backward_cuda,
    fake=_fake_backward,
    shapes={"grad_out": "P, S, tokens, width", **_SHAPES},
    check_sizes=_check_backward_sizes,
    check=lambda grad_out, columns_grad, *arguments: _check_rows(*arguments),
    backward=differentiable_once("segment_encoder"),
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    columns_grad, tensors, options = ctx.needs_input_grad[1], ctx.saved_tensors, EncoderOptions(*ctx.options)
    if grad_out.device.type == "cuda" and not _tensor_cores_differentiate(tensors, options):
        differentiate = _composed_backward
    else:
        differentiate = _segment_encoder_backward
    grad_parameters, grad_columns = differentiate(grad_out, columns_grad, *tensors, *ctx.options)
    nothing = [None] * (len(ctx.options) + 1)
    return None, grad_columns if columns_grad else None, None, None, grad_parameters, *nothing


def _composed_backward(grad_out: Tensor, columns_grad: bool, *arguments: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of torch and of the other segment operators, which take any shape."""
    if torch.is_grad_enabled():
        raise NotImplementedError("segment_encoder is differentiable once")
    *tensors, rng = arguments[:6]
    options = EncoderOptions(*arguments[6:])._asdict()
    return composed.segment_encoder_backward(grad_out, *tensors, columns_grad=columns_grad, rng=rng, **options)


_segment_encoder = define(
    f"segment_encoder({_TENSORS}, {_OPTIONS}) -> Tensor",
    cpu=_forward,
    cuda=_forward_cuda,
    shapes=_SHAPES,
    check_sizes=_check_sizes,
    check=_check_rows,
    fake=fake,
    backward=_backward,
    setup_context=_setup_context,
)
