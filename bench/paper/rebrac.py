"""ReBRAC in JAX: TD3 that is penalised for acting unlike the log (Tarasov et al. 2023), with an ensemble of critics.

d3rlpy's ReBRAC takes one call of torch per operation; here a thousand updates are one compiled call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sopr_fast.inputs.logs import Transitions
from sopr_fast.runtime.progress import progress_bar

from .actors import Layers, save_stack
from .manifest import Task, write_manifest

_UPDATES_AT_ONCE = 1000  # of the critics, in one compiled call
_SMALLEST_DEVIATION = 1e-3  # by which a state's component is divided

Network = list[dict[str, Any]]  # weight (in, out) and bias (out,) of every layer


@dataclass(frozen=True)
class Options:
    """Options of ReBRAC.

    Attributes:
        hidden: Width of both hidden layers of every network.
        batch: Rows of an update.
        actor_penalty: Weight of the actor's squared distance to logged actions, next to values of mean size 1.
        critic_penalty: Weight of the next action's squared distance to the logged one, in the critics' target.
        critics: Number of critics; the smallest value counts.
        learning_rate: Of Adam, for all networks.
        discount: Discount of a step.
        target_rate: Share of the networks in their targets, after each update of the actor.
        noise: Standard deviation of the target's action noise, clipped at 2.5 deviations.
    """

    hidden: int
    batch: int
    actor_penalty: float
    critic_penalty: float
    critics: int
    learning_rate: float
    discount: float = 0.99
    target_rate: float = 0.02
    noise: float = 0.2


OPTIONS = {  # by game or log, as the method's authors do; chosen in a few trials on the medium and medium-replay logs
    "halfcheetah": {"actor_penalty": 0.001, "critic_penalty": 0.0, "critics": 2, "learning_rate": 1e-3},
    "hopper": {"actor_penalty": 0.001, "critic_penalty": 0.01, "critics": 5, "learning_rate": 3e-4},
    "walker2d": {"actor_penalty": 0.05, "critic_penalty": 0.05, "critics": 2, "learning_rate": 1e-3},
    "walker2d-medium-replay": {"actor_penalty": 0.02, "critic_penalty": 0.02, "critics": 2, "learning_rate": 1e-3},
}


class Rows(NamedTuple):
    """Rows of the log as the updates read them.

    Attributes:
        states: (N, dim_s), standardised.
        actions: (N, dim_a).
        rewards: (N,).
        next_states: (N, dim_s), standardised.
        next_actions: (N, dim_a) logged in the next states.
        goes_on: (N,) 1, or 0 where the next state is terminal.
        has_next: (N,) 1, or 0 where no action was logged in the next state.
    """

    states: Any
    actions: Any
    rewards: Any
    next_states: Any
    next_actions: Any
    goes_on: Any
    has_next: Any


class Learner(NamedTuple):
    """Networks and Adam's states.

    Attributes:
        actor: Acts by the tanh of its output.
        critics: Critics, stacked along the first axis of every array.
        actor_target: Moving average of the actor.
        critics_target: Moving average of the critics.
        actor_adam: Adam's state of the actor.
        critics_adam: Adam's state of the critics.
    """

    actor: Network
    critics: Network
    actor_target: Network
    critics_target: Network
    actor_adam: Any
    critics_adam: Any


def train(task: Task, product: Path, log: Transitions, name: str) -> None:
    """Train an actor on a log of some name, and write its snapshots.

    The scale's updates are those of the critics, twice those of the actor.
    """
    # XLA reads its flags once, when jax is first imported.
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("XLA_FLAGS", one if task.threads == 1 else "")
    import jax

    scale = task.scale
    chosen = OPTIONS.get(f"{task.game}-{name}", OPTIONS[task.game])
    options = Options(scale.offline_hidden or 256, scale.offline_batch or 256, **chosen)
    total, count = scale.offline_updates, scale.offline_snapshots
    snapshots = [total * (i + 1) // count for i in range(count)]
    stops = sorted({*range(0, total, _UPDATES_AT_ONCE), *snapshots} - {0})
    rows, mean, deviation = _rows(log)
    learner = new_learner(task.seed, rows, options)
    done, kept = 0, []
    run = jax.jit(_run, static_argnames="options")
    begin = time.monotonic()
    with progress_bar(total, f"rebrac {name}", "update", show=True) as bar:
        for stop in stops:
            learner = run(learner, rows, *_draw(task.seed, done, stop, rows, options), options=options)
            bar.update(stop - done)
            done = stop
            if done in snapshots:
                kept.append(layers_of(learner.actor, mean, deviation))
    save_stack(product, kept)
    seconds = time.monotonic() - begin
    write_manifest(task, product, seconds, algorithm="rebrac", options=asdict(options), snapshot_updates=snapshots)


def _rows(log: Transitions) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Return the log's rows, and the mean and deviation (dim_s,) that standardise its states."""
    import jax.numpy as jnp

    mean = log.states.mean(0, dtype=np.float64)
    deviation = np.maximum(log.states.std(0, dtype=np.float64), _SMALLEST_DEVIATION)
    has_next = np.ones(len(log), bool)
    has_next[log.episodes[1:] - 1] = False
    columns = (
        (log.states - mean) / deviation,
        log.actions,
        log.rewards,
        (log.next_states - mean) / deviation,
        np.roll(log.actions, -1, axis=0),
        ~log.terminals,
        has_next,
    )
    return Rows(*(jnp.asarray(np.asarray(column, np.float32)) for column in columns)), mean, deviation


def new_learner(seed: int, rows: Rows, options: Options) -> Learner:
    """Return a learner before its first update."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng([seed, 5])
    dim_s, dim_a = rows.states.shape[1], rows.actions.shape[1]
    actor = _new_network(rng, [dim_s, options.hidden, options.hidden, dim_a])
    several = [_new_network(rng, [dim_s + dim_a, options.hidden, options.hidden, 1]) for _ in range(options.critics)]
    critics = jax.tree.map(lambda *arrays: jnp.stack(arrays), *several)
    adam = _adam(options)
    return Learner(actor, critics, actor, critics, adam.init(actor), adam.init(critics))


def _new_network(rng: np.random.Generator, sizes: Sequence[int]) -> Network:
    """Return layers with uniform weights, those of the last one small, so that the first values are."""
    import jax.numpy as jnp

    shapes = list(pairwise(sizes))
    bounds = [*(wide**-0.5 for wide, _ in shapes[:-1]), 3e-3]
    return [
        {"weight": jnp.asarray(rng.uniform(-bound, bound, shape), jnp.float32), "bias": jnp.zeros(shape[1])}
        for shape, bound in zip(shapes, bounds, strict=True)
    ]


def _adam(options: Options) -> Any:
    import optax

    return optax.adam(options.learning_rate)


def _draw(seed: int, first: int, stop: int, rows: Rows, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the target's noise of updates `first` to `stop`, two a step: (steps, 2, batch, ...)."""
    rng = np.random.default_rng([seed, 6, first])
    steps = (stop - first + 1) // 2
    drawn = rng.integers(len(rows.states), size=(steps, 2, options.batch), dtype=np.int32)
    noise = rng.standard_normal((*drawn.shape, rows.actions.shape[1]), dtype=np.float32)
    return drawn, options.noise * np.clip(noise, -2.5, 2.5)


def _run(learner: Learner, rows: Rows, drawn: Any, noise: Any, options: Options) -> Learner:
    import jax

    def step(learner: Learner, draws: tuple[Any, Any]) -> tuple[Learner, None]:
        return _step(learner, rows, *draws, options), None

    return jax.lax.scan(step, learner, (drawn, noise))[0]


def _step(learner: Learner, rows: Rows, drawn: Any, noise: Any, options: Options) -> Learner:
    """Update the critics twice, then the actor and all targets once."""
    import jax
    import optax

    adam = _adam(options)
    actor, critics, actor_target, critics_target, actor_adam, critics_adam = learner
    for i in range(2):
        batch = Rows(*(column[drawn[i]] for column in rows))
        slope = jax.grad(critics_loss)(critics, actor_target, critics_target, batch, noise[i], options)
        change, critics_adam = adam.update(slope, critics_adam)
        critics = optax.apply_updates(critics, change)
    slope = jax.grad(actor_loss)(actor, critics, batch, options)
    change, actor_adam = adam.update(slope, actor_adam)
    actor = optax.apply_updates(actor, change)
    targets = (
        optax.incremental_update(new, old, options.target_rate)
        for new, old in ((actor, actor_target), (critics, critics_target))
    )
    return Learner(actor, critics, *targets, actor_adam, critics_adam)


def critics_loss(
    critics: Network, actor_target: Network, critics_target: Network, batch: Rows, noise: Any, options: Options
) -> Any:
    """Return the sum over critics of the mean squared error to the target of the smallest next value."""
    import jax
    import jax.numpy as jnp

    actions = jnp.clip(act(actor_target, batch.next_states) + noise, -1, 1)
    unlike = ((actions - batch.next_actions) ** 2).sum(-1) * batch.has_next
    smallest = values(critics_target, batch.next_states, actions).min(0)
    following = batch.goes_on * (smallest - options.critic_penalty * unlike)
    target = jax.lax.stop_gradient(batch.rewards + options.discount * following)
    return ((values(critics, batch.states, batch.actions) - target) ** 2).mean(1).sum()


def actor_loss(actor: Network, critics: Network, batch: Rows, options: Options) -> Any:
    """Return the mean of the penalty minus the smallest value, whose mean size is scaled to 1."""
    import jax
    import jax.numpy as jnp

    actions = act(actor, batch.states)
    smallest = values(critics, batch.states, actions).min(0)
    scale = jax.lax.stop_gradient(1 / jnp.abs(smallest).mean())
    return (options.actor_penalty * ((actions - batch.actions) ** 2).sum(-1) - scale * smallest).mean()


def act(actor: Network, states: Any) -> Any:
    """Return the actions (N, dim_a) in standardised states (N, dim_s)."""
    import jax.numpy as jnp

    return jnp.tanh(_forward(actor, states, normalise=False))


def values(critics: Network, states: Any, actions: Any) -> Any:
    """Return the values (critics, N)."""
    import jax
    import jax.numpy as jnp

    pairs = jnp.concatenate([states, actions], -1)
    return jax.vmap(lambda critic: _forward(critic, pairs, normalise=True)[:, 0])(critics)


def _forward(network: Network, inputs: Any, normalise: bool) -> Any:
    """Apply a ReLU network; normalise each row after every ReLU if so wished, which keeps values from exploding."""
    import jax

    *hidden, last = network
    for layer in hidden:
        inputs = jax.nn.relu(inputs @ layer["weight"] + layer["bias"])
        if normalise:
            inputs = jax.nn.standardize(inputs, epsilon=1e-5)
    return inputs @ last["weight"] + last["bias"]


def layers_of(actor: Network, mean: np.ndarray, deviation: np.ndarray) -> Layers:
    """Return an actor of raw states as arrays, the standardisation folded into its first layer."""
    layers = {}
    names = [*(f"hidden_{i}" for i in range(len(actor) - 1)), "mean"]
    for i, (name, layer) in enumerate(zip(names, actor, strict=True)):
        weight, bias = (np.asarray(layer[part], np.float64) for part in ("weight", "bias"))
        if i == 0:
            weight = weight / deviation[:, None]
            bias = bias - mean @ weight
        layers[f"{name}.weight"], layers[f"{name}.bias"] = weight.T.astype(np.float32), bias.astype(np.float32)
    return layers
