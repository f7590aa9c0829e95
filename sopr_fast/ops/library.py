"""Registration of the operators with torch, and calls of their kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .. import native
from .tensor_checks import check_are_tensors, check_arguments, check_reverse_mode, common_device

library = torch.library.Library("sopr_fast", "DEF")


def define(
    schema: str,
    *,
    cpu: Callable,
    fake: Callable,
    shapes: dict[str, str],
    cuda: Callable | None = None,
    check_sizes: Callable | None = None,
    check: Callable | None = None,
    backward: Callable | None = None,
    setup_context: Callable = lambda ctx, inputs, output: None,
) -> Callable:
    """Register `sopr_fast::<schema>` and return the operator.

    Kernels read addresses, and compiled or exported code calls the operator itself, so the operator checks its
    arguments.

    Args:
        schema: Name, arguments and results; `fake`, `backward` and `setup_context` are those of `torch.library` too.
        cpu: Kernel for CPU tensors; `cuda` for CUDA tensors, registered if the CUDA module is built.
        shapes: Shapes of the tensors by name; see `check_arguments`.
        check_sizes: Raises if the sizes do not fit the other arguments; `check`, if values are invalid. The latter is
            not called while a CUDA graph is captured, for which it would wait.
    """

    def checked(kernel: Callable, check: Callable | None) -> Callable:
        def run(*arguments: Any) -> Any:
            common_device(name, *arguments)
            check_arguments(shapes, dict(zip(names, arguments, strict=True)))
            if check_sizes is not None:
                check_sizes(*arguments)
            if check is not None and not (arguments[0].is_cuda and torch.cuda.is_current_stream_capturing()):
                check(*arguments)
            return kernel(*arguments)

        return run

    library.define(schema)
    name = schema.partition("(")[0]
    operator = getattr(torch.ops.sopr_fast, name).default
    names = [argument.name for argument in operator._schema.arguments]
    on_cpu = checked(cpu, check)
    library.impl(name, on_cpu, "CPU")
    if cuda is not None and native._cuda is not None:
        library.impl(name, checked(cuda, check), "CUDA")
    torch.library.register_fake(f"sopr_fast::{name}", checked(fake, None), lib=library)
    if backward is not None:
        torch.library.register_autograd(f"sopr_fast::{name}", backward, setup_context=setup_context, lib=library)

    def run(*arguments: Any) -> Any:
        check_are_tensors(dict(zip(names, arguments, strict=True)), shapes)
        check_reverse_mode(name, *arguments)
        if reason := _why_no_kernel(arguments[0].device):
            raise NotImplementedError(f"{name} has no kernel for {arguments[0].device}: {reason}")
        return (on_cpu if _is_plain(arguments) else operator)(*arguments)

    return run


def _is_plain(arguments: Sequence[Any]) -> bool:
    """Return whether a CPU kernel can be called at once: torch's dispatcher takes 20 µs."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not needs_grad and all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in tensors)


def differentiable_once(operator: str) -> Callable:
    """Return a backward that raises on second derivatives instead of returning zeros."""

    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(f"{operator} is differentiable once")

    return backward


def _why_no_kernel(device: torch.device) -> str:
    """Return why a device has no kernels, and what helps; "" if it has."""
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda":
        return "compute on a CPU or with CUDA"
    return "" if native._cuda else f"the CUDA module is {native.why_no_cuda}. Or compute on the CPU"


def call_cpu(kernel: str, *, threads: int | None = None, **arguments: Any) -> None:
    """Run a CPU kernel on as many threads as its workspace was made for: their number may change meanwhile."""
    threads = threads or native.threads()
    try:
        getattr(native._cpu, kernel)(threads, *by_position(native._cpu, kernel, arguments))
    except MemoryError as error:
        raise MemoryError(
            f"{kernel} needs more memory than is free; pass less at a time or, since each of the {threads} threads "
            "takes memory, call torch.set_num_threads with a smaller number"
        ) from error


@contextlib.contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, also for the CUDA module, and refuse one without code; does nothing for a CPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        native._cuda.set_device(torch.cuda.current_device())
        try:
            yield
        except RuntimeError as error:
            if not any(reason in str(error) for reason in ("no kernel image", "invalid device function")):
                raise
            raise NotImplementedError(
                f"{error}: the CUDA module was built for {', '.join(native._cuda.architectures.split())}. Build "
                "sopr_fast on this machine, or compute on the CPU"
            ) from error


def call(kernel: str, device: torch.device, *, scratch: Callable[[], dict] = dict, **arguments: Any) -> None:
    """Run a kernel of either module; `scratch` makes the buffers of a CUDA kernel, a CPU kernel allocates its own."""
    if needs_scratch(device):
        arguments |= scratch()
    if device.type != "cuda":
        call_cpu(kernel, **arguments)
        return
    with current_device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        getattr(native._cuda, kernel)(stream, *by_position(native._cuda, kernel, arguments))


def needs_scratch(device: torch.device) -> bool:
    """Return whether the kernels of a device take scratch buffers; a test of CUDA kernels on a CPU replaces it."""
    return device.type == "cuda"


def longest_first(sizes: np.ndarray) -> Tensor:
    """Return int32 indices of segments, so that no thread starts a long one last."""
    return torch.from_numpy(np.argsort(-sizes, kind="stable").astype(np.int32))


def contiguous(*tensors: Any) -> tuple[Any, ...]:
    """Return the tensors as kernels read them; None stays None."""
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def by_position(module: Any, kernel: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the arguments in the order of a kernel: tensors as addresses, None as a null address."""
    names = module.keywords[kernel].split(", ")
    if arguments.keys() != {*names}:
        raise TypeError(f"{kernel} takes {', '.join(names)}, got {', '.join(arguments)}")
    values = [arguments[name] for name in names]
    return [value.data_ptr() if isinstance(value, Tensor) else 0 if value is None else value for value in values]
