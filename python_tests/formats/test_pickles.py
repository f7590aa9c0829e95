"""Plain values are read from pickles; those that would run code are refused without running it."""

import codecs
import io
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pickles import Runs

from sopr_fast.inputs.policies import load_policies as load
from sopr_fast.runtime.pickles import Record, RefusedError, read_pickle


def named(module, name, argument):
    """Return the opcodes of `module.name(argument)`, in a form that pickle itself does not write."""
    parts = b"".join(b"\x8c" + struct.pack("<B", len(part)) + part.encode() for part in (module, name))
    return b"\x80\x04" + parts + b"\x93" + pickle.dumps(argument, 2)[2:-1] + b"\x85R."


def saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def hostile(target):
    command = f"touch {target}"
    text, runs, d3 = pickle.dumps(command, 2)[2:-1], Runs(os.system, command), {"config": '{"config": {"type": "sac"}}'}
    return {
        "system": (pickle.dumps(runs), "posix.system"),
        "in the weights": (pickle.dumps({"0.weight": np.zeros((2, 3)), "x": runs}), "posix.system"),
        "eval": (pickle.dumps(Runs(eval, f"open({str(target)!r}, 'w')")), "builtins.eval"),
        "exec, protocol 0": (pickle.dumps(Runs(exec, f"open({str(target)!r}, 'w')"), 0), "exec"),
        "global": (b"\x80\x02cos\nsystem\n" + text + b"\x85R.", "os.system"),
        "dotted": (named("numpy", "dtype.__class__", command), "numpy.dtype.__class__"),
        "numpy's runner": (named("numpy.testing._private.utils", "runstring", command), "runstring"),
        "torch's loader": (pickle.dumps(Runs(torch.load, str(target))), "torch.serialization.load"),
        "a path": (pickle.dumps(Path("x")), "pathlib"),
        "a codec": (pickle.dumps(codecs.lookup("utf-8")), "codecs"),
        "x.pt": (saved({"0.weight": runs}), "posix.system"),
        "x.d3": (pickle.dumps({**d3, "torch": runs}), "posix.system"),
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


def test_pickles_cannot_change_how_others_are_read():
    changes = b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n(N}X\x04\x00\x00\x00markK\x01stb."  # of the function
    with pytest.raises(RefusedError, match="its pickle changes what it has not made"):
        read_pickle(changes)


def test_records_hold_attributes_and_run_no_code():
    value = read_pickle(pickle.dumps(OrderedDict(a=np.random.default_rng(0))), records=("numpy.random.",))
    assert isinstance(value["a"], Record) and value["a"].source == "numpy.random._pickle.__generator_ctor"
    with pytest.raises(RefusedError, match=r"names numpy\.random\._pickle\.__generator_ctor"):
        read_pickle(pickle.dumps(np.random.default_rng(0)))


def test_plain_values_round_trip():
    values = [1, 2.5, "ä", b"b", None, True, {1: 2, -3: 4, None: 0.5}, (4, [5]), np.float32(1.5), np.int64(7)]
    arrays = [np.arange(6.0).reshape(2, 3), np.zeros((0, 2), "i4"), np.array("text"), np.array([True]), np.array(3.5)]
    arrays += [np.arange(6).reshape(2, 3).astype(">f8"), np.asfortranarray(np.arange(6).reshape(2, 3))]
    for protocol in range(6):
        assert read_pickle(pickle.dumps([values, values], protocol)) == [values, values]
        for array in arrays:
            content = pickle.dumps(array, protocol)
            old = content.replace(b"numpy._core", b"numpy.core") if protocol < 4 else content  # names of numpy 1
            for back in map(np.asarray, map(read_pickle, (content, old))):
                assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()


def test_lists_of_many_numbers_of_numpy_are_not_too_large_for_their_file():
    for values in ([np.float32(i) for i in range(50_000)], [np.True_] * 200_000):
        assert read_pickle(pickle.dumps(values)) == values
