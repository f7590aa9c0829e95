"""CUDA kernels on the CPU: compiles their sources with simt/ and runs them in place of the CPU kernels."""

import fcntl
import importlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.needs import needs

from sopr_fast import native
from sopr_fast.ops import library

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


def compile_for_cpu(
    target: Path, kernels: Sequence[Path], others: Sequence[Path], folders: Sequence[str], definitions: Sequence[str]
) -> Path:
    """Build a shared library of kernels, whose accesses to memory are watched, and of other sources.

    `folders` are of headers, next to simt/ and csrc/; `definitions` are macros, NAME=VALUE.
    """
    compiler = shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler here")
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-fno-threadsafe-statics"]
    flags += [f"-I{folder}" for folder in (SIMT, CSRC, *folders)] + [f"-D{macro}" for macro in definitions]
    # gcc announces accesses to functions named as thread sanitizer's, which simt/shadow.cpp has instead of its library.
    builds = [
        (kernels, ["-fsanitize=thread"]),
        ([*others, *(SIMT / f"{name}.cpp" for name in ("simt", "shadow", "mma"))], ["-O2"]),
    ]
    objects = []
    for sources, more in builds:
        for source in sources:
            objects.append(target.parent / f"{source.stem}-{len(objects)}.o")
            subprocess.run([compiler, *flags, *more, "-x", "c++", "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, "-shared", *objects, "-o", target], check=True)
    return target


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
            folders = (pybind11.get_include(), sysconfig.get_path("include"))
            compile_for_cpu(path, sorted((CSRC / "cuda").glob("*.cu")), [CSRC / "bind_cuda.cpp"], folders, DEFINITIONS)
    spec = importlib.util.spec_from_file_location("_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def emulated(cuda_module_for_cpu, monkeypatch):
    """Run the CUDA kernels for CPU tensors; yields the list of kernels that ran."""
    module, ran = cuda_module_for_cpu, []

    def call(kernel, **arguments):
        ran.append(kernel)
        getattr(module, kernel)(0, *library.by_position(module, kernel, arguments))

    monkeypatch.setattr(library, "call_cpu", call)
    monkeypatch.setattr(native, "_cuda", module)
    monkeypatch.setattr(library, "needs_scratch", lambda device: True)
    encoder = importlib.import_module("sopr_fast.ops.segment_encoder")

    class Encoder(torch.autograd.Function):
        forward = staticmethod(encoder._forward_cuda)
        setup_context = staticmethod(encoder._setup_context)

        @staticmethod
        def backward(ctx, grad_out):
            return encoder._backward(ctx, grad_out)

    def differentiate(grad_out, columns_grad, *arguments):
        tensors, options = arguments[:6], encoder.EncoderOptions(*arguments[6:])
        kernels = encoder._tensor_cores_differentiate(tensors, options)
        chosen = encoder._backward_cuda if kernels else encoder._composed_backward
        return chosen(grad_out, columns_grad, *arguments)

    monkeypatch.setattr(encoder, "_segment_encoder_backward", differentiate)
    monkeypatch.setattr(encoder, "_segment_encoder", Encoder.apply)
    return ran
