"""What all results have in common: text, HTML of a notebook, a dictionary, JSON, a data frame and a plot."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .tables import SHORTENED, Column, to_html, to_text

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas


class Result(ABC):
    """Base of `Ranking`, `Estimates`, `Evaluation` and `Selection`."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The result in one sentence."""

    @abstractmethod
    def cells(self) -> list[Column]:
        """Return the columns that text and report show, the best first."""

    def table(self, rows: int | None = None) -> str:
        """Return the result as text of 80 columns; names are escaped and cut in the middle.

        Args:
            rows: Number of rows beyond which only the first and the last five are shown; None for all.
        """
        return to_text(self.cells(), rows)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, NaN where a number is undefined."""

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """Return the columns of a data frame by name, the best first."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame of `columns`, indexed by the first; names are objects, as a `str` of pandas must be UTF-8."""
        import pandas

        def series(column: Any) -> pandas.Series:
            return pandas.Series(column, dtype=object if any(isinstance(each, str) for each in column) else None)

        frame = pandas.DataFrame({name: series(column) for name, column in self.columns().items()})
        return frame.set_index(frame.columns[0])

    def to_json(self, **fields: Any) -> str:
        """Return `to_dict`, with more `fields`, as JSON: null in place of NaN and infinities."""
        text = json.dumps(self.to_dict() | fields)
        return json.dumps(json.loads(text, parse_constant=lambda undefined: None), indent=1)

    def plot(self, *args: Any, **options: Any) -> matplotlib.axes.Axes:
        """Plot the result, see `sopr_fast.reports.plots`.

        Args:
            ax: Axes of matplotlib; those of a new figure by default.
            returns: For a ranking, true returns to plot over scores, see `Ranking.spearman`.
            rows: For a ranking or a selection, the most policies to show.

        Raises:
            TypeError, ValueError: A candidate has no return, or returns are not finite.
        """
        return import_module("sopr_fast.reports.plots").plot(self, *args, **options)  # figures stand above results

    def __repr__(self) -> str:
        return self.table(SHORTENED)

    def _repr_html_(self) -> str:
        return to_html(self.headline, self.cells())
