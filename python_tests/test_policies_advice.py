"""Every refusal that names an option: the advice is applied to the very file, which then acts as expected."""

import re

import numpy as np
import pytest
import torch
from test_reader_networks import DA, DS, REFUSED, expanded
from torch import nn

from sopr_fast.inputs.policies import load

STATES = torch.randn(60, DS, generator=torch.Generator().manual_seed(0)) * 2
NET = nn.Sequential(nn.Linear(DS, 4), nn.ReLU(), nn.Linear(4, DA))
SQUASHED, TRUST = {"activation": "relu", "squash": "tanh"}, {"trust": True}
RAN = r"names \S+; only arrays, .*; trust=True \(--trust\) opens it as code"


class RunningMeanStd:
    """Statistics as baselines keeps them."""

    mean, var = np.arange(DS) / 2.0, np.arange(1.0, DS + 1)

    def __init__(self):
        vars(self).update(mean=self.mean, var=self.var, count=9)


def standardised(states):
    return NET(((states.double() - RunningMeanStd.mean) / np.sqrt(RunningMeanStd.var + 1e-8)).float())


def write_onnx(path):
    for library in ("onnx", "onnxruntime"):
        pytest.importorskip(library)
    torch.onnx.export(NET, (torch.zeros(7, DS),), path, dynamo=False, dynamic_axes={"states": {0: "n"}},
                      input_names=["states"], output_names=["out"])  # fmt: skip


def pickled(content):
    return lambda path: torch.save(content, path)


EXPORTED = torch.export.export(NET, (torch.zeros(8, DS),))
FILES = {  # file → what writes it, given options, message, advised options, the actions that they then give
    "module.pt": (pickled(NET), {}, RAN, TRUST, NET),
    "modules.pt": (pickled({"actor": NET, "critic": nn.Linear(1, 1)}), SQUASHED, RAN, {**TRUST, **SQUASHED},
        lambda s: NET(s).tanh()),
    "values.pt": (pickled(NET), {"head": "values"}, RAN, {**TRUST, "head": "values"}, lambda s: NET(s).argmax(1)),
    **{
        f"statistics.{suffix}": (
            pickled(content),
            TRUST,
            "does not say its activation and head and squash: pass activation=…",
            {**TRUST, "activation": "relu", "squash": "none", "head": "action"},
            standardised,
        )
        for suffix, content in (
            ("pt", [NET, RunningMeanStd()]),
            ("pkl", (NET, RunningMeanStd())),
            ("pth", {"actor": NET, "obs_rms": RunningMeanStd()}),
        )
    },
    "net.pt": (torch.jit.script(NET).save, {}, r"a TorchScript program is code: .* trust=True \(--trust\)", TRUST, NET),
    "net.pt2": (lambda path: torch.export.save(EXPORTED, path), {}, "an exported torch program is code", TRUST, NET),
    "net.onnx": (write_onnx, {"action_count": DA},
        "not probabilities, .* for a file, pass head='logits' or head='values'",
        {"action_count": DA, "head": "values"}, lambda s: NET(s).argmax(1)),
    "deviations.onnx": (write_onnx, {"stochastic": True}, "not known: load it without stochastic", {}, NET),
    "indices.npy": (lambda path: np.save(path, np.arange(60) % 3), {},
        r"integer actions: load the policies by sopr_fast\.load_policies\(…, action_count=N\)", {"action_count": 3},
        lambda s: torch.arange(60) % 3),
}  # fmt: skip


def acted(path, options):
    (policy,) = load(path, **options).values()
    output = policy.output(STATES, torch.arange(60))
    return output.mean.argmax(1) if output.kind == "discrete" else output.mean


def check(path, given, message, advised, expected=None):
    with pytest.raises(ValueError, match=message) as caught:
        acted(path, given)
    assert given is TRUST or "trust" in advised or "trust" not in str(caught.value)
    actions = acted(path, advised)
    if expected is not None:
        np.testing.assert_allclose(actions, torch.as_tensor(expected(STATES)).detach(), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_files_of_any_library(tmp_path, name):
    write, *case = FILES[name]
    write(tmp_path / name)
    check(tmp_path / name, *case)


@pytest.mark.parametrize("content, given, message, advised", REFUSED.values(), ids=REFUSED)
def test_state_dicts(tmp_path, content, given, message, advised):
    path = tmp_path / "net.pt"
    torch.save(expanded(content), path)
    if advised is None:
        with pytest.raises(ValueError, match=re.escape(message)):
            load(path, **given)
    else:
        check(path, given, re.escape(message), advised)
