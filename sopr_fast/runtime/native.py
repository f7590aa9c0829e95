"""The compiled modules: which were built, for what, and on how many threads they and torch run."""

from __future__ import annotations

import contextlib
import platform
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from .._version import __version__

_package = __package__.rpartition(".")[0]
if find_spec("._cpu", _package) is None:
    raise ImportError("sopr_fast's compiled module is missing; build it with `pip install .` in the sources")
try:
    from .. import _cpu
except ImportError as error:
    raise ImportError(f"sopr_fast's compiled module cannot be loaded: {error}") from error

_cuda, why_no_cuda = None, "not built"
if find_spec("._cuda", _package):
    try:
        from .. import _cuda

        why_no_cuda = None
    except ImportError as error:
        why_no_cuda = f"cannot be loaded: {error}"

for _module in filter(None, (_cpu, _cuda)):
    if _module.version != __version__:
        raise ImportError(
            f"{_module.__file__} is of version {_module.version}, the Python sources are {__version__}; "
            "build again with `pip install .`"
        )

_local = threading.local()
_lock = threading.Lock()
_inside, _outside = 0, 1  # Python threads in `torch_on_one_thread`, and torch's threads outside


def threads() -> int:
    """Threads that a CPU kernel called now may use."""
    with _lock:
        return _outside if _inside else torch.get_num_threads()


@contextlib.contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Torch's own operators on one thread, since their sums depend on how many; kernels keep all."""
    global _inside, _outside
    if getattr(_local, "inside", False):
        yield
        return
    with _lock:
        _outside = _outside if _inside else torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)
    _local.inside = True
    try:
        yield
    finally:
        _local.inside = False
        with _lock:
            _inside -= 1
            torch.set_num_threads(_outside)
            if _inside:  # torch counts by thread and by process: this thread has all again, the process still one
                other = threading.Thread(target=torch.set_num_threads, args=(1,))
                other.start()
                other.join()


def build_info() -> dict[str, Any]:
    """What is installed and what it runs on: versions, compiled modules, instruction set, CUDA, threads.

    Does not touch the CUDA driver.
    """
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "modules": {
            "_cpu": _cpu.__file__,
            "_cuda": _cuda.__file__ if _cuda else None,
        },
        "instruction_set": _cpu.isa,
        "instruction_sets_available": list(_cpu.supported_isas),
        "why_no_cuda": why_no_cuda,
        "cuda_architectures": _cuda.architectures.split() if _cuda else [],
        "cuda_compiler": _cuda.compiler if _cuda else None,
    }
