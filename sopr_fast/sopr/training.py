"""Algorithm 1 of the paper: a step draws one subset and training policies, and makes one Adam update."""

from __future__ import annotations

from typing import Any

from ..native import torch_on_one_thread
from ..runtime import devices
from ..runtime.checkpoints import Checkpoint
from ..runtime.devices import without_autocast
from ..runtime.progress import progress_bar
from ..runtime.tensor_files import reading, restore
from ..runtime.warn import warn
from .config import Config
from .model import ScoringModel
from .subsets import Subsets
from .update import Examples, Update

_READ_EVERY = 10  # steps, where the host runs ahead and waits for the device to show a loss


class CollapsedTrainingWarning(UserWarning):
    """Warning that training ended with nearly equal scores of all policies, so a ranking means nothing."""


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
    update, done = Update(subsets, examples, validation, config, seed), 0
    ahead = devices.runs_ahead(update.device)
    if (state := checkpoint.load()) is not None:
        with reading(checkpoint.path):
            tensors, values = state
            done = values["done"]
            restore(update.tensors(), tensors)
    with (
        torch_on_one_thread(),
        without_autocast(update.device),
        progress_bar(config.steps, "training", "step", initial=done) as bar,
        checkpoint.training(),
    ):
        while done < config.steps:
            update.run(done)
            if not ahead or done % _READ_EVERY == 0:
                curves = zip(update.names, update.curves[done].tolist(), strict=True)
                bar.set_postfix({name: f"{value:.3f}" for name, value in curves}, refresh=False)
            bar.update()
            done += 1
            last = done == config.steps
            if last or checkpoint.is_due() or not ahead:
                tensors = update.tensors() if checkpoint.path else {}
                checkpoint.keep(tensors, {"done": done}, progress=f"{done} of {config.steps} steps", last=last)
    history: dict[str, Any] = dict(zip(update.names, update.curves.T.tolist(), strict=True))
    best_step = int(update.best_step)
    history["best_step"] = best_step if best_step >= 0 else None
    if best_step >= 0:
        update.model.load_state_dict(update.best_weights)
    return update.model.eval(), history
