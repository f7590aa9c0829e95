"""Reports: one HTML file of a ranking, an evaluation or a selection, with figures and tables, that needs no network."""

from __future__ import annotations

from .writing import check_report, write_evaluation, write_ranking, write_selection

__all__ = ["check_report", "write_evaluation", "write_ranking", "write_selection"]
