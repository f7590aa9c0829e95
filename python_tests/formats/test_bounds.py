"""Small files that would take forever, or all memory, are refused before they do.

Without the bounds these tests would not fail: they would not end, or would end the process.
"""

import io
import os
import pickle
import re
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import load_policies as load
from sopr_fast.runtime.pickles import read_pickle

DEPTH = 60


def doubled():
    """Opcodes of a tuple of which each level holds the level below twice; memo place `DEPTH` holds the last."""
    pairs = b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(DEPTH))
    return b"\x80\x02)q\x00" + pairs


def torch_file(content):
    """An archive as `torch.save` writes it, with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


REPEATED = "repeats values until they are far larger than the file"
KEY = "a key that is neither text nor a small integer"
TEXT = b"X\x20\xa1\x07\x00" + b"a" * 500_000 + b"q\x000"


REBUILD, ARGUMENTS, _ = np.zeros(2).__reduce__()
BOMBS = {
    "doubled": (doubled() + b".", REPEATED),
    "its own item": (b"\x80\x02]q\x00(h\x00h\x00e.", "nests values more than 64 deep"),
    "deep": (b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".", "nests values more than 64 deep"),
    "copies by reduce": (b"\x80\x02" + TEXT + b"](" + b"c_codecs\nencode\nh\x00\x85R" * 3000 + b"e.", REPEATED),
    "shared arrays": (pickle.dumps([array := np.zeros(10**5)] + [array] * 500), REPEATED),
    "length": (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", "damaged"),
    "memo": (b"\x80\x04]r\xff\xff\xff\x7f.", "leaves out places of its memo"),  # the parser in C would take 32 GiB
    "bytearray": (b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + struct.pack("<Q", 10**9) + b"\x85R.", "names builtins"),
    "tensor without a storage": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(ctorch\ndevice\n)R}X\x05\x00\x00\x00"
        b"dtypeX\x04\x00\x00\x00loadsbK\x00))tR.", "a tensor of another kind|names torch"),
    "a dtype of 2^60 parts": (doubled() + b"cnumpy\ndtype\nh%c\x85R." % DEPTH, REPEATED),
    "a call of 2^60 parts": (doubled() + b"K\x01R.", "a call of tuple with int"),
    "names of long names": (pickle.dumps({"k" * 10**5: {str(i): 0 for i in range(10**5)}}), "longer than 400"),
    "no characters": (pickle.dumps({"a": np.array("ab")}).replace(b"a\0\0\0b\0\0\0", b"\xff" * 8), "text that is not"),
    "keys of floats": (pickle.dumps({0.5: 0}), KEY),
    "a key that takes 2^60 steps to hash": (doubled() + b"}h%cK\x01s." % DEPTH, KEY),
    "keys that may have one hash": (pickle.dumps({2**61 - 1: 0}), KEY),
}  # fmt: skip


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def number(value):
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(content)) + content


NAME = b"X\x01\x00\x00\x000"


def tensor(name=NAME, shape=b"(K\x01t"):
    """The pickle of a tensor, with opcodes for the name of its storage and for its shape."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + name + b"X\x03\x00\x00\x00cpuJ\x00\x00\x90\x01tQ"
    return doubled() + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + b"(K\x01ttR."


RECORD = b"ctorch\ndevice\n)\x81"
POINTER = {"__array_interface__": {"data": (4096, False), "shape": (9,), "typestr": "<f8", "version": 3}}
LONG = b"(" + b"N" * 10**6 + b"tq\x000"
KIND = "a tensor of another kind"
FORMS = (b"\x82\xef", b"\x8f", b"(\x91", RECORD[:-2] + b")}\x92", b"(ios\nsystem\n", b"(" + RECORD[:-2] + b"o")


TENSORS = (  # in a file of torch, after the protocol of its pickle
    (number(1 << 4_000_000) + b"q\xff0" + tensor(shape=b"(" + b"h\xff" * 10**5 + b"t"), KIND),
    (tensor(name=b"h%c" % DEPTH), REPEATED),
    (tensor(shape=b"J\xff\xff\xff\x7f(K\x01t\x86"), KIND),  # a size times a tuple would fill the memory
    (LONG + b"ctorch\ndevice\nq\x010]" + b"h\x01h\x00Ra" * 10**5 + b".", REPEATED),
    (LONG + b"]" + b"h\x00Qa" * 10**5 + b".", REPEATED),
    (text(b"a" * 10**6) + b"q\x000" + text(b"b") + b"q\x010" + b"h\x00h\x01\x930" * 10**5 + b"N.", "repeats|names"),
    (b"N" + b"".join(b"p%d\n" % (i * (2**61 - 1)) for i in range(1, 60_000)) + b".", "leaves out places"),
    (RECORD + pickle.dumps(POINTER, 2)[2:-1] + b"b.", "attributes of Python's own"),
    *((form + b".", "sets, or objects of unusual forms") for form in FORMS),
)  # fmt: skip
FILES = [(suffix, made(content), message) for content, message in BOMBS.values()
         for suffix, made in ((".pkl", bytes), (".pt", torch_file))]  # fmt: skip
FILES += [(".pt", torch_file(b"\x80\x02" + content), message) for content, message in TENSORS]


@pytest.mark.parametrize("suffix, content, message", FILES, ids=[f"{suffix} {message}" for suffix, _, message in FILES])
def test_small_files_of_large_values(tmp_path, suffix, content, message):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(content)
    with pytest.raises((ValueError, MemoryError), match=rf"p{suffix}: .*({message})"):
        load(path)


def test_torch_opens_no_file_without_trust(tmp_path, monkeypatch):
    torch.save({"mean.weight": torch.ones(2, 3), "mean.bias": torch.zeros(2)}, tmp_path / "p.pt")
    monkeypatch.delattr(torch, "load")  # its reader of archives may find other members than Python's
    assert list(load(tmp_path / "p.pt")) == ["p"]


def test_tensors_that_are_far_larger_than_their_file(tmp_path):
    half = torch.zeros(512, 512, dtype=torch.float16)
    for state in (
        {"0.weight": torch.zeros(1).expand(10**6, 10**6), "0.bias": torch.zeros(10**6)},
        {f"{2 * i}.{part}": value for i in range(99) for part, value in (("weight", half), ("bias", half[0]))},
    ):
        torch.save(state, tmp_path / "p.pt")
        with pytest.raises(ValueError, match=rf"p\.pt: it {REPEATED}"):
            load(tmp_path / "p.pt")


@pytest.fixture
def peak():
    """A function that returns the most memory that Python and numpy took since the test began, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("container", [b"]", b"}", b"(d"])
def test_containers_are_counted_before_they_are_made(peak, container):
    content = b"\x80\x04(" + container * 400_000 + b"l."
    with pytest.raises(ValueError, match=REPEATED):
        read_pickle(content)
    assert peak() < 60 * len(content) + (10 << 20)


ZEROS = 100 << 20


def npy_header(*shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


COMPRESSED_WEIGHTS = {"archive/data.pkl": tensor(), "archive/data/0": bytes(ZEROS)}
HUGE = npy_header(10**9, 10**9)
INFLATED = "100 MiB when read, far more than in the file: save it uncompressed"
ARCHIVES = {  # name, members, bytes of the last entry of the directory that lie → message
    "arrays": ("p.npz", {"mean.weight.npy": npy_header(ZEROS // 4) + bytes(ZEROS)}, None, INFLATED),
    "weights": ("p.zip", {"data": b"{}", "policy.pth": bytes(ZEROS)}, None, INFLATED),
    "a compressed size": ("p.zip", {"data": b"{}", "policy.pth": bytes(ZEROS)}, (20, ZEROS), INFLATED),
    "storages": ("p.pt", COMPRESSED_WEIGHTS, None, INFLATED),
    "a size": ("p.pt", COMPRESSED_WEIGHTS, (24, 4), ""),
    "headers": ("p.npz", {"mean.weight.npy": HUGE, "mean.bias.npy": HUGE}, None, ""),
}


@pytest.mark.parametrize("name, members, lie, message", ARCHIVES.values(), ids=ARCHIVES)
def test_archives_of_far_more_than_they_take(tmp_path, peak, name, members, lie, message):
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    if lie is not None:
        content = bytearray((tmp_path / name).read_bytes())
        place = content.rindex(b"PK\x01\x02") + lie[0]
        content[place : place + 4] = struct.pack("<I", lie[1])
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, MemoryError), match=rf"{re.escape(name)}: .*{message}"):
        load(tmp_path / name)
    assert HUGE in members.values() or peak() < ZEROS // 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.pkl")
    for path in (tmp_path / "pipe.pkl", tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match=r"(pipe\.pkl|/dev/zero): not a regular file"):
            load(path)


def test_messages_escape_what_files_say(tmp_path):
    hostile = "\x1b[31m\r\n\u202ered" + "x" * 10_000
    (tmp_path / "p.pkl").write_bytes(pickle.dumps({hostile: 1}))
    torch.save({f"{hostile}.weight": torch.zeros(2, 2, 2)}, tmp_path / "p.pt")
    for name in ("p.pkl", "p.pt"):
        with pytest.raises(ValueError, match=f"{re.escape(name)}: ") as caught:
            load(tmp_path / name)
        message = str(caught.value)
        assert message.isprintable() and len(message) < 1500
