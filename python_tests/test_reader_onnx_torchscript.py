"""ONNX graphs, TorchScript, exported programs and pickled modules act as the module they came from."""

import contextlib
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from sopr_fast.inputs.policies import load, probe
from sopr_fast.runtime.pickles import RefusedError, read_weights

DS, DA = 5, 3


@pytest.fixture
def states(generator):
    return torch.randn(1001, DS, generator=generator)


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


@pytest.fixture
def onnx():
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    return pytest.importorskip("onnx", reason="torch.onnx.export needs onnx")


def acts_alike(policy, module, states):
    with torch.no_grad():
        torch.testing.assert_close(policy.act(states), module(states), atol=1e-6, rtol=1e-5)


def export_onnx(module, path, rows=7, free=True, **options):
    axes = {"states": {0: "rows"}} if free else None
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module.eval(),
            (torch.zeros(rows, DS),),
            path,
            dynamo=False,
            input_names=["states"],
            dynamic_axes=axes,
            **options,
        )


def first(module):
    return Then(module, lambda states, actions: (actions, states.sum(1)))


def second(module):
    return Then(module, lambda states, actions: (states.sum(1), actions))


SEVERAL = r"the first of its 2 outputs is taken for the actions; .* output_names"
GRAPHS = {  # what is exported, rows and whether they are free, names of outputs, warning
    "free rows": (lambda module: module, 7, True, None, None),
    "one row": (lambda module: module, 1, False, None, None),
    "64 rows": (lambda module: module, 64, False, None, None),
    "named": (lambda module: module, 7, True, ["mean"], None),
    "action": (second, 7, True, ["value", "action"], None),
    "mu": (second, 7, True, ["value", "mu"], None),
    "actions": (first, 7, True, ["actions", "value"], None),
    "without names": (first, 7, True, ["first", "second"], SEVERAL),
}


@pytest.mark.parametrize("made, rows, free, names, warning", GRAPHS.values(), ids=GRAPHS)
def test_onnx_acts_like_its_module(onnx, tmp_path, module, states, made, rows, free, names, warning):
    export_onnx(made(module), tmp_path / "net.onnx", rows, free, **({"output_names": names} if names else {}))
    warns = pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext()
    with warnings.catch_warnings(action="error"), warns:
        (policy,) = load(tmp_path / "net.onnx").values()
    acts_alike(policy, module, states)
    with pytest.raises(ValueError, match=r"have 4 columns, but 1 of 1 policies read another number: net reads 5; if"):
        probe([policy], torch.zeros(20, 4), torch.arange(20))


def test_onnx_of_discrete_actions(onnx, tmp_path, module, states):
    greedy = Then(module, lambda states, actions: actions.argmax(1))
    export_onnx(greedy, tmp_path / "net.onnx")
    (policy,) = load(load(tmp_path / "net.onnx"), action_count=DA).values()
    assert torch.equal(policy.act(states).argmax(1), module(states).argmax(1))
    for name, options in (("q", {}), ("q_values", {}), ("out", {"head": "values"}), ("logits", {"action_count": DA})):
        export_onnx(module, tmp_path / "net.onnx", output_names=[name])
        (policy,) = load(tmp_path / "net.onnx", **options).values()
        assert policy.output(states).kind == "discrete"
        np.testing.assert_array_equal(policy(states), module(states).argmax(1))


def test_means_and_log_standard_deviations_of_a_program(onnx, tmp_path, states):
    path, given = tmp_path / "net.onnx", {"head": "mean_log_std", "squash": "tanh"}
    module = nn.Linear(DS, 4)
    export_onnx(module, path, output_names=["out"])
    (policy,) = load(path, **given).values()
    torch.testing.assert_close(policy.act(states), module(states)[:, :2].tanh().detach())
    (policy,) = load(path, head="mean_log_std", squash="none", stochastic=True).values()
    torch.testing.assert_close(policy.output(states).std, module(states)[:, 2:].exp().detach())
    with pytest.raises(ValueError, match="what follows the mean: pass squash='tanh' or 'none'"):
        load(path, head="mean_log_std")
    with pytest.raises(ValueError, match="those before tanh: load it without stochastic"):
        load(path, stochastic=True, **given)
    export_onnx(nn.Linear(DS, 3), path, output_names=["out"])
    with pytest.raises(RuntimeError, match="its 3 outputs are no means and log standard deviations"):
        load(path, **given)["net"].act(states)


def test_onnx_that_cannot_be_read(onnx, tmp_path, module, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(ValueError, match=r"net\.onnx: damaged, or of a form that cannot be opened"):
        load(path)
    export_onnx(nn.Flatten(0), path)
    assert load(path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"net\.onnx: reading it needs onnxruntime: pip install '\.\[onnx\]' "):
        load(path)


def test_onnx_prints_no_names_of_its_nodes(onnx, tmp_path, capfd):
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


def test_onnx_reads_no_files_outside_of_its_folder(onnx, tmp_path, module, monkeypatch):
    import onnxruntime

    (tmp_path / "folder").mkdir()
    export_onnx(module, tmp_path / "net.onnx")
    onnx.save(
        onnx.load(str(tmp_path / "net.onnx")),
        str(tmp_path / "outside.onnx"),
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
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
def test_torchscript_acts_like_its_module(tmp_path, module, states):
    path = tmp_path / "net.pt"
    torch.jit.script(module).save(path)
    (policy,) = load(path, trust=True).values()
    acts_alike(policy, module, states)
    with pytest.raises(RefusedError, match="a TorchScript program"):
        read_weights(path.read_bytes())  # as the weights in another file


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("rows", [None, {"min": 2}, {"min": 3, "max": 64}], ids=["fixed", "unbounded", "bounded"])
def test_exported_program(tmp_path, module, states, rows):
    path = tmp_path / "net.pt2"
    shapes = ({0: torch.export.Dim("rows", **rows)},) if rows else None
    torch.export.save(torch.export.export(module, (torch.zeros(8, DS),), dynamic_shapes=shapes), path)
    (policy,) = load(path, trust=True).values()
    for count in (1, 64, 65, len(states)):
        acts_alike(policy, module, states[:count])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_programs_of_one_state_may_return_one_action(tmp_path, module, states):
    path = tmp_path / "net.pt2"
    squeezed = Then(module, lambda states, actions: actions.squeeze(0))
    torch.export.save(torch.export.export(squeezed, (torch.zeros(1, DS),)), path)
    (policy,) = load(path, trust=True).values()
    acts_alike(policy, module, states[:13])
    summed = Then(module, lambda states, actions: actions.sum(0))  # one action for four states
    torch.export.save(torch.export.export(summed, (torch.zeros(4, DS),)), path)
    (policy,) = load(path, trust=True).values()
    with pytest.raises(
        RuntimeError, match=r"policy 'net' .* its output has shape \(3,\), expected \(4, action width\)"
    ):
        policy.act(states[:13])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_first_output_of_an_exported_program_is_the_action(tmp_path, module, states):
    path = tmp_path / "net.pt2"
    pair = Then(module, lambda states, actions: (actions, states.sum(1)))
    torch.export.save(torch.export.export(pair, (torch.zeros(8, DS),)), path)
    with pytest.warns(UserWarning, match=r"net\.pt2: the first of its 2 outputs is taken"):
        (policy,) = load(path, trust=True).values()
    acts_alike(policy, module, states)


def test_pickled_module(tmp_path, module, states):
    torch.save(module.to(torch.float64), tmp_path / "net.pt")
    (policy,) = load(tmp_path / "net.pt", trust=True).values()
    np.testing.assert_allclose(policy.act(states), module(states.double()).detach(), atol=1e-6)


JAX = b"\x81\xa6params\x81\xa7Dense_0\x82\xa6kernel\xc7"  # as flax.serialization.to_bytes begins


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("dqn_jax.cleanrl_model", JAX, "weights of a JAX agent, .* pass a callable of states"),
        ("actor.pkl", JAX, "weights of a JAX agent"),
        ("actor", JAX, "weights of a JAX agent"),
        ("net.pt", b"no file of torch", r"damaged .*not a file that torch\.save wrote"),
    ],
)
def test_files_that_no_code_opens_do_not_advise_it(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / name)
    assert "trust" not in str(caught.value) and ("damaged" in message or "damaged" not in str(caught.value))
