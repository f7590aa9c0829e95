"""Operators of torch over the compiled kernels: each has a schema and the shapes of its tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .. import native
from .tensor_checks import check_are_tensors, check_arguments, check_reverse_mode, common_device, dtype_of, shape_of

Fields = dict[str, Any]  # arguments, sizes and results of an operator, by name

library = torch.library.Library("sopr_fast", "DEF")


def run_kernel(kernel: str, fields: Fields) -> None:
    """Run a kernel of the module for the device of its tensors, with those of the fields that it takes.

    A CPU kernel runs on as many threads as its workspace was made for, `fields["threads"]`: their number may change
    meanwhile.
    """
    device = first_tensor(fields).device
    if native.on_gpu(device):
        with current_device(device):
            getattr(native._cuda, kernel)(native.stream(device), *by_position(native._cuda, kernel, fields))
        return
    threads = fields.get("threads") or native.threads()
    getattr(native._cpu, kernel)(threads, *by_position(native._cpu, kernel, fields))


def define(
    schema: str,
    shapes: dict[str, str],
    *,
    check_sizes: Callable[[Fields], None] = lambda fields: None,
    check: Callable[[Fields], None] = lambda fields: None,
    new: Callable[[Fields], tuple[Tensor, ...]] | None = None,
    run: Callable[[str, Fields], None] = run_kernel,
    twin: Callable[[Fields], Any] | None = None,
    backward: Callable | None = None,
    setup_context: Callable = lambda ctx, inputs, output: None,
) -> Callable:
    """Register `sopr_fast::<schema>` and return the operator; NAME_backward, a backward pass, has no derivative.

    Its kernel has the same name, and takes arguments, results and sizes by their names here. Kernels read addresses,
    and compiled or exported code calls the operator itself, so the operator checks its arguments.

    Args:
        schema: Name, arguments and results; `backward` and `setup_context` are those of `torch.library` too.
        shapes: Shapes of the tensors among arguments and results by name; see `check_arguments`.
        check_sizes: Raises if the sizes do not fit the other arguments; `check`, if values are invalid. The latter is
            not called while a CUDA graph is captured, for which it would wait.
        new: Makes the results, by default tensors of their shapes.
        run: Calls the kernel, with fields that are neither arguments nor results.
        twin: Computes the results by torch, in other dtypes than float32 and on devices other than the CPU.
    """
    library.define(schema)
    name = schema.partition("(")[0]
    operator = getattr(torch.ops.sopr_fast, name).default
    names = [argument.name for argument in operator._schema.arguments]
    results = [result.name for result in operator._schema.returns]

    def checked(*arguments: Any, dtypes: bool = True) -> Fields:
        common_device(name, *arguments)
        fields = check_arguments(shapes, dict(zip(names, arguments, strict=True)), dtypes=dtypes)
        check_sizes(fields)
        return contiguous(fields)

    def make(fields: Fields) -> tuple[Tensor, ...]:
        like = first_tensor(fields)
        return tuple(like.new_empty(shape_of(shapes[each], fields), dtype=dtype_of(each)) for each in results)

    def compute(*arguments: Any) -> Any:
        fields = checked(*arguments)
        if not (first_tensor(fields).is_cuda and torch.cuda.is_current_stream_capturing()):
            check(fields)
        outputs = (new or make)(fields)
        run(name, fields | dict(zip(results, outputs, strict=True)))
        return outputs if len(outputs) > 1 else outputs[0]

    def fake(*arguments: Any) -> Any:
        outputs = (new or make)(checked(*arguments))
        return outputs if len(outputs) > 1 else outputs[0]

    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError(f"{name.removesuffix('_backward')} is differentiable once")

    library.impl(name, compute, "CPU")
    if native._cuda is not None and name in native._cuda.keywords:
        library.impl(name, compute, "CUDA")
    torch.library.register_fake(f"sopr_fast::{name}", fake, lib=library)
    if name.endswith("_backward"):  # torch would return zeros
        backward = refuse
    if backward is not None:
        torch.library.register_autograd(f"sopr_fast::{name}", backward, setup_context=setup_context, lib=library)

    def call(*arguments: Any) -> Any:
        check_are_tensors(dict(zip(names, arguments, strict=True)), shapes)
        first = arguments[0]
        if twin is not None and (first.dtype != torch.float32 or first.device.type not in ("cpu", "meta")):
            return twin(checked(*arguments, dtypes=False))
        check_reverse_mode(name, *arguments)
        if reason := _why_no_kernel(first.device):
            raise NotImplementedError(f"{name} has no kernel for {first.device}: {reason}")
        return (compute if _is_plain(arguments) else operator)(*arguments)

    return call


def _is_plain(arguments: Sequence[Any]) -> bool:
    """Return whether a CPU kernel can be called at once: torch's dispatcher takes 20 µs."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not needs_grad and all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in tensors)


def _why_no_kernel(device: torch.device) -> str:
    """Return why a device has no kernels, and what helps; "" if it has."""
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda":
        return "compute on a CPU or with CUDA"
    return "" if native._cuda else f"the CUDA module is {native.why_no_cuda}. Or compute on the CPU"


@contextlib.contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, also for the CUDA module; does nothing for a CPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        native._cuda.set_device(torch.cuda.current_device())
        yield


def first_tensor(fields: Fields) -> Tensor:
    """Return a tensor on the device of all."""
    return next(value for value in fields.values() if isinstance(value, Tensor))


def longest_first(sizes: np.ndarray) -> Tensor:
    """Return int32 indices of segments, so that no thread starts a long one last."""
    return torch.from_numpy(np.argsort(-sizes, kind="stable").astype(np.int32))


def contiguous(fields: Mapping[str, Any]) -> Fields:
    """Return the fields with tensors as kernels read them."""
    return {name: value.contiguous() if isinstance(value, Tensor) else value for name, value in fields.items()}


def by_position(module: Any, kernel: str, fields: Fields) -> list[Any]:
    """Return the fields of a kernel in its order: tensors as addresses, None as a null address."""
    values = [fields[name] for name in module.keywords[kernel].split(", ")]
    return [value.data_ptr() if isinstance(value, Tensor) else 0 if value is None else value for value in values]
