"""A map of policies: places in the plane whose distances resemble the action distances."""

from __future__ import annotations

import numpy as np


def classical_scaling(distances: np.ndarray) -> tuple[np.ndarray, float]:
    """Return places by classical multidimensional scaling.

    An action distance is a mean of squared differences, so it is the square of a Euclidean distance.

    Args:
        distances: (P, P) action distances, finite.

    Returns:
        (P, 2) places, centred, the sign of each axis such that its largest place is positive; and the share of the
        variance that the two axes show, 1 if all policies act alike.
    """
    count = len(distances)
    centred = distances - distances.mean(0)
    products = -0.5 * (centred - centred.mean(1, keepdims=True))
    values, vectors = np.linalg.eigh((products + products.T) / 2)
    values = np.maximum(values[::-1], 0)
    places = np.zeros((count, 2))
    shown = min(2, count)
    places[:, :shown] = vectors[:, ::-1][:, :shown] * np.sqrt(values[:shown])
    largest = np.abs(places).argmax(0)
    places *= np.where(places[largest, [0, 1]] < 0, -1, 1)
    total = values.sum()
    return places, float(values[:2].sum() / total) if total > 0 else 1.0
