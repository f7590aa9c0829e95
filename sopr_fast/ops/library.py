"""Where the operators are registered with torch, and how their kernels are called."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ..runtime import native
from ..runtime.warn import warn

library = torch.library.Library("sopr_fast", "DEF")
_log = logging.getLogger(__name__)


def define(
    schema: str,
    *,
    cpu: Callable,
    fake: Callable,
    cuda: Callable | None = None,
    reference: Callable | None = None,
    check: Callable | None = None,
    backward: Callable | None = None,
    setup_context: Callable | None = None,
) -> Callable:
    """Registers `sopr_fast::<schema>` and returns the operator.

    Where the device of the first argument has no kernel, `reference` runs, on arguments named as in the schema.
    `check` raises on what the arguments hold: inside the operator, since code that torch compiles sees no values.
    Tensors of several devices are refused.
    """

    def checked(kernel: Callable, check: Callable | None) -> Callable:
        def run(*arguments: Tensor | float | None):
            one_device(name, *arguments)
            # A stream that is being captured cannot be waited for.
            if check is not None and not (arguments[0].is_cuda and torch.cuda.is_current_stream_capturing()):
                check(*arguments)
            return kernel(*arguments)

        return run

    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, checked(cpu, check), "CPU")
    if cuda is not None and native._cuda is not None:
        library.impl(name, checked(cuda, check), "CUDA")
    torch.library.register_fake(f"sopr_fast::{name}", checked(fake, None), lib=library)
    if backward is not None:
        torch.library.register_autograd(f"sopr_fast::{name}", backward, setup_context=setup_context, lib=library)
    operator = getattr(torch.ops.sopr_fast, name).default
    if reference is None:
        return operator
    names = [argument.name for argument in operator._schema.arguments]

    def run(*arguments: Tensor | float | None):
        device = arguments[0].device
        if has_kernel(device):
            return operator(*arguments)
        _say_that_the_reference_runs(name, device.type)
        if check is not None:
            check(*arguments)
        return reference(**dict(zip(names, arguments, strict=True)))

    return run


def once(operator: str) -> Callable:
    """The backward of a backward that has none: second derivatives would be 0 without it."""

    def refuse(ctx, *_):
        raise NotImplementedError(f"{operator} is differentiable once")

    return refuse


def has_kernel(device: torch.device) -> bool:
    """Whether the operators have kernels for a device; "meta", which needs none, counts."""
    if device.type == "cuda" and native._cuda is not None:
        return torch.compiler.is_compiling() or _runs_on_gpu(device.index)  # torch.compile traces no caches
    return device.type in ("cpu", "meta")


@functools.cache
def _runs_on_gpu(index: int | None) -> bool:
    """Whether the CUDA module has code for a GPU; warns, once for each, where it has none."""
    if not torch.cuda.is_available():  # fake tensors
        return True
    major, minor = torch.cuda.get_device_capability(index)
    built = native._cuda.architectures.split()
    if any(_has_code(architecture, 10 * major + minor) for architecture in built):
        return True
    warn(
        f"{torch.cuda.get_device_name(index)} has compute capability {major}.{minor}, but sopr_fast's CUDA kernels "
        f"were built for {', '.join(built)}: its operators run in plain torch there",
    )
    return False


def _has_code(architecture: str, capability: int) -> bool:
    """Whether a GPU runs what CMake built for an architecture: machine code of its generation, or PTX of any before."""
    number, _, kind = architecture.partition("-")
    if not number.isdigit():  # "native" and the like, chosen for the GPUs at hand
        return True
    number = int(number)
    return number <= capability and (kind != "real" or number // 10 == capability // 10)


@functools.cache
def _say_that_the_reference_runs(name: str, device: str) -> None:
    _log.info("%s: no kernel for %s, running the reference", name, device)


def call_cpu(kernel: str, *arguments: Tensor | float | None) -> None:
    """Runs a CPU kernel; tensors pass as addresses, None as a null one."""
    getattr(native._cpu, kernel)(*map(_argument, arguments), native.threads())


def call_cuda(kernel: str, device: torch.device, *arguments: Tensor | float | None) -> None:
    """Runs a CUDA kernel on the current stream of a device."""
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        getattr(native._cuda, kernel)(*map(_argument, arguments), stream)


def one_device(name: str, *arguments: Tensor | float | None) -> torch.device:
    """The device of the tensors among the arguments, or a ValueError that names all of theirs."""
    devices = {a.device for a in arguments if isinstance(a, Tensor)}
    if len(devices) > 1:
        raise ValueError(f"{name}: tensors lie on {', '.join(sorted(map(str, devices)))}; all must be on one device")
    (device,) = devices
    return device


def call(kernel: str, device: torch.device, *arguments: Tensor | float | None) -> None:
    """Runs a kernel that the CPU and CUDA modules both have, under one name and argument list."""
    if device.type == "cuda":
        call_cuda(kernel, device, *arguments)
    else:
        call_cpu(kernel, *arguments)


def _argument(value: Tensor | float | None) -> float:
    if isinstance(value, Tensor):
        return value.data_ptr()
    return 0 if value is None else value


def check_tensor(name: str, value: Tensor, dtype: torch.dtype, *shape: int | str) -> Tensor:
    """The tensor, contiguous, or an error that names it; letters in `shape` stand for any size."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {value.dtype}")
    fits = value.dim() == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, value.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(value.shape)}")
    return value.contiguous()


def contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors as kernels read them."""
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def check_offsets(offsets: Tensor, total: int) -> None:
    """An error unless the segments, one after the other, cover rows 0 to total; a GPU is not waited for."""
    if offsets.device.type != "cpu":
        return
    ends = offsets.numpy()
    if len(ends) < 1 or ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"offsets must ascend from 0 to the {total} rows")
