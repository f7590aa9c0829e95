"""Shared by the torch peers: encoder layers over batches of equally long segments, and the folded projection."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .loop import DROPOUT


class Stack(nn.Module):
    """The layers of a `TransformerEncoder` as plain operators, in the dtype of their input.

    Args:
        layers: Layers of torch, whose parameters are used in place.
        attention: "sdpa", or "matmul" for two batched products with a softmax between them, which torch.compile fuses.
    """

    def __init__(self, layers: nn.ModuleList, attention: str):
        super().__init__()
        self.layers = layers
        self.attend = {"sdpa": _sdpa, "matmul": _matmul}[attention]

    def forward(self, x: Tensor, bias: Tensor | None = None, seed: Tensor | None = None) -> Tensor:
        """Encode x (B, n, E).

        Args:
            x: Tokens, (B, n, E).
            bias: Added to the attention logits, (B, 1, 1, n); -inf masks a padded token.
            seed: int32 scalar for dropout that hashes the place of an element. None uses torch's dropout.
        """
        for number, layer in enumerate(self.layers):
            drop = Dropout(self.training, None if seed is None else seed + number * 0x1000193)
            x = encoder_layer(x, layer, lambda q, k, v, drop=drop: self.attend(q, k, v, bias, drop), drop)
        return x


class Dropout:
    """Dropout of one layer in training, called once per site: torch's, or a hash of (seed, site, place of the element).

    Compiled, a hash fuses with neighbouring operators: 0.3 ns per element, where torch's dropout takes 5 to 8 ns.
    """

    def __init__(self, training: bool, seed: Tensor | None = None):
        self.probability, self.seed, self.site = DROPOUT if training else 0.0, seed, 0

    def __call__(self, x: Tensor) -> Tensor:
        if self.seed is None or not self.probability:
            return functional.dropout(x, self.probability, self.probability > 0)
        self.site += 1
        place = self.seed + self.site * 0x9E3779
        for dimension, size in enumerate(x.shape):  # a sum of ranges vectorises, a view of one range does not
            steps = torch.arange(size, dtype=torch.int32, device=x.device) * math.prod(x.shape[dimension + 1 :])
            place = place + steps.view(-1, *[1] * (x.dim() - dimension - 1))
        word = _hash(place) & 0xFFFF
        return x * torch.where(word < round(self.probability * 65536), 0.0, 1 / (1 - self.probability)).to(x.dtype)


def _hash(x: Tensor) -> Tensor:
    """Hash int32 with two rounds of multiply and logical shift."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


def encoder_layer(x: Tensor, layer: nn.TransformerEncoderLayer, attend, dropped: Dropout) -> Tensor:
    """Apply one post-norm layer to x (B, n, E); `attend` maps queries, keys and values (B, H, n, d) to (B, H, n, d)."""

    def cast(parameter: Tensor) -> Tensor:
        return parameter.to(x.dtype)

    def linear(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(y, cast(weight), cast(bias))

    def norm(y: Tensor, module: nn.LayerNorm) -> Tensor:
        return functional.layer_norm(y, module.normalized_shape, cast(module.weight), cast(module.bias), module.eps)

    heads, attention = layer.self_attn.num_heads, layer.self_attn
    qkv = linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = qkv.view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, n, d) each
    mixed = attend(q, k, v).transpose(1, 2).reshape(x.shape)
    x = norm(x + dropped(linear(mixed, attention.out_proj.weight, attention.out_proj.bias)), layer.norm1)
    hidden = dropped(relu(linear(x, layer.linear1.weight, layer.linear1.bias)))
    return norm(x + dropped(linear(hidden, layer.linear2.weight, layer.linear2.bias)), layer.norm2)


def relu(x: Tensor) -> Tensor:
    """Compute ReLU in a form that fuses; compiled with gradients, torch.relu takes 5 ns per element for its mask."""
    return (x + x.abs()) * 0.5 if torch.compiler.is_compiling() and torch.is_grad_enabled() else torch.relu(x)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropped: Dropout) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, bias, dropped.probability)


def _matmul(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropped: Dropout) -> Tensor:
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if bias is not None:
        logits = logits + bias
    return dropped(torch.softmax(logits, -1)) @ v


def folded_projection(fc: nn.Sequential, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Fold Linear and BatchNorm1d into one affine map (E, D), (E,) of [state, action].

    Exact in training too: mean and variance of the batch follow from the moments of states (T, dim_s) and actions
    (P, T, dim_a).
    """
    linear, norm = fc[0], fc[1]
    if norm.training:
        mean, covariance = _moments(states, actions)
        count = actions.shape[0] * actions.shape[1]
        variance = ((linear.weight @ covariance) * linear.weight).sum(1)
        centre = linear.weight @ mean + linear.bias
        with torch.no_grad():
            norm.running_mean.lerp_(centre, norm.momentum)
            norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
    else:
        centre, variance = norm.running_mean, norm.running_var
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return scale[:, None] * linear.weight, (linear.bias - centre) * scale + norm.bias


def _moments(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    policies, count, _ = actions.shape
    state_mean, action_mean = states.mean(0), actions.mean((0, 1))
    s, a = states - state_mean, actions - action_mean
    across = s.T @ a.mean(0) / count
    own = a.flatten(0, 1).T @ a.flatten(0, 1) / (policies * count)
    covariance = torch.cat([torch.cat([s.T @ s / count, across], 1), torch.cat([across.T, own], 1)])
    return torch.cat([state_mean, action_mean]), covariance
