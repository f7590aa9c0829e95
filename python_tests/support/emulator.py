"""CUDA kernels on the CPU: compiles their sources with simt/ and runs them in place of the CPU kernels."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.needs import needs

from sopr_fast import native

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
SIMT = HERE / "simt"
DEFINITIONS = (
    'SOPR_VERSION="0"',
    'SOPR_CUDA_ARCHITECTURES="none"',
    'SOPR_CUDA_COMPILER="c++"',
    "SOPR_MAX_TOKENS=160",
    "SOPR_MAX_OPEN_TILES=8",
    "SOPR_MAX_OPEN_TILES_BACKWARD=4",
    "SOPR_KMEANS_THREADS=96",
    "SOPR_KMEANS_LEAST_ROWS=simt::device.least_rows",
    "COUNT_DISTANCES=simt::count_distances",
)


def compile_for_cpu(target: Path, include: Sequence[str]) -> None:
    """Build a module of the kernels, whose accesses to memory are watched, and of their bindings."""
    compiler = shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler here")
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-fno-threadsafe-statics"]
    flags += [f"-I{folder}" for folder in (SIMT, CSRC, *include)] + [f"-D{macro}" for macro in DEFINITIONS]
    # gcc announces accesses to functions named as thread sanitizer's, which simt/shadow.cpp has instead of its library.
    sources = {source: "-fsanitize=thread" for source in sorted((CSRC / "cuda").glob("*.cu"))}
    sources |= dict.fromkeys([CSRC / "bind_cuda.cpp", *SIMT.glob("*.cpp")], "-O2")
    objects = []
    for source, flag in sources.items():
        objects.append(target.parent / f"{source.stem}-{len(objects)}.o")
        subprocess.run([compiler, *flags, flag, "-x", "c++", "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, "-shared", *objects, "-o", target], check=True)


@pytest.fixture(scope="session")
def cuda_module_for_cpu(tmp_path_factory):
    """csrc/bind_cuda.cpp and csrc/cuda/ as a module that runs on the CPU, built once for all processes of the tests."""
    pybind11 = needs("pybind11")
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    with open(folder / "simt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            compile_for_cpu(path, (pybind11.get_include(), sysconfig.get_path("include")))
    spec = importlib.util.spec_from_file_location("_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorded:
    """A module of kernels; lists those that run."""

    def __init__(self, module):
        self.module, self.ran = module, []

    def __getattr__(self, name):
        if name in self.module.keywords:
            self.ran.append(name)
        return getattr(self.module, name)


@pytest.fixture
def emulated(cuda_module_for_cpu, monkeypatch):
    """Run the CUDA kernels for CPU tensors; yields the list of kernels that ran."""
    module = Recorded(cuda_module_for_cpu)
    monkeypatch.setattr(native, "_cuda", module)
    monkeypatch.setattr(native, "on_gpu", lambda device: True)
    monkeypatch.setattr(native, "stream", lambda device: 0)
    return module.ran
