"""Calls of every operator on fixed inputs, forward and backward, shared by several tests.

Add new operators to CALLS. `python -m support.operators [device]` compares all of them with the float64 references.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from support import reference
from torch import Tensor

from sopr_fast import build_info, ops


class OnDevice:
    """Functions of `sopr_fast.ops` or another module on CPU tensors, computed on another device."""

    def __init__(self, device: torch.device, module: ModuleType = ops) -> None:
        self.device, self.module = device, module

    def __getattr__(self, name: str) -> Callable:
        operator = getattr(self.module, name)

        def to_device(value: Any) -> Any:
            return value.to(self.device) if isinstance(value, Tensor) else value

        def to_cpu(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.cpu()
            values = map(to_cpu, value)
            return type(value)(*values) if hasattr(value, "_fields") else tuple(values)

        return lambda *values, **named: to_cpu(
            operator(*map(to_device, values), **{name: to_device(value) for name, value in named.items()})
        )


class Call(NamedTuple):
    operator: Callable
    reference: Callable
    gradients: tuple[str, ...]  # names of differentiable arguments
    tolerance: float  # relative L2 error
    arguments: dict


def call(name: str, gradients: tuple[str, ...] = (), tolerance: float = 5e-6, **arguments) -> Call:
    return Call(getattr(ops, name), getattr(reference, name), gradients, tolerance, arguments)


def run(function: Callable, call: Call, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
    """Return the outputs, then the gradients of a fixed linear function of the first output."""
    arguments = {
        name: value.to(device, dtype if value.is_floating_point() else None, copy=True)
        if isinstance(value, Tensor)
        else value
        for name, value in call.arguments.items()
    }
    inputs = [arguments[name].requires_grad_() for name in call.gradients]
    outputs = function(**arguments)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    if not inputs:
        return outputs
    weights = torch.linspace(-1, 1, outputs[0].numel(), dtype=dtype).cos().view(outputs[0].shape).to(device)
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs[0], inputs, weights)]


def _lloyd(points: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    result = ops.kmeans(points, start.shape[1], init=start, iterations=4, tolerance=0)
    return result.centroids, result.labels, result.inertia, result.iterations


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Multiples of 1/8: squared distances are exact in float32, so labels do not depend on the order of sums.
_points = (8 * _random(3, 1500, 5)).round() / 8 + 8 * _random(3, 1500, 1, seed=1).round()
_offsets = torch.tensor([0, 0, 1, 17, 33, 33, 50, 51, 90, 200, 203, 236, 236], dtype=torch.int32)
_rng = torch.tensor([3, 14])
_dropout = {"rng": _rng, "level": 1, "layer": 2, "segment_base": 5}
_clusters = {"points": _points, "start": _points[:, ::70]}
_rows = {"x": _random(236, 24), "offsets": _offsets}
_heads = {name: _random(236, 2, 12, seed=seed) for seed, name in enumerate("qkv")} | {"offsets": _offsets}
_leaves = ("columns", "parameters")
_encoder = {
    "states": _random(300, 5),
    "columns": _random(3, 300, 3, seed=1),
    "rows": torch.arange(480, dtype=torch.int32).view(2, 240) * 7 % 300,
    "offsets": torch.stack([_offsets, _offsets]),
    "parameters": 0.2 * _random(sum(torch.Size(s).numel() for s in ops.encoder_shapes(8, 16, 2, 24)), seed=2),
    **{"width": 16, "layers": 2, "heads": 2, "feedforward": 24},
}
_long = torch.tensor([0, 0, 1, 17, 33, 33, 50, 51, 190, 200, 203, 236, 236], dtype=torch.int32)
_tensor_cores = {
    **_encoder,
    "offsets": torch.stack([_offsets, _long]),  # one segment takes two tiles
    "parameters": 0.1 * _random(sum(torch.Size(s).numel() for s in ops.encoder_shapes(8, 64, 2, 32)), seed=2),
    **{"width": 64, "layers": 2, "heads": 4, "feedforward": 32},
}


def _after_step(function: Callable, **arguments: Any) -> list[Tensor]:
    """Return the losses and what a step of training changes."""
    changed = {name: arguments[name].clone(memory_format=torch.contiguous_format) for name in _changed}
    return [function(**arguments | changed), *changed.values()]


_changed = ("parameters", "means", "squares", "average")
_sizes = [5, 70, 33, 3]
_mlp = {"x": _random(3, 150, 5), "parameters": 0.2 * _random(3, ops.mlp_size(_sizes), seed=1), "sizes": _sizes}
_training = {
    **_mlp,
    "target": _random(3, 150, 3, seed=2),
    "means": 0.01 * _random(3, ops.mlp_size(_sizes), seed=3),
    "squares": 1e-3 * _random(3, ops.mlp_size(_sizes), seed=4).square(),
    "average": _random(3, ops.mlp_size(_sizes), seed=5),
    **{"step": 7, "rate": 1e-2, "decay": 0.1, "average_rate": 0.25},
}
_huber = {"weight": _random(3, 150, 3, seed=6).abs(), "thresholds": torch.tensor([1.0, 0.5, torch.inf])}
_runs = {"scale": torch.tensor([0.5, 0.0]), "bound": 1.5}
_stepped = partial(_after_step, ops.mlp_step), partial(_after_step, reference.mlp_step), (), 5e-6

CALLS = {
    "mlp": call("mlp", ("x", "parameters"), **_mlp),
    "mlp with tanh and shared inputs": call(
        "mlp", ("x", "parameters"), **_mlp | {"x": _random(150, 5)}, activation="tanh"
    ),
    "mlp_step": Call(*_stepped, _training | _huber),
    "mlp_step of runs": Call(*_stepped, _training | _huber | _runs | {"runs": 46, "run_length": 3}),
    "mlp_step of many runs": Call(*_stepped, _training | _huber | _runs | {"runs": 70, "run_length": 2}),
    "mlp_step of logits": Call(*_stepped, _training | {"target": _training["target"].sigmoid()}),
    "kmeans": Call(_lloyd, partial(reference.kmeans, iterations=4, tolerance=0), (), 5e-6, _clusters),
    "kmeans_init": call("kmeans_init", tolerance=0, points=_points, k=12, seeds=torch.tensor([5, 2**40 + 3, -7])),
    "segment_mean": call("segment_mean", ("x",), **_rows),
    "segment_dropout": call("segment_dropout", ("x",), probability=0.3, **_rows, **_dropout),
    "segment_attention": call("segment_attention", ("q", "k", "v"), dropout=0.2, **_heads, **_dropout),
    "segment_encoder": call("segment_encoder", _leaves, **_encoder),
    "segment_encoder with dropout": call("segment_encoder", _leaves, dropout=0.2, rng=_rng, **_encoder),
    "segment_encoder without gradients": call("segment_encoder", dropout=0.2, rng=_rng, **_encoder),
    "segment_encoder in bf16": call("segment_encoder", tolerance=2e-2, precision="bf16", **_encoder),
    "segment_encoder of width 64": call("segment_encoder", _leaves, dropout=0.2, rng=_rng, **_tensor_cores),
    "segment_encoder of width 64 in bf16": call(
        "segment_encoder", tolerance=2e-2, precision="bf16", pool=False, **_tensor_cores
    ),
}


def check(name: str, device: str = "cpu") -> None:
    compare(name, CALLS[name], device)


def compare(name: str, one: Call, device: str = "cpu") -> None:
    """Compare a call of an operator with its reference in float64; integers must be equal."""
    results, expected = run(one.operator, one, device=device), run(one.reference, one, torch.float64)
    results = [x.cpu() for x in results]
    assert len(results) == len(expected)
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        assert a.shape == b.shape, (name, number, a.shape, b.shape)
        if not b.is_floating_point():
            assert torch.equal(a, b), (name, number)
            continue
        error = float((a.double() - b).norm() / b.norm())
        assert error <= one.tolerance, (name, number, error)


if __name__ == "__main__":
    print(build_info()["instruction_set"])
    for name in CALLS:
        check(name, *sys.argv[1:])
