"""Policies that run someone else's code: callables, modules, objects with `predict`, opened programs."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn

from .output import Output, read_output
from .policy import Policy

_calls: Counter[nn.Module] = Counter()  # under way, by module switched to eval mode
_switching = threading.Lock()


class Called(Policy):
    """A user's callable, module or object with `predict`."""

    def __init__(self, name: str, item: Any, action_count: int | None = None):
        self.name, self.given, self.action_count = name, item, action_count
        self._module = item if isinstance(item, nn.Module) else None
        predict = getattr(item, "predict", None)
        self._predicts = callable(predict)
        self._call: Callable = predict if self._predicts else item
        self._arguments = {"deterministic": True} if self._predicts and _takes_deterministic(predict) else {}

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        try:
            with _evaluating(self._module):
                value = self._call(self._input(states), **self._arguments)
        except Exception as error:
            said = f"policy {self.name!r} raised {type(error).__name__} on {len(states)} states: {error}"
            if self._module is None and isinstance(error, TypeError) and "not numpy.ndarray" in str(error):
                said += " (callables receive a numpy array: pass the module itself, or make a tensor of the array)"
            raise RuntimeError(said) from error
        if self._predicts and type(value) is tuple and value:
            value = value[0]
        return read_output(self.name, value, len(states), source, self.action_count)

    def _input(self, states: Tensor) -> Any:
        # A copy, since a policy may normalise its input in place.
        if self._module is None or self._predicts:
            return states.numpy().copy()
        tensors = chain(self._module.parameters(), self._module.buffers())
        like = next((t for t in tensors if t.is_floating_point()), states)
        return states.to(like.device, like.dtype, copy=True)


def acts(item: Any) -> bool:
    return not isinstance(item, type) and (callable(getattr(item, "predict", None)) or callable(item))


def _takes_deterministic(predict: Callable) -> bool:
    try:
        parameters = inspect.signature(predict).parameters
    except (TypeError, ValueError):
        return False
    return "deterministic" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextlib.contextmanager
def _evaluating(module: nn.Module | None) -> Iterator[None]:
    """Eval mode, and every submodule's own mode back when the last call under way leaves it."""
    modules = [] if module is None else list(module.modules())
    with _switching:
        # Not by module.eval(), which exported programs refuse; frozen ones have no mode at all.
        switched = [m for m in modules if m in _calls or getattr(m, "training", False)]
        for m in switched:
            m.training = False
        _calls.update(switched)
    try:
        yield
    finally:
        with _switching:
            _calls.subtract(switched)
            for m in switched:
                if not _calls[m]:
                    del _calls[m]
                    m.training = True
