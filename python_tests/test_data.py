"""Transitions of arrays, dictionaries, D4RL files and replay buffers, and descriptions of them."""

import re
import warnings

import h5py
import numpy as np
import pandas
import pytest
import torch
from problems import transitions

import sopr_fast.inputs.logs
from sopr_fast.cli import main as cli
from sopr_fast.inputs.logs import describe, load_states

RNG = np.random.default_rng(0)
FIFTH = np.arange(14) == 5
STEPS = ("states", "actions", "rewards", "terminals")


def d4rl_arrays(lengths=((3, "terminal"), (4, "timeout"), (2, "terminal"), (3, "timeout"), (2, None))):
    """Return a log in D4RL's layout, of episodes of these lengths and ends."""
    parts = {key: [] for key in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")}
    for length, end in lengths:
        visited = RNG.normal(size=(length + 1, 3)).astype(np.float32)
        parts["observations"].append(visited[:-1])
        parts["next_observations"].append(visited[1:])
        parts["actions"].append(RNG.normal(size=(length, 2)).astype(np.float32))
        parts["rewards"].append(RNG.normal(size=length).astype(np.float32))
        for kind in ("terminal", "timeout"):
            parts[f"{kind}s"].append(np.arange(length) == (length - 1 if end == kind else -1))
    return {key: np.concatenate(values) for key, values in parts.items()}


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    return path


def test_d4rl_file(tmp_path):
    arrays = d4rl_arrays()
    log_probs = RNG.normal(size=14)
    extra = {"infos/qpos": np.zeros((14, 2)), "infos/action_log_probs": log_probs, "metadata/algorithm": "SAC"}
    log = sopr_fast.load_log(write_hdf5(tmp_path / "hopper.hdf5", arrays | extra))
    assert len(log) == 14
    names = {"observations": "states", "next_observations": "next_states"}
    for key, values in arrays.items():
        np.testing.assert_array_equal(getattr(log, names.get(key, key)), values, err_msg=key)
    np.testing.assert_array_equal(log.log_probs, log_probs.astype(np.float32))
    np.testing.assert_array_equal(log.episodes, [0, 3, 7, 9, 12, 14])
    np.testing.assert_array_equal(log.initial_states, arrays["observations"][[0, 3, 7, 9, 12]])
    assert log.states.dtype == log.rewards.dtype == np.float32 and log.terminals.dtype == bool


def test_missing_next_states_are_the_next_rows_and_steps_without_one_are_dropped():
    arrays = d4rl_arrays()
    successors = arrays.pop("next_observations")
    log = sopr_fast.load_log(arrays)
    # Steps 6, 11 (timeouts) and 13 (end of data) have no known successor; 2 and 8 are terminal.
    kept, ends = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12], np.isin(np.arange(14), [2, 8])
    expected = {"states": arrays["observations"], "actions": arrays["actions"], "rewards": arrays["rewards"]}
    expected |= {"next_states": np.where(ends[:, None], arrays["observations"], successors), "terminals": ends}
    for part, values in expected.items():
        np.testing.assert_array_equal(getattr(log, part), values[kept], err_msg=part)
    assert log.source.tolist() == kept and log.source_count == 14
    assert np.flatnonzero(log.timeouts).tolist() == [5, 9, 10] and log.episodes.tolist() == [0, 3, 6, 8, 10, 11]
    arrays = d4rl_arrays([(2, "terminal"), (1, "timeout"), (2, "timeout"), (1, "terminal")])
    del arrays["next_observations"]
    log = sopr_fast.load_log(arrays)
    assert log.episodes.tolist() == [0, 2, 3, 4] and np.flatnonzero(log.timeouts).tolist() == [2]


def test_the_time_limit_ends_episodes_without_next_states_and_timeouts():
    arrays = d4rl_arrays([(4, "timeout"), (3, "terminal"), (4, "timeout"), (4, "terminal"), (4, "timeout"), (2, None)])
    del arrays["next_observations"]
    expected = sopr_fast.load_log(arrays)
    del arrays["timeouts"]
    with pytest.warns(UserWarning, match="neither next states nor timeouts show .*max_episode_steps") as caught:
        assert len(sopr_fast.load_log(arrays).episodes) == 4
    assert caught[0].filename == __file__
    for limited in (arrays, arrays | {"timeouts": np.zeros(21)}):
        with warnings.catch_warnings(action="error"):
            log = sopr_fast.load_log(limited, max_episode_steps=4)
        for part in ("states", "next_states", "timeouts", "episodes"):
            np.testing.assert_array_equal(getattr(log, part), getattr(expected, part))
    for source, options, message in (
        (arrays, {"max_episode_steps": 0}, "max_episode_steps must be an integer, 1 or more, got 0"),
        (arrays, {"rows": 0}, "rows must be an integer, 1 or more, got 0"),
        (log, {"max_episode_steps": 4}, "columns and max_episode_steps are for logs that are not loaded yet"),
        (log, {"columns": {"states": "x"}}, "columns and max_episode_steps are for logs that are not loaded yet"),
    ):
        with pytest.raises(ValueError, match=message):
            sopr_fast.load_log(source, **options)


@pytest.mark.parametrize("options", [{}, {"max_episode_steps": 4}])
def test_reset_states_are_no_next_states_of_time_limits(options):
    arrays = d4rl_arrays([(4, "timeout"), (3, "terminal"), (4, "timeout"), (4, "timeout"), (2, "terminal")])
    expected = sopr_fast.load_log({key: values for key, values in arrays.items() if key != "next_observations"})
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])[:-1]
    arrays["next_observations"][ends] = arrays["observations"][ends + 1]  # as a vectorised environment returns them
    if options:
        del arrays["timeouts"]
    with pytest.warns(UserWarning, match="dataset: at 3 of 3 time limits, the next state is the first state") as caught:
        log = sopr_fast.load_log(arrays, **options)
    assert caught[0].filename == __file__
    for part in (*STEPS, "timeouts", "episodes", "source"):
        np.testing.assert_array_equal(getattr(log, part), getattr(expected, part), err_msg=part)
    alive = ~log.terminals
    np.testing.assert_array_equal(log.next_states[alive], expected.next_states[alive])


def test_constant_states_are_no_reset_states():
    ends = np.tile([0, 0, 1], 4)
    with warnings.catch_warnings(action="error"):
        log = transitions(np.zeros((12, 2)), np.zeros(12), np.zeros(12), np.zeros((12, 2)), None, ends)
    np.testing.assert_array_equal(log.timeouts, ends)


@pytest.mark.parametrize("order", ["shuffled", "in turn"])
@pytest.mark.parametrize("parts", [("timeouts",), ()])
def test_rows_that_do_not_follow_each_other_warn(order, parts):
    arrays = d4rl_arrays([(6, "terminal"), (6, "timeout"), (6, "terminal"), (6, "timeout")])
    rows = np.random.default_rng(1).permutation(24) if order == "shuffled" else np.arange(24).reshape(4, 6).T.ravel()
    log = {key: values[rows] for key, values in arrays.items() if key not in parts}
    with pytest.warns(UserWarning, match="'next_observations' are not .*rows do not follow each other") as caught:
        sopr_fast.load_log(log)
    assert caught[0].filename == __file__ and len(caught) == 1
    with warnings.catch_warnings(action="error"):
        sopr_fast.load_log({key: values for key, values in arrays.items() if key not in parts})
        sopr_fast.load_log(d4rl_arrays([(1, "terminal"), (1, "timeout"), (1, "terminal"), (1, "timeout")]))


def test_a_log_cut_inside_an_episode_beside_marked_timeouts_is_cut_there():
    arrays = d4rl_arrays([(6, "terminal"), (6, "timeout"), (6, "timeout")])
    rows = [*range(15), *range(18)]  # two sessions; the first one stops within its third episode
    with pytest.warns(UserWarning, match="after 1 rows, such as row 14, the next row does not follow") as caught:
        log = sopr_fast.load_log({key: values[rows] for key, values in arrays.items()})
    assert len(caught) == 1
    assert log.episodes.tolist() == [0, 6, 12, 15, 21, 27, 33]
    assert np.flatnonzero(log.timeouts).tolist() == [11, 14, 26, 32]


def test_tensors_half_precision_and_one_dimensional_actions_are_split_where_states_do_not_follow():
    arrays = d4rl_arrays()
    del arrays["timeouts"]
    arrays = {key: torch.from_numpy(values) for key, values in arrays.items()}
    arrays |= {"actions": np.arange(14), "rewards": arrays["rewards"][:, None].bfloat16()}
    log = sopr_fast.load_log(arrays)
    assert log.episodes.tolist() == [0, 3, 7, 9, 12, 14] and np.flatnonzero(log.timeouts).tolist() == [6, 11, 13]
    assert log.actions.shape == (14, 1) and log.rewards.shape == (14,) and log.rewards.dtype == np.float32
    assert log.terminals.sum() == 2 and log.log_probs is None


def test_arrays_of_three_axes_are_refused_by_advice_that_works():
    """They may be of episodes, or of environments in turn."""
    log = {key: np.stack([x, x[::-1]], 1) for key, x in d4rl_arrays().items()}
    advice = r"pass .* \[{name: x\[i\] for name, x in log.items\(\)} for i in range\(14\)\], or .* range\(2\)"
    with pytest.raises(ValueError, match=rf"'observations' must have shape .* got \(14, 2, 3\); {advice}"):
        sopr_fast.load_log(log)
    episodes = [{name: x[i] for name, x in log.items()} for i in range(14)]
    for given in (episodes, [{name: x[:, i] for name, x in log.items()} for i in range(2)]):
        assert sopr_fast.load_log(given).source_count == 28


def test_mapped_dones_may_include_timeouts_too():
    arrays = d4rl_arrays()
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


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rewards", np.zeros(13), "has 13 rows, 'observations' has 14"),
        ("actions", np.full((14, 2), np.nan), "is not finite (as float32) at row 0"),
        ("rewards", np.where(FIFTH, np.inf, 0), "is not finite (as float32) at row 5"),
        ("observations", np.full((14, 3), 1e300), "is not finite (as float32) at row 0"),
        ("actions", np.array([None] * 14), "is not finite (as float32) at row 0"),
        ("observations", np.zeros((0, 3)), "is empty: shape (0, 3)"),
        ("observations", np.zeros((14, 3, 2)), "must have shape (rows, columns), got (14, 3, 2)"),
        ("observations", np.zeros((14, 0)), "must have shape (rows, columns), got (14, 0)"),
        ("next_observations", np.zeros((14, 4)), "have 4 columns, 'observations' 3"),
        ("rewards", np.zeros((14, 2)), "must have shape (rows,), got (14, 2)"),
        ("terminals", np.full(14, 2), "must be 0 or 1, got 2 at row 0"),
        ("actions", [[1.0], [1.0, 2.0]], "is no array"),
        ("rewards", torch.zeros(14, device="meta"), "is no array: "),
        ("rewards", [10**400] * 14, "must be numbers, got dtype object"),
        ("rewards", np.zeros(14, [("r", float)]), "must be numbers, got dtype [('r', '<f8')]; pass {name: x[name] for"),
        ("rewards", np.zeros(14, complex), "must be numbers, got dtype complex128"),
        ("actions", np.ma.masked_array(np.ones((14, 2)), np.stack([FIFTH] * 2, 1)), "is not finite"),
        ("log_probs", np.ma.masked_array(np.ones(14), FIFTH), "is not finite"),
        ("timeouts", np.ma.masked_array(np.ones(14), FIFTH), "must be 0 or 1, got nan at row 5"),
    ],
)
def test_wrong_arrays(name, values, message):
    part = {"observations": "states", "next_observations": "next_states"}.get(name, name)
    mapped = {"x" if key == name else key: x for key, x in (d4rl_arrays() | {name: values}).items()}
    for arrays, columns, shown in ((d4rl_arrays() | {name: values}, None, name), (mapped, {part: "x"}, "x")):
        expected = re.escape(f"dataset: '{shown}' {message}".replace(name, shown))
        with pytest.raises((TypeError, ValueError), match=expected):
            sopr_fast.load_log(arrays, columns=columns)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"'observations' .*columns={'states': …}\) \(--columns states=…\); the arrays there are none"),
        ({"obs": np.zeros((3, 1)), "rewards": np.zeros(3)}, "'actions'.* there are obs, rewards"),
        (pandas.DataFrame([[1, 2]], columns=[["obs", "u"], ["x", ""]]), r"choose by columns={'states': \['obs/x'\]}"),
        ({"a\x1b[2J\n\u202eb": [0], "c" * 199: [0]}, r"'observations' .* there are a\\x1b\[2J\\n\\u202eb, c{49}…c{50}"),
    ],
)
def test_a_log_without_states_or_actions_lists_its_names(arrays, message):
    with pytest.raises(ValueError, match=f"(dataset: no array|data frame: the states have names:) {message}"):
        sopr_fast.load_log(arrays)


def arrays():
    """Two episodes, of 2 and 3 steps, with returns 3 and 12; state column 1 is constant."""
    states = np.array([[0, 5], [1, 5], [2, 5], [3, 5], [4, 5]], np.float32)
    return {
        "observations": states,
        "actions": np.array([[0, 1, 2], [1, 1, 2], [1, 1, 2], [0, 1, 2], [1, 1, 2]], np.float32),
        "rewards": np.array([1, 2, 3, 4, 5], np.float32),
        "next_observations": states + 1,
        "terminals": np.array([0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 1]),
    }


def test_transitions_are_described_from_any_source(tmp_path, capsys):
    path = write_hdf5(tmp_path / "log.hdf5", arrays())
    described = describe(arrays())
    for source in (path, str(path), arrays(), sopr_fast.load_log(path)):
        assert describe(source) == described
    cli.main(["info", str(path)])
    assert capsys.readouterr().out == f"{described}\n"
    assert [" ".join(line.split()) for line in described.splitlines()] == [
        *("rows: 5", "state columns: 2", "action columns: 3"),
        "episodes: 2 of 2 to 3 steps; 1 end in a terminal state, 1 are cut; decided by 'terminals' and 'timeouts'",
        *("returns of episodes: 3 to 12, mean 7.5", "low high mean std", "state 0 0 4 2 1.414", "state 1 5 5 5 0"),
        *("action 0 0 1 0.6 0.4899", "action 1 1 1 1 0", "action 2 2 2 2 0", "reward 1 5 3 1.414"),
    ]


@pytest.mark.parametrize("name", ["", "states.npy", "log.npz", "log.hdf5", "x.csv"])
def test_states_alone_are_described(tmp_path, name, capsys):
    states, path = arrays()["observations"], tmp_path / name
    if name == "states.npy":
        np.save(path, states)
    elif name == "log.npz":
        np.savez(path, obs=states)
    elif name == "log.hdf5":
        write_hdf5(path, {"observations": states})
    elif name == "x.csv":
        np.savetxt(path, np.column_stack([states, states]), delimiter=",", header="x,speed,u,v", comments="")
    else:
        np.save(path / "states.npy", states)  # of a folder
    cli.main(["info", str(path), *(["--columns", "states=x,speed"] if name == "x.csv" else [])])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["rows: 5", "state columns: 2"]
    assert lines[2] == "only states are read, since it has no rewards" and lines[-1].split()[:2] == ["state", "1"]


def save_buffer(path, steps, *, end=(), cut=(), size=8, environments=1, bound=1, change=None, **options):
    """Save a buffer and return its steps; `end` are (step, environment) that terminate, `cut` those cut by a limit."""
    gymnasium, sb3 = pytest.importorskip("gymnasium"), pytest.importorskip("stable_baselines3")
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    actions = gymnasium.spaces.Box(-bound, bound, (2,), np.float32)
    buffer = sb3.common.buffers.ReplayBuffer(size, observations, actions, device="cpu", n_envs=environments, **options)
    generator, stored = np.random.default_rng(0), []
    states = generator.normal(size=(environments, 3)).astype(np.float32)
    for step in range(steps):
        following = generator.normal(size=(environments, 3)).astype(np.float32)
        actions, rewards = generator.uniform(-1, 1, (environments, 2)), generator.normal(size=environments)
        done = np.array([(step, i) in {*end, *cut} for i in range(environments)])
        infos = [{"TimeLimit.truncated": (step, i) in cut} for i in range(environments)]
        buffer.add(states, following, actions, rewards, done, infos)
        stored.append((states, actions, rewards, following))
        states = np.where(done[:, None], generator.normal(size=(environments, 3)), following).astype(np.float32)
    buffer.actions[:1] *= change or 1
    sb3.common.save_util.save_to_pkl(path, buffer)
    return [np.array(part, np.float32) for part in zip(*stored, strict=True)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replay_buffer.pkl"


def test_a_replay_buffer_of_stable_baselines3(path):
    sb3 = pytest.importorskip("stable_baselines3")
    stored = save_buffer(path, 11, end={(5, 0)}, cut={(8, 0)})
    for source in (path, sb3.common.save_util.load_from_pkl(path)):
        log = sopr_fast.load_log(source)  # the ring holds the last 8 of 11 steps, 3 to 10
        for part, values in zip(("states", "actions", "rewards", "next_states"), stored, strict=True):
            np.testing.assert_array_equal(getattr(log, part), values[3:, 0], err_msg=part)
        assert np.flatnonzero(log.terminals).tolist() == [2]
        assert np.flatnonzero(log.timeouts).tolist() == [5, 7]
    np.testing.assert_array_equal(np.asarray(load_states(path)), stored[0][3:, 0])


@pytest.mark.parametrize(("cut", "handle", "count"), [((3, 0), False, 1), ((9, 0), False, 0), ((3, 0), True, 0)])
def test_a_replay_buffer_that_does_not_tell_time_limits_warns(path, cut, handle, count):
    save_buffer(path, 6, cut={cut}, handle_timeout_termination=handle)
    with warnings.catch_warnings(record=True, action="always") as caught:
        log = sopr_fast.load_log(path)
    assert [str(w.message).startswith(f"{path}: 'dones' are taken as terminals") for w in caught] == [True] * count
    assert np.flatnonzero(log.terminals).tolist() == [3] * count


def test_actions_of_a_replay_buffer_are_those_that_the_environment_got(path):
    gymnasium = pytest.importorskip("gymnasium")
    algorithms = pytest.importorskip("stable_baselines3")
    taken = []

    class Environment(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-5, 5, (3,), np.float32)
        action_space = gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.normal(size=3).astype(np.float32), {}

        def step(self, action):
            taken.append(action.copy())
            return self.np_random.normal(size=3).astype(np.float32), 0.0, False, False, {}

    model = algorithms.SAC("MlpPolicy", Environment(), seed=0, device="cpu", buffer_size=40, learning_starts=40)
    model.learn(40)
    model.save_replay_buffer(path)
    np.testing.assert_allclose(sopr_fast.load_log(path).actions, taken, rtol=1e-6, atol=1e-6)


def test_actions_of_a_space_without_bounds_or_beyond_1_are_taken_as_they_are(path):
    _, actions, *_ = save_buffer(path, 5, bound=np.inf)
    np.testing.assert_array_equal(sopr_fast.load_log(path).actions, actions[:, 0])
    _, actions, *_ = save_buffer(path, 5, bound=2, change=3)
    with pytest.warns(UserWarning, match=r"replay_buffer\.pkl: actions up to \d\.\d+ are taken as they are") as caught:
        log = sopr_fast.load_log(path)
    assert caught[0].filename == __file__
    np.testing.assert_allclose(log.actions, np.concatenate([3 * actions[:1, 0], actions[1:, 0]]), rtol=1e-6)


@pytest.mark.parametrize(("steps", "first"), [(6, 0), (8, 1), (11, 4)])
def test_a_replay_buffer_without_next_observations(path, steps, first):
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    stored = save_buffer(path, steps, end={(2, 0), (5, 1)}, size=16, environments=2, **options)
    with pytest.warns(UserWarning, match="'dones' are taken as terminals, since the buffer was filled with handle_"):
        log = sopr_fast.load_log(path)  # of a full ring of 8 steps, the oldest state was overwritten
    ends = {(2, 0), (5, 1)}  # no next state is known of the last row of each environment, unless it is terminal
    kept = [(step, i) for i in (0, 1) for step in range(first, steps) if step < steps - 1 or (step, i) in ends]
    rows = tuple(np.transpose(kept))
    for part, values in zip(("states", "actions", "rewards"), stored, strict=False):
        np.testing.assert_array_equal(getattr(log, part), values[rows], err_msg=part)
    np.testing.assert_array_equal(log.next_states[~log.terminals], stored[3][rows][~log.terminals])
    assert log.terminals.tolist() == [place in ends for place in kept]


def test_other_buffers_are_refused_by_name(path):
    spaces = pytest.importorskip("gymnasium").spaces
    sb3 = pytest.importorskip("stable_baselines3")
    observations = spaces.Dict({"camera": spaces.Box(0, 1, (2,)), "joints": spaces.Box(0, 1, (3,))})
    buffer = sb3.common.buffers.DictReplayBuffer(4, observations, spaces.Box(-1, 1, (2,)), device="cpu")
    state = {"camera": np.ones((1, 2)), "joints": np.zeros((1, 3))}
    for _ in range(3):
        buffer.add(state, state, np.zeros((1, 2)), np.ones(1), np.zeros(1), [{}])
    sb3.common.save_util.save_to_pkl(path, buffer)
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: the states have names: choose by columns={.*/camera'"):
        sopr_fast.load_log(path)
    log = sopr_fast.load_log(path, columns={"states": ["observations/joints", "observations/camera"]})
    assert log.states.tolist() == log.next_states.tolist() == [[0, 0, 0, 1, 1]] * 3
    sb3.common.save_util.save_to_pkl(path, sb3.common.buffers.ReplayBuffer(4, observations["joints"], spaces.Box(0, 1)))
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: an empty replay buffer"):
        sopr_fast.load_log(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: damaged"):
        sopr_fast.load_log(path)
