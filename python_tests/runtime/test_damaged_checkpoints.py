"""Checkpoints whose content hash is right but whose contents are not are refused, and named."""

import dataclasses

import pytest
import torch
from support import problems
from support.estimators import SMALL, gains, small_log
from support.problems import TINY

from sopr_fast.estimators import FQE, learning
from sopr_fast.runtime.tensor_files import load_tensors, save_tensors


def fit(path):
    problems.fit(dataclasses.replace(TINY, steps=2, subsets=1), checkpoint=path)


def estimate(path):
    FQE(**SMALL).estimate(gains(), small_log(), checkpoint=path)


RUNS = {fit: "training checkpoint", estimate: learning.CHECKPOINT}


CHANGES = {  # of a tensor
    "dropped": lambda tensors, name: tensors.pop(name),
    "longer": lambda tensors, name: tensors.update({name: torch.zeros(tensors[name].numel() + 1)}),
    "another": lambda tensors, name: tensors.update({f"{name}.99": torch.zeros(1)}),
}


@pytest.mark.parametrize(("run", "prefix"), [(fit, "model."), (estimate, "critic.weights")])
def test_damaged_checkpoints_are_refused(run, prefix, tmp_path):
    path = tmp_path / "run"
    run(path)
    whole, description = load_tensors(path, RUNS[run])
    for change in CHANGES.values():
        tensors = dict(whole)
        change(tensors, next(name for name in sorted(tensors) if name.startswith(prefix)))
        save_tensors(path, tensors, RUNS[run], description)
        with pytest.raises(ValueError, match=rf"^{path} is damaged: .*(tensor '|state_dict)"):
            run(path)
