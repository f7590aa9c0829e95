"""Replay of GPU work from CUDA graphs, which launch all kernels of a function at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 2  # calls in which libraries make their workspaces and optimizers their state
_log = logging.getLogger(__name__)


class Replayed:
    """A function without arguments, run as it is at first, then captured as a CUDA graph and replayed.

    The function reads and writes tensors that stay in place and never waits for the device. Whatever else it does on
    the host happens only while it is captured. If it cannot be captured, or is not `allowed` to, every call runs it.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, *, allowed: bool = True) -> None:
        self._function, self._device, self._allowed = function, device, allowed and can_capture(device)
        self._warm_ups = _WARM_UPS
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif not self._allowed:
            self._function()
        elif self._warm_ups:
            self._warm_ups -= 1
            self._function()
        else:
            try:
                self._graph = capture(self._function, self._device)
            except RuntimeError as error:  # of memory, too
                self._allowed = False
                _log.warning("no CUDA graph, every launch runs by itself: %s", str(error).partition("\n")[0])
            self()


def can_capture(device: torch.device) -> bool:
    """Return whether work on a device may be captured now; SOPR_FAST_CUDA_GRAPHS=0 in the environment forbids it."""
    if device.type != "cuda" or os.environ.get("SOPR_FAST_CUDA_GRAPHS") == "0":
        return False
    return not torch.cuda.is_current_stream_capturing()


def capture(function: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a graph of the work of a function on a GPU, which is not done yet.

    Other threads may use the GPU meanwhile; their work is not captured. In the "global" mode, which is torch's default,
    an allocation by one of them would fail and end the capture.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        # By default torch captures a stream of the GPU that was current at the first capture, and no work on others.
        stream = torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            function()
    return graph
