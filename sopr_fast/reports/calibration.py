"""How far predictions for left-out policies err, and how often their intervals hold."""

from __future__ import annotations

import numpy as np

from ..selection.intervals import Calibration, LeftOut
from ..selection.selection import Selection
from . import figures
from .page import Figure
from .svg import StyleSheet
from .text import percent

_LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])


def _left_out(selection: Selection) -> dict[str, LeftOut] | None:
    prediction = selection.prediction
    if prediction.left_out is None:
        return None
    parts = {"left out at random": prediction.left_out}
    if prediction.groups_left_out:
        groups = list(prediction.groups_left_out.values())
        parts["left out as a group"] = LeftOut(
            [name for group in groups for name in group.names],
            *(
                np.concatenate([getattr(group, key) for group in groups])
                for key in ("returns", "predicted", "deviation")
            ),
        )
    return parts


def calibration_figures(selection: Selection, styles: StyleSheet) -> list[Figure]:
    """Return figures of predictions for left-out policies, and of how often intervals hold; none without such."""
    parts = _left_out(selection)
    if parts is None:
        return []
    calibration = selection.prediction.calibration
    factors = {"left out at random": lambda level: _factors_inside(calibration, level)}
    if len(parts) > 1:
        factors["left out as a group"] = lambda level: _factors_outside(calibration, level)
    predictions = figures.calibration(
        {kind: (part.predicted, factors[kind](0.8) * part.deviation, part.returns) for kind, part in parts.items()},
        styles,
        title="Measured returns of left-out policies over predicted ones",
    )
    covered = {
        kind: np.array([(part.scores <= factors[kind](level) * (1 + 1e-12)).mean() for level in _LEVELS])
        for kind, part in parts.items()
    }
    shares = figures.coverage(_LEVELS, covered, styles, title="Share of left-out policies inside of their intervals")
    reached = " and ".join(f"{percent(share[7])} of policies {kind}" for kind, share in covered.items())
    return [
        Figure(
            predictions,
            "Predictions for known policies made without them, with 80 % intervals from the errors on the other "
            "policies.",
        ),
        Figure(
            shares,
            f"How often intervals hold what they announce. 80 % intervals held {reached}. Above the line they are "
            f"wider than they need to be, below it too narrow.",
        ),
    ]


def _factors_inside(calibration: Calibration, level: float) -> np.ndarray:
    """Return (n,) half widths in standard deviations, each from the scores of the other policies."""
    scores = calibration.inside
    return np.array(
        [
            Calibration(np.delete(scores, i), calibration.outside).factors(level, np.zeros(1))[0]
            for i in range(len(scores))
        ]
    )


def _factors_outside(calibration: Calibration, level: float) -> np.ndarray:
    """Return half widths in standard deviations for every group's policies, from the scores of the other groups."""
    factors = []
    for group, scores in calibration.outside.items():
        others = {name: values for name, values in calibration.outside.items() if name != group}
        factors.append(np.repeat(Calibration(calibration.inside, others).factors(level, np.ones(1)), len(scores)))
    return np.concatenate(factors)
