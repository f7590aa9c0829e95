"""Transformer encoder layers inside every segment of a ragged batch: both levels of the scoring model."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple, get_type_hints

import numpy as np
import torch
from torch import Tensor

from ..runtime import native
from . import composed, reference
from .library import call, call_cpu, check_tensor, contiguous, define, has_kernel, once, one_device
from .reference import encoder_shapes

_log = logging.getLogger(__name__)


class Options(NamedTuple):
    """What the operators take behind their tensors; see `segment_encoder`."""

    width: int
    layers: int
    heads: int
    feedforward: int
    project: bool
    pool: bool
    dropout: float
    level: int
    segment_base: int
    precision: str


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
) -> Tensor:
    """Encodes every segment of every (policy, subset) by post-norm transformer layers (paper section 3.1).

    Token t of (p, s) is ``[states[rows[s, t]], columns[p, rows[s, t]]]``. Tokens attend to those of their segment
    alone. A segment's result is the mean over its tokens, 0 if it has none.

    Args:
        states: (U, ds) float32, shared by all policies; ds may be 0.
        columns: (P, U, dc) float32.
        rows: (S, N) int32 into the states, those of a segment side by side.
        offsets: (S, K + 1) int32; segment k of subset s is ``rows[s, offsets[s, k]:offsets[s, k + 1]]``. Ascends
            from 0 to at most N; rows past the last segment are ignored.
        parameters: flat float32: the tensors of ``ops.encoder_shapes`` one after the other.
        width, layers, heads, feedforward: of torch's TransformerEncoderLayer (ReLU, norm last, eps 1e-5).
        project: tokens pass a linear layer and ReLU first; otherwise ds + dc must equal the width.
        pool: return means of segments, not tokens.
        dropout: probability; needs ``rng``, int64 (2,): seed and step. Without ``rng`` nothing is dropped.
        level, segment_base: tell apart the numbers that dropout draws: see csrc/philox.h. Segment (p, s, k) is
            number ``segment_base + (p * S + s) * K + k``.
        precision: "fp32", or "bf16" for the operands of the layers' matrix products, forward and backward, with sums,
            residuals, norms and softmax in float32. Without AVX512-BF16, with heads of odd width, or on a GPU, bf16
            is fp32.

    Returns:
        (P, S, K, width) float32 if ``pool``, else (P, S, N, width) in the order of ``rows``, 0 past the last segment.
        Differentiable once in ``parameters`` and ``columns``; gradients recompute the pass and keep only its inputs. On
        a GPU, the kernel computes what needs no gradient, torch's operators and the other segment operators the rest.

    Raises:
        NotImplementedError: a second derivative.
        TypeError, ValueError: a wrong dtype, shape or option, on the CPU a wrong row or offset.

    Equivalent to::

        x = torch.cat([states[rows[s, a:b]], columns[p, rows[s, a:b]]], -1)  # a, b = offsets[s, k : k + 2]
        x = torch.relu(x @ weight.T + bias)                                  # if project
        out[p, s, k] = encoder(x[None])[0].mean(0)                           # torch.nn.TransformerEncoder
    """
    states = check_tensor("states", states, torch.float32, "U", "ds")
    columns = check_tensor("columns", columns, torch.float32, "P", len(states), "dc")
    rows = check_tensor("rows", rows, torch.int32, "S", "N")
    offsets = check_tensor("offsets", offsets, torch.int32, len(rows), "K + 1")
    options = Options(width, layers, heads, feedforward, project, pool, dropout, level, segment_base, precision)
    _check_options(options)
    inputs = states.shape[1] + columns.shape[2]
    if not project and inputs != width:
        raise ValueError(f"without project, the {inputs} inputs must be as many as the width {width}")
    shapes = encoder_shapes(inputs, width, layers, feedforward, project)
    parameters = check_tensor("parameters", parameters, torch.float32, sum(map(math.prod, shapes)))
    if rng is not None:
        rng = check_tensor("rng", rng, torch.int64, 2)
    if offsets.shape[1] < 1:
        raise ValueError("offsets must have at least one column")
    tensors = (states, columns, rows, offsets, parameters)
    device = one_device("segment_encoder", *tensors, rng)
    if device.type == "cuda" and has_kernel(device):
        if torch.is_grad_enabled() and (columns.requires_grad or parameters.requires_grad):
            return composed.segment_encoder(*tensors, rng=rng, **options._asdict())
        if precision == "bf16":
            _log.info("segment_encoder: bf16 is computed in fp32 on a GPU")
    return _segment_encoder(*tensors, rng, *options)


def _check_options(options: Options) -> None:
    for name, least in [("width", 1), ("layers", 0), ("heads", 1), ("feedforward", 1)]:
        value = getattr(options, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if options.width % options.heads:
        raise ValueError(f"heads must divide the width, got {options.heads} heads for width {options.width}")
    if not 0 <= options.dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {options.dropout}")
    if options.precision not in ("fp32", "bf16"):
        raise ValueError(f"precision must be 'fp32' or 'bf16', got {options.precision!r}")


def _check_rows(states: Tensor, columns: Tensor, rows: Tensor, offsets: Tensor, *_) -> None:
    if rows.device.type != "cpu":
        return
    ends, row, count = offsets.numpy(), rows.numpy(), len(states)
    wrong = (ends[:, 0] != 0) | (ends[:, -1] > row.shape[1]) | (ends[:, 1:] < ends[:, :-1]).any(1)
    if wrong.any():
        s = int(wrong.argmax())
        raise ValueError(f"offsets[{s}] must ascend from 0 to at most the {row.shape[1]} rows")
    if row.size and (row.min() < 0 or row.max() >= count):
        raise ValueError(f"rows must be in [0, {count}), the states; found {row.min()} and {row.max()} among them")


def _parameter_struct(module, tensors, options: Options, *, out: Tensor | None, **of_the_cpu):
    states, columns, rows, offsets, parameters, rng = tensors
    fields = options._asdict()
    bf16 = fields.pop("precision") == "bf16"
    return module.SegmentEncoder(
        states=states.data_ptr(),
        columns=columns.data_ptr(),
        rows=rows.data_ptr(),
        offsets=offsets.data_ptr(),
        parameters=parameters.data_ptr(),
        rng=0 if rng is None else rng.data_ptr(),
        out=0 if out is None else out.data_ptr(),
        policies=len(columns),
        subsets=len(rows),
        states_count=len(states),
        state_width=states.shape[1],
        column_width=columns.shape[2],
        subset_size=rows.shape[1],
        clusters=offsets.shape[1] - 1,
        bf16=bf16,
        **fields,
        **of_the_cpu,
    )


def _cpu_arguments(tensors, options: Options, *, out: Tensor | None, backward: bool):
    """The kernels' parameter struct, its workspace, and the tensor that must outlive both."""
    sizes = np.diff(tensors[3].numpy(), axis=1).ravel()
    order = torch.from_numpy(np.argsort(-sizes, kind="stable").astype(np.int32))
    of_the_cpu = {"order": order.data_ptr(), "longest": int(sizes.max(initial=0))}
    arguments = _parameter_struct(native._cpu, tensors, options, out=out, **of_the_cpu)
    floats = native._cpu.segment_encoder_workspace(arguments, backward, native.threads())
    return arguments, tensors[1].new_empty(floats), order


def _forward(states, columns, rows, offsets, parameters, rng, *options) -> Tensor:
    tensors = contiguous(states, columns, rows, offsets, parameters, rng)
    out = _fake(*tensors, *options)
    arguments, workspace, _order = _cpu_arguments(tensors, Options(*options), out=out, backward=False)
    call_cpu("segment_encoder", arguments, workspace)
    return out


def _forward_cuda(states, columns, rows, offsets, parameters, rng, *options) -> Tensor:
    tensors = contiguous(states, columns, rows, offsets, parameters, rng)
    out = _fake(*tensors, *options)
    arguments = _parameter_struct(native._cuda, tensors, Options(*options), out=out)
    workspace = columns.new_empty(native._cuda.segment_encoder_workspace(arguments))
    call("segment_encoder", columns.device, arguments, workspace)
    return out


def _fake(states, columns, rows, offsets, parameters, rng, *options) -> Tensor:
    options = Options(*options)
    tokens = offsets.shape[1] - 1 if options.pool else rows.shape[1]
    return columns.new_empty(columns.shape[0], rows.shape[0], tokens, options.width)


def _backward_kernel(grad_out, columns_grad, states, columns, rows, offsets, parameters, rng, *options):
    tensors = contiguous(states, columns, rows, offsets, parameters, rng)
    grad_out = grad_out.contiguous()
    grad_parameters, grad_columns = _fake_backward(grad_out, columns_grad, *tensors)
    arguments, workspace, _order = _cpu_arguments(tensors, Options(*options), out=None, backward=True)
    call_cpu(
        "segment_encoder_backward",
        arguments,
        workspace,
        grad_out,
        grad_parameters,
        grad_columns if columns_grad else None,
    )
    return grad_parameters, grad_columns


def _fake_backward(grad_out, columns_grad, states, columns, rows, offsets, parameters, *_):
    grad_columns = torch.empty_like(columns) if columns_grad else columns.new_empty(0)
    return torch.empty_like(parameters), grad_columns


_TENSORS = "Tensor states, Tensor columns, Tensor rows, Tensor offsets, Tensor parameters, Tensor? rng"
_OPTIONS = ", ".join(f"{kind.__name__} {name}" for name, kind in get_type_hints(Options).items())

_segment_encoder_backward = define(
    f"segment_encoder_backward(Tensor grad_out, bool columns_grad, {_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor)",
    cpu=_backward_kernel,
    fake=_fake_backward,
    backward=once("segment_encoder"),
)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx, grad_out: Tensor):
    columns_grad = ctx.needs_input_grad[1]
    grad_parameters, grad_columns = _segment_encoder_backward(grad_out, columns_grad, *ctx.saved_tensors, *ctx.options)
    return (
        None,
        grad_columns if columns_grad else None,
        None,
        None,
        grad_parameters,
        *[None] * (len(ctx.options) + 1),
    )


_segment_encoder = define(
    f"segment_encoder({_TENSORS}, {_OPTIONS}) -> Tensor",
    cpu=_forward,
    cuda=_forward_cuda,
    reference=reference.segment_encoder,
    check=_check_rows,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)
