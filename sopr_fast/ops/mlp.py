"""Perceptrons of one architecture, side by side: outputs, gradients, and whole steps of training.

In other dtypes than float32, and on devices other than the CPU, torch computes the same.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.devices import without_autocast
from .library import Fields, define, run_kernel

_EPS = 1e-8
_CHANGED = ("parameters", "means", "squares", "average")  # by a step


def mlp_size(sizes: Sequence[int]) -> int:
    """Return the number of parameters of a perceptron whose input, hidden layers and output have these widths."""
    return sum((width + 1) * next_width for width, next_width in itertools.pairwise(sizes))


def mlp(x: Tensor, parameters: Tensor, sizes: Sequence[int], *, activation: str = "relu") -> Tensor:
    """Apply C perceptrons, whose layers are linear, with an activation after all but the last.

    Args:
        x: (C, B, in) float32, or (B, in) for all perceptrons.
        parameters: (C, Z) float32: weight (out, in) and bias (out,) of every layer, in turn; see `mlp_size`.
        sizes: Widths of input, hidden layers and output.
        activation: "relu" or "tanh".

    Returns:
        (C, B, out) float32, differentiable once in `x` and `parameters`. A row does not depend on the other rows.

    Raises:
        NotImplementedError: A second derivative, or one in forward mode, is requested.
        TypeError: An argument has another dtype.
        ValueError: An argument has another shape, or the activation is unknown.

    Equivalent to::

        for weight, bias in layers[:-1]:
            x = activation(x @ weight.mT + bias[:, None])
        x @ layers[-1].weight.mT + layers[-1].bias[:, None]
    """
    if activation not in ("relu", "tanh"):
        raise ValueError(f"activation must be 'relu' or 'tanh', got {activation!r}")
    return _mlp(x[None] if x.dim() == 2 else x, parameters, list(sizes), activation == "tanh")


def mlp_step(
    x: Tensor,
    target: Tensor,
    parameters: Tensor,
    sizes: Sequence[int],
    *,
    means: Tensor,
    squares: Tensor,
    step: int,
    rate: float,
    weight: Tensor | None = None,
    thresholds: Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    decay: float = 0.0,
    average: Tensor | None = None,
    average_rate: float = 0.0,
    runs: int = 0,
    run_length: int = 1,
    scale: Tensor | None = None,
    bound: float = math.inf,
) -> Tensor:
    """Train C perceptrons with ReLU by one step of AdamW, on sums of losses over columns, averaged over rows.

    The result does not depend on the number of threads.

    The last rows may be runs, in which a perceptron reads what it predicts: the first S inputs are a state, which the
    first S outputs change. Runs stand side by side, step after step. From the second step on, a row reads the state
    that its run reached, not that in `x`; its target loses the difference of the two states, in units of `scale`.

    Args:
        x: (C, B, in) float32, or (B, in) for all perceptrons.
        target: (C, B, out) float32.
        parameters: (C, Z) float32, see `mlp`; changed in place.
        sizes: Widths of input, hidden layers and output.
        means: (C, Z) float32 means of the gradients; changed in place, as `squares`, means of their squares.
        squares: See `means`.
        step: Number of this step, from 1.
        rate: Learning rate.
        weight: (C, B, out) float32 weights of the losses; None for 1.
        thresholds: (out,) float32 errors below which the loss of a column is half their square and above which it is
            linear (Huber); inf for squares. None for the logistic loss, for which outputs are logits.
        betas: Decay of `means` and `squares`.
        decay: Weight decay, relative to the rate.
        average: (C, Z) float32; moves by `average_rate` of the way to the new parameters, in place.
        average_rate: See `average`.
        runs: Number of runs.
        run_length: Steps of each.
        scale: (S,) float32 changes of the state that outputs of 1 stand for; 0 or more.
        bound: Largest distance of a reached state from 0.

    Returns:
        Losses (C,) float32 before the step.

    Raises:
        TypeError: An argument has another dtype.
        ValueError: An argument has another shape, or a tensor that changes is not contiguous.
    """
    tensors = target, weight, thresholds, parameters, means, squares, average, scale
    options = list(sizes), step, rate, *betas, decay, average_rate, runs, run_length, bound
    return _step(x[None] if x.dim() == 2 else x, *tensors, *options)


def _torch_mlp(fields: Fields) -> Tensor:
    x, parameters, sizes = fields["x"], fields["parameters"], fields["sizes"]
    parts = iter(parameters.split([n for pair in itertools.pairwise(sizes) for n in (pair[0] * pair[1], pair[1])], 1))
    with without_autocast(x.device):
        for i, (width, next_width) in enumerate(itertools.pairwise(sizes)):
            weight, bias = next(parts).unflatten(1, (next_width, width)), next(parts)
            x = torch.baddbmm(bias[:, None], x.expand(len(parameters), -1, -1), weight.mT)
            if i < len(sizes) - 2:
                x = x.tanh() if fields["tanh"] else x.relu()
    return x


def _torch_runs(fields: Fields) -> tuple[Tensor, Tensor]:
    """Return outputs and targets (C, B, out), both with the states that runs reach."""
    runs, steps, scale, bound, target = (fields[name] for name in ("runs", "run_length", "scale", "bound", "target"))
    if not runs:
        return _torch_mlp(fields), target
    x, width = fields["x"].expand(len(target), -1, -1), len(scale)
    first, *later = x.split([x.shape[1] - runs * (steps - 1), *[runs] * (steps - 1)], 1)
    read, out = [first], [_torch_mlp(fields | {"x": first})]
    for logged in later:
        reached = read[-1][:, -runs:, :width] + out[-1][:, -runs:, :width] * scale
        read.append(torch.cat([reached.clamp(-bound, bound), logged[..., width:]], 2))
        out.append(_torch_mlp(fields | {"x": read[-1]}))
    ahead = (torch.cat(read, 1) - x)[..., :width] / scale.where(scale > 0, math.inf)
    return torch.cat(out, 1), target - functional.pad(ahead, (0, target.shape[2] - width))


def _torch_step(fields: Fields) -> Tensor:
    weight, thresholds = fields["weight"], fields["thresholds"]
    parameters, means, squares, average = (fields[name] for name in _CHANGED)
    beta1, beta2, step, rate = (fields[name] for name in ("beta1", "beta2", "step", "rate"))
    leaf = parameters.detach().requires_grad_()
    with torch.enable_grad():
        out, target = _torch_runs(fields | {"parameters": leaf, "tanh": False})
        if thresholds is None:
            loss = functional.binary_cross_entropy_with_logits(out, target, reduction="none")
        else:
            size = (out - target).abs()
            linear = torch.minimum(size, thresholds)
            loss = linear * (size - linear / 2)
        losses = (loss if weight is None else weight * loss).sum(2).mean(1)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    with torch.no_grad():
        means.lerp_(gradient, 1 - beta1)
        squares.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = squares.sqrt() / (1 - beta2**step) ** 0.5 + _EPS
        parameters.mul_(1 - rate * fields["decay"]).addcdiv_(means, size, value=-rate / (1 - beta1**step))
        if average is not None:
            average.lerp_(parameters, fields["average_rate"])
    return losses.detach()


def _check_sizes(fields: Fields) -> None:
    x, parameters, sizes, count = fields["x"], fields["parameters"], fields["sizes"], fields["members"]
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes must be at least two widths of at least 1, got {list(sizes)}")
    if not count or parameters.shape[1] != mlp_size(sizes):
        raise ValueError(f"parameters must have shape (C, {mlp_size(sizes)}), got {tuple(parameters.shape)}")
    if len(x) not in (1, count) or x.shape[2] != sizes[0]:
        raise ValueError(f"x must have shape ({count}, B, {sizes[0]}) or (B, {sizes[0]}), got {tuple(x.shape)}")
    if runs := fields.get("runs", 0):
        rows, most = runs * fields["run_length"], min(sizes[0], sizes[-1])
        if not 0 < rows <= fields["batch"] or not 0 < fields.get("states", 0) <= most:
            raise ValueError(
                f"with runs, scale must have shape (1) to ({most}), and runs * run_length must be between 1 and "
                f"{fields['batch']}, got {runs} * {fields['run_length']}"
            )
    for name in _CHANGED if "means" in fields else ():
        if fields[name] is not None and not fields[name].is_contiguous():
            raise ValueError(f"{name} must be contiguous, since it is changed in place")


@functools.lru_cache
def _as_tensor(*sizes: int) -> Tensor:
    return torch.tensor(sizes, dtype=torch.int64, device="cpu")


def _run(kernel: str, fields: Fields) -> None:
    sizes, shared = fields["sizes"], len(fields["x"]) < fields["members"]
    fields = {"out": None, "tanh": False, "states": 0} | fields | {"shared": shared, "layers": len(sizes) - 1}
    run_kernel(kernel, fields | {"sizes": _as_tensor(*sizes)})


def _new_out(fields: Fields) -> tuple[Tensor]:
    return (fields["x"].new_empty(fields["members"], fields["batch"], fields["sizes"][-1]),)


def _new_gradients(fields: Fields) -> tuple[Tensor, Tensor]:
    x, parameters = fields["x"], fields["parameters"]
    shape = (len(parameters), *x.shape[1:])
    return x.new_empty(shape if fields["of_x"] else 0), x.new_empty(parameters.shape if fields["of_parameters"] else 0)


_SHAPES = {"parameters": "members, Z", "x": "X, batch, I", "grad_out": "members, batch, O"}

_mlp_backward = define(
    "mlp_backward(Tensor grad_out, Tensor x, Tensor parameters, int[] sizes, bool tanh, bool of_x, bool of_parameters) "
    "-> (Tensor grad_x, Tensor grad_parameters)",
    _SHAPES,
    check_sizes=_check_sizes,
    new=_new_gradients,
    run=_run,
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, parameters, *ctx.options = inputs
    ctx.save_for_backward(x, parameters)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    x, parameters = ctx.saved_tensors
    of_x, of_parameters, *_ = ctx.needs_input_grad
    grad_x, grad_parameters = _mlp_backward(grad_out, x, parameters, *ctx.options, of_x, of_parameters)
    if of_x and len(x) < len(parameters):
        grad_x = grad_x.sum(0, keepdim=True)
    return grad_x if of_x else None, grad_parameters if of_parameters else None, None, None


_mlp = define(
    "mlp(Tensor x, Tensor parameters, int[] sizes, bool tanh) -> Tensor out",
    _SHAPES,
    check_sizes=_check_sizes,
    new=_new_out,
    run=_run,
    twin=_torch_mlp,
    backward=_backward,
    setup_context=_setup_context,
)

_step = define(
    "mlp_step(Tensor x, Tensor target, Tensor? weight, Tensor? thresholds, Tensor(a!) parameters, Tensor(b!) means, "
    "Tensor(c!) squares, Tensor(d!)? average, Tensor? scale, int[] sizes, int step, float rate, float beta1, "
    "float beta2, float decay, float average_rate, int runs, int run_length, float bound) -> Tensor losses",
    {
        **dict.fromkeys(("target", "weight"), "members, batch, O"),
        "thresholds": "O",
        "scale": "states",
        **dict.fromkeys(_CHANGED, "members, Z"),
        "x": "X, batch, I",
        "losses": "members",
    },
    check_sizes=_check_sizes,
    run=_run,
    twin=_torch_step,
)
