"""Logs in every form load like their arrays, and wrong files are refused by name."""

import json
import os
import pickle
import tracemalloc
import zlib
from itertools import pairwise
from types import SimpleNamespace

import h5py
import numpy as np
import pandas
import pytest
from support.needs import needs, to_parquet
from support.walks import NEXT, only, walk, without

import sopr_fast
from sopr_fast.inputs.logs import load_states, load_transitions, transitions
from sopr_fast.inputs.named_arrays import flatten
from sopr_fast.runtime import containers

PARTS = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "episodes")
FIVE = ("observations", "actions", "rewards", NEXT, "terminals")
OWN = dict(zip((*FIVE, "timeouts"), "xurync", strict=True))
OWN_COLUMNS = dict(zip((*PARTS[:5], "truncations"), "xurync", strict=True))
SHORT = {"observations": "obs", NEXT: "next_obs"}
LONG = {"observations": "observation", "actions": "action", "rewards": "reward", "terminals": "terminated"}
TIANSHOU = {"observations": "obs", "actions": "act", "rewards": "rew", NEXT: "obs_next"}
ROWS, NUMBERS = np.arange(14), np.repeat([4, 2, 7, 5, 3], (3, 4, 2, 3, 2))


@pytest.fixture
def arrays():
    return walk(ends="tctcc")


def assert_same(log, arrays):
    """Compare with the log that the arrays give."""
    expected = sopr_fast.load_log(arrays)
    for part in PARTS:
        np.testing.assert_array_equal(getattr(log, part), getattr(expected, part), err_msg=part)


def renamed(arrays, names):
    return {names.get(key, key): values for key, values in arrays.items()}


def frame_of(arrays, form):
    """Return a data frame with one column for each dimension, or with lists."""
    columns = {}
    for key, values in arrays.items():
        if values.ndim == 1 or form == "lists":
            columns[key] = values if values.ndim == 1 else list(values)
        else:
            columns |= {form.format(key, i): values[:, i] for i in reversed(range(values.shape[1]))}
    return pandas.DataFrame(columns)


def episodes_of(arrays):
    bounds = [0, *np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1]
    return [only(slice(*each), arrays) for each in pairwise(bounds)]


def minari_episodes(arrays):
    """Return episodes as Minari stores them: observations have one row more than actions."""
    names = {"terminals": "terminations", "timeouts": "truncations"}
    episodes = [(one, np.concatenate([one["observations"], one[NEXT][-1:]])) for one in episodes_of(arrays)]
    return [renamed(without(one, NEXT), names) | {"observations": seen} for one, seen in episodes]


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for key, values in flatten(arrays).items():
            file[key] = values


def numbered(episodes, name):
    return {f"{name}{i}": one for i, one in enumerate(episodes)}


def write_folder(path, arrays):
    path.mkdir()
    for key, values in arrays.items():
        np.save(path / f"{key}.npy", values)


def to_json(arrays):
    return {key: x.tolist() for key, x in arrays.items()}


DIGITS = {"orient": "records", "double_precision": 15}
WRITERS = {
    "log.npz": lambda path, arrays: np.savez_compressed(path, **arrays, notes=np.array(["not", "read"])),
    "log.hdf5": lambda path, arrays: write_hdf5(path, arrays | {"metadata/algorithm": "SAC"}),
    "log.pkl": lambda path, arrays: path.write_bytes(pickle.dumps(arrays)),
    "folder": write_folder,
    "episodes.pickle": lambda path, arrays: path.write_bytes(pickle.dumps(episodes_of(arrays))),
    "LOG.CSV": lambda path, arrays: frame_of(arrays, "{}_{}").to_csv(path, index=False),
    "columns.parquet": lambda path, arrays: to_parquet(frame_of(arrays, "{}_{}"), path, row_group_size=5),
    "lists.parquet": lambda path, arrays: to_parquet(
        frame_of(arrays, "lists").assign(episode=pandas.Categorical(NUMBERS)), path, row_group_size=5
    ),
    "log.json": lambda path, arrays: path.write_text(json.dumps(to_json(arrays))),
    "steps.json": lambda path, arrays: frame_of(arrays, "{}_{}").to_json(path, **DIGITS),
    "steps.jsonl": lambda path, arrays: frame_of(arrays, "lists").to_json(path, lines=True, **DIGITS),
    "episodes.json": lambda path, arrays: path.write_text(json.dumps([*map(to_json, episodes_of(arrays))])),
    "rllib.jsonl": lambda path, arrays: path.write_text("\n".join(map(json.dumps, map(to_json, episodes_of(arrays))))),
    "main_data.hdf5": lambda path, arrays: write_hdf5(path, numbered(minari_episodes(arrays), "episode_")),
}


SOURCES = {
    "episodes": episodes_of,
    "frames of episodes": lambda arrays: tuple(frame_of(each, "{}_{}") for each in episodes_of(arrays)),
    "batches": lambda arrays: [only(rows, arrays | {"eps_id": NUMBERS}) for rows in (ROWS < 5, ROWS >= 5)],
    "steps": lambda arrays: [only(row, arrays) for row in ROWS],
    "nested steps": lambda arrays: [only(row, arrays) | {"infos": {"c": row} if row else {}} for row in ROWS],
    "steps of own names": lambda arrays: [only(row, renamed(arrays, OWN)) for row in ROWS],
    "short names": lambda arrays: renamed(arrays, SHORT),
    "long names": lambda arrays: frame_of(renamed(arrays, LONG), "{}_{}"),
    "names of Tianshou": lambda arrays: frame_of(renamed(arrays, TIANSHOU), "{}[{}]"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [*WRITERS, *SOURCES])
def test_every_source_loads_like_its_arrays(kind, tmp_path, arrays):
    source = tmp_path / kind if kind in WRITERS else SOURCES[kind](arrays)
    if kind in WRITERS:
        WRITERS[kind](source, arrays)
    log = sopr_fast.load_log(source, columns=OWN_COLUMNS if "own" in kind else None)
    assert_same(log, arrays)
    log.states[0] = 7  # of its own memory
    if kind in WRITERS:
        np.testing.assert_array_equal(np.asarray(load_states(source), np.float32), arrays["observations"])


def test_arrays_of_a_folder_are_needed_or_not(tmp_path, arrays):
    write_folder(tmp_path / "log", arrays)
    (tmp_path / "log/rewards.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match=r"rewards\.npy: damaged"):
        sopr_fast.load_log(tmp_path / "log")
    (tmp_path / "log/rewards.npy").unlink()
    with pytest.raises(ValueError, match="observations.npy: only states are read, .*; actions and rewards are needed"):
        load_transitions(tmp_path / "log")
    assert sopr_fast.load_log(tmp_path / "log").shape == (14, 3)  # states alone


def test_parts_are_mapped_to_columns(tmp_path, arrays):
    frame, path = frame_of(renamed(arrays, OWN), "{}_{}"), tmp_path / "log.csv"
    frame.to_csv(path, index=False)
    columns = OWN_COLUMNS | {"states": ["x_0", "x_1", "x_2"], "next_states": ("y_0", "y_1", "y_2")}
    for source in (frame, path):
        assert_same(sopr_fast.load_log(source, columns=columns), arrays)
        reordered = load_states(source, columns=["x_2", "x_0"])
        np.testing.assert_array_equal(np.asarray(reordered, np.float32), arrays["observations"][:, [2, 0]])
        assert load_states(source, columns="x_1").shape == (14, 1)
    for wrong, message in (
        ({**columns, "states": "z"}, r"log\.csv: no column 'z' for the states; it has x_"),
        ({"stats": "x"}, "columns name the part 'stats'; a log's parts are states, actions"),
        ({"states": []}, "columns must map parts of the log to names, .* got {'states': "),
        (["x", "r"], r"columns must map parts of the log to names, .* got \['x', 'r'\]"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            sopr_fast.load_log(path, columns=wrong)


def dataset(episodes):
    """Return an object like a dataset of Minari."""
    return SimpleNamespace(id="maze-v0", iterate_episodes=lambda: (SimpleNamespace(**one) for one in episodes))


def test_named_observations_are_joined_in_the_order_of_columns(tmp_path, arrays):
    """States are in two arrays, `a` of one column and `b` of two."""

    def split(one, *names):
        return without(one, *names) | {key: {"a": one[key][:, :1], "b": one[key][:, 1:]} for key in names}

    episodes = [split(one, "observations") for one in minari_episodes(arrays)]
    write_hdf5(tmp_path / "log.hdf5", numbered(episodes, "data/demo_"))  # as robomimic
    for source in (split(arrays, "observations", NEXT), tmp_path / "log.hdf5", dataset(episodes)):
        with pytest.raises(ValueError, match=r"the states have names: choose by .*columns={'states': \['[\w/]*/a', '"):
            sopr_fast.load_log(source)
        log = sopr_fast.load_log(source, columns={"states": ["observations/b", "observations/a"]})
        np.testing.assert_array_equal(log.states, arrays["observations"][:, [1, 2, 0]])
        np.testing.assert_array_equal(log.next_states, arrays[NEXT][:, [1, 2, 0]])
        assert log.episodes.tolist() == [0, 3, 7, 9, 12, 14]


def test_datasets_of_d3rlpy(tmp_path, arrays):
    d3rlpy = needs("d3rlpy")
    terminals, timeouts = (arrays[key].astype(np.float32) for key in ("terminals", "timeouts"))
    parts = [arrays[key] for key in ("observations", "actions", "rewards")]
    episodes = d3rlpy.dataset.EpisodeGenerator(*parts, terminals, timeouts)()
    path = tmp_path / "buffer.h5"
    with open(path, "w+b") as file:
        d3rlpy.dataset.create_infinite_replay_buffer(episodes).dump(file)
    for source in (path, d3rlpy.dataset.MDPDataset(*parts, terminals, timeouts), [*episodes]):
        assert_same(sopr_fast.load_log(source), without(arrays, NEXT))
        np.testing.assert_array_equal(np.asarray(load_states(source)), arrays["observations"])
    with h5py.File(path, "a") as file:
        del file["rewards_1"]
    with pytest.raises(ValueError, match=r"buffer\.h5: episode 1, or step, has no 'rewards'"):
        sopr_fast.load_log(path)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_a_dataset_that_minari_wrote(tmp_path, arrays, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari = needs("minari")
    from gymnasium.spaces import Box
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = [EpisodeBuffer(**{key: [*x] for key, x in one.items()}) for one in minari_episodes(arrays)]
    boxes = {"observation_space": Box(-9, 9, (3,), np.float32), "action_space": Box(-9, 9, (2,), np.float32)}
    made = minari.create_dataset_from_buffers("hopper/made-v0", buffers, **boxes)
    folder = tmp_path / "hopper/made-v0"
    path = folder / "data/main_data.hdf5"
    for source in (made, folder, folder / "data", path):
        assert_same(sopr_fast.load_log(source), arrays)
        np.testing.assert_array_equal(np.asarray(load_states(source)), arrays["observations"])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"main_data\.hdf5: damaged"):
        sopr_fast.load_log(folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"made-v0: a folder is a log if .* the object that minari\.load_dataset"):
        sopr_fast.load_log(folder)


UNEQUAL = [{"observations": np.zeros((n, 1)), "actions": np.zeros((n, 1)), "rewards": np.zeros(4)} for n in (3, 5)]
OBJECTS = {"observations": np.ones((3, 1)), "actions": np.ones(3), "rewards": np.array([None] * 3)}
RAGGED = {"obs": [[1], [1, 2]], "action": [0, 1], "reward": [1, 2]}
NOTHING = dict.fromkeys(("observations", "actions", "rewards", "dones", "pos"))
BUFFER = b"cstable_baselines3.common.buffers\nReplayBuffer\n)\x81" + pickle.dumps(NOTHING, 2)[2:-1] + b"b."
BATCHES = "\n".join(2 * [json.dumps({"batch": {f"p{i}": {"obs": [[1.0]], "rewards": [1.0]} for i in (0, 1)}})])
LISTS = frame_of(walk(), "lists")
UNEVEN = [[1.0, 2.0]] * 11 + [[1.0], [1.0, 2.0, 3.0], [1.0, 2.0]]  # as many numbers as 14 rows of 2 have
UNLIKE = (np.zeros((4, 3)), np.zeros((4, 2)))
THREE = {key: np.zeros(3) for key in ("rewards", "terminations", "truncations")}


WRONG = {  # file → content, message
    "log.csv": [
        ("obs,obs\n1,2\n", "its first line must name the columns, each once"),
        ("obs_0,obs_1,obs_01,action,reward\n1,2,3,4,5\n", "the columns of states leave some out: .*'obs_01'"),
        (",obs_0,reward\n0,1,2\n1,3,4\n", "no array 'actions' .* are Unnamed: 0, obs_0, reward"),
        ("obs_0,action,reward\n1,2,3\n1,2\n", r"'reward' is not finite \(as float32\) at row 1"),
        ("obs_0,action,reward\n1,2,3\n1,5,2,3\n", "Expected 3 fields in line 3, saw 4"),
        ("obs_0,action,reward\n1,5,2,3\n", "numbers with a decimal point: Length of header"),
        ('obs,action,reward\n"[1, 2]",0,1\n', "'obs' must be numbers, got '.1, 2.' at row 0"),
        ("obs_0,action,reward\n1,E11,0\n3,10mg,1\n", "'action' must .*: .*number the words, .*'E11': …"),
        ("obs;action;reward\n2,5;0;1\n", "separated by ';': write commas, or open it by pandas"),
    ],
    "log.json": [("[1, 2]", "expected an object of arrays, or a list of objects")],
    "log.jsonl": [(BATCHES, r"no rewards but in batch/p0 and batch/p1: pass those of one, .item.'batch'..'p0'. for")],
    "log.npz": [(OBJECTS, "'rewards': .*not a plain array .of Python objects, if you trust the file, pass numpy.load")],
    "log.npy": [(OBJECTS, "not a plain array .of Python objects, if you trust the file, pass numpy.load")],
    "log.pkl": [
        (pickle.dumps({"observations": print}), "its pickle names builtins.print; .* load it yourself"),
        (pickle.dumps({"k" * 10**5: {f"_{i}": 0 for i in range(10**5)}}), "name is longer than 400 char"),
        (BUFFER, "ReplayBuffer without observations, actions, rewards, dones, pos"),
        (pickle.dumps(UNEQUAL), "episode 0 has 3 'observations' for 4 'rewards', expected as many"),
        (pickle.dumps([{"x": np.ones((3, 1)), "r": np.ones(3)}]), "episodes hold x, r: rename arrays to names that"),
        (pickle.dumps([RAGGED]), "episode 0 has 0 'obs' for 2 'reward'"),
        (pickle.dumps([{"obs": [1], "rewards": [1]}, {"obs": [1]}]), "episode 1, or step, has no 'rewards'"),
        (pickle.dumps([{"obs_0": 1, "obs_1": 1, "rewards": 1}, {"obs_0": 1, "rewards": 1}]), "step, has no 'obs_1'"),
        (pickle.dumps([{"obs": {"x": 1, "v": 1}, "rewards": 1}, {"obs": {"x": 1}, "rewards": 1}]), "no 'obs/v'"),
    ],
    "log.xlsx": [("", r"expected a log in a file of \.npy, \.npz, .*open others by their library, such as pandas")],
    "log.parquet": [
        (LISTS.assign(actions=UNEVEN), r"'actions': lists of equal .* 2 and 1 at row 11$"),
        (LISTS.assign(rewards=[0.0] * 3 + [None] * 11), "'rewards' has no value at row 3"),
        (LISTS.assign(actions=[[1.0]] * 2 + [None] * 12), "'actions' has no value at row 2$"),
        (pandas.DataFrame({"obs": [[1]] * 70000 + [[None]], "action": 1, "reward": 1}), "'obs' is not .* at row 70000"),
        (LISTS[:0], "'observations' is empty"),
        (b"PAR1" + bytes(200), "damaged"),
    ],
    "dataset": [
        (THREE | {"actions": np.zeros((2, 2)), "observations": np.zeros((4, 3))}, "0 has 2 'actions' for 3"),
        (THREE | {"actions": np.zeros(3), "observations": UNLIKE}, "0 has 0 'obs.*, expected as many"),
    ],
}


@pytest.mark.parametrize(("name", "content", "message"), [(name, *row) for name, rows in WRONG.items() for row in rows])
def test_wrong_files_and_datasets_are_refused_by_name(name, content, message, tmp_path):
    source = tmp_path / name
    if name == "dataset":
        source = dataset([content])
    elif name == "log.npy":
        np.save(source, content, allow_pickle=True)
    elif isinstance(content, dict):
        np.savez(source, **content)
    elif isinstance(content, pandas.DataFrame):
        to_parquet(content, source)
    else:
        if name == "log.parquet":
            needs("pyarrow")
        source.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises((TypeError, ValueError), match=rf"{name}: .*{message}"):
        sopr_fast.load_log(source)


def test_hdf5_values_in_other_files_are_not_read(tmp_path, arrays):
    (tmp_path / "secret").write_bytes(bytes(14 * 3 * 4))
    write_hdf5(tmp_path / "other.hdf5", arrays)
    path, shape, secret = tmp_path / "log.hdf5", (14, 3), [(str(tmp_path / "secret"), 0, 14 * 3 * 4)]
    layout = h5py.VirtualLayout(shape, np.float32)
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "observations", shape)
    link, group = h5py.ExternalLink("other.hdf5", "observations"), h5py.ExternalLink("other.hdf5", "/")
    for refer, message in (
        (lambda file: file.create_dataset("observations", shape, "f4", external=secret), "'observations' refers to"),
        (lambda file: file.create_virtual_dataset("observations", layout), "'observations' refers to other files"),
        (lambda file: file.update({"observations": link}), "no array 'observations'"),
        (lambda file: file.update({"a": group, "observations": h5py.SoftLink("/a/observations")}), "no array 'obs"),
    ):
        with h5py.File(path, "w") as file:
            refer(file)
            file["actions"] = file["rewards"] = np.zeros(14)
        for read in (sopr_fast.load_log, load_states):
            with pytest.raises(ValueError, match=rf"log\.hdf5: {message}"):
                read(path)


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "folder"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loading_takes_no_more_memory_than_was_checked(tmp_path, monkeypatch, name, dtype):
    count, checked, check = 200_000, [], containers.check_size
    arrays = {"observations": np.arange(17.0 * count).reshape(count, 17), "actions": np.ones((count, 6))}
    arrays = {key: np.sqrt(values).astype(dtype) for key, values in (arrays | {"rewards": np.ones(count)}).items()}
    arrays |= {"terminals": np.zeros(count, bool), "timeouts": np.arange(count) % 100 == 99}
    WRITERS[name](tmp_path / name, arrays)
    monkeypatch.setattr(transitions, "check_size", lambda where, size: (checked.append(size), check(where, size)))
    tracemalloc.start()
    log = sopr_fast.load_log(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(log) == 0.99 * count and peak <= checked[0] <= 4 * 4 * 24 * count  # 24 numbers in a row


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "lists.parquet"])
def test_wanted_arrays_larger_than_the_free_memory_are_not_read(tmp_path, arrays, name, monkeypatch):
    WRITERS[name](tmp_path / name, arrays | {"pixels": np.zeros((14, 100_000), np.uint8)})
    monkeypatch.setattr(containers, "free_memory", lambda: 10_000)
    assert_same(sopr_fast.load_log(tmp_path / name), arrays)
    monkeypatch.setattr(containers, "free_memory", lambda: 100)
    with pytest.raises(MemoryError, match=rf"{name}: the log: [\d,]+ bytes when read, larger than the free memory"):
        sopr_fast.load_log(tmp_path / name)


@pytest.mark.parametrize("name", ["log.npz", "log.npy", "log.hdf5", "log.parquet"])
def test_a_pipe_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for read in (load_states, sopr_fast.load_log):
        with pytest.raises(ValueError, match=rf"{name}: not a regular file"):
            read(tmp_path / name)


def write_bomb(path, chunk=(64, 4), deflates=1, payload=1 << 20):
    """Write 64 rows of which a chunk inflates to many times its size, or is far larger than they are."""
    with h5py.File(path, "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk(chunk)
        for _ in range(deflates):
            layout.set_deflate(9)
        space, content = h5py.h5s.create_simple((64, 4), (h5py.h5s.UNLIMITED, 4)), bytes(payload)
        dataset = h5py.h5d.create(file.id, b"observations", h5py.h5t.IEEE_F32LE, space, layout)
        for _ in range(deflates):
            content = zlib.compress(content, 9)
        dataset.write_direct_chunk((0, 0), content)


def write_groups(path, depth=101, name="a"):
    with h5py.File(path, "w") as file:
        for _ in range(depth):
            file = file.create_group(name)


BOUNDED = [  # suffix, function that writes the file, message
    ("hdf5", lambda path: write_bomb(path, (10**7, 4)), "chunks far larger than it"),
    ("hdf5", lambda path: write_bomb(path, deflates=2), "chunks far larger .* packed twice"),
    ("hdf5", lambda path: write_bomb(path, payload=1 << 27), "a chunk inflates to more than its 1,024"),
    ("hdf5", write_groups, "groups more than 100 deep"),
    ("hdf5", lambda path: write_groups(path, 3, "b" * 200), "or a name of more than 400 characters"),
    ("csv", lambda path: path.write_text(f"obs_0,{'1' * 401}x\n1,2\n"), "longer than 400 characters"),
]


@pytest.mark.parametrize(("suffix", "write", "message"), BOUNDED)
def test_what_would_take_far_more_than_its_file_is_refused(suffix, write, message, tmp_path):
    write(tmp_path / f"log.{suffix}")
    with pytest.raises(ValueError, match=rf"log\.{suffix}: .*{message}"):
        load_states(tmp_path / f"log.{suffix}")
