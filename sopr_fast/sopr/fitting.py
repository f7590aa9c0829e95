"""Training: from policies with known returns to a `Ranker`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..argument_types import LogLike, PoliciesLike, ReturnsLike
from ..inputs.logs import load_states
from ..inputs.policies import Layout, Policies, Policy, collect, load_policies, probe
from ..inputs.returns import check_ordered, with_returns
from ..runtime import distributed
from ..runtime.checkpoints import Checkpoint
from ..runtime.checks import integer
from ..runtime.options import current_device
from ..runtime.tensor_files import fingerprint
from ..runtime.warn import DoubtfulPolicyWarning, warn
from .config import Config
from .losses import check_preferences
from .ranker import Ranker
from .subsets import Drawing
from .training import train, warn_of_collapse
from .training_policies import TrainingPolicies
from .update import Examples

Known: TypeAlias = tuple[Policies, Tensor]
"""M policies that train or choose the weights, and their returns (M,) or preferences (M, M)."""

CHECKPOINT = ("training checkpoint", "returns, states")
_SAMPLED_STATES = 1024
_KEPT_SUBSETS = 5  # with the model, which scores the training policies on them
_ENOUGH = 12  # policies
_LEARNED = 0.1  # range of scores: a smaller one gives no pair (Eq. 1) a probability above 0.525
_FEWEST_STEPS = 30  # in which a model can be expected to learn


@torch.inference_mode(False)  # with gradients, whatever the caller's mode
def fit(
    policies: PoliciesLike,
    states: LogLike,
    returns: ReturnsLike | None = None,
    *,
    preferences: ArrayLike | Sequence[Any] | None = None,
    validation: tuple[PoliciesLike, ReturnsLike] | None = None,
    config: Config | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
) -> Ranker:
    """Train SOPR-T on policies with known returns (paper section 3, Algorithm 1).

    If `torch.distributed` has been initialised, all processes call this function with the same arguments and share
    the work; the result is the same in all, and process 0 writes the checkpoint.

    The device of `sopr_fast.options` clusters and trains, holds the columns of all policies in all drawn states, and
    keeps the model.

    Args:
        policies: M training policies, see `sopr_fast.load_policies`; arrays of actions are indexed like the
            states. Policies without a return are left out.
        states: (rows, dim_s) array, tensor or nested sequence; or anything that `sopr_fast.load_log` reads.
        returns: Mapping from name to return, (M,) numbers in the order of the policies, or a file, folder or data
            frame (see `sopr_fast.load_returns`). Larger is better; ranks serve too if the best policy has the
            largest.
        preferences: (M, M) of 1 (row better), 0.5 (equal), 0 (worse) or NaN (unknown), in place of returns. An array is
            in the order of the policies, a pandas frame is read by their names.
        validation: Policies and their returns, a pair, which choose the weights to keep; None to keep the last.
        config: Options of model and training.
        seed: Seed of everything random. The same seed gives the same model on any number of threads, with the same
            versions and instruction set, unless policies draw random numbers of their own.
        checkpoint: File to resume from if it exists, written as training goes on and when it is interrupted. A resumed
            run collects actions and clusters again.

    Returns:
        The trained model with its history, kept subsets and a sample of how training policies act.

    Raises:
        ImportError, MemoryError, OSError, RuntimeError, TypeError: See `load_policies`, `load_log`, `load_returns`.
        KeyboardInterrupt: Training was interrupted; the message says how to resume.
        ValueError: An argument has a wrong value; the message names the policy, row, option or file.

    Warns:
        CollapsedTrainingWarning: Scores of all training policies are nearly equal.
        DoubtfulPolicyWarning: There are few training policies, or actions of one may be unintended.
        UserWarning: All training policies act alike, or some have no return.
    """
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"config must be a sopr_fast.Config, got {type(config).__name__}; pass Config(name=value, ...)")
    config = config or Config()
    seed = integer(0)("seed", seed)
    file = Checkpoint(checkpoint, *CHECKPOINT)
    known = _known(load_policies(policies), returns, preferences, validation)
    drawn = Drawing.draw(load_states(states), config.subsets, size=config.subset_size, seed=seed)
    return fit_drawn(known, drawn, config, seed, file)


@torch.inference_mode(False)
def fit_drawn(known: list[Known], drawn: Drawing, config: Config, seed: int, file: Checkpoint) -> Ranker:
    """Train on drawn subsets and the first of `known`, see `fit`; the second chooses the weights, if there is one."""
    device, group = current_device(), distributed.current()
    labels = [part for some, values in known for part in (list(some), values)]
    file.identify(fingerprint(config.to_dict(), seed, *labels, drawn.states, drawn.rows))
    group.check_same(
        options=config, seed=seed, states=drawn.states, subsets=drawn.rows, policies_or_returns=file.fingerprints
    )

    acting = [some.for_log(drawn.states_count) for some, _ in known]
    layout, own, columns = _act(acting, drawn)
    count = len(drawn.states)
    sample = torch.linspace(0, count - 1, min(_SAMPLED_STATES, count), dtype=torch.float64, device="cpu").long()
    sampled = group.gather(columns[0][:, sample].contiguous())
    if (sampled == sampled[0]).all():
        warn(
            "all training policies act alike: nothing in their actions orders them, and there is no measure of how "
            "unlike them a candidate acts"
        )
    subsets = drawn.clustered(config.clusters, device)
    hashes = [group.gather_objects([fingerprint(policy) for policy in some]) for some in columns]
    file.identify(fingerprint([policy for some in hashes for process in some for policy in process]))
    examples = [
        Examples(acted.to(device), part, values.to(device))
        for (_, values), part, acted in zip(known, own, columns, strict=True)
    ]
    model, history = train(subsets, *examples, config=config, seed=seed, checkpoint=file)
    first = torch.arange(min(_KEPT_SUBSETS, len(subsets)), device="cpu")
    scores = examples[0].scores(model, subsets, first).cpu().double().mean(1)
    least = _LEARNED if config.steps >= _FEWEST_STEPS else 0.0
    history["collapsed"] = not scores.max() - scores.min() > least  # true of NaN
    if history["collapsed"]:
        warn_of_collapse()
    return Ranker(
        model=model,
        layout=layout,
        training_policies=TrainingPolicies(
            list(known[0][0]), drawn.states[sample], drawn.source[sample], sampled, scores
        ),
        subsets=drawn.take(min(_KEPT_SUBSETS, len(drawn))),
        history=history,
        seed=seed,
        state_columns=drawn.columns,
    )


def _act(known: list[list[Policy]], drawn: Drawing) -> tuple[Layout, list[slice], list[Tensor]]:
    """Return the layout of the training policies; for these and validation, which act here and their columns."""
    states, source, group = drawn.states, drawn.source, distributed.current()
    layout = probe(known[0], states, source, logged=drawn.actions)
    for validation in known[1:]:
        probe(validation, states, source, layout)
    own = [group.policies(len(some)) for some in known]
    acting = [some[part] for some, part in zip(known, own, strict=True)]
    return layout, own, [collect(some, states, source, layout, show=True) for some in acting]


def _known(policies: Policies, returns: Any, preferences: Any, validation: Any) -> list[Known]:
    """Return the policies that train, and those that choose the weights, if there are any; see `sopr_fast.fit`."""
    if preferences is None:
        known = [with_known_returns("training", policies, returns)]
    elif returns is not None:
        raise ValueError("give returns or preferences, not both")
    else:
        check_ordered("preferences", preferences, policies)
        _check_count("training", policies)
        known = [(policies, check_preferences(preferences, list(policies)))]
    if validation is not None:
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise TypeError("validation must be a pair (policies, returns)")
        known.append(with_known_returns("validation", load_policies(validation[0]), validation[1]))
    return known


def with_known_returns(kind: str, policies: Policies, returns: Any) -> Known:
    """Return the policies of a kind, "training" or "validation", that have a return, see `sopr_fast.fit`."""
    known, table = with_returns(policies, returns)
    _check_count(kind, known)
    values = table["return"].to_numpy(np.float64, copy=True)
    if (values == values[0]).all():
        raise ValueError(f"the returns of all {kind} policies are equal: give policies from poor to good")
    return known, torch.from_numpy(values)


def _check_count(kind: str, policies: Policies) -> None:
    if len(policies) < 2:
        raise ValueError(f"at least two {kind} policies are needed, got {len(policies)}: give returns of more")
    if kind == "training" and len(policies) < _ENOUGH:
        warn(
            f"only {len(policies)} training policies: about a dozen or more with known returns are needed to learn an "
            "order that holds for others",
            DoubtfulPolicyWarning,
        )
