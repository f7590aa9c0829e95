"""A loss as training watches it: beside the marks of equal and of perfect scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import losses
from .config import Config


@dataclass(frozen=True)
class Objective:
    """A loss of scores (M,), with the values it takes for equal scores and for the best possible ones."""

    loss: Callable[[Tensor], Tensor]
    flat: float
    floor: float

    @classmethod
    def from_pairs(cls, targets: Tensor) -> Objective:
        return cls(lambda scores: losses.pairwise(scores, targets), math.log(2), losses.pairwise_floor(targets))

    @classmethod
    def from_returns(cls, config: Config, returns: np.ndarray, mean: float, scale: float) -> Objective:
        if config.loss == "pairwise":
            return cls.from_pairs(losses.pair_targets(returns, config.tie_margin))
        standard = torch.from_numpy((returns - mean) / scale).float()
        if config.loss == "listwise":
            entropy = losses.listwise(standard, standard)
            return cls(lambda s: losses.listwise(s, standard), math.log(len(returns)), float(entropy))
        flat = losses.mean_squared_error(torch.zeros_like(standard), standard)
        return cls(lambda s: losses.mean_squared_error(s, standard), float(flat), 0.0)
