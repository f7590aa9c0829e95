"""No padding: rows of a policy side by side, attention within clusters by nested tensors or FlexAttention.

Both are written for GPUs: on a CPU, torch runs nested attention segment by segment without fused kernels, and
FlexAttention, compiled, has no backward pass and works on blocks of 32 rows or more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .layers import Dropout, Stack, encoder_layer, folded_projection
from .loop import ReleasedModel, split


class PackedModel(nn.Module):
    """The scores of a `ReleasedModel` (transformer, score "mean"), with its very parameters, a policy at a time.

    Args:
        model: what to compute.
        attention: "nested" (eager) or "flex" (compiled; forward only).
        dtype: of all activations.
    """

    def __init__(self, model: ReleasedModel, *, attention: str, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.model, self.dtype = model, dtype
        self.high = Stack(model.encoder_hilev.layers, "sdpa")
        self.train(model.training)
        self.attention = attention
        flex = attention == "flex"
        self.run_low = torch.compile(self._flex_low, dynamic=False) if flex else self._nested_low
        self.run_high = torch.compile(self.high) if flex else self.high

    def plan(self, clustering: Tensor | tuple[Tensor, Tensor]):
        """Rows by cluster with their offsets, and FlexAttention's mask of blocks, made once a subset."""
        clusters = sorted(split(clustering), key=len)
        sizes = torch.tensor([len(cluster) for cluster in clusters])
        offsets = functional.pad(sizes.cumsum(0), (1, 0))
        mask = None
        if self.attention == "flex":
            segment = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            total = len(segment)
            mask = create_block_mask(
                lambda b, h, i, j: segment[i] == segment[j], 1, 1, total, total, device="cpu", BLOCK_SIZE=32
            )
        return torch.cat(clusters), offsets, mask

    def forward(self, states: Tensor, actions: Tensor, plan) -> Tensor:
        """Scores (P,) from states (N, dim_s), actions (P, N, dim_a), all rows in some cluster of the plan."""
        rows, offsets, mask = plan
        weight, bias = folded_projection(self.model.fc, states, actions)
        pooled = []
        for columns in actions:
            x = torch.cat([states[rows], columns[rows]], -1)[None].to(self.dtype)  # (1, T, dim_s + dim_a)
            x = torch.relu(functional.linear(x, weight.to(self.dtype), bias.to(self.dtype)))
            x = self.run_low(x, mask if self.attention == "flex" else offsets)
            pooled.append(torch.segment_reduce(x[0].float(), "mean", lengths=offsets.diff()))
        return self.model.model(self.run_high(torch.stack(pooled).to(self.dtype)).float().mean(1)).squeeze(-1)

    def _flex_low(self, x: Tensor, mask) -> Tensor:
        for layer in self.model.encoder_lowlev.layers:
            x = encoder_layer(x, layer, lambda q, k, v: flex_attention(q, k, v, block_mask=mask), Dropout(False))
        return x

    def _nested_low(self, x: Tensor, offsets: Tensor) -> Tensor:
        drop = Dropout(self.training)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = (
                torch.nested.nested_tensor_from_jagged(y[0].transpose(0, 1).contiguous(), offsets).transpose(1, 2)
                for y in (q, k, v)
            )
            mixed = functional.scaled_dot_product_attention(*parts, dropout_p=drop.probability)
            return mixed.transpose(1, 2).values().transpose(0, 1)[None]

        for layer in self.model.encoder_lowlev.layers:
            x = encoder_layer(x, layer, attend, drop)
        return x
