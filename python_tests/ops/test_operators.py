"""Every operator on every device, on the inputs of operators.py."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import operators
from support.problems import default_dtype

from sopr_fast import native, ops
from sopr_fast.ops import library, tensor_checks


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_writes_all_of_its_outputs_and_repeats_them(name, device, poison):
    assert torch.empty(3).isnan().all()
    operators.check(name, device)
    one = operators.CALLS[name]
    first, second = (operators.run(one.operator, one, device=device) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_takes_strided_tensors(name, device, monkeypatch):
    one = operators.CALLS[name]

    def strided(**arguments):
        every_second = {
            key: torch.stack([x, torch.zeros_like(x)], -1)[..., 0] if isinstance(x, torch.Tensor) else x
            for key, x in arguments.items()
        }
        return one.operator(**every_second)

    monkeypatch.setitem(operators.CALLS, name, one._replace(operator=strided))
    operators.check(name, device)


def test_values_on_a_gpu_are_checked_on_request(monkeypatch):
    on_gpu = SimpleNamespace(device=torch.device("cuda", 0))
    assert not tensor_checks.is_checked(on_gpu)
    monkeypatch.setenv("SOPR_FAST_CUDA_DEBUG", "1")
    assert tensor_checks.is_checked(on_gpu)


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_ignores_torch_defaults(name):
    one = operators.CALLS[name]
    expected = one.operator(**one.arguments)
    with default_dtype(torch.bfloat16), torch.device("meta"):
        result = one.operator(**one.arguments)
    assert all(map(torch.equal, result, expected))


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def at(place, value):
    points = torch.zeros(2, 30, 3)
    points[place] = value
    return points


ARGUMENTS = {name: one.arguments for name, one in operators.CALLS.items()}
ARGUMENTS |= {name: {"points": torch.zeros(2, 30, 3), "k": 3} for name in ("kmeans", "kmeans_init")}
WIDE = torch.zeros(236, 4097, 1)
REFUSED = {  # operator → changes of its arguments, message
    "kmeans": [
        ({"k": 0}, "k must be between 1 and 30"),
        ({"k": 31}, "k must be between 1 and 30, the number of points of a problem, got 31"),
        ({"init": np.zeros((2, 3, 3))}, "init must be a tensor, got ndarray"),
        ({"init": torch.full((2, 3, 3), torch.nan)}, "init must be finite; problem 0, centroid 0"),
        ({"iterations": -1}, "iterations and tolerance"),
        ({"tolerance": torch.nan}, "iterations and tolerance must be at least 0, got 300 and nan"),
        ({"seeds": torch.zeros(3, dtype=torch.int64)}, r"seeds must have shape \(2\)"),
        ({"seeds": torch.zeros(2)}, "seeds must be torch.int64"),
        ({"points": torch.zeros(1, 5, 0)}, r"points must have at least one column, got shape \(1, 5, 0\)"),
        ({"points": [[0.0]]}, "points must be a tensor"),
        ({"points": at((1, 17, 2), torch.nan)}, "points must be finite; problem 1, row 17, column 2 is nan"),
        ({"points": at((0, 3, 1), -torch.inf)}, "points must be finite; problem 0, row 3, column 1 is -inf"),
    ],
    "kmeans_init": [
        ({"points": torch.zeros(1, 5, 0)}, r"points must have at least one column, got shape \(1, 5, 0\)"),
        ({"points": at((1, 17, 2), torch.inf)}, "points must be finite; problem 1, row 17, column 2 is inf"),
    ],
    "segment_mean": [({"offsets": ints(*wrong)}, "offsets") for wrong in ([0, 3], [1, 236], [0, 5, 4, 236], [])],
    "segment_dropout": [
        ({"offsets": ints(0, 237)}, "offsets must ascend from 0 to 236"),
        ({"probability": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"level": -1}, "level must be 0 or 1, got -1"),
        ({"level": 256}, "level must be 0 or 1, got 256"),  # would have the masks of level 0
        ({"layer": 256}, "layer must be between 0 and 255, got 256"),  # would have the masks of the next level
        ({"site": 16}, "site must be between 0 and 3, got 16"),  # would have the masks of the next layer
    ],
    "segment_attention": [
        ({"offsets": ints(0, 237)}, "offsets must ascend from 0 to 236"),
        ({"level": 2}, "level must be 0 or 1, got 2"),
        ({"k": torch.zeros(236, 1, 12)}, r"k must have shape \(236, 2, 12\), got \(236, 1, 12\)"),
        (dict.fromkeys("qkv", WIDE), "with dropout, heads must be between 0 and 4096, got 4097"),
    ],
    "segment_encoder": [
        ({"columns": np.zeros((1, 3, 2))}, "columns must be a tensor, got ndarray"),
        ({"heads": 3}, "heads must divide the width"),
        ({"layers": -1}, "layers must be at least 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"level": 2}, "level must be 0 or 1, got 2"),
        ({"precision": "fp16"}, "precision must be"),
        ({"project": False}, "the number of inputs, 8, must equal the width, 16"),
        ({"rng": torch.tensor([1])}, "rng must have shape"),
        ({"layers": 3}, "parameters must have shape"),
        ({"states": torch.zeros(300, 0), "columns": torch.zeros(3, 300, 0)}, "at least one column between"),
        ({"states": torch.zeros(300, 5, requires_grad=True)}, r"has no gradient of states; pass states.detach\(\)"),
        *(({"offsets": ints(wrong, wrong)}, "offsets") for wrong in ([0, 5, 241], [1, 5, 14], [0, 9, 5], [])),
        *(({"rows": torch.full((2, 240), row).int()}, r"rows must be in \[0, 300\)") for row in (-1, 300)),
    ],
    "mlp": [
        ({"activation": "gelu"}, "activation must be 'relu' or 'tanh', got 'gelu'"),
        ({"sizes": [5]}, "sizes must be at least two widths of at least 1"),
        ({"sizes": [5, 0, 3]}, "sizes must be at least two widths of at least 1"),
        ({"sizes": [5, 70, 33, 2]}, r"parameters must have shape \(C, 2831\)"),
        ({"x": torch.zeros(150, 6)}, r"x must have shape \(3, B, 5\) or \(B, 5\), got \(1, 150, 6\)"),
        ({"x": torch.zeros(2, 150, 5)}, r"x must have shape \(3, B, 5\)"),
    ],
    "mlp_step": [
        (
            {"means": ARGUMENTS["mlp_step"]["means"].mT.contiguous().mT},
            "means must be contiguous, since it is changed",
        ),
        ({"runs": 60, "run_length": 3, "scale": torch.ones(2)}, r"run_length must be between 1 and 150, got 60 \* 3"),
        ({"runs": 5}, r"scale must have shape \(1\) to \(3\)"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [(name, *one) for name, cases in REFUSED.items() for one in cases],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_operator_refuses(name, changes, message, ops, monkeypatch):
    monkeypatch.setenv("SOPR_FAST_CUDA_DEBUG", "1")
    with pytest.raises((NotImplementedError, TypeError, ValueError), match=message):
        getattr(ops, name)(**ARGUMENTS[name] | changes)


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "sopr_fast":
            self.calls[function] = args
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", operators.CALLS)
def test_registered_operators_check_dtypes_shapes_and_values(name):
    """They are what compiled code calls."""
    with Recorder() as recorder:
        operators.run(operators.CALLS[name].operator, operators.CALLS[name])
    for operator, arguments in recorder.calls.items():
        for place, value in enumerate(arguments):
            if not isinstance(value, torch.Tensor):
                continue
            other = torch.float64 if value.is_floating_point() else torch.int16
            name = operator._schema.arguments[place].name
            with pytest.raises(TypeError, match=rf"{name} must be {value.dtype}, got {other}"):
                operator(*arguments[:place], value.to(other), *arguments[place + 1 :])
            with pytest.raises(ValueError, match=rf"{name} must have shape"):
                operator(*arguments[:place], value[None], *arguments[place + 1 :])
            if name in ("points", "start", "offsets", "rows"):
                wrong = value * torch.inf if value.is_floating_point() else value + 2**30
                with pytest.raises(ValueError, match="must (be finite|ascend|be in)"):
                    operator(*arguments[:place], wrong, *arguments[place + 1 :])
            if name != "columns":  # which may have no rows
                with pytest.raises(ValueError, match="must have shape|must be between|must have at least|must ascend"):
                    operator(*arguments[:place], value[:0], *arguments[place + 1 :])


@pytest.mark.parametrize("name", operators.CALLS)
def test_registered_operators_pass_opcheck(name, device):
    one = operators.CALLS[name]
    with Recorder() as recorder:
        operators.run(one.operator, one, device=device)
    for operator, arguments in recorder.calls.items():
        if operator._schema.name.endswith("_backward"):  # differentiable once
            continue
        names = [argument.name for argument in operator._schema.arguments]
        leaves = [
            x.detach().clone().requires_grad_(name in one.gradients) if isinstance(x, torch.Tensor) else x
            for name, x in zip(names, arguments, strict=True)
        ]
        torch.library.opcheck(operator, tuple(leaves))


DIFFERENTIABLE = [name for name, call in operators.CALLS.items() if call.gradients]
INDICES = [(name, i) for name in DIFFERENTIABLE for i in ("offsets", "rows") if i in operators.CALLS[name].arguments]


@pytest.mark.parametrize(("name", "index"), INDICES)
def test_backward_checks_indices_that_numpy_changed(name, index):
    one = operators.CALLS[name]
    numbers = one.arguments[index].numpy().copy()
    leaf = one.arguments[one.gradients[0]].clone().requires_grad_()
    out = one.operator(**one.arguments | {index: torch.from_numpy(numbers), one.gradients[0]: leaf})
    numbers[...] = 2_000_000_000
    with pytest.raises(ValueError, match=rf"{index}.* must (ascend|be in)"):
        out.sum().backward()


@pytest.mark.parametrize("name", operators.CALLS)
def test_operator_refuses_tensors_of_several_devices(name):
    one = operators.CALLS[name]
    for argument, value in one.arguments.items():
        if isinstance(value, torch.Tensor):
            message = f"{name.split()[0]}: tensors are on cpu, meta; move all of them to one device"
            with pytest.raises(ValueError, match=message):
                one.operator(**one.arguments | {argument: value.to("meta")})


@pytest.mark.parametrize("operator", [ops.kmeans, ops.kmeans_init])
def test_kmeans_refuses_more_rows_than_int32_numbers(operator):
    with pytest.raises(ValueError, match=r"must have fewer than 2\^31 rows a problem, got 2147483648"):
        operator(torch.empty(1, 2**31, 1, device="meta"), 2)  # takes no memory


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_derivatives_are_correct_or_raise(name):
    one = operators.CALLS[name]

    def second(function, dtype):
        arguments = {
            key: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for key, x in one.arguments.items()
        }
        inputs = [arguments[key].clone().requires_grad_() for key in one.gradients]
        out = function(**arguments | dict(zip(one.gradients, inputs, strict=True)))
        first = torch.autograd.grad((out**3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)[0]

    if name == "segment_dropout":
        expected = second(one.reference, torch.float64)
        torch.testing.assert_close(second(one.operator, torch.float32).double(), expected, atol=1e-6, rtol=1e-4)
    else:
        with pytest.raises(NotImplementedError, match=f"{name.split()[0]} is differentiable once"):
            second(one.operator, torch.float32)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_mode_and_torch_func_raise_instead_of_returning_zeros(name):
    one = operators.CALLS[name]
    key = one.gradients[0]
    x = one.arguments[key].detach()

    def function(x):
        return one.operator(**one.arguments | {key: x}).sum()

    message = f"{name.split()[0]} has no derivative in forward mode and by torch.func; use torch.autograd.grad"
    with pytest.raises(NotImplementedError, match=message):
        torch.func.jvp(function, (x,), (torch.ones_like(x),))
    with pytest.raises(NotImplementedError, match=message):
        torch.func.grad(function)(x)
    with pytest.raises(NotImplementedError, match=message), torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    expected = function(x)
    with torch.autograd.forward_ad.dual_level():  # of constants
        assert torch.equal(function(x), expected)


def test_operators_refuse_a_device_without_kernels(monkeypatch):
    monkeypatch.setattr(native, "_cuda", None)
    monkeypatch.setattr(native, "why_no_cuda", "not built")
    reasons = {device: library._why_no_kernel(torch.device(device)) for device in ("cpu", "meta", "mps", "cuda")}
    assert reasons["cpu"] == reasons["meta"] == "" and reasons["mps"] == "compute on a CPU or with CUDA"
    assert reasons["cuda"] == "the CUDA module is not built. Or compute on the CPU"
    monkeypatch.setattr(library, "_why_no_kernel", lambda device: "wait for one")
    for name, one in operators.CALLS.items():
        with pytest.raises(NotImplementedError, match=f"{name.split()[0]} has no kernel for cpu: wait for one"):
            one.operator(**one.arguments)
