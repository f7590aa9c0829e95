"""From policies with known returns to a trained `Ranker`."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import losses
from .checkpoints import check_same_run, fingerprint
from .checks import check_integer
from .config import Config
from .data.states import as_states
from .devices import check_device
from .features import CriticColumns, read_features
from .files import check_checkpoint
from .model import ScoringModel
from .policies import Layout, Policy, as_policies, check_fit, collect, probe
from .progress import progress_bar
from .ranker import Ranker
from .returns import check_returns
from .scoring import score_grid
from .subsets import Drawing, Subsets
from .timing import Timings
from .training import CHECKPOINT, DATA, Objective, Validation, train
from .training_policies import TrainingPolicies

_MEMORY_BYTES = 1 << 30
_SAMPLED_STATES = 1024
_SCORED_SUBSETS = 5


@torch.inference_mode(False)  # with gradients as well, whatever the caller's mode
def fit(
    policies: Any,
    returns: Any = None,
    states: Any = None,
    *,
    preferences: Any = None,
    validation: tuple[Any, Any] | None = None,
    features: Mapping[str, Any] | None = None,
    critic: Callable[[Tensor, Tensor], Any] | None = None,
    config: Config | None = None,
    seed: int = 0,
    keep_subsets: int = 5,
    checkpoint: str | os.PathLike | None = None,
    batch_size: int = 16384,
    device: torch.device | str = "cpu",
    progress: bool = True,
) -> Ranker:
    """Trains SOPR-T on policies with known returns (paper section 3, Algorithm 1).

    Args:
        policies: M training policies, see `sopr_fast.policies.as_policies`; arrays of actions are indexed like
            `states`.
        returns: (M,) numbers in any iterable, or a mapping from name to number; larger is better, so ranks do as well.
        states: (rows, dim_s) logged states: array, tensor, or path of a file, of which HDF5 and `.npy` are not read
            whole; see `Subsets.draw`.
        preferences: instead of returns, (M, M) of 1 (row better), 0.5 (equal), 0 (worse), nan (unknown); an array is in
            the order of `policies`, a pandas frame with their names is read by these.
        validation: (policies, returns) that choose the weights kept; without, the last are.
        features: what else is known of each policy, training and validation, by its name, which must be its alone: a
            number or F numbers, such as estimates of `sopr_fast.baselines`. They are standardised and added to its
            cluster vectors by a linear map; `rank` then needs those of the candidates.
        critic: values of actions, (states (N, dim_s), actions (N, dim_a)) → (N,) or (C, N), such as that of
            `baselines.BehaviourQ`. They are standardised and join state and action in each row the model reads; `rank`
            then needs the critic.
        config: options, see `Config`.
        seed: of everything random. The same seed gives the same model, on any number of threads and beside other fits
            in the process, by the same versions and instruction set; but for policies and critics that draw random
            numbers of their own.
        keep_subsets: subsets kept with the model, so that `rank` needs no states; 0 for none.
        checkpoint: file to resume training from if it exists; written as it goes. The policies' actions and the
            clustering are made again.
        batch_size: most states shown to a policy at once.
        device: where subsets are clustered and the model is trained and stays, with room for all that policies do in
            all drawn states; they act where they are. Everything random is equal on every device.
        progress: show bars.

    Returns:
        The trained model with its history, the kept subsets and a sample of how the training policies act.

    Raises:
        ImportError, MemoryError: a file needs an extra, or more memory than is free.
        TypeError, ValueError, RuntimeError, OSError: names the policy, row, option or file at fault, before long work
            starts.

    Warns:
        CollapsedTrainingWarning: all policies came to score alike.
        UserWarning: all training policies act alike.
    """
    config = config or Config()
    seed = check_integer("seed", seed, 0)
    keep_subsets = check_integer("keep_subsets", keep_subsets, 0)
    device = check_device(device)
    begun = check_checkpoint(checkpoint, CHECKPOINT)
    if states is None:
        raise ValueError("states are needed: the logged states the policies act on")
    timings = Timings()
    with timings.stage("drawing"):
        log = as_states(states)
    trained = as_policies(policies, states_count=len(log), action_count=config.action_count)
    if len(trained) < 2:
        raise ValueError(f"at least two training policies are needed, got {len(trained)}")
    names = [policy.name for policy in trained]
    objective, labels, mean, scale = _objective(config, returns, preferences, names)
    validated = None if validation is None else _check_validation(validation, len(log), config)
    run = _label_fingerprint(config, seed, names, labels, validated)
    check_same_run(checkpoint, begun, [run], DATA)
    training_features, validation_features = _read_all_features(features, trained, validated)
    with timings.stage("drawing"):
        remedy = ": choose fewer with Config(subset_size=..., clusters=...)"
        drawing = Drawing.draw(log, config.subsets, size=config.subset_size, seed=seed, remedy=remedy)
    everyone = trained + (validated[0] if validated else [])
    with timings.stage("policies"):
        layout = probe(trained, drawing.states, drawing.source, batch_size=batch_size)
        if validated:
            check_fit(validated[0], drawing.states, drawing.source, layout, batch_size=batch_size)
        columns = _collect_all(everyone, drawing, layout, batch_size, progress)
        remembered = _spread(len(drawing.states), _SAMPLED_STATES)
        acting = columns[: len(trained), remembered].contiguous()
        if (acting == acting[0]).all():
            warnings.warn(
                "all training policies act alike: nothing in their actions orders them, and there is no measure of how "
                "unlike them a candidate acts",
                stacklevel=3,
            )
        critic_columns = None
        if critic is not None:
            critic_columns = CriticColumns.fitted(critic, drawing.states, columns[: len(trained)], layout)
            columns = critic_columns.append(drawing.states, columns, layout)
    with timings.stage("clustering"):
        subsets = drawing.cluster_as(config, device, progress=progress)
    with timings.stage("training"):
        data = _data_fingerprint(drawing, columns, training_features, validation_features)
        columns, training_features, validation_features = (
            x if x is None else x.to(device) for x in (columns, training_features, validation_features)
        )
        chosen_by = None
        if validated:
            validation_objective = Objective.from_returns(config, validated[1], mean, scale)
            chosen_by = Validation(columns[len(trained) :], validated[1], validation_objective, validation_features)
        model, history = train(
            subsets,
            columns[: len(trained)],
            objective,
            features=training_features,
            validation=chosen_by,
            config=config,
            seed=seed,
            checkpoint=checkpoint,
            fingerprints=[run, data],
            progress=progress,
        )
    scores = _mean_scores(model, subsets, columns[: len(trained)], training_features)
    if config.loss == "mse":
        return_mean, return_scale = mean - scale * float(scores.mean()), scale
    else:
        return_mean, return_scale = 0.0, 1.0
    kept = subsets.to("cpu").take(min(keep_subsets, len(subsets))) if keep_subsets else None
    return Ranker(
        model,
        layout=layout,
        state_dim=subsets.state_dim,
        training_policies=TrainingPolicies(
            names,
            drawing.states[remembered],
            drawing.source[remembered],
            acting,
            scores * return_scale + return_mean,
        ),
        subsets=kept,
        history=history,
        seed=seed,
        return_mean=return_mean,
        return_scale=return_scale,
        critic_columns=critic_columns,
        timings=timings,
    )


def _objective(
    config: Config, returns: Any, preferences: Any, names: list[str]
) -> tuple[Objective, np.ndarray, float, float]:
    """What training minimises, the labels it is of, and the mean and scale that returns are standardised by."""
    mean, scale = 0.0, 1.0
    if preferences is not None:
        if returns is not None:
            raise ValueError("give returns or preferences, not both")
        if config.loss != "pairwise":
            raise ValueError(f"preferences need loss='pairwise', got {config.loss!r}")
        targets = losses.check_preferences(preferences, names)
        return Objective.from_pairs(targets), targets.numpy(), mean, scale
    labels = check_returns(returns, names)
    if labels.max() - labels.min() <= config.tie_margin:
        raise ValueError("the returns of all training policies are equal: there is no order to learn")
    if config.loss != "pairwise":
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(labels.mean()), float(labels.std())
        if not 0 < scale < np.inf:
            raise ValueError(
                f"the returns' standard deviation comes to {scale:g}, which loss={config.loss!r} divides by: "
                "give them on another scale, or choose loss='pairwise'"
            )
    return Objective.from_returns(config, labels, mean, scale), labels, mean, scale


def _check_validation(
    validation: tuple[Any, Any], states_count: int, config: Config
) -> tuple[list[Policy], np.ndarray]:
    try:
        policies, returns = validation
    except (TypeError, ValueError):
        raise TypeError("validation must be a pair (policies, returns)") from None
    policies = as_policies(policies, states_count=states_count, action_count=config.action_count)
    if len(policies) < 2:
        raise ValueError(f"at least two validation policies are needed, got {len(policies)}")
    returns = check_returns(returns, [policy.name for policy in policies])
    if returns.max() == returns.min():
        raise ValueError("the returns of all validation policies are equal: they cannot choose between weights")
    return policies, returns


def _read_all_features(
    features: Mapping[str, Any] | None, trained: list[Policy], validated: tuple[list[Policy], np.ndarray] | None
) -> tuple[Tensor | None, Tensor | None]:
    """(M, F) of the training policies and (V, F) of those for validation."""
    if features is None:
        return None, None
    of_training = read_features(features, [policy.name for policy in trained])
    if validated is None:
        return of_training, None
    _check_names(trained, validated[0])
    of_validation = read_features(features, [policy.name for policy in validated[0]])
    if of_validation.shape[1] != of_training.shape[1]:
        raise ValueError(
            f"validation policies have {of_validation.shape[1]} features each, training policies {of_training.shape[1]}"
        )
    return of_training, of_validation


def _check_names(trained: list[Policy], validated: list[Policy]) -> None:
    """Raises where one name stands for two policies, which features by name cannot tell apart."""
    by_name = {policy.name: policy for policy in trained}
    for policy in validated:
        if policy.name in by_name and not policy.is_same(by_name[policy.name]):
            raise ValueError(
                f"a training and a validation policy are both named {policy.name!r}, so features by name cannot tell "
                "them apart; name them in dicts"
            )


def _collect_all(policies: list[Policy], drawing: Drawing, layout: Layout, batch_size: int, progress: bool) -> Tensor:
    """Columns (P, U, dim_c) of every policy, on disk where they are too many for memory."""
    shape = (len(policies), len(drawing.states), layout.width)
    at_once = len(policies)
    columns = None
    if 4 * np.prod(shape) > _MEMORY_BYTES:
        columns = _on_disk(shape)
        at_once = max(1, _MEMORY_BYTES // (4 * shape[1] * shape[2]))
    with progress_bar(len(policies), "acting", "policy", show=progress) as bar:
        for first in range(0, len(policies), at_once):
            tile = policies[first : first + at_once]
            found = collect(tile, drawing.states, drawing.source, layout, batch_size=batch_size, progress=bar.update)
            if columns is None:
                return found
            columns[first : first + at_once] = found
    return columns


def _on_disk(shape: tuple[int, ...]) -> Tensor:
    """New float32 numbers in a file without a name, whose space is taken at once where the platform can."""
    size = 4 * int(np.prod(shape))
    with tempfile.NamedTemporaryFile(prefix="sopr_fast-columns-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk would else end the process, when a page is written
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise OSError(
                    f"columns need {size / 2**30:.1f} GiB in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
                    "another folder"
                ) from error
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))


def _spread(count: int, most: int) -> Tensor:
    """Indices of at most `most` of `count` rows, evenly spread."""
    return torch.linspace(0, count - 1, min(most, count), dtype=torch.float64, device="cpu").long()


def _mean_scores(model: ScoringModel, subsets: Subsets, columns: Tensor, features: Tensor | None) -> Tensor:
    """(M,) float64, over the first subsets."""
    first = torch.arange(min(_SCORED_SUBSETS, len(subsets)), device="cpu")
    return score_grid(model, subsets, columns, first, features=features).cpu().double().mean(1)


def _label_fingerprint(
    config: Config, seed: int, names: list[str], labels: np.ndarray, validated: tuple[list[Policy], np.ndarray] | None
) -> str:
    """Tells one training run from another by all that is known before any policy acts."""
    validation = ([policy.name for policy in validated[0]], validated[1]) if validated else ()
    return fingerprint(config.to_dict(), seed, names, labels, *validation)


def _data_fingerprint(drawing: Drawing, columns: Tensor, *features: Tensor | None) -> str:
    """The same by the rest; of the columns, a sample."""
    every = max(1, columns.shape[1] // _SAMPLED_STATES)
    return fingerprint(drawing.rows, drawing.states, *features, columns[:, ::every])
