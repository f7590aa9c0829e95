"""Names of arrays, data frames, replay buffers, and sources that are refused by name."""

import re
import tracemalloc
import warnings

import h5py
import numpy as np
import pandas
import pytest
import torch
from problems import transitions
from test_data import d4rl_arrays, write_hdf5
from test_log_files import assert_same, frame_of

import sopr_fast.inputs.logs
from sopr_fast import Subsets
from sopr_fast.inputs import files
from sopr_fast.inputs.logs import load_states


@pytest.fixture
def arrays():
    return d4rl_arrays()


def test_a_data_frame_is_read_by_its_names():
    values = np.array([[0.0, 2.0], [1.0, 3.0]])
    for read in (load_states, sopr_fast.load_log):
        np.testing.assert_array_equal(np.asarray(read(pandas.DataFrame(values))), values)
        message = r"data frame: no array 'observations' .*columns=\{'states': …\}.*; the arrays there are x, v; name a"
        with pytest.raises(ValueError, match=message):  # all columns could be states, or one of them the rewards
            read(pandas.DataFrame(values, columns=["x", "v"]))


def test_a_buffer_of_one_environment_counts_as_a_table(tmp_path, arrays):
    buffers = {key: values[:, None] if values.ndim == 2 else values for key, values in arrays.items()}
    columns = {key: values[:, None] if values.ndim == 1 else values for key, values in buffers.items()}
    for source in (buffers, columns, write_hdf5(tmp_path / "log.hdf5", buffers)):
        assert_same(sopr_fast.load_log(source), sopr_fast.load_log(arrays))
    observations = buffers["observations"]
    np.save(tmp_path / "log.npy", observations)
    with h5py.File(tmp_path / "chunked.hdf5", "w") as file:
        file.create_dataset("observations", data=observations, chunks=(5, 1, 3), compression="gzip")
        file.create_dataset("rewards", data=arrays["rewards"])
    for source in (observations, *(tmp_path / name for name in ("log.npy", "log.hdf5", "chunked.hdf5"))):
        states = load_states(source)
        assert states.shape == (14, 3)
        np.testing.assert_array_equal(states.read(np.array([0, 3, 13])), arrays["observations"][[0, 3, 13]])


def test_arrays_of_three_axes_are_refused_by_advice_that_works(arrays):
    """They may be of episodes, or of environments in turn."""
    log = {key: np.stack([x, x[::-1]], 1) for key, x in arrays.items()}
    advice = r"pass \[{name: x\[i\] for name, x in log.items\(\)} for i in range\(14\)\], a dictionary .* range\(2\)"
    with pytest.raises(ValueError, match=rf"'observations' must have shape .* got \(14, 2, 3\); {advice}"):
        sopr_fast.load_log(log)
    for given in (
        [{name: x[i] for name, x in log.items()} for i in range(14)],
        [{name: x[:, i] for name, x in log.items()} for i in range(2)],
    ):
        assert sopr_fast.load_log(given).source_count == 28
    with pytest.raises(ValueError, match=r"\(rows, dim_s\), got \(14, 2, 3\); pass values\.reshape\(-1, 3\)"):
        load_states(log["observations"])


def test_mapped_dones_may_include_timeouts_too(arrays):
    arrays["over"] = arrays.pop("timeouts")
    arrays["done"] = arrays.pop("terminals") | arrays["over"]
    columns = {"terminals": "done", "timeouts": "over"}
    with warnings.catch_warnings(action="error"):
        log = sopr_fast.load_log(arrays, columns=columns)
    np.testing.assert_array_equal(log.terminals, arrays["done"] & ~arrays["over"])
    np.testing.assert_array_equal(log.timeouts[:-1], arrays["over"][:-1])
    del columns["timeouts"]
    with pytest.warns(UserWarning, match="dataset: ends by 'done' are taken as terminals; if a time limit cut"):
        log = sopr_fast.load_log(arrays, columns=columns)
    np.testing.assert_array_equal(log.terminals, arrays["done"])


def unfilled(filled, rows=500):
    states = np.zeros((rows, 3), np.float32)
    states[:filled] = np.random.default_rng(0).normal(size=(filled, 3))
    return states


@pytest.mark.parametrize(("filled", "share"), [(10, 98), (240, 52)])
def test_mostly_equal_states_warn(filled, share):
    states = unfilled(filled)
    with pytest.warns(UserWarning, match=f"{share}% of the states are the same row, as in a replay buffer") as caught:
        Subsets.draw(states, 1, size=500, clusters=2)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=f"dataset: {500 - filled} rows, such as row {filled}, are the same"):
        transitions(states, states, states[:, 0], states)


def test_a_mostly_filled_buffer_does_not_warn():
    with warnings.catch_warnings(action="error"):
        Subsets.draw(unfilled(260), 1, size=500, clusters=2)
        Subsets.draw(unfilled(10), 1, size=20, clusters=1)


@pytest.mark.parametrize(
    ("states", "error", "message"),
    [
        (torch.zeros(4, 3, device="meta"), TypeError, "states must be numbers: .*meta"),
        (torch.eye(4).to_sparse(), TypeError, "states must be numbers: .*[Ss]parse"),
        (torch.zeros(4, 3, dtype=torch.complex64), TypeError, "states must be numbers, got dtype complex64"),
        (np.zeros((4, 3), complex), TypeError, "states must be numbers, got dtype complex128"),
        ([[10**400]], TypeError, "states must be numbers: "),
        ([[1.0], [1.0, 2.0]], TypeError, "states must be numbers: "),
    ],
)
def test_states_without_float32_values_are_refused(states, error, message):
    with pytest.raises(error, match=message):
        load_states(states)


def test_hdf5_values_in_other_files_are_not_read(tmp_path, arrays):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(14 * 3 * 4))
    write_hdf5(tmp_path / "other.hdf5", arrays)
    path = tmp_path / "log.hdf5"

    def external(file):
        file.create_dataset("observations", (14, 3), np.float32, external=[(str(secret), 0, 14 * 3 * 4)])

    def virtual(file):
        layout = h5py.VirtualLayout((14, 3), np.float32)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "observations", (14, 3))
        file.create_virtual_dataset("observations", layout)

    def external_link(file):
        file["observations"] = h5py.ExternalLink("other.hdf5", "observations")

    def soft_link(file):
        file["elsewhere"] = h5py.ExternalLink("other.hdf5", "/")
        file["observations"] = h5py.SoftLink("/elsewhere/observations")

    for refer, message in (
        (external, "'observations' refers to other files"),
        (virtual, "'observations' refers to other files"),
        (external_link, "no array 'observations'"),
        (soft_link, "no array 'observations'"),
    ):
        with h5py.File(path, "w") as file:
            refer(file)
            file["actions"], file["rewards"] = arrays["actions"], arrays["rewards"]
        for read in (sopr_fast.load_log, load_states):
            with pytest.raises(ValueError, match=rf"log\.hdf5: {message}"):
                read(path)


@pytest.mark.parametrize("kind", ["npz", "hdf5", "folder"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loading_takes_no_more_memory_than_was_checked(tmp_path, monkeypatch, kind, dtype):
    count, path, checked = 200_000, tmp_path / f"log.{kind}", []
    arrays = {"observations": np.arange(17.0 * count).reshape(count, 17), "actions": np.ones((count, 6))}
    arrays = {key: np.sqrt(values).astype(dtype) for key, values in (arrays | {"rewards": np.ones(count)}).items()}
    arrays |= {"terminals": np.zeros(count, bool), "timeouts": np.arange(count) % 100 == 99}
    if kind == "folder":
        path.mkdir()
        for key, values in arrays.items():
            np.save(path / f"{key}.npy", values)
    elif kind == "npz":
        np.savez(path, **arrays)
    else:
        write_hdf5(path, arrays)
    check = files.check_memory
    monkeypatch.setattr(
        "sopr_fast.inputs.logs.transitions.check_memory", lambda where, size: (checked.append(size), check(where, size))
    )
    tracemalloc.start()
    log = sopr_fast.load_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(log) == 0.99 * count and peak <= checked[0] <= 4 * 4 * 24 * count  # 24 numbers in a row


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "log.parquet"])
def test_wanted_arrays_larger_than_the_free_memory_are_not_read(tmp_path, arrays, name, monkeypatch):
    path = tmp_path / name
    unwanted = {"pixels": np.zeros((14, 100_000), np.uint8)}
    if name == "log.npz":
        np.savez_compressed(path, **arrays, **unwanted)
    elif name == "log.hdf5":
        write_hdf5(path, arrays | unwanted)
    else:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        frame_of(arrays, "{}_{}").assign(pixels=0).to_parquet(path)
    monkeypatch.setattr(files, "free_memory", lambda: 10_000)
    assert_same(sopr_fast.load_log(path), sopr_fast.load_log(arrays))
    monkeypatch.setattr(files, "free_memory", lambda: 100)
    with pytest.raises(MemoryError, match=rf"{re.escape(name)}: [\d,]+ bytes when read, larger than the free memory"):
        sopr_fast.load_log(path)
