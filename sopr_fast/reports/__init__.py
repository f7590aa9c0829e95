"""Reports: one HTML file of a ranking, an evaluation or a selection, with figures and tables, that needs no network."""

from __future__ import annotations

from .writing import check_report, report

__all__ = ["check_report", "report"]
