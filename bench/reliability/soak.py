"""Fit, save, load, rank, estimate and select for a long time from several processes and threads; watch what grows."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import sopr_fast

from . import problem


def soak(seconds: float, folder: Path, processes: int = 2, threads: int = 2) -> dict[str, Any]:
    """Work for `seconds` and sample each process's memory, file descriptors and threads.

    Returns:
        Rounds of work, errors, and for each measure the largest growth of a process from the second quarter of the run
        to the last (medians): rss_mb, descriptors, threads.
    """
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(seconds, folder / f"{i}", threads)) for i in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    reports = [json.loads((folder / f"{i}" / "report.json").read_text()) for i in range(processes)]
    growth = [_growth(report["samples"]) for report in reports]
    return {
        "seconds": seconds,
        "rounds": sum(report["rounds"] for report in reports),
        "errors": sum(report["errors"] for report in reports) + sum(worker.exitcode != 0 for worker in workers),
        **{name: max(each[name] for each in growth) for name in growth[0]},
    }


def _work(seconds: float, folder: Path, count: int) -> None:
    warnings.simplefilter("ignore")
    folder.mkdir()
    report: dict[str, Any] = {"rounds": 0, "errors": 0, "samples": []}
    deadline = time.monotonic() + seconds

    def run(place: int) -> None:
        path, checkpoint, columns = (folder / f"{place}{suffix}" for suffix in (".safetensors", ".run", "-columns"))
        while time.monotonic() < deadline:
            try:
                problem.fit(checkpoint, seed=place).save(path)
                checkpoint.unlink()
                for _ in range(10):
                    sopr_fast.load(path).rank(problem.policies(problem.GAINS[:4] + 0.01))
                problem.estimate(checkpoint)
                checkpoint.unlink()
                for work in (problem.evaluate, problem.select):
                    work(columns)
                    shutil.rmtree(columns)
            except Exception as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                report["errors"] += 1
            report["rounds"] += 1

    running = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        report["samples"].append(_sample())
        time.sleep(min(5.0, seconds / 40))
    (folder / "report.json").write_text(json.dumps(report))


def _sample() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def _growth(samples: list[dict[str, float]]) -> dict[str, float]:
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return {
        name: round(float(np.median([s[name] for s in late]) - np.median([s[name] for s in early])), 2)
        for name in samples[0]
    }
