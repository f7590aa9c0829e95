"""Torch operators over the compiled kernels, each with a plain-torch reference in `ops.reference`."""

from .segment_mean import segment_mean

__all__ = ["segment_mean"]
