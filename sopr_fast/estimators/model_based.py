"""Roll-outs of all policies in learned models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..policies import ArrayPolicy
from ..runtime.progress import progress_bar
from .dynamics import Dynamics
from .estimates import warn_of
from .estimator import Estimator, Problem
from .learning import learn

_MOST_GUARDED = 0.5


@dataclass(frozen=True)
class ModelBased(Estimator):
    """Returns of policies rolled out in an ensemble of probabilistic models (dynamics, reward, termination).

    Models are trained once; all policies roll out together from the same initial states with the same noise. States
    that leave the range of the log are put back to its edge, rewards stay within the log's. The value is the discounted
    return over `horizon` steps from initial states of the log. Arrays of actions cannot act on new states.

    Attributes:
        updates, batch_size, hidden, learning_rate: of the models' training.
        ensemble: models; each learns from a bootstrap draw of episodes and rolls out alone, and the spread of their
            values is the standard error.
        rollouts: of each policy in each model.
        horizon: steps; None for as many as leave 1 % of the weight of discounted rewards to come.

    Diagnostics:
        state_error, reward_error: (M,) each model's squared error on held-out rows, as a share of the mean squared
            change of a state and of its rewards' variance.
        negative_log_likelihood: (M,) on them.
        guarded: (P,) share of steps put back into the log's range.
        curve: of the models' training.
        horizon: in steps.

    Warns:
        UncertainEstimateWarning: over half of a policy's steps left the log's range.
    """

    updates: int = 20000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    ensemble: int = 5
    rollouts: int = 20
    horizon: int | None = None

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, discount, seed = problem.log, problem.discount, problem.seed
        for policy in problem.policies:
            if isinstance(policy, ArrayPolicy):
                raise ValueError(f"policy {policy.name!r} is an array of actions: roll-outs reach other states")
        with problem.timings.stage("training"):
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
                checkpoint=problem.checkpoint,
                identity=lambda: (
                    [self.updates, self.batch_size, self.hidden, self.learning_rate, self.ensemble],
                    seed,
                    *log.identity(),
                ),
                progress=problem.progress,
            )
            errors = model.held_out_errors()
        horizon = self.horizon or max(1, math.ceil(math.log(0.01) / math.log(max(discount, 1e-9))))
        with problem.timings.stage("rollouts"):
            replicates, guarded = _roll_out(model, problem, self.rollouts, horizon)
        names = problem.names
        warn_of(
            {names[i]: f"{guarded[i]:.0%} of steps" for i in np.flatnonzero(guarded > _MOST_GUARDED)},
            "roll-outs of {} leave the range of the log: what the models say of them is extrapolated",
        )
        diagnostics = {**errors, "guarded": guarded, "curve": curve, "horizon": horizon}
        return replicates.mean(1), replicates if self.ensemble > 1 else None, diagnostics


@torch.no_grad()
def _roll_out(model: Dynamics, problem: Problem, rollouts: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """(P, M) values and (P,) shares of steps that were put back into the log's range."""
    log, members, count = problem.log, model.members, len(problem.policies)
    generator = torch.Generator().manual_seed(problem.seed)
    order = torch.randperm(len(log.initial), generator=generator, device="cpu")
    starts = order.repeat(-(-members * rollouts // len(order)))[: members * rollouts].view(members, 1, rollouts)
    states = log.states(log.initial[starts.expand(-1, count, -1).flatten(1).to(log.device)])  # (M, P * R, dim_s)
    values = torch.zeros(members, count * rollouts, dtype=torch.float64, device=log.device)
    alive = torch.ones_like(values)
    guarded = torch.zeros_like(values)
    lived = torch.zeros_like(values)
    with progress_bar(horizon, "rolling out", "step", show=problem.progress) as bar:
        for t in range(horizon):
            actions = _act(problem, states, generator)
            noise_shape = members, 1, rollouts, model.width
            noise = torch.randn(noise_shape, generator=generator, dtype=torch.float32, device="cpu")
            noise = noise.to(log.device).expand(-1, count, -1, -1).flatten(1, 2)
            states, rewards, ends, left = model.step_forward(states, actions, noise)
            values += problem.discount**t * alive * rewards
            guarded += alive * left
            lived += alive
            alive *= 1 - ends
            bar.update()
    shape = (members, count, rollouts)
    guarded, lived = (x.view(shape).sum((0, 2)) for x in (guarded, lived))
    return values.view(shape).mean(2).T.cpu().numpy(), (guarded / lived).cpu().numpy()


def _act(problem: Problem, states: Tensor, generator: torch.Generator) -> Tensor:  # (M, P * R, dim_a)
    log, members = problem.log, len(states)
    raw = log.units.denormalise(states).cpu().unflatten(1, (len(problem.policies), -1)).transpose(0, 1).flatten(1, 2)
    key = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    acted = []
    for policy, mine in zip(problem.policies, raw, strict=True):
        if problem.layout.kind == "action":
            acted.append(policy.act(mine))
        else:
            acted.append(policy.sample(mine, torch.Generator().manual_seed(key)))
    actions = torch.stack(acted).unflatten(1, (members, -1)).transpose(0, 1).flatten(1, 2)
    if not log.discrete:
        actions = actions / torch.from_numpy(log.units.action_scale)
    return actions.to(log.device)
