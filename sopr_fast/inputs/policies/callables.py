"""Policies that run the user's code: callables, modules, objects with `predict`, models of libraries."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...runtime.process import fork_safe_lock
from ...runtime.text import one_line
from .output import Output, read_output
from .policy import Policy
from .unsupported import RECURRENT, SEQUENCE, check_spaces, is_recurrent, shape_of, warn_of_masks

_log = logging.getLogger("sopr_fast")
_evaluation = fork_safe_lock()


class Called(Policy):
    """A user's callable, module or object with `predict`; see `adapt`.

    Args:
        name: Name in rankings and errors.
        item: The user's object.
        call: Function from states (N, dim_s), an own float32 array, to what the policy returns.
        action_count: Number of discrete actions, for an object that returns their indices.
        state_dim: Width of the states that the object reads, where it is known.
        module: Module that is in eval mode during calls.
    """

    def __init__(
        self,
        name: str,
        item: Any,
        call: Callable[[np.ndarray], Any],
        action_count: int | None = None,
        *,
        state_dim: int | None = None,
        module: nn.Module | None = None,
    ):
        self.name, self.original, self.action_count = name, item, action_count
        self.call, self.state_dim, self._module = call, state_dim, module

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        try:
            with _evaluating(self._module):
                value = self.call(states.numpy().copy())  # a policy may change its input in place
        except Exception as error:
            message = f"policy {self.name!r} raised {type(error).__name__} on {len(states)} states: {one_line(error)}"
            if self._module is None and isinstance(error, TypeError) and "not numpy.ndarray" in str(error):
                message += " (callables receive a numpy array: pass the module itself, or make a tensor of the array)"
            elif isinstance(error, NotImplementedError):
                message += " (pass a callable of states that calls its method that acts)"
            raise RuntimeError(message) from error
        return read_output(self.name, value, len(states), source, self.action_count)


def acts(item: Any) -> bool:
    """Return whether the object is a callable or has a method `predict`."""
    return not isinstance(item, type) and (callable(getattr(item, "predict", None)) or callable(item))


def adapt(name: str, item: Any, action_count: int | None = None, *, statistics: Any = None) -> Called:
    """Return the policy that calls the user's object.

    Models of Stable-Baselines3 and d3rlpy act by their `predict`, that of the former with `deterministic=True` and on
    states that its `VecNormalize` has standardised.

    Args:
        name: Name in rankings and errors.
        item: A callable, a module or an object with `predict`.
        action_count: Number of discrete actions; that of the model if it knows it and None is given.
        statistics: The `VecNormalize` of a policy of Stable-Baselines3; that of its environment if None.

    Raises:
        ValueError: The object reads or chooses more than one row of numbers, or is recurrent.

    Warns:
        UserWarning: It needs masks of actions.
    """
    try:
        if is_recurrent(getattr(item, "policy", item)):
            raise ValueError(RECURRENT)
        if callable(getattr(item, "get_action_type", None)) and hasattr(item, "impl"):
            return _of_d3rlpy(name, item, action_count)
        if hasattr(item, "observation_space") and hasattr(item, "action_space") and hasattr(item, "predict"):
            return _of_stable_baselines3(name, item, action_count, statistics)
    except ValueError as error:
        raise ValueError(f"policy {name!r} cannot be used: {error}") from None
    module = item if isinstance(item, nn.Module) else None
    if callable(getattr(item, "predict", None)):
        return Called(name, item, _predict_of(item), action_count, module=module)
    return Called(name, item, item if module is None else _forward_of(module), action_count, module=module)


def _predict_of(item: Any) -> Callable[[np.ndarray], Any]:
    arguments = {"deterministic": True} if _takes_deterministic(item.predict) else {}

    def call(states: np.ndarray) -> Any:
        value = item.predict(states, **arguments)
        return value[0] if type(value) is tuple and value else value  # the action, and the state of a memory

    return call


def _takes_deterministic(predict: Callable) -> bool:
    try:
        parameters = inspect.signature(predict).parameters
    except (TypeError, ValueError):
        return False
    return "deterministic" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _forward_of(module: nn.Module) -> Callable[[np.ndarray], Any]:
    def call(states: np.ndarray) -> Any:
        tensors = chain(module.parameters(), module.buffers())
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0, device="cpu"))
        return module(torch.from_numpy(states).to(like.device, like.dtype))

    return call


def _of_stable_baselines3(name: str, item: Any, action_count: int | None, statistics: Any) -> Called:
    """Return the policy of an algorithm, or of the policy in it."""
    policy, space = getattr(item, "policy", item), item.action_space
    check_spaces(item.observation_space, space)
    warn_of_masks(name, policy)
    shape, predict = shape_of(item.observation_space), _predict_of(item)
    is_discrete = type(space).__name__ == "Discrete"
    if statistics is None and hasattr(item, "get_vec_normalize_env"):
        statistics = item.get_vec_normalize_env()
    is_standardised = statistics is not None and statistics.norm_obs

    def call(states: np.ndarray) -> Any:
        observations = states.reshape(len(states), *shape) if len(shape) > 1 else states
        if is_standardised:
            observations = statistics.normalize_obs(observations)
        actions = predict(observations)
        return actions if np.ndim(actions) < 3 else np.reshape(actions, (len(states), -1))

    called = Called(
        name,
        item,
        call,
        int(space.n) if action_count is None and is_discrete else action_count,
        state_dim=math.prod(shape) if shape else None,
        module=policy if isinstance(policy, nn.Module) else None,
    )
    if is_standardised:
        called.normalisation = "the VecNormalize of its environment"
        _log.info("policy %r: states are standardised by %s", name, called.normalisation)
    return called


def _of_d3rlpy(name: str, item: Any, action_count: int | None) -> Called:
    if hasattr(item, "as_stateful_wrapper"):
        raise ValueError(SEQUENCE)
    shape = item.observation_shape or ()

    def call(states: np.ndarray) -> Any:
        return item.predict(states.reshape(len(states), *shape))

    if action_count is None and item.get_action_type().name == "DISCRETE":
        action_count = item.action_size
    return Called(name, item, call, action_count, state_dim=math.prod(shape) if shape else None)


@contextlib.contextmanager
def _evaluating(module: nn.Module | None) -> Iterator[None]:
    """Set eval mode, and restore the mode of every submodule; one call at a time, since threads may share modules."""
    if module is None:
        yield
        return
    with _evaluation:
        # Not by module.eval(), which exported programs refuse; frozen programs have no mode at all.
        switched = [m for m in module.modules() if getattr(m, "training", False)]
        for m in switched:
            m.training = False
        try:
            yield
        finally:
            for m in switched:
                m.training = True
