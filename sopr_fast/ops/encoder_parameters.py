"""Layout of the flat parameters of `segment_encoder`."""

from __future__ import annotations

import math

from torch import Tensor


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


def encoder_tensors(
    parameters: Tensor, inputs: int, width: int, layers: int, feedforward: int, project: bool
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Split flat parameters into the tensors of the projection (none without one) and the 12 tensors of each layer."""
    shapes = encoder_shapes(inputs, width, layers, feedforward, project)
    pieces = parameters.split([math.prod(shape) for shape in shapes])
    tensors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    first = 2 * project
    return tensors[:first], [tensors[i : i + 12] for i in range(first, len(tensors), 12)]
