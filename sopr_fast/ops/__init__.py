"""Torch operators over the compiled kernels.

They raise TypeError for an argument of another dtype, ValueError for one of another shape or out of range (offsets and
rows are looked at on the CPU), NotImplementedError for a second derivative (but of `segment_dropout`) or one in forward
mode.
"""

from .encoder_parameters import EncoderOptions, encoder_shapes
from .kmeans import KMeans, kmeans, kmeans_init
from .mlp import mlp, mlp_size, mlp_step
from .segment_attention import segment_attention
from .segment_dropout import segment_dropout
from .segment_encoder import long_tiles, segment_encoder
from .segment_mean import segment_mean

__all__ = [
    "EncoderOptions",
    "KMeans",
    "encoder_shapes",
    "kmeans",
    "kmeans_init",
    "long_tiles",
    "mlp",
    "mlp_size",
    "mlp_step",
    "segment_attention",
    "segment_dropout",
    "segment_encoder",
    "segment_mean",
]
