"""Real data and interleaved timing for the benchmarks: `contend` times all contenders, round by round.

A round runs each peer once, then sopr_fast, so that drift of the machine's speed affects all alike. Ratios are medians
over rounds of peer / sopr_fast. No contender takes less than its useful work at the machine's peak: each time is given
in units of that too. A peer that is over 20 times slower runs only in the first round, one that raises in none. Rounds
that other processes disturb are repeated, at most as often as there are rounds. The table goes to the terminal, all
numbers to --benchmark-json.
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
from sopr_fast import native
from sopr_fast.sopr.subsets import Subsets

MAX_RATIO = 20  # slower peers run once
MAX_LOAD = 0.05  # of other processes, as a share of all cores; above, a round is disturbed
_PAUSE = 0.02  # seconds, in which idle threads of the contender before stop to wait for work
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

    `peers` maps name and version to a callable. `gflop` is the useful work.
    `peak` is the peak rate of a GPU in GFLOP/s; with it, contenders run on the GPU, and timing waits until they have
    finished.
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
        contenders = {**peers, f"sopr_fast {sopr_fast.__version__}": ours}
        *_, own = contenders
        slow: dict[str, float] = {}  # relative to ours
        calm: list[dict[str, float]] = []
        disturbed: list[dict[str, float]] = []
        while len(calm) < rounds and len(disturbed) <= rounds:
            start, before = time.perf_counter(), _seconds_of_others()
            times = {name: _seconds(call) for name, call in contenders.items() if name not in slow}
            load = (_seconds_of_others() - before) / (time.perf_counter() - start) / (os.cpu_count() or 1)
            (calm if load <= MAX_LOAD else disturbed).append(times)
            slow |= {name: value / times[own] for name, value in times.items() if value > MAX_RATIO * times[own]}
        kept = (calm + disturbed)[:rounds]
        frames = {name: np.array([times[name] for times in calm + disturbed if name in times]) for name in contenders}
        table = {}
        for name in [own, *peers]:
            s = frames[name][:rounds]
            ratio = slow.get(name) or float(np.median([times[name] / times[own] for times in kept]))
            table[name] = {"min": s.min(), "median": float(np.median(s)), "ratio": ratio}
        if len(calm) < rounds:
            failed["disturbed"] = f"{rounds - len(calm)} of {rounds} rounds by other processes"
        benchmark.pedantic(ours, rounds=1)  # so that there is a JSON file
        benchmark.extra_info.update(contenders=table, failed=failed, gflop=gflop, precision=precision)
        request.config.stash.setdefault(_rows, []).append((request.node.name, table, failed, gflop, precision, peak))

    return run


def _finished(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def _seconds_of_others() -> float:
    """Return CPU seconds that other processes, or other virtual machines, have taken so far; 0 where unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    everyone = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return everyone - sum(os.times()[:4])


def _seconds(call: Callable[[], object]) -> float:
    time.sleep(_PAUSE)
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
        limit = gpu_peak or peak.get(precision)
        write("")
        write(f"{name:<46}{'min ms':>9}{'median ms':>11}{'/ ours':>8}{'/ least':>9}{'useful GFLOP/s':>16}")
        for contender, row in table.items():
            line = f"  {contender:<44}{row['min'] * 1e3:>9.1f}{row['median'] * 1e3:>11.1f}{row['ratio']:>8.2f}"
            if gflop and limit:
                rate = gflop / row["median"]
                line += f"{limit / rate:>9.1f}{rate:>9.0f} ({rate / limit:>3.0%})"
            write(line)
        if gflop and limit:
            write(f"  {f'least time, {gflop:.0f} GFLOP at the peak':<44}{gflop / limit * 1e3:>9.1f}")
        for contender, error in failed.items():
            write(f"  {contender:<44}{error}")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores"
