"""State dicts and D4RL's pickles; pickles that would run code are refused without running it."""

import codecs
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pickles import Runs
from torch import nn

from sopr_fast.formats.shared.pickles import Record, RefusedError, read_pickle
from sopr_fast.inputs.policies import load

DS, DA = 5, 3
GIVEN = {"activation": "relu", "squash": "tanh"}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DS, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, DA))


def d4rl_weights(nonlinearity="relu", output="tanh_gaussian"):
    rng = np.random.default_rng(0)
    shapes = {"fc0": (16, DS), "fc1": (8, 16), "last_fc": (DA, 8), "last_fc_log_std": (DA, 8)}
    weights = {}
    for name, (out, width) in shapes.items():
        weights[f"{name}/weight"] = rng.normal(size=(out, width)).astype(np.float32) / 2
        weights[f"{name}/bias"] = rng.normal(size=out).astype(np.float32) / 2
    return {**weights, "nonlinearity": nonlinearity, "output_distribution": output}


@pytest.mark.parametrize("nonlinearity, output", [("relu", "tanh_gaussian"), ("tanh", "gaussian")])
@pytest.mark.parametrize("protocol", range(6))
def test_d4rl_acts_like_the_reader_of_the_benchmark(tmp_path, states, protocol, nonlinearity, output):
    weights = d4rl_weights(nonlinearity, output)
    old = {"fc0/weight": weights["fc0/weight"].astype(">f8"), "fc1/weight": np.asfortranarray(weights["fc1/weight"])}
    content = pickle.dumps({**weights, **old}, protocol).replace(b"numpy._core", b"numpy.core")  # numpy 1's name
    (tmp_path / "p.pkl").write_bytes(content if protocol < 4 else pickle.dumps(weights, protocol))
    acted = load(tmp_path / "p.pkl", stochastic=True)["p"].output(states)
    x = states.double().numpy()  # as the benchmark's own reader does
    for name in ("fc0", "fc1"):
        x = x @ weights[f"{name}/weight"].T + weights[f"{name}/bias"]
        x = np.tanh(x) if nonlinearity == "tanh" else np.maximum(x, 0)
    mean = x @ weights["last_fc/weight"].T + weights["last_fc/bias"]
    std = np.exp(x @ weights["last_fc_log_std/weight"].T + weights["last_fc_log_std/bias"])
    action = np.tanh(mean) if output == "tanh_gaussian" else mean
    np.testing.assert_allclose(acted.mean, action, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(acted.std, std, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(load(tmp_path / "p.pkl")["p"].act(states), action, atol=1e-5, rtol=1e-5)


D4RL_BROKEN = {
    "nonlinearity": ({**d4rl_weights(), "nonlinearity": "sine"}, "activation is 'sine', expected one of relu"),
    "no distribution": ({**d4rl_weights(), "output_distribution": None}, "a file of D4RL does not say its squash"),
    "objects": ({**d4rl_weights(), "fc0/bias": np.array([None] * 16)}, "an array of dtype 'O8'; only arrays"),
    "structured": ({**d4rl_weights(), "fc0/bias": np.zeros(16, "f4,f4")}, "an array of dtype 'V8'"),
}  # fmt: skip


@pytest.mark.parametrize("weights, message", D4RL_BROKEN.values(), ids=D4RL_BROKEN.keys())
def test_d4rl_files_that_are_not_policies(tmp_path, weights, message):
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(weights))
    with pytest.raises(ValueError) as caught:
        load(tmp_path / "p.pkl")
    assert message in str(caught.value) and "p.pkl: " in str(caught.value)


def named(module, name, argument):
    """Return the opcodes of `module.name(argument)`, in a form that pickle itself does not write."""
    parts = b"".join(b"\x8c" + struct.pack("<B", len(part)) + part.encode() for part in (module, name))
    return b"\x80\x04" + parts + b"\x93" + pickle.dumps(argument, 2)[2:-1] + b"\x85R."


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def hostile(target):
    command = f"touch {target}"
    text, runs, d3 = pickle.dumps(command, 2)[2:-1], Runs(os.system, command), {"config": '{"config": {"type": "sac"}}'}
    return {
        "system": (pickle.dumps(runs), "posix.system"),
        "in the weights": (pickle.dumps({**d4rl_weights(), "x": runs}), "posix.system"),
        "eval": (pickle.dumps(Runs(eval, f"open({str(target)!r}, 'w')")), "builtins.eval"),
        "exec, protocol 0": (pickle.dumps(Runs(exec, f"open({str(target)!r}, 'w')"), 0), "exec"),
        "getattr": (pickle.dumps(Runs(getattr, "x", "upper")), "builtins.getattr"),
        "global": (b"\x80\x02cos\nsystem\n" + text + b"\x85R.", "os.system"),
        "inst": (b"(" + text + b"ios\nsystem\n.", "os.system"),
        "dotted": (named("numpy", "dtype.__class__", command), "numpy.dtype.__class__"),
        "numpy's runner": (named("numpy.testing._private.utils", "runstring", command), "runstring"),
        "torch's loader": (pickle.dumps(Runs(torch.load, str(target))), "torch.serialization.load"),
        "a path": (pickle.dumps(Path("x")), "pathlib"),
        "a codec": (pickle.dumps(codecs.lookup("utf-8")), "codecs"),
        "x.pt": (saved({"0.weight": runs}), "posix.system"),
        "old.pt": (saved({"0.weight": runs}, _use_new_zipfile_serialization=False), "posix.system"),
        "x.d3": (pickle.dumps({**d3, "torch": runs}), "posix.system"),
        "weights.d3": (pickle.dumps({**d3, "torch": saved({"policy": {"_mu.weight": runs}})}), "posix.system"),
    }


@pytest.mark.parametrize("case", hostile("x"))
def test_hostile_files_are_refused_and_not_run(tmp_path, case):
    target = tmp_path / "ran"
    content, name = hostile(target)[case]
    path = tmp_path / (case if "." in case else "p.pkl")
    path.write_bytes(content)
    for trust in (False, True) if path.suffix != ".pt" else (False,):  # trust is for what a library opens
        with pytest.raises(ValueError, match=rf"{path.name}: its pickle names \S*{name}\S*; only arrays, numbers"):
            load(path, trust=trust)
    assert not target.exists()


def test_tar_with_a_zip_behind_it_is_refused_unopened(tmp_path):
    path = tmp_path / "net.pt"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    path.write_bytes(path.read_bytes() + zipped.getvalue())
    assert tarfile.is_tarfile(path) and zipfile.is_zipfile(path)
    with pytest.raises(ValueError, match=r"net\.pt: damaged .*not a file that torch\.save wrote"):
        load(path)


def test_files_of_torch_before_version_1_6(tmp_path, states):
    net = network()
    shared = {"net": net.state_dict(), "same": net.state_dict()["0.weight"], "epoch": 3}
    torch.save(shared, tmp_path / "net.pth", _use_new_zipfile_serialization=False)
    policy = load(tmp_path / "net.pth", actor="net", **GIVEN)["net"]
    torch.testing.assert_close(policy.act(states), net(states).tanh().detach())


def test_a_list_of_state_dicts_alike_is_several_policies(tmp_path, states):
    net, other = network(), nn.Sequential(nn.Linear(DS, DA), nn.ReLU(), nn.Linear(DA, DA))
    torch.save([{key: i * value for key, value in net.state_dict().items()} for i in range(3)], tmp_path / "net.pt")
    policies = load(tmp_path / "net.pt", **GIVEN)
    assert list(policies) == ["net-000", "net-001", "net-002"]
    torch.testing.assert_close(policies["net-001"].act(states), net(states).tanh().detach())
    torch.save([net.state_dict(), other.state_dict()], tmp_path / "net.pt")  # of which the first is the actor
    torch.testing.assert_close(load(tmp_path, **GIVEN)["net"].act(states), net(states).tanh().detach())


def test_pickles_cannot_change_how_others_are_read():
    changes = b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n(N}X\x04\x00\x00\x00markK\x01stb."  # of the function
    with pytest.raises(RefusedError, match="its pickle holds function"):
        read_pickle(changes)


def test_records_hold_attributes_and_run_no_code():
    value = read_pickle(pickle.dumps(OrderedDict(a=np.random.default_rng(0))), records=("numpy.random.",))
    assert isinstance(value["a"], Record) and value["a"].source == "numpy.random._pickle.__generator_ctor"
    with pytest.raises(RefusedError, match=r"names numpy\.random\._pickle\.__generator_ctor"):
        read_pickle(pickle.dumps(np.random.default_rng(0)))


def test_plain_values_round_trip():
    values = [1, 2.5, "ä", b"b", None, True, {1: 2, (3, "b"): 4, None: 0.5}, (4, [5]), np.float32(1.5), np.int64(7)]
    arrays = [np.arange(6.0).reshape(2, 3), np.zeros((0, 2), "i4"), np.array("text"), np.array([True]), np.array(3.5)]
    for protocol in range(6):
        assert read_pickle(pickle.dumps([values, values], protocol)) == [values, values]
        for array in arrays:
            back = np.asarray(read_pickle(pickle.dumps(array, protocol)))
            assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()
