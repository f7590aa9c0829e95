"""Packed rows without padding, with FlexAttention or varlen attention.

Both are made for GPUs. On a CPU, compiled FlexAttention has no backward pass and uses blocks of at least 32 rows;
varlen attention (bf16 only) is missing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .layers import Dropout, Stack, encoder_layer, folded_projection
from .loop import ReleasedModel, split

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None


class PackedModel(nn.Module):
    """A `ReleasedModel` (transformer, score "mean") on packed rows, with the same parameters.

    Args:
        model: Model to compute.
        attention: "flex" (forward only) processes one policy at a time, "varlen" all policies together; compiled.
        dtype: Dtype of all activations.
    """

    def __init__(self, model: ReleasedModel, *, attention: str, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.model, self.dtype = model, dtype
        self.high = Stack(model.encoder_hilev.layers, "sdpa")
        self.train(model.training)
        self.attention = attention
        self.longest = 0
        low = self._flex_low if attention == "flex" else self._varlen_low
        self.run_low = torch.compile(low, dynamic=False if attention == "flex" else None)
        self.run_high = torch.compile(self.high)

    def plan(self, clustering: Tensor | tuple[Tensor, Tensor]):
        """Return rows sorted by cluster, their offsets, and FlexAttention's block mask, once per subset."""
        clusters = sorted(split(clustering), key=len)
        self.longest = max(self.longest, len(clusters[-1]))
        device = clusters[0].device
        sizes = torch.tensor([len(cluster) for cluster in clusters], device=device)
        offsets = functional.pad(sizes.cumsum(0), (1, 0))
        mask = None
        if self.attention == "flex":
            segment = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
            total = len(segment)
            mask = create_block_mask(
                lambda b, h, i, j: segment[i] == segment[j],
                1,
                1,
                total,
                total,
                device=device,
                BLOCK_SIZE=32 if device.type == "cpu" else 128,
            )
        return torch.cat(clusters), offsets, mask

    def forward(self, states: Tensor, actions: Tensor, plan) -> Tensor:
        """Return scores (P,) for states (N, dim_s) and actions (P, N, dim_a); every row must be in a cluster."""
        rows, offsets, mask = plan
        weight, bias = folded_projection(self.model.fc, states, actions)
        pooled = []
        for group in actions.split(len(actions) if self.attention == "varlen" else 1):
            bounds = _repeated(offsets, len(group))
            x = torch.cat([states[rows].expand(len(group), -1, -1), group[:, rows]], -1)  # (P, T, dim_s + dim_a)
            x = x.flatten(0, 1)[None].to(self.dtype)
            x = torch.relu(functional.linear(x, weight.to(self.dtype), bias.to(self.dtype)))
            x = self.run_low(x, mask if self.attention == "flex" else bounds)
            means = torch.segment_reduce(x[0].to(states.dtype), "mean", lengths=bounds.diff())
            pooled.append(means.unflatten(0, (len(group), -1)))
        return self.model.model(
            self.run_high(torch.cat(pooled).to(self.dtype)).to(self.model.fc[0].weight.dtype).mean(1)
        ).squeeze(-1)

    def _flex_low(self, x: Tensor, mask) -> Tensor:
        for layer in self.model.encoder_lowlev.layers:
            x = encoder_layer(x, layer, lambda q, k, v: flex_attention(q, k, v, block_mask=mask), Dropout(False))
        return x

    def _varlen_low(self, x: Tensor, offsets: Tensor) -> Tensor:
        drop, bounds, longest = Dropout(False), offsets.int(), self.longest

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = (y[0].transpose(0, 1) for y in (q, k, v))  # (T, H, d)
            return varlen_attn(*parts, bounds, bounds, longest, longest).transpose(0, 1)[None]

        for layer in self.model.encoder_lowlev.layers:
            x = encoder_layer(x, layer, attend, drop)
        return x


def _repeated(offsets: Tensor, policies: int) -> Tensor:
    """Return the offsets of the same segments for consecutive policies."""
    begins = torch.arange(policies, device=offsets.device)[:, None] * offsets[-1] + offsets[:-1]
    return torch.cat([begins.flatten(), policies * offsets[-1:]])
