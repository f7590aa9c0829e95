"""What `make gpu-check` runs on a machine with a GPU: build, tests, benchmarks; a stage that fails hides no other.

    python bench/gpu_check.py [build] [module] [test] [bench] [peers] [--timeout STAGE=SECONDS ...]     default: all

Builds with what is installed, for the GPUs that are there; needs no network. After every stage prints a table, writes
out/gpu_check.json. Where the module does not load, tests and benchmarks would skip: they count as failed. A stage whose
time is up is interrupted, so that it reports what it has; `all` limits the stages together.
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
_TESTED = ("operators", "cuda", "dropout", "kmeans", "segment_*", "devices", "policies", "features", "estimators*")
TESTS = [str(path.relative_to(ROOT)) for name in _TESTED for path in sorted(ROOT.glob(f"python_tests/test_{name}.py"))]
# After an illegal access everything in a process fails: the fewer tests share one, the more still say something.
WORKERS = 4 if importlib.util.find_spec("xdist") else 1
SHARED_OUT = ["-n", str(WORKERS), "--dist", "loadfile"] if WORKERS > 1 else []
PYTEST = ["-m", "pytest", "-q", "-o", "faulthandler_timeout=60"]
BENCH = [*PYTEST, "-s", "bench/bench_cuda.py", "-k"]
STAGES = {
    "build": [*INSTALL.split()],
    "module": ["-c", "from sopr_fast import _cuda; print(_cuda.__file__, _cuda.architectures)"],
    "test": [*PYTEST, *SHARED_OUT, *TESTS, "-k", "cuda"],
    "bench": [*BENCH, "not compiled", "--benchmark-json=out/gpu_bench.json"],
    "peers": [*BENCH, "compiled", "--benchmark-json=out/gpu_peers.json"],
}
TIMEOUTS = {"build": 200, "module": 30, "test": 180, "bench": 200, "peers": 200, "all": 450}  # seconds
GRACE = 20  # seconds, for an interrupted stage to report
OUT_OF_TIME = "failed: out of time"
NOTHING_COLLECTED = 5  # pytest's exit status
STATUS = {0: "passed", NOTHING_COLLECTED: "has nothing to run"}


def gpus() -> dict[str, str]:
    """Names of the GPUs that torch sees, with their architectures."""
    import torch

    devices = range(torch.cuda.device_count())
    return {torch.cuda.get_device_name(i): "{}{}".format(*torch.cuda.get_device_capability(i)) for i in devices}


def run(arguments: list[str], timeout: float, threads: int | None = None) -> tuple[str, int | None]:
    """The status of a stage, and its exit code, None where its time ran out."""
    if timeout <= 0:
        return OUT_OF_TIME, None
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with subprocess.Popen(
        [PYTHON, *arguments], cwd=ROOT, env=environment, start_new_session=True, preexec_fn=_hear_interrupts
    ) as process:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return OUT_OF_TIME, None
        finally:
            if process.returncode is None:
                _stop(process)
    return STATUS.get(code, "failed"), code


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell runs in the background ignores them, with its children


def _stop(process: subprocess.Popen) -> None:
    """Ends a stage with all that it started: interrupts it as Ctrl-C would, then kills what is left."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def report(found: dict[str, str], stages: dict[str, dict]) -> None:
    (ROOT / "out" / "gpu_check.json").write_text(json.dumps({"gpus": list(found), "stages": stages}, indent=1))
    print(f"\n{', '.join(found)}")
    for name, stage in stages.items():
        print(f"  {name:<8}{stage['status']:<24}{stage['seconds']:>8.1f} s", flush=True)


def limit(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    if name not in TIMEOUTS:
        raise ValueError
    return name, float(seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the CUDA module on this machine's GPUs.")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--timeout", type=limit, nargs="+", default=[], metavar="STAGE=SECONDS", help=f"not {TIMEOUTS}")
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown stage {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    timeouts = TIMEOUTS | dict(options.timeout)
    found = gpus()
    if not found:
        print("gpu-check: torch sees no GPU on this machine, so there is nothing to check")
        return 1
    (ROOT / "out").mkdir(exist_ok=True)
    architectures = ";".join(sorted(set(found.values())))
    commands = STAGES | {"build": [*STAGES["build"], "-C", f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architectures}"]}
    threads = {"test": max(1, os.cpu_count() // WORKERS)}
    stages: dict[str, dict] = {}
    deadline = time.perf_counter() + timeouts["all"]
    for name in options.stages or STAGES:
        start = time.perf_counter()
        status, code = run(commands[name], min(timeouts[name], deadline - start), threads.get(name))
        if name in ("test", "bench", "peers") and stages.get("module", {}).get("code", 0) != 0:
            status = "failed: no CUDA module"
        stages[name] = {"status": status, "code": code, "seconds": time.perf_counter() - start}
        report(found, stages)
    return int(any(stage["status"].startswith("failed") for stage in stages.values()))


if __name__ == "__main__":
    sys.exit(main())
