"""Rollouts of all policies in learned models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import ArrayPolicy, Policy
from ..ranking.estimates import warn_about
from ..runtime.deadline import check_deadline
from ..runtime.options import choice, integer, number, option, optional, widths
from ..runtime.shares import share_policies
from .behaviour_q import BehaviourQ
from .critics import Critic
from .dynamics import Dynamics
from .learning import learn
from .reward_estimator import Problem, RewardEstimator

_MOST_GUARDED = 0.5
_WEIGHT_BEYOND = 0.01  # of discounted rewards after the default horizon


@dataclass(frozen=True)
class ModelBased(RewardEstimator):
    """Returns of policies rolled out in an ensemble of probabilistic models of dynamics, reward and termination.

    The models are trained once. All policies roll out from the same states of the log with the same noise.
    States that leave the range of the log are moved back to its edge; rewards are the expected ones, within the log's
    range. The value is the discounted return over `horizon` steps, and with `critic_updates` what a SARSA critic
    expects beyond (see `BehaviourQ`). Arrays of actions cannot be evaluated, because rollouts reach new states.

    Attributes:
        updates: Gradient steps of the models.
        batch_size: Transitions per step and model.
        hidden: Widths of the models' hidden layers.
        learning_rate: Learning rate of Adam.
        ensemble: Number of models. Each learns from a bootstrap sample of episodes and rolls out alone; the standard
            deviation of their values is the standard error.
        rollouts: Rollouts of each policy in each model.
        horizon: Number of steps. None for as many as leave 1 % of the weight of discounted rewards beyond.
        start: "initial" to begin rollouts in initial states, "data" for logged states.
        critic_updates: Gradient steps of the critic, which has the models' widths, learning rate and batch size; 0 for
            no critic. Its training is not part of checkpoints.

    Diagnostics:
        state_error: (M,) squared error of each model on held-out rows, as a share of the mean squared change of state.
        reward_error: (M,) the same for rewards, as a share of their variance.
        negative_log_likelihood: (M,) mean on held-out rows.
        guarded: (P,) share of steps that left the log's range.
        curve: Updates, seconds and loss at each record.
        horizon: Number of steps.
        allowed: See `RewardEstimator`.

    Warns:
        UncertainEstimateWarning: Over half of a policy's steps left the log's range, or a value lies outside what
            rewards allow.
    """

    updates: int = option(20000, integer(1), "gradient steps of the models")
    batch_size: int = option(256, integer(1), "transitions per step and model")
    hidden: tuple[int, ...] = option((256, 256), widths, "widths of the models' hidden layers")
    learning_rate: float = option(1e-3, number(above=0), "learning rate of Adam")
    ensemble: int = option(5, integer(1), "models; two or more give standard errors")
    rollouts: int = option(20, integer(1), "rollouts of each policy in each model")
    horizon: int | None = option(None, optional(integer(1)), "steps of a rollout")
    start: str = option("initial", choice("initial", "data"), "states in which rollouts begin")
    critic_updates: int = option(0, integer(0), "gradient steps of a critic of what follows the rollout; 0 for none")

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request, timings = problem.log, problem.request, problem.request.timings
        for policy in problem.policies:
            if isinstance(policy, ArrayPolicy):
                raise ValueError(
                    f"policy {policy.name!r} is an array of actions, but rollouts reach states outside the log; pass "
                    "the policy itself"
                )
        with timings.stage("training"):
            model = Dynamics(
                log,
                members=self.ensemble,
                hidden=self.hidden,
                learning_rate=self.learning_rate,
                batch_size=self.batch_size,
                seed=request.seed,
            )
            curve = learn(
                model,
                self.updates,
                description="dynamics",
                checkpoint=request.checkpoint,
                identity=lambda: (
                    [self.updates, self.batch_size, self.hidden, self.learning_rate, self.ensemble],
                    request.seed,
                    *log.identity(),
                ),
                progress=request.progress,
            )
            errors = model.held_out_errors()
            critic = self._critic(problem) if self.critic_updates else None
        discount = max(problem.discount, 1e-9)
        horizon = self.horizon or max(1, math.ceil(math.log(_WEIGHT_BEYOND) / math.log(discount)))
        with timings.stage("rollouts"):
            starts = log.initial if self.start == "initial" else log.evaluated_rows()

            def roll_out(part: slice) -> Tensor:  # (p, M + 1)
                own = replace(problem, policies=problem.policies[part])
                return torch.column_stack(_roll_out(model, own, starts, self.rollouts, horizon, critic))

            rolled = share_policies(
                len(problem.policies), roll_out, description="rolling out", progress=request.progress
            ).numpy()
            replicates, guarded = rolled[:, :-1], rolled[:, -1]
        warn_about(
            {problem.names[i]: f"{guarded[i]:.0%} of steps" for i in np.flatnonzero(guarded > _MOST_GUARDED)},
            "rollouts of {} leave the range of the log, so the models extrapolate; lower horizon, or rely on another "
            "estimator for these policies",
        )
        diagnostics = {**errors, "guarded": guarded, "curve": curve, "horizon": horizon}
        return replicates.mean(1), replicates if self.ensemble > 1 else None, diagnostics

    def _critic(self, problem: Problem) -> Critic:
        estimator = BehaviourQ(
            updates=self.critic_updates,
            batch_size=self.batch_size,
            hidden=self.hidden,
            learning_rate=self.learning_rate,
        )
        return estimator.train(problem.log, problem.discount, problem.request.seed, progress=problem.request.progress)[
            0
        ]


@torch.no_grad()
def _roll_out(
    model: Dynamics, problem: Problem, starts: Tensor, rollouts: int, horizon: int, critic: Critic | None
) -> tuple[Tensor, Tensor]:
    """Return values (P, M), and the share (P,) of steps that left the log's range.

    Args:
        model: M models.
        problem: P policies and the log.
        starts: Rows of the log's table of states to begin in.
        rollouts: Rollouts of each policy in each model.
        horizon: Steps of a rollout.
        critic: Value of what follows the last step; None for 0.
    """
    log = problem.log
    members, count = model.members, len(problem.policies)
    generator = torch.Generator().manual_seed(problem.request.seed)
    order = torch.randperm(len(starts), generator=generator, device="cpu")
    chosen = order.repeat(-(-members * rollouts // len(order)))[: members * rollouts].view(members, 1, rollouts)
    states = log.states(starts[chosen.expand(-1, count, -1).flatten(1).to(log.device)])  # (M, P * R, dim_s)
    values = torch.zeros(members, count * rollouts, dtype=torch.float64, device=log.device)
    alive = torch.ones_like(values)
    guarded = torch.zeros_like(values)
    lived = torch.zeros_like(values)
    for t in range(horizon):
        check_deadline()
        actions = _act(problem, states, generator)
        noise_shape = members, 1, rollouts, log.state_dim
        noise = torch.randn(noise_shape, generator=generator, dtype=torch.float32, device="cpu")
        noise = noise.to(log.device).expand(-1, count, -1, -1).flatten(1, 2)
        states, rewards, ends, left = model.step_forward(states, actions, noise)
        values += problem.discount**t * alive * rewards
        guarded += alive * left
        lived += alive
        alive *= 1 - ends
    if critic is not None:
        actions = _act(problem, states, generator)
        beyond = critic.value(states.flatten(0, 1), actions.flatten(0, 1))[0].double()
        values += problem.discount**horizon * alive * critic.scale.restore(beyond).view_as(alive)
    shape = (members, count, rollouts)
    guarded, lived = (x.view(shape).sum((0, 2)) for x in (guarded, lived))
    return values.view(shape).mean(2).T.cpu(), (guarded / lived).cpu()


def _act(problem: Problem, states: Tensor, generator: torch.Generator) -> Tensor:  # (M, P * R, dim_a)
    log, members = problem.log, len(states)
    raw = log.units.denormalise(states).cpu().unflatten(1, (len(problem.policies), -1)).transpose(0, 1).flatten(1, 2)
    key = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    taken = [_act_alone(policy, own, problem, key) for policy, own in zip(problem.policies, raw, strict=True)]
    actions = torch.stack(taken).unflatten(1, (members, -1)).transpose(0, 1).flatten(1, 2)
    return log.units.normalise_actions(actions).to(log.device)


def _act_alone(policy: Policy, states: Tensor, problem: Problem, key: int) -> Tensor:
    """Return actions (B, dim_a) of one policy, sampled if any policy is stochastic; all policies share the noise."""
    generator = torch.Generator().manual_seed(key)
    batches = states.split(problem.request.batch_size)
    if problem.layout.kind == "action":
        return torch.cat([policy.act(batch) for batch in batches])
    return torch.cat([policy.sample(batch, generator) for batch in batches])
