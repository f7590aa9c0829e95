"""Warnings about candidates whose scores say little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.text import list_names
from ..runtime.warn import warn

if TYPE_CHECKING:
    from torch import Tensor

_OUTSIDE = 0.05  # share of rows farther than a range from the range of training
_FLAT = 0.1  # range of a column, relative to that of training


class ForeignPolicyWarning(UserWarning):
    """A candidate's score is an extrapolation: it acts unlike every training policy."""


def warn_of_states(states: Tensor, training: Tensor) -> None:
    """Warn of columns of states (U, dim_s) far from those of training (R, dim_s), as after a change of units."""
    states = states[:: -(-len(states) // len(training))].double()
    training = training.double()
    low, high = training.amin(0), training.amax(0)
    outside = ((states < low - (high - low)) | (states > high + (high - low))).double().mean(0)
    flat = _width(states) < _FLAT * _width(training)
    if unlike := (flat | (outside > _OUTSIDE)).nonzero().flatten().tolist():
        shown = [
            f"{column} ({states[:, column].min():.3g} to {states[:, column].max():.3g}, in training {low[column]:.3g} "
            f"to {high[column]:.3g})"
            for column in unlike
        ]
        warn(
            f"states are unlike those of training, in {len(unlike)} of {len(low)} columns: {list_names(shown, 5)}. "
            "Give states in the units and the order of columns of training; scores elsewhere mean little"
        )


def _width(states: Tensor) -> Tensor:
    """Return the range of each column without its tails, which rare events make."""
    low, high = states.quantile(states.new_tensor([0.05, 0.95]), dim=0)
    return high - low
