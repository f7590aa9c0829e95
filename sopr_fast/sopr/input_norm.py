"""Batch norm of projected rows [state, columns], by the exact moments of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..runtime import devices

_AT_ONCE = 8  # policies whose moments a GPU computes at a time


class Moments(NamedTuple):
    """Moments of rows of width D, in float64."""

    mean: Tensor  # (D,)
    covariance: Tensor  # (D, D), biased
    row_count: Tensor  # ()


class InputNorm(nn.BatchNorm1d):
    """Batch norm after the input projection, which folds both into one affine map.

    Buffers `count`, `mean` and `covariance` are the moments of the rows, averaged over all batches.
    """

    running_mean: Tensor
    running_var: Tensor
    count: Tensor
    mean: Tensor
    covariance: Tensor

    def __init__(self, width: int, input_dim: int) -> None:
        super().__init__(width, dtype=torch.float32, device="cpu")
        for name, shape in (("count", ()), ("mean", (input_dim,)), ("covariance", (input_dim, input_dim))):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64, device="cpu"))

    @torch.no_grad()
    def observe(self, moments: Moments) -> None:
        """Add the moments of a training batch to those that evaluation mode uses."""
        mean, covariance, count = moments
        unbiased = covariance * (count / (count - 1).clamp(min=1))
        self.count += 1
        self.mean += (mean - self.mean) / self.count
        self.covariance += (unbiased - self.covariance) / self.count

    @torch.no_grad()
    def settle(self, projection: nn.Linear) -> None:
        """Set the running moments, which evaluation mode uses, to those of all rows seen under the weights as they are.

        A running mean over earlier weights would be wrong if the mean of a column is large.
        """
        weight, seen = projection.weight.double(), self.count > 0
        mean = weight @ self.mean + projection.bias.double()
        variance = ((weight @ self.covariance) * weight).sum(1)
        self.running_mean.copy_(torch.where(seen, mean, self.running_mean.double()))
        self.running_var.copy_(torch.where(seen, variance, self.running_var.double()))

    def fold(self, projection: nn.Linear, moments: Moments | None) -> tuple[Tensor, Tensor]:
        """Return weight and bias of projection and norm as one map, by the moments of a batch or the running ones."""
        weight, bias = projection.weight, projection.bias
        wide = weight.double()
        if moments is not None:
            variance, shift = ((wide @ moments.covariance) * wide).sum(1), -(wide @ moments.mean)
        else:
            variance, shift = self.running_var.double(), bias.double() - self.running_mean.double()
        scale = self.weight.double() * torch.rsqrt(variance + self.eps)
        return (scale[:, None] * wide).to(weight.dtype), (self.bias.double() + scale * shift).to(bias.dtype)


def row_moments(
    states: Tensor,  # (U, dim_s)
    columns: Tensor,  # (p, U, dim_c) of this process's policies
    rows: Tensor,  # (S, N)
    blocks: Sequence[slice] = (slice(None),),
    gather: Callable[[Tensor], Tensor] = lambda own: own,
) -> Moments:
    """Return the moments of the rows of all policies.

    Those of each block of policies are computed apart; on a GPU each policy is a block, so that few kernels do all.
    `gather` returns the blocks of all processes from those of this one.
    """
    index = rows.reshape(-1).long()
    drawn = states[index].double()
    state_mean = drawn.mean(0)
    drawn -= state_mean
    total, dim, width = len(drawn), drawn.shape[1], columns.shape[2]
    parts = gather(_part_moments(drawn, columns, index, blocks))
    counts, means, cross, own = parts.split([1, width, dim * width, width * width], 1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    apart = means - mean
    cross = cross.sum(0).view(dim, width) / count  # states are centred, so means of parts do not matter
    own = (own.sum(0).view(width, width) + (counts * apart).T @ apart) / count
    top = torch.cat([drawn.T @ drawn / total, cross], 1)
    bottom = torch.cat([cross.T, own], 1)
    return Moments(torch.cat([state_mean, mean]), torch.cat([top, bottom]), count)


def _part_moments(drawn: Tensor, columns: Tensor, index: Tensor, blocks: Sequence[slice]) -> Tensor:
    """Return the moments of each block (B, 1 + dim_c + D dim_c), from centred states (T, dim_s) and where these are.

    These are the number of rows, their mean columns, and sums of products of centred rows and columns.
    """
    if devices.runs_ahead(columns.device):
        # Always as many policies at a time, the last one repeatedly, so that libraries choose the same kernel, and a
        # policy's moments have the same bits, whatever other policies this process has.
        starts = range(0, len(columns), _AT_ONCE)
        policy = torch.arange(len(starts) * _AT_ONCE, device=index.device).clamp(max=len(columns) - 1)[:, None]
        parts = [_policy_moments(drawn, columns[policy[first : first + _AT_ONCE], index]) for first in starts]
        parts = [torch.cat(parts)[: len(columns)]] if parts else []
    else:
        parts = [_block_moments(drawn, columns[policies][:, index])[None] for policies in blocks]
    width = columns.shape[2]
    return torch.cat([drawn.new_empty(0, 1 + width + (drawn.shape[1] + width) * width), *parts])


def _policy_moments(drawn: Tensor, taken: Tensor) -> Tensor:
    """Return the moments of each policy from centred states (T, dim_s) and columns (P, T, dim_c)."""
    centred = taken.double()
    mean = centred.mean(1)
    centred -= mean[:, None]
    count = torch.full_like(mean[:, :1], taken.shape[1])
    return torch.cat([count, mean, (drawn.T @ centred).flatten(1), (centred.mT @ centred).flatten(1)], 1)


def _block_moments(drawn: Tensor, taken: Tensor) -> Tensor:
    """Return the moments of all policies of a part, from the same arguments, a policy at a time."""
    mean = taken.double().mean((0, 1))
    across, own = mean.new_zeros(taken.shape[1:]), mean.new_zeros(len(mean), len(mean))
    for policy in taken:
        centred = policy.double() - mean
        across += centred
        own += centred.T @ centred
    count = mean.new_tensor([taken.shape[0] * taken.shape[1]])
    return torch.cat([count, mean, (drawn.T @ across).flatten(), own.flatten()])
