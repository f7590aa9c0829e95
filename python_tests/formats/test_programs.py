"""ONNX graphs, TorchScript and exported programs act as the module they came from."""

import contextlib
import sys
import warnings

import numpy as np
import pytest
import torch
from support.needs import needs
from support.programs import export_onnx
from torch import nn

from sopr_fast.formats.shared.pickles import RefusedError
from sopr_fast.formats.shared.torch_files import read_weights
from sopr_fast.inputs.policies import load

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


SEVERAL = r"'policy' of its 2 outputs is taken for the actions; .* output_names"
ONE_ROW = {"rows": 1, "free": False}
GRAPHS = {  # what is exported, and how → warning
    "free rows": (nn.Sequential, {}, None),
    "one row": (nn.Sequential, ONE_ROW, None),
    "one row, without its dimension": (lambda net: Then(net, lambda _, actions: actions.squeeze(0)), ONE_ROW, None),
    "64 rows": (nn.Sequential, {"rows": 64, "free": False}, None),
    "named": (nn.Sequential, {"names": ["mean"]}, None),
    "action": (second, {"names": ["value", "action"]}, None),
    "mu": (second, {"names": ["value", "mu"]}, None),
    "actions": (lambda net: Then(net, lambda _, actions: (actions, actions[:, 0])), {"names": ["actions", "v"]}, None),
    "other names": (second, {"names": ["state_value", "policy"]}, SEVERAL),
}


@pytest.mark.parametrize("made, form, warning", GRAPHS.values(), ids=GRAPHS)
def test_onnx_acts_like_its_module(tmp_path, module, states, made, form, warning):
    export_onnx(made(module), tmp_path / "net.onnx", **form)
    warns = pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext()
    with warnings.catch_warnings(action="error"), warns:
        (policy,) = load(tmp_path / "net.onnx").values()
    acts_alike(policy, module, states)
    assert policy.state_dim == DS


HEADS = {"q": {}, "q_values": {}, "out": {"head": "values"}, "logits": {"action_count": DA}}


@pytest.mark.parametrize("name", [*HEADS, "index"])
def test_onnx_of_discrete_actions(tmp_path, module, states, name):
    greedy = Then(module, lambda states, actions: actions.argmax(1))
    export_onnx(greedy if name == "index" else module, tmp_path / "net.onnx", [name])
    policies = load(tmp_path / "net.onnx", **HEADS.get(name, {}))
    policy = load(policies, action_count=DA)["net"] if name == "index" else policies["net"]
    assert policy.output(states).kind == "discrete"
    np.testing.assert_array_equal(policy(states), module(states).argmax(1))
    if name != "index":
        drawn = load(tmp_path / "net.onnx", stochastic=True, **HEADS[name])["net"].output(states).mean
        expected = module(states).softmax(1) if name == "logits" else policy.output(states).mean
        torch.testing.assert_close(drawn, expected.detach())


def test_means_and_log_standard_deviations_of_a_program(tmp_path, states):
    path, given = tmp_path / "net.onnx", {"head": "mean_log_std", "squash": "tanh"}
    module = nn.Linear(DS, 4)
    export_onnx(module, path, ["out"])
    (policy,) = load(path, **given).values()
    torch.testing.assert_close(policy.act(states), module(states)[:, :2].tanh().detach())
    (policy,) = load(path, head="mean_log_std", squash="none", stochastic=True).values()
    torch.testing.assert_close(policy.output(states).std, module(states)[:, 2:].exp().detach())
    with pytest.raises(ValueError, match="what follows the mean: pass squash='tanh' or 'none'"):
        load(path, head="mean_log_std")
    with pytest.raises(ValueError, match="those before tanh: load it without stochastic"):
        load(path, stochastic=True, **given)
    export_onnx(nn.Linear(DS, 3), path, ["out"])
    with pytest.raises(RuntimeError, match="its 3 outputs are no means and log standard deviations"):
        load(path, **given)["net"].act(states)


def test_onnx_that_cannot_be_read(tmp_path, module, monkeypatch):
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_no_weights_and_float64_is_kept(tmp_path, module, states):
    path = tmp_path / "net.pt"
    torch.jit.script(module).save(path)
    with pytest.raises(RefusedError, match="a TorchScript program"):
        read_weights(path.read_bytes())  # as the weights in another file
    torch.save(module.to(torch.float64), path)
    np.testing.assert_allclose(load(path, trust=True)["net"].act(states), module(states.double()).detach(), atol=1e-6)


def test_exported_programs_act_like_their_module(tmp_path, module, states):
    path, dynamic = tmp_path / "net.pt2", ({0: torch.export.Dim("rows")},)
    torch.export.save(torch.export.export(module, (torch.zeros(8, DS),), dynamic_shapes=dynamic), path)
    with pytest.raises(ValueError, match=r"net\.pt2: a program of torch\.export: read only with trust=True"):
        load(path)
    acts_alike(load(path, trust=True)["net"], module, states)


JAX = b"\x81\xa6params\x81\xa7Dense_0\x82\xa6kernel\xc7"  # as flax.serialization.to_bytes begins


@pytest.mark.parametrize("name", ["dqn_jax.cleanrl_model", "actor.pkl", "actor", "net.pt"])
def test_files_that_no_code_opens_do_not_advise_it(tmp_path, name):
    message = r"damaged .*not a file that torch\.save" if name == "net.pt" else "a JAX agent, .* pass a callable of s"
    (tmp_path / name).write_bytes(b"no file of torch" if name == "net.pt" else JAX)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / name)
    assert "trust" not in str(caught.value) and ("damaged" in message or "damaged" not in str(caught.value))
