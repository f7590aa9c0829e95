"""Random problems of `segment_encoder`, compared with float64."""

import itertools
import math

import torch
from support import reference
from support.operators import OnDevice

from sopr_fast import ops

LOW = {"width": 64, "layers": 2, "heads": 2, "feedforward": 128}


HIGH = {"width": 64, "layers": 2, "heads": 8, "feedforward": 512, "project": False, "pool": False, "ds": 0}


SMALL = {"width": 16, "layers": 2, "heads": 2, "feedforward": 24}


def shapes_of(inputs, options):
    sizes = (options[name] for name in ("width", "layers", "feedforward"))
    return ops.encoder_shapes(inputs, *sizes, options.get("project", True))


def problem(sizes, *, seed=0, policies=2, subsets=1, ds=5, dc=3, scale=1.0, spare=2, distinct=None, **options):
    """Return random arguments of `segment_encoder`: subsets have segments of these sizes and `spare` unused rows."""
    generator = torch.Generator().manual_seed(seed)
    if not options.get("project", True):
        dc = options["width"] - ds
    size = sum(sizes) + spare
    distinct = distinct or subsets * size
    rows = [torch.randperm(max(distinct, size), generator=generator)[:size] % distinct for _ in range(subsets)]
    shapes = shapes_of(ds + dc, options)
    parameters = [
        torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3) for shape in shapes
    ]
    tensors = (
        torch.randn(distinct, ds, generator=generator) * scale,
        torch.randn(policies, distinct, dc, generator=generator) * scale,
        torch.stack(rows).int(),
        torch.tensor([[0, *itertools.accumulate(sizes)]] * subsets, dtype=torch.int32),
        torch.cat([p.flatten() for p in parameters]),
    )
    return tensors, {"level": 1, "segment_base": 7} | options


def run(function, tensors, options, dtype=torch.float32):
    states, columns, rows, offsets, parameters = tensors
    return function(states.to(dtype), columns.to(dtype), rows, offsets, parameters.to(dtype), **options)


def gradients(function, tensors, options, dtype=torch.float32, seed=1):
    """Return gradients of a random linear function of the output, by columns and by every parameter tensor."""
    states, columns, rows, offsets, parameters = tensors
    columns, parameters = (t.to(dtype, copy=True).requires_grad_() for t in (columns, parameters))
    out = function(states.to(dtype), columns, rows, offsets, parameters, **options)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    unused = 0 * (columns.sum() + parameters.sum())  # without segments, the output does not depend on them
    ((out * weights).sum() + unused).backward()
    shapes = shapes_of(states.shape[1] + columns.shape[2], options)
    return [columns.grad, *parameters.grad.split([math.prod(s) for s in shapes])]


def allowed(ops):
    """Return how many times torch's error is allowed: a GPU's `mma` aligns and cuts each term of a sum."""
    return 4 if str(getattr(ops, "device", "cpu")).startswith("cuda") else 2


def assert_as_good_as_torch(ops, tensors, options):
    oracle = run(reference.segment_encoder, tensors, options, torch.float64)
    if not oracle.numel():
        assert run(ops.segment_encoder, tensors, options).shape == oracle.shape
        return
    torch_error = (run(reference.segment_encoder, tensors, options).double() - oracle).abs().max()
    error = (run(ops.segment_encoder, tensors, options).double() - oracle).abs().max()
    assert error <= allowed(ops) * torch_error + 1e-6 * oracle.abs().max()


def assert_gradients(ops, tensors, options, *, times=0, relative=1e-4, of_largest=1e-6):
    """Compare with float64: allow so many times torch's error, and shares of each gradient and of the largest one."""
    oracle = of_torch = gradients(reference.segment_encoder, tensors, options, torch.float64)
    if times:
        device = getattr(ops, "device", torch.device("cpu"))
        plain = OnDevice(device, reference).segment_encoder
        with torch.autocast(device.type, torch.bfloat16, enabled=options.get("precision") == "bf16"):
            of_torch = gradients(plain, tensors, options)
    largest = max(g.norm() for g in oracle)
    actual = gradients(ops.segment_encoder, tensors, options)
    for i, (ours, theirs, exact) in enumerate(zip(actual, of_torch, oracle, strict=True)):
        bound = times * (theirs - exact).norm() + relative * exact.norm() + of_largest * largest
        assert (ours - exact).norm() <= bound, f"tensor {i}"


def check_widths(ops):
    for options in (LOW, HIGH, SMALL | {"width": 21, "heads": 3, "feedforward": 5}):
        tensors, options = problem([0, 1, 17, 70], **options)
        assert_as_good_as_torch(ops, tensors, options)
        assert_gradients(ops, tensors, options | {"dropout": 0.1, "rng": torch.tensor([3, 4])})
