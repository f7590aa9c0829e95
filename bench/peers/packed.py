"""Packed rows without padding, with varlen attention, which is for GPUs and bf16 only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import Dropout, Stack, encoder_layer, folded_projection
from .loop import ReleasedModel, split

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None


class PackedModel(nn.Module):
    """A `ReleasedModel` (transformer, score "mean") on the packed rows of all policies, compiled, in bf16.

    Args:
        model: Model to compute, whose parameters are used.
    """

    def __init__(self, model: ReleasedModel):
        super().__init__()
        self.model = model
        self.high = Stack(model.encoder_hilev.layers, "sdpa")
        self.train(model.training)
        self.longest = 0
        self.run_low, self.run_high = torch.compile(self._low), torch.compile(self.high)

    def plan(self, clustering: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return rows sorted by cluster, and their offsets, once per subset."""
        clusters = sorted(split(clustering), key=len)
        self.longest = max(self.longest, len(clusters[-1]))
        sizes = torch.tensor([len(cluster) for cluster in clusters], device=clusters[0].device)
        return torch.cat(clusters), functional.pad(sizes.cumsum(0), (1, 0))

    def forward(self, states: Tensor, actions: Tensor, plan: tuple[Tensor, Tensor]) -> Tensor:
        """Return scores (P,) for states (N, dim_s) and actions (P, N, dim_a); every row must be in a cluster."""
        rows, offsets = plan
        weight, bias = (x.bfloat16() for x in folded_projection(self.model.fc, states, actions))
        begins = torch.arange(len(actions), device=offsets.device)[:, None] * offsets[-1] + offsets[:-1]
        bounds = torch.cat([begins.flatten(), len(actions) * offsets[-1:]])  # of the same segments for each policy
        x = torch.cat([states[rows].expand(len(actions), -1, -1), actions[:, rows]], -1)  # (P, T, dim_s + dim_a)
        x = torch.relu(functional.linear(x.flatten(0, 1)[None].bfloat16(), weight, bias))
        x = self.run_low(x, bounds)
        means = torch.segment_reduce(x[0].to(states.dtype), "mean", lengths=bounds.diff())
        pooled = means.unflatten(0, (len(actions), -1)).bfloat16()  # (P, K, E)
        return self.model.model(self.run_high(pooled).to(states.dtype).mean(1)).squeeze(-1)

    def _low(self, x: Tensor, offsets: Tensor) -> Tensor:
        drop, bounds, longest = Dropout(False), offsets.int(), self.longest

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = (y[0].transpose(0, 1) for y in (q, k, v))  # (T, H, d)
            return varlen_attn(*parts, bounds, bounds, longest, longest).transpose(0, 1)[None]

        for layer in self.model.encoder_lowlev.layers:
            x = encoder_layer(x, layer, attend, drop)
        return x
