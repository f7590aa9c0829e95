"""Replay buffers of Stable-Baselines3 as logs."""

import warnings

import numpy as np
import pytest

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import load_states


def make_buffer(*, size=8, environments=1, low=-1, high=1, **options):
    pytest.importorskip("stable_baselines3")
    gymnasium = pytest.importorskip("gymnasium")
    from stable_baselines3.common import buffers

    observations = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    actions = gymnasium.spaces.Box(np.full(2, low, np.float32), np.full(2, high, np.float32))
    return buffers.ReplayBuffer(size, observations, actions, device="cpu", n_envs=environments, **options)


def fill(buffer, steps, generator, end=(), cut=()):
    """Add steps; `end` are (step, environment) that terminate, `cut` those that a time limit ends."""
    count = buffer.n_envs
    states, stored = generator.normal(size=(count, 3)).astype(np.float32), []
    for step in range(steps):
        following = generator.normal(size=(count, 3)).astype(np.float32)
        actions, rewards = generator.uniform(-1, 1, (count, 2)), generator.normal(size=count)
        done = np.array([(step, i) in end or (step, i) in cut for i in range(count)])
        infos = [{"TimeLimit.truncated": (step, i) in cut} for i in range(count)]
        buffer.add(states, following, actions, rewards, done, infos)
        stored.append((states, actions, rewards, following))
        states = np.where(done[:, None], generator.normal(size=(count, 3)), following).astype(np.float32)
    return [np.array(part, np.float32) for part in zip(*stored, strict=True)]


def save_buffer(buffer, path):
    from stable_baselines3.common.save_util import save_to_pkl

    save_to_pkl(path, buffer)


def test_a_replay_buffer_of_stable_baselines3(tmp_path):
    buffer, path = make_buffer(), tmp_path / "replay_buffer.pkl"
    stored = fill(buffer, 11, np.random.default_rng(0), end={(5, 0)}, cut={(8, 0)})
    save_buffer(buffer, path)
    log = sopr_fast.load_log(path)  # the ring holds the last 8 of 11 steps, 3 to 10
    for part, values in zip(("states", "actions", "rewards", "next_states"), stored, strict=True):
        np.testing.assert_array_equal(getattr(log, part), values[3:, 0], err_msg=part)
    assert np.flatnonzero(log.terminals).tolist() == [2]
    assert np.flatnonzero(log.timeouts).tolist() == [5, 7]
    np.testing.assert_array_equal(np.asarray(load_states(path)), stored[0][3:, 0])


def test_environments_of_a_replay_buffer_follow_each_other(tmp_path):
    buffer, path = make_buffer(size=20, environments=2), tmp_path / "replay_buffer.pkl"
    states, *_ = fill(buffer, 6, np.random.default_rng(0), end={(2, 1)})
    save_buffer(buffer, path)
    log = sopr_fast.load_log(path)
    np.testing.assert_array_equal(log.states, np.concatenate([states[:, 0], states[:, 1]]))
    assert log.episodes.tolist() == [0, 6, 9, 12]
    assert np.flatnonzero(log.terminals).tolist() == [8]


def test_a_replay_buffer_that_does_not_tell_time_limits_warns(tmp_path):
    path = tmp_path / "replay_buffer.pkl"
    for cut, handle, count in (((3, 0), False, 1), ((9, 0), False, 0), ((3, 0), True, 0)):
        buffer = make_buffer(handle_timeout_termination=handle)
        fill(buffer, 6, np.random.default_rng(0), cut={cut})
        save_buffer(buffer, path)
        with warnings.catch_warnings(record=True, action="always") as caught:
            log = sopr_fast.load_log(path)
        assert [str(w.message).startswith(f"{path}: 'dones' are taken as terminals") for w in caught] == [True] * count
        assert np.flatnonzero(log.terminals).tolist() == [3] * count


def test_actions_of_a_replay_buffer_are_those_that_the_environment_got(tmp_path):
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
    path = tmp_path / "replay_buffer.pkl"
    model.save_replay_buffer(path)
    np.testing.assert_allclose(sopr_fast.load_log(path).actions, taken, rtol=1e-6, atol=1e-6)


def test_actions_of_a_space_without_bounds_or_beyond_1_are_taken_as_they_are(tmp_path):
    buffer, path = make_buffer(low=-np.inf, high=np.inf), tmp_path / "replay_buffer.pkl"
    _, actions, *_ = fill(buffer, 5, np.random.default_rng(0))
    save_buffer(buffer, path)
    np.testing.assert_array_equal(sopr_fast.load_log(path).actions, actions[:, 0])
    buffer, path = make_buffer(low=-2, high=2), tmp_path / "replay_buffer.pkl"
    _, actions, *_ = fill(buffer, 5, np.random.default_rng(0))
    buffer.actions[3] = 1.5
    save_buffer(buffer, path)
    with pytest.warns(UserWarning, match=r"replay_buffer\.pkl: actions up to 1\.5 are taken as they are") as caught:
        log = sopr_fast.load_log(path)
    assert caught[0].filename == __file__
    actions[3] = 1.5
    np.testing.assert_array_equal(log.actions, actions[:, 0])


@pytest.mark.parametrize(("steps", "first"), [(6, 0), (8, 1), (11, 4)])
def test_a_replay_buffer_without_next_observations(tmp_path, steps, first):
    buffer = make_buffer(size=16, environments=2, optimize_memory_usage=True, handle_timeout_termination=False)
    path = tmp_path / "replay_buffer.pkl"
    stored = fill(buffer, steps, np.random.default_rng(0), end={(2, 0), (5, 1)})
    save_buffer(buffer, path)
    with pytest.warns(UserWarning, match="'dones' are taken as terminals, since the buffer was filled with handle_"):
        log = sopr_fast.load_log(path)  # of a full ring of 8 steps, the oldest state was overwritten
    ends = {(2, 0), (5, 1)}  # no next state is known of the last row of each environment, unless it is terminal
    kept = [(step, i) for i in (0, 1) for step in range(first, steps) if step < steps - 1 or (step, i) in ends]
    rows = tuple(np.transpose(kept))
    for part, values in zip(("states", "actions", "rewards"), stored, strict=False):
        np.testing.assert_array_equal(getattr(log, part), values[rows], err_msg=part)
    np.testing.assert_array_equal(log.next_states[~log.terminals], stored[3][rows][~log.terminals])
    assert log.terminals.tolist() == [place in ends for place in kept]


def test_other_pickles_are_refused_by_name(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    spaces = gymnasium.spaces
    observations = spaces.Dict({"camera": spaces.Box(0, 1, (2,)), "joints": spaces.Box(0, 1, (3,))})
    buffer = buffers.DictReplayBuffer(4, observations, spaces.Box(-1, 1, (2,)), device="cpu")
    path, state = tmp_path / "replay_buffer.pkl", {"camera": np.ones((1, 2)), "joints": np.zeros((1, 3))}
    for _ in range(3):
        buffer.add(state, state, np.zeros((1, 2)), np.ones(1), np.zeros(1), [{}])
    save_buffer(buffer, path)
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: the states have names: choose by columns={.*/camera'"):
        sopr_fast.load_log(path)
    columns = {"states": ["observations/joints", "observations/camera"]}
    log = sopr_fast.load_log(path, columns=columns)
    assert log.states.tolist() == log.next_states.tolist() == [[0, 0, 0, 1, 1]] * 3
    save_buffer(make_buffer(), path)
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: an empty replay buffer"):
        sopr_fast.load_log(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"replay_buffer\.pkl: damaged"):
        sopr_fast.load_log(path)
