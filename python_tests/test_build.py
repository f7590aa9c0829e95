"""The built modules: no dependency on torch, one version, clear errors for wrong options."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
import torch
from support.needs import needs
from support.python import python

import sopr_fast
from sopr_fast import native

ROOT = Path(__file__).parent.parent
MODULES = [module for module in (native._cpu, native._cuda) if module]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_modules_link_neither_torch_nor_openmp(module):
    if not shutil.which("readelf"):
        pytest.skip("no readelf here")
    table = subprocess.run(["readelf", "--dynamic", module.__file__], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", table)
    assert any(name.startswith("libc.") for name in needed)
    assert not [name for name in needed if re.search("torch|c10|omp|cuda", name)]


def test_the_source_distribution_leaves_the_benchmarks_out(tmp_path):
    needs("scikit_build_core")
    made = python("-c", f"import scikit_build_core.build as b; b.build_sdist({str(tmp_path)!r})", cwd=ROOT)
    assert made.returncode == 0, made.stderr
    [archive] = tmp_path.iterdir()
    with tarfile.open(archive) as file:
        tops = {name.split("/")[1] for name in file.getnames()}
    assert {"sopr_fast", "csrc", "CMakeLists.txt"} < tops and not tops & {"bench", "python_tests"}


def test_build_info():
    info = sopr_fast.build_info()
    assert info["version"] == sopr_fast.__version__ == importlib.metadata.version("sopr_fast")
    assert info["torch"] == torch.__version__
    assert info["threads"] == torch.get_num_threads()
    assert Path(info["modules"]["_cpu"]).is_file()
    assert info["instruction_set"] in info["instruction_sets_available"]
    assert info["instruction_sets_available"][0] == "portable"
    built = info["modules"]["_cuda"] is not None
    assert built == (info["why_no_cuda"] is None) == bool(info["cuda_architectures"]) == bool(info["cuda_compiler"])


def test_import_in_the_repository_root_finds_the_installed_modules():
    script = "import sopr_fast; print(sopr_fast.__file__, sopr_fast.build_info()['modules']['_cpu'])"
    result = python("-c", script, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    package, module = result.stdout.split()
    assert Path(package).parent == ROOT / "sopr_fast"
    assert Path(module).samefile(native._cpu.__file__)


def test_modules_of_another_version_than_the_sources_are_refused(monkeypatch):
    monkeypatch.setattr(native._cpu, "version", "99.0")
    message = f"_cpu.* has version 99.0, but the Python sources have version {sopr_fast.__version__}; build again"
    with pytest.raises(ImportError, match=message):
        importlib.reload(native)


def test_a_missing_module_is_to_be_built(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ImportError, match="compiled module of sopr_fast is missing; build it with `pip install .`"):
        importlib.reload(native)


def test_a_cuda_module_that_cannot_be_loaded_is_shown_with_the_reason(tmp_path):
    package = shutil.copytree(Path(sopr_fast.__file__).parent, tmp_path / "sopr_fast", copy_function=shutil.copyfile)
    package.chmod(0o755)  # the sources may be read-only
    shutil.copyfile(native._cpu.__file__, package / Path(native._cpu.__file__).name)
    (package / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}").write_text("no library")
    result = python("-m", "sopr_fast", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^modules._cuda +cannot be loaded: .*_cuda.*\.so", result.stdout, re.MULTILINE)


IMPORT = "import sopr_fast, torch; sopr_fast.build_info(); assert not torch.cuda.is_initialized()\n"
HELP = """
import contextlib
from sopr_fast.cli.main import main
for command in ([], ["fit"], ["rank"]):
    with contextlib.suppress(SystemExit):
        main([*command, "--help"])
"""
READ = """
import numpy as np, sopr_fast
log = {"observations": np.arange(40.0).reshape(20, 2), "actions": np.ones((20, 1)), "rewards": np.ones(20),
       "terminals": np.arange(20) % 5 == 4, "timeouts": np.zeros(20, bool)}
assert len(sopr_fast.load_log(log)) == 20
"""
TRAIN = """
import numpy as np, sopr_fast
from support.problems import TINY, ladder, log
with sopr_fast.options(progress=False):  # on a busy machine it would be shown
    sopr_fast.fit(ladder(np.arange(4)), log(), range(4), config=TINY)
"""


@pytest.mark.parametrize(
    ("script", "unneeded"),
    [
        (IMPORT, ["pandas", "scipy", "sklearn", "matplotlib", "pyarrow"]),
        (HELP, ["torch", "numpy"]),
        (READ, ["torch", "scipy", "matplotlib"]),
        (TRAIN, ["torch._dynamo", "sympy"]),
    ],
    ids=["import", "help", "read", "train"],
)
def test_imports_are_only_those_that_the_work_needs(script, unneeded):
    script += f"import sys\nprint(*(name for name in {unneeded} if name in sys.modules), file=sys.stderr)"
    result = python("-W", "ignore", "-c", script)
    assert (result.returncode, result.stderr) == (0, "\n"), result.stderr


@pytest.mark.parametrize(
    ("value", "gpus", "message"),
    [
        ("ON", "", "SOPR_FAST_CUDA=ON, but no CUDA compiler was found; set CUDACXX or put nvcc"),
        ("MAYBE", "", "SOPR_FAST_CUDA is 'MAYBE'; choose AUTO, ON or OFF"),
        ("AUTO", "", "CUDA kernels OFF (no GPU is here). For one of capability 9.0, build them by SOPR_FAST_CUDA=ON"),
        ("AUTO", "9.0", "CUDA kernels OFF (no CUDA compiler found)"),
    ],
)
def test_choices_of_cuda_when_configuring(value, gpus, message, tmp_path, monkeypatch):
    """Without a CUDA compiler; AUTO does not look for one where nvidia-smi, here a script, lists no GPU."""
    cmake, pybind11 = shutil.which("cmake"), needs("pybind11")
    if not cmake:
        pytest.skip("no cmake here")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {gpus}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDACXX", "none")
    for name in ("CMAKE_CUDA_ARCHITECTURES", "CUDAARCHS"):
        monkeypatch.delenv(name, raising=False)
    values = {"SOPR_FAST_CUDA": value, "pybind11_DIR": pybind11.get_cmake_dir(), "Python_EXECUTABLE": sys.executable}
    command = [cmake, "-S", ROOT, "-B", tmp_path / "build", *(f"-D{name}={value}" for name, value in values.items())]
    result = subprocess.run(command, capture_output=True, text=True)
    output = " ".join((result.stdout + result.stderr).split())
    assert message in output and ("Looking for a CUDA compiler" in output) == (value == "ON" or bool(gpus))
    fails = value != "AUTO"
    assert (result.returncode != 0, output.count("CMake Error")) == (fails, fails)
