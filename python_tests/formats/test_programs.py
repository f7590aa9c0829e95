"""ONNX graphs act as the module that they came from, TorchScript with trust."""

import sys
import warnings

import numpy as np
import pytest
import torch
from support.needs import needs
from support.programs import export_onnx
from torch import nn

from sopr_fast.inputs.policies import load_policies as load

DS, DA = 5, 3


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DS, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, DA), nn.Tanh()).eval()


class Then(nn.Module):
    """A module that returns change(states, net(states))."""

    def __init__(self, net, change):
        super().__init__()
        self.net, self.change = net, change

    def forward(self, states):
        return self.change(states, self.net(states))


def acts_alike(policy, module, states):
    with torch.no_grad():
        torch.testing.assert_close(policy.act(states), module(states), atol=1e-6, rtol=1e-5)


def second(module):
    return Then(module, lambda states, actions: (states.sum(1), actions))


ONE_ROW = {"rows": 1, "free": False}
GRAPHS = {  # what is exported, and how
    "free rows": (nn.Sequential, {}),
    "one row": (nn.Sequential, ONE_ROW),
    "one row, without its dimension": (lambda net: Then(net, lambda _, actions: actions.squeeze(0)), ONE_ROW),
    "64 rows": (nn.Sequential, {"rows": 64, "free": False}),
    "named": (nn.Sequential, {"names": ["mean"]}),
    "action": (second, {"names": ["value", "action"]}),
    "actions": (lambda net: Then(net, lambda _, actions: (actions, actions[:, 0])), {"names": ["actions", "v"]}),
}


@pytest.mark.parametrize("made, form", GRAPHS.values(), ids=GRAPHS)
def test_onnx_acts_like_its_module(tmp_path, module, states, made, form):
    export_onnx(made(module), tmp_path / "net.onnx", **form)
    with warnings.catch_warnings(action="error"):
        (policy,) = load(tmp_path / "net.onnx").values()
    acts_alike(policy, module, states)
    assert policy.state_dim == DS


def test_onnx_that_cannot_be_read(tmp_path, module, monkeypatch):
    needs("onnxruntime")
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(ValueError, match=r"net\.onnx: damaged, or of a form that cannot be opened"):
        load(path)
    export_onnx(Then(module, lambda states, actions: actions.sum(0)), path, rows=4, free=False)
    with pytest.raises(ValueError, match=r"'net' returned shape \(9,\), expected \(13, action width\)"):
        load(path)["net"].act(torch.zeros(13, DS))
    export_onnx(nn.Flatten(), path, shape=(1, 2))
    with pytest.raises(ValueError, match=r"expected one float input \(states, width\), found states tensor\(float\)"):
        load(path)
    export_onnx(module, path)
    assert load(path)
    export_onnx(second(module), path, ["state_value", "policy"])
    with pytest.raises(ValueError, match=r"which of its outputs state_value, policy are the actions .*output_names="):
        load(path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"net\.onnx: reading it needs onnxruntime: pip install '\.\[onnx\]' "):
        load(path)


def test_onnx_prints_no_names_of_its_nodes(tmp_path, capfd):
    onnx = needs("onnx")
    helper = onnx.helper
    shapes = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in ("states", "action")]
    shape = onnx.numpy_helper.from_array(np.array([-1, 3]), "shape")
    nodes = [helper.make_node("Reshape", ["states", "shape"], ["action"], name="\x1b]0;title\x07")]
    graph = helper.make_graph(nodes, "graph", shapes[:1], shapes[1:], [shape])
    opset = [helper.make_opsetid("", 17)]
    (tmp_path / "net.onnx").write_bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())
    (policy,) = load(tmp_path / "net.onnx").values()
    with pytest.raises(Exception, match="Reshape"):
        policy.act(torch.ones(1, 4))
    assert "\x1b]0" not in capfd.readouterr().err


def test_onnx_reads_no_files_outside_of_its_folder(tmp_path, module, monkeypatch):
    (tmp_path / "folder").mkdir()
    export_onnx(module, tmp_path / "net.onnx")
    import onnx
    import onnxruntime

    external = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(onnx.load(str(tmp_path / "net.onnx")), str(tmp_path / "outside.onnx"), **external)
    content = (tmp_path / "outside.onnx").read_bytes()
    (tmp_path / "folder" / "net.onnx").write_bytes(content)
    (tmp_path / "folder" / "weights").symlink_to("../weights")
    assert load(tmp_path / "outside.onnx")
    with pytest.raises(ValueError, match=r"folder/net\.onnx: damaged, or of a form that cannot be opened"):
        load(tmp_path / "folder" / "net.onnx")
    monkeypatch.setattr(onnxruntime, "__version__", "1.18.0")
    with pytest.raises(ImportError, match=r"1\.18\.0 lets a graph read any file of yours: pip install --upgrade"):
        load(tmp_path / "net.onnx")


class Remembering(nn.Module):
    """A policy of IsaacLab that keeps its memory in buffers."""

    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(DS, DA)
        self.register_buffer("hidden", torch.zeros(1, 1, DA))

    def forward(self, states):
        out, _ = self.memory(states.unsqueeze(0), (self.hidden, self.hidden))
        return out.squeeze(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_with_a_memory_is_refused(tmp_path):
    torch.jit.script(Remembering()).save(tmp_path / "motion.pt")
    with pytest.raises(ValueError, match=r"motion\.pt: a TorchScript program is code"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"motion\.pt: it is recurrent, .* pass an array of its actions"):
        load(tmp_path, trust=True)


JAX = b"\x81\xa6params\x81\xa7Dense_0\x82\xa6kernel\xc7"  # as flax.serialization.to_bytes begins


@pytest.mark.parametrize("name", ["dqn_jax.cleanrl_model", "actor.pkl", "actor"])
def test_files_of_jax_are_no_damaged_ones(tmp_path, name):
    (tmp_path / name).write_bytes(JAX)
    with pytest.raises(ValueError, match="a JAX agent, .* pass a callable of states") as caught:
        load(tmp_path / name)
    assert "trust" not in str(caught.value)
