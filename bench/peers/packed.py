"""Packed rows without padding, with FlexAttention masked by cluster."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .layers import Dropout, Stack, encoder_layer, folded_projection
from .loop import ReleasedModel, split


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
        self.run_low, self.run_high = torch.compile(self._low), torch.compile(self.high)

    def plan(self, clustering: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, BlockMask]:
        """Return rows sorted by cluster, sizes of clusters, and which rows attend to which, once per subset."""
        clusters = sorted(split(clustering), key=len)
        rows = torch.cat(clusters)
        sizes = torch.tensor([len(cluster) for cluster in clusters], device=rows.device)
        label = torch.arange(len(sizes), device=rows.device).repeat_interleave(sizes)
        mask = create_block_mask(lambda b, h, q, k: label[q] == label[k], None, None, len(rows), len(rows), rows.device)
        return rows, sizes, mask

    def forward(self, states: Tensor, actions: Tensor, plan: tuple[Tensor, Tensor, BlockMask]) -> Tensor:
        """Return scores (P,) for states (N, dim_s) and actions (P, N, dim_a); every row must be in a cluster."""
        rows, sizes, mask = plan
        weight, bias = (x.bfloat16() for x in folded_projection(self.model.fc, states, actions))
        x = torch.cat([states[rows].expand(len(actions), -1, -1), actions[:, rows]], -1)  # (P, T, dim_s + dim_a)
        x = self.run_low(torch.relu(functional.linear(x.bfloat16(), weight, bias)), mask)
        lengths = sizes.repeat(len(actions))
        means = torch.segment_reduce(x.flatten(0, 1).to(states.dtype), "mean", lengths=lengths)
        pooled = means.unflatten(0, (len(actions), -1)).bfloat16()  # (P, K, E)
        return self.model.model(self.run_high(pooled).to(states.dtype).mean(1)).squeeze(-1)

    def _low(self, x: Tensor, mask: BlockMask) -> Tensor:
        for layer in self.model.encoder_lowlev.layers:
            x = encoder_layer(x, layer, lambda q, k, v: flex_attention(q, k, v, block_mask=mask), Dropout(False))
        return x
