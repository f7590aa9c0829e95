"""Transitions of arrays, dictionaries, D4RL files and replay buffers, and descriptions of them."""

import re
import warnings

import h5py
import numpy as np
import pandas
import pytest
import torch

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


def without(arrays, *names):
    return {key: values for key, values in arrays.items() if key not in names}


def test_d4rl_file(tmp_path):
    arrays, log_probs = d4rl_arrays(), RNG.normal(size=14)
    extra = {"infos/qpos": np.zeros((14, 2)), "infos/action_log_probs": log_probs, "metadata/algorithm": "SAC"}
    log = sopr_fast.load_log(write_hdf5(tmp_path / "hopper.hdf5", arrays | extra))
    names = {"observations": "states", "next_observations": "next_states"}
    for key, values in arrays.items():
        np.testing.assert_array_equal(getattr(log, names.get(key, key)), values, err_msg=key)
    np.testing.assert_array_equal(log.log_probs, log_probs.astype(np.float32))
    np.testing.assert_array_equal(log.initial_states, arrays["observations"][[0, 3, 7, 9, 12]])
    assert log.states.dtype == log.rewards.dtype == np.float32 and log.terminals.dtype == bool


NEXT = "next_observations"
USUAL = d4rl_arrays()
SHORT = d4rl_arrays([(2, "terminal"), (1, "timeout"), (2, "timeout"), (1, "terminal")])
LIMITED = d4rl_arrays([(4, "timeout"), (3, "terminal"), (4, "timeout"), (4, "terminal"), (4, "timeout"), (2, None)])
RESET = d4rl_arrays([(4, "timeout"), (3, "terminal"), (4, "timeout"), (4, "timeout"), (2, "terminal")])
RESET[NEXT][[3, 6, 10, 14]] = RESET["observations"][[4, 7, 11, 15]]  # as a vectorised environment returns them
TWICE = d4rl_arrays([(6, "terminal"), (6, "timeout"), (6, "timeout")])
TWICE = {key: x[[*range(15), *range(18)]] for key, x in TWICE.items()}  # the first session stops inside an episode
TENSORS = {key: torch.from_numpy(values) for key, values in without(USUAL, "timeouts").items()}
TENSORS |= {"actions": np.arange(14), "rewards": TENSORS["rewards"][:, None].bfloat16()}
STILL = {key: np.zeros((12, 2)) for key in ("observations", NEXT, "actions")} | {"rewards": np.zeros(12)}
MIXED = without(USUAL, "terminals", "timeouts") | {"over": USUAL["timeouts"]}
MIXED |= {"done": USUAL["terminals"] | USUAL["timeouts"]}
COLUMNS = {"terminals": "done", "timeouts": "over"}
LIMIT = {"max_episode_steps": 4}
PARTS = {"states": "observations", "actions": "actions", "rewards": "rewards", "next_states": NEXT}
AT_LIMITS = "at 3 of 3 time limits, the next state is the first state of the next episode"
UNMARKED = "after 1 rows, such as row 14, the next row does not follow"
NO_LIMITS, NO_RESETS = without(LIMITED, NEXT, "timeouts"), without(RESET, "timeouts")


@pytest.mark.parametrize(
    ("arrays", "options", "warning", "dropped", "ends", "cuts"),
    [
        (USUAL, {}, "", [], [2, 8], [6, 11]),
        (d4rl_arrays([(1, "terminal"), (1, "timeout")] * 2), {}, "", [], [0, 2], [1, 3]),
        ({key: x[:1] for key, x in USUAL.items()}, {}, "", [], [], []),
        (without(USUAL, NEXT), {}, "", [6, 11, 13], [2, 8], [5, 10, 12]),
        (without(SHORT, NEXT), {}, "", [2, 4], [1, 5], [3]),
        (without(LIMITED, NEXT), {}, "", [3, 10, 18, 20], [6, 14], [2, 9, 17]),
        (NO_LIMITS, LIMIT, "", [3, 10, 18, 20], [6, 14], [2, 9, 17]),
        (NO_LIMITS | {"timeouts": np.zeros(21)}, LIMIT, "", [3, 10, 18, 20], [6, 14], [2, 9, 17]),
        (RESET, {}, AT_LIMITS, [3, 10, 14], [6, 16], [2, 9, 13]),
        (NO_RESETS, LIMIT, AT_LIMITS, [3, 10, 14], [6, 16], [2, 9, 13]),
        (STILL | {"timeouts": np.tile([0, 0, 1], 4)}, {}, "", [], [], [2, 5, 8, 11]),
        (TWICE, {}, UNMARKED, [], [5, 20], [11, 14, 26, 32]),
        (TENSORS, {}, "", [], [2, 8], [6, 11, 13]),
        (MIXED, {"columns": COLUMNS}, "", [], [2, 8], [6, 11]),
        (MIXED, {"columns": without(COLUMNS, "timeouts")}, "ends by 'done' are taken", [], [2, 6, 8, 11], []),
    ],
)
def test_steps_and_ends_of_episodes(arrays, options, warning, dropped, ends, cuts):
    """Ends and cuts are rows of the given arrays; the last episode may just stop."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        log = sopr_fast.load_log(arrays, **options)
    assert all(each.filename == __file__ and f"dataset: {warning}" in str(each.message) for each in caught)
    assert len(caught) == bool(warning)
    count = len(arrays["observations"])
    kept = np.delete(np.arange(count), dropped)
    assert (log.source.tolist(), log.source_count) == (kept.tolist(), count)
    assert log.source[log.terminals].tolist() == ends
    assert log.source[log.timeouts].tolist()[: len(cuts)] == cuts
    last = np.isin(kept, [*ends, *cuts])
    last[-1] = True
    assert log.episodes.tolist() == [0, *np.flatnonzero(last) + 1]
    for part, key in PARTS.items():
        values = np.roll(arrays["observations"], -1, 0) if key == NEXT and key not in arrays else arrays[key]
        expected = torch.as_tensor(values).float().numpy()[kept].reshape(len(kept), -1)
        if key not in arrays:
            expected = np.where(log.terminals[:, None], log.states, expected)
        np.testing.assert_array_equal(getattr(log, part).reshape(len(kept), -1), expected)


def test_limits_that_nothing_marks_and_wrong_options():
    log = without(LIMITED, NEXT, "timeouts")
    with pytest.warns(UserWarning, match="neither next states nor timeouts show .*max_episode_steps") as caught:
        assert len(sopr_fast.load_log(log).episodes) == 4
    assert caught[0].filename == __file__
    loaded, late = sopr_fast.load_log(USUAL), "columns and max_episode_steps are for logs that are not loaded yet"
    for source, options, message in (
        (log, {"max_episode_steps": 0}, "max_episode_steps must be an integer, 1 or more, got 0"),
        (log, {"rows": 0}, "rows must be an integer, 1 or more, got 0"),
        (loaded, {"max_episode_steps": 4}, late),
        (loaded, {"columns": {"states": "x"}}, late),
    ):
        with pytest.raises(ValueError, match=message):
            sopr_fast.load_log(source, **options)


def test_arrays_of_three_axes_are_refused_by_advice_that_works():
    """They may be of episodes, or of environments in turn."""
    log = {key: np.stack([x, x[::-1]], 1) for key, x in d4rl_arrays().items()}
    advice = r"pass .* \[{name: x\[i\] for name, x in log.items\(\)} for i in range\(14\)\], or .* range\(2\)"
    with pytest.raises(ValueError, match=rf"'observations' must have shape .* got \(14, 2, 3\); {advice}"):
        sopr_fast.load_log(log)
    episodes = [{name: x[i] for name, x in log.items()} for i in range(14)]
    for given in (episodes, [{name: x[:, i] for name, x in log.items()} for i in range(2)]):
        assert sopr_fast.load_log(given).source_count == 28


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rewards", np.zeros(13), "has 13 rows, 'observations' has 14"),
        (
            "actions",
            np.full((14, 2), np.nan),
            "is not finite (as float32) at row 0: fill it, or leave the row out; if rows of RLDS",
        ),
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


def test_states_that_are_no_numbers():
    for states, message in (
        (None, "expected a path, array, data frame, dictionary or list, got NoneType"),
        (np.array(3.0), "dataset: 'states' is empty"),
        ({"a", "b"}, "dataset: 'states' must be numbers, got dtype object"),
        (torch.eye(4).to_sparse(), "dataset: 'states' is no array: .*dense"),
        (pandas.DataFrame(columns=["obs_0", "reward"]), "data frame: 'obs' is empty"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            load_states(states)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"'observations' .*columns={'states': …}\) \(--columns states=…\); the arrays there are none"),
        ({"obs": np.zeros((3, 1)), "rewards": np.zeros(3)}, "'actions'.* there are obs, rewards"),
        (pandas.DataFrame([[1, 2]], columns=[["obs", "u"], ["x", ""]]), r"choose by .*columns={'states': 'obs/x'}"),
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


def test_states_alone_are_described(tmp_path, capsys):
    states = arrays()["observations"]
    np.save(tmp_path / "states.npy", states)  # of a file, and of a folder
    table = np.column_stack([states, states])
    np.savetxt(tmp_path / "x.csv", table, delimiter=",", header="x,speed,u,v", comments="")
    for path, *options in ([tmp_path / "states.npy"], [tmp_path], [tmp_path / "x.csv", "--columns", "states=x,speed"]):
        cli.main(["info", str(path), *options])
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
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: the states have names: choose by .*columns={.*/camera'"):
        sopr_fast.load_log(path)
    log = sopr_fast.load_log(path, columns={"states": ["observations/joints", "observations/camera"]})
    assert log.states.tolist() == log.next_states.tolist() == [[0, 0, 0, 1, 1]] * 3
    sb3.common.save_util.save_to_pkl(path, sb3.common.buffers.ReplayBuffer(4, observations["joints"], spaces.Box(0, 1)))
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: an empty replay buffer"):
        sopr_fast.load_log(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: damaged"):
        sopr_fast.load_log(path)
