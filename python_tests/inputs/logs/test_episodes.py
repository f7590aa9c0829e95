"""Where episodes end, by kind of evidence: flags, next states, ids and steps, lengths, padding, one-step episodes."""

import ast
import re
import warnings
from collections import deque, namedtuple

import h5py
import numpy as np
import pandas
import pytest
from support.walks import NEXT, only, walk, without

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
BOTH, WITH_EPISODES = (WALK, STATES), (WALK, STATES | {"episode": IDS})


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
ONES = np.ones(400)
BANDIT = {"context": NOISE["observations"], "action": RANDOM.integers(0, 3, 400), "reward": RANDOM.random(400)}
EIGHTH = {"terminals": COUNTED % 8 == 7, "timeouts": np.zeros(400)}
CARDS = {"observations": RANDOM.integers(0, 20, 2000), "actions": np.zeros(2000), "rewards": np.ones(2000)}
CARDS |= {"terminals": RANDOM.random(2000) < 0.7, "timeouts": np.zeros(2000)}  # most of its rows are terminal
STARTS = RANDOM.uniform(-1, 1, (60, 1, 2))
PULLED = {"observations": (STARTS * 0.9 ** np.arange(30)[:, None]).reshape(1800, 2), "rewards": np.ones(1800)}
PULLED |= {"actions": np.zeros(1800), "terminals": np.append(np.arange(1799) % 30 == 29, True)}
CELLS = np.array([36, *range(24, 36)])  # a way along the cliff
CLIFF = {"observations": np.tile(CELLS, 40), "actions": np.zeros(520), "rewards": -np.ones(520)}
CLIFF |= {"terminals": CLIFF["observations"] == 35, "timeouts": np.zeros(520)}
RESET_CLIFF = {key: np.insert(x, np.arange(13, 521, 13), {"observations": 47}.get(key, 0)) for key, x in CLIFF.items()}
BEGIN_AGAIN = STATES | {"dones": LAST, "timeouts": CUT, "episode": np.repeat(range(4), LENGTHS)}
BEGIN_AGAIN = {name: np.concatenate([x, x]) for name, x in BEGIN_AGAIN.items()}
FRAME = pandas.DataFrame(WALK["observations"][:, :2], columns=["obs_0", "obs_1"])
FRAME[["next_obs_0", "next_obs_1"]] = WALK[NEXT][:, :2]
FRAME = FRAME.assign(action=0.0, reward=1.0, terminated=FELL)
FROM_1 = FRAME.rename(columns=lambda name: name.replace("1", "2").replace("0", "1"))
STEPWISE = [only(i, WALK | {"done": LAST}) | ({"info": {"cut": True}} if CUT[i] else {}) for i in ROWS]
GOALS = walk([50] * 30, "c" * 30)  # trajectories that stay in a goal region, or pass it
STAY = GOALS | {"terminals": GOALS[NEXT][:, 0] > 14}  # in most rows
PASS = GOALS | {"terminals": (GOALS[NEXT][:, 0] > 12) & (GOALS[NEXT][:, 0] < 13.5)}
IN_GOAL, OF_GOALS = STAY["terminals"].sum(), np.repeat(np.arange(30), 50)
OF_16 = walk([16] * 25, "c" * 25) | {"is_first": COUNTED % 16 == 0}
FROM_8 = OF_16 | only(COUNTED - np.maximum(COUNTED % 16 - 7, 0), walk([16] * 25))  # rows repeat the one of step 7
NO_FIRST = without(OF_16, NEXT, "timeouts") | {"is_first": ~OF_16["is_first"]}


def with_value(value, part="observations"):
    """Return a log of which step 7 of every episode has a value in column 1."""
    log = OF_16 | {name: OF_16[name].copy() for name in (part, NEXT)}
    log[part][7::16, 1] = value
    log[NEXT][6::16, 1] = log["observations"][7::16, 1]
    return log


LIMIT_2, LIMIT_6 = {"max_episode_steps": 2}, {"max_episode_steps": 6}
BY_ROWS = "'episode.*' differs in each row, but .*, so that it counts rows"
TERMINALS = "ends by '.*' are taken as terminals; if a time limit cut"
GOES_ON = r"after \d+ terminal rows \('terminals'\), such as row \d+, the trajectory goes on"
NO_LIMITS = "neither next states nor timeouts show where a time limit cut"
EVIDENCE = {  # kind of evidence → log, warning, episodes, terminals, options
    "flags": [
        *((WALK | {name: LAST}, TERMINALS, 4, 4) for name in ("episode_terminals", "is_last", "dones", "done")),
        *((WALK | {name: LAST}, "", 4, 3, LIMIT_6) for name in ("episode_terminals", "is_last", "dones", "done")),
        (RESETTING | {"terminals": LAST}, NO_LIMITS, 4, 4),
        (RESETTING | {"terminals": LAST, "timeouts": NEVER}, "", 4, 4),
        (LONG, "", 40, 0),
        (LONG | {"terminals": LONG_ENDS}, "'terminals' mark all 40 rows of 'timeouts' too, as 'dones' do", 40, 0),
        (LONG | {"timeouts": ~LONG_ENDS}, "'timeouts' marks 97.5% of rows as ends: if 0 marks ends", 39, 0),
        (WALK | {"done": LAST | True}, "'done' marks 100.0% of rows as ends", 18, 18),
        (NOISE | {"done": ONES}, "", 400, 400),
        (STATES | {"done": FIRST}, "'done' marks the first row and not the last: if .*'first': 'done'}", 5, 4),
        (STATES | {"done": NEVER}, NO_LIMITS, 1, 0),
        (STATES | {"terminals": NEVER, "truncated": NEVER}, NO_LIMITS, 1, 0),
        (WALK | {"terminals": FELL, "rewards": 1.5 * (STEPS > 0)}, "'rewards' are 0 in the first row of each", 4, 2),
        (WALK | {"terminals": FELL, "rewards": 1.0 * IDS}, "'rewards' are the same in all rows of an epis", 4, 2),
        (STATES | {"timeouts": LAST, "rewards": 1.0 * LAST}, "4 last steps, such as row 4, are dropped", 4, 0),
        (WALK | {"terminals": FELL, "mu_logp": -1.0 * ROWS}, "'mu_logp' is not read: .*columns={'log_probs'", 4, 2),
        (NO_FIRST, "'is_first' marks 93.8% of rows as first rows: if 0 marks first rows", 24, 0),
        (STEPWISE, "", 4, 2, {"columns": {"timeouts": "info/cut"}}),
    ],
    "states": [
        (only(LONG_SHUFFLED, LONG), "states are as far from those of the next rows", 41, 0),
        (LONG | {"timeouts": NEVER_LONG, "terminals": HALF}, "states jump after 19 rows, such as row 19, as", 21, 20),
        (LONG | {"timeouts": np.roll(LONG_ENDS, -1)}, "states jump one row next to 39 ends, .* values down", 40, 0),
        (LONG | {"timeouts": np.roll(LONG_ENDS, 1)}, "states jump one row next to 39 ends, .* values up", 40, 0),
        (NOISE | {"observations": np.eye(3)[RANDOM.integers(0, 3, 400)]} | EIGHTH, "", 50, 50),
        (NOISE | {"terminals": COUNTED % 10 == 9}, "", 40, 40),
        (PULLED, "ends by .terminals. are taken as terminals", 60, 60),  # some begin as near as a usual step leads
        (CLIFF, "", 40, 40),  # they begin in cell 36, whose number is next to that of the last one
        (RESET_CLIFF, "39 rows after ends, such as row 13, are left out: with reward 0", 40, 40),
        (CARDS, "", CARDS["terminals"][:-1].sum() + 1, CARDS["terminals"].sum()),
        (FROM_1, "", 4, 2),
        (STAY, GOES_ON, 30, IN_GOAL - 30),  # their last rows are cuts too
        (without(STAY, NEXT), GOES_ON, 30, IN_GOAL - 30),
        (without(STAY, "timeouts"), GOES_ON, 30, IN_GOAL),
        (without(STAY, "timeouts", NEXT), GOES_ON, 30, IN_GOAL),
        *((without(PASS, *hidden), GOES_ON, 30, PASS["terminals"].sum()) for hidden in ((), ("timeouts",), (NEXT,))),
        (without(PASS, "timeouts", NEXT) | {"episode": OF_GOALS}, GOES_ON, 30, PASS["terminals"].sum()),
    ],
    "next states": [
        (only(SHUFFLED, WALK | {"terminals": FELL}), f"'{NEXT}' are not .*, so that rows do not follow", 18, 2),
        (only(IN_TURN, WALK | {"terminals": FELL, "timeouts": CUT}), "not .*, so that rows do not follow", 5, 2),
        (STATES | {"next_obs": STATES["observations"]}, "'next_obs' are not .* but those of the same row", 18, 0),
        (LONG | NUMBERED | {"next_obs": np.ones((1580, 3))}, "'next_obs' are not .* next row: leave them", 40, 0),
        (STATES | {"timeouts": LAST, "obs_tp1": ROWS[:, None] * np.ones(3)}, "like next states: 'obs_tp1'; if", 4, 0),
    ],
    "ids and steps": [
        *((log | {"episode": ROWS, "done": LAST}, BY_ROWS, 4, 4) for log in BOTH),
        *((log | {"episode": ROWS, "step": STEPS}, BY_ROWS, 4, 0 if log is WALK else 4) for log in BOTH),
        *((log | {"episode_id": ROWS, "terminals": FELL, "timeouts": CUT}, BY_ROWS, 4, 2) for log in BOTH),
        *((log | {"episode": ROWS, "done": NEVER}, BY_ROWS, 4 if log is WALK else 1, 0) for log in BOTH),
        *((log | {"episode": ROWS, "done": NEVER}, "", 18, 18, {"max_episode_steps": 1}) for log in BOTH),
        *((log | {"episode": ROWS, "done": LAST | True}, "", 18, 18) for log in BOTH),
        (NOISE | {"episode": COUNTED}, "", 400, 400),
        (only(np.arange(1580) % 9 != 4, LONG | NUMBERED), "steps are missing, such as after 'step' 3, which 5", 40, 0),
        (STATES | {"episode": ROWS // 9, "done": LAST}, "'done' marks 3 rows, such as row 4, inside of", 4, 4),
        (only(SHUFFLED, STATES | {"t": STEPS}), "'t' does not count steps up from its smallest, so that", 1, 0),
        (WALK | {"terminals": FELL, "episode": IDS % 3}, r"rows of an episode \('episode'\) do not lie tog", 4, 2),
        (BEGIN_AGAIN, "", 8, 4),
        (WALK | {"terminals": FELL, "timeouts": CUT, "env": IDS // 6}, "", 4, 2, {"columns": {"episodes": "env"}}),
    ],
    "lengths": [
        (LONG | {"ep_len": LONG_LENGTHS}, "ep_len: lengths or bounds of episodes are not read: add", 40, 0),
        (AT_79, "ends by 'terminals' are taken as terminals; if a time limit cut", 20, 20),
        (AT_79 | {"done": AT_79["terminals"]}, "ends by 'terminals' are taken as terminals; if a", 20, 20),
        (AT_79, "", 20, 0, {"max_episode_steps": 79}),
        (STATES | {"timeouts": LAST}, "max_episode_steps=2 cuts episodes, .* has 6 steps", 8, 0, LIMIT_2),
        (STATES | {"timeouts": LAST}, "", 4, 0, LIMIT_6),
        (STATES | {"episode": IDS, "step": STEPS}, "max_episode_steps=2 cuts episodes, .* 6 s", 10, 2, LIMIT_2),
        (STATES | {"episode": IDS, "step": STEPS}, "", 4, 3, LIMIT_6),
    ],
    "padding": [
        (PADDED, "157 rows, such as row 71, are 0 in everything, as where episodes are", 40, 0),
        (END_12, "12 rows, such as row 388, are the same row, to the end, as where episodes", 390, 80),
        (END_120, "120 rows, such as row 280, are the same row, to the end, as where", 304, 80),
        (OF_16, "", 25, 0),
        (FROM_8, "200 rows, such as row 8, are the same as the row before, whose next state is another", 25, 0),
        (with_value(-999), "'observations' are -999 in column 1 of 25 rows, such as row 7, far from its other", 25, 0),
        (with_value(9999, "actions"), "'actions' are 9999 in column 1 of 25 rows, such as row 7, far from its", 25, 0),
        (with_value(-3), "", 25, 0),
        (WALK | {"terminals": FELL, "size": 10}, "10 rows were filled; the other 8 are left out, though", 3, 1),
    ],
}


@pytest.mark.parametrize(
    ("log", "message", "episodes", "terminals", "options"),
    [pytest.param(*(*row, {})[:5], id=f"{kind}: {row[1]}") for kind, rows in EVIDENCE.items() for row in rows],
)
def test_what_may_be_read_wrong_is_questioned_and_nothing_else(log, message, episodes, terminals, options):
    with warnings.catch_warnings(record=True, action="always") as caught:
        loaded = sopr_fast.load_log(log, **options)
    assert any(re.search(f"dataset: .*{message}", str(each.message)) for each in caught) if message else not caught
    assert (len(loaded.episodes) - 1, loaded.terminals.sum()) == (episodes, terminals)
    assert ("; they go on after " in loaded.verdict) == (message == GOES_ON)


def test_steps_of_several_environments_are_put_in_order():
    random = np.random.default_rng(0)
    states = np.cumsum(random.uniform(0, 0.1, (31, 3, 4)), 0) + 3 * np.arange(3)[:, None]
    done = random.random((30, 3)) < 0.2
    steps = [
        {
            "obs": states[t],
            "action": [0, 1, 0],
            "reward": states[t, :, 0],
            "done": done[t],
            "next_obs": states[t + 1],
            "t": t,
        }
        for t in range(30)
    ]
    for log in (load(steps, quiet=False), load([without(step, "next_obs") for step in steps], quiet=False)):
        np.testing.assert_allclose(log.states, states[:30].swapaxes(0, 1).reshape(90, 4)[log.source], rtol=1e-6)
        assert log.terminals.sum() == done.sum() and len(log.episodes) - 1 == done.sum() + (~done[-1]).sum()
    # Episodes of a deterministic environment differ less than their steps.
    alike = {"obs": np.arange(12.0).reshape(12, 1) ** 2, "action": np.zeros(12), "reward": np.ones(12)}
    for flags in ({}, {"terminal": np.arange(12) == 11}, {"mask": np.arange(12) < 11, "is_first": np.arange(12) == 0}):
        assert lengths(load([alike | flags] * 40, quiet=False)) == [12] * 40
    still = {"obs": 0 * states[0], "next_obs": 0 * states[0], "done": [False, False, True]}
    still = [without(step, "t") | still for step in steps]
    assert lengths(load(still, quiet=False)) == [3] * 30  # of episodes of equal states


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


@pytest.mark.parametrize("log", BOTH, ids=["next states", "states"])
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
    if end == "terminals":  # two environments, one after the other
        both = {name: np.concatenate([x[:-1], x[:-1]]) for name, x in given.items()}
        loaded = load(both | {"episode": np.arange(102) // 51}, quiet=False)
        assert lengths(loaded) == 2 * [*steps]


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


CONTRADICTIONS = [
    ({"terminals": FELL, "terminated": LAST}, "'terminals' and 'terminated' both mean the terminals and disagree"),
    ({"masks": FELL, "terminals": FELL}, "'terminals' and 'masks' both mean the terminals and disagree"),
    ({"masks": ~FELL, "terminals": LAST}, "choose one by .*; if 'terminals' also mark cuts, as those of OGBench, by"),
    ({"terminals": FELL, "dones": NEVER}, "'terminals' mark 2 ends that 'dones' do not"),
    ({"obs": np.zeros((COUNT, 2))}, "'observations' and 'obs' both mean the states and disagree"),
    ({"timeouts": LAST, "truncated": FELL}, "'timeouts' and 'truncated' both mean the timeouts and disagree"),
    ({"episode": IDS, "done": FIRST}, "'done' marks the first rows of episodes, not the last ones"),
    ({"episode": IDS, "terminals": FELL, "is_last": FIRST}, "'is_last' marks the first rows of episodes, not the"),
]
INVERSE, EARLY = (
    "marks 77.8% of rows as ends: if 0 marks ends, pass 1",
    "marks rows before the last ones of episodes: move",
)
FLAGS = {name: 1.0 * LAST for name in ("terminals", "timeouts", "done", "is_last")} | {"masks": 1.0 * ~LAST}
OF_BANDITS = [
    ({"context/age": ONES}, "'context' may be the states, and so may named .*'states': 'context'}.* or"),
    ({"context": [np.zeros((2, 3)), np.zeros((4, 3))]}, "'context' is no array: .*; pass a list of dictionaries"),
    ({"log_probs": 0.3 * ONES}, "'log_probs' of discrete actions must be at most 0, got 0.3 at row 0"),
    ({"pscore": 1.5 * ONES}, "'pscore' must be from above 0 to 1, got 1.5 at row 0"),
    ({"pscore": 0 * ONES}, "'pscore' must be from above 0 to 1, got 0 at row 0"),
    ({"pscore": 0.5 * ONES, "log_probs": -3 * ONES}, "'pscore' and 'log_probs' disagree"),
    ({"pscore": np.ones((400, 3))}, r"'pscore' must have shape \(rows,\), got \(400, 3\); pass only that"),
    ({"pscore": -1.1 * ONES}, "'pscore' .* got -1.1 .*logarithms as .*columns={'log_probs': 'pscore'}"),
    (
        {"action": ["left", "right"] * 200},
        "'action' must be .*number the words, actions as the policies do, .*'left': 0",
    ),
    ({"step": np.array(["NaT"] + ["2020-01-01"] * 399, "M8[D]")}, "'step' is no number or ISO date at row 0"),
    ({"time": np.array(["noon"] * 400)}, "'time' is no number or ISO date at row 0"),
    ({"episode": np.where(COUNTED == 3, np.nan, 0)}, "'episode' has no value at row 3"),
    ({"episode": COUNTED // 2 % 100, "step": COUNTED % 2}, "an episode .* has 'step' 0 twice, again at row 200"),
]
NUMBERS = [
    ({"obs_1": "obs_2"}, r"the columns obs_0, obs_2 leave some out: add these, or .* columns={'states': \['obs_0'"),
    ({"obs_0": "obs[3]", "obs_1": "obs[4]"}, r"the columns obs\[3\], obs\[4\] leave some out"),
    ({"next_obs_1": "next_obs_2"}, "the columns next_obs_0, next_obs_2 leave some out: .*={'next_states': "),
    (
        {"obs_0": "obs", "next_obs_0": "next_obs"},
        r"there are 'obs' and 'obs_1'; .* columns={'states': \['obs', 'obs_1'\]}, or",
    ),
]


@pytest.mark.parametrize(
    ("log", "message", "is_advised"),
    [(log | extra, message, True) for log in BOTH for extra, message in CONTRADICTIONS]
    + [(log | {name: 1 - x}, f"'{name}' {INVERSE}", False) for log in WITH_EPISODES for name, x in FLAGS.items()]
    + [(log | {name: np.roll(x, -1)}, f"'{name}' {EARLY}", False) for log in WITH_EPISODES for name, x in FLAGS.items()]
    + [(BANDIT | extra, message, False) for extra, message in OF_BANDITS]
    + [(FRAME.rename(columns=names), message, True) for names, message in NUMBERS],
)
def test_wrong_logs_are_refused_by_advice_that_works(log, message, is_advised):
    for read in (sopr_fast.load_log, load_states)[: 2 if re.search("leave some out: add|'states'", message) else 1]:
        with pytest.raises((TypeError, ValueError), match=f"(dataset|data frame): .*{message}") as raised:
            read(log)
    if is_advised:
        columns = ast.literal_eval(re.search(r"columns=({[^}]*})", str(raised.value))[1])
        assert load(log, quiet=False, columns=columns).source_count == COUNT


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
            drawn = f"{len(log.episodes) - 1} episodes, drawn from " if len(log) < COUNT else ""
            assert log.verdict == drawn + whole.verdict


Transition = namedtuple("Transition", ["state", "action", "next_state", "reward"])


def test_steps_without_a_next_state_are_terminal():
    unknown = np.where(FELL[:, None], np.nan, WALK[NEXT])
    expected = load(WALK | {"terminals": FELL, NEXT: unknown}, quiet=False)
    parts = WALK.values()  # states, actions, rewards and next states
    steps = [(s, a, r, None if end else following) for s, a, r, following, end in zip(*parts, FELL, strict=True)]
    memory = [Transition(s[None], a[None], f if f is None else f[None], np.array([r])) for s, a, r, f in steps]
    named = [dict(zip(("state", "action", "reward", "next_state"), step, strict=True)) for step in steps]
    for log in (memory, deque(memory), named, [(*step, end) for step, end in zip(steps, FELL, strict=True)]):
        read = load(log, quiet=False)
        np.testing.assert_array_equal(read.terminals, FELL)
        np.testing.assert_array_equal(read.next_states, expected.next_states)
    with pytest.raises(ValueError, match=r"'states' is no array: .*dict\(zip\(\('state', 'action', …\), step\)\)"):
        load([(s, a, following, r) for s, a, r, following in steps])
    columns = {"done": [[end] for end in FELL], "reward": [[r] for _, _, r, _ in steps]}
    several = [step | {key: values[i] for key, values in columns.items()} for i, step in enumerate(named)]
    np.testing.assert_array_equal(load(several, quiet=False).terminals, FELL)


def test_step_types_are_first_and_last_rows():
    """As of dm_env: 0, 1, 2; rows of type 2 hold only the last state. A discount of 0 is on either side of it."""
    last = np.cumsum(np.array(LENGTHS) + 1) - 1
    kinds = np.ones(COUNT + 4, int)
    kinds[last], kinds[[0, *last[:-1] + 1]] = 2, 0
    log = {name: np.insert(STATES[name], ENDS + 1, 0, axis=0) for name in STATES}
    log["observations"][last] = WALK[NEXT][ENDS]
    for shift in (0, 1):
        discount = np.ones(COUNT + 4)
        discount[last[[0, 2]] - shift] = 0
        read = load(log | {"step_type": kinds, "discount": discount}, columns={"terminals": "discount"})
        np.testing.assert_array_equal(read.terminals, FELL)
        np.testing.assert_array_equal(read.timeouts, CUT)
        np.testing.assert_array_equal(read.next_states, WALK[NEXT])


@pytest.mark.parametrize("flag", ["terminals", "dones"])
def test_next_states_of_0_at_ends_are_unknown(flag):
    filled = WALK | {flag: LAST, NEXT: np.where(LAST[:, None], 0, WALK[NEXT])}
    with pytest.warns(UserWarning, match="'next_observations' are 0 at 4 ends, such as row 4, and no state is: "):
        log = sopr_fast.load_log(filled)
    np.testing.assert_array_equal(log.next_states[LAST], WALK["observations"][LAST])
    at_0 = filled | {"observations": np.where(FIRST[:, None], 0, WALK["observations"])}
    assert (load(at_0, quiet=False).next_states[LAST] == 0).all()
