"""Files written whole or not at all; files of tensors with a description and a hash; checks of their fields."""

import json
import os
import resource
import struct

import numpy as np
import pytest
import safetensors.torch
import torch

from sopr_fast.runtime.checkpoints import Checkpoint
from sopr_fast.runtime.files import atomic_path, check_place, open_regular
from sopr_fast.runtime.tensor_files import fingerprint, load_tensors, save_tensors

KIND = "test file"


def tensors(value=1.0, count=5):
    return {"x": torch.full((count, 3), value), "empty": torch.zeros(0, 2), "n": torch.arange(4)}


def description(value=1.0):
    return {"value": value, "names": ["a", "ß"], "nested": {"b": [1, None, True]}}


@pytest.fixture
def path(tmp_path):
    save_tensors(tmp_path / "file.safetensors", tensors(), KIND, description())
    return tmp_path / "file.safetensors"


def test_tensors_and_description_come_back(path, tmp_path):
    loaded, read = load_tensors(path, KIND)
    assert read == description() and set(loaded) == set(tensors())
    assert all(torch.equal(loaded[name], value) for name, value in tensors().items())
    save_tensors(tmp_path / "copy", dict(reversed(tensors().items())), KIND, description())
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    assert torch.equal(safetensors.torch.load_file(path)["x"], tensors()["x"])  # other programs read it
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["sopr_fast"])["kind"] == KIND
    path.write_bytes(b"")
    loaded["x"] += 1  # the file is not mapped


def test_every_changed_byte_and_every_cut_is_noticed(path):
    whole_file = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole_file[:size] for size in range(0, len(whole_file), 7)]
    for place in range(len(whole_file)):
        damaged.append(whole_file[:place] + bytes([whole_file[place] ^ rng.integers(1, 256)]) + whole_file[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=str(path)):
            load_tensors(path, KIND)
    assert content[:-1] == whole_file[:-1]
    with pytest.raises(ValueError, match=rf"^{path} is damaged: content hash differs; delete it, and train again$"):
        load_tensors(path, KIND)


FOREIGN = "is not a test file of sopr_fast"
HUGE = '{"kind": ' + "9" * 5000 + "}"
OTHERS = '{"kind": "test file"}', '{"kind": "model", "hash": ""}', "[]", "{}", "no JSON", "[" * 100_000, HUGE


@pytest.mark.parametrize(
    ("header", "message"),
    [
        *((json.dumps({"__metadata__": {"sopr_fast": text}}), FOREIGN) for text in OTHERS),
        *((text, "is not a ") for text in ("", "[]", "{", "[" * 100_000, '{"x": 1}', '{"x": {"dtype": "F4"}}')),
    ],
)
def test_files_of_others_are_refused(tmp_path, header, message):
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(ValueError, match=rf"^{tmp_path}/file {message}"):
        load_tensors(tmp_path / "file", KIND)


def test_only_regular_files_are_read_and_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ValueError, match=rf"^{tmp_path}/{name}: not a regular file$"):
            load_tensors(tmp_path / name, KIND)
        for write in (check_place, lambda path: save_tensors(path, {}, KIND, {})):
            with pytest.raises(OSError, match=rf"^cannot write {tmp_path}/pipe: not a regular file; name another$"):
                write(tmp_path / name)
    with pytest.raises(ValueError, match="not a regular file"):
        open_regular("/dev/zero")
    with pytest.raises(IsADirectoryError, match=f"Is a directory: '{tmp_path}'"):
        load_tensors(tmp_path, KIND)
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "none", KIND)


def test_the_target_of_a_link_is_read_and_replaced(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest").symlink_to("runs/v1.safetensors")
    for value in (1.0, 2.0):
        save_tensors(tmp_path / "latest", tensors(value), KIND, {})
        assert (tmp_path / "latest").is_symlink() and load_tensors(tmp_path / "latest", KIND)[0]["x"][0, 0] == value


def test_two_writers_of_one_file_do_not_disturb_each_other(path):
    with atomic_path(path) as first, atomic_path(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second and first.exists()
    assert path.read_text() == "first"


def test_permissions_are_those_of_the_file_replaced_or_of_a_new_one(tmp_path):
    umask = os.umask(0o027)
    try:
        save_tensors(tmp_path / "file", tensors(), KIND, description())
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(umask)
    for mode in (0o600, 0o664):
        (tmp_path / "file").chmod(mode)
        save_tensors(tmp_path / "file", tensors(), KIND, description())
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_failed_write_leaves_the_old_file_and_names_it(path):
    before = path.read_bytes()
    check_place(path.parent / "model")  # leaves none
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(OSError, match=rf"^cannot write {path}: File too large$"):
            save_tensors(path, tensors(count=500), KIND, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]
    with pytest.raises(FileNotFoundError, match=rf"^cannot write {path}: No such file"), atomic_path(path) as temporary:
        temporary.unlink()


def test_fingerprints_tell_values_shapes_and_types_apart():
    array = np.zeros((2, 3), np.float32)
    assert fingerprint(0.9, 95) != fingerprint(0.99, 5)
    assert fingerprint(array) == fingerprint(torch.from_numpy(array)) == fingerprint(np.asfortranarray(array))
    assert len({fingerprint(x) for x in (array, array.T, array.view(np.int32), array[:, :2])}) == 4


def test_a_checkpoint_that_another_run_writes_meanwhile_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    runs = {name: Checkpoint(path, "checkpoint", "returns") for name in ("mine", "other")}
    for name, run in runs.items():
        run.identify(name)
    runs["other"].keep({"weights": torch.ones(2)}, {"step": 7}, progress="", last=True)
    assert runs["other"].load()[1]["step"] == 7
    with pytest.raises(ValueError, match=rf"checkpoint {path} is of a run with other policies, returns"):
        runs["mine"].load()
