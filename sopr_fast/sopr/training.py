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
from .model import ScoringModel
from .subsets import Subsets
from .update import Examples, Update

_READ_EVERY = 10  # steps whose results the host reads at a time where it runs ahead
_POSITION = ("done", "history")  # of a run, next to its tensors
_CURVES = ("loss", "validation_loss", "validation_rank_correlation")


class CollapsedTrainingWarning(UserWarning):
    """Warning that training ended with equal scores for all policies, so a ranking means nothing."""


def warn_of_collapse() -> None:
    """Warn that all scores of a model are equal."""
    warn(
        "training collapsed: the model scores all policies alike, so its ranking means nothing. Train with a lower "
        "learning_rate, more warmup_steps or another seed. Centre and scale columns of states and actions that differ "
        "by orders of magnitude",
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

    Everything random depends only on (seed, step), so a resumed run ends as an uninterrupted one. Processes of one
    group share the policies and end with the same bits, whatever their number; process 0 writes. On a GPU, where a
    copy of the state would wait for it, an interrupted run resumes from the last state written, at most ten seconds
    earlier.
    """
    trainer = _Trainer(subsets, examples, validation, config, seed)
    if (state := checkpoint.load()) is not None:
        with reading(checkpoint.path):
            tensors, values = state
            trainer.done, trainer.history = (values[name] for name in _POSITION)
            restore(trainer.update.tensors(), tensors)
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
            last = trainer.done == config.steps
            if last or checkpoint.is_due() or not devices.runs_ahead(trainer.update.device):
                state = trainer.state() if checkpoint.path else ({}, {})
                checkpoint.keep(*state, progress=f"{trainer.done} of {config.steps} steps", last=last)
    return trainer.finish()


class _Trainer:
    def __init__(
        self, subsets: Subsets, examples: Examples, validation: Examples | None, config: Config, seed: int
    ) -> None:
        self.config, self.seed, self.done = config, seed, 0
        self.history: dict[str, list[float]] = {}
        self._names = _CURVES if validation else _CURVES[:1]
        self._unread: list[Tensor] = []
        input_dim = subsets.state_dim + examples.columns.shape[2]
        self.model = ScoringModel(input_dim, config, seed=int(self._random("weights").integers(2**62)))
        self.model.to(subsets.rows.device)
        self.update = Update(self.model, subsets, examples, validation, config)

    def _random(self, purpose: str) -> np.random.Generator:
        place = {"weights": 0, "validation": 1, "dropout": 3, "policies": 4}[purpose]
        return np.random.default_rng([self.seed, 0, self.done, place])

    def step(self) -> None:
        config = self.config
        rate = config.learning_rate * min(1.0, (self.done + 1) / max(1, config.warmup_steps))
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
        for values in torch.stack(self._unread).tolist():
            for name, value in zip(self._names, values, strict=True):
                self.history.setdefault(name, []).append(value)
        self._unread.clear()

    def finish(self) -> tuple[ScoringModel, dict[str, Any]]:
        self.read()
        step = int(self.update.best_step)
        best_step = step if step >= 0 else None
        if best_step is not None:
            self.model.load_state_dict(self.update.best_weights)
        return self.model.eval(), {**self.history, "best_step": best_step}

    def state(self) -> State:
        self.read()
        return self.update.tensors(), {name: getattr(self, name) for name in _POSITION}
