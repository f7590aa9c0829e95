"""Plots of the studies, from the same records as the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sopr_fast.runtime.files import atomic_path

from . import frontier_choice
from .methods import LABELS
from .records import Mean, Record, mean, measure
from .tables import Source, group_by_setting, label, tests_of, title


def write_plot(study: str, source: Source, folder: Path) -> None:
    """Write `STUDY.png`, unless matplotlib is missing; delete it where no run has numbers."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    rows = [row for row in source.records(study) if not row.gap]
    if not rows:
        (folder / f"{study}.png").unlink(missing_ok=True)
        return
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(f"{study}, scale {source.scale}, {len(rows)} runs", fontsize=9)
    _PLOTTERS[study](figure, rows, source)
    with atomic_path(folder / f"{study}.png") as temporary:
        figure.savefig(temporary, dpi=100, format="png", metadata={"Software": None})


def _bars(figure: Any, groups: dict[str, list[Record]]) -> None:
    """Plot the mean Spearman of each setting on each test set, with standard errors over tasks."""
    tests = tests_of([row for rows in groups.values() for row in rows])
    panels = figure.subplots(1, len(tests), sharey=True, squeeze=False)[0]
    names = list(groups)[::-1]
    for ax, test in zip(panels, tests, strict=True):
        for place, name in enumerate(names):
            value = mean(groups[name], measure(test, "spearman"))
            if value.value is not None:
                ax.errorbar(value.value, place, xerr=value.error or 0, fmt="o", capsize=2, color="C0")
                ax.annotate(f"{value.tasks} tasks", (value.value, place + 0.15), fontsize=6, ha="center")
        ax.set_title(title(test), fontsize=8)
        ax.set_xlabel("Spearman")
        ax.grid(alpha=0.3)
    seconds = {name: mean(groups[name], lambda row: row.cpu("fit")) for name in names}
    panels[0].set_yticks(
        range(len(names)),
        [label(groups[name]) + ("" if not seconds[name].tasks else f", {seconds[name].value:.0f} s") for name in names],
        fontsize=7,
    )


def _methods(figure: Any, rows: list[Record], source: Source) -> None:
    _bars(figure, group_by_setting(rows))


def _frontier(figure: Any, rows: list[Record], source: Source) -> None:
    tests = tests_of(rows)
    panels = figure.subplots(1, len(tests), sharex=True, squeeze=False)[0]
    drawn: dict[str, Any] = {}
    for k, point in enumerate(frontier_choice.points(group_by_setting(rows), [])):
        for ax, test in zip(panels, tests, strict=True):
            quality = point.spearman[test]
            if point.fit.value is None or quality.value is None:
                continue
            style = {"fmt": "osD^v"[k % 5], "color": f"C{k % 10}", "capsize": 2, "markersize": 4}
            drawn[point.name] = ax.errorbar(point.fit.value, quality.value, yerr=quality.error or 0, **style)
            ax.annotate(f" {quality.tasks}", (point.fit.value, quality.value), fontsize=6)
    for ax, test in zip(panels, tests, strict=True):
        ax.set(xlabel="training, s of one core", xscale="log")
        ax.set_title(f"Spearman, {title(test)}", fontsize=7)
        ax.tick_params(labelsize=7)
        ax.xaxis.label.set_fontsize(7)
        ax.grid(alpha=0.3)
    figure.legend(
        drawn.values(),
        drawn,
        loc="outside lower center",
        ncols=5,
        fontsize=7,
        title="point (number: its tasks)",
        title_fontsize=7,
    )


def _curves(figure: Any, names: list[str], series: Callable[[str, str], list[tuple[float, Mean]]], xlabel: str) -> None:
    panels = figure.subplots(1, 2)
    for ax, test in zip(panels, ("I", "II"), strict=True):
        for name in names:
            points = [(x, value) for x, value in series(test, name) if value.value is not None]
            if points:
                ax.errorbar(
                    [x for x, _ in points],
                    [value.value for _, value in points],
                    yerr=[value.error or 0 for _, value in points],
                    fmt="o-",
                    capsize=2,
                    label=name,
                )
        ax.set(xlabel=xlabel, xscale="log", title=title(test))
        ax.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)


def _subsets(figure: Any, rows: list[Record], source: Source) -> None:
    def series(test: str, name: str) -> list[tuple[float, Mean]]:
        measured, statistic = name.split(", ")

        def value(row: Record, count: str) -> float | None:
            repeats = [one[measured] for one in row.tests[test]["prefixes"][count]]
            if None in repeats:
                return None
            return fmean(repeats) if statistic == "mean" else stdev(repeats)

        counts = rows[0].tests[test]["prefixes"]
        return [(int(count), mean(rows, lambda row, count=count: value(row, count))) for count in counts]

    _curves(figure, ["spearman, mean", "spearman, deviation", "regret@3, deviation"], series, "subsets")


def _data_size(figure: Any, rows: list[Record], source: Source) -> None:
    def series(test: str, name: str) -> list[tuple[float, Mean]]:
        own = [row for row in rows if LABELS[row.method] == name]
        return [
            (count, mean([row for row in own if row.rows == count], measure(test, "spearman")))
            for count in source.sizes.rows
        ]

    _curves(figure, list(dict.fromkeys(LABELS[row.method] for row in rows)), series, "rows of the log")
    figure.axes[0].set_ylabel("Spearman")


def _distance(figure: Any, rows: list[Record], source: Source) -> None:
    ax = figure.subplots()
    for test in tests_of(rows):
        distances, orders = (mean(rows, measure(test, name)).by_task for name in ("distance", "spearman"))
        tasks = sorted(set(distances) & set(orders))
        ax.plot([distances[task] for task in tasks], [orders[task] for task in tasks], "o", label=title(test))
    ax.set(xlabel="distance to the training policies (Eq. 3)", ylabel="Spearman of SOPR-T")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=7)


def _time(figure: Any, rows: list[Record], source: Source) -> None:
    ax = figure.subplots()
    groups = group_by_setting(rows)
    for place, own in enumerate(groups.values()):
        for stage, color in (("fit", "C0"), ("rank", "C1")):
            seconds = [row.cpu(stage) for row in own]
            known = [second for second in seconds if second]
            ax.plot(known, [place] * len(known), "o", color=color, alpha=0.6)
    ax.set_yticks(range(len(groups)), [label(own) for own in groups.values()], fontsize=7)
    ax.set(xlabel="s of one core: training (blue), ranking (orange)", xscale="log")
    ax.grid(alpha=0.3)


_PLOTTERS: dict[str, Callable[[Any, list[Record], Source], None]] = {
    "main": _methods,
    "encoder": _methods,
    "future": _methods,
    "frontier": _frontier,
    "subsets": _subsets,
    "data-size": _data_size,
    "distance": _distance,
    "time": _time,
}
