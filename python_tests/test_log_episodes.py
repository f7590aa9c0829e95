"""Where episodes end, by kind of evidence: flags, next states, ids and steps, lengths, padding, one-step episodes."""

import re
import warnings

import h5py
import numpy as np
import pandas
import pytest
from test_data import NEXT, only, walk, without

import sopr_fast
from sopr_fast.estimators import FQE, DualDICE, ImportanceWeighting
from sopr_fast.inputs.logs import describe, load_states
from sopr_fast.inputs.policies import Probabilities

LENGTHS = (5, 3, 6, 4)
COUNT, ENDS = sum(LENGTHS), np.cumsum(LENGTHS) - 1
ROWS = np.arange(COUNT)
FELL, CUT = np.isin(ROWS, ENDS[[0, 2]]), np.isin(ROWS, ENDS[[1, 3]])
LAST = FELL | CUT
FIRST = np.roll(LAST, 1)
IDS = np.repeat([7, 3, 5, 1], LENGTHS)
STEPS = np.concatenate([*map(np.arange, LENGTHS)])
NEVER = np.zeros(COUNT)
WALK = walk(LENGTHS)
STATES = without(WALK, NEXT)
EITHER = pytest.mark.parametrize("log", [WALK, STATES], ids=["next states", "states"])


def load(log, quiet=True, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error" if quiet else "ignore")
        return sopr_fast.load_log(log, **options)


def lengths(log):
    return np.diff(log.episodes).tolist()


@pytest.mark.parametrize(
    "flags",
    [
        {"masks": ~FELL, "dones_float": LAST},
        {"not_done": ~FELL},
        {"terminals": FELL, "episode_terminals": LAST},
        {"is_terminal": FELL, "is_last": LAST},
        {"terminated": FELL, "truncated": CUT, "done": LAST},
        {"dones": LAST, "timeouts": CUT},
        {"terminateds": FELL, "episode_starts": FIRST},
        {"terminals": FELL, "traj": IDS},
        {"dones": FELL, "traj": IDS},
        {"terminals": FELL, "episodeId": IDS},
        {"Terminated": FELL, "Episode ID": np.repeat(["d", "b", "c", "a"], LENGTHS)},
        {"terminals": FELL, "step": STEPS},
    ],
    ids="+".join,
)
def test_every_name_has_its_meaning(flags):
    log = load(WALK | flags)
    np.testing.assert_array_equal(log.terminals, FELL)
    assert lengths(log) == [*LENGTHS]
    assert log.verdict.startswith("episodes: 4 of 3 to 6 steps; 2 end in a terminal state, 2 are cut; decided by ")
    assert all(repr(name) in log.verdict for name in flags)
    assert repr(log) == f"Transitions({len(log)} steps; {log.verdict})"


@pytest.mark.parametrize("name", ["episode_terminals", "is_last", "dones", "done"])
def test_ends_that_may_be_time_limits_are_taken_as_terminals_with_a_warning(name):
    with pytest.warns(UserWarning, match=f"dataset: ends by '{name}' are taken as terminals; if a time limit cut"):
        log = sopr_fast.load_log(WALK | {name: LAST})
    np.testing.assert_array_equal(log.terminals, LAST)
    limited = load(WALK | {name: LAST}, max_episode_steps=6)
    assert np.flatnonzero(limited.terminals).tolist() == [ENDS[0], ENDS[1], ENDS[3]]


@EITHER
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"terminals": FELL, "terminated": LAST}, "'terminals' and 'terminated' both mean the terminals and disagree"),
        ({"masks": FELL, "terminals": FELL}, "'terminals' and 'masks' both mean the terminals and disagree"),
        ({"terminals": FELL, "dones": NEVER}, "'terminals' mark 2 ends that 'dones' do not"),
        ({"obs": np.zeros((COUNT, 2))}, "'observations' and 'obs' both mean the states and disagree"),
        ({"timeouts": LAST, "truncated": FELL}, "'timeouts' and 'truncated' both mean the timeouts and disagree"),
        ({"episode": IDS, "done": FIRST}, "'done' marks the first rows of episodes, not the last ones"),
        ({"episode": IDS, "terminals": FELL, "is_last": FIRST}, "'is_last' marks the first rows of episodes, not the"),
    ],
)
def test_contradictions_are_refused_by_advice_that_works(extra, message, log):
    with pytest.raises(ValueError, match=f"dataset: {message}") as raised:
        sopr_fast.load_log(log | extra)
    part, name = re.search(r"columns={'(\w+)': '([\w/.]+)'}", str(raised.value)).groups()
    loaded = load(log | extra, quiet=False, columns={part: name})
    assert loaded.source_count == COUNT and ("episode" not in extra or len(loaded.episodes) == 5)


@pytest.mark.parametrize("name", ["terminals", "timeouts", "done", "is_last", "masks"])
@pytest.mark.parametrize("log", [WALK, STATES | {"episode": IDS}], ids=["next states", "ids"])
def test_flags_whose_0_marks_ends_are_refused(name, log):
    flags = LAST if name == "masks" else ~LAST
    with pytest.raises(ValueError, match=f"dataset: '{name}' marks 77.8% of rows as ends: if 0 marks ends, pass 1"):
        sopr_fast.load_log(log | {name: flags})
    assert len(load(log | {name: 1 - flags}, quiet=False).episodes) == 5
    with pytest.raises(ValueError, match=f"dataset: '{name}' marks rows before the last ones of episodes: move"):
        sopr_fast.load_log(log | {name: np.roll(1 - flags, -1)})


@pytest.mark.parametrize(
    ("name", "values", "part", "ends"),
    [
        *((name, CUT, "timeouts", {"done": LAST}) for name in ("infos/TimeLimit.truncated", "infos/timeouts")),
        *((name, IDS, "episodes", {"done": FELL}) for name in ("patient_id", "icustayid")),
        *((name, ~FELL, "terminals", {"timeouts": CUT}) for name in ("continues", "nonterminals", "mask")),
        ("discount", 0.99 * ~FELL, "terminals", {"timeouts": CUT}),
        *((name, 1.0 * FELL, "terminals", {}) for name in ("absorbing", "crashed", "Episode.End", "x")),
    ],
)
def test_an_unread_array_is_read_as_is_advised(name, values, part, ends):
    given = WALK | ends | {name: values}
    with pytest.warns(UserWarning, match=f"looks like .*: '{name}'; .*columns={{'{part}': '{name}'}}") as caught:
        assert f"; not read, but like ends or numbers of episodes: {name}\n" in describe(given)
    (message,) = (str(each.message) for each in caught if "looks like" in str(each.message))
    assert ("; 0 marks ends there" in message) == (values[0] > 0 and part == "terminals")
    log = load(given, quiet=False, columns={part: name})
    np.testing.assert_array_equal(log.terminals, FELL)
    assert len(log.episodes) == 5
    quiet = load(WALK | {"terminals": FELL, "x": LAST, "constant": np.ones(COUNT)})
    assert quiet.verdict.endswith(": x")  # its name tells nothing, and other arrays mark the ends


RANDOM = np.random.default_rng(0)
SHUFFLED, LONG_SHUFFLED = RANDOM.permutation(COUNT), RANDOM.permutation(1580)
IN_TURN = np.argsort(np.tile(np.arange(5), 4)[:COUNT], kind="stable")  # rows of four environments
LONG_LENGTHS = np.arange(20, 60)
LONG = without(walk(LONG_LENGTHS, "c" * 40), NEXT)
LONG_ENDS, NEVER_LONG = LONG["timeouts"], np.zeros(1580, bool)
HALF = LONG_ENDS & (np.arange(1580) % 2 == 0)
NUMBERED = {"episode": np.repeat(range(40), LONG_LENGTHS), "step": np.concatenate([*map(np.arange, LONG_LENGTHS)])}
PADDED = {name: (x.T * (np.arange(1580) % 79 <= 70)).T for name, x in LONG.items()} | {"timeouts": LONG_ENDS}
AT_79 = without(walk([79] * 20, "t" * 20), NEXT, "timeouts")
RESETTING = WALK | {NEXT: np.where(LAST[:, None], np.roll(WALK["observations"], -1, 0), WALK[NEXT])}
RESETTING[NEXT][-1] = WALK[NEXT][-1]
COUNTED = np.arange(400)
NOISE = {"observations": RANDOM.normal(size=(400, 2)), "actions": RANDOM.normal(size=400), "rewards": np.ones(400)}
UNFILLED = {name: x * 0 for name, x in NOISE.items()} | {"next_obs": np.zeros((400, 2)), "terminals": COUNTED % 5 == 4}
END_12, END_120 = (UNFILLED | {"observations": NOISE["observations"] * (COUNTED[:, None] < n)} for n in (388, 280))
EIGHTH = {"terminals": COUNTED % 8 == 7, "timeouts": np.zeros(400)}
CARDS = {"observations": RANDOM.integers(0, 20, 2000), "actions": np.zeros(2000), "rewards": np.ones(2000)}
CARDS |= {"terminals": RANDOM.random(2000) < 0.7, "timeouts": np.zeros(2000)}  # most of its rows are terminal
BEGIN_AGAIN = STATES | {"dones": LAST, "timeouts": CUT, "episode": np.repeat(range(4), LENGTHS)}
BEGIN_AGAIN = {name: np.concatenate([x, x]) for name, x in BEGIN_AGAIN.items()}
FRAME = pandas.DataFrame(WALK["observations"][:, :2], columns=["obs_0", "obs_1"])
FRAME[["next_obs_0", "next_obs_1"]] = WALK[NEXT][:, :2]
FRAME = FRAME.assign(action=0.0, reward=1.0, terminated=FELL)
FROM_1 = FRAME.rename(columns=lambda name: name.replace("1", "2").replace("0", "1"))
STEPWISE = [only(i, WALK | {"done": LAST}) | ({"info": {"cut": True}} if CUT[i] else {}) for i in ROWS]
LIMIT_2, LIMIT_6 = {"max_episode_steps": 2}, {"max_episode_steps": 6}
QUESTIONED = {  # kind of evidence → log, options, warning
    "flags": [
        (RESETTING | {"terminals": LAST}, {}, "neither next states nor timeouts show where a time limit cut"),
        (LONG | {"terminals": LONG_ENDS}, {}, "'terminals' mark all 40 rows of 'timeouts' too, as 'dones' do"),
        (LONG | {"timeouts": ~LONG_ENDS}, {}, "'timeouts' marks 97.5% of rows as ends: if 0 marks ends, pass 1"),
        (WALK | {"done": LAST | True}, {}, "'done' marks 100.0% of rows as ends"),
        (STATES | {"done": FIRST}, {}, "'done' marks the first row and not the last: if .*'first': 'done'}"),
        (STATES | {"done": NEVER}, {}, "neither next states nor timeouts show where a time limit cut"),
        (STATES | {"terminals": NEVER, "truncated": NEVER}, {}, "neither next states nor timeouts show"),
        (WALK | {"terminals": FELL, "rewards": 1.5 * (STEPS > 0)}, {}, "'rewards' are 0 in the first row of each"),
        (WALK | {"terminals": FELL, "mu_logp": -1.0 * ROWS}, {}, "'mu_logp' is not read: .*columns={'log_probs': 'mu"),
    ],
    "states": [
        (only(LONG_SHUFFLED, LONG), {}, "states are as far from those of the next rows"),
        (LONG | {"timeouts": NEVER_LONG, "terminals": HALF}, {}, "states jump after 19 rows, such as row 19, as far"),
        (LONG | {"timeouts": np.roll(LONG_ENDS, -1)}, {}, "states jump one row next to 39 ends, .* values down"),
        (LONG | {"timeouts": np.roll(LONG_ENDS, 1)}, {}, "states jump one row next to 39 ends, .* values up by"),
    ],
    "next states": [
        (only(SHUFFLED, WALK | {"terminals": FELL}), {}, f"'{NEXT}' are not .*, so that rows do not follow"),
        (only(IN_TURN, WALK | {"terminals": FELL, "timeouts": CUT}), {}, "are not .*, so that rows do not follow each"),
        (STATES | {"next_obs": STATES["observations"]}, {}, "'next_obs' are not .* but those of the same row: lea"),
        (LONG | NUMBERED | {"next_obs": np.ones((1580, 3))}, {}, "'next_obs' are not .* of the next row: leave them"),
        (STATES | {"timeouts": LAST, "obs_tp1": STATES["observations"]}, {}, "like next states: 'obs_tp1'; if so"),
    ],
    "ids and steps": [
        (only(np.arange(1580) % 9 != 4, LONG | NUMBERED), {}, "steps are missing, such as after 'step' 3, which 5"),
        (STATES | {"episode": ROWS // 9, "done": LAST}, {}, "'done' marks 3 rows, such as row 4, inside of episodes"),
        (only(SHUFFLED, STATES | {"t": STEPS}), {}, "'t' does not count steps up from its smallest, so that rows"),
        (WALK | {"terminals": FELL, "episode": IDS % 3}, {}, r"rows of an episode \('episode'\) do not lie together"),
    ],
    "lengths": [
        (LONG | {"ep_len": LONG_LENGTHS}, {}, "ep_len: lengths or bounds of episodes are not read: add"),
        (AT_79, {}, "ends by 'terminals' are taken as terminals; if a time limit cut"),
        (AT_79 | {"done": AT_79["terminals"]}, {}, "ends by 'terminals' are taken as terminals; if a"),
        (STATES | {"timeouts": LAST}, LIMIT_2, "max_episode_steps=2 cuts episodes, .* has 6 steps"),
        (STATES | {"episode": IDS, "step": STEPS}, LIMIT_2, "max_episode_steps=2 cuts episodes, .* 6 s"),
    ],
    "padding": [
        (PADDED, {}, "157 rows, such as row 68, are 0 in everything, as where episodes are"),
        (END_12, {}, "12 rows, such as row 388, are the same row, to the end, as where episodes"),
        (END_120, {}, "120 rows, such as row 280, are the same row, to the end, as where"),
        (WALK | {"terminals": FELL, "size": 10}, {}, "10 rows were filled; the other 8 are left out, though they"),
    ],
}


@pytest.mark.parametrize(
    ("log", "options", "message"),
    [pytest.param(*row, id=f"{kind}: {row[-1]}") for kind, rows in QUESTIONED.items() for row in rows],
)
def test_what_may_be_read_wrong_is_questioned(log, options, message):
    with pytest.warns(UserWarning, match=f"dataset: .*{message}"):
        sopr_fast.load_log(log, **options)


QUIET = {  # situation → log, options, episodes, terminals
    "cut": (LONG, {}, 40, 0),
    "limit 79": (AT_79, {"max_episode_steps": 79}, 20, 0),
    "cuts, limit": (STATES | {"timeouts": LAST}, LIMIT_6, 4, 0),
    "ids, limit": (STATES | {"episode": IDS, "step": STEPS}, LIMIT_6, 4, 3),
    "ids begin again": (BEGIN_AGAIN, {}, 8, 4),
    "columns from 1": (FROM_1, {}, 4, 2),
    "own ids": (WALK | {"terminals": FELL, "timeouts": CUT, "env": IDS // 6}, {"columns": {"episodes": "env"}}, 4, 2),
    "own cuts of steps": (STEPWISE, {"columns": {"timeouts": "info/cut"}}, 4, 2),
    "resets": (RESETTING | {"terminals": LAST, "timeouts": NEVER}, {}, 4, 4),
    "discrete states": (NOISE | {"observations": np.eye(3)[RANDOM.integers(0, 3, 400)]} | EIGHTH, {}, 50, 50),
    "independent states": (NOISE | {"terminals": COUNTED % 10 == 9}, {}, 40, 40),
    "done in every row": (NOISE | {"done": np.ones(400)}, {}, 400, 400),
    "an id for every row": (NOISE | {"episode": COUNTED}, {}, 400, 400),
    "cards": (CARDS, {}, CARDS["terminals"][:-1].sum() + 1, CARDS["terminals"].sum()),
}


@pytest.mark.parametrize(("log", "options", "episodes", "terminals"), QUIET.values(), ids=QUIET)
def test_what_cannot_be_read_wrong_is_not_questioned(log, options, episodes, terminals):
    loaded = load(log, **options)
    assert (len(loaded.episodes) - 1, loaded.terminals.sum()) == (episodes, terminals)


def test_rows_without_next_states_and_rows_of_padding_are_left_out(tmp_path):
    given = WALK | {"terminals": FELL, "timeouts": CUT}
    rows = np.insert(ROWS, ENDS + 1, 0)
    valid = ~np.isin(np.arange(22), ENDS + 1 + np.arange(4))
    np.testing.assert_array_equal(load(only(rows, given) | {"valid": valid}).states, load(given).states)
    unknown = without(given, "timeouts") | {NEXT: np.where(LAST[:, None], np.nan, WALK[NEXT])}
    columns = {f"{name}_{i}": x for name in unknown for i, x in enumerate(unknown[name].reshape(COUNT, -1).T)}
    frame = pandas.DataFrame(columns).rename(columns={"terminals_0": "terminal", "rewards_0": "reward"})
    frame.to_csv(tmp_path / "log.csv", index=False, na_rep="NULL")
    for source in (unknown, tmp_path / "log.csv"):
        log = load(source)
        assert lengths(log) == [5, 2, 6, 3] and log.terminals.sum() == 2
    shifted = np.append(WALK["observations"][1:], np.full((1, 3), np.nan), 0)
    assert len(load(STATES | {NEXT: shifted, "terminals": LAST}, quiet=False).episodes) == 5


@EITHER
@pytest.mark.parametrize(
    "extra",
    [
        {"episode": ROWS, "done": NEVER},
        {"episode": ROWS, "done": LAST},
        {"episode_id": ROWS, "terminals": FELL, "timeouts": CUT},
        {"episode": ROWS, "step": STEPS},
    ],
    ids="+".join,
)
def test_numbers_of_rows_are_no_numbers_of_episodes(extra, log):
    given = log | extra
    with pytest.warns(UserWarning, match="dataset: 'episode.*' differs in each row, but .*, so that it counts rows"):
        loaded = sopr_fast.load_log(given)
    assert len(loaded.episodes) == (2 if extra.get("done") is NEVER and log is STATES else 5)
    assert len(load(given, max_episode_steps=1).episodes) == COUNT + 1
    assert len(load(given | {"done": LAST | True, "terminals": LAST | True}, quiet=False).episodes) == COUNT + 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"obs_1": "obs_2"}, r"the columns obs_0, obs_2 leave some out: add these, or .* columns={'states': \['obs_0'"),
        ({"obs_0": "obs[3]", "obs_1": "obs[4]"}, r"the columns obs\[3\], obs\[4\] leave some out"),
        ({"next_obs_1": "next_obs_2"}, "the columns next_obs_0, next_obs_2 leave some out: .*={'next_states': "),
        ({"obs_0": "obs"}, r"there are 'obs' and 'obs_1'; .* columns={'states': \['obs', 'obs_1'\]}, or"),
    ],
)
def test_numbers_of_columns_have_no_gap(names, message, tmp_path):
    frame = FRAME.rename(columns=names)
    frame.to_csv(tmp_path / "log.csv", index=False)
    for source in (frame, tmp_path / "log.csv"):
        for read in (sopr_fast.load_log, load_states)[: 1 if "next" in message else 2]:
            with pytest.raises(ValueError, match=message):
                read(source)
    columns = {"states": [*frame.columns[:2]], "next_states": [*frame.columns[2:4]]}
    np.testing.assert_array_equal(load(frame, columns=columns).states, WALK["observations"][:, :2])


@pytest.mark.parametrize("hidden", [(), ("timeouts",), (NEXT,), ("timeouts", NEXT)], ids="+".join)
@pytest.mark.parametrize("region", [(27, np.inf), (12, 13.5)], ids=["stay", "pass"])
def test_terminal_rows_that_a_trajectory_leaves_begin_no_episode(hidden, region):
    """Trajectories of 50 steps stay in a goal region, or pass it."""
    given = walk([50] * 30, "c" * 30)
    place = given[NEXT][:, 0]
    given = without(given | {"terminals": (place > region[0]) & (place < region[1])}, *hidden)
    if len(hidden) == 2 and region[1] < np.inf:
        given["episode"] = np.repeat(np.arange(30), 50)  # nothing else tells where they end
    message = r"after \d+ terminal rows \('terminals'\), such as row \d+, the trajectory goes on"
    with pytest.warns(UserWarning, match=message):
        log = sopr_fast.load_log(given)
    assert len(log.episodes) == 31 and (log.initial_states <= 1).all()
    assert "they go on after" in log.verdict and log.terminals.sum() > 30 * 0.5


@EITHER
@pytest.mark.parametrize("end", ["terminals", "timeouts", "dones"])
def test_steps_of_vector_environments_that_only_reset_them_are_left_out(log, end):
    """As with gymnasium's AutoresetMode.NEXT_STEP: the last state leads to the next first one, with reward 0."""
    steps = np.array([12, 9, 15, 12])
    visited = walk(steps + 1)["observations"]  # the last row of each episode is such a step
    last = np.isin(np.arange(52), np.cumsum(steps + 1) - 1)
    given = {"observations": visited, "actions": visited[:, :1], "rewards": 1.0 - last}
    given |= {} if end == "dones" else {"terminals": np.zeros(52), "timeouts": np.zeros(52)}
    given |= {end: np.append(last[1:], False)} | ({NEXT: np.roll(visited, -1, 0)} if log is WALK else {})
    with pytest.warns(UserWarning, match="dataset: 3 rows after ends, such as row 12, are left out: with reward 0"):
        loaded = sopr_fast.load_log(only(slice(-1), given))
    assert lengths(loaded) == [*(steps if log is WALK or end != "timeouts" else steps - 1)]
    place = np.concatenate([*map(np.arange, steps + 1)])
    kept = np.flatnonzero(place < np.repeat(lengths(loaded), steps + 1))
    assert loaded.source.tolist() == kept.tolist()
    np.testing.assert_array_equal(loaded.states, visited[kept])


TIMES = pandas.Timestamp("2020-01-31 22:00") + pandas.to_timedelta(STEPS, "h")
TEXTS, ZONES = TIMES.astype(str), TIMES.strftime("%Y-%m-%dT%H:%M:%SZ")
ORDERS = {"in order": ROWS, "shuffled": SHUFFLED, "by stay": SHUFFLED[np.argsort(IDS[SHUFFLED], kind="stable")]}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("ids", [[104, 7, 33, 12], ["d", "b", "c", "a"]], ids=["numbers", "words"])
@pytest.mark.parametrize(
    ("name", "values"),
    [("hour", 4 * STEPS), ("step", pandas.to_timedelta(STEPS, "h"))]
    + [(name, times) for name in ("timestamp", "date", "step") for times in (TEXTS, ZONES, [*TIMES])],
)
def test_rows_of_tables_are_sorted_by_episode_and_step_or_time(name, values, ids, order, tmp_path):
    """As in clinical tables: stays differ in length, and the only reward is that of the last step."""
    states = pandas.DataFrame(STATES["observations"], columns=["obs_0", "obs_1", "obs_2"])
    frame = states.assign(stay=np.repeat(ids, LENGTHS), action=STEPS % 3, reward=15.0 * LAST, **{name: values})
    table = frame.iloc[order].reset_index(drop=True)
    table.to_csv(tmp_path / "stays.csv", index=False, sep=";", decimal=",")
    columns = {"episodes": "stay"} | ({"steps": "hour"} if name == "hour" else {})
    expected = pandas.concat([frame[frame["stay"] == stay] for stay in table["stay"].unique()])
    for source in (table, tmp_path / "stays.csv")[: 1 if isinstance(values, pandas.TimedeltaIndex) else 2]:
        with pytest.warns(UserWarning, match="ends by 'stay' are taken as terminals"):
            log = sopr_fast.load_log(source, columns=columns)
        np.testing.assert_array_equal(log.states, expected[states.columns])
        np.testing.assert_array_equal(log.source, np.argsort(order)[expected.index])
        assert np.flatnonzero(log.terminals).tolist() == np.flatnonzero(expected["reward"]).tolist()
        assert f"'stay' and '{name}'" in log.verdict
    assert np.flatnonzero(load(table, quiet=False, columns=columns, max_episode_steps=6).timeouts).size == 1


def test_steps_of_rlds_hold_nothing_but_the_last_state_at_the_end():
    arrays = STATES | {"is_first": FIRST, "is_last": LAST, "is_terminal": FELL}
    log = load(arrays)
    kept = np.flatnonzero(~LAST)
    assert log.source.tolist() == kept.tolist()
    np.testing.assert_array_equal(log.terminals, FELL[kept + 1])
    np.testing.assert_array_equal(log.next_states, arrays["observations"][kept + 1])
    unfinished = load(only(slice(-2), arrays))
    assert unfinished.source.tolist() == kept[:-2].tolist()  # of the last state it is unknown what follows
    with pytest.raises(ValueError, match="the next state of no step is known; add next states"):
        load(arrays | {"is_last": LAST | True})


ONES = np.ones(400)
BANDIT = {"context": NOISE["observations"], "action": RANDOM.integers(0, 3, 400), "reward": RANDOM.random(400)}


@pytest.mark.parametrize("extra", [{}, {"terminals": ONES}, {"next_obs": np.zeros((400, 2)), "done": ONES}])
def test_every_row_of_a_bandit_is_an_episode(extra):
    log = load(BANDIT | {"pscore": ONES / 3} | extra, max_episode_steps=1)
    assert log.episodes.tolist() == [*range(401)] and log.terminals.all() and len(log) == 400
    np.testing.assert_allclose(log.log_probs, np.log(1 / 3), rtol=1e-6)
    if "terminals" in extra:
        assert len(load(BANDIT | extra)) == 400  # no warning of time limits
    prefers = {"first": lambda states: Probabilities(np.tile(np.float32([1, 0, 0]), (len(states), 1)))}
    with warnings.catch_warnings(action="error"):
        value = ImportanceWeighting(discount=1).estimate(prefers, log).values[0]
        FQE(discount=1, updates=20, hidden=(4,)).estimate(prefers, log)
    assert value == pytest.approx(BANDIT["reward"][BANDIT["action"] == 0].mean(), rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_undiscounted_values_need_episodes_that_end():
    policy = {"still": lambda states: np.zeros((len(states), 1), np.float32)}
    log = WALK | {"terminals": LAST, "actions": np.zeros((COUNT, 1))}
    method = FQE(discount=1, updates=2000, hidden=(16,), learning_rate=3e-3, target_rate=0.1)
    assert method.estimate(policy, log).values[0] == pytest.approx(np.mean(LENGTHS), rel=0.1)  # each reward is 1
    with pytest.raises(ValueError, match="discount=1 needs episodes that end in .* states, but 2 of 4 are cut"):
        method.estimate(policy, log | {"terminals": FELL, "timeouts": LAST})
    with pytest.raises(ValueError, match="DualDICE needs a discount below 1"):
        DualDICE(discount=1).estimate(policy, log)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"log_probs": np.full(400, 0.3)}, "'log_probs' of discrete actions must be at most 0, got 0.3 at row 0"),
        ({"pscore": np.full(400, 1.5)}, "'pscore' must be from above 0 to 1, got 1.5 at row 0"),
        ({"pscore": np.zeros(400)}, "'pscore' must be from above 0 to 1, got 0 at row 0"),
        ({"pscore": np.full(400, 0.5), "log_probs": np.full(400, -3.0)}, "'pscore' and 'log_probs' disagree"),
        ({"pscore": np.ones((400, 3))}, r"'pscore' must have shape \(rows,\), got \(400, 3\); pass only that"),
        ({"pscore": np.full(400, -1.1)}, "'pscore' .* got -1.1 .*logarithms as .*columns={'log_probs': 'pscore'}"),
        ({"context": [np.zeros((2, 3)), np.zeros((4, 3))]}, "'context' is no array: .*; pass a list of dictionaries"),
        ({"step": np.array(["NaT"] + ["2020-01-01"] * 399, "M8[D]")}, "'step' is no number or ISO date at row 0"),
        ({"time": np.array(["noon"] * 400)}, "'time' is no number or ISO date at row 0"),
        ({"context/age": ONES}, "'context' may be the states, and so may named .*'states': 'context'}.* or"),
        ({"action": ["left", "right"] * 200}, "'action' must be numbers.*number the words, actions as the .*'left': 0"),
        ({"episode": np.where(COUNTED == 3, np.nan, 0)}, "'episode' has no value at row 3"),
        ({"episode": COUNTED // 2 % 100, "step": COUNTED % 2}, "an episode .* has 'step' 0 twice, again at row 200"),
    ],
)
def test_wrong_probabilities_words_and_numbers_are_refused(arrays, message):
    with pytest.raises((TypeError, ValueError), match=f"dataset: {message}"):
        sopr_fast.load_log(BANDIT | arrays, max_episode_steps=1)


def test_probabilities_may_have_other_names_and_exceed_1_for_continuous_actions():
    columns = {"probabilities": "log_probs"}  # as the refusal advises
    log = load(BANDIT | {"log_probs": 0.3 * ONES}, max_episode_steps=1, columns=columns)
    np.testing.assert_allclose(log.log_probs, np.log(0.3), rtol=1e-6)
    densities = {"terminals": FELL, "action_prob": np.full(COUNT, 1.5)}
    np.testing.assert_allclose(load(WALK | densities).log_probs, np.log(1.5), rtol=1e-6)


@pytest.mark.parametrize("fields", [{"size": COUNT, "pos": np.inf}, {"_size": COUNT}, {"pos": COUNT, "full": False}])
def test_unfilled_rows_of_a_buffer_are_left_out(fields, tmp_path):
    arrays = {key: np.concatenate([x, np.zeros((42, *x.shape[1:]))]) for key, x in (WALK | {"done": FELL}).items()}
    np.savez(tmp_path / "buffer.npz", **arrays, **fields)
    with h5py.File(tmp_path / "buffer.hdf5", "w") as file:
        file.update(arrays)
        file.attrs.update(fields)
    for source in (arrays | fields, tmp_path / "buffer.npz", tmp_path / "buffer.hdf5"):
        assert len(load(source, quiet=False)) == COUNT == len(load_states(source))
    full = {key: np.arange(60)[:, None] * 1.0 for key in ("obs", "actions", "next_obs")} | {"rewards": np.arange(60.0)}
    rolled = load(full | {"size": 60, "ptr": 20}, quiet=False)
    assert rolled.source.tolist() == [*range(20, 60), *range(20)]


def test_a_number_of_rows_keeps_whole_episodes():
    arrays = WALK | {"terminals": FELL, "timeouts": CUT}
    whole = load(arrays)
    for rows, most in ((1, 6), (10, 10), (COUNT, COUNT)):
        for log in (load(arrays, rows=rows), sopr_fast.load_log(whole, rows=rows)):
            assert 0 < len(log) <= most and {*lengths(log)} <= {*LENGTHS}
            np.testing.assert_array_equal(log.states, whole.states[log.source])
            assert (log.terminals | log.timeouts)[log.episodes[1:] - 1].all() and log.source_count == COUNT
