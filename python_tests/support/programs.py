"""Programs that modules are exported to."""

import warnings

import torch
from support.needs import needs


def export_onnx(module, path, names=None, rows=7, free=True, shape=(5,)):
    for library in ("onnx", "onnxruntime"):
        needs(library)
    form = {"input_names": ["states"], "dynamic_axes": {"states": {0: "rows"}} if free else None, "output_names": names}
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(module.eval(), (torch.zeros(rows, *shape),), path, dynamo=False, **form)
