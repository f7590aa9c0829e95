"""Programs: ONNX graphs, which are data; TorchScript, which can run code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from ..inputs.policies.callables import RECURRENT, Called, adapt
from ..inputs.policies.policy_files import ReadingOptions
from ..native import threads
from ..runtime.extras import library
from ..runtime.text import list_names

_ONNXRUNTIME = (1, 24, 4)  # earlier versions follow external data out of the graph's folder


def read_onnx(path: Path, options: ReadingOptions) -> list[Called]:
    """Read an ONNX graph: its only output, or the one named `action` or `actions`."""
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
    named = names if len(names) == 1 else [name for name in names if name in ("action", "actions")]
    if len(named) != 1:
        raise ValueError(
            f"which of its outputs {list_names(names)} are the actions is not said: name it when you export it, "
            "output_names=['action', …] of torch.onnx.export, or pass a callable of states that runs it"
        )
    dtype = np.float64 if inputs[0].type == "tensor(double)" else np.float32
    rows, width = inputs[0].shape  # numbers, or names of free sizes

    def act(states: np.ndarray) -> np.ndarray:
        count = rows if isinstance(rows, int) else len(states)
        missing = -len(states) % count
        padded = np.concatenate([states, np.repeat(states[-1:], missing, axis=0)]).astype(dtype)
        blocks = padded.reshape(-1, count, states.shape[1])
        actions = [session.run(named, {inputs[0].name: block})[0] for block in blocks]
        if rows == 1:  # some graphs leave out the dimension of a single state
            actions = [part.reshape(1, -1) for part in actions]
        return np.concatenate(actions)[: -missing or None]

    policy = adapt(options.name, act)
    policy.state_dim = width if isinstance(width, int) else None
    return [policy]


def read_torchscript(path: Path, options: ReadingOptions) -> list[Called]:
    """Read a TorchScript program, if trusted."""
    if not options.trust:
        raise ValueError("a TorchScript program is code: read only with trust=True, if you trust its maker")
    program = torch.jit.load(str(path))
    if any(name.rpartition(".")[2].startswith("weight_hh") for name, _ in program.named_parameters()):
        raise ValueError(RECURRENT)
    return [adapt(options.name, program)]
