"""Files and objects of other programs: which function reads which. No module in this folder imports another one.

A function is named as "module:function" and imported when it is needed; `POLICIES` may get others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

POLICIES: dict[str, Any] = {  # suffix → function of a path and `ReadingOptions` that returns policies
    ".npz": "sopr_fast.formats.state_dicts:read_npz",
    ".npy": "sopr_fast.inputs.policies.array_policy:read_npy",
    ".onnx": "sopr_fast.formats.programs:read_onnx",
    ".safetensors": "sopr_fast.formats.state_dicts:read_safetensors",
    ".d3": "sopr_fast.formats.d3rlpy:read",
    ".torchscript": "sopr_fast.formats.programs:read_torchscript",
    ".zip": "sopr_fast.formats.stable_baselines3.models:read",
    **dict.fromkeys((".pt", ".pth", ".cleanrl_model"), "sopr_fast.formats.state_dicts:read_torch"),
    **dict.fromkeys((".pkl", ".pickle"), "sopr_fast.formats.state_dicts:read_torch"),
}
LOGS = {  # package of an object's class → function of the object, or a record of it, that returns arrays
    "stable_baselines3": "sopr_fast.formats.stable_baselines3.buffers:of_buffer",
}
EVALUATIONS = "sopr_fast.formats.stable_baselines3.evaluations:read_evaluations"  # function of a path and names


def load(place: Any) -> Any:
    """Import the function of a place "module:function"; return a function as it is."""
    if callable(place):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
