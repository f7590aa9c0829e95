"""From policies with known returns to a trained `Ranker`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.states import as_states
from ..policies import Layout, Policy, check_fit, collect, probe
from ..runtime.checkpoints import check_same_run, fingerprint
from ..runtime.checks import check_integer
from ..runtime.devices import check_device
from ..runtime.files import check_checkpoint
from ..runtime.timing import Timings
from ..runtime.warn import warn
from .columns import collect_all
from .config import Config
from .features import CriticColumns, check_critic, critic_values
from .known import Group, Known, read_known
from .model import ScoringModel
from .ranker import Ranker
from .scoring import score_grid
from .subsets import Drawing, Subsets
from .training import CHECKPOINT, DATA, Examples, train
from .training_policies import TrainingPolicies

_SAMPLED_STATES = 1024
_SCORED_SUBSETS = 5
_ASKED_OF_CRITIC = 13


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
            number or F numbers, such as estimates of `sopr_fast.estimators`. They are standardised and added to its
            cluster vectors by a linear map; `rank` then needs those of the candidates.
        critic: values of actions, (states (N, dim_s), actions (N, dim_a)) → (N,) or (C, N), such as that of
            `estimators.BehaviourQ`. They are standardised and join state and action in each row the model reads; `rank`
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
    check_critic(critic)
    device = check_device(device)
    begun = check_checkpoint(checkpoint, CHECKPOINT)
    if states is None:
        raise ValueError("states are needed: the logged states the policies act on")
    timings = Timings()
    with timings.stage("drawing"):
        log = as_states(states)
    known = read_known(policies, returns, preferences, validation, features, states_count=len(log), config=config)
    run = known.fingerprint(config, seed)
    check_same_run(checkpoint, begun, [run], DATA)
    with timings.stage("drawing"):
        remedy = ": choose fewer with Config(subset_size=..., clusters=...)"
        drawing = Drawing.draw(log, config.subsets, size=config.subset_size, seed=seed, remedy=remedy)
    with timings.stage("policies"):
        acted, columns = _act(known, drawing, critic, batch_size, progress)
    with timings.stage("clustering"):
        subsets = drawing.cluster_as(config, device, progress=progress)
    with timings.stage("training"):
        data = _data_fingerprint(known, drawing, columns)
        columns, count = columns.to(device), len(known.training)
        trained = _examples(known.training, columns[:count])
        validated = known.validation and _examples(known.validation, columns[count:])
        model, history = train(
            subsets,
            trained,
            validation=validated,
            config=config,
            seed=seed,
            checkpoint=checkpoint,
            fingerprints=[run, data],
            progress=progress,
        )
    scores = _mean_scores(model, subsets, trained)
    mean, scale = 0.0, 1.0
    if config.loss == "mse":
        mean, scale = known.mean - known.scale * float(scores.mean()), known.scale
    return Ranker(
        model,
        layout=acted.layout,
        state_dim=subsets.state_dim,
        training_policies=TrainingPolicies(
            known.training.names,
            drawing.states[acted.sample],
            drawing.source[acted.sample],
            acted.remembered,
            scores * scale + mean,
        ),
        subsets=subsets.to("cpu").take(min(keep_subsets, len(subsets))) if keep_subsets else None,
        history=history,
        seed=seed,
        return_mean=mean,
        return_scale=scale,
        critic_columns=acted.critic_columns,
        timings=timings,
    )


class _Acted(NamedTuple):
    """What the policies do in the drawn states, but for the columns.

    Attributes:
        sample: (R,) indices of states that the ranker remembers.
        remembered: (M, R, dim_c) what the training policies do in them.
    """

    layout: Layout
    critic_columns: CriticColumns | None
    sample: Tensor
    remembered: Tensor


def _act(
    known: Known,
    drawing: Drawing,
    critic: Callable[[Tensor, Tensor], Any] | None,
    batch_size: int,
    progress: bool,
) -> tuple[_Acted, Tensor]:
    """Also the columns (M + V, U, dim_c + C) of training, then of validation policies, the last C by the critic."""
    states, source, training = drawing.states, drawing.source, known.training.policies
    layout = probe(training, states, source, batch_size=batch_size)
    if known.validation:
        check_fit(known.validation.policies, states, source, layout, batch_size=batch_size)
    values = 0 if critic is None else _count_values(critic, training[0], drawing, layout, batch_size)
    columns = collect_all(known.policies, drawing, layout, more=values, batch_size=batch_size, progress=progress)
    sample = _spread(len(states), _SAMPLED_STATES)
    remembered = columns[: len(training), sample, : layout.width].contiguous()
    if (remembered == remembered[0]).all():
        warn(
            "all training policies act alike: nothing in their actions orders them, and there is no measure of how "
            "unlike them a candidate acts"
        )
    critic_columns = None
    if critic is not None:
        critic_columns = CriticColumns.fill(critic, states, columns, layout, len(training))
    return _Acted(layout, critic_columns, sample, remembered), columns


def _count_values(
    critic: Callable[[Tensor, Tensor], Any], policy: Policy, drawing: Drawing, layout: Layout, batch_size: int
) -> int:
    """C, by asking a critic about a few states before long work."""
    few = slice(min(_ASKED_OF_CRITIC, batch_size))
    states, source = drawing.states[few], drawing.source[few]
    actions = collect([policy], states, source, layout, batch_size=batch_size)[0, :, : layout.action_dim]
    return critic_values(critic, states, actions).shape[1]


def _examples(group: Group, columns: Tensor) -> Examples:
    features = None if group.features is None else group.features.to(columns.device)
    return Examples(columns, features, group.labels, group.objective)


def _spread(count: int, most: int) -> Tensor:
    """Indices of at most `most` of `count` rows, evenly spread."""
    return torch.linspace(0, count - 1, min(most, count), dtype=torch.float64, device="cpu").long()


def _mean_scores(model: ScoringModel, subsets: Subsets, examples: Examples) -> Tensor:
    """(M,) float64, over the first subsets."""
    first = torch.arange(min(_SCORED_SUBSETS, len(subsets)), device="cpu")
    return score_grid(model, subsets, examples.columns, first, features=examples.features).cpu().double().mean(1)


def _data_fingerprint(known: Known, drawing: Drawing, columns: Tensor) -> str:
    """Tells a training run from another by what `Known.fingerprint` leaves out; of the columns, a sample."""
    every = max(1, columns.shape[1] // _SAMPLED_STATES)
    features = [group.features for group in (known.training, known.validation) if group]
    return fingerprint(drawing.rows, drawing.states, *features, columns[:, ::every])
