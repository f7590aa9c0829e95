"""Clusters of similar size padded to one length and encoded together: the fastest plain torch on a CPU.

Clusters are sorted by size and divided into buckets small enough for their activations to stay in cache, which also
limits padding. Policies are processed in groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .layers import Stack, folded_projection, relu
from .loop import ReleasedModel, split

POLICIES = 10  # encoded at once


class Bucket(NamedTuple):
    index: Tensor  # (k, n), states of k clusters padded to n
    bias: Tensor  # (k, 1, 1, n), 0, or -inf at padding
    mean: Tensor  # (k, 1, n), 1 / size, or 0 at padding


class BucketedModel(nn.Module):
    """A `ReleasedModel` (transformer, score "mean") on buckets of clusters, with the same parameters.

    Args:
        model: Model to compute.
        attention: "sdpa" or "matmul".
        compiler: Options of `torch.compile` for both encoders, which see dynamic shapes; None for none.
        dtype: Dtype of all activations.
        tokens: Tokens per bucket, for all policies of a group.
        hashed_dropout: See `Stack`.
        recompute: Recompute the activations of the low level in the backward pass, bucket by bucket.
    """

    def __init__(
        self,
        model: ReleasedModel,
        *,
        attention: str = "sdpa",
        compiler: dict[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
        tokens: int = 4096,
        hashed_dropout: bool = False,
        recompute: bool = False,
    ):
        super().__init__()
        self.model = model
        self.low, self.high = _Low(model, attention), Stack(model.encoder_hilev.layers, attention)
        self.train(model.training)
        self.compiled, self.dtype, self.tokens = compiler is not None, dtype, tokens
        self.hashed_dropout, self.recompute = hashed_dropout, recompute
        self.run_low, self.run_high = self.low, self.high
        if compiler is not None:
            self.run_low, self.run_high = (torch.compile(level, **compiler) for level in (self.low, self.high))

    def plan(self, clustering: Tensor | tuple[Tensor, Tensor]) -> list[Bucket]:
        """Return the buckets of a subset, which serve any number of policies and steps."""
        buckets, chosen = [], []
        for cluster in sorted(split(clustering), key=len):
            if chosen and (len(chosen) + 1) * len(cluster) * POLICIES > self.tokens:
                buckets.append(_bucket(chosen))
                chosen = []
            chosen.append(cluster)
        return [*buckets, _bucket(chosen)]

    def forward(self, states: Tensor, actions: Tensor, plan: list[Bucket]) -> Tensor:
        """Return scores (P,) for states (N, dim_s) and actions (P, N, dim_a); every row must be in a cluster."""
        weight, bias = folded_projection(self.model.fc, states, actions)
        pooled = [
            torch.cat([self._low(states, group, bucket, weight, bias) for bucket in plan], 1)
            for group in actions.split(POLICIES)
        ]  # (P, K, E), in groups
        encoded = [
            self.run_high(self._dynamic(group, 0), None, self._seed()).to(self.model.fc[0].weight.dtype).mean(1)
            for group in pooled
        ]
        return self.model.model(torch.cat(encoded)).squeeze(-1)

    def _low(self, states: Tensor, actions: Tensor, bucket: Bucket, weight: Tensor, bias: Tensor) -> Tensor:
        policies = len(actions)
        x = torch.cat([states[bucket.index].expand(policies, -1, -1, -1), actions[:, bucket.index]], -1)
        inputs = (
            self._dynamic(x.flatten(0, 1).to(self.dtype), 0, 1),
            self._dynamic(bucket.bias.to(self.dtype).repeat(policies, 1, 1, 1), 0, 3),
            self._dynamic(bucket.mean.to(self.dtype).repeat(policies, 1, 1), 0, 2),
            weight,
            bias,
            self._seed(),
        )
        if self.recompute and torch.is_grad_enabled():
            pooled = checkpoint(self.run_low, *inputs, use_reentrant=False)
        else:
            pooled = self.run_low(*inputs)
        return pooled.unflatten(0, (policies, -1))  # (P, k, E)

    def _seed(self) -> Tensor | None:
        if not (self.hashed_dropout and self.training):
            return None
        return torch.randint(2**31, (), dtype=torch.int32, device=self.model.fc[0].weight.device)

    def _dynamic(self, x: Tensor, *dimensions: int) -> Tensor:
        if self.compiled:
            for dimension in dimensions:
                torch._dynamo.maybe_mark_dynamic(x, dimension)
        return x


class _Low(nn.Module):
    def __init__(self, model: ReleasedModel, attention: str):
        super().__init__()
        self.stack = Stack(model.encoder_lowlev.layers, attention)

    def forward(self, x: Tensor, bias: Tensor, mean: Tensor, weight: Tensor, projection_bias: Tensor, seed) -> Tensor:
        x = relu(functional.linear(x, weight.to(x.dtype), projection_bias.to(x.dtype)))
        return (mean @ self.stack(x, bias, seed)).squeeze(1)


def _bucket(clusters: list[Tensor]) -> Bucket:
    length = len(clusters[-1])
    index = torch.stack([functional.pad(cluster.long(), (0, length - len(cluster))) for cluster in clusters])
    sizes = torch.tensor([[len(cluster)] for cluster in clusters], device=index.device)
    real = torch.arange(length, device=index.device) < sizes  # (k, n)
    bias = torch.zeros(real.shape, device=index.device).masked_fill(~real, -torch.inf)[:, None, None]
    return Bucket(index, bias, (real / sizes)[:, None])
