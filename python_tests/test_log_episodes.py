"""Where episodes end: names of ends, contradictions, trajectories that go on, ids, buffers, and one-step episodes."""

import re
import warnings
from dataclasses import replace
from itertools import pairwise

import h5py
import numpy as np
import pandas
import pytest

import sopr_fast
from sopr_fast.estimators import FQE, DualDICE, ImportanceWeighting
from sopr_fast.inputs.logs import describe
from sopr_fast.inputs.policies import Probabilities

LENGTHS = (5, 3, 6, 4)
ENDS = np.cumsum(LENGTHS) - 1
COUNT = sum(LENGTHS)
FELL = np.isin(np.arange(COUNT), ENDS[[0, 2]])  # the other two episodes are cut
LAST = np.isin(np.arange(COUNT), ENDS)


def walk(*, next_states=True, seed=0):
    """Return four episodes of a walk with small steps that begins near 0."""
    random = np.random.default_rng(seed)
    states = np.concatenate([np.cumsum(random.uniform(0.5, 1, (n + 1, 2)), 0) for n in LENGTHS])
    first = np.concatenate(
        [np.arange(n) + n_before for n, n_before in zip(LENGTHS, np.cumsum([0, 6, 4, 7]), strict=True)]
    )
    log = {"observations": states[first], "actions": random.normal(size=(COUNT, 1)), "rewards": np.ones(COUNT)}
    return log | ({"next_observations": states[first + 1]} if next_states else {})


def load(log, quiet=True, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error" if quiet else "ignore")
        return sopr_fast.load_log(log, **options)


@pytest.mark.parametrize(
    ("flags", "terminals"),
    [
        ({"masks": ~FELL, "dones_float": LAST}, FELL),
        ({"not_done": ~FELL}, FELL),
        ({"terminals": FELL, "episode_terminals": LAST}, FELL),
        ({"is_terminal": FELL, "is_last": LAST}, FELL),
        ({"terminated": FELL, "truncated": LAST & ~FELL, "done": LAST}, FELL),
        ({"dones": LAST, "timeouts": LAST & ~FELL}, FELL),
        ({"terminateds": FELL, "episode_starts": np.roll(LAST, 1)}, FELL),
        ({"terminals": FELL, "traj": np.repeat([7, 3, 5, 1], LENGTHS)}, FELL),
        ({"dones": FELL, "traj": np.repeat([7, 3, 5, 1], LENGTHS)}, FELL),
        ({"terminals": FELL, "episodeId": np.repeat([7, 3, 5, 1], LENGTHS)}, FELL),
        ({"Terminated": FELL, "Episode ID": np.repeat(["d", "b", "c", "a"], LENGTHS)}, FELL),
        ({"terminals": FELL, "step": np.concatenate([np.arange(n) for n in LENGTHS])}, FELL),
    ],
    ids=lambda flags: "+".join(flags) if isinstance(flags, dict) else "",
)
def test_every_name_has_its_meaning(flags, terminals):
    log = load(walk() | flags)
    np.testing.assert_array_equal(log.terminals, terminals)
    np.testing.assert_array_equal(log.episodes[1:] - 1, ENDS)
    assert log.verdict.startswith("episodes: 4 of 3 to 6 steps; 2 end in a terminal state, 2 are cut; decided by ")
    assert all(repr(name) in log.verdict for name in flags)


@pytest.mark.parametrize("name", ["episode_terminals", "is_last", "dones", "done"])
def test_ends_that_may_be_time_limits_are_taken_as_terminals_with_a_warning(name):
    with pytest.warns(UserWarning, match=f"dataset: ends by '{name}' are taken as terminals; if a time limit cut"):
        log = sopr_fast.load_log(walk() | {name: LAST})
    np.testing.assert_array_equal(log.terminals, LAST)
    limited = load(walk() | {name: LAST}, max_episode_steps=6)
    assert np.flatnonzero(limited.terminals).tolist() == [ENDS[0], ENDS[1], ENDS[3]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"terminals": FELL, "terminated": LAST}, "'terminals' and 'terminated' both mean the terminals and disagree"),
        ({"masks": FELL, "terminals": FELL}, "'terminals' and 'masks' both mean the terminals and disagree"),
        ({"terminals": FELL, "dones": LAST & False}, "'terminals' mark 2 ends that 'dones' do not"),
        ({"obs": np.zeros((COUNT, 2))}, "'observations' and 'obs' both mean the states and disagree"),
        ({"timeouts": LAST, "truncated": FELL}, "'timeouts' and 'truncated' both mean the timeouts and disagree"),
    ],
)
def test_names_that_disagree_are_refused_by_advice_that_works(flags, message):
    with pytest.raises(ValueError, match=f"dataset: {message}; choose one by columns=") as raised:
        sopr_fast.load_log(walk() | flags)
    part, name = re.search(r"columns={'(\w+)': '(\w+)'}", str(raised.value)).groups()
    assert len(load(walk() | flags, quiet=False, columns={part: name})) == COUNT


@pytest.mark.parametrize(
    "flags", [{"absorbing": FELL}, {"crashed": FELL.astype(float)}, {"Episode.End": LAST}, {"x": FELL}]
)
def test_unread_arrays_that_look_like_ends_are_named(flags):
    (name,) = flags
    with pytest.warns(UserWarning, match=f"dataset: not read, but looks like ends of .*: '{name}'; if so") as caught:
        assert f"; not read, but like ends or numbers of episodes: {name}\n" in describe(walk() | flags)
    assert caught
    np.testing.assert_array_equal(load(walk() | flags, columns={"terminals": name}).terminals, flags[name])
    quiet = load(walk() | {"terminals": FELL, "x": LAST, "constant": np.ones(COUNT)})
    assert quiet.verdict.endswith(
        "ends or numbers of episodes: x"
    )  # its name tells nothing, and other arrays mark the ends


@pytest.mark.parametrize(
    ("name", "values", "part"),
    [
        ("infos/TimeLimit.truncated", LAST & ~FELL, "timeouts"),
        ("infos/timeouts", LAST & ~FELL, "timeouts"),
        ("patient_id", np.repeat([4, 2, 9, 7], LENGTHS), "episodes"),
        ("icustayid", np.repeat([4, 2, 9, 7], LENGTHS), "episodes"),
    ],
)
def test_what_an_unread_array_is_advised_to_be(name, values, part):
    given = walk(next_states=False) | {"done": LAST if part == "timeouts" else FELL, name: values}
    with pytest.warns(UserWarning, match=rf"looks like .*: '{name}'; .* columns={{'{part}': '{name}'}}\)"):
        sopr_fast.load_log(given)
    log = load(given, quiet=False, columns={part: name})
    np.testing.assert_allclose(log.states[log.terminals], given["observations"][FELL], rtol=1e-6)
    assert len(log.episodes) == 5


def test_steps_without_numbers_of_episodes_must_count_up():
    order = np.random.default_rng(0).permutation(COUNT)
    steps = np.concatenate([np.arange(n) for n in LENGTHS])
    given = {key: values[order] for key, values in (walk(next_states=False) | {"t": steps}).items()}
    with pytest.warns(UserWarning, match="'t' does not count steps up from its smallest, so that rows are shuffled"):
        log = sopr_fast.load_log(given)
    assert len(log.episodes) == 2  # no end is made up
    assert len(load(given | {"episode": np.repeat(range(4), LENGTHS)[order]}, quiet=False).episodes) == 5


LONG = np.arange(20, 60)  # lengths of episodes
LONG_ENDS = np.isin(np.arange(LONG.sum()), np.cumsum(LONG) - 1)


def long_log(**parts):
    """Return forty episodes of a walk by small steps, without next states."""
    random = np.random.default_rng(0)
    states = np.concatenate([np.cumsum(random.normal(size=(n, 3)), 0) + 0.5 for n in LONG])
    log = {"observations": states, "actions": random.normal(size=(len(states), 1)), "rewards": states[:, 0]}
    return log | {"terminals": LONG_ENDS & False, "timeouts": LONG_ENDS} | parts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: {key: x[np.random.default_rng(1).permutation(len(x))] for key, x in log.items()}, "as far from"),
        (lambda log: log | {"terminals": LONG_ENDS}, "'terminals' mark all 40 rows of 'timeouts' too, as 'dones' do"),
        (
            lambda log: (
                log
                | {
                    key: np.where((np.arange(1580) % 79 > 70).reshape(-1, *[1] * (log[key].ndim - 1)), 0, x)
                    for key, x in log.items()
                    if key in ("observations", "actions", "rewards")
                }
            ),
            "rows, such as row 6., are 0 in everything, as where episodes are",
        ),
        (
            lambda log: {
                key: x[np.arange(1580) % 9 != 4]
                for key, x in (
                    log | {"episode": np.repeat(range(40), LONG), "step": np.concatenate([*map(np.arange, LONG)])}
                ).items()
            },
            "steps are missing, such as after 'step' 3, which 5 follows",
        ),
        (
            lambda log: log | {"ep_len": LONG},
            "ep_len: lengths or bounds of episodes are not read: add",
        ),
    ],
)
def test_what_tells_that_rows_are_wrong_is_questioned(change, message):
    assert len(load(long_log()).episodes) == 41
    with pytest.warns(UserWarning, match=message):
        sopr_fast.load_log(change(long_log()))


def test_terminals_at_the_same_greatest_length_may_be_time_limits():
    random, ends = np.random.default_rng(0), np.arange(1580) % 79 == 78
    states = np.cumsum(random.normal(size=(20, 79, 3)), 1).reshape(-1, 3) + 100 * (np.arange(1580) // 79 % 2)[:, None]
    given = {"observations": states, "actions": states[:, :1], "rewards": states[:, 0], "terminals": ends}
    with pytest.warns(UserWarning, match="ends by 'terminals' are taken as terminals; if a time limit cut"):
        sopr_fast.load_log(given)
    assert not load(given, max_episode_steps=79).terminals.any()


@pytest.mark.parametrize("name", ["discount", "continues", "nonterminals", "mask"])
def test_flags_that_mark_ends_with_0_are_advised_as_they_are_read(name):
    given = walk() | {name: 0.99 * ~FELL if name == "discount" else ~FELL}
    with pytest.warns(UserWarning, match=f"columns={{'terminals': '{name}'}}.*; 0 marks ends there"):
        sopr_fast.load_log(given)
    np.testing.assert_array_equal(load(given, columns={"terminals": name}).terminals, FELL)


def test_rows_without_next_states_are_the_last_ones_of_their_episodes():
    given = walk() | {"terminals": FELL}
    given["next_observations"][LAST] = np.nan
    log = load(given)
    assert np.diff(log.episodes).tolist() == [5, 2, 6, 3] and log.terminals.sum() == 2


def test_rows_that_pad_episodes_are_left_out():
    given = walk() | {"terminals": FELL, "timeouts": LAST & ~FELL}
    rows = np.insert(np.arange(COUNT), ENDS + 1, 0)
    padded = {key: x[rows] for key, x in given.items()} | {"valid": ~np.isin(np.arange(22), ENDS + 1 + np.arange(4))}
    np.testing.assert_array_equal(load(padded).states, load(given).states)


def test_numbers_of_episodes_that_begin_again_in_another_file_are_told_by_flags():
    given = walk(next_states=False) | {"dones": LAST, "timeouts": LAST & ~FELL, "episode": np.repeat(range(4), LENGTHS)}
    assert len(load({key: np.concatenate([x, x]) for key, x in given.items()}).episodes) == 9


STEPS = np.concatenate([np.arange(n) for n in LENGTHS])
IDS = np.repeat(range(4), LENGTHS)
ROWS = np.arange(COUNT)
FIRST = np.roll(LAST, 1)
REWARDS = np.where(STEPS == 0, 0.0, 1.5)
NUMBERED = {f"obs_{i}": walk()["observations"][:, i] for i in range(2)}
NUMBERED |= {f"next_obs_{i}": walk()["next_observations"][:, i] for i in range(2)}


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize(
    ("extra", "ends"),
    [
        ({"episode": ROWS, "done": 0 * LAST}, None),
        ({"episode": ROWS, "done": LAST}, LAST),
        ({"episode_id": ROWS, "terminals": FELL, "timeouts": LAST & ~FELL}, LAST),
        ({"episode": ROWS, "step": STEPS}, LAST),
    ],
)
def test_numbers_of_rows_are_no_numbers_of_episodes(extra, ends, following):
    given = walk(next_states=following) | extra
    with pytest.warns(UserWarning, match="dataset: 'episode.*' differs in each row, but .*, so that it counts rows"):
        log = sopr_fast.load_log(given)
    assert len(log.episodes) == (5 if ends is not None or following else 2)
    assert len(load(given, max_episode_steps=1).episodes) == COUNT + 1
    assert len(load(given | {"done": LAST | True, "terminals": LAST | True}, quiet=False).episodes) == COUNT + 1


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("extra", [{"done": FIRST}, {"terminals": FELL, "is_last": FIRST}])
def test_flags_of_first_rows_are_refused_by_advice_that_works(extra, following):
    given = walk(next_states=following) | {"episode": IDS} | extra
    with pytest.raises(ValueError, match="dataset: '.*' marks the first rows of episodes, not the last ones") as raised:
        sopr_fast.load_log(given)
    part, name = re.search(r"columns={'(\w+)': '(\w+)'}", str(raised.value)).groups()
    assert len(load(given, quiet=False, columns={part: name}).episodes) == 5


@pytest.mark.parametrize(
    ("following", "extra", "message"),
    [
        (
            False,
            {"episode": ROWS // 9, "done": LAST},
            "'done' marks 3 rows, such as row 4, inside of episodes by 'episode'",
        ),
        (False, {"done": FIRST}, "'done' marks the first row and not the last: if .*'first': 'done'}"),
        (False, {"done": 0 * LAST}, "neither next states nor timeouts show where a time limit cut"),
        (False, {"terminals": 0 * FELL, "truncated": 0 * LAST}, "neither next states nor timeouts show"),
        (True, {"terminals": FELL, "rewards": REWARDS}, "'rewards' are 0 in the first row of each episode and seldom"),
    ],
)
def test_what_may_be_read_wrong_is_questioned(following, extra, message):
    with pytest.warns(UserWarning, match=f"dataset: {message}"):
        sopr_fast.load_log(walk(next_states=following) | extra)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"obs_1": "obs_2"},
            r"the columns obs_0, obs_2 leave some out: add these, or .* columns={'states': \['obs_0', 'obs_2'\]}",
        ),
        ({"obs_0": "obs[3]", "obs_1": "obs[4]"}, r"the columns obs\[3\], obs\[4\] leave some out"),
        ({"next_obs_1": "next_obs_2"}, "the columns next_obs_0, next_obs_2 leave some out: .*={'next_states': "),
        ({"obs_0": "obs"}, r"there are 'obs' and 'obs_1'; name those of the states by columns={'states': \['obs_1'\]}"),
        ({name: name.replace("1", "2").replace("0", "1") for name in NUMBERED}, None),
    ],
)
def test_numbers_of_columns_have_no_gap(names, message, tmp_path):
    frame = pandas.DataFrame({names.get(name, name): x for name, x in NUMBERED.items()})
    frame = frame.assign(action=0.0, reward=1.0, terminated=FELL)
    frame.to_csv(tmp_path / "log.csv", index=False)
    for source in (frame, tmp_path / "log.csv"):
        if message is None:
            np.testing.assert_allclose(load(source, quiet=False).states, walk()["observations"], rtol=1e-6)
            continue
        for read in (sopr_fast.load_log, sopr_fast.inputs.logs.load_states)[: 1 if "next" in message else 2]:
            with pytest.raises(ValueError, match=message):
                read(source)
    if message is not None and "obs_1" in names:
        columns = {"states": [names.get("obs_0", "obs_0"), names["obs_1"]], "next_states": ["next_obs_0", "next_obs_1"]}
        assert load(frame, columns=columns).states.shape == (COUNT, 2)


def goals(*, limits=True, following=True, apart=False):
    """Return 30 trajectories of 50 steps that stay in a goal region, or pass it, which marks their rows as terminal."""
    random, rows = np.random.default_rng(0), []
    for _ in range(30):
        x = 0.0
        for t in range(50):
            after = x + 0.05 * random.uniform(0, 1)
            rows.append(([x], [0.0], after, 0.4 < x < 0.45 if apart else x > 0.9, t == 49, [after]))
            x = after
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    log = {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    return {name: x for name, x in log.items() if (limits or name != "timeouts") and (following or "next" not in name)}


@pytest.mark.parametrize("limits", [True, False])
@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_terminal_rows_that_a_trajectory_leaves_begin_no_episode(limits, following, apart):
    given = goals(limits=limits, following=following, apart=apart)
    message = r"after \d+ terminal rows \('terminals'\), such as row \d+, the trajectory goes on"
    if not (limits or following) and apart:
        given["episode"] = np.repeat(np.arange(30), 50)  # nothing else tells where they end
    with pytest.warns(UserWarning, match=message):
        log = sopr_fast.load_log(given)
    assert len(log.episodes) == 31 and (log.initial_states == 0).all()
    assert "they go on after" in log.verdict and log.terminals.sum() > 30 * 0.5


def test_ends_of_environments_that_reset_themselves_are_ends():
    log = walk()
    log["next_observations"][ENDS[:-1]] = log["observations"][ENDS[:-1] + 1]
    assert load(log | {"terminals": LAST, "timeouts": 0 * LAST}).episodes[1:].tolist() == (ENDS + 1).tolist()
    with pytest.warns(UserWarning, match="neither next states nor timeouts show where a time limit cut"):
        sopr_fast.load_log(log | {"terminals": LAST})  # some of which may have been cut and not marked
    discrete = np.eye(3)[np.random.default_rng(0).integers(0, 3, 400)]
    ends = np.arange(400) % 8 == 7
    table = {
        "obs": discrete,
        "actions": np.zeros(400),
        "rewards": np.ones(400),
        "terminals": ends,
        "timeouts": 0 * ends,
    }
    assert len(load(table).episodes) == 51


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("end", ["terminals", "timeouts", "dones"])
def test_steps_of_vector_environments_that_only_reset_them_are_left_out(following, end):
    """As with gymnasium's AutoresetMode.NEXT_STEP: the last state leads to the next first one, with reward 0."""
    random = np.random.default_rng(0)
    episodes = [np.cumsum(random.uniform(0.5, 1, (n + 1, 2)), 0) for n in (12, 9, 15, 12)]
    states = np.concatenate(episodes)
    last = np.isin(np.arange(len(states)), np.cumsum([len(x) for x in episodes]) - 1)
    log = {"observations": states, "actions": random.normal(size=len(states)), "rewards": 1.0 - last}
    log |= {"terminals": np.zeros(len(states)), "timeouts": np.zeros(len(states))} if end != "dones" else {}
    log[end] = np.append(last[1:], False)
    log |= {"next_observations": np.roll(states, -1, 0)} if following else {}
    log = {key: values[:-1] for key, values in log.items()}
    with pytest.warns(UserWarning, match="dataset: 3 rows after ends, such as row 12, are left out: with reward 0"):
        loaded = sopr_fast.load_log(log)
    kept = [x[: -1 if following or end != "timeouts" else -2] for x in episodes]
    assert [len(x) for x in kept] == np.diff(loaded.episodes).tolist()
    np.testing.assert_array_equal(loaded.states, np.concatenate(kept).astype(np.float32))
    assert not np.isin(loaded.source, np.flatnonzero(last)).any()


@pytest.mark.parametrize(
    "flags", [{"terminals": np.arange(1, 401) % 10 == 0}, {"done": np.ones(400)}, {"episode": np.arange(400)}]
)
def test_finite_horizons_and_one_step_episodes_are_no_time_limits(flags):
    random = np.random.default_rng(0)
    log = {"observations": random.normal(size=(400, 2)), "actions": random.normal(size=400), "rewards": np.ones(400)}
    assert load(log | flags).terminals.sum() in (40, 400)


def test_short_episodes_in_discrete_states_do_not_go_on():
    """As in a game of cards, most of whose rows are terminal."""
    random = np.random.default_rng(0)
    ended = random.random(2000) < 0.7
    log = {"observations": random.integers(0, 20, 2000), "actions": np.zeros(2000), "rewards": np.ones(2000)}
    assert len(load(log | {"terminals": ended, "timeouts": np.zeros(2000)}).episodes) - 1 == ended[:-1].sum() + 1


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("ids", [[104, 7, 33, 12], ["d", "b", "c", "a"]])
def test_clinical_tables_are_sorted_by_patient_and_step(ids, shuffled, tmp_path):
    """Stays differ in length, and the only reward is that of the last step."""
    steps = np.concatenate([np.arange(n) for n in LENGTHS])
    frame = pandas.DataFrame(walk(next_states=False)["observations"], columns=["lactate", "pressure"])
    frame = frame.assign(patient=np.repeat(ids, LENGTHS), hour=4 * steps, action=steps % 3, reward=15.0 * LAST)
    rows = np.random.default_rng(1).permutation(COUNT) if shuffled else np.arange(COUNT)
    table = frame.iloc[rows].reset_index(drop=True)
    table.to_csv(tmp_path / "stays.csv", index=False, sep=";", decimal=",")
    columns = {"states": ["lactate", "pressure"], "episodes": "patient", "steps": "hour"}
    for source in (table, tmp_path / "stays.csv"):
        with pytest.warns(UserWarning, match="ends by 'patient' are taken as terminals"):
            log = sopr_fast.load_log(source, columns=columns)
        first = list(dict.fromkeys(table["patient"]))
        assert np.diff(log.episodes).tolist() == [LENGTHS[ids.index(name)] for name in first]
        np.testing.assert_array_equal(log.states, table[["lactate", "pressure"]].to_numpy(np.float32)[log.source])
        assert log.rewards[log.episodes[1:] - 1].tolist() == [15] * 4 and "'patient' and 'hour'" in log.verdict
        uniform = {"uniform": lambda states: Probabilities(np.full((len(states), 3), 1 / 3, np.float32))}
        method = ImportanceWeighting(updates=50, hidden=(4,))
        value = replace(method, discount=1).estimate(uniform, log).values[0]
        assert value == pytest.approx(15, rel=0.05)
    assert np.flatnonzero(load(table, quiet=False, columns=columns, max_episode_steps=6).timeouts).size == 1


@pytest.mark.parametrize("form", ["text", "zones", "objects"])
@pytest.mark.parametrize("name", ["timestamp", "date", "step"])
def test_times_order_the_rows_of_episodes(name, form, tmp_path):
    times = pandas.Timestamp("2020-01-31 22:00") + pandas.to_timedelta(
        np.concatenate([np.arange(n) for n in LENGTHS]), "h"
    )
    texts = {"text": times.astype(str), "zones": times.strftime("%Y-%m-%dT%H:%M:%SZ"), "objects": [*times]}
    arrays = walk(next_states=False)
    frame = pandas.DataFrame(arrays["observations"], columns=["obs_0", "obs_1"])
    frame = frame.assign(action=0, reward=1.0, terminal=LAST, episode=IDS, **{name: texts[form]})
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "log.csv", index=False)
    for source in (frame.sample(frac=1, random_state=0).sort_values("episode"), tmp_path / "log.csv"):
        log = load(source)
        states = [log.states[i:j] for i, j in pairwise(log.episodes)]
        expected = np.split(arrays["observations"].astype(np.float32), np.cumsum(LENGTHS)[:-1])
        assert {x.tobytes() for x in states} == {x.tobytes() for x in expected}


def test_tables_that_cannot_be_sorted_are_refused_or_questioned():
    log = walk() | {"episode": np.repeat([0, 1, 0, 1], LENGTHS), "terminals": FELL}
    with pytest.warns(UserWarning, match=r"rows of an episode \('episode'\) do not lie together"):
        sopr_fast.load_log(log)
    with pytest.raises(ValueError, match=r"an episode \('episode'\) has 'step' 0 twice, again at row 8: number"):
        sopr_fast.load_log(log | {"step": np.concatenate([np.arange(n) for n in LENGTHS])})
    with pytest.raises(ValueError, match="'episode' has no value at row 3"):
        sopr_fast.load_log(log | {"episode": np.where(np.arange(COUNT) == 3, np.nan, 0)})


def test_steps_of_rlds_hold_nothing_but_the_last_state_at_the_end():
    arrays = walk(next_states=False) | {"is_first": np.roll(LAST, 1), "is_last": LAST, "is_terminal": FELL}
    log = load(arrays)
    kept = np.flatnonzero(~LAST)
    assert log.source.tolist() == kept.tolist()
    np.testing.assert_array_equal(log.terminals, FELL[kept + 1])
    np.testing.assert_array_equal(log.next_states, arrays["observations"][kept + 1].astype(np.float32))
    unfinished = load({name: values[:-2] for name, values in arrays.items()})
    assert unfinished.source.tolist() == kept[:-2].tolist()  # of the last state it is unknown what follows
    with pytest.raises(ValueError, match="the next state of no step is known; add next states"):
        load(arrays | {"is_last": LAST | True})


BANDIT = {
    "context": np.random.default_rng(0).normal(size=(400, 2)),
    "action": np.random.default_rng(1).integers(0, 3, 400),
    "reward": np.random.default_rng(2).random(400),
    "pscore": np.full(400, 1 / 3),
}


@pytest.mark.parametrize(
    "extra", [{}, {"terminals": np.ones(400)}, {"next_obs": np.zeros((400, 2)), "done": np.ones(400)}]
)
def test_every_row_of_a_bandit_is_an_episode(extra):
    log = load(BANDIT | extra, max_episode_steps=1)
    assert log.episodes.tolist() == list(range(401)) and log.terminals.all() and len(log) == 400
    np.testing.assert_allclose(log.log_probs, np.log(1 / 3), rtol=1e-6)
    if "terminals" in extra:
        assert len(load(BANDIT | extra)) == 400  # no warning of time limits
    prefers = {"first": lambda states: Probabilities(np.tile(np.float32([1, 0, 0]), (len(states), 1)))}
    with warnings.catch_warnings(action="error"):
        value = ImportanceWeighting(discount=1).estimate(prefers, log).values[0]
        FQE(discount=1, updates=20, hidden=(4,)).estimate(prefers, log)
    assert value == pytest.approx(BANDIT["reward"][BANDIT["action"] == 0].mean(), rel=1e-5)


def test_undiscounted_values_need_episodes_that_end():
    policy, log = (
        {"still": lambda states: np.zeros((len(states), 1), np.float32)},
        walk() | {"terminals": LAST, "actions": np.zeros((COUNT, 1))},
    )
    with warnings.catch_warnings(action="ignore"):
        method = FQE(updates=2000, hidden=(16,), learning_rate=3e-3, target_rate=0.1)
        value = replace(method, discount=1).estimate(policy, log).values[0]
        assert value == pytest.approx(np.mean(LENGTHS), rel=0.1)  # the reward of every step is 1
        with pytest.raises(
            ValueError, match="discount=1 needs episodes that end in terminal states, but 2 of 4 are cut"
        ):
            replace(method, discount=1).estimate(policy, walk() | {"terminals": FELL, "timeouts": LAST})
        with pytest.raises(ValueError, match="DualDICE needs a discount below 1"):
            DualDICE(discount=1).estimate(policy, log)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"log_probs": np.full(400, 0.3)},
            "'log_probs' of discrete actions must be at most 0, got 0.3 at row 0, as logarithms",
        ),
        ({"pscore": np.full(400, 1.5)}, "'pscore' must be from above 0 to 1, got 1.5 at row 0"),
        ({"pscore": np.zeros(400)}, "'pscore' must be from above 0 to 1, got 0 at row 0"),
        ({"pscore": np.full(400, 0.5), "log_probs": np.full(400, -3.0)}, "'pscore' and 'log_probs' disagree"),
        ({"pscore": np.ones((400, 3))}, r"'pscore' must have shape \(rows,\), got \(400, 3\); pass only that"),
        ({"pscore": np.full(400, -1.1)}, "'pscore' .* got -1.1 .*logarithms, pass columns={'log_probs': 'pscore'}"),
        ({"context": [np.zeros((2, 3)), np.zeros((4, 3))]}, "'context' is no array: .*; pass a list of dictionaries"),
        ({"step": np.array(["NaT"] + ["2020-01-01"] * 399, "M8[D]")}, "'step' is no number or ISO date at row 0"),
        ({"time": np.array(["noon"] * 400)}, "'time' is no number or ISO date at row 0"),
        ({"context/age": np.ones(400)}, "'context' may be the states, and so may named .*'states': 'context'} or"),
        (
            {"action": np.array(["left", "right"] * 200)},
            "'action' must be numbers.* number words, actions as the policies do, .*'left': 0",
        ),
    ],
)
def test_wrong_probabilities_and_words_are_refused(arrays, message):
    with pytest.raises((TypeError, ValueError), match=f"dataset: {message}"):
        sopr_fast.load_log({key: x for key, x in BANDIT.items() if key != "pscore"} | arrays, max_episode_steps=1)


def test_probabilities_under_the_name_of_logarithms_are_mapped():
    arrays = {key: x for key, x in BANDIT.items() if key != "pscore"} | {"log_probs": np.full(400, 0.3)}
    log = load(arrays, max_episode_steps=1, columns={"probabilities": "log_probs"})  # as the refusal advises
    np.testing.assert_allclose(log.log_probs, np.log(0.3), rtol=1e-6)


@pytest.mark.parametrize("kind", ["episodes", "tuple", "batches", "steps", "frame", "parquet"])
def test_lists_of_dictionaries_and_indexed_frames(kind, tmp_path):
    arrays = walk(next_states=False) | {"terminals": LAST}
    stops = np.cumsum(LENGTHS)
    given = [{key: x[stop - n : stop] for key, x in arrays.items()} for stop, n in zip(stops, LENGTHS, strict=True)]
    if kind == "tuple":
        given = tuple(given)
    elif kind == "batches":  # with numbers of episodes
        given = [{key: x[rows] for key, x in (arrays | {"eps_id": IDS}).items()} for rows in (ROWS < 7, ROWS >= 7)]
    elif kind == "steps":
        given = [{key: x[row] for key, x in arrays.items()} for row in range(COUNT)]
    elif kind in ("frame", "parquet"):
        times = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(np.arange(COUNT), unit="h")
        index = pandas.MultiIndex.from_arrays([np.repeat(range(4), LENGTHS), times], names=["episode", "step"])
        rest = {key: arrays[key].reshape(-1) for key in ("actions", "rewards", "terminals")}
        frame = pandas.DataFrame(rest | {"obs": list(arrays["observations"])}, index=index)
        given = pandas.concat([frame[:5], frame[5:8].iloc[::-1], frame[8:]])
        if kind == "parquet":
            given.to_parquet(tmp_path / "log.parquet")
            given = tmp_path / "log.parquet"
    log = load(given, quiet=kind != "steps")  # nothing says that the last row of no episode was cut
    np.testing.assert_array_equal(log.states, arrays["observations"].astype(np.float32))
    assert np.diff(log.episodes).tolist() == list(LENGTHS)


def test_columns_of_one_name_are_refused():
    frame = pandas.DataFrame(np.zeros((3, 3)), columns=["obs", "action", "action"]).assign(reward=0)
    with pytest.raises(ValueError, match="data frame: it has several columns 'action'; leave only one"):
        sopr_fast.load_log(frame)


def test_densities_of_continuous_actions_may_exceed_1():
    densities = {"terminals": FELL, "action_prob": np.full(COUNT, 1.5)}
    np.testing.assert_allclose(load(walk() | densities).log_probs, np.log(1.5), rtol=1e-6)


def preallocated(filled, capacity=60):
    arrays = {key: np.zeros((capacity, *x.shape[1:])) for key, x in walk().items()} | {"terminals": np.zeros(capacity)}
    for key, values in (walk() | {"terminals": FELL}).items():
        arrays[key][:COUNT] = values
    return {key: np.resize(x[:COUNT], x.shape) if filled == capacity else x for key, x in arrays.items()}


@pytest.mark.parametrize("fields", [{"size": COUNT}, {"_size": COUNT, "ptr": COUNT}, {"pos": COUNT, "full": False}])
def test_unfilled_rows_of_a_buffer_are_left_out(fields, tmp_path):
    arrays = preallocated(COUNT)
    np.savez(tmp_path / "buffer.npz", **arrays, **fields)
    with h5py.File(tmp_path / "buffer.hdf5", "w") as file:
        file.attrs.update(fields)
        for key, values in arrays.items():
            file[key] = values
    for source in (arrays | fields, tmp_path / "buffer.npz", tmp_path / "buffer.hdf5"):
        assert len(load(source, quiet=False)) == COUNT == len(sopr_fast.inputs.logs.load_states(source))
    with pytest.warns(UserWarning, match="10 rows were filled; the other 8 are left out, though they"):
        sopr_fast.load_log(walk() | {"terminals": FELL, "size": 10})
    full = {key: np.arange(60)[:, None] * 1.0 for key in ("obs", "actions", "next_obs")} | {"rewards": np.arange(60.0)}
    rolled = load(full | {"size": 60, "ptr": 20}, quiet=False)
    assert rolled.source.tolist() == [*range(20, 60), *range(20)]


@pytest.mark.parametrize("share", [0.03, 0.3])
def test_equal_rows_at_the_end_are_questioned(share):
    count = 400
    filled, arrays = int(count * (1 - share)), {"obs": np.zeros((count, 2)), "actions": np.zeros((count, 1))}
    arrays["obs"][:filled] = np.random.default_rng(0).normal(size=(filled, 2))
    arrays |= {"rewards": np.zeros(count), "next_obs": np.zeros((count, 2)), "terminals": np.arange(count) % 5 == 4}
    with pytest.warns(UserWarning, match=f"{count - filled} rows, such as row {filled}, are the same row, to the end"):
        sopr_fast.load_log(arrays)


@pytest.mark.parametrize("marks", [{"timeouts": LAST}, {"episode": IDS, "step": STEPS}])
def test_a_time_limit_that_cuts_episodes_is_questioned(marks):
    arrays, longest = walk(next_states=False) | marks, max(LENGTHS)
    with pytest.warns(
        UserWarning, match=f"max_episode_steps=2 cuts episodes, the longest of which has {longest} steps"
    ):
        sopr_fast.load_log(arrays, max_episode_steps=2)
    assert np.diff(load(arrays, max_episode_steps=longest).episodes).max() <= longest


def test_a_number_of_rows_keeps_whole_episodes():
    arrays = walk() | {"terminals": FELL, "timeouts": LAST & ~FELL}
    whole = load(arrays)
    for rows, most in ((1, 6), (10, 10), (COUNT, COUNT)):
        for log in (load(arrays, rows=rows), sopr_fast.load_log(whole, rows=rows)):
            assert 0 < len(log) <= most and set(np.diff(log.episodes)) <= {*LENGTHS}
            np.testing.assert_array_equal(log.states, whole.states[log.source])
            assert (log.terminals | log.timeouts)[log.episodes[1:] - 1].all() and log.source_count == COUNT
