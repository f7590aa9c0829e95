"""Roll-outs of all policies in learned models."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..policies import ArrayPolicy, Layout, Policy
from ..progress import progress_bar
from ..timing import Timings
from .dynamics import Dynamics
from .estimates import Estimates, warn_of
from .learning import learn
from .log import Log, read
from .options import Options, check_option

_MOST_GUARDED = 0.5


@dataclass(frozen=True)
class ModelBased(Options):
    """Returns of policies rolled out in an ensemble of probabilistic models (dynamics, reward, termination).

    Models are trained once; all policies roll out together from the same initial states with the same noise. States
    that leave the range of the log are put back to its edge, rewards stay within the log's.

    Attributes:
        updates, batch_size, hidden, learning_rate: of the models' training.
        ensemble: models; each learns from a bootstrap draw of episodes and rolls out alone, and the spread of their
            values is the standard error.
        rollouts: of each policy in each model.
        horizon: steps; None for as many as leave 1 % of the weight of discounted rewards to come.
    """

    updates: int = 20000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    ensemble: int = 5
    rollouts: int = 20
    horizon: int | None = None

    def estimate(
        self,
        policies: Any,
        transitions: Any,
        *,
        discount: float,
        seed: int = 0,
        action_count: int | None = None,
        checkpoint: str | os.PathLike | None = None,
        device: torch.device | str = "cpu",
        progress: bool = True,
    ) -> Estimates:
        """Discounted return of every policy over `horizon` steps from initial states of the log.

        Args, Raises: see `FQE.estimate`; arrays of actions cannot act on new states.

        Returns:
            Diagnostics: "state_error", "reward_error" (M,) each model's squared error on held-out rows, as a share of
            the log's mean squared change of a state and of its rewards' variance, "negative_log_likelihood" (M,),
            "guarded" (P,) share of steps put back into the log's range, "curve" of the models' training, "horizon".

        Warns:
            UncertainEstimateWarning: over half of a policy's steps left the log's range.
        """
        seed = check_option("seed", seed)
        timings = Timings()
        with timings.stage("policies"):
            found, layout, log = read(
                policies,
                transitions,
                discount=discount,
                action_count=action_count,
                device=device,
                checkpoint=checkpoint,
            )
            for policy in found:
                if isinstance(policy, ArrayPolicy):
                    raise ValueError(f"policy {policy.name!r} is an array of actions: roll-outs reach other states")
        with timings.stage("training"):
            model = Dynamics(
                log,
                members=self.ensemble,
                hidden=self.hidden,
                learning_rate=self.learning_rate,
                batch_size=self.batch_size,
                seed=seed,
            )
            curve = learn(
                model,
                self.updates,
                description="dynamics",
                checkpoint=checkpoint,
                identity=lambda: (
                    [self.updates, self.batch_size, self.hidden, self.learning_rate, self.ensemble],
                    seed,
                    *log.identity(),
                ),
                progress=progress,
            )
            errors = model.held_out_errors()
        horizon = self.horizon or max(1, math.ceil(math.log(0.01) / math.log(max(discount, 1e-9))))
        with timings.stage("rollouts"):
            replicates, guarded = _roll_out(model, found, layout, log, discount, seed, self.rollouts, horizon, progress)
        names = [policy.name for policy in found]
        warn_of(
            {names[i]: f"{guarded[i]:.0%} of steps" for i in np.flatnonzero(guarded > _MOST_GUARDED)},
            "roll-outs of {} leave the range of the log: what the models say of them is extrapolated",
        )
        return Estimates(
            names,
            replicates.mean(1),
            replicates if self.ensemble > 1 else None,
            method="ModelBased",
            diagnostics={**errors, "guarded": guarded, "curve": curve, "horizon": horizon},
            timings=dict(timings),
        )


@torch.no_grad()
def _roll_out(
    model: Dynamics,
    policies: list[Policy],
    layout: Layout,
    log: Log,
    discount: float,
    seed: int,
    rollouts: int,
    horizon: int,
    progress: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """(P, M) values and (P,) shares of steps that were put back into the log's range."""
    members, count = model.members, len(policies)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(log.initial), generator=generator)
    starts = order.repeat(-(-members * rollouts // len(order)))[: members * rollouts].view(members, 1, rollouts)
    states = log.states(log.initial[starts.expand(-1, count, -1).flatten(1).to(log.device)])  # (M, P * R, dim_s)
    values = torch.zeros(members, count * rollouts, dtype=torch.float64, device=log.device)
    alive = torch.ones_like(values)
    guarded = torch.zeros_like(values)
    lived = torch.zeros_like(values)
    with progress_bar(horizon, "rolling out", "step", show=progress) as bar:
        for t in range(horizon):
            actions = _act(policies, layout, log, states, generator)
            noise = torch.randn(members, 1, rollouts, model.width, generator=generator, dtype=torch.float32)
            noise = noise.to(log.device).expand(-1, count, -1, -1).flatten(1, 2)
            states, rewards, ends, left = model.step_forward(states, actions, noise)
            values += discount**t * alive * rewards
            guarded += alive * left
            lived += alive
            alive *= 1 - ends
            bar.update()
    shape = (members, count, rollouts)
    guarded, lived = (x.view(shape).sum((0, 2)) for x in (guarded, lived))
    return values.view(shape).mean(2).T.cpu().numpy(), (guarded / lived).cpu().numpy()


def _act(
    policies: list[Policy], layout: Layout, log: Log, states: Tensor, generator: torch.Generator
) -> Tensor:  # (M, P * R, dim_a)
    members = len(states)
    raw = log.denormalise(states).cpu().unflatten(1, (len(policies), -1)).transpose(0, 1).flatten(1, 2)
    key = int(torch.randint(2**62, (), generator=generator))
    acted = []
    for policy, mine in zip(policies, raw, strict=True):
        if layout.kind == "action":
            acted.append(policy.act(mine))
        else:
            acted.append(policy.sample(mine, torch.Generator().manual_seed(key)))
    actions = torch.stack(acted).unflatten(1, (members, -1)).transpose(0, 1).flatten(1, 2)
    if not log.discrete:
        actions = actions / torch.from_numpy(log.action_scale)
    return actions.to(log.device)
