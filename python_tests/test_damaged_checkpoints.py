"""Checkpoints whose content hash is right but whose contents are not are refused, and named."""

import dataclasses

import pytest
import torch
from estimators import SMALL, gains, small_log
from problems import TINY, ladder, log, training_gains

import sopr_fast
from sopr_fast.estimators import FQE, learning
from sopr_fast.runtime.tensor_files import load_tensors, save_tensors


def fit(path):
    config = dataclasses.replace(TINY, steps=2, subsets=1)
    sopr_fast.fit(ladder(training_gains()), training_gains(), log(), config=config, checkpoint=path)


def estimate(path):
    FQE(**SMALL).estimate(gains(), small_log(), checkpoint=path)


RUNS = {fit: "training checkpoint", estimate: learning.CHECKPOINT}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for run in RUNS:
        run(folder / run.__name__)
    return folder


def reshape(prefix):
    """Return a change that gives the first tensor of a prefix one element more."""

    def change(tensors):
        name = next(name for name in sorted(tensors) if name.startswith(prefix))
        tensors[name] = torch.zeros(tensors[name].numel() + 1)

    return change


def drop(prefix):
    """Return a change that drops the first tensor of a prefix."""
    return lambda t: t.pop(next(name for name in sorted(t) if name.startswith(prefix)))


@pytest.mark.parametrize(
    ("run", "change", "message"),
    [
        *((run, lambda t: t.update({"adam.99.step": torch.zeros(1)}), "unknown tensor .99.step") for run in RUNS),
        *((run, reshape("adam."), "tensor .0.mean. must be torch.float32") for run in RUNS),
        *((run, drop("adam."), "no tensor .0.mean") for run in RUNS),
        (fit, reshape("model."), "RuntimeError: Error.* in loading state_dict"),
        (fit, drop("model."), "RuntimeError: Error.* in loading state_dict"),
        (fit, reshape("best."), "tensor '.*' must be"),
        (fit, drop("best."), "no tensor"),
        (estimate, reshape("trained."), "tensor '.*' must be"),
        (estimate, drop("trained."), "no tensor"),
    ],
)
def test_damaged_checkpoints_are_refused(run, change, message, checkpoints, tmp_path):
    path = tmp_path / "run"
    tensors, description = load_tensors(checkpoints / run.__name__, RUNS[run])
    change(tensors)
    save_tensors(path, tensors, RUNS[run], description)
    with pytest.raises(ValueError, match=rf"^{path} is damaged: {message}"):
        run(path)
