"""Transitions and states of `.npz`, parquet and Minari files, written by the libraries of these formats."""

import io
import zipfile

import h5py
import numpy as np
import numpy.lib.format
import pytest
from test_data import d4rl_arrays

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import load_transitions
from sopr_fast.inputs.logs.states import as_states

PARTS = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "episodes")


@pytest.fixture
def arrays():
    return d4rl_arrays()


def assert_same(log, expected):
    for part in PARTS:
        np.testing.assert_array_equal(getattr(log, part), getattr(expected, part), err_msg=part)


def test_npz_loads_like_its_arrays(tmp_path, arrays):
    np.savez_compressed(tmp_path / "log.npz", **arrays, notes=np.array(["not", "read"]))
    assert_same(sopr_fast.load_log(tmp_path / "log.npz"), sopr_fast.load_log(arrays))


def test_folder_of_npy(tmp_path, arrays):
    renamed = {"states": arrays.pop("observations"), **arrays, "rewards": arrays["rewards"].astype(np.float64)}
    for key, values in renamed.items():
        np.save(tmp_path / f"{key}.npy", values)
    np.save(tmp_path / "infos.npy", np.array([None]), allow_pickle=True)
    log = sopr_fast.load_log(tmp_path)
    assert_same(log, sopr_fast.load_log(renamed))
    assert not log.states.flags.owndata and log.states.flags.writeable
    log.states[0] = 7
    np.testing.assert_array_equal(np.asarray(as_states(str(tmp_path))), renamed["states"])
    (tmp_path / "rewards.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match=r"rewards\.npy: damaged"):
        sopr_fast.load_log(tmp_path)
    (tmp_path / "rewards.npy").unlink()
    with pytest.raises(
        ValueError,
        match=r"no array 'rewards' \(or .*\); the arrays there are actions, infos, next_observations, states",
    ):
        load_transitions(tmp_path)
    with pytest.raises(TypeError, match="dictionary of arrays with states, actions .*, got ndarray"):
        load_transitions(renamed["states"])


def test_npz_of_objects_cut_or_of_one_array(tmp_path, arrays):
    path = tmp_path / "log.npz"
    np.savez(path, **arrays | {"rewards": np.array([None] * 14)})
    with pytest.raises(ValueError, match=r"log\.npz: 'rewards': damaged, cut short, or not a plain array: Obj"):
        sopr_fast.load_log(path)
    np.savez(path, **arrays)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"log\.npz: damaged"):
        sopr_fast.load_log(path)
    with pytest.raises(ValueError, match=r"log\.npy: an \.npy file is one array; .* a folder of \.npy files"):
        load_transitions(tmp_path / "log.npy")


@pytest.fixture
def pyarrow():
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    return pytest.importorskip("pyarrow")


def table(pyarrow, arrays, form):
    """Return a table whose columns are lists, lists of one size, or one dimension each."""
    columns = {}
    for key, values in arrays.items():
        if values.ndim == 1:
            columns[key] = pyarrow.array(values)
        elif form == "lists":
            columns[key] = pyarrow.array(values.tolist(), pyarrow.list_(pyarrow.float32()))
        elif form == "fixed":
            columns[key] = pyarrow.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
        else:
            order = reversed(range(values.shape[1]))
            columns |= {f"{key}{form.format(i)}": pyarrow.array(values[:, i]) for i in order}
    return pyarrow.table(columns)


@pytest.mark.parametrize("form", ["lists", "fixed", "_{}", ".{}", "[{}]"])
def test_parquet_loads_like_its_arrays(tmp_path, pyarrow, arrays, form):
    path = tmp_path / "log.parquet"
    pyarrow.parquet.write_table(table(pyarrow, arrays, form), path, row_group_size=5)
    assert_same(sopr_fast.load_log(path), sopr_fast.load_log(arrays))
    np.testing.assert_array_equal(np.asarray(as_states(path)), arrays["observations"])


def test_wrong_parquet(tmp_path, pyarrow, arrays):
    path = tmp_path / "log.parquet"

    def refused(error, message, **change):
        columns = table(pyarrow, arrays, "lists")
        for key, values in change.items():
            columns = columns.drop([key]).append_column(key, values)
        pyarrow.parquet.write_table(columns, path)
        with pytest.raises(error, match=message):
            sopr_fast.load_log(path)

    ragged = [[1.0, 2.0]] * 11 + [[1.0], [1.0, 2.0, 3.0], [1.0, 2.0]]  # as many numbers as 14 rows of 2 have
    for kind in (pyarrow.list_, pyarrow.large_list):
        actions = pyarrow.array(ragged, kind(pyarrow.float32()))
        message = r"log\.parquet: 'actions' has lists of different lengths, 2 at row 0 and 1 at row 11$"
        refused(ValueError, message, actions=actions)
    refused(
        ValueError, r"log\.parquet: 'rewards' has no value at row 3", rewards=pyarrow.array([0.0] * 3 + [None] * 11)
    )
    refused(ValueError, r"'actions' has no value at row 2", actions=pyarrow.array([[1.0]] * 2 + [None] * 12))
    refused(TypeError, r"log\.parquet: 'rewards' must be numbers", rewards=pyarrow.array(["a"] * 14))
    pyarrow.parquet.write_table(table(pyarrow, arrays, "lists").drop(["rewards"]), path)
    with pytest.raises(ValueError, match=r"log\.parquet: no array 'rewards' .* there are .*observations"):
        load_transitions(path)
    pyarrow.parquet.write_table(table(pyarrow, arrays, "lists").slice(0, 0), path)
    with pytest.raises(ValueError, match=r"log\.parquet: 'observations' is empty"):
        sopr_fast.load_log(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"log\.parquet: damaged"):
        sopr_fast.load_log(path)


def read_states(path):
    states = as_states(path)
    return states.read(np.arange(len(states))) if len(states) < 100 else None  # a damaged header may say 10**15


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5"])
def test_a_log_larger_than_memory_says_so(tmp_path, name):
    """The file is small, since nothing was written to the array or all of it is zero."""
    path, rows = tmp_path / name, 1 << 50
    if name == "log.npz":
        header = io.BytesIO()
        numpy.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, 3)})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("observations.npy", header.getvalue())
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("observations", (rows, 3), np.float32, chunks=(100, 3))
            file["actions"] = file["rewards"] = np.zeros(3)
    with pytest.raises(MemoryError, match=rf"{name}: .*larger than the free memory"):
        sopr_fast.load_log(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["log.npz", "observations.npy", "log.parquet", "log.hdf5"])
def test_errors_of_damaged_files_name_the_file(request, tmp_path, arrays, name):
    path, rng = tmp_path / name, np.random.default_rng(0)
    if name == "log.npz":
        np.savez_compressed(path, **arrays)
    elif name == "log.parquet":
        pyarrow = request.getfixturevalue("pyarrow")
        pyarrow.parquet.write_table(table(pyarrow, arrays, "lists"), path)
    elif name == "log.hdf5":
        with h5py.File(path, "w") as file:
            for key, values in arrays.items():
                file.create_dataset(key, data=values, chunks=(5, *values.shape[1:]), compression="gzip")
    else:
        for key, values in arrays.items():
            np.save(tmp_path / f"{key}.npy", values)
    whole, refused = np.fromfile(path, np.uint8), 0
    for flips in [1, 2, 4, 8] * 60:
        damaged = whole.copy()
        damaged[rng.integers(len(whole), size=flips)] ^= rng.integers(1, 256, size=flips, dtype=np.uint8)
        path.write_bytes(damaged.tobytes())
        for read in (sopr_fast.load_log, read_states):
            source = tmp_path if read is sopr_fast.load_log and path.suffix == ".npy" else path
            try:
                read(source)
            except (MemoryError, OSError, TypeError, ValueError) as error:
                assert str(source) in str(error), repr(error)
                refused += 1
    assert refused


@pytest.fixture
def minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari", reason="minari is not installed")


def write_minari(minari, arrays, name="mujoco/hopper/made-v0", **spaces):
    from gymnasium.spaces import Box
    from minari.data_collector.episode_buffer import EpisodeBuffer

    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]).tolist()
    buffers = []
    for start, stop in zip([0, *(end + 1 for end in ends)], [*(end + 1 for end in ends), 14], strict=True):
        seen = np.concatenate([arrays["observations"][start:stop], arrays["next_observations"][stop - 1 : stop]])
        steps = {
            "actions": arrays["actions"],
            "rewards": arrays["rewards"],
            "terminations": arrays["terminals"],
            "truncations": arrays["timeouts"],
        }
        steps = {key: list(values[start:stop]) for key, values in steps.items()}
        buffers.append(EpisodeBuffer(observations=list(seen), **steps))
    boxes = {"observation_space": Box(-9, 9, (3,), np.float32), "action_space": Box(-9, 9, (2,), np.float32)}
    return minari.create_dataset_from_buffers(name, buffers, **boxes | spaces)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_loads_from_a_dataset_its_name_or_its_files(tmp_path, minari, arrays):
    dataset = write_minari(minari, arrays)
    arrays["timeouts"][-1] = True  # the last episode just stops
    expected = sopr_fast.load_log(arrays)
    folder = tmp_path / "mujoco/hopper/made-v0"
    for source in (dataset, "mujoco/hopper/made-v0", folder, folder / "data", folder / "data/main_data.hdf5"):
        assert_same(sopr_fast.load_log(source), expected)
        np.testing.assert_array_equal(np.asarray(as_states(source)), expected.states)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_wrong_minari(tmp_path, minari, arrays):
    with pytest.raises(FileNotFoundError, match="mujoco/hopper/none-v0: no such Minari dataset on this machine"):
        sopr_fast.load_log("mujoco/hopper/none-v0")
    write_minari(minari, arrays)
    path = tmp_path / "mujoco/hopper/made-v0/data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"made-v0.*: damaged"):
        sopr_fast.load_log("mujoco/hopper/made-v0")


class Episodes:
    """Dataset of spaces other than boxes."""

    id = "kitchen-v0"

    def __init__(self, **values):
        from types import SimpleNamespace

        whole = {
            "observations": np.zeros((4, 3)),
            "actions": np.zeros((3, 2)),
            "rewards": np.zeros(3),
            "terminations": np.zeros(3, bool),
            "truncations": np.zeros(3, bool),
        }
        self.episode = SimpleNamespace(id=7, **whole | values)

    def iterate_episodes(self):
        yield self.episode


def test_minari_of_other_spaces_or_lengths():
    assert len(sopr_fast.load_log(Episodes())) == 3
    with pytest.raises(TypeError, match="kitchen-v0: 'observations/arm' of an episode are a int"):
        sopr_fast.load_log(Episodes(observations={"arm": 0, "goal": 0}))
    short = sopr_fast.load_log(Episodes(observations=np.arange(9.0).reshape(3, 3)))  # without the last next state
    assert short.source.tolist() == [0, 1] and short.next_states[:, 0].tolist() == [3, 6]
    with pytest.raises(ValueError, match="episode 7 has 2 'actions' for 3 'rewards'"):
        sopr_fast.load_log(Episodes(actions=np.zeros((2, 2))))


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_files_that_refer_to_others_are_refused(tmp_path, minari, arrays):
    write_minari(minari, arrays)
    data = tmp_path / "mujoco/hopper/made-v0/data"
    (data / "main_data.hdf5").rename(data / "other.hdf5")
    with h5py.File(data / "main_data.hdf5", "w") as file, h5py.File(data / "other.hdf5") as other:
        for name in other:
            file[name] = h5py.ExternalLink("other.hdf5", name)
    for source in ("mujoco/hopper/made-v0", data):
        with pytest.raises(ValueError, match=r"main_data\.hdf5: no array 'observations'"):
            sopr_fast.load_log(source)


@pytest.mark.filterwarnings("ignore")
def test_errors_of_damaged_minari_files_name_the_dataset(tmp_path, minari, arrays):
    write_minari(minari, arrays)
    path, rng = tmp_path / "mujoco/hopper/made-v0/data/main_data.hdf5", np.random.default_rng(1)
    whole, refused = np.fromfile(path, np.uint8), 0
    for flips in [1, 4, 16, 64] * 10:
        damaged = whole.copy()
        damaged[rng.integers(len(whole), size=flips)] ^= rng.integers(1, 256, size=flips, dtype=np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            sopr_fast.load_log("mujoco/hopper/made-v0")
        except (MemoryError, TypeError, ValueError) as error:
            assert "made-v0" in str(error), repr(error)
            refused += 1
    assert refused
