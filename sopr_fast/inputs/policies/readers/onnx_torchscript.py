"""Programs: ONNX graphs, which are data; TorchScript and exported torch programs, which can run code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....runtime.extras import library
from ....runtime.native import threads
from ....runtime.text import printable
from ....runtime.warn import warn
from ...logs.keys import list_names
from ..callables import Called, adapt
from ..output import Gaussian, Probabilities, one_hot
from .options import DISCRETE, Options
from .patterns import role_of

_ONNXRUNTIME = (1, 24, 4)  # earlier versions follow external data out of the graph's folder
_OTHER_INPUTS = "pass a callable of states that runs it, or an array of its actions in every logged state"
_ACTIONS = ("action", "actions")
_ACTING = ("action", "mean", "logits", "probabilities")  # roles of outputs, the first one first


def read_onnx(path: Path, options: Options) -> list[Called]:
    """Read an ONNX graph: its output of actions, means, logits or probabilities by name, else its first.

    Warns:
        UserWarning: It has several outputs, none of these names.
    """
    runtime = library("onnxruntime", "onnx")
    if tuple(map(int, re.findall(r"\d+", runtime.__version__)[:3])) < _ONNXRUNTIME:
        raise ImportError(
            f"onnxruntime {runtime.__version__} lets a graph read any file of yours: pip install --upgrade "
            f"'onnxruntime>={'.'.join(map(str, _ONNXRUNTIME))}'"
        )
    settings = runtime.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads = 4, threads()  # its log shows names as they are
    session = runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 2 or inputs[0].type not in ("tensor(float)", "tensor(double)"):
        shown = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise ValueError(f"expected one float input (states, width), found {shown}: {_OTHER_INPUTS}")
    names = [output.name for output in session.get_outputs()]
    roles = {name: "action" if name in _ACTIONS else role_of(name) for name in names}
    output = next((name for role in _ACTING for name in names if roles[name] == role), names[0])
    if len(names) > 1 and roles[output] not in _ACTING:
        warn(
            f"{printable(path)}: has the outputs {list_names(names)}, none of them 'action' or 'actions'; its first, "
            f"{output!r}, is taken for the actions. If it is not, name the outputs when you export it: "
            "output_names=['action', …] of torch.onnx.export"
        )
    dtype = np.float64 if inputs[0].type == "tensor(double)" else np.float32

    def act(states: np.ndarray) -> np.ndarray:
        return session.run([output], {inputs[0].name: states.astype(dtype)})[0]

    rows, width = inputs[0].shape  # numbers, or names of free sizes
    policy = with_head(_by_rows(act, rows, rows) if isinstance(rows, int) else act, options, roles[output])
    policy.state_dim = width if isinstance(width, int) else None
    return [policy]


def read_torchscript(path: Path, options: Options) -> list[Called]:
    """Read a TorchScript program, if trusted."""
    return [with_head(_opened(torch.jit.load, path, "a TorchScript program", options), options)]


def read_exported(path: Path, options: Options) -> list[Called]:
    """Read an exported torch program from states to actions, if trusted; of several values it returns the first.

    Warns:
        UserWarning: It returns several values.
    """
    program = _opened(torch.export.load, path, "an exported torch program", options)
    named = program.graph_signature.user_inputs
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in named]
    if len(inputs) != 1 or inputs[0].dim() != 2:
        shown = ", ".join(str(tuple(i.shape)) for i in inputs)
        raise ValueError(f"expected one input (states, width), found {shown}: {_OTHER_INPUTS}")
    if (count := len(program.graph_signature.user_outputs)) > 1:
        warn(
            f"{printable(path)}: returns {count} values, of which the first is taken for the actions. If it is not, "
            "export a module that returns only the actions"
        )
    module, least, most = program.module(), 1, sys.maxsize
    if isinstance(rows := inputs[0].shape[0], int):
        least = most = rows
    elif bounds := program.range_constraints.get(rows.node.expr):
        least, most = int(max(bounds.lower, 1)), int(min(bounds.upper, sys.maxsize))

    def act(states: np.ndarray) -> np.ndarray:
        actions = module(torch.from_numpy(states).to(inputs[0].dtype))
        return (actions[0] if isinstance(actions, tuple | list) else actions).numpy()

    return [with_head(_by_rows(act, least, most), options)]


def _opened(load: Callable, path: Path, what: str, options: Options) -> Any:
    if not options.trust:
        raise ValueError(f"{what} is code: read only with trust=True (--trust), if you trust its maker")
    return load(str(path))


def with_head(item: Any, options: Options, head: str | None = None, *, is_program: bool = True) -> Called:
    """Return the policy of a callable or module, whose output is read as the option or its name says."""
    policy = adapt(options.name, item, options.action_count)
    head, act = options.take("head") or head, policy.call
    if head not in ("mean_log_std", *DISCRETE):
        if is_program and options.stochastic and options.action_count is None:
            raise ValueError("its standard deviations are not known: load it without stochastic")
        return policy

    def read(states: np.ndarray) -> Any:
        outputs = torch.as_tensor(act(states)).detach()
        if head == "values" or (head in DISCRETE and not options.stochastic):
            return Probabilities(one_hot(outputs.argmax(1), outputs.shape[1]))
        if head != "mean_log_std":
            return Probabilities(outputs.softmax(1) if head == "logits" else outputs)
        mean, log_std = outputs.chunk(2, 1)
        if options.squash == "tanh":
            return mean.tanh()
        return Gaussian(mean, log_std.exp()) if options.stochastic else mean

    if head == "mean_log_std":
        options.take("squash")
    policy.call = read
    return policy


def _by_rows(act: Callable[[np.ndarray], np.ndarray], least: int, most: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return `act`, which takes `least` to `most` states at a time, as a function of any number of states."""

    def act_in_parts(states: np.ndarray) -> np.ndarray:
        parts = [states[first : first + most] for first in range(0, len(states), most)]
        missing = np.repeat(states[-1:], max(least - len(parts[-1]), 0), axis=0)
        parts[-1] = np.concatenate([parts[-1], missing])
        return np.concatenate([answer(part) for part in parts])[: len(states)]

    def answer(part: np.ndarray) -> np.ndarray:
        actions = act(part)
        if len(part) == 1 and actions.ndim < 2:  # a program that leaves out the dimension of states
            actions = actions.reshape(1, -1)
        if len(actions) != len(part):
            raise ValueError(f"its output has shape {actions.shape}, expected ({len(part)}, action width)")
        return actions

    return act_in_parts
