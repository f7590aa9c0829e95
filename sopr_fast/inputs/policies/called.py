"""Policies that run the user's code: callables, modules, objects with `predict`, live models of libraries."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...runtime.forks import fork_safe_lock
from ...runtime.text import one_line
from .needs import RECURRENT, SEQUENCE, check_spaces, is_recurrent, warn_of_masks
from .output import Output, read_output
from .policy import Policy

_log = logging.getLogger("sopr_fast")
_D3RLPY_PROBABILITIES = {"DiscreteSAC": "policy", "DiscreteBC": "imitator"}  # others combine networks, or have values
_calls: Counter[nn.Module] = Counter()  # calls in progress, by module switched to eval mode
_switching = fork_safe_lock()


class _Own(threading.local):
    def __init__(self) -> None:
        self.calls: Counter[nn.Module] = Counter()  # those of this thread


_own = _Own()


class Called(Policy):
    """A user's callable, module or object with `predict`.

    Args:
        name: Name in rankings and errors.
        item: The user's object.
        action_count: Number of discrete actions, for an object that returns their indices.
        state_dim: Width of the states that the object reads, where it is known.

    Raises:
        ValueError: The object is a recurrent policy of sb3-contrib.
    """

    def __init__(self, name: str, item: Any, action_count: int | None = None, *, state_dim: int | None = None):
        self.name, self.original, self.action_count = name, item, action_count
        self._state_dim = state_dim
        self._module = item if isinstance(item, nn.Module) else None
        _check_memory(name, self._module)
        if self._module is not None and hasattr(item, "observation_space"):  # a policy of Stable-Baselines3
            _check_needs(name, item, self._module)
        predict = getattr(item, "predict", None)
        self._has_predict = callable(predict)
        self._call: Callable = predict if predict is not None and callable(predict) else item
        self._arguments = {"deterministic": True} if self._has_predict and _takes_deterministic(self._call) else {}

    @property
    def state_dim(self) -> int | None:
        return self._state_dim

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        try:
            with _evaluating(self._module):
                value = self._answer(states)
        except Exception as error:
            message = f"policy {self.name!r} raised {type(error).__name__} on {len(states)} states: {one_line(error)}"
            if self._module is None and isinstance(error, TypeError) and "not numpy.ndarray" in str(error):
                message += " (callables receive a numpy array: pass the module itself, or make a tensor of the array)"
            raise RuntimeError(message) from error
        if self._has_predict and type(value) is tuple and value:
            value = value[0]
        return read_output(self.name, value, len(states), source, self.action_count)

    def _answer(self, states: Tensor) -> Any:
        return self._call(self._input(states), **self._arguments)

    def _input(self, states: Tensor) -> Any:
        # A copy, since a policy may change its input in place.
        if self._module is None or self._has_predict:
            return states.numpy().copy()
        tensors = chain(self._module.parameters(), self._module.buffers())
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), states)
        return states.to(like.device, like.dtype, copy=True)


class LiveModel(Called):
    """A model of Stable-Baselines3 in memory; it acts as the file that it would save.

    States are standardised by the model's `VecNormalize`, if one is attached. A discrete actor gives the probabilities
    of its actions where its policy has them, else indices.

    Args:
        name: Name in rankings and errors.
        item: The model.
        action_count: Number of discrete actions; that of the model's action space if None.

    Raises:
        ValueError: The model reads or chooses more than one row of numbers, or is recurrent.

    Warns:
        UserWarning: It needs masks of actions.
    """

    def __init__(self, name: str, item: Any, action_count: int | None = None):
        _check_memory(name, item.policy)
        observations = getattr(item, "observation_space", None)
        _check_needs(name, item, item.policy)
        is_discrete = type(item.action_space).__name__ == "Discrete"
        if action_count is None and is_discrete:
            action_count = int(item.action_space.n)
        super().__init__(name, item, action_count, state_dim=getattr(observations, "shape", [None])[0])
        self._distribution = _distribution_of(item.policy) if is_discrete else None
        statistics = item.get_vec_normalize_env()
        self._normalise: Callable[[np.ndarray], Any] | None = None
        if statistics is not None and statistics.norm_obs:
            self._normalise = statistics.normalize_obs
            self.normalisation = "the VecNormalize of its environment"
            _log.info("policy %r: states are standardised by %s", name, self.normalisation)

    def _answer(self, states: Tensor) -> Any:
        observations = self._input(states)
        if self._normalise is not None:
            observations = self._normalise(observations)
        if self._distribution is None:
            return self._call(observations, **self._arguments)
        with _evaluating(self.original.policy):
            return self._distribution(torch.as_tensor(observations, device=self.original.policy.device)).distribution


class D3rlpyModel(Called):
    """A model of d3rlpy in memory, which acts by its `predict`.

    Where that takes the most likely action of one network, the probabilities are returned, as the file would.

    Args:
        name: Name in rankings and errors.
        item: The model.
        action_count: Number of discrete actions; that of the model if None.

    Raises:
        ValueError: The model reads sequences or images, or has no weights yet.
    """

    def __init__(self, name: str, item: Any, action_count: int | None = None):
        if hasattr(item, "as_stateful_wrapper"):
            raise ValueError(f"policy {name!r} cannot be used: {SEQUENCE}")
        shape = item.observation_shape
        if shape is not None and len(shape) != 1:
            raise ValueError(f"policy {name!r} reads observations of shape {shape}: pass a callable of states instead")
        is_discrete = item.get_action_type().name == "DISCRETE"
        action_count = item.action_size if action_count is None and is_discrete else action_count
        super().__init__(name, item, action_count, state_dim=None if shape is None else shape[0])
        part = _D3RLPY_PROBABILITIES.get(type(item).__name__)
        self._actor = None if part is None else getattr(item.impl.modules, part)

    def _answer(self, states: Tensor) -> Any:
        if self._actor is None:
            return super()._answer(states)
        observations = torch.as_tensor(self._input(states), device=self.original.impl.device)
        if self.original.observation_scaler is not None:
            observations = self.original.observation_scaler.transform(observations)
        with _evaluating(self._actor):
            return self._actor(observations)


def is_d3rlpy_model(item: Any) -> bool:
    """Return whether the object is an algorithm of d3rlpy."""
    if isinstance(item, type) or not callable(getattr(item, "get_action_type", None)):
        return False
    return hasattr(item, "impl") and hasattr(item, "action_size")


def is_live_model(item: Any) -> bool:
    """Return whether the object is a Stable-Baselines3 algorithm."""
    if isinstance(item, type) or not callable(getattr(item, "get_vec_normalize_env", None)):
        return False
    return hasattr(item, "policy") and hasattr(item, "action_space")


def acts(item: Any) -> bool:
    """Return whether the object is a callable or has a method `predict`."""
    return not isinstance(item, type) and (callable(getattr(item, "predict", None)) or callable(item))


def _check_memory(name: str, policy: Any) -> None:
    if is_recurrent(policy):
        raise ValueError(f"policy {name!r} cannot be used: {RECURRENT}")


def _check_needs(name: str, item: Any, policy: Any) -> None:
    try:
        check_spaces(getattr(item, "observation_space", None), getattr(item, "action_space", None))
    except ValueError as error:
        raise ValueError(f"policy {name!r} cannot be used: {error}") from None
    warn_of_masks(name, policy)


def _distribution_of(policy: Any) -> Callable[[Tensor], Any] | None:
    """Return the policy's function from observations to distributions, or None if it has none or needs more inputs."""
    function = getattr(policy, "get_distribution", None)
    if not isinstance(policy, nn.Module) or not callable(function):
        return None
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return None
    return function


def _takes_deterministic(predict: Callable) -> bool:
    try:
        parameters = inspect.signature(predict).parameters
    except (TypeError, ValueError):
        return False
    return "deterministic" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextlib.contextmanager
def _evaluating(module: nn.Module | None) -> Iterator[None]:
    """Set eval mode, and restore every submodule's own mode when its last call in progress ends."""
    if module is None:
        yield
        return
    modules = list(module.modules())
    with _switching:
        # Not by module.eval(), which exported programs refuse; frozen programs have no mode at all.
        switched = [m for m in modules if m in _calls or getattr(m, "training", False)]
        for m in switched:
            m.training = False
        _calls.update(switched)
        _own.calls.update(switched)
    try:
        yield
    finally:
        with _switching:
            _own.calls -= Counter(switched)
            _end_calls(Counter(switched))


def _end_calls(calls: Counter[nn.Module]) -> None:
    _calls.subtract(calls)
    for module in calls:
        if not _calls[module]:
            del _calls[module]
            module.training = True


def _after_fork_in_child() -> None:
    """End the calls of threads that do not exist in the child."""
    _end_calls(_calls - _own.calls)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
