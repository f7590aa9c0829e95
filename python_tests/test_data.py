"""Transitions of arrays, dictionaries and D4RL files, compared with a plain loop over the steps."""

import re
import warnings

import h5py
import numpy as np
import pytest
import torch
from problems import transitions

import sopr_fast.inputs.logs

RNG = np.random.default_rng(0)
FIFTH = np.arange(14) == 5
STEPS = ("states", "actions", "rewards", "terminals")


def d4rl_arrays(lengths=((3, "terminal"), (4, "timeout"), (2, "terminal"), (3, "timeout"), (2, None))):
    """Return a log in D4RL's layout.

    Args:
        lengths: Length and end of each episode.
    """
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
    np.testing.assert_array_equal(log.states, arrays["observations"])
    np.testing.assert_array_equal(log.next_states, arrays["next_observations"])
    np.testing.assert_array_equal(log.actions, arrays["actions"])
    np.testing.assert_array_equal(log.rewards, arrays["rewards"])
    np.testing.assert_array_equal(log.terminals, arrays["terminals"])
    np.testing.assert_array_equal(log.timeouts, arrays["timeouts"])
    np.testing.assert_array_equal(log.log_probs, log_probs.astype(np.float32))
    np.testing.assert_array_equal(log.episodes, [0, 3, 7, 9, 12, 14])
    np.testing.assert_array_equal(log.initial_states, arrays["observations"][[0, 3, 7, 9, 12]])
    assert log.states.dtype == log.rewards.dtype == np.float32 and log.terminals.dtype == bool


def test_missing_next_states_are_the_next_rows_and_steps_without_one_are_dropped():
    arrays = d4rl_arrays()
    successors = arrays.pop("next_observations")
    log = sopr_fast.load_log(arrays)
    # Steps 6, 11 (timeouts) and 13 (end of data) have no known successor; 2 and 8 are terminal.
    kept = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12]
    for t, row in enumerate(kept):
        np.testing.assert_array_equal(log.states[t], arrays["observations"][row])
        np.testing.assert_array_equal(log.actions[t], arrays["actions"][row])
        np.testing.assert_array_equal(
            log.next_states[t], arrays["observations"][row] if row in (2, 8) else successors[row]
        )
        assert log.rewards[t] == arrays["rewards"][row] and log.terminals[t] == (row in (2, 8))
    np.testing.assert_array_equal(log.source, kept)
    assert log.source_count == 14
    np.testing.assert_array_equal(np.flatnonzero(log.timeouts), [5, 9, 10])
    np.testing.assert_array_equal(log.episodes, [0, 3, 6, 8, 10, 11])


def test_the_time_limit_ends_episodes_without_next_states_and_timeouts():
    arrays = d4rl_arrays([(4, "timeout"), (3, "terminal"), (4, "timeout"), (4, "terminal"), (4, "timeout"), (2, None)])
    expected = sopr_fast.load_log({key: values for key, values in arrays.items() if key != "next_observations"})
    del arrays["next_observations"], arrays["timeouts"]
    with pytest.warns(
        UserWarning, match="dataset: neither next states nor timeouts show .*max_episode_steps"
    ) as caught:
        assert len(sopr_fast.load_log(arrays).episodes) == 4
    assert caught[0].filename == __file__
    for limited in (arrays, arrays | {"timeouts": np.zeros(21)}):
        with warnings.catch_warnings(action="error"):
            log = sopr_fast.load_log(limited, max_episode_steps=4)
        for part in ("states", "next_states", "timeouts", "episodes"):
            np.testing.assert_array_equal(getattr(log, part), getattr(expected, part))
    complete = d4rl_arrays([(3, "timeout"), (3, "timeout")])
    del complete["timeouts"]
    assert sopr_fast.load_log(complete, max_episode_steps=4).episodes.tolist() == [0, 3, 6]
    with pytest.raises(ValueError, match="max_episode_steps must be an integer, 1 or more, got 0"):
        sopr_fast.load_log(arrays, max_episode_steps=0)
    with pytest.raises(ValueError, match="rows must be an integer, 1 or more, got 0"):
        sopr_fast.load_log(arrays, rows=0)
    with pytest.raises(ValueError, match="columns and max_episode_steps are for logs that are not loaded yet"):
        sopr_fast.load_log(log, max_episode_steps=4)


def test_reset_states_are_no_next_states_of_time_limits():
    arrays = d4rl_arrays(
        [(4, "timeout"), (3, "terminal"), (4, "timeout"), (1, "timeout"), (4, "timeout"), (2, "terminal")]
    )
    expected = sopr_fast.load_log({key: values for key, values in arrays.items() if key != "next_observations"})
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])[:-1]
    arrays["next_observations"][ends] = arrays["observations"][ends + 1]  # as a vectorised environment returns them
    with pytest.warns(
        UserWarning, match="dataset: at 4 of 4 time limits, the next state is the first state of"
    ) as caught:
        log = sopr_fast.load_log(arrays)
    assert caught[0].filename == __file__
    for part in (*STEPS, "timeouts", "episodes", "source"):
        np.testing.assert_array_equal(getattr(log, part), getattr(expected, part), err_msg=part)
    alive = ~log.terminals
    np.testing.assert_array_equal(log.next_states[alive], expected.next_states[alive])


def test_the_time_limit_ends_episodes_whose_next_states_are_reset_states():
    arrays = d4rl_arrays([(4, "timeout"), (3, "terminal"), (4, "timeout"), (4, "terminal"), (4, "timeout"), (2, None)])
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    arrays["next_observations"][ends] = arrays["observations"][ends + 1]
    del arrays["timeouts"]
    with pytest.warns(UserWarning, match="dataset: at 3 of 3 time limits, the next state is the first state of"):
        log = sopr_fast.load_log(arrays, max_episode_steps=4)
    assert log.source.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19]
    assert log.episodes.tolist() == [0, 3, 6, 9, 13, 16, 17]
    assert np.flatnonzero(log.timeouts).tolist() == [2, 8, 15, 16]


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
    with pytest.warns(
        UserWarning, match="dataset: rows do not follow each other: .*'next_observations' are not"
    ) as caught:
        sopr_fast.load_log(log)
    assert caught[0].filename == __file__ and len(caught) == 1
    with warnings.catch_warnings(action="error"):
        sopr_fast.load_log({key: values for key, values in arrays.items() if key not in parts})
        sopr_fast.load_log(d4rl_arrays([(1, "terminal"), (1, "timeout"), (1, "terminal"), (1, "timeout")]))


def test_a_log_cut_inside_an_episode_beside_marked_timeouts_is_cut_there():
    arrays = d4rl_arrays([(6, "terminal"), (6, "timeout"), (6, "timeout")])
    rows = [*range(15), *range(18)]  # two sessions; the first one stops within its third episode
    with pytest.warns(
        UserWarning, match="dataset: after 1 rows, such as row 14, the next row does not follow"
    ) as caught:
        log = sopr_fast.load_log({key: values[rows] for key, values in arrays.items()})
    assert len(caught) == 1
    assert log.episodes.tolist() == [0, 6, 12, 15, 21, 27, 33]
    assert np.flatnonzero(log.timeouts).tolist() == [11, 14, 26, 32]


def test_the_time_limit_of_a_log_that_shows_it_changes_nothing():
    arrays = d4rl_arrays()
    expected = sopr_fast.load_log(arrays)
    for log in (arrays, {key: values for key, values in arrays.items() if key != "timeouts"}):
        with warnings.catch_warnings(action="error"):
            limited = sopr_fast.load_log(log, max_episode_steps=4)
        np.testing.assert_array_equal(limited.episodes, expected.episodes)
        np.testing.assert_array_equal(limited.source, np.arange(14))
        np.testing.assert_array_equal(limited.next_states, arrays["next_observations"])


def test_a_timed_out_episode_of_one_step_is_dropped():
    arrays = d4rl_arrays([(2, "terminal"), (1, "timeout"), (2, "timeout"), (1, "terminal")])
    del arrays["next_observations"]
    log = sopr_fast.load_log(arrays)
    np.testing.assert_array_equal(log.episodes, [0, 2, 3, 4])
    np.testing.assert_array_equal(log.timeouts, [False, False, True, False])


def test_qlearning_dictionary_splits_where_states_do_not_follow():
    arrays = d4rl_arrays()
    del arrays["timeouts"]
    log = sopr_fast.load_log({key: torch.from_numpy(values) for key, values in arrays.items()})
    np.testing.assert_array_equal(log.episodes, [0, 3, 7, 9, 12, 14])
    np.testing.assert_array_equal(np.flatnonzero(log.timeouts), [6, 11, 13])


def test_columns_half_precision_and_one_dimensional_actions():
    arrays = d4rl_arrays()
    log = transitions(
        torch.from_numpy(arrays["observations"]).bfloat16(),
        np.arange(14),
        arrays["rewards"][:, None],
        arrays["next_observations"],
        arrays["terminals"].astype(float),
    )
    assert log.actions.shape == (14, 1) and log.rewards.shape == (14,) and log.states.dtype == np.float32
    assert log.terminals.sum() == 2 and log.log_probs is None


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"rewards": np.zeros(13)}, ValueError, "dataset: 'rewards' has 13 rows, 'observations' has 14"),
        ({"actions": np.full((14, 2), np.nan)}, ValueError, "dataset: 'actions' is not finite (as float32) at row 0"),
        (
            {"rewards": np.r_[np.zeros(5), np.inf, np.zeros(8)]},
            ValueError,
            "'rewards' is not finite (as float32) at row 5",
        ),
        ({"observations": np.full((14, 3), 1e300)}, ValueError, "'observations' is not finite (as float32) at row 0"),
        ({"actions": np.array([None] * 14)}, ValueError, "dataset: 'actions' is not finite (as float32) at row 0"),
        ({"observations": np.zeros((0, 3))}, ValueError, "dataset: 'observations' is empty: shape (0, 3)"),
        ({"observations": np.zeros((14, 3, 2))}, ValueError, "must have shape (rows, columns), got (14, 3, 2)"),
        ({"observations": np.zeros((14, 0))}, ValueError, "must have shape (rows, columns), got (14, 0)"),
        ({"next_observations": np.zeros((14, 4))}, ValueError, "'next_observations' have 4 columns, 'observations' 3"),
        ({"rewards": np.zeros((14, 2))}, ValueError, "'rewards' must have shape (rows,), got (14, 2)"),
        ({"terminals": np.full(14, 2)}, ValueError, "'terminals' must be 0 or 1, got 2 at row 0"),
        ({"actions": [[1.0], [1.0, 2.0]]}, ValueError, "dataset: 'actions' is no array"),
        ({"rewards": torch.zeros(14, device="meta")}, ValueError, "dataset: 'rewards' is no array: "),
        ({"rewards": [10**400] * 14}, TypeError, "dataset: 'rewards' must be numbers, got dtype object"),
        ({"rewards": np.zeros(14, complex)}, TypeError, "dataset: 'rewards' must be numbers, got dtype complex128"),
        *(
            ({name: np.ma.masked_array(values, FIFTH[:, None] + 0 * values > 0)}, ValueError, f"'{name}' is not finite")
            for name, values in {"observations": np.ones((14, 3)), "actions": np.ones((14, 2))}.items()
        ),
        ({"log_probs": np.ma.masked_array(np.ones(14), FIFTH)}, ValueError, "'log_probs' is not finite"),
        (
            {"timeouts": np.ma.masked_array(np.ones(14), FIFTH)},
            ValueError,
            "'timeouts' must be 0 or 1, got nan at row 5",
        ),
    ],
)
def test_wrong_arrays(change, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sopr_fast.load_log(d4rl_arrays() | change)
    (name,) = change
    columns = {{"observations": "states", "next_observations": "next_states"}.get(name, name): "x"}
    with pytest.raises(error, match=re.escape(message).replace(name, "x")):  # so are mapped ones
        sopr_fast.load_log(
            {"x" if key == name else key: x for key, x in (d4rl_arrays() | change).items()}, columns=columns
        )


@pytest.mark.parametrize("key", ["observations", "actions", "rewards"])
def test_missing_keys(tmp_path, key):
    arrays = d4rl_arrays()
    del arrays[key]
    path = write_hdf5(tmp_path / "log.hdf5", arrays)
    message = rf"no array '{key}'.* there are .*next_observations"
    if key == "rewards":
        message = "'observations': only states; this method needs rewards too: name them by .*columns={'rewards': …}"
    with pytest.raises(ValueError, match=rf"log\.hdf5: {message}"):
        sopr_fast.inputs.logs.load_transitions(path)
    with pytest.raises(
        ValueError,
        match=r"no array 'observations' .*columns={'states': …}\) \(--columns states=…\); the arrays there are none",
    ):
        sopr_fast.load_log({})
    with pytest.raises(ValueError, match=r"the arrays there are a\\x1b\[2J\\n\\u202eb, c{23}…c{24}; name"):
        sopr_fast.load_log({"a\x1b[2J\n\u202eb": np.zeros(3), "c" * 99: np.zeros(3)})
