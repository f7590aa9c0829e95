"""Options of `segment_encoder` and the layout of its flat parameters."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


class EncoderOptions(NamedTuple):
    """Arguments of `segment_encoder` that are not tensors.

    Attributes:
        width: Width E of the tokens.
        layers: Number of layers, as in torch.nn.TransformerEncoderLayer with ReLU, norm after, eps 1e-5.
        heads: Attention heads; must divide `width`.
        feedforward: Width of the feed-forward block.
        project: Apply a linear map and ReLU to the tokens first; otherwise ds + dc must equal `width`.
        pool: Return means of segments instead of tokens.
        dropout: Probability of dropping a value, in at most 256 layers of at most 4096 heads.
        level: Level of the encoder, 0 or 1, which selects other dropout masks; see csrc/philox.h.
        segment_base: Number of the first segment; segment (p, s, k) has number
            ``segment_base + (p * S + s) * K + k``.
        precision: ``"fp32"``, or ``"bf16"`` for the operands of the layers' matrix products, forward and backward;
            sums, residuals, norms and softmax stay in float32. bf16 is computed in fp32 without AVX512-BF16 and with
            heads of odd width; on a GPU, where tensor cores are not used.
        long_tiles: The most tiles of 128 rows that longer segments of a subset fill, see `long_tiles`: a GPU then
            launches no more kernels than they need. Unknown by default; too small a number loses segments.
    """

    width: int
    layers: int
    heads: int
    feedforward: int
    project: bool = True
    pool: bool = True
    dropout: float = 0.0
    level: int = 0
    segment_base: int = 0
    precision: str = "fp32"
    long_tiles: int = -1


def encoder_shapes(
    inputs: int, width: int, layers: int, feedforward: int, project: bool = True
) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that `segment_encoder` expects in its flat parameters, in order.

    First weight and bias of the projection if `project`; then, for every layer, in_proj_weight, in_proj_bias,
    out_proj.weight, out_proj.bias, norm1.weight, norm1.bias, linear1.weight, linear1.bias, linear2.weight,
    linear2.bias, norm2.weight and norm2.bias of torch.nn.TransformerEncoderLayer.

    Args:
        inputs: Width of the tokens before the projection, ds + dc.
        width: Width of the tokens in the layers.
        layers: Number of layers.
        feedforward: Width of the feed-forward block.
        project: Whether a projection precedes the layers.
    """
    attention = [(3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,)]
    feed = [(feedforward, width), (feedforward,), (width, feedforward), (width,), (width,), (width,)]
    return [(width, inputs), (width,)] * project + (attention + feed) * layers


def views(parameters: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Return the tensors of these shapes, in order, of which flat parameters consist."""
    parts = parameters.split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
