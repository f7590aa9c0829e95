"""The compiled modules: how they were built, how many threads they use, and how they end with the process."""

from __future__ import annotations

import atexit
import contextlib
import platform
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from ._version import __version__
from .runtime.resources import cpu_limit

if find_spec("._cpu", __package__) is None:
    raise ImportError("the compiled module of sopr_fast is missing; build it with `pip install .` in the source folder")
try:
    from . import _cpu
except ImportError as error:
    raise ImportError(f"the compiled module of sopr_fast cannot be loaded: {error}") from error

_cuda: Any = None  # the CUDA module, or None; a test may replace it
why_no_cuda: str | None = "not built; build it with SOPR_FAST_CUDA=ON CMAKE_CUDA_ARCHITECTURES=90 pip install ."
if find_spec("._cuda", __package__):
    try:
        from . import _cuda

        why_no_cuda = None
    except ImportError as error:
        why_no_cuda = f"cannot be loaded: {error}"

for _module in filter(None, (_cpu, _cuda)):
    if _module.version != __version__:
        raise ImportError(
            f"{_module.__file__} has version {_module.version}, but the Python sources have version {__version__}; "
            "build again with `pip install .`"
        )

_EXIT_SECONDS = 2.0
_CPU_LIMIT = cpu_limit()
_local = threading.local()
_lock = threading.RLock()  # a signal's handler may come in between
_inside = 0  # Python threads in `torch_on_one_thread`
_outside = 0  # threads of torch outside of it


def on_gpu(device: torch.device) -> bool:
    """Return whether the CUDA module computes on a device; a test of it on a CPU replaces this and `stream`."""
    return device.type == "cuda"


def stream(device: torch.device) -> int:
    """Return the address of the current stream of a GPU."""
    return torch.cuda.current_stream(device).cuda_stream


def threads() -> int:
    """Return the number of threads for a CPU kernel: torch's, but at most the CPU quota of the cgroup."""
    with _lock:
        count = _outside if _inside else torch.get_num_threads()
    return min(count, _CPU_LIMIT) if _CPU_LIMIT else count


@contextlib.contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Run torch's own operators on one thread, since their sums depend on the number; kernels keep all threads."""
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
            if _inside:  # torch has a count per thread and one per process: the process stays at 1
                other = threading.Thread(target=torch.set_num_threads, args=(1,))
                other.start()
                other.join()


def _before_exit() -> None:
    """Cancel kernels of daemon threads and wait until these threads block.

    A thread that returns from a kernel to a finalizing interpreter would abort the process.
    """
    _cpu.shut_down()
    deadline = time.monotonic() + _EXIT_SECONDS
    while _inside > _cpu.blocked_threads() and time.monotonic() < deadline:
        time.sleep(0.005)


atexit.register(_before_exit)


def build_info() -> dict[str, Any]:
    """Return versions, modules, instruction sets, threads and CUDA architectures, without touching the driver."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": threads(),
        "modules": {"_cpu": _cpu.__file__, "_cuda": _cuda.__file__ if _cuda else None},
        "instruction_set": _cpu.isa,
        "instruction_sets_available": list(_cpu.supported_isas),
        "why_no_cuda": why_no_cuda,
        "cuda_architectures": _cuda.architectures.split() if _cuda else [],
        "cuda_compiler": _cuda.compiler if _cuda else None,
    }
