"""Files of tensors: whole, hashed, owned by the reader, and free of leftovers."""

import json
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

from sopr_fast.runtime.files import atomic_path, check_checkpoint, load_tensors, save_tensors
from sopr_fast.runtime.options import any_number, curves, flag, integer, list_of, optional, real, record, text
from sopr_fast.runtime.regular import open_regular
from sopr_fast.runtime.schema import check_like, check_tensors, reading

KIND = "test file"


def tensors(value=1.0, count=5):
    return {"x": torch.full((count, 3), value), "empty": torch.zeros(0, 2), "n": torch.arange(4)}


def description(value=1.0):
    return {"value": value, "names": ["a", "ß"], "nested": {"b": [1, None, True]}}


@pytest.fixture
def path(tmp_path):
    save_tensors(tmp_path / "file.safetensors", tensors(), KIND, description())
    return tmp_path / "file.safetensors"


def test_tensors_and_description_come_back(path):
    loaded, read = load_tensors(path, KIND)
    assert read == description() and set(loaded) == set(tensors())
    assert all(torch.equal(loaded[name], value) for name, value in tensors().items())
    assert check_checkpoint(path, KIND) == description()


def test_equal_contents_are_equal_bytes(path, tmp_path):
    save_tensors(tmp_path / "copy", dict(reversed(tensors().items())), KIND, description())
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


def test_other_programs_read_the_file(path):
    assert torch.equal(safetensors.torch.load_file(path)["x"], tensors()["x"])
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["sopr_fast"])["kind"] == KIND


def test_every_changed_byte_is_noticed(path):
    whole_file = path.read_bytes()
    rng = np.random.default_rng(0)
    verdicts = set()
    for place in range(len(whole_file)):
        damaged = bytearray(whole_file)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=str(path)) as caught:
            load_tensors(path, KIND)
        verdicts.add(str(caught.value).removeprefix(f"{path} ")[:36])
    assert "is damaged: content hash differs" in verdicts
    path.write_bytes(whole_file[:-1] + bytes([whole_file[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"^{path} is damaged: content hash differs$"):
        load_tensors(path, KIND)


def test_every_cut_file_is_refused(path):
    whole_file = path.read_bytes()
    for size in range(0, len(whole_file), 7):
        path.write_bytes(whole_file[:size])
        with pytest.raises(ValueError, match=str(path)):
            load_tensors(path, KIND)


def test_overwriting_a_loaded_file_does_not_change_its_tensors(path):
    loaded, _ = load_tensors(path, KIND)
    path.write_bytes(b"")
    assert torch.equal(loaded["x"], tensors()["x"])
    loaded["x"] += 1


def test_a_file_replaced_while_it_is_read_gives_one_of_the_two(tmp_path):
    """Two files of different sizes replace each other as often as another process can, while this one loads."""
    path = tmp_path / "file"
    save_tensors(path, tensors(1.0, 10), KIND, description(1.0))
    script = (
        "import sys, itertools; sys.path.insert(0, sys.argv[2])\n"
        "from test_files import KIND, description, save_tensors, tensors\n"
        "for i in itertools.count():\n"
        "    value = 1.0 + i % 2\n"
        "    save_tensors(sys.argv[1], tensors(value, int(10 * value)), KIND, description(value))\n"
        "    print(i, flush=True)\n"
    )
    folder = os.path.dirname(__file__)
    with subprocess.Popen([sys.executable, "-c", script, str(path), folder], stdout=subprocess.PIPE) as writer:
        try:
            for _ in range(3):
                writer.stdout.readline()
            loads, seen = 0, set()
            while len(seen) < 2 or loads < 500:
                loaded, read = load_tensors(path, KIND)
                assert (loaded["x"] == read["value"]).all() and len(loaded["x"]) == 10 * read["value"]
                loads += 1
                seen.add(read["value"])
        finally:
            writer.kill()


def write_raw(path, text, header=None):
    """Write a safetensors file without tensors whose description is `text`."""
    header = json.dumps({"__metadata__": {"sopr_fast": text}}) if header is None else header
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "test file"}', "has no content hash: an older version of sopr_fast wrote it; write it again"),
        ('{"kind": "model"}', "is not a test file of sopr_fast"),
        ("[]", "is not a test file of sopr_fast"),
        ("{}", "is not a test file of sopr_fast"),
        ("no JSON", "is not a test file of sopr_fast"),
        ("[" * 100_000, "is not a test file of sopr_fast"),
        ('{"kind": ' + "9" * 5000 + "}", "is not a test file of sopr_fast"),
    ],
)
def test_files_of_others_are_refused(tmp_path, text, message):
    write_raw(tmp_path / "file", text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/file {message}$"):
        load_tensors(tmp_path / "file", KIND)


@pytest.mark.parametrize("header", ["", "[]", "{", "[" * 100_000, '{"x": 1}', '{"x": {"dtype": "F4", "shape": [2]}}'])
def test_headers_that_are_no_safetensors_are_refused(tmp_path, header):
    write_raw(tmp_path / "file", "", header)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/file is not a "):
        load_tensors(tmp_path / "file", KIND)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/pipe is not a regular file$"):
        load_tensors(tmp_path / "pipe", KIND)
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        load_tensors(tmp_path, KIND)
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "none", KIND)


STOPS_BEFORE_REPLACING = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
from test_files import KIND, save_tensors, tensors
pathlib.Path.replace = lambda *_: (print("written", flush=True), sys.stdin.read())
save_tensors(sys.argv[1], tensors(), KIND, {})
"""

KILLS_SAVERS = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from test_files import KIND, save_tensors, tensors
for kill in range(12):
    end, start = os.pipe()
    child = os.fork()
    if not child:
        while True:
            save_tensors(sys.argv[1], tensors(float(kill), 2000), KIND, {})
            os.write(start, b".")
    for _ in range(1 + kill % 3):
        os.read(end, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(end), os.close(start)
"""


def run(script, path):
    command = [sys.executable, "-c", script, str(path), os.path.dirname(__file__)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_next_writer_removes_the_temporary_file_of_a_killed_one(path):
    before = path.read_bytes()
    with run(STOPS_BEFORE_REPLACING, path) as writer:
        assert writer.stdout.readline() == b"written\n"
        (temporary,) = {*os.listdir(path.parent)} - {path.name}
        save_tensors(path, tensors(2.0), KIND, {})
        assert {*os.listdir(path.parent)} == {path.name, temporary}  # its writer lives
        writer.send_signal(signal.SIGKILL)
    assert {*os.listdir(path.parent)} == {path.name, temporary}
    (path.parent / f".{path.name}.mine.tmp.safetensors").touch()
    (path.parent / f".other{temporary}").touch()
    save_tensors(path, tensors(), KIND, description())
    assert {*os.listdir(path.parent)} == {path.name, f".{path.name}.mine.tmp.safetensors", f".other{temporary}"}
    assert path.read_bytes() == before


def test_nothing_is_left_after_many_killed_writers(path):
    with run(KILLS_SAVERS, path) as writers:
        writers.communicate()
    assert writers.returncode == 0
    load_tensors(path, KIND)
    save_tensors(path, tensors(), KIND, {})
    assert os.listdir(path.parent) == [path.name]


def test_two_writers_of_one_file_do_not_disturb_each_other(path):
    with atomic_path(path) as first, atomic_path(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second and first.exists()
    assert path.read_text() == "first"


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    for mode in (0o600, 0o664):
        (tmp_path / "file").write_bytes(b"")
        (tmp_path / "file").chmod(mode)
        save_tensors(tmp_path / "file", tensors(), KIND, description())
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="not a regular file"):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"


def test_a_written_file_has_the_permissions_of_a_new_one(tmp_path):
    umask = os.umask(0o027)
    try:
        save_tensors(tmp_path / "file", {}, KIND, {})
    finally:
        os.umask(umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("check", "accepted", "refused"),
    [
        (integer(1, 9), [1, 9], [0, 10, 10**5000, 1.0, True, None, "1"]),
        (real, [0, -1.5, 1e308], [float("nan"), float("inf"), 10**400, "", None, True]),
        (any_number, [0, float("-inf")], ["", None, True]),
        (curves, [{}, {"a": [1, 2.5], "b": [[1.0], []]}], [[], {"a": 1}, {"a": ["x"]}, {"a": [[None]]}]),
        (text, ["", "a"], [None, 1, ["a"]]),
        (flag, [True], [2, None, "true"]),
        (optional(text), [None, "a"], [1]),
        (list_of(text, length=1), [["a"]], [[], ["a", "b"], "a", [1], {"a": "b"}]),
        (record({"a": text}), [{"a": "b"}], [{}, {"a": 1}, {"a": "b", "c": 1}, [], None]),
    ],
)
def test_checks_of_fields(check, accepted, refused):
    for value in accepted:
        assert check("field", value) == value
    for value in refused:
        with pytest.raises(ValueError) as caught:
            check("field", value)
        assert len(str(caught.value)) < 200


def test_fields_and_their_places_are_named():
    checks = {"a": list_of(record({"b": real}))}
    assert record(checks)("header", {"a": [{"b": 1}]}) == {"a": [{"b": 1.0}]}
    for values, message in (
        ([], "header must be an object"),
        ({}, "header has no field 'a'"),
        ({"a": [], "z": 1}, "header has an unknown field 'z'"),
        ({"a": [{"b": 1}, {"b": ""}]}, "b must be a finite number, got ''"),
        ({"a": [{"b": 1}, {}]}, r"a\[1\] has no field 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            record(checks)("header", values)


def test_checks_of_tensors():
    layouts = {"states": (torch.float32, "U D"), "source": (torch.int64, "U"), "pair": (torch.float32, "2 D")}
    good = {"states": torch.zeros(5, 3), "source": torch.zeros(5, dtype=torch.int64), "pair": torch.zeros(2, 3)}
    assert check_tensors(good, layouts) == {"U": 5, "D": 3}
    for change, message in (
        (
            {"source": torch.zeros(4, dtype=torch.int64)},
            r"must be torch.int64 \(U=5\), got torch.int64 \(4,\)",
        ),
        ({"source": torch.zeros(5)}, "'source' must be torch.int64"),
        ({"states": torch.zeros(5)}, r"'states' must be torch.float32 \(U, D\), got torch.float32 \(5,\)"),
        ({"pair": torch.zeros(3, 3)}, "'pair' must be"),
        ({"more": torch.zeros(1)}, "unknown tensor 'more'"),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors(good | change, layouts)
    with pytest.raises(ValueError, match="no tensor 'pair'"):
        check_tensors({name: good[name] for name in ("states", "source")}, layouts)


def test_tensors_like_others():
    expected = {"scalar": torch.tensor(0.0), "table": torch.zeros(2, 3)}
    check_like({name: x + 1 for name, x in expected.items()}, expected)
    for name, wrong in (
        ("scalar", torch.zeros(1)),
        ("table", torch.zeros(3, 2)),
        ("table", torch.zeros(2, 3).double()),
    ):
        with pytest.raises(ValueError, match=f"tensor '{name}' must be torch.float32"):
            check_like(expected | {name: wrong}, expected)


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("y"), TypeError("z"), OverflowError("w")])
def test_errors_of_reading_name_the_file(error):
    with pytest.raises(ValueError, match=f"^some/file is damaged: {type(error).__name__}: "), reading("some/file"):
        raise error
    with pytest.raises(ValueError, match="^some/file has format 3$"), reading("some/file"):
        raise ValueError("some/file has format 3")
