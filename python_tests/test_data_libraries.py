"""Logs as other libraries write them: pickles, dumps, LeRobot datasets, CSV files."""

import pickle
import warnings
from itertools import pairwise

import numpy as np
import pytest
from test_data import d4rl_arrays

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import load_states

STEPS = ("states", "actions", "rewards", "terminals", "timeouts")


@pytest.fixture
def arrays():
    return d4rl_arrays()


def assert_same(log, expected, parts=(*STEPS, "next_states", "episodes")):
    for part in parts:
        np.testing.assert_array_equal(getattr(log, part), getattr(expected, part), err_msg=part)


def write_csv(path, arrays, names):
    columns = {}
    for key, values in arrays.items():
        table = values.reshape(len(values), -1)
        name = names.get(key, key)
        columns |= {f"{name}_{i}" if values.ndim > 1 else name: table[:, i] for i in range(table.shape[1])}
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(repr, map(float, row))) for row in rows)]) + "\n")


def test_csv_loads_like_its_arrays(tmp_path, arrays):
    path = tmp_path / "log.csv"
    write_csv(path, arrays, {"observations": "obs", "next_observations": "next_obs"})
    assert_same(sopr_fast.load_log(path), sopr_fast.load_log(arrays))
    np.testing.assert_array_equal(np.asarray(load_states(path)), arrays["observations"])


def test_csv_with_a_map_of_columns(tmp_path, arrays):
    path = tmp_path / "log.csv"
    names = {"observations": "x", "next_observations": "y", "actions": "u", "rewards": "r", "terminals": "end"}
    write_csv(path, arrays, {**names, "timeouts": "cut"})
    columns = {
        "states": ["x_0", "x_1", "x_2"],
        "next_states": ("y_0", "y_1", "y_2"),
        "actions": "u",
        "rewards": "r",
        "terminals": "end",
        "timeouts": "cut",
    }
    log = sopr_fast.load_log(path, columns=columns)
    assert_same(log, sopr_fast.load_log(arrays))
    reordered = load_states(path, columns=["x_2", "x_0"])
    np.testing.assert_array_equal(np.asarray(reordered), arrays["observations"][:, [2, 0]])
    with pytest.raises(ValueError, match=r"log\.csv: no column 'z' for the states; it has x_0, x_1, "):
        sopr_fast.load_log(path, columns={**columns, "states": "z"})
    with pytest.raises(ValueError, match="columns name the part 'state'; a log's parts are states, actions"):
        sopr_fast.load_log(path, columns={"state": "x"})
    with pytest.raises(ValueError, match="Transitions have no names to map"):
        sopr_fast.load_log(log, columns=columns)


def test_columns_are_mapped_from_a_dictionary(arrays):
    renamed = {"s" if key == "observations" else key: values for key, values in arrays.items()}
    assert_same(sopr_fast.load_log(renamed, columns={"states": "s"}), sopr_fast.load_log(arrays))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,4\n", "its first line must name the columns"),
        ("obs,obs\n1,2\n", "its first line must name the columns, each once"),
        ("obs_0,obs_1,obs_01,reward\n1,2,3,4\n", "columns 'obs_1' and 'obs_01' are both number 1; rename one"),
        ("obs_0,action,reward\n1,2,3\n1,2\n", r"'reward' is not finite \(as float32\) at row 1"),
        ("obs_0,action,reward\n1,2,3\n1,5,2,3\n", "Expected 3 fields in line 3, saw 4.*; write numbers with a decimal"),
        ("obs_0,action,reward\n1,5,2,3\n", "line 2 has more values than the header; write numbers with a decimal"),
        ("", "its first line must name the columns"),
    ],
)
def test_broken_csv(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"log\.csv: .*{message}"):
        sopr_fast.load_log(path)


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles_are_not_executed(tmp_path):
    path = tmp_path / "log.pkl"
    path.write_bytes(pickle.dumps({"observations": Touch(tmp_path / "executed")}))
    with pytest.raises(ValueError, match=r"log\.pkl: its pickle names (io|_io)\.open"):
        sopr_fast.load_log(path)
    assert not (tmp_path / "executed").exists()
    path.write_bytes(pickle.dumps(3))
    with pytest.raises(ValueError, match=r"log\.pkl: expected a replay buffer or a dict of arrays, found a int"):
        sopr_fast.load_log(path)


def test_pickled_arrays_and_trajectories(tmp_path, arrays):
    arrays["timeouts"][-1] = ~arrays["terminals"][-1].astype(bool)
    expected, path = sopr_fast.load_log(arrays), tmp_path / "log.pkl"
    path.write_bytes(pickle.dumps(arrays))
    assert_same(sopr_fast.load_log(path), expected)
    ends = expected.episodes
    del arrays["timeouts"]
    episodes = [{key: v[i:j] for key, v in arrays.items()} for i, j in pairwise(ends)]
    path.write_bytes(pickle.dumps(episodes))
    assert_same(sopr_fast.load_log(path), expected)
    del episodes[1]["rewards"]
    path.write_bytes(pickle.dumps(episodes))
    with pytest.raises(ValueError, match=r"log\.pkl: episode 1 has no 'rewards'"):
        sopr_fast.load_log(path)


def test_trajectories_of_unequal_lengths_are_refused(tmp_path):
    path = tmp_path / "log.pkl"
    lengths = [{"observations": 3, "actions": 3, "rewards": 4}, {"observations": 3, "actions": 3, "rewards": 2}]
    path.write_bytes(pickle.dumps([{key: np.zeros((n, 1)) for key, n in episode.items()} for episode in lengths]))
    with pytest.raises(ValueError, match=r"log\.pkl: episode 0 has 3 'observations' for 4 'rewards'"):
        sopr_fast.load_log(path)


@pytest.mark.parametrize("name", ["terminals", "terminated", "dones", "done"])
@pytest.mark.parametrize("without", [(), ("next_observations",)])
def test_ends_of_trajectories_have_every_name(tmp_path, arrays, name, without):
    arrays["timeouts"][-1] = ~arrays["terminals"][-1].astype(bool)
    arrays = {key: values for key, values in arrays.items() if key not in without}
    expected, path = sopr_fast.load_log(arrays), tmp_path / "log.pkl"
    bounds = [0, *np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1]
    cut = arrays.pop("timeouts")
    arrays[name] = arrays.pop("terminals")
    extras = [{}, {"truncated": np.zeros_like(cut)}, {"truncated": cut}]
    if name in ("dones", "done"):
        extras.append({"truncated": cut, name: arrays[name] | cut})
    for extra in extras:
        log = arrays | extra
        path.write_bytes(pickle.dumps([{key: v[i:j] for key, v in log.items()} for i, j in pairwise(bounds)]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(sopr_fast.load_log(path), expected)


@pytest.mark.parametrize("name", ["dones", "done"])
def test_dones_at_the_end_of_every_trajectory_may_be_time_limits(tmp_path, name):
    arrays = d4rl_arrays([(3, "terminal"), (4, "terminal"), (2, None)])
    del arrays["timeouts"]
    arrays[name], path = arrays.pop("terminals"), tmp_path / "log.pkl"
    path.write_bytes(pickle.dumps([{key: v[i:j] for key, v in arrays.items()} for i, j in pairwise([0, 3, 7, 9])]))
    with pytest.warns(UserWarning, match=rf"log\.pkl: '{name}' are taken as terminals; if a time limit cut episodes"):
        log = sopr_fast.load_log(path)
    assert log.episodes.tolist() == [0, 3, 7, 9]
    np.testing.assert_array_equal(log.terminals, arrays[name])


def write_dump(path, arrays):
    """As d3rlpy 2.8.1, dataset/io.py."""
    h5py = pytest.importorskip("h5py")
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    with h5py.File(path, "w") as file:
        file["columns"], file["num_episodes"] = ["observations", "actions", "rewards", "terminated"], len(ends)
        for i, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            for key in ("observations", "actions", "rewards"):
                file[f"{key}_{i}"] = arrays[key][start:stop].reshape(stop - start, -1)
            file[f"terminated_{i}"] = bool(arrays["terminals"][stop - 1])
        file["version"] = "2.1"


def test_a_dump_of_d3rlpy(tmp_path, arrays):
    path = tmp_path / "buffer.h5"
    arrays["timeouts"][-1] = ~arrays["terminals"][-1].astype(bool)
    write_dump(path, arrays)
    expected = {key: values for key, values in arrays.items() if key != "next_observations"}
    assert_same(sopr_fast.load_log(path), sopr_fast.load_log(expected))
    np.testing.assert_array_equal(np.asarray(load_states(path)), arrays["observations"])
    import h5py

    with h5py.File(path, "a") as file:
        del file["rewards_1"]
    with pytest.raises(ValueError, match=r"buffer\.h5: episode 1 has no 'rewards'"):
        sopr_fast.load_log(path)


def test_d3rlpy_writes_what_is_read(tmp_path, arrays):
    d3rlpy = pytest.importorskip("d3rlpy")
    arrays["timeouts"][-1] = ~arrays["terminals"][-1].astype(bool)
    terminals, timeouts = (arrays[key].astype(np.float32) for key in ("terminals", "timeouts"))
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(
        d3rlpy.dataset.EpisodeGenerator(
            arrays["observations"], arrays["actions"], arrays["rewards"], terminals, timeouts
        )()
    )
    with open(tmp_path / "buffer.h5", "w+b") as file:
        buffer.dump(file)
    expected = {key: values for key, values in arrays.items() if key != "next_observations"}
    assert_same(sopr_fast.load_log(tmp_path / "buffer.h5"), sopr_fast.load_log(expected))
