"""States of files and array-like objects: only drawn rows are read, the right ones, also of files that change."""

import os
from contextlib import contextmanager

import h5py
import large_log
import numpy as np
import pandas
import pytest
import torch
from support.problems import log, transitions

from sopr_fast.inputs.logs import StoredStates, load_log, load_states
from sopr_fast.runtime.rows import FileRows, StoredRows
from sopr_fast.sopr.subsets import Subsets

STATES = log(3000)
LAYOUTS = {
    "contiguous": {},
    "chunked": {"chunks": (64, 4)},
    "compressed": {"chunks": (64, 1), "compression": "gzip"},
    "big-endian": {"dtype": ">f8"},
}


def write(path, states=STATES, order="C", **layout):
    if path.suffix == ".npy":
        np.save(path, np.asarray(states, order=order))
    elif path.suffix == ".npz":
        np.savez(path, observations=states, rewards=np.zeros(3))
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("observations", data=states, **layout)
            file["rewards"] = np.zeros(3)
    return path


def draw(states, count=2, size=100):
    return Subsets.draw(load_states(states), count, size=size, clusters=5)


STEPS = transitions(STATES, STATES, STATES[:, 0], max_episode_steps=1)
SOURCES = {
    **{name: lambda path, layout=layout: write(path / "s.hdf5", **layout) for name, layout in LAYOUTS.items()},
    "open dataset": lambda path: h5py.File(write(path / "s.hdf5"))["observations"],
    "transitions": lambda _: STEPS,
    "fortran": lambda _: np.asfortranarray(STATES),
    "tensor": lambda _: torch.from_numpy(STATES),
    "memmap": lambda path: np.load(write(path / "s.npy"), mmap_mode="r"),
    "frame": lambda _: pandas.DataFrame(STATES),
    "buffer of one environment": lambda _: STATES[:, None],
    "HDF5 of such a buffer": lambda path: write(path / "s.hdf5", STATES[:, None], chunks=(5, 1, 4), compression="gzip"),
}


@pytest.mark.parametrize("size", [7, 100, 2000])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_subsets(tmp_path, kind, size):
    expected, subsets = draw(STATES, size=size), draw(SOURCES[kind](tmp_path), size=size)
    assert torch.equal(expected.states, subsets.states) and torch.equal(expected.rows, subsets.rows)


def test_shapes_names_and_copies():
    states = STATES[:14, None]
    columns = {"observations": states, "actions": states, "rewards": states[:, :, 0], "terminals": np.ones((14, 1))}
    np.testing.assert_array_equal(load_log(columns).states, STATES[:14])
    assert load_states([[0.1, 0.2, 0.3, 0.4, True]] * 3).shape == (3, 5)  # no steps
    message = r"data frame: no array 'observations' .*columns=\{'states': …\}.*; the arrays there are x, v"
    for read in (load_states, load_log):
        with pytest.raises(ValueError, match=message):  # all columns could be states, or one of them the rewards
            read(pandas.DataFrame(STATES[:, :2], columns=["x", "v"]))
        with pytest.raises(ValueError, match="dataset: numbers by name, as returns are: policies come first"):
            read({"a": 1.0, "b": np.float64(2)})
    copied = np.array(load_states(STATES))
    np.testing.assert_array_equal(copied, STATES)
    assert not np.shares_memory(copied, STATES)


class Recorder(StoredRows):
    """Rows of a file that records the slices taken from it."""

    def __init__(self, values):
        self.values, self.slices, self.name = values, [], "file"
        self.shape, self.dtype = values.shape, values.dtype

    @contextmanager
    def reader(self):
        yield lambda start, stop: self.slices.append((start, stop)) or self.values[start:stop]


def test_only_drawn_rows_are_read_in_pieces_that_are_bounded():
    states = Recorder(np.broadcast_to(np.float32(1), (10_000_000, 300)))  # 12 GB, were it read
    drawn = draw(StoredStates(states), size=500).source.numpy()
    assert states.slices == sorted(states.slices)
    read = np.concatenate([np.arange(*rows) for rows in states.slices])
    assert len(np.unique(read)) == len(read) and np.isin(drawn, read).all() and len(read) < 1.1 * len(drawn)
    dense = Recorder(states.values[:200_000])
    draw(StoredStates(dense), size=90_000)
    assert len(dense.slices) > 20 and max(stop - start for start, stop in dense.slices) * 1200 <= 8 << 20


@pytest.mark.slow
def test_drawing_from_twenty_million_rows_stays_small(tmp_path):
    large_log.write(tmp_path / "log.hdf5", 20_000_000, "chunked")
    few, many = (large_log.measure(tmp_path / "log.hdf5", subsets) for subsets in (5, 200))
    assert few["states"] > 81_000 and few["peak"] < 500e6 and few["read"] < 0.05 * few["file"]
    assert many["states"] > 3_000_000 and many["peak"] < 1e9


AT_123 = np.arange(12000).reshape(-1, 4) == 493
FAR, LARGE = (np.where(AT_123, value, STATES) for value in (np.float64(1e39), np.float32(-1e25)))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (np.zeros((0, 3)), r"(states|'\w+') is empty: shape \(0, 3\)"),
        (np.zeros((5, 2, 2)), r"must have shape \(rows, columns\), got \(5, 2, 2\); .*pass values\.reshape"),
        (np.array([[b"a", b"b"]]), "must be numbers, got "),
        (FAR, r"states is not finite \(as float32\) at row 123"),
        (LARGE, r"states holds -1e\+25 at row 123, beyond .* magnitude 1e\+15"),
    ],
)
@pytest.mark.parametrize("name", ["", "s.npy", "s.npz", "s.hdf5", "chunked.hdf5"])
def test_wrong_states(tmp_path, name, states, message):
    chunks = {"chunks": True} if name.startswith("chunked") and states.size else {}  # HDF5 cannot chunk nothing
    with pytest.raises((TypeError, ValueError), match=f"{name}.*{message}"):
        draw(write(tmp_path / name, states, **chunks) if name else states, size=len(states) or 1)


def test_a_damaged_chunk_is_named(tmp_path):
    path = write(tmp_path / "s.hdf5", chunks=(500, 4), compression="gzip")
    with h5py.File(path) as file:
        offset = file["observations"].id.get_chunk_info(2).byte_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 50] = b"\xff" * 50
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"s\.hdf5: 'observations': damaged, cut short, or not an array with rows"):
        draw(path)


RANDOM = np.random.default_rng(0)
ARRAYS = [
    RANDOM.normal(size=(3000, 2)).astype(">f8"),
    *(np.asfortranarray(RANDOM.normal(size=shape)) for shape in ((3000, 17), (300, 3, 5))),
    RANDOM.integers(0, 9, 3000),
    np.zeros((30, 0)),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str} {array.shape}")
@pytest.mark.parametrize("piece_bytes", [64, 8 << 20])
def test_rows_in_any_order(array, piece_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("sopr_fast.runtime.rows._PIECE_BYTES", piece_bytes)
    np.save(tmp_path / "a.npy", array)
    stored, chosen = FileRows(tmp_path / "a.npy"), RANDOM.integers(0, len(array), 500)
    for rows in (chosen, chosen[:0]):
        np.testing.assert_array_equal(stored[rows], array[rows])
    np.testing.assert_array_equal(np.asarray(stored), array)


@pytest.mark.parametrize(
    ("name", "layout"), [("a.npy", {}), ("a.npy", {"order": "F"}), ("a.hdf5", {"chunks": (16, 3)})]
)
@pytest.mark.parametrize("change", ["cut short", "replaced"])
def test_a_file_that_changes_while_it_is_in_use(name, layout, change, tmp_path):
    """A new file may have the same shape, so that nothing but its version tells."""
    path, values, rows = tmp_path / name, RANDOM.normal(size=(5000, 3)), np.arange(0, 5000, 7)
    read = load_states(write(path, values, **layout)).read
    np.testing.assert_array_equal(read(rows), values[rows].astype(np.float32))
    if change == "cut short":
        os.truncate(path, 200)
    else:
        path.unlink()
        write(path, values + 1, **layout)
    os.utime(path, ns=(0, 0))  # the clock of the file system may not have moved on
    with pytest.raises(ValueError, match=rf"{name}: .*(changed after it was opened; load it again|damaged)"):
        read(rows)
