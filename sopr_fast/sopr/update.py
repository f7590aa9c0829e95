"""One update of the weights: the work of a training step on the device, without waiting for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.segment_encoder_blocks import Arena
from ..runtime import devices, distributed, graphs
from ..runtime.adam import Adam
from ..runtime.distributed import block_bounds
from ..runtime.resources import tile_bytes
from .config import Config
from .input_norm import row_moments
from .losses import pairwise
from .model import ScoringModel
from .scoring import score_grid
from .subsets import Subsets

_CURVES = ("loss", "validation_loss", "validation_rank_correlation")
_VALIDATE_EVERY = 4  # steps
_VALIDATION_SUBSETS = 3  # of a validation
_FEWEST_OF_A_BLOCK = 4  # policies in a step
_ACTIVATION_BYTES = 1 << 30  # kept for the backward pass, at most; the rest is computed again, to the same bits


@dataclass(frozen=True)
class Examples:
    """M policies as the model reads them, on the device that computes."""

    columns: Tensor  # (m, U, dim_c) in every drawn state, of this process's policies
    own: slice  # which of the M policies these are
    labels: Tensor  # (M,) float64 returns, or (M, M) preferences, see `pairwise`

    def scores(self, model: ScoringModel, subsets: Subsets, chosen: Tensor) -> Tensor:
        """Return the scores of all M policies on the chosen subsets, (M, S)."""
        return distributed.current().gather(score_grid(model, subsets, self.columns, chosen))


class Update:
    """Gradient, Adam and validation of a step, on tensors that stay in place: a CUDA graph can replay it.

    `curves` (steps, C) are the loss and, with validation, its last loss and rank correlation after each step; `names`
    are theirs. `best_step` is -1 before the first validation.
    """

    def __init__(
        self, subsets: Subsets, examples: Examples, validation: Examples | None, config: Config, seed: int
    ) -> None:
        self.subsets, self.examples, self.config, self.seed = subsets, examples, config, seed
        self.validation, self.group = validation, distributed.current()
        device = self.device = subsets.rows.device
        input_dim = subsets.state_dim + examples.columns.shape[2]
        model = ScoringModel(input_dim, config, seed=int(self._random(0, "weights").integers(2**62)))
        self.model = model.to(device)
        self._parts = self._shares()
        bounds = [0, *itertools.accumulate(count for _, count in self._parts)]
        self._chosen = torch.arange(bounds[-1], device=device)
        # One block of all policies on a GPU, which 8 do not fill. They fit wherever their columns do, since encoders
        # recompute a few policies at a time and keep vectors of clusters, 2 kB each: bits do not depend on free memory.
        # Several processes keep to blocks, so that their number does not matter.
        if self.group.count == 1 and devices.runs_ahead(device):
            bounds = [0, bounds[-1]]
        self.block_count = len(bounds) - 1
        own = self.group.part(self.block_count)
        bounds = bounds[own.start : own.stop + 1]
        self._own = slice(bounds[0], bounds[-1])  # which policies of a step this process computes
        self._own_blocks = [slice(a - bounds[0], b - bounds[0]) for a, b in itertools.pairwise(bounds)]
        rate: float | Tensor = config.learning_rate
        if devices.runs_ahead(device):
            rate = torch.tensor(rate, dtype=torch.float32, device=device)  # which a graph reads
        self.optimizer = Adam(model.parameters(), rate)
        self._long_tiles = subsets.long_tiles
        self._rows, self._offsets = subsets.rows[:1].clone(), subsets.offsets[:1].clone()
        self._rng = torch.zeros(2, dtype=torch.int64, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        has_arena = config.encoder == "transformer" and not devices.runs_ahead(device)
        self._arena = Arena(tile_bytes(_ACTIVATION_BYTES)) if has_arena else None
        self.names = _CURVES[:1] if validation is None else _CURVES
        self._results = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self.curves = self._results.repeat(config.steps, 1)
        self.best = torch.full((), -math.inf, dtype=torch.float64, device=device)
        self.best_step = torch.full_like(self._step, -1)
        self.best_weights = {name: value.clone() for name, value in model.state_dict().items()}
        self._validated = torch.zeros(min(_VALIDATION_SUBSETS, len(subsets)), dtype=torch.int64, device=device)
        allowed = self.group.count == 1  # processes exchange data through the host
        self._run = graphs.Replayed(self._compute, device, allowed=allowed)
        self._run_validation = graphs.Replayed(self._validate, device, allowed=allowed)

    def _random(self, step: int, purpose: str) -> np.random.Generator:
        place = {"weights": 0, "validation": 1, "dropout": 3, "policies": 4}[purpose]
        return np.random.default_rng([self.seed, 0, step, place])

    def run(self, step: int) -> None:
        """Take a step on the next subset."""
        rate = self.config.learning_rate * min(1.0, (step + 1) / max(1, self.config.warmup_steps))
        subset, key = step % len(self.subsets), int(self._random(step, "dropout").integers(2**32))
        self._rows.copy_(self.subsets.rows[subset])
        self._offsets.copy_(self.subsets.offsets[subset])
        self._load(self._rng, torch.tensor([key, step], device="cpu"))
        self._step.fill_(step)
        if isinstance(self.optimizer.rate, Tensor):
            self.optimizer.rate.fill_(rate)
        else:
            self.optimizer.rate = rate
        self._load(self._chosen, torch.from_numpy(self._choose(self._random(step, "policies"))))
        self._run()
        if self.validation is not None and (step % _VALIDATE_EVERY == 0 or step == self.config.steps - 1):
            random = self._random(step, "validation")
            subsets = random.choice(len(self.subsets), len(self._validated), replace=False)
            self._load(self._validated, torch.from_numpy(subsets))
            self._run_validation()
        self.curves[step].copy_(self._results)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that steps change, by name."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best_weights.items()}
        tensors |= {"curves": self.curves, "results": self._results, "best_correlation": self.best}
        tensors["best_step"] = self.best_step
        return tensors | self.optimizer.tensors("adam")

    def _load(self, to: Tensor, values: Tensor) -> None:
        to.copy_(devices.put(values, self.device))

    def _compute(self) -> None:
        self._results[0], gradients = self.compute_gradients()
        self.optimizer.step(gradients, self.config.gradient_clip)

    def _shares(self) -> list[tuple[range, int]]:
        """Return blocks of policies, and how many of each are in every step, on any device."""
        # The loss of some policies compares with that of all only if all pairs are known.
        labels = self.examples.labels
        share = self.config.policy_share if labels.dim() == 1 else 1.0
        blocks = itertools.starmap(range, itertools.pairwise(block_bounds(len(labels))))
        return [(block, max(math.ceil(share * len(block)), min(len(block), _FEWEST_OF_A_BLOCK))) for block in blocks]

    def _choose(self, random: np.random.Generator) -> np.ndarray:
        """Return the policies of a step, ascending."""
        return np.concatenate([np.sort(random.choice(block, count, replace=False)) for block, count in self._parts])

    def compute_gradients(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss and the gradients of all parameters."""
        model, first, own = self.model.train(), self._own.start, self._own_blocks
        index = self._rows[0].long()
        states = self.subsets.states[index]
        columns = self.examples.columns[(self._chosen[self._own] - self.examples.own.start)[:, None], index]
        rows = torch.arange(len(index), dtype=torch.int32, device=self.device)[None]
        moments = row_moments(states, columns, rows, self._own_blocks, self.group.gather)
        model.norm.observe(moments)
        weights = model.weights(moments)
        if self._arena is not None:
            self._arena.reset()
        leaves = weights.apart(tuple(place.stop - place.start for place in own), self._arena)
        scores = columns.new_empty(0)
        if own:
            options: dict[str, Any] = {"weights": leaves, "first_policy": first, "long_tiles": self._long_tiles}
            scores = model(states, columns, rows, self._offsets, self._rng, **options)[:, 0]
        everyone = self.group.gather(scores.detach()).requires_grad_()
        loss = pairwise(everyone, self.examples.labels[self._chosen])
        (slopes,) = torch.autograd.grad(loss, everyone)
        gradients = torch.empty(0, device="cpu")
        if own:
            weighted = (scores * slopes[first : first + len(columns)]).sum()
            gradients = torch.cat(torch.autograd.grad(weighted, leaves[:3]), 1)
        total = self.group.sum_blocks(self.block_count, gradients).to(self.device)
        # torch would import sympy to check slopes given apart.
        together = (torch.cat(weights[:3], 1)[0] * total).sum()
        parameters = self.optimizer.parameters
        return loss.detach(), torch.autograd.grad(together, parameters, materialize_grads=True, allow_unused=True)

    @torch.no_grad()
    def _validate(self) -> None:
        validation = self.validation
        assert validation is not None
        scores = validation.scores(self.model, self.subsets, self._validated).mean(1)
        loss = pairwise(scores, validation.labels).double()
        correlation = _spearman(validation.labels, scores)
        self._results[1], self._results[2] = loss, correlation
        better = correlation >= self.best
        self.best.copy_(torch.where(better, correlation, self.best))
        self.best_step.copy_(torch.where(better, self._step, self.best_step))
        for name, value in self.model.state_dict().items():
            best = self.best_weights[name]
            best.copy_(torch.where(better, value, best))


def _spearman(returns: Tensor, scores: Tensor) -> Tensor:
    """Return what `metrics.spearman` does as a tensor; NaN where scores are not finite."""
    ranks = []
    for values in (returns, scores):
        ordered = values.sort().values
        ends = [torch.searchsorted(ordered, values, right=right) for right in (False, True)]
        ranks.append((ends[0] + ends[1] - len(values)).double() / 2)  # minus their mean
    a, b = ranks
    # Sums of quarters are exact, so they have the same bits in any order.
    correlation = (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt()
    return torch.where(scores.isfinite().all(), correlation, torch.nan)
