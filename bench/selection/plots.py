"""Plots of the studies on public scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from sopr_fast.selection.metrics import risk_coverage

from .tables import by_task, task_means, trust_cases

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COUNTS = ("0", "1", "2", "3", "5")


def save(results: dict[str, list[dict[str, Any]]], stem: Path) -> None:
    """Save the plots of the studies that are done as STEM-measured.png and STEM-trust.png."""
    if by_task(results, "measuring"):
        _measured(results).savefig(f"{stem}-measured.png", dpi=120)
    if any(trust_cases(results).values()):
        _trust(results).savefig(f"{stem}-trust.png", dpi=120)
    plt.close("all")


def _measured(results: dict[str, list[dict[str, Any]]]) -> Any:
    tasks = by_task(results, "measuring")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axis, actions in zip(axes, (False, True), strict=True):
        part = {name: rows for name, rows in tasks.items() if ("actions" in name) == actions}
        for way in dict.fromkeys(row["way"] for rows in part.values() for row in rows):
            means = [task_means(part, "2 new", count, way=way).mean() for count in COUNTS]
            axis.plot([int(count) for count in COUNTS], means, marker="o", label=way)
        axis.set(title="cartpole with actions" if actions else "six tasks", xlabel="measured candidates")
        axis.legend(fontsize=7)
    axes[0].set(ylabel="regret of the best candidate measured", ylim=(0, None))
    return figure


def _trust(results: dict[str, list[dict[str, Any]]]) -> Any:
    tasks = trust_cases(results)
    cases = [row for rows in tasks.values() for row in rows]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, rows in tasks.items():
        axes[0].scatter([row["trust"] for row in rows], [row["gap"] for row in rows], s=12, label=name)
    axes[0].set(xlabel="trust before deployment", ylabel="gap-weighted accuracy on a new algorithm")
    axes[0].legend(fontsize=7)
    regret = np.array([row["regret@1"] for row in cases])
    for column, sign in (("trust", 1), ("success", 1), ("agreement", 1), ("expected regret", -1)):
        coverage, risk, _ = risk_coverage([sign * (row[column] or 0) for row in cases], regret)
        axes[1].plot(coverage, risk, label=f"by {column}")
    coverage, risk, _ = risk_coverage(-regret, regret)
    axes[1].plot(coverage, risk, "k:", label="hindsight")
    axes[1].set(xlabel="share of cases answered", ylabel="mean regret@1", ylim=(0, None))
    axes[1].legend(fontsize=7)
    return figure
