"""One update of the weights: the work of a training step on the device, without waiting for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.segment_encoder_blocks import Arena
from ..runtime import devices, distributed, graphs
from ..runtime.adam import Adam
from ..runtime.distributed import Blocks
from ..runtime.options import current
from .config import Config
from .losses import Objective
from .model import Moments, ScoringModel, merge_moments, part_moments
from .scoring import score_grid
from .subsets import Subsets

_VALIDATE_EVERY = 4  # steps
_FEWEST_OF_A_BLOCK = 4  # policies in a step


@dataclass(frozen=True)
class Examples:
    """M policies as the model reads them, on the device that computes.

    Attributes:
        columns: (m, U, dim_c) columns in every drawn state, of this process's policies.
        own: Which of the M policies these are.
        labels: (M,) returns; for training policies also (M, M) preferences.
        objective: Loss of their scores.
    """

    columns: Tensor
    own: slice
    labels: np.ndarray
    objective: Objective

    def scores(self, model: ScoringModel, subsets: Subsets, chosen: Tensor, precision: str | None = None) -> Tensor:
        """Return the scores of all M policies on the chosen subsets, (M, S)."""
        return distributed.current().gather(score_grid(model, subsets, self.columns, chosen, precision))


class Update:
    """Gradient, Adam and validation of a step, on tensors that stay in place: a CUDA graph can replay it.

    Args:
        model: Model to train, on the device that computes.
        subsets: Clustered subsets, there too.
        examples: Training policies.
        validation: Validation policies, or None.
        config: Options of the training.

    Attributes:
        results: Loss; with validation, also its last loss and its last rank correlation, float64.
        best: Best validation result so far.
        best_step: Step of that result; -1 before the first.
        best_weights: State of the model then.
    """

    def __init__(
        self, model: ScoringModel, subsets: Subsets, examples: Examples, validation: Examples | None, config: Config
    ) -> None:
        self.model, self.subsets, self.examples, self.config = model, subsets, examples, config
        self.validation, self.group = validation, distributed.current()
        device = self.device = subsets.rows.device
        self.blocks = Blocks(len(examples.labels), whole=self._takes_all_at_once())
        # The loss of some policies compares with that of all only where it is one of pairs, all of which are known.
        by_pairs_of_returns = config.loss == "pairwise" and examples.objective.targets.dim() == 1
        self._share = config.policy_share if by_pairs_of_returns else 1.0
        self._chosen = torch.from_numpy(self._choose(np.random.default_rng(0))).to(device)
        rate: float | Tensor = config.learning_rate
        if devices.runs_ahead(device):
            rate = torch.tensor(rate, dtype=torch.float32, device=device)  # which a graph reads
        self.optimizer = Adam(model.parameters(), rate)
        self._long_tiles = subsets.long_tiles
        self._rows, self._offsets = subsets.rows[:1].clone(), subsets.offsets[:1].clone()
        self._rng = torch.zeros(2, dtype=torch.int64, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        has_arena = device.type == "cpu" and not devices.runs_ahead(device) and config.encoder == "transformer"
        self._arena = Arena(current().activation_memory) if has_arena else None
        self._noise: Tensor | None = None
        if config.action_noise > 0:
            own, width = self._own(), examples.columns.shape[2]
            self._noise = examples.columns.new_empty(own.stop - own.start, subsets.rows.shape[1], width)
        self.results = torch.zeros(1 if validation is None else 3, dtype=torch.float64, device=device)
        self.best = torch.full((), -math.inf, dtype=torch.float64, device=device)
        self.best_step = torch.full_like(self._step, -1)
        self.best_weights = {name: value.clone() for name, value in model.state_dict().items()}
        self._labels = torch.empty(0) if validation is None else torch.from_numpy(validation.labels).to(device)
        self._validated = torch.zeros(min(config.validation_subsets, len(subsets)), dtype=torch.int64, device=device)
        allowed = self.group.count == 1  # processes exchange data through the host
        self._run = graphs.Replayed(self._compute, device, allowed=allowed)
        self._run_validation = graphs.Replayed(self._validate, device, allowed=allowed)

    def run(self, step: int, rate: float, key: int, random: Callable[[str], np.random.Generator]) -> None:
        """Take a step.

        Args:
            step: Number of the step; its place among the subsets chooses one of them.
            rate: Learning rate.
            key: Seed of dropout.
            random: Function from a purpose to its random numbers: "policies" and "validation" choose policies and
                the subsets of validation, "noise" is for the columns.
        """
        subset = step % len(self.subsets)
        self._rows.copy_(self.subsets.rows[subset])
        self._offsets.copy_(self.subsets.offsets[subset])
        self._load(self._rng, torch.tensor([key, step], device="cpu"))
        self._step.fill_(step)
        if isinstance(self.optimizer.rate, Tensor):
            self.optimizer.rate.fill_(rate)
        else:
            self.optimizer.rate = rate
        if self._noise is not None:
            self._load(self._noise, torch.from_numpy(self._draw_noise(random("noise"))))
        self._load(self._chosen, torch.from_numpy(self._choose(random("policies"))))
        self._run()
        if self.validation is not None and (step % _VALIDATE_EVERY == 0 or step == self.config.steps - 1):
            subsets = random("validation").choice(len(self.subsets), len(self._validated), replace=False)
            self._load(self._validated, torch.from_numpy(subsets))
            self._run_validation()

    def restore(self, weights: dict[str, Tensor], best: float, step: int | None, last: list[float]) -> None:
        """Continue from the best validation result of a stopped run.

        Args:
            weights: State of the model then.
            best: The result.
            step: Its step, or None before the first.
            last: Loss and rank correlation of the last validation, or nothing.
        """
        if last:
            self.results[1:] = torch.tensor(last, dtype=torch.float64)
        for name, value in self.best_weights.items():
            value.copy_(weights[name])
        self.best.fill_(best)
        self.best_step.fill_(-1 if step is None else step)

    def _takes_all_at_once(self) -> bool:
        """Return whether all policies are one block: on a GPU, which 8 policies do not fill.

        They fit wherever their columns do: the encoders recompute a few policies at a time and keep nothing but vectors
        of clusters, 2 kB each. So bits do not depend on free memory. Several processes keep to blocks, so that their
        number does not matter.
        """
        return self.group.count == 1 and devices.runs_ahead(self.device)

    def _load(self, to: Tensor, values: Tensor) -> None:
        to.copy_(devices.put(values, self.device))

    def _draw_noise(self, random: np.random.Generator) -> np.ndarray:
        assert self._noise is not None
        shape = tuple(self._noise.shape)
        for _ in range(self._own().start):
            random.standard_normal(shape[1:], np.float32)  # the noise of policies in other processes
        return random.standard_normal(shape, np.float32)

    def _compute(self) -> None:
        self.results[0] = self.compute_gradients()
        if self.config.gradient_clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
        self.optimizer.step()

    def _parts(self) -> list[tuple[slice, int]]:
        """Return blocks of policies, and how many of each are in every step, on any device."""
        blocks = Blocks(len(self.examples.labels))
        parts = [blocks.policies_of(slice(block, block + 1)) for block in range(len(blocks))]
        sizes = [part.stop - part.start for part in parts]
        counts = [max(math.ceil(self._share * size), min(size, _FEWEST_OF_A_BLOCK)) for size in sizes]
        return list(zip(parts, counts, strict=True))

    def _bounds(self) -> list[int]:
        """Return where each block begins among the policies of a step, and where the last one ends."""
        bounds = [0, *itertools.accumulate(count for _, count in self._parts())]
        return [0, bounds[-1]] if self.blocks.whole else bounds

    def _choose(self, random: np.random.Generator) -> np.ndarray:
        """Return the policies of a step, ascending."""
        chosen = [
            part.start + np.sort(random.choice(part.stop - part.start, count, replace=False))
            for part, count in self._parts()
        ]
        return np.concatenate(chosen)

    def _own(self) -> slice:
        """Return which policies of a step this process computes."""
        bounds, part = self._bounds(), self.group.part(len(self.blocks))
        return slice(bounds[part.start], bounds[part.stop])

    def _batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return states, columns of this process's policies, and rows of a step."""
        index, own = self._rows[0].long(), self._chosen[self._own()] - self.examples.own.start
        columns = self.examples.columns[own[:, None], index]
        if self._noise is not None:
            columns = columns + self.config.action_noise * self._noise
        rows = torch.arange(len(index), dtype=torch.int32, device=self.device)[None]
        return self.subsets.states[index], columns, rows

    def _own_blocks(self) -> list[slice]:
        """Return which of this process's policies of a step are in each of its blocks."""
        own, part = self._own(), self.group.part(len(self.blocks))
        bounds = [bound - own.start for bound in self._bounds()[part.start : part.stop + 1]]
        return [slice(*both) for both in itertools.pairwise(bounds)]

    def moments(self, states: Tensor, columns: Tensor, rows: Tensor) -> Moments:
        """Return the moments of the rows of all processes' policies.

        Args:
            states: (U, dim_s) states.
            columns: (m, U, dim_c) columns of this process's policies.
            rows: (1, N) indices of states.
        """
        parts = part_moments(states, columns, rows, self._own_blocks())
        return merge_moments(states, rows, self.group.gather(parts))

    def compute_gradients(self) -> Tensor:
        """Write the gradients of all parameters and return the loss."""
        model, first = self.model.train(), self._own().start
        states, columns, rows = self._batch()
        moments = None
        if model.norm is not None:
            moments = self.moments(states, columns, rows)
            model.observe(moments)
        weights = model.weights(moments)
        own = self._own_blocks()
        if self._arena is not None:
            self._arena.reset()
        leaves = weights.apart(tuple(place.stop - place.start for place in own), self._arena)
        scores = columns.new_empty(0)
        if own:
            options: dict[str, Any] = {"weights": leaves, "first_policy": first, "long_tiles": self._long_tiles}
            scores = model(states, columns, rows, self._offsets, self._rng, **options)[:, 0]
        everyone = self.group.gather(scores.detach()).requires_grad_()
        loss = self.examples.objective.loss(everyone, self._chosen)
        (slopes,) = torch.autograd.grad(loss, everyone)
        gradients = torch.empty(0, device="cpu")
        if own:
            weighted = (scores * slopes[first : first + len(columns)]).sum()
            gradients = torch.cat(torch.autograd.grad(weighted, leaves[:3]), 1)
        total = self.group.sum_blocks(len(self.blocks), gradients).to(self.device)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # torch would import sympy to check slopes given apart.
        together = (weights.flat[0] * total).sum()
        parts = torch.autograd.grad(together, parameters, materialize_grads=True, allow_unused=True)
        self.optimizer.zero_grad()
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part
        return loss.detach()

    @torch.no_grad()
    def _validate(self) -> None:
        validation = self.validation
        assert validation is not None
        scores = validation.scores(self.model, self.subsets, self._validated).mean(1)
        loss = validation.objective.loss(scores).double()
        correlation = _spearman(self._labels, scores)
        self.results[1], self.results[2] = loss, correlation
        quality = -loss if self.config.validation_metric == "loss" else correlation
        better = quality >= self.best
        self.best.copy_(torch.where(better, quality, self.best))
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
