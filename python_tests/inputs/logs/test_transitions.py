"""Transitions of arrays, dictionaries and replay buffers, and descriptions of them; a walk that other tests share."""

import re

import numpy as np
import pandas
import pytest
import torch
from support.needs import needs
from support.walks import NEXT, only, walk, without

import sopr_fast
from sopr_fast.cli import main as cli
from sopr_fast.inputs.logs import describe, load_states

USUAL = walk(ends="tctcc")


def test_tensors_groups_and_single_rows():
    tensors = {name: torch.from_numpy(values) for name, values in USUAL.items()}
    tensors |= {"actions": np.arange(14), "rewards": tensors["rewards"][:, None].bfloat16()}
    log = sopr_fast.load_log(tensors | {"infos/action_log_probs": np.arange(-14, 0), "infos/qpos": np.zeros((14, 2))})
    for part, expected in (USUAL | {"actions": np.arange(14)[:, None]}).items():
        values = getattr(log, {"observations": "states", NEXT: "next_states"}.get(part, part))
        assert values.dtype == (bool if part in ("terminals", "timeouts") else np.float32)
        np.testing.assert_array_equal(values, expected)
    assert log.log_probs.tolist() == [*range(-14, 0)] and log.episodes.tolist() == [0, 3, 7, 9, 12, 14]
    assert sopr_fast.load_log(only([0], USUAL)).episodes.tolist() == [0, 1]
    single = sopr_fast.load_log(walk([1] * 4, "tctc"))
    assert single.terminals.tolist() == (~single.timeouts).tolist() == [True, False, True, False]


FIFTH = np.arange(14) == 5
EACH = "; pass values.reshape(len(values), -1) if policies read such rows; if axis 0 is of episodes"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rewards", np.zeros(13), "has 13 rows, 'observations' has 14"),
        (
            "actions",
            np.full((14, 2), np.nan),
            "is not finite (as float32) at row 0: fill it, or leave the row out; if rows",
        ),
        ("rewards", np.where(FIFTH, np.inf, 0), "is not finite (as float32) at row 5"),
        ("observations", np.full((14, 3), 1e300), "is not finite (as float32) at row 0"),
        ("actions", np.array([None] * 14), "is not finite (as float32) at row 0"),
        ("observations", np.zeros((0, 3)), "is empty: shape (0, 3)"),
        ("observations", np.zeros((14, 3, 2)), f"must have shape (rows, columns), got (14, 3, 2){EACH}"),
        ("observations", np.zeros((14, 0)), "is empty: shape (14, 0)"),
        (NEXT, np.zeros((14, 4)), "has 4 columns, 'observations' 3"),
        ("rewards", np.zeros((14, 2)), "must have shape (rows,), got (14, 2)"),
        ("terminals", np.full(14, 2), "must be 0 or 1, got 2 at row 0"),
        ("actions", [[1.0], [1.0, 2.0]], "is no array: "),
        ("actions", np.array([[1, 2]] * 13 + [[1]], object), "must be numbers, got lists of shape (2,), but (1,) at"),
        ("rewards", np.full(14, 1e30), "holds 1e+30 at row 0, beyond the supported magnitude 1e+15: leave the row out"),
        ("probabilities", np.zeros(14), "must be above 0, got 0 at row 0"),
        ("probabilities", np.ones((14, 3)), "must have shape (rows,), got (14, 3); pass one value"),
        ("steps", np.array(["NaT"] + ["2020-01-01"] * 13, "M8[D]"), "is not finite (as float32) at row 0: fill it"),
        ("episodes", np.where(FIFTH, np.nan, 0), "has no value at row 5"),
        ("rewards", torch.zeros(14, device="meta"), "is no array: "),
        ("rewards", [10**400] * 14, "must be numbers, got '1000000"),
        ("rewards", np.zeros(14, [("r", float)]), "must be numbers, got dtype [('r', '<f8')]"),
        ("rewards", np.zeros(14, complex), "must be numbers, got dtype complex128"),
        ("actions", np.ma.masked_array(np.ones((14, 2)), np.stack([FIFTH] * 2, 1)), "is not finite"),
        ("log_probs", np.ma.masked_array(np.ones(14), FIFTH), "is not finite"),
        ("timeouts", np.ma.masked_array(np.ones(14), FIFTH), "must be 0 or 1, got nan at row 5"),
    ],
)
def test_wrong_arrays(name, values, message):
    part = {"observations": "states", NEXT: "next_states", "timeouts": "truncations"}.get(name, name)
    for shown, columns in ((name, None), ("x", {part: "x"})):
        expected = re.escape(f"dataset: '{shown}' {message}".replace(name, shown))
        with pytest.raises((TypeError, ValueError), match=expected):
            sopr_fast.load_log(without(USUAL, name) | {shown: values}, columns=columns)


LOADED, LATE = sopr_fast.load_log(USUAL), "columns, ends and max_episode_steps are for logs that are not loaded"
CHANCES = {"pscore": np.full(14, 0.5), "log_probs": np.full(14, -3)}


@pytest.mark.parametrize(
    ("read", "source", "options", "message"),
    [
        (sopr_fast.load_log, USUAL, {"max_episode_steps": 0}, "max_episode_steps must be an integer, 1 or more, got 0"),
        (sopr_fast.load_log, LOADED, {"max_episode_steps": 4}, LATE),
        (sopr_fast.load_log, {}, {}, r"'observations' .*columns={'states': …}.; .* are none"),
        (sopr_fast.load_log, {"obs": np.zeros((3, 1)), "rewards": np.zeros(3)}, {}, "'actions'.* are obs, rewards"),
        (sopr_fast.load_log, {"a\x1b[2J\n\u202eb": [0], "c" * 199: [0]}, {}, r"are a\\x1b\[2J\\n\\u202eb, c{49}…c{50}"),
        (sopr_fast.load_log, ["a.npz", "b.npz"], {}, r"a list of paths, expected one log; of several .*dict\(numpy"),
        (sopr_fast.load_log, USUAL | {"actions": ["left"] * 14}, {}, "'left' at row 0: .*number the words.*'left': …"),
        (sopr_fast.load_log, USUAL | {"actions": [[1], [1, 2]]}, {}, "'actions' is no array: .*; pass a dictionary of"),
        (sopr_fast.load_log, USUAL | CHANCES, {}, "both 'log_probs' and 'pscore', .*'unread': 'pscore'"),
        (load_states, None, {}, "expected a path, array, frame, dictionary or list, got NoneType"),
        (load_states, np.array(3.0), {}, "dataset: 'states' is empty"),
        (load_states, {"a", "b"}, {}, "dataset: 'states' is empty"),
        (load_states, torch.eye(4).to_sparse(), {}, "dataset: 'states' is no array: .*dense"),
        (load_states, pandas.DataFrame(columns=["obs_0", "reward"]), {}, "data frame: 'obs' is empty"),
    ],
)
def test_wrong_logs_states_and_options(read, source, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read(source, **options)


def test_logs_and_states_alone_are_described(tmp_path, capsys):
    """Two episodes have 2 and 3 steps, and returns 3 and 12; state column 1 is constant."""
    states = np.stack([np.arange(5.0), np.full(5, 5)], 1)
    arrays = {"states": states, "next_states": np.stack([np.array([1, 9, 3, 4, 5]), np.full(5, 5)], 1)}
    arrays["rewards"] = np.arange(1.0, 6)
    arrays |= {"actions": np.array([[0, 1, 2], [1, 1, 2], [1, 1, 2], [0, 1, 2], [1, 1, 2]])}
    arrays |= {"terminals": np.array([0, 1, 0, 0, 0]), "timeouts": np.array([0, 0, 0, 0, 1])}
    np.savez(tmp_path / "log.npz", **arrays)
    described = describe(arrays)
    for source in (tmp_path / "log.npz", str(tmp_path / "log.npz"), sopr_fast.load_log(arrays)):
        assert describe(source) == described
    cli.main(["info", str(tmp_path / "log.npz")])
    assert capsys.readouterr().out == f"{described}\n"
    assert [" ".join(line.split()) for line in described.splitlines()] == [
        *("rows: 5", "state columns: 2", "action columns: 3"),
        "episodes: 2 of 2 to 3 steps; 1 ends in a terminal state, 1 is cut; said by 'terminals' and 'timeouts'",
        *("returns of episodes: 3 to 12, mean 7.5", "low high mean std distinct"),
        *("state 0 0 4 2 1.414 100.00%", "state 1 5 5 5 0 constant", "action 0 0 1 0.6 0.4899 40.00%"),
        *("action 1 1 1 1 0 constant", "action 2 2 2 2 0 constant", "reward 1 5 3 1.414 100.00%"),
    ]
    np.savetxt(tmp_path / "x.csv", np.column_stack([states, states]), delimiter=",", header="x,speed,u,v", comments="")
    cli.main(["info", str(tmp_path / "x.csv"), "--columns", "states=x,speed"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["rows: 5", "state columns: 2"] and lines[-1].split()[:2] == ["state", "1"]
    assert lines[2] == "only states are read, since there are no rewards; not read: u, v"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replay_buffer.pkl"


def save_buffer(path, steps, end=(), cut=(), *, size=8, environments=1, bound=1, factor=1, **options):
    """Save a buffer and return its steps; `end` are (step, environment) that terminate, `cut` those cut by a limit."""
    gymnasium, sb3 = needs("gymnasium"), needs("stable_baselines3")
    spaces = [gymnasium.spaces.Box(-most, most, (width,), np.float32) for most, width in ((np.inf, 3), (bound, 2))]
    buffer = sb3.common.buffers.ReplayBuffer(size, *spaces, device="cpu", n_envs=environments, **options)
    random = np.random.default_rng(0)
    states, following = random.normal(size=(2, steps, environments, 3)).astype(np.float32)
    actions = factor * random.uniform(-1, 1, (steps, environments, 2)).astype(np.float32)
    rewards = random.normal(size=(steps, environments)).astype(np.float32)
    done = np.array([[(step, i) in {*end, *cut} for i in range(environments)] for step in range(steps)])
    states[1:] = np.where(done[:-1, :, None], states[1:], following[:-1])
    for step, rows in enumerate(zip(states, following, actions, rewards, done, strict=True)):
        buffer.add(*rows, [{"TimeLimit.truncated": (step, i) in cut} for i in range(environments)])
    sb3.common.save_util.save_to_pkl(path, buffer)
    return states, actions, rewards, following


UNTOLD = {"handle_timeout_termination": False}
TWO = UNTOLD | {"optimize_memory_usage": True, "size": 16, "environments": 2}
BUFFERS = {  # situation → steps, steps that end, steps that a limit cuts, options, first step that is kept
    "ring": (11, [(5, 0)], [(8, 0)], {}, 3),
    "cut": (6, [], [(3, 0)], {}, 0),
    "cut, not told": (6, [], [(3, 0)], UNTOLD, 0),
    "no cut": (6, [], [(9, 0)], UNTOLD, 0),
    "actions without bounds": (5, [], [], {"bound": np.inf}, 0),
    "no next states": (6, [(2, 0), (5, 1)], [], TWO, 0),
    "no next states, full": (8, [(2, 0), (5, 1)], [], TWO, 1),  # the oldest state was overwritten
    "no next states, ring": (11, [(2, 0), (5, 1)], [], TWO, 4),
}


@pytest.mark.parametrize(("steps", "end", "cut", "options", "first"), BUFFERS.values(), ids=BUFFERS)
def test_replay_buffers_of_stable_baselines3(path, steps, end, cut, options, first):
    stored = save_buffer(path, steps, end, cut, **options)
    told = options.get("handle_timeout_termination", True)
    ends, cuts = ({*end}, {*cut}) if told else ({*end, *cut}, set())
    both = range(options.get("environments", 1))
    # Without next states, that of the last row of each environment is unknown, unless it is terminal.
    kept = [(t, i) for i in both for t in range(first, steps) if len(both) == 1 or t < steps - 1 or (t, i) in ends]
    rows = tuple(np.transpose(kept))
    for source in (path, needs("stable_baselines3").common.save_util.load_from_pkl(path)):
        log = sopr_fast.load_log(source, ends=None if told else "terminal")
        for part, values in zip(("states", "actions", "rewards", "next_states"), stored, strict=True):
            where = slice(None) if part != "next_states" else ~log.terminals
            np.testing.assert_array_equal(getattr(log, part)[where], values[rows][where], err_msg=part)
        assert log.terminals.tolist() == [place in ends for place in kept]
        last = {max(place for place in kept if place[1] == i) for i in both}
        assert log.timeouts.tolist() == [place in (cuts | last) - ends for place in kept]
        if not told:
            with pytest.raises(ValueError, match="'dones' alone, nothing says where"):
                sopr_fast.load_log(source)
        if len(both) == 1:
            np.testing.assert_array_equal(np.asarray(load_states(source)), log.states)


def test_actions_of_a_replay_buffer_are_those_that_the_environment_got(path):
    gymnasium, sb3 = needs("gymnasium"), needs("stable_baselines3")
    taken, pendulum = [], gymnasium.make("Pendulum-v1")
    bounds = gymnasium.spaces.Box(-4, 10, (1,))
    environment = gymnasium.wrappers.TransformAction(pendulum, lambda action: taken.append(action) or action, bounds)
    model = sb3.SAC("MlpPolicy", environment, seed=0, device="cpu", buffer_size=40, learning_starts=40).learn(40)
    model.save_replay_buffer(path)
    np.testing.assert_allclose(sopr_fast.load_log(path).actions, taken, rtol=1e-6, atol=1e-6)


def test_other_buffers_are_refused_by_name(path):
    spaces, sb3 = needs("gymnasium").spaces, needs("stable_baselines3")
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
    save_buffer(path, 5, bound=2, factor=3)
    with pytest.raises(ValueError, match=r"actions up to \d\.\d+, but .* a space from -2 to 2 scaled to \[-1, 1\]"):
        sopr_fast.load_log(path)
    empty = sb3.common.buffers.ReplayBuffer(4, observations["joints"], spaces.Box(0, 1), device="cpu")
    sb3.common.save_util.save_to_pkl(path, empty)
    for cut, message in ((None, "an empty replay buffer"), (-40, "damaged")):
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(ValueError, match=rf"replay_buffer\.pkl: {message}"):
            sopr_fast.load_log(path)
