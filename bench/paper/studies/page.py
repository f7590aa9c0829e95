"""docs/results.md: one page made from the result files of one scale."""

from __future__ import annotations

from pathlib import Path

from sopr_fast.runtime.files import atomic_path

from . import plans, tables
from .command import PAGE, STUDIES
from .tables import Source

_NOTES = Path(__file__).parent / "notes"
_HEAD = """# Results of the paper's experiments

This page is written by `python -m bench.paper page --scale {scale}` from the files in `bench/paper/results/{scale}`; a
test checks that they agree. Do not edit it: what each section says in words comes from `bench/paper/studies/notes`.

A task is a log of a game. All logs of a game were made by snapshots of one SAC run. SOPR trains on 30 of its snapshots,
and 10 others choose its weights; `select` learns from all 40, the nearest policy from the 30, and the other methods
from logged rewards. They rank four sets of policies, all at once; `bench/paper/README.md` says how these were made.
This matters for `select`: it weighs methods by their agreement on all candidates, and its verdict is of all of them.
(Numbers of policies are those of the scales `small` and `paper`.)

| test policies | what they are |
| --- | --- |
| Test Set I | ten policies of BEAR, CQL and CRR, trained on the log, evenly spaced in return |
| Competent policies | ten that imitate the log or improve on it; the best returns half of the best snapshot or more |
| Test Set II | the ten snapshots of the run that are not known; the same for the four tasks of a game |
| Policies of other authors | 29 to 33 for each game, the same for its four tasks; 26 are snapshots of one TRPO run |

- Regret@k is what is lost by taking the best of the first k, as a share of the range of returns. Compare it with that
  of a random order, which each table of `main` shows.
- A mean is over tasks of means over seeds; ± is its standard error over tasks. The four tasks of a game share training
  policies, Test Set II and policies of other authors, so they are not independent: standard errors over the three
  games, whose means the tables by task show, are up to about twice as large.
- "Deviation" is the standard deviation over seeds or repeats, averaged over tasks.
- `1024x16x60` means subsets of 1,024 states, 16 clusters and 60 steps. The stage `scores` is that of
  `python -m bench.paper all`. "Figure only": the paper plots the value and does not print it.
- A dash is a run that is missing, whose reason stands below the tables, or a number that is undefined, such as the rank
  correlation of equal scores.

{done} of {wanted} runs have numbers. To run what is missing (finished runs are kept):

```
python -m bench.paper logs --game GAME --scale {scale} --out bench/paper/sets    # for each of the three games
python -m bench.paper studies --scale {scale} --foreign FOLDER
```

Seconds are CPU seconds with one thread, measured while other work ran on the same two cores."""


def write_page(source: Source, page: Path = PAGE) -> None:
    """Write the page."""
    with atomic_path(page) as temporary:
        temporary.write_text(text(source, page.parent))


def text(source: Source, folder: Path) -> str:
    """Return the page.

    Args:
        source: Where the results are.
        folder: Folder of the page, from which plots are linked.
    """
    built = {study: tables.build(study, source) for study in plans.PLANS}
    cells = {(row.setting, row.task, row.seed): row for study in plans.PLANS for row in source.records(study)}
    done = sum(not row.gap for row in cells.values())
    blocks = [_HEAD.format(scale=source.scale, done=done, wanted=len(cells)), "## In short", *_note("summary")]
    for study, one in built.items():
        blocks += [f"## {study}: {STUDIES[study]}", *_note(study)]
        plot = source.results / f"{study}.png"
        if plot.exists():
            up = "../" * len(folder.resolve().relative_to(_common(folder, plot)).parts)
            blocks.append(f"![{study}]({up}{plot.resolve().relative_to(_common(folder, plot)).as_posix()})")
        blocks.append(tables.markdown(one))
        blocks.append(f"`python -m bench.paper {study} --scale {source.scale}` runs what is missing here.")
    return "\n\n".join(blocks) + "\n"


def _note(name: str) -> list[str]:
    path = _NOTES / f"{name}.md"
    return [path.read_text().strip()] if path.exists() else []


def _common(folder: Path, plot: Path) -> Path:
    first, second = folder.resolve(), plot.resolve()
    return next(parent for parent in [first, *first.parents] if second.is_relative_to(parent))
