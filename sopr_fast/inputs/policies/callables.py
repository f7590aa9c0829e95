"""Policies that run the user's code: callables, modules, objects with `predict`, models of libraries."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...runtime.text import counted, list_names, one_line
from ...runtime.warn import warn
from .actor import Standardisation
from .policy import Policy

_evaluation = threading.RLock()
_WHERE = "see 'Policies that need more than a state' in the docs of files"
_NO_ROWS = ("Dict", "Tuple", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Graph", "Sequence")
RECURRENT = (
    "it is recurrent, or reads the steps before a state, but logged states are read one by one: pass an array of its "
    "actions in every logged state"
)


@dataclass(eq=False, repr=False)
class Called(Policy):
    """A user's callable, module or object with `predict`; see `adapt`.

    Attributes:
        call: Function from states (N, dim_s), an own float32 array, to what the policy returns.
        original: The user's object; a module is in eval mode during calls.
    """

    name: str
    call: Callable[[np.ndarray], Any]
    original: Any = None
    action_count: int | None = None
    state_dim: int | None = None
    standardisation: Standardisation | None = None

    def _output(self, states: Tensor, source: Tensor | None) -> Any:
        try:
            with _evaluating(self.original):
                return self.call(states.numpy().copy())  # a policy may change its input in place
        except Exception as error:
            where = f"policy {self.name!r} raised {type(error).__name__} on {counted(len(states), 'state')}"
            hint = "policies get a numpy array (N, width) of N states, modules a tensor, and return a row for each"
            raise RuntimeError(f"{where}: {one_line(error)} ({hint})") from error


def acts(item: Any) -> bool:
    """Return whether the object is a callable or has a method `predict`."""
    return not isinstance(item, type) and (callable(getattr(item, "predict", None)) or callable(item))


def adapt(name: str, item: Any, *, statistics: Any = None) -> Called:
    """Return the policy that calls the user's callable or module, or the `predict` of any other object.

    A model knows its number of discrete actions, and the `VecNormalize` of its environment. ValueError is
    raised if it reads or chooses more than one row of numbers, or is recurrent.
    """
    policy, act = getattr(item, "policy", item), item
    shape: tuple[int, ...] = ()
    count = None
    try:
        if hasattr(policy, "lstm_actor") or hasattr(item, "as_stateful_wrapper"):
            raise ValueError(RECURRENT)
        if callable(getattr(item, "predict", None)):
            act = partial(_predict, item)
            if hasattr(item, "get_action_type") and hasattr(item, "impl"):  # d3rlpy
                shape = item.observation_shape or ()
                count = item.action_size if item.get_action_type().name == "DISCRETE" else None
            elif hasattr(item, "observation_space") and hasattr(item, "action_space"):  # Stable-Baselines3
                check_spaces(item.observation_space, item.action_space)
                warn_of_masks(name, policy)
                shape = shape_of(item.observation_space)
                count = int(item.action_space.n) if type(item.action_space).__name__ == "Discrete" else None
                if statistics is None and hasattr(item, "get_vec_normalize_env"):
                    statistics = item.get_vec_normalize_env()
        elif isinstance(item, nn.Module):
            act = partial(_forward, item)
        standardisation = None if statistics is None else standardisation_of(statistics, "its VecNormalize")
    except ValueError as error:
        raise ValueError(f"policy {name!r} cannot be used: {error}") from None

    def call(states: np.ndarray) -> Any:
        observations = states.reshape(len(states), *shape) if len(shape) > 1 else states
        actions = act(observations if standardisation is None else statistics.normalize_obs(observations))
        return np.reshape(actions, (len(states), -1)) if shape and np.ndim(actions) > 2 else actions

    return Called(name, call, item, count, math.prod(shape) if shape else None, standardisation)


def _predict(item: Any, states: np.ndarray) -> Any:
    try:
        value = item.predict(states, deterministic=True)
    except TypeError as error:
        if not re.search("deterministic|keyword", str(error)):
            raise
        value = item.predict(states)  # it has no such option
    return value[0] if type(value) is tuple and value else value  # the action, and the state of a memory


def _forward(module: nn.Module, states: np.ndarray) -> Any:
    tensors = chain(module.parameters(), module.buffers())
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0, device="cpu"))
    return module(torch.from_numpy(states).to(like.device, like.dtype))


@contextlib.contextmanager
def _evaluating(item: Any) -> Iterator[None]:
    """Set eval mode, and restore the mode of every submodule; one call at a time, since threads may share modules."""
    modules = [part for part in (item, getattr(item, "policy", None)) if isinstance(part, nn.Module)]
    with _evaluation if modules else contextlib.nullcontext():
        # Not by module.eval(), which exported programs refuse; frozen programs have no mode at all.
        switched = [m for module in modules for m in module.modules() if getattr(m, "training", False)]
        for m in switched:
            m.training = False
        try:
            yield
        finally:
            for m in switched:
                m.training = True


def check_spaces(observations: Any, actions: Any) -> None:
    """Raise ValueError if spaces, of Gymnasium or by name of class, are not of one row of numbers and one action."""
    if (kind := _kind(observations)) in _NO_ROWS:
        raise ValueError(f"it reads observations of a {kind} space: pass a callable of rows of numbers ({_WHERE})")
    if (kind := _kind(actions)) in ("MultiDiscrete", "MultiBinary", "Tuple", "Dict"):
        what = f"it chooses several actions at once, of a {kind} space"
        raise ValueError(f"{what}: pass a callable of states that returns an index of their combination ({_WHERE})")


def standardisation_of(statistics: Any, source: str) -> Standardisation | None:
    """Return what a `VecNormalize`, or a record of one, does to observations; None if it leaves them as they are."""
    if not statistics.norm_obs:
        return None
    if isinstance(statistics.obs_rms, dict):
        what = f"it standardises observations by name, {list_names([*statistics.obs_rms])}"
        raise ValueError(f"{what}: pass a callable of states that does so and calls the model ({_WHERE})")
    moments = np.array([np.ravel(part) for part in (statistics.obs_rms.mean, statistics.obs_rms.var)], np.float64)
    if not np.isfinite(moments).all():
        raise ValueError("a mean or variance that is not finite")
    mean, variance = torch.from_numpy(moments)
    return Standardisation(mean, (variance + float(statistics.epsilon)).sqrt(), float(statistics.clip_obs), source)


def shape_of(space: Any) -> tuple[int, ...]:
    """Return the shape of a Box space, else (); gym before 0.21 kept it as `shape`, gymnasium as `_shape`."""
    attributes = getattr(space, "__dict__", {})
    shape = attributes.get("_shape", attributes.get("shape"))
    return shape if isinstance(shape, tuple) else ()


def warn_of_masks(name: str, policy: Any) -> None:
    """Warn if the class of a policy of sb3-contrib, or its full name, is of those that need masks of actions."""
    if "maskable" in (policy if isinstance(policy, str) else type(policy).__module__):
        advice = "if they are not, pass a callable of states that calls predict with action_masks"
        warn(f"policy {name!r}: it needs masks of actions: all are taken as allowed; {advice} ({_WHERE})")


def _kind(space: Any) -> str:
    """Return the name of the class of a space, of a record of it, or of text as in "<class 'gym.spaces.dict.Dict'>"."""
    text = space if isinstance(space, str) else getattr(space, "source", type(space).__name__)
    return str(text).rpartition(".")[2].rstrip("'>")
