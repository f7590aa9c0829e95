"""Programs: ONNX graphs, which are data, and TorchScript and exported torch programs, which can run code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..._native import threads
from ..called import Called
from .options import Options, library, untrusted

_ACTIONS = ("action", "actions")


def read_onnx(path: Path, options: Options) -> list[Called]:
    runtime = library("onnxruntime", "onnx")
    settings = runtime.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads = 3, threads()
    try:
        session = runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # of its own types
        raise ValueError(f"onnxruntime cannot open it: {error}") from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 2 or inputs[0].type not in ("tensor(float)", "tensor(double)"):
        shown = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise ValueError(f"expected one float input (states, width), found {shown}")
    names = [output.name for output in session.get_outputs()]
    output = next((name for name in names if name in _ACTIONS), names[0])
    dtype = np.float64 if inputs[0].type == "tensor(double)" else np.float32

    def act(states: np.ndarray) -> np.ndarray:
        return session.run([output], {inputs[0].name: states.astype(dtype)})[0]

    rows = inputs[0].shape[0]
    return [Called(options.name, by_rows(act, rows) if isinstance(rows, int) else act, options.action_count)]


def read_torchscript(path: Path, options: Options) -> list[Called]:
    if not options.trust:
        raise untrusted("a TorchScript program is code,")
    try:
        module = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise ValueError(f"torch cannot open it: {error}") from error
    return [Called(options.name, module, options.action_count)]


def read_exported(path: Path, options: Options) -> list[Called]:
    if not options.trust:
        raise untrusted("an exported torch program is code,")
    try:
        program = torch.export.load(str(path))
    except Exception as error:  # of many types
        raise ValueError(f"torch cannot open it: {error}") from error
    named = program.graph_signature.user_inputs
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in named]
    if len(inputs) != 1 or inputs[0].dim() != 2:
        raise ValueError(f"expected one input (states, width), found {[tuple(i.shape) for i in inputs]}")
    module, rows = program.module(), inputs[0].shape[0]

    def act(states: np.ndarray) -> np.ndarray:
        return module(torch.from_numpy(states).to(inputs[0].dtype)).numpy()

    return [Called(options.name, by_rows(act, rows) if isinstance(rows, int) else act, options.action_count)]


def by_rows(act: Callable[[np.ndarray], np.ndarray], count: int) -> Callable[[np.ndarray], np.ndarray]:
    """`act`, which takes `count` states at a time, for any number of them."""

    def all_of(states: np.ndarray) -> np.ndarray:
        last = np.repeat(states[-1:], -len(states) % count, axis=0)
        padded = np.concatenate([states, last])
        parts = [act(padded[first : first + count]) for first in range(0, len(padded), count)]
        return np.concatenate(parts)[: len(states)]

    return all_of
