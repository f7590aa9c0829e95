"""Layers of the scoring model with their initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from ..runtime.native import torch_on_one_thread

Layer = TypeVar("Layer", bound=nn.Module)


def linear_layer(read: int, written: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Return a layer with weights drawn as `nn.Linear` draws them."""
    return _initialise(_made(nn.Linear, read, written, bias=bias), generator)


def _made(kind: Callable[..., Layer], *sizes: int, **options: bool) -> Layer:
    """Return a layer and leave the global generator as it was; `skip_init` would import torch._refs, 0.4 s."""
    with torch.random.fork_rng(devices=[]):
        return kind(*sizes, device="cpu", dtype=torch.float32, **options)


def _initialise(layer: nn.Linear, generator: torch.Generator) -> nn.Linear:
    """Draw the weights as `nn.Linear.reset_parameters` does, in its order."""
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    if layer.bias is not None:
        bound = 1 / math.sqrt(layer.in_features)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def stack(width: int, heads: int, feedforward: int, layers: int, generator: torch.Generator) -> nn.TransformerEncoder:
    """Return an encoder with weights drawn as `nn.TransformerEncoderLayer` does, in its order."""
    layer = _made(nn.TransformerEncoderLayer, width, heads, feedforward, batch_first=True)
    attention = layer.self_attn
    _initialise(attention.out_proj, generator)
    nn.init.xavier_uniform_(attention.in_proj_weight, generator=generator)
    nn.init.zeros_(attention.in_proj_bias)
    nn.init.zeros_(attention.out_proj.bias)
    _initialise(layer.linear1, generator)
    _initialise(layer.linear2, generator)
    layer.norm1.reset_parameters()
    layer.norm2.reset_parameters()
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


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
    layers = []
    for weight in (mirrored, mirrored.T):
        written, read = weight.shape
        layer = _made(nn.Linear, read, written)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.zero_()
        layers.append(layer)
    return nn.ModuleList(layers)
