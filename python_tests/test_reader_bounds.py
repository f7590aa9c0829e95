"""Small files that would take forever, or all memory, are refused before they do.

Without the bounds these tests would not fail: they would not end, or would end the process.
"""

import io
import os
import pickle
import re
import socket
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import load
from sopr_fast.runtime.pickles import RefusedError, read_pickle

STATED = {"activation": "relu", "squash": "none"}
DEPTH = 60


def doubled(protocol=2):
    """Opcodes of a tuple of which each level holds the level below twice; memo place `DEPTH` holds the last."""
    pairs = b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(DEPTH))
    return b"\x80%c)q\x00" % protocol + pairs


LAST = b"h%c" % DEPTH  # gets the last tuple
AS_KEYS = {
    "dict item": doubled() + b"}" + LAST + b"K\x01s.",
    "dict items": doubled() + b"}(" + LAST + b"K\x01u.",
    "dict": doubled() + b"(" + LAST + b"K\x01d.",
    "set items": doubled(4) + b"\x8f(" + LAST + b"\x90.",
    "frozen set": doubled(4) + b"(" + LAST + b"\x91.",
    "ordered dict": doubled() + b"ccollections\nOrderedDict\n]" + LAST + b"K\x01\x86a\x85R.",
    "set by name": doubled() + b"cbuiltins\nset\n]" + LAST + b"a\x85R.",
    "frozen set by name": doubled() + b"cbuiltins\nfrozenset\n]" + LAST + b"a\x85R.",
}


def torch_file(content):
    """An archive as `torch.save` writes it, with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


@pytest.mark.parametrize("content", AS_KEYS.values(), ids=AS_KEYS.keys())
@pytest.mark.parametrize("suffix", [".pkl", ".pt"])
def test_nested_tuples_are_not_hashed(tmp_path, suffix, content):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(content if suffix == ".pkl" else torch_file(content))
    with pytest.raises(ValueError, match=rf"p{suffix}: its pickle has a key of type tuple; only text and integers"):
        load(path, **STATED)


def test_integers_of_equal_hashes_are_not_keys():
    with pytest.raises(RefusedError, match="a key of type int"):
        read_pickle(io.BytesIO(pickle.dumps({2**61 - 1: 0})))
    with pytest.raises(RefusedError, match="a key of type float"):
        read_pickle(io.BytesIO(pickle.dumps({0.5: 0})))


SHAPES = {
    "doubled": (doubled() + b".", "repeats values until they are far larger than the file"),
    "its own item": (b"\x80\x02]q\x00(h\x00h\x00e.", "nests values more than 64 deep"),
    "deep": (b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".", "nests values more than 64 deep"),
    "long": (b"\x80\x02(" + b"}" * 300_000 + b"l.", "more than 200000 instructions"),
    "copies": (
        b"\x80\x02X\x20\xa1\x07\x00" + b"a" * 500_000 + b"q\x000c_codecs\nencode\nq\x010"
        + b"h\x01h\x00\x85R0" * 30_000 + b"N.",
        "repeats work on long values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("content, message", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("suffix", [".pkl", ".pt"])
def test_values_that_grow_far_beyond_the_file(tmp_path, suffix, content, message):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(content if suffix == ".pkl" else torch_file(content))
    with pytest.raises(ValueError, match=rf"p{suffix}: its pickle .*{message}"):
        load(path, **STATED)


def test_shared_values_are_read():
    shared = list(range(100))
    assert read_pickle(io.BytesIO(pickle.dumps({"a": shared, "b": [shared, shared]}))) == {
        "a": shared,
        "b": [shared, shared],
    }


def test_expanded_tensors_are_refused(tmp_path):
    torch.save({"0.weight": torch.zeros(1).expand(10**6, 10**6), "0.bias": torch.zeros(10**6)}, tmp_path / "p.pt")
    with pytest.raises(ValueError, match=r"p\.pt: 0\.weight is a tensor of repeated values"):
        load(tmp_path / "p.pt", **STATED)


@pytest.fixture
def peak():
    """A function that returns the most memory that Python and numpy took since the test began, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


ZEROS = 100 << 20


def write_members(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)


def npy_of_zeros(count):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count // 4,)})
    return file.getvalue() + bytes(count)


@pytest.mark.parametrize(
    "name, members, message",
    [
        ("p.npz", {"mean.weight.npy": npy_of_zeros(ZEROS)}, r"its members inflate to 100 MiB"),
        ("p.zip", {"data": b"{}", "policy.pth": bytes(ZEROS)}, r"its members inflate to 100 MiB"),
        ("q.zip", {"data": b" " * (9 << 20), "policy.pth": b""}, r"its settings take 9 MiB"),
        (
            "p.pt",
            {"archive__data.pkl": b"N.", "archive__data__0": bytes(ZEROS)},
            "its members are compressed or overlap",
        ),
    ],
)
def test_archives_that_inflate_to_far_more(tmp_path, peak, name, members, message):
    write_members(tmp_path / name, **members)
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: .*{message}"):
        load(tmp_path / name, **STATED)
    assert peak() < ZEROS // 2


def test_only_wanted_members_are_inflated(tmp_path):
    path = tmp_path / "p.npz"
    np.savez_compressed(
        path, other=np.zeros(ZEROS // 4, np.float32), **{"mean.weight": np.ones((2, 3)), "mean.bias": np.zeros(2)}
    )
    content = bytearray(path.read_bytes())
    content[60:70] = bytes(10)  # inside the other array
    path.write_bytes(content)
    assert list(load(path)) == ["p"]


def test_a_size_in_the_directory_does_not_count_if_the_file_is_smaller(tmp_path):
    """The directory states compressed sizes too, and may lie."""
    path = tmp_path / "p.zip"
    write_members(path, data=b"{}", **{"policy.pth": bytes(ZEROS)})
    content = path.read_bytes()
    at = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)  # the second member's entry
    lie = content[: at + 20] + struct.pack("<I", ZEROS) + content[at + 24 :]
    path.write_bytes(lie)
    with pytest.raises(ValueError, match="its members inflate to 100 MiB"):
        load(path)


def test_arrays_larger_than_their_file(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**9)})
    write_members(tmp_path / "p.npz", **{"mean.weight.npy": header.getvalue(), "mean.bias.npy": header.getvalue()})
    with pytest.raises((ValueError, MemoryError), match=r"p\.npz: "):
        load(tmp_path / "p.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.pkl")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.npz")
        for path in ("pipe.pkl", "socket.npz", "/dev/zero"):
            with pytest.raises(ValueError, match=f"{path}: not a regular file"):
                load(path)
        with pytest.raises(ValueError, match="pipe.pkl: not a regular file"):
            load(tmp_path)


def test_messages_escape_what_files_say(tmp_path):
    hostile = "\x1b[31m\r\n\u202ered" + "x" * 10_000
    (tmp_path / "p.pkl").write_bytes(pickle.dumps({hostile: 1}))
    torch.save({f"{hostile}.weight": torch.zeros(2, 2)}, tmp_path / "p.pt")
    for name in ("p.pkl", "p.pt"):
        with pytest.raises(ValueError, match=f"{re.escape(name)}: ") as caught:
            load(tmp_path / name, **STATED)
        message = str(caught.value)
        assert message.isprintable() and len(message) < 1500
