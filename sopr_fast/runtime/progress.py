"""Progress of long work: a bar after the first second, on a terminal only."""

from __future__ import annotations

from tqdm import tqdm

from .deadline import check_deadline


class _Bar(tqdm):
    def update(self, n: float | None = 1) -> bool | None:
        check_deadline()
        return super().update(n)


def progress_bar(total: int, description: str, unit: str, *, show: bool, initial: int = 0) -> tqdm:
    return _Bar(
        total=total,
        initial=initial,
        desc=description,
        unit=unit,
        delay=1,
        disable=None if show else True,
    )
