"""The CUDA kernels' own sources, compiled for the CPU by simt/: what can be known of them without a GPU."""

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import operators
import pytest
import torch
from test_segment_attention import RNG, batch

from sopr_fast import ops
from sopr_fast.ops import library, reference

HERE = Path(__file__).parent
CSRC = HERE.parent / "csrc"
DEFINITIONS = ('SOPR_VERSION="0"', 'SOPR_CUDA_ARCHITECTURES="none"', 'SOPR_CUDA_COMPILER="c++"')


@pytest.fixture(scope="session")
def module(tmp_path_factory):
    """csrc/bind_cuda.cpp and csrc/cuda/ as a module that runs on the CPU."""
    pybind11 = pytest.importorskip("pybind11", reason="no pybind11 here")
    compiler = shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler here")
    path = tmp_path_factory.mktemp("simt") / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = (HERE / "simt", CSRC, pybind11.get_include(), sysconfig.get_path("include"))
    sources = (CSRC / "bind_cuda.cpp", HERE / "simt" / "simt.cpp", *sorted((CSRC / "cuda").glob("*.cu")))
    options = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-x", "c++"]
    subprocess.run(
        [compiler, *options, *(f"-I{f}" for f in folders), *(f"-D{d}" for d in DEFINITIONS), *sources, "-o", path],
        check=True,
    )
    spec = importlib.util.spec_from_file_location("_cuda", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def emulated(module, monkeypatch):
    """Operators on CPU tensors run the CUDA kernels; the list of those that ran."""
    ran = []

    def call(kernel, *arguments):
        ran.append(kernel)
        getattr(module, kernel)(*map(library._argument, arguments), 0)

    monkeypatch.setattr(library, "call_cpu", call)
    return ran


@pytest.mark.parametrize("name", ["segment_mean", "segment_dropout", "segment_attention"])
def test_cuda_kernels_match_float64(name, emulated):
    operators.check(name)
    assert set(emulated) <= {name, f"{name}_backward"} and emulated


@pytest.mark.parametrize(("sizes", "heads", "dim"), [([33, 0, 70], 1, 67), ([5, 32, 1], 3, 129), ([40], 2, 64)])
def test_cuda_segment_attention_of_wide_heads(sizes, heads, dim, emulated):
    *inputs, offsets = batch(sizes, heads, dim)
    options = {"scale": 0.2, "dropout": 0.3, "rng": RNG, "level": 1, "layer": 2, "segment_base": 9}
    found = [x.clone().requires_grad_() for x in inputs]
    oracle = [x.double().requires_grad_() for x in inputs]
    out = ops.segment_attention(*found, offsets, **options)
    expected = reference.segment_attention(*oracle, offsets, **options)
    weights = torch.linspace(-1, 1, out.numel()).cos().view(out.shape)
    out.backward(weights)
    expected.backward(weights.double())
    assert (out - expected).norm() <= 5e-6 * expected.norm()
    for mine, theirs in zip(found, oracle, strict=True):
        assert (mine.grad - theirs.grad).norm() <= 5e-6 * theirs.grad.norm()
    assert emulated == ["segment_attention", "segment_attention_backward"]


def test_cuda_segment_attention_keeps_not_a_number(emulated):
    q, k, v, offsets = batch([10, 40], 2, 8)
    k[30, 1, 3] = float("nan")
    out = ops.segment_attention(q, k, v, offsets)
    assert out[:10].isfinite().all() and out[:, 0].isfinite().all()
    assert out[10:, 1].isnan().all()
