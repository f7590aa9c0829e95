"""Replay buffers of Stable-Baselines3 as logs."""

import warnings

import numpy as np
import pytest

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import load_states


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
    stored = save_buffer(path, 11, end={(5, 0)}, cut={(8, 0)})
    log = sopr_fast.load_log(path)  # the ring holds the last 8 of 11 steps, 3 to 10
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
