"""Real data and a fair race for the benchmarks: `contend` times every contender in turn, round by round.

A round runs each peer once, then sopr_fast, so all of them see the same drift of the machine's speed; the ratio shown
is the median over rounds of peer / sopr_fast. The table goes to the terminal, everything to --benchmark-json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import sopr_fast
from sopr_fast import Subsets, example
from sopr_fast.policies import as_policies, collect, probe

SIZE, CLUSTERS = 16384, 256
_rows = pytest.StashKey[list]()


@pytest.fixture(scope="session")
def states() -> np.ndarray:
    """(65536, 17) float32: real HalfCheetah states."""
    return example.states()


@pytest.fixture(scope="session")
def subsets(states) -> Subsets:
    """One subset of the paper's size, with its real clusters."""
    return Subsets.draw(states, 1, size=SIZE, clusters=CLUSTERS)


@pytest.fixture(scope="session")
def columns(states, subsets) -> torch.Tensor:
    """(30, U, 6) actions of real policies."""
    policies = as_policies(dict(list(example.policies().items())[::-1][:30]), states_count=len(states))
    layout = probe(policies, subsets.states, subsets.source)
    return collect(policies, subsets.states, subsets.source, layout)


@pytest.fixture
def contend(benchmark, request) -> Callable:
    """contend(ours, peers, rounds=5, gflop=None): see above; `peers` maps name and version to a callable."""

    def run(
        ours: Callable[[], object], peers: dict[str, Callable[[], object]], rounds: int = 5, gflop: float | None = None
    ) -> None:
        seconds: dict[str, list[float]] = {name: [] for name in peers}
        for contender in (ours, *peers.values()):
            contender()

        def run_peers() -> None:
            for name, peer in peers.items():
                start = time.perf_counter()
                peer()
                seconds[name].append(time.perf_counter() - start)

        benchmark.pedantic(ours, setup=run_peers, rounds=rounds)
        mine = np.array(benchmark.stats.stats.data)
        seconds = {f"sopr_fast {sopr_fast.__version__}": mine, **{n: np.array(s) for n, s in seconds.items()}}
        table = {
            name: {"min": s.min(), "median": float(np.median(s)), "ratio": float(np.median(s / mine))}
            for name, s in seconds.items()
        }
        benchmark.extra_info.update(contenders=table, gflop=gflop)
        request.config.stash.setdefault(_rows, []).append((request.node.name, table, gflop))

    return run


def peak_gflops() -> float:
    """What torch's float32 matrix product reaches here at its best of three sizes, all threads."""
    best = 0.0
    for size in (512, 1024, 2048):
        a = torch.randn(size, size)
        for _ in range(5):
            start = time.perf_counter()
            a @ a
            best = max(best, 2 * size**3 / (time.perf_counter() - start) / 1e9)
    return best


def pytest_terminal_summary(terminalreporter, config) -> None:
    rows = config.stash.get(_rows, None)
    if not rows:
        return
    info = sopr_fast.build_info()
    write = terminalreporter.write_line
    write("")
    write(
        f"{_processor()}, {info['threads']} threads, {info['instruction_set']}, torch {info['torch']}; "
        f"torch matmul reaches {peak_gflops():.0f} GFLOP/s in fp32"
    )
    for name, table, gflop in rows:
        write("")
        write(f"{name:<46}{'min ms':>10}{'median ms':>11}{'peer / ours':>13}{'GFLOP/s':>9}")
        for contender, row in table.items():
            rate = f"{gflop / row['median']:>9.0f}" if gflop else ""
            write(f"  {contender:<44}{row['min'] * 1e3:>10.1f}{row['median'] * 1e3:>11.1f}{row['ratio']:>13.2f}{rate}")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores"
