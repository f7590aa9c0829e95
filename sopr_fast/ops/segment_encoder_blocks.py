"""The encoder in a training step on the CPU: activations stay for the backward pass, gradients come apart by block."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .encoder_parameters import EncoderOptions
from .segment_encoder import fields_of, new_out, run_on_cpu, tape_size


class Arena:
    """Memory for activations, `budget` bytes, which every step uses again: fresh pages cost more than they save."""

    def __init__(self, budget: int) -> None:
        self._budget = budget // 4
        self._buffers: list[Tensor] = []
        self._workspace = torch.empty(0, device="cpu")
        self.reset()

    def workspace(self, size: int) -> Tensor:
        """Return scratch memory of a call, `size` floats."""
        if self._workspace.numel() < size:
            self._workspace = _empty(size)
        return self._workspace

    def reset(self) -> None:
        """Begin a step: its calls take the memory of those of the step before."""
        self._taken, self._left = 0, self._budget

    def take(self, size: int, most: int) -> tuple[Tensor, int]:
        """Return memory for as many of `most` parts of `size` floats as the budget leaves, and their number."""
        count = min(most, self._left // size) if size else 0
        self._left -= count * size
        if self._taken == len(self._buffers):
            self._buffers.append(torch.empty(0, device="cpu"))
        if self._buffers[self._taken].numel() < count * size:
            # A little more than is asked for: the clusters of the next subset need other padding.
            self._buffers[self._taken] = _empty(count * size + size // 4)
        self._taken += 1
        return self._buffers[self._taken - 1], count


def _empty(size: int) -> Tensor:
    """Return uninitialised floats, in huge pages where the system has them."""
    memory = mmap.mmap(-1, max(4 * size, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32, count=size) if size else torch.empty(0, device="cpu")


def segment_encoder_blocks(
    *tensors: Tensor, blocks: Sequence[int], arena: Arena, rng: Tensor | None, **options: Any
) -> Tensor:
    """Compute `segment_encoder` for trusted arguments in CPU memory, with a gradient of the parameters for each block.

    Adjacent `blocks` have so many policies. Row b of the parameters, (B, n), which are the same for all, gets the
    gradient of block b. Activations that do not fit the arena are computed again in the backward pass.
    """
    return _Encode.apply(*tensors, rng, EncoderOptions(**options), blocks, arena)


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, parameters, rng, options, blocks, arena = arguments
        fields = fields_of(*tensors, parameters[0], rng, *options)
        fields |= {"blocks": torch.from_numpy(np.cumsum([0, *blocks], dtype=np.int32)), "block_count": len(blocks)}
        fields["tape"], fields["kept"] = arena.take(tape_size(fields), fields["policies"])
        ctx.others = fields, parameters.shape, arena
        (out,) = new_out(fields)
        run_on_cpu("segment_encoder", fields | {"out": out}, arena.workspace)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        fields, shape, arena = ctx.others
        grad_parameters = grad_out.new_empty(shape)
        grad_columns = torch.empty_like(fields["columns"]) if ctx.needs_input_grad[1] else None
        gradients = {"grad_parameters": grad_parameters, "grad_columns": grad_columns}
        run_on_cpu(
            "segment_encoder_backward", fields | gradients | {"grad_out": grad_out.contiguous()}, arena.workspace
        )
        return None, grad_columns, None, None, grad_parameters, None, None, None, None
