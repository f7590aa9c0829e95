"""Real data and interleaved timing for the benchmarks: `contend` times all contenders, round by round.

A round runs each peer once, then sopr_fast, so that drift of the machine's speed affects all alike. Ratios are medians
over rounds of peer / sopr_fast. A peer that is over 20 times slower runs only in the first round, one that raises in
none. The table goes to the terminal, all numbers to --benchmark-json.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import halfcheetah
import numpy as np
import pytest
import torch
from workload import CLUSTERS, SIZE, actions_on

import sopr_fast
from sopr_fast import Subsets
from sopr_fast.runtime import native

MAX_RATIO = 20  # slower peers run once
_rows = pytest.StashKey[list]()


@pytest.fixture(scope="session")
def states() -> np.ndarray:
    """(65536, 17) float32: real HalfCheetah states."""
    return halfcheetah.states()


@pytest.fixture(scope="session")
def subsets(states) -> Subsets:
    """One subset of the paper's size, with its real clusters."""
    return Subsets.draw(states, 1, size=SIZE, clusters=CLUSTERS)


@pytest.fixture(scope="session")
def columns(subsets) -> torch.Tensor:
    """(30, U, 6) actions of real policies."""
    return actions_on(subsets)


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """A GPU; skips without one or without CUDA kernels."""
    if native._cuda is None or not torch.cuda.is_available():
        pytest.skip(f"CUDA module {native.why_no_cuda}" if native._cuda is None else "no CUDA device")
    return torch.device("cuda")


@pytest.fixture
def contend(benchmark, request) -> Callable:
    """contend(ours, peers, rounds=5, gflop=None, precision="fp32", peak=None): time `ours` and its peers.

    `peers` maps name and version to a callable. `peak` is the peak rate of a GPU in GFLOP/s; with it, contenders run on
    the GPU, and timing waits until they have finished.
    """

    def run(
        ours: Callable[[], object],
        peers: dict[str, Callable[[], object]],
        rounds: int = 5,
        gflop: float | None = None,
        precision: str = "fp32",
        peak: float | None = None,
    ) -> None:
        if peak:
            ours, peers = _finished(ours), {name: _finished(peer) for name, peer in peers.items()}
        ours()
        failed: dict[str, str] = {}
        for name, peer in peers.items():
            try:
                peer()
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        peers = {name: peer for name, peer in peers.items() if name not in failed}
        seconds: dict[str, list[float]] = {name: [] for name in peers}
        limit = MAX_RATIO * _seconds(ours)

        def run_peers() -> None:
            for name, peer in peers.items():
                if not seconds[name] or seconds[name][0] < limit:
                    seconds[name].append(_seconds(peer))

        try:
            benchmark.pedantic(ours, setup=run_peers, rounds=rounds)
        except KeyboardInterrupt:
            benchmark.has_error = True  # a benchmark without numbers would prevent the JSON file
            raise
        own = np.array(benchmark.stats.stats.data)
        seconds = {f"sopr_fast {sopr_fast.__version__}": own, **{n: np.array(s) for n, s in seconds.items()}}
        table = {
            name: {"min": s.min(), "median": float(np.median(s)), "ratio": float(np.median(s / own[: len(s)]))}
            for name, s in seconds.items()
        }
        benchmark.extra_info.update(contenders=table, failed=failed, gflop=gflop, precision=precision)
        request.config.stash.setdefault(_rows, []).append((request.node.name, table, failed, gflop, precision, peak))

    return run


def _finished(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_gflops(threads: int) -> dict[str, float]:
    """Return the peak rate of multiply-adds of this machine by precision (peak.cpp); empty if it cannot be measured."""
    with tempfile.TemporaryDirectory() as folder:
        program, source = Path(folder) / "peak", Path(__file__).parent / "peak.cpp"
        try:
            subprocess.run(
                [os.environ.get("CXX", "c++"), "-O3", "-march=native", "-pthread", source, "-o", program], check=True
            )
            printed = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return {}
    fp32, bf16 = map(float, printed.split())
    return {"fp32": fp32, "bf16": bf16 or fp32}


def pytest_terminal_summary(terminalreporter, config) -> None:
    rows = config.stash.get(_rows, None)
    if not rows:
        return
    info = sopr_fast.build_info()
    peak = peak_gflops(info["threads"])
    write = terminalreporter.write_line
    write("")
    write(f"{_processor()}, {info['threads']} threads, {info['instruction_set']}, torch {info['torch']}")
    if peak:
        write(f"multiply-adds on registers alone: {peak['fp32']:.0f} GFLOP/s in fp32, {peak['bf16']:.0f} in bf16")
    for name, table, failed, gflop, precision, gpu_peak in rows:
        write("")
        write(f"{name:<46}{'min ms':>10}{'median ms':>11}{'peer / ours':>13}{'GFLOP/s':>9}{'of peak':>9}")
        for contender, row in table.items():
            rate = gflop / row["median"] if gflop else 0
            last = f"{rate:>9.0f}" if rate else ""
            limit = gpu_peak or peak.get(precision)
            if rate and limit:
                last += f"{rate / limit:>9.0%}"
            write(f"  {contender:<44}{row['min'] * 1e3:>10.1f}{row['median'] * 1e3:>11.1f}{row['ratio']:>13.2f}{last}")
        for contender, error in failed.items():
            write(f"  {contender:<44}{error}")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores"
