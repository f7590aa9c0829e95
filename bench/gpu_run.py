"""Check and time the CUDA kernels within the few minutes of a lent GPU, the most valuable facts first, without network.

    python bench/gpu_run.py first [--seconds 440] [--out FOLDER]     load or build, check, time, profile
    python bench/gpu_run.py second [--seconds 200] [--out FOLDER]    what the facts of the first ask for

Every fact is a process with a time limit, so that an illegal access costs one fact. It is appended to facts.jsonl when
it is known; all output is in log.txt. The table of all facts is printed last, whatever happens. A fact fails if its
process does, if it runs out of time, or if its tests are skipped. SOPR_FAST_GPU_RUN=cpu tries this without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(os.environ.get("SOPR_FAST_GPU_SITE", Path.home() / "site"))  # where the package is installed
DEVICE = os.environ.get("SOPR_FAST_GPU_RUN", "cuda")
GRACE = 5  # seconds between interrupt and kill
BUILD = (
    f"-m pip install -q --no-index --no-build-isolation --no-deps --upgrade --target {SITE} -C build-dir=build/gpu "
    "-C cmake.define.SOPR_FAST_CUDA=ON -C cmake.define.CMAKE_CUDA_ARCHITECTURES=90-real ."
)
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
TESTS = [*PYTEST, *["-n", "8", "--dist", "worksteal", "-k"], "cuda and not second_device"]
TESTS += ["-m", "not fuzz and not docs and not emulated"]
OURS = ["--error-exitcode", "1", "--kernel-name", "kns=sopr"]
FOLDERS = [f"python_tests/{room}" for room in ("ops", "sopr", "estimators")]  # of tests that select a GPU
# initcheck must see what torch's kernels write, and reports reads that no result needs: see gpu.md.
SANITIZERS = {"memcheck": OURS, "racecheck": OURS, "initcheck": [], "synccheck": OURS}
SANITIZE = ["--report-api-errors", "no", "--print-limit", "20"]
HOT = "lloyd_kernel|plus_plus_kernel|closed_kernel|open_kernel|closed_backward|open_block|open_attention|sum_blocks"
NCU = ["ncu", "--clock-control", "none"]
PROFILED = [sys.executable, "bench/gpu_facts.py", "profile"]
METRICS = {
    "us": "gpu__time_duration.sum",
    "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor %": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "issue %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "shared %": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "L2 %": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "local": "smsp__sass_inst_executed_op_local.sum",
}


class Job(NamedTuple):
    name: str
    command: list[str]
    limit: float  # seconds
    environment: Mapping[str, str] = MappingProxyType({})


def python(name: str, limit: float, *arguments: str, **environment: str) -> Job:
    return Job(name, [sys.executable, *arguments], limit, environment)


def fact(name: str, limit: float, *arguments: str, **environment: str) -> Job:
    return python(name, limit, "bench/gpu_facts.py", *arguments, **environment)


class Run:
    """Runs jobs until its time is over; keeps and prints their facts."""

    def __init__(self, seconds: float, out: Path) -> None:
        self.end, self.out, self.facts, self.lock = time.monotonic() + seconds, out, [], Lock()
        out.mkdir(parents=True, exist_ok=True)

    def together(self, jobs: list[Job], most: int) -> bool:
        """Run jobs, so many at once; return whether all passed."""
        with ThreadPoolExecutor(most) as pool:
            return all(list(pool.map(self.alone, jobs)))

    def alone(self, job: Job) -> bool:
        """Run a job, and return whether it passed."""
        begin = time.monotonic()
        if (limit := min(job.limit, self.end - begin - 2 * GRACE)) < 3:
            return self._note(job.name, "FAILED: no time left", 0, {}, "")
        late, text, status = _run(job, limit)
        values = _values(text)
        failed = status != 0 or values.get("ok") is False or values.pop("skipped", 0)
        result = "FAILED: out of time" if late else "FAILED" if failed else "passed"
        return self._note(job.name, result, time.monotonic() - begin, values, text)

    def _note(self, name: str, status: str, seconds: float, values: dict, text: str) -> bool:
        fact = {"name": name, "status": status, "seconds": round(seconds, 1), **values}
        with self.lock, (self.out / "facts.jsonl").open("a") as facts, (self.out / "log.txt").open("a") as log:
            self.facts.append(fact)
            facts.write(json.dumps(fact) + "\n")
            log.write(f"\n===== {name}\n{text[-100_000:]}")
        return status == "passed"

    def table(self) -> None:
        for row in self.facts:
            if row["name"] == "ncu":
                print(row["name"], row["status"], *(f"  {k}: {v}" for k, v in list(row.items())[3:]), sep="\n")
                continue
            shown = (
                f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in list(row.items())[3:] if k != "ok"
            )
            print(f"{row['name']:<40} {row['status']:<20}{row['seconds']:>6}  {' '.join(shown)[:300]}")


def _run(job: Job, limit: float) -> tuple[bool, str, int]:
    """Run a process and all that it starts; return whether its time ran out, its output and its exit status."""
    environment = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "4",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'python_tests'}:{SITE}",
    }
    process = subprocess.Popen(
        ["env", *job.command],  # reports a missing program
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | environment | dict(job.environment),
        start_new_session=True,
    )
    late = False
    for wait, stop in ((limit, signal.SIGINT), (GRACE, signal.SIGKILL), (GRACE, signal.SIGKILL)):
        try:
            text, _ = process.communicate(timeout=wait)
            return late, text, process.returncode
        except subprocess.TimeoutExpired:
            late = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, stop)
    return True, "", 1


def _values(text: str) -> dict:
    """Return the last line of JSON, ncu's metrics by kernel, pytest's counts and benchmarks, or the last line."""
    lines = text.strip().splitlines() or [""]
    if table := [line for line in lines if line.startswith('"')]:
        names = {metric: name for name, metric in METRICS.items()}
        kernels: dict[str, list[str]] = {}
        for row in csv.DictReader(table):
            kernel = re.sub(r".*::|\(.*", "", row["Kernel Name"])
            kernels.setdefault(f"{row['ID']} {kernel}", []).append(f"{names[row['Metric Name']]} {row['Metric Value']}")
        return {kernel: ", ".join(values) for kernel, values in kernels.items()}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            if isinstance(values := json.loads(line), dict):
                return values
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)\b", lines[-1])}
    if not counts:
        return {"last": lines[-1][-200:]}
    times = re.findall(r"^  (\S.{43})\s+([\d.,]+)\s+([\d.,]+)\s+([\d.]+)", text, re.MULTILINE)
    return counts | {name.strip(): f"{middle} ms ({ratio})" for name, _, middle, ratio in times}


def first(run: Run) -> None:
    sys.path[:0] = [str(ROOT), str(SITE), str(ROOT / "python_tests")]
    run.alone(fact("environment", 40, "environment"))
    if not run.alone(fact("module, carried", 20, "module")):
        run.alone(python("build", 200, *BUILD.split()))
        if not run.alone(fact("module, built", 20, "module")):
            return  # without the module, tests are skipped
    from support.operators import CALLS

    checks = [fact(f"operator {name}", 60, "operator", name, SOPR_FAST_CUDA_DEBUG="1") for name in CALLS]
    checks += [
        fact(f"encoder in {precision} as on the CPU", 90, "encoder", precision) for precision in ("fp32", "bf16")
    ]
    run.together([*checks, fact("k-means as on the CPU", 90, "clusters")], 7)
    for precision in ("fp32", "bf16"):
        run.alone(fact(f"forward 10 x 20, {precision}", 45, "forward", precision))
    sanitized = [sys.executable, "-m", "support.operators", DEVICE]
    pool = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # torch's pool would hide accesses outside of tensors
    run.together(
        [python("tests", 110, *TESTS, f"--junitxml={run.out / 'tests.xml'}", *FOLDERS)]
        + [
            Job(f"sanitizer {t}", ["compute-sanitizer", "--tool", t, *SANITIZE, *kernels, *sanitized], 75, pool)
            for t, kernels in SANITIZERS.items()
        ],
        5,
    )
    for name, select, limit in [
        ("step of 30, graph or not", "captured", 45),
        ("Lloyd of 200 problems", "lloyd", 50),
        ("k-means++ of 200 problems", "kmeans_init", 30),
        ("step of 30, peers", "training_step and not compiled and not captured", 50),
        ("forward 10 x 20, peers", "forward and not compiled", 60),
    ]:
        run.alone(python(name, limit, *PYTEST, "-s", "bench/bench_cuda.py", "-k", select))
    run.alone(python("rank 10 x 200", 45, "bench/pipeline.py", "rank", "--device", DEVICE))
    metrics = ["--metrics", ",".join(METRICS.values()), "-k", f"regex:{HOT}", "-c", "40", "--csv"]
    run.alone(Job("ncu", [*NCU, *metrics, *PROFILED], 60))


def second(run: Run) -> None:
    """After failures, their causes; after none, whole training, the full profile of a kernel, compiled peers."""
    rows = [json.loads(line) for line in (run.out / "facts.jsonl").read_text().splitlines()]
    failed = [row["name"] for row in rows if row["status"].startswith("FAILED")]
    for name in [name for name in failed if name.startswith("operator ")]:
        one = [sys.executable, "bench/gpu_facts.py", "operator", name.removeprefix("operator ")]
        run.alone(Job(f"{name}, no tensor cores", one, 30, {"SOPR_FAST_TENSOR_CORES": "0"}))
        run.alone(
            Job(f"{name}, memcheck", ["compute-sanitizer", "--show-backtrace", "yes", *SANITIZE, *OURS, *one], 60)
        )
    run.alone(python("train 200 steps", 40, "bench/pipeline.py", "train", "--device", DEVICE))
    for precision in ("fp32", "bf16"):
        rank = f"bench/pipeline.py rank --device {DEVICE} --precision {precision}"
        run.alone(python(f"rank 10 x 200, {precision}", 40, *rank.split()))
    full = ["--set", "full", "--import-source", "yes", "-k", "regex:closed_kernel", "-c", "1", "-o"]
    run.alone(Job("full profile of a kernel", [*NCU, *full, str(run.out / "closed"), *PROFILED], 60))
    run.alone(python("compiled peers", 150, *PYTEST, "-s", "bench/bench_cuda.py", "-k", "compiled"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and time the CUDA kernels in a few minutes of a GPU.")
    parser.add_argument("what", choices=("first", "second"))
    parser.add_argument("--seconds", type=float, help="default: 440 and 200")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu")
    options = parser.parse_args()
    run = Run(options.seconds or {"first": 440, "second": 200}[options.what], options.out.resolve())
    try:
        {"first": first, "second": second}[options.what](run)
    finally:
        run.table()
    return int(any(row["status"].startswith("FAILED") for row in run.facts))


if __name__ == "__main__":
    sys.exit(main())
