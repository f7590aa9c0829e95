"""Training: from policies with known returns to a `Ranker`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..inputs.logs import Transitions
from ..inputs.policies import Layout, check_actions, probe
from ..ranking.warnings import TrainingPolicyWarning, join_some
from ..runtime import distributed
from ..runtime.checkpoints import Checkpoint
from ..runtime.checks import check_integer
from ..runtime.distributed import Blocks
from ..runtime.options import current_device
from ..runtime.tensor_files import fingerprint
from ..runtime.timing import Timings
from ..runtime.warn import warn
from .acting import collect_all
from .config import Config
from .known_policies import Group, Known, read_known
from .model import ScoringModel
from .ranker import Ranker
from .subsets import Drawing, Subsets, read_states
from .training import train
from .training_policies import TrainingPolicies, compare
from .update import Examples

_SAMPLED_STATES = 1024
_SCORED_SUBSETS = 5


@torch.inference_mode(False)  # with gradients, whatever the caller's mode
def fit(
    policies: Any,
    returns: Any = None,
    states: Any = None,
    *,
    preferences: Any = None,
    validation: tuple[Any, Any] | None = None,
    config: Config | None = None,
    seed: int = 0,
    keep_subsets: int = 5,
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
        returns: Mapping from name to return, (M,) numbers in the order of the policies, or a file, folder or data
            frame (see `sopr_fast.load_returns`). Larger is better; ranks serve too if the best policy has the
            largest.
        states: (rows, dim_s) logged states as array, tensor or path of a file, see `Subsets.draw`; or clustered
            `Subsets`, or their file, whose number, size and clusters then replace those of `config`.
        preferences: (M, M) of 1 (row better), 0.5 (equal), 0 (worse) or NaN (unknown), in place of returns. An array is
            in the order of the policies, a pandas frame is read by their names.
        validation: Policies and their returns, a pair, which choose the weights to keep; None to keep the last.
        config: Options of model and training.
        seed: Seed of everything random. The same seed gives the same model on any number of threads, with the same
            versions and instruction set, unless policies draw random numbers of their own.
        keep_subsets: Subsets to keep with the model, so that `rank` needs no states; 0 for none.
        checkpoint: File to resume from if it exists, written as training goes on and when it is interrupted. A resumed
            run collects actions and clusters again.

    Returns:
        The trained model with its history, kept subsets and a sample of how training policies act.

    Raises:
        ImportError: A file needs an extra that is not installed.
        KeyboardInterrupt: Training was interrupted; the message says how to resume.
        MemoryError: A file needs more memory than is free.
        OSError: A file cannot be read or written.
        RuntimeError: A policy raised.
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value; the message names the policy, row, option or file.

    Warns:
        CollapsedTrainingWarning: All policies have equal scores.
        TrainingPolicyWarning: A validation policy acts as a training policy does.
        UserWarning: There are few training policies, they all act alike, or some have no return.
    """
    config = _check_config(config)
    seed = check_integer("seed", seed, 0)
    keep_subsets = check_integer("keep_subsets", keep_subsets, 0)
    device = current_device()
    file = Checkpoint(checkpoint, "training checkpoint", "returns, states")
    if states is None:
        raise ValueError("states are needed: pass the logged states that the policies act on")
    timings = Timings()
    logged_actions = states.actions.shape[1] if isinstance(states, Transitions) else None
    with timings.stage("drawing"):
        log = read_states(states)
    if isinstance(log, Subsets):
        log, clusters = log.to("cpu"), log.offsets.shape[1] - 1
        config = replace(config, subsets=len(log), subset_size=log.rows.shape[1], clusters=clusters)
    known = read_known(
        policies,
        returns,
        preferences,
        validation,
        states_count=log.states_count if isinstance(log, Subsets) else len(log),
        config=config,
    )
    file.identify(known.fingerprint(config, seed))
    with timings.stage("drawing"):
        if isinstance(log, Subsets):
            drawn: Subsets | Drawing = log
        else:
            remedy = ": choose fewer with Config(subset_size=…, clusters=…) (--subset-size …, --clusters …)"
            drawn = Drawing.draw(log, config.subsets, size=config.subset_size, seed=seed, remedy=remedy)
    distributed.current().check_same(
        options=config, seed=seed, policies_or_returns=file.fingerprints, states=drawn.states, subsets=drawn.rows
    )
    own = _share(known)
    with timings.stage("policies"):
        acted, columns = _act(known, own, drawn)
    if logged_actions is not None:
        check_actions(known.training.policies, acted.layout, logged_actions)
    with timings.stage("clustering"):
        subsets = drawn.clustered(config, device)
    with timings.stage("training"):
        file.identify(_data_fingerprint(known, own, drawn, columns))
        columns, count = columns.to(device), own[0].stop - own[0].start
        training = _examples(known.training, columns[:count], own[0])
        model, history = train(
            subsets,
            training,
            validation=_examples(known.validation, columns[count:], own[1]) if known.validation else None,
            config=config,
            seed=seed,
            checkpoint=file,
        )
    scores = _mean_scores(model, subsets, training)
    mean, scale = 0.0, 1.0
    if config.loss == "mse":
        mean, scale = known.mean - known.scale * float(scores.mean()), known.scale
    return Ranker(
        model=model,
        layout=acted.layout,
        state_dim=subsets.state_dim,
        training_policies=TrainingPolicies(
            known.training.names,
            drawn.states[acted.sample],
            drawn.source[acted.sample],
            acted.remembered,
            scores * scale + mean,
        ),
        subsets=subsets.to("cpu").take(min(keep_subsets, len(subsets))) if keep_subsets else None,
        history=history,
        seed=seed,
        return_mean=mean,
        return_scale=scale,
        timings=timings,
    )


def _check_config(config: Config | None) -> Config:
    if config is None:
        return Config()
    if not isinstance(config, Config):
        raise TypeError(f"config must be a sopr_fast.Config, got {type(config).__name__}; pass Config(name=value, ...)")
    return config


class _Acted(NamedTuple):
    """How policies act in the drawn states, without the columns themselves.

    Attributes:
        layout: What the model reads of a policy.
        sample: (R,) indices of the states that the ranker keeps.
        remembered: (M, R, dim_c) columns of the training policies in them.
    """

    layout: Layout
    sample: Tensor
    remembered: Tensor


def _share(known: Known) -> tuple[slice, slice]:
    """Return which training and which validation policies this process computes."""
    group, blocks = distributed.current(), Blocks(len(known.training))
    validation = len(known.validation) if known.validation else 0
    return blocks.policies_of(group.part(len(blocks))), group.part(validation)


def _act(
    known: Known,
    own: tuple[slice, slice],
    drawn: Drawing | Subsets,
) -> tuple[_Acted, Tensor]:
    """Return also the columns of this process's training, then validation policies, (m + v, U, dim_c)."""
    states, source, training = drawn.states, drawn.source, known.training.policies
    layout = probe(training, states, source)
    if known.validation:
        probe(known.validation.policies, states, source, layout)
    policies, validation = training[own[0]], known.validation.policies[own[1]] if known.validation else []
    count = len(policies)
    columns = collect_all(policies + validation, states, source, layout)
    sample = _spread(len(states), _SAMPLED_STATES)
    remembered = distributed.current().gather(columns[:count, sample].contiguous())
    if (remembered == remembered[0]).all():
        warn(
            "all training policies act alike: nothing in their actions orders them, and there is no measure of how "
            "unlike them a candidate acts"
        )
    elif known.validation:
        acting = distributed.current().gather(columns[count:, sample].contiguous())
        _warn_of_copies(known.validation.names, acting, remembered)
    return _Acted(layout, sample, remembered), columns


def _warn_of_copies(names: list[str], validation: Tensor, training: Tensor) -> None:
    """Warn of validation policies (V, R, dim_c) that act as a training policy (M, R, dim_c) does."""
    _, same = compare(validation, training)
    if same.any():
        copies = join_some([repr(name) for name, is_copy in zip(names, same, strict=True) if is_copy])
        warn(
            f"validation policies are training policies, or act exactly like them: {copies}. The model learned from "
            "them, so they do not show when to stop: validate on other policies",
            TrainingPolicyWarning,
        )


def _examples(group: Group, columns: Tensor, own: slice) -> Examples:
    return Examples(columns, own, group.labels, group.objective.to(columns.device))


def _spread(count: int, most: int) -> Tensor:
    """Return indices of at most `most` of `count` rows, evenly spread."""
    return torch.linspace(0, count - 1, min(most, count), dtype=torch.float64, device="cpu").long()


def _mean_scores(model: ScoringModel, subsets: Subsets, examples: Examples) -> Tensor:
    """Return the mean scores over the first subsets, (M,) float64."""
    first = torch.arange(min(_SCORED_SUBSETS, len(subsets)), device="cpu")
    return examples.scores(model, subsets, first).cpu().double().mean(1)


def _data_fingerprint(known: Known, own: tuple[slice, slice], drawn: Drawing | Subsets, columns: Tensor) -> str:
    """Return a hash of the training data that `Known.fingerprint` omits."""
    count = own[0].stop - own[0].start
    by_policy = [fingerprint(policy) for policy in columns]
    by_process = distributed.current().gather_objects([by_policy[:count], by_policy[count:]])
    acted = [hashed for kind in (0, 1) for process in by_process for hashed in process[kind]]
    return fingerprint(drawn.rows, drawn.states, acted)
