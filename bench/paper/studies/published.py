"""What the paper states in numbers: seconds on a Tesla P100 (appendix A.2) and counts of tasks (section 4)."""

from __future__ import annotations

# Averages over three seeds, in the order of `cells.TASKS`; the simulator stands for the paper's model-based estimator.
_TRAINING = {
    "sopr-t": (3972.7, 3904.6, 4870.1, 5578.3, 3216.0, 3230.8, 3911.7, 3847.6, 3803.7, 3663.1, 4670.9, 4632.9),
    "simulator": (6610.0, 4386.1, 4682.8, 5037.2, 7614.4, 4764.0, 5104.8, 4776.6, 4582.4, 4629.5, 4780.0, 4732.3),
    "importance-weighting": (
        3841.2, 4000.8, 2762.3, 3370.9, 3695.9, 3684.9, 3034.7, 3523.0, 3371.0, 3542.5, 2933.2, 3532.7,
    ),
}  # fmt: skip
# Ranking the ten policies of Test Set II.
_INFERENCE = {
    "sopr-t": (546.3, 538.4, 662.5, 660.4, 495.7, 490.2, 587.1, 626.7, 531.5, 537.6, 658.4, 662.4),
    "fqe": (
        48336.0, 45660.3, 42467.1, 43887.4, 44551.3, 51706.9, 44676.7, 60112.8, 52014.5, 49727.6, 44017.6, 44859.8,
    ),
    "dual-dice": (
        47690.6, 52757.4, 56625.4, 47438.6, 48764.1, 59532.8, 58953.9, 90679.3, 49146.8, 53583.4, 49982.8, 56993.5,
    ),
    "simulator": (125.8, 105.4, 82.9, 110.1, 103.4, 152.1, 122.5, 180.8, 112.1, 115.2, 108.2, 129.3),
    "importance-weighting": (19.6, 19.7, 14.6, 21.1, 19.3, 25.2, 25.9, 37.2, 19.6, 20.7, 20.2, 27.3),
}  # fmt: skip


def training_seconds(method: str, place: int) -> float | None:
    """Return the paper's seconds of training on a task, by its place in `cells.TASKS`; None where it states none."""
    return _TRAINING[method][place] if method in _TRAINING else None


def inference_seconds(method: str, place: int) -> float | None:
    """Return the paper's seconds of ranking Test Set II on a task; None where it states none."""
    return _INFERENCE[method][place] if method in _INFERENCE else None
