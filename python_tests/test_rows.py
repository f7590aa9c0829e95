"""Rows read from files in use: the right ones, and an error, not the end of the process, where the file changes."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from sopr_fast.inputs import logs as data
from sopr_fast.inputs import policies
from sopr_fast.inputs.logs import load_states
from sopr_fast.runtime.rows import FileRows

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "rows": RANDOM.normal(size=(3000, 17)).astype(np.float32),
    "columns": np.asfortranarray(RANDOM.normal(size=(3000, 17))),
    "replay buffer": np.asfortranarray(RANDOM.normal(size=(3000, 1, 5))),
    "nested columns": np.asfortranarray(RANDOM.normal(size=(300, 3, 5))),
    "indices": RANDOM.integers(0, 9, 3000),
    "big endian": RANDOM.normal(size=(3000, 2)).astype(">f8"),
    "no columns": np.zeros((30, 0)),
}

LOGGED = {"observations": 3, "actions": 2, "rewards": 1}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
@pytest.mark.parametrize("piece_bytes", [64, 8 << 20])
def test_rows_in_any_order(array, piece_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("sopr_fast.runtime.rows._PIECE_BYTES", piece_bytes)
    np.save(tmp_path / "a.npy", array)
    stored = FileRows(tmp_path / "a.npy")
    assert (stored.shape, stored.dtype, len(stored)) == (array.shape, array.dtype, len(array))
    chosen = RANDOM.integers(0, len(array), 500)
    for rows in (chosen, chosen[:1], chosen[:0]):
        np.testing.assert_array_equal(stored[rows], array[rows])
    np.testing.assert_array_equal(np.asarray(stored), array)


def write(path, values, order="C"):
    path.unlink(missing_ok=True)
    if path.suffix == ".npy":
        np.save(path, np.asarray(values, order=order))
    elif path.suffix == ".hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("observations", data=values, chunks=(16, 3))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"actions": list(values)}), path, row_group_size=16)


@pytest.mark.parametrize(("name", "order"), [("a.npy", "C"), ("a.npy", "F"), ("a.hdf5", "C"), ("a.parquet", "C")])
@pytest.mark.parametrize("change", ["cut short", "overwritten", "replaced"])
def test_a_file_that_changes_while_it_is_in_use(name, order, change, tmp_path):
    """A new file may have the same shape, so that nothing but its version tells."""
    path, values, rows = tmp_path / name, RANDOM.normal(size=(5000, 3)), np.arange(0, 5000, 7)
    write(path, values, order)
    readers = []
    if path.suffix != ".parquet":
        readers.append(load_states(path).read)
        np.testing.assert_array_equal(readers[0](rows), values[rows].astype(np.float32))
    if path.suffix != ".hdf5":
        readers.append(policies.load(path)["a"].original.__getitem__)
    if change == "cut short":
        os.truncate(path, 200)
    elif change == "overwritten":
        path.write_bytes(path.read_bytes()[::-1])
    else:
        write(path, values + 1, order)
    os.utime(path, ns=(0, 0))  # the clock of the file system may not have moved on
    for read in readers:
        with pytest.raises(ValueError, match=rf"{name}: .*(changed after it was opened; load it again|damaged)"):
            read(rows)


def write_log(folder, order):
    folder.mkdir()
    parts = {name: RANDOM.normal(size=(50, width)) for name, width in LOGGED.items()}
    parts["terminals"] = np.arange(50)[:, None] % 10 == 9
    for name, values in parts.items():
        np.save(folder / f"{name}.npy", np.asarray(values, order=order))
    return parts


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.filterwarnings("ignore:.*neither next states nor timeouts")
def test_no_file_stays_mapped(order, tmp_path):
    parts = write_log(tmp_path / "log", order)
    log = data.load_log(tmp_path / "log")
    states = load_states(tmp_path / "log")
    actions = policies.load(tmp_path / "log" / "actions.npy")
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    for file in (tmp_path / "log").iterdir():
        os.truncate(file, 100)
    for part, values in (("observations", log.states), ("actions", log.actions), ("rewards", log.rewards[:, None])):
        np.testing.assert_array_equal(values, parts[part].astype(np.float32))
    assert len(states) == 50 and len(actions) == 1
