"""Build, test and time the CUDA module on a machine with a GPU (`make gpu-check`). Stages run even if others fail.

    python bench/gpu_check.py [build] [module] [test] [bench] [peers]     default: all

Builds with the installed tools for the GPUs of this machine, without network. Prints a table and writes
out/gpu_check.json after every stage. If the module does not load, tests and benchmarks count as failed, although they
would be skipped. A stage that exceeds its time limit is interrupted, so that it reports its results so far; `all`
limits the stages together.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
INSTALL = (
    "-m pip install --disable-pip-version-check --no-index --no-build-isolation --no-deps "
    "-C cmake.define.SOPR_FAST_CUDA=ON -C build-dir=build/gpu ."
)
TESTS = [f"python_tests/{place}" for place in ("ops", "sopr/test_devices.py", "inputs/policies", "estimators")]
# After an illegal access, all later tests in the process fail: several processes limit the loss.
WORKERS = 4 if importlib.util.find_spec("xdist") else 1
XDIST = ["-n", str(WORKERS), "--dist", "loadfile"] if WORKERS > 1 else []
PYTEST = ["-m", "pytest", "-q", "-o", "faulthandler_timeout=60"]
BENCH = [*PYTEST, "-s", "bench/bench_cuda.py", "-k"]
STAGES = {
    "build": [*INSTALL.split()],
    "module": ["-c", "from sopr_fast import _cuda; print(_cuda.__file__, _cuda.architectures)"],
    "test": [*PYTEST, *XDIST, *TESTS, "-k", "cuda"],
    "bench": [*BENCH, "not compiled", "--benchmark-json=out/gpu_bench.json"],
    "peers": [*BENCH, "compiled", "--benchmark-json=out/gpu_peers.json"],
}
TIMEOUTS = {"build": 200, "module": 30, "test": 180, "bench": 200, "peers": 200, "all": 450}  # seconds
GRACE = 20  # seconds for an interrupted stage to report
OUT_OF_TIME = "failed: out of time"
NOTHING_COLLECTED = 5  # pytest's exit status
STATUS = {0: "passed", NOTHING_COLLECTED: "has nothing to run"}


def gpus() -> dict[str, str]:
    """Return the names of the GPUs that torch sees and their architectures."""
    import torch

    devices = range(torch.cuda.device_count())
    return {torch.cuda.get_device_name(i): "{}{}".format(*torch.cuda.get_device_capability(i)) for i in devices}


def run(arguments: list[str], timeout: float, threads: int | None = None) -> tuple[str, int | None]:
    """Run a stage; return its status and its exit code, None after a timeout."""
    if timeout <= 0:
        return OUT_OF_TIME, None
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with subprocess.Popen(
        [PYTHON, *arguments], cwd=ROOT, env=environment, start_new_session=True, preexec_fn=_accept_interrupts
    ) as process:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return OUT_OF_TIME, None
        finally:
            if process.returncode is None:
                _stop(process)
    return STATUS.get(code, "failed"), code


def _accept_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell ignores them, and so would its children


def _stop(process: subprocess.Popen) -> None:
    """Interrupt a stage and its children as Ctrl-C would, then kill those that remain."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def report(gpu_names: dict[str, str], stages: dict[str, dict]) -> None:
    (ROOT / "out" / "gpu_check.json").write_text(json.dumps({"gpus": list(gpu_names), "stages": stages}, indent=1))
    print(f"\n{', '.join(gpu_names)}")
    for name, stage in stages.items():
        print(f"  {name:<8}{stage['status']:<24}{stage['seconds']:>8.1f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the CUDA module on this machine's GPUs.")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: {', '.join(STAGES)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown stage {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    gpu_names = gpus()
    if not gpu_names:
        print("gpu-check: torch sees no GPU on this machine; nothing to check")
        return 1
    (ROOT / "out").mkdir(exist_ok=True)
    architectures = ";".join(sorted(set(gpu_names.values())))
    commands = STAGES | {"build": [*STAGES["build"], "-C", f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architectures}"]}
    threads = {"test": max(1, os.cpu_count() // WORKERS)}
    stages: dict[str, dict] = {}
    deadline = time.perf_counter() + TIMEOUTS["all"]
    for name in options.stages or STAGES:
        start = time.perf_counter()
        status, code = run(commands[name], min(TIMEOUTS[name], deadline - start), threads.get(name))
        if name in ("test", "bench", "peers") and stages.get("module", {}).get("code", 0) != 0:
            status = "failed: no CUDA module"
        stages[name] = {"status": status, "code": code, "seconds": time.perf_counter() - start}
        report(gpu_names, stages)
    return int(any(stage["status"].startswith("failed") for stage in stages.values()))


if __name__ == "__main__":
    sys.exit(main())
