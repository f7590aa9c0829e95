"""Algorithm 1 of the paper: a step draws one subset and training policies, and makes one Adam update."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..native import torch_on_one_thread
from ..runtime import devices
from ..runtime.checkpoints import Checkpoint, State
from ..runtime.devices import without_autocast
from ..runtime.progress import progress_bar
from ..runtime.tensor_files import reading, restore
from ..runtime.warn import warn
from .config import Config
from .losses import FLAT
from .model import ScoringModel
from .subsets import Subsets
from .update import Examples, Update

_RESTARTS = 2
_RESTART_RATE = 0.3
_COLLAPSE_WINDOW = 10
_FEWEST_STEPS_TO_JUDGE = 30
_READ_EVERY = 10  # steps whose results the host reads at a time where it runs ahead
_POSITION = ("attempt", "done", "history")  # of a run, next to its tensors
_CURVES = ("loss", "validation_loss", "validation_rank_correlation")
_REMEDY = "Centre and scale columns of states and actions that differ by orders of magnitude"
_EQUAL = 1e-5  # relative; collapsed scores differ by float noise of about 1e-7, fresh ones by 1e-2


class CollapsedTrainingWarning(UserWarning):
    """Warning that training ended with equal scores for all policies, so a ranking means nothing."""


def warn_of_collapse() -> None:
    """Warn that all scores of a model are equal."""
    warn(
        "training collapsed: the model scores all policies alike, so its ranking means nothing. Train with a lower "
        f"learning_rate, more warmup_steps or another seed. {_REMEDY}",
        CollapsedTrainingWarning,
    )


def train(
    subsets: Subsets,
    examples: Examples,
    validation: Examples | None = None,
    *,
    config: Config,
    seed: int,
    checkpoint: Checkpoint,
) -> tuple[ScoringModel, dict[str, Any]]:
    """Return a trained model in eval mode and the history of its training; see `sopr_fast.fit`.

    Everything random depends only on (seed, attempt, step), so a resumed run ends as an uninterrupted one. Processes
    of one group share the policies and end with the same bits, whatever their number; process 0 writes. A collapsed run
    starts afresh with a lower learning rate, at most twice. On a GPU, where a copy of the state would wait for it, an
    interrupted run resumes from the last state written, at most ten seconds earlier.
    """
    trainer = _Trainer(subsets, examples, validation, config, seed)
    if (state := checkpoint.load()) is not None:
        with reading(checkpoint.path):
            tensors, values = state
            trainer.attempt, trainer.done, trainer.history = (values[name] for name in _POSITION)
            restore(trainer.update.tensors(), tensors)
    first_check = max(_FEWEST_STEPS_TO_JUDGE, config.steps // 4)
    checks = (first_check, max(first_check, config.steps))  # none in a short run, which does not start afresh
    with (
        torch_on_one_thread(),
        without_autocast(examples.columns.device),
        progress_bar(config.steps, "training", "step", initial=trainer.done) as bar,
        checkpoint.training(),
    ):
        while trainer.done < config.steps:
            trainer.step()
            bar.set_postfix({name: f"{values[-1]:.3f}" for name, values in trainer.history.items()}, refresh=False)
            bar.update()
            if trainer.done in checks and trainer.attempt < _RESTARTS and trainer.collapsed():
                trainer.restart()
                bar.reset()
            last = trainer.done == config.steps
            if last or checkpoint.is_due() or not devices.runs_ahead(trainer.update.device):
                state = trainer.state() if checkpoint.path else ({}, {})
                checkpoint.keep(*state, progress=f"{trainer.done} of {config.steps} steps", last=last)
    return trainer.finish()


class _Trainer:
    def __init__(
        self, subsets: Subsets, examples: Examples, validation: Examples | None, config: Config, seed: int
    ) -> None:
        self.subsets, self.examples, self.objective = subsets, examples, examples.objective
        self.validation, self.config, self.seed = validation, config, seed
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Begin an attempt with fresh weights."""
        self.attempt, self.done = attempt, 0
        self.history: dict[str, list[float]] = {}
        self._unread: list[Tensor] = []
        input_dim = self.subsets.state_dim + self.examples.columns.shape[2]
        seed = int(self._random("weights").integers(2**62))
        self.model = ScoringModel(input_dim, self.config, seed=seed)
        self.model.to(self.subsets.rows.device)
        self.update = Update(self.model, self.subsets, self.examples, self.validation, self.config)

    def _random(self, purpose: str) -> np.random.Generator:
        place = {"weights": 0, "validation": 1, "dropout": 3, "policies": 4}[purpose]
        return np.random.default_rng([self.seed, self.attempt, self.done, place])

    def step(self) -> None:
        config = self.config
        rate = config.learning_rate * _RESTART_RATE**self.attempt
        if self.done < config.warmup_steps:
            rate *= (self.done + 1) / config.warmup_steps
        key = int(self._random("dropout").integers(2**32))
        self.update.run(self.done, rate, key, self._random)
        self._unread.append(self.update.results.clone())
        self.done += 1
        if len(self._unread) >= _READ_EVERY or not devices.runs_ahead(self.update.device):
            self.read()

    def read(self) -> None:
        """Read the results of the last steps: only here does the host wait for the device."""
        if not self._unread:
            return
        names = _CURVES if self.validation else _CURVES[:1]
        for values in torch.stack(self._unread).tolist():
            for name, value in zip(names, values, strict=True):
                self.history.setdefault(name, []).append(value)
        self._unread.clear()

    def collapsed(self) -> bool:
        self.read()
        if self.done < _FEWEST_STEPS_TO_JUDGE:  # whose loss is too noisy
            scores = self._first_scores()
            return not scores.max() - scores.min() > _EQUAL * scores.abs().max()
        return self._is_flat(self._recent_loss())

    def _recent_loss(self) -> float:
        return float(np.mean(self.history["loss"][-_COLLAPSE_WINDOW:]))

    def _is_flat(self, loss: float) -> bool:
        return not FLAT - loss > 0.02 * (FLAT - self.objective.floor)

    def _first_scores(self) -> Tensor:
        """Return the scores of the training policies on the first subset, (M,)."""
        first = torch.zeros(1, dtype=torch.int64, device="cpu")
        return self.examples.scores(self.model, self.subsets, first, "fp32")[:, 0]

    def restart(self) -> None:
        warn(
            f"training collapsed: up to step {self.done} the mean loss is {self._recent_loss():.3f}, hardly better "
            f"than {FLAT:.3f} for equal scores; starting afresh with {_RESTART_RATE} times the learning rate. "
            f"{_REMEDY}",
            CollapsedTrainingWarning,
        )
        self.begin(self.attempt + 1)

    def finish(self) -> tuple[ScoringModel, dict[str, Any]]:
        self.read()
        step = int(self.update.best_step)
        best_step = step if step >= 0 else None
        if best_step is not None:
            self.model.load_state_dict(self.update.best_weights)
        # A run that collapsed late may keep weights from before.
        collapsed = self.collapsed() and self._is_flat(self.objective.loss(self._first_scores()).item())
        if collapsed:
            warn_of_collapse()
        outcome = {"best_step": best_step, "restarts": self.attempt, "collapsed": collapsed}
        return self.model.eval(), {**self.history, **outcome}

    def state(self) -> State:
        self.read()
        return self.update.tensors(), {name: getattr(self, name) for name in _POSITION}
