"""Programs: ONNX graphs, which are data; TorchScript, which can run code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..inputs.policies.callables import Called, adapt
from ..inputs.policies.options import DISCRETE, Options
from ..inputs.policies.output import Gaussian, Probabilities, one_hot
from ..runtime.extras import library
from ..runtime.native import threads
from ..runtime.text import printable
from ..runtime.warn import warn
from .shared.networks import role_of

_ONNXRUNTIME = (1, 24, 4)  # earlier versions follow external data out of the graph's folder
_ACTING = ("action", "mean", "logits", "probabilities")  # roles of outputs, the first one first
_MAY_ACT = (*_ACTING, "output", "body", "", "log_std", "values")


def read_onnx(path: Path, options: Options) -> list[Called]:
    """Read an ONNX graph: its output of actions, means, logits or probabilities by name, else warn of the choice."""
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
        advice = "pass a callable of states that runs it, or an array of its actions in every logged state"
        raise ValueError(f"expected one float input (states, width), found {shown}: {advice}")
    names = [output.name for output in session.get_outputs()]
    roles = {name: "action" if name in ("action", "actions") else role_of(name) for name in names}
    output = min(names, key=lambda name: _MAY_ACT.index(roles[name]))
    if len(names) > 1 and roles[output] not in _ACTING:
        warn(
            f"{printable(path)}: {output!r} of its {len(names)} outputs is taken for the actions; if it is not, name "
            "it when you export it: output_names=['action', …] of torch.onnx.export"
        )
    dtype = np.float64 if inputs[0].type == "tensor(double)" else np.float32
    rows, width = inputs[0].shape  # numbers, or names of free sizes

    def act(states: np.ndarray) -> np.ndarray:
        count = rows if isinstance(rows, int) else len(states)
        missing = -len(states) % count
        padded = np.concatenate([states, np.repeat(states[-1:], missing, axis=0)]).astype(dtype)
        blocks = padded.reshape(-1, count, states.shape[1])
        actions = [session.run([output], {inputs[0].name: block})[0] for block in blocks]
        if rows == 1:  # some graphs leave out the dimension of a single state
            actions = [part.reshape(1, -1) for part in actions]
        return np.concatenate(actions)[: -missing or None]

    policy = with_head(act, options, roles[output])
    policy.state_dim = width if isinstance(width, int) else None
    return [policy]


def read_torchscript(path: Path, options: Options) -> list[Called]:
    """Read a TorchScript program, if trusted."""
    if not options.trust:
        raise ValueError("a TorchScript program is code: read only with trust=True (--trust), if you trust its maker")
    return [with_head(torch.jit.load(str(path)), options)]


def read_exported(path: Path, options: Options) -> list[Called]:
    """Read a program that torch.export saved, if trusted."""
    if not options.trust:
        raise ValueError("a program of torch.export: read only with trust=True (--trust), if you trust its maker")
    return [with_head(torch.export.load(path).module(), options)]


def with_head(item: Any, options: Options, head: str | None = None) -> Called:
    """Return the policy of a callable or module, whose output is read as the option or its name says."""
    policy = adapt(options.name, item)
    head, act = options.take("head") or head, policy.call
    if head not in ("mean_log_std", *DISCRETE):
        if options.stochastic and options.action_count is None:
            raise ValueError("its standard deviations are not known: load it without stochastic")
        return policy
    squash = options.take("squash") if head == "mean_log_std" else ""
    if squash is None:
        raise ValueError("head='mean_log_std' needs to know what follows the mean: pass squash='tanh' or 'none'")
    if squash == "tanh" and options.stochastic:
        raise ValueError("its standard deviations are those before tanh: load it without stochastic")

    def read(states: np.ndarray) -> Any:
        outputs = torch.as_tensor(act(states)).detach()
        if head == "mean_log_std":
            if outputs.shape[1] % 2:
                raise ValueError(f"its {outputs.shape[1]} outputs are no means and log standard deviations")
            mean, log_std = outputs.chunk(2, 1)
            if options.stochastic:
                return Gaussian(mean, log_std.exp())
            return mean.tanh() if squash == "tanh" else mean
        if head == "values" or not options.stochastic:
            return Probabilities(one_hot(outputs.argmax(1), outputs.shape[1]))
        return Probabilities(outputs.softmax(1) if head == "logits" else outputs)

    policy.call = read
    return policy
