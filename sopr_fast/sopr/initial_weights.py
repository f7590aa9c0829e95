"""Layers of the scoring model with their initial weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from ..native import torch_on_one_thread


class Linear(nn.Linear):
    """A linear map in float32 on the CPU, with weights drawn as `nn.Linear` draws them, or none.

    It draws neither from the global generator nor by `skip_init`, which would import torch's reference operators, 0.4 s
    a process.
    """

    def __init__(self, read: int, written: int, generator: torch.Generator | None = None) -> None:
        super().__init__(read, written, device="cpu", dtype=torch.float32)
        if generator is not None:
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(read)
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


class _Attention(nn.Module):
    """Parameters of `nn.MultiheadAttention`, drawn as it draws them, in its order."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width, dtype=torch.float32, device="cpu"))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width, dtype=torch.float32, device="cpu"))
        self.out_proj = Linear(width, width, generator)
        nn.init.xavier_uniform_(self.in_proj_weight, generator=generator)
        nn.init.zeros_(self.out_proj.bias)


class EncoderLayer(nn.Module):
    """Parameters of `nn.TransformerEncoderLayer` by the same names, drawn as it draws them, in its order."""

    def __init__(self, width: int, feedforward: int, generator: torch.Generator) -> None:
        super().__init__()
        self.self_attn = _Attention(width, generator)
        self.linear1 = Linear(width, feedforward, generator)
        self.linear2 = Linear(feedforward, width, generator)
        self.norm1 = nn.LayerNorm(width, device="cpu", dtype=torch.float32)
        self.norm2 = nn.LayerNorm(width, device="cpu", dtype=torch.float32)

    def in_order(self) -> list[torch.Tensor]:
        """Return the parameters in the order that `ops.segment_encoder` reads."""
        others = self.norm1, self.linear1, self.linear2, self.norm2
        return [*self.self_attn.parameters(), *(parameter for layer in others for parameter in layer.parameters())]


def stack(width: int, feedforward: int, layers: int, generator: torch.Generator) -> nn.ModuleList:
    """Return copies of one transformer layer."""
    layer = EncoderLayer(width, feedforward, generator)
    return nn.ModuleList(copy.deepcopy(layer) for _ in range(layers))


def mlp(width: int, feedforward: int, layers: int, generator: torch.Generator) -> nn.ModuleList:
    """Return pairs of layers that pass their input through until they are trained.

    Drawn as `nn.Linear` draws them, 16 layers without residuals and norms give all policies nearly one score.
    """
    return nn.ModuleList(_mirrored_pair(width, feedforward, generator) for _ in range(layers))


def _mirrored_pair(width: int, feedforward: int, generator: torch.Generator) -> nn.ModuleList:
    """Return layers that map x to Wᵀ relu(W x) - Wᵀ relu(-W x) = Wᵀ W x ("looks-linear", Balduzzi et al. 2017).

    Wᵀ W is the identity if `feedforward` is even and at least twice `width`.
    """
    directions = torch.empty((feedforward + 1) // 2, width, dtype=torch.float64, device="cpu")
    with torch_on_one_thread():
        nn.init.orthogonal_(directions, generator=generator)
    mirrored = torch.cat([directions, -directions])[:feedforward]
    pair = Linear(width, feedforward), Linear(feedforward, width)
    for layer, weight in zip(pair, (mirrored, mirrored.T), strict=True):
        layer.weight.data.copy_(weight)
        layer.bias.data.zero_()
    return nn.ModuleList(pair)
