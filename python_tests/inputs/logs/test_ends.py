"""Where episodes end, and why: complete statements are read exactly, others are refused with a remedy that works."""

import ast
import re
import warnings

import numpy as np
import pandas
import pytest
import torch
from support.walks import NEXT, only, walk, without

import sopr_fast
from sopr_fast.estimators import FQE, DualDICE, ImportanceWeighting
from sopr_fast.inputs.logs import Transitions, load_states, load_transitions

LENGTHS = (5, 3, 6, 4)
COUNT, ENDS = sum(LENGTHS), np.cumsum(LENGTHS) - 1
ROWS = np.arange(COUNT)
FELL, CUT = np.isin(ROWS, ENDS[[0, 2]]), np.isin(ROWS, ENDS[[1, 3]])
LAST, NEVER = FELL | CUT, ROWS < 0
FIRST = np.roll(LAST, 1)
IDS, STEPS = np.repeat([7, 3, 5, 1], LENGTHS), np.concatenate([*map(np.arange, LENGTHS)])
WALK = walk(LENGTHS)
STATES = without(WALK, NEXT)
FLAGS = {"terminals": FELL, "timeouts": CUT}
TERMINAL, CUT_ALL, LIMIT = {"ends": "terminal"}, {"ends": "cut"}, {"max_episode_steps": 6}
BANDIT_LIMIT = {"max_episode_steps": 1}


def load(log, **options):
    with warnings.catch_warnings(action="error"):
        return sopr_fast.load_log(log, **options)


def cumulated(marks):
    return np.cumsum(marks) - marks


COMPLETE = [  # arrays, options, terminals, cuts; a log may stop in its last row
    (FLAGS, {}, FELL, CUT),
    ({"dones": LAST, "timeouts": CUT}, {}, FELL, CUT),
    ({"masks": ~FELL, "dones_float": LAST}, {}, FELL, CUT),
    ({"terminals": FELL, "traj": IDS, "env": IDS // 4, "seed": IDS}, {}, FELL, CUT),
    ({"terminateds": FELL, "episode_starts": FIRST}, {}, FELL, CUT),
    ({"Terminated": FELL, "Episode ID": np.repeat(["d", "b", "c", "a"], LENGTHS)}, {}, FELL, CUT),
    ({"terminals": FELL, "episodeId": IDS, "step": STEPS + 3, "time": STEPS / 2}, {}, FELL, CUT),
    ({"terminals": FELL, "environment": IDS}, TERMINAL, FELL, CUT),
    ({"episode": IDS, "timeouts": CUT}, TERMINAL, FELL, CUT),
    ({"episode": IDS, "timeouts": LAST}, {}, NEVER, LAST),
    ({"timeouts": LAST}, CUT_ALL, NEVER, LAST),
    *(({name: LAST}, TERMINAL, LAST, NEVER) for name in ("done", "is_last", "episode_terminals")),
    *(({name: x}, TERMINAL, LAST, NEVER) for name, x in (("episode", IDS), ("is_first", FIRST), ("terminals", LAST))),
    ({"episode": IDS}, CUT_ALL, NEVER, LAST),
    *(({name: x}, LIMIT, LAST & (STEPS < 5), STEPS == 5) for name, x in (("episode", IDS), ("done", LAST))),
    ({"terminals": LAST, "timeouts": CUT}, TERMINAL, LAST, NEVER),
    ({"terminals": LAST, "timeouts": CUT}, CUT_ALL, FELL, CUT),
    ({"x": LAST, "y": FELL}, {"columns": {"dones": "x", "terminals": "y"}}, FELL, CUT),
    ({"run": IDS // 4, "n": IDS % 4}, {"columns": {"episodes": ["run", "n"]}, **CUT_ALL}, NEVER, LAST),
    ({"terminals": FELL, "pscore": np.ones(COUNT)}, {"max_episode_steps": 1}, ~NEVER, NEVER),
]
WITH_NEXT_STATES = [
    ({"terminals": LAST}, {}, LAST, NEVER),
    ({"terminals": FELL}, CUT_ALL, FELL, CUT),
    ({}, CUT_ALL, NEVER, LAST),
]


@pytest.mark.parametrize(
    ("log", "flags", "options", "terminals", "cuts"),
    [(log, *row) for log in (WALK, STATES) for row in COMPLETE] + [(WALK, *row) for row in WITH_NEXT_STATES],
)
def test_complete_statements_are_read_exactly(log, flags, options, terminals, cuts):
    read = load(log | flags, **options)
    cuts = cuts | (ROWS == COUNT - 1) & ~terminals
    dropped = NEVER if log is WALK else cuts  # the next state is unknown
    assert read.source.tolist() == np.flatnonzero(~dropped).tolist() and read.source_count == COUNT
    assert read.source[read.terminals].tolist() == np.flatnonzero(terminals & ~dropped).tolist()
    ends = terminals | cuts | np.append(dropped[1:], False)
    assert read.episodes[1:].tolist() == (np.flatnonzero(ends[~dropped]) + 1).tolist()
    np.testing.assert_array_equal(read.timeouts, (ends & ~terminals)[~dropped])
    where = ~read.terminals if log is STATES else slice(None)
    np.testing.assert_array_equal(read.next_states[where], WALK[NEXT][read.source][where])
    said = [name for name in flags if name not in ("pscore", "step", "time", "env", "run", "n", "seed")]
    assert options.get("max_episode_steps") == 1 or all(name in read.summary for name in said)


def test_an_episode_of_one_step_may_be_cut_after_another_ended():
    read = load(STATES | {"terminals": ROWS == 3, "timeouts": (ROWS == 4) | (ROWS == COUNT - 1)})
    assert read.episodes.tolist() == [0, 4, COUNT - 2] and read.source_count == COUNT
    assert read.source[[3, 4]].tolist() == [3, 5] and np.flatnonzero(read.terminals).tolist() == [3]


INDEX = np.arange(400)
NOISE = {
    "observations": np.random.default_rng(0).normal(size=(400, 2)),
    "actions": INDEX % 7 / 7,
    "rewards": np.ones(400),
}
GOALS = walk([50] * 8, "c" * 8)  # trajectories that pass a goal region
GOALS["terminals"] = (GOALS[NEXT][:, 0] > 12) & (GOALS[NEXT][:, 0] < 13.5)
STAYS = walk([50] * 8) | {"done": INDEX % 50 > 40, "episode": INDEX // 50}
SEVERAL = walk([50] * 8) | {"episode": INDEX // 50}
N_STEPS = SEVERAL | {NEXT: SEVERAL["observations"][np.minimum(INDEX + 3, INDEX // 50 * 50 + 49)]}
IN_TURN = np.argsort(INDEX % 50, kind="stable")  # a row of each episode, and so on
COUNTED = SEVERAL | {"step": INDEX % 50, "time": INDEX % 24}
RESET = walk([4, 3, 4, 4, 2], "ctcct")
RESET[NEXT][[3, 6, 10, 14]] = RESET["observations"][[4, 7, 11, 15]]  # as a vectorised environment returns them
SAME, ONE, NO = "disagree on the ends at", "marks .* where the next row is marked too", "alone, nothing says where"
REFUSED = [  # log, options, message, options that it advises, episodes then
    (STATES, {}, "where episodes end is not said: .*'dones'.* bandit max_", BANDIT_LIMIT, 18),
    (STATES, LIMIT, "where episodes end is not said: max_episode_steps=6 says only how long they", None, 0),
    (STATES | {"done": LAST}, {}, f"'done' {NO} episodes .*'terminal'. or ends='cut'.*max_ep", TERMINAL, 4),
    (STATES | {"episode": IDS, "x": IDS}, {}, f"'episode' {NO} .*: pass .*ends=.*; not read: x$", CUT_ALL, 4),
    (STATES | {"terminals": FELL}, {}, f"'terminals' {NO} .*ends='terminal'. if", TERMINAL, 3),
    (STATES | {"timeouts": CUT}, {}, f"'timeouts' {NO} .*ends='cut'. if none", CUT_ALL, 2),
    (WALK | {"terminals": FELL}, {}, "of 1 row .such as row 7. .* pass ends='cut'", CUT_ALL | {"columns": None}, 4),
    (WALK | {"terminals": LAST, "timeouts": CUT}, {}, "both mark 2 rows .such as row 7.: pass", CUT_ALL, 4),
    (STATES | {"episode": IDS, "done": FELL}, {}, f"{SAME} 1 row .such as row 7.: .*'terminals': 'done'", CUT_ALL, 4),
    (STATES | {"episode": IDS, "done": FIRST}, TERMINAL, f"{SAME} 7 rows .such as row 0.: leave", None, 4),
    (STATES | {"episode": IDS, **FLAGS, "timeouts": NEVER}, {}, "no mark by .* at 1 end .such as row 7.", CUT_ALL, 4),
    (STATES | {"episode": IDS, "terminals": FELL}, TERMINAL, "1 end .* pass .*ends='cut'", None, 0),
    (STATES | {"episode": ROWS, "done": LAST}, TERMINAL, f"'done' and 'episode' {SAME} 14 rows", None, 0),
    (STATES | {"is_first": LAST}, TERMINAL, "'is_first' does not mark row 0", None, 0),
    (GOALS, {}, f"'terminals' {ONE}.*: .*'unread': 'terminals'.*ends=", CUT_ALL, 8),
    (STATES | {"terminals": NEVER, "timeouts": (ROWS == 3) | (ROWS == 4)}, {}, "'timeouts' marks 1 row", None, 0),
    (STAYS, {}, f"'done' and 'episode' {SAME}", CUT_ALL, 8),
    (without(STAYS, "episode", NEXT), TERMINAL, "'done' marks 64 rows .such as row 41., where the next", None, 0),
    (without(STAYS, "done") | {"terminals": STAYS["done"]}, {}, f"'terminals' .* {SAME} 64 rows", CUT_ALL, 8),
    (N_STEPS, CUT_ALL, "of n-step rows, keep every n-th", None, 0),
    (SEVERAL | {NEXT: SEVERAL["observations"]}, CUT_ALL, f"'{NEXT}' of 392 rows .*'unread': '{NEXT}'", {}, 8),
    (RESET, {}, "marks 1 row .such as row 6., where .* reset .*'unread': 'next", {"columns": {"unread": NEXT}}, 5),
    (RESET | {"episode": cumulated(RESET["terminals"] | RESET["timeouts"])}, {}, "each of 3 cuts .* first st", {}, 5),
    (only(IN_TURN, without(COUNTED, "time")), CUT_ALL, "goes back to .*sort_values.*'episode', 'step'", {}, 8),
    (without(COUNTED, "step"), CUT_ALL, "'time' does not increase .*row 23.: .*'unread': 'time'", {}, 8),
    (SEVERAL | {"t": 9 - INDEX}, CUT_ALL, "'t' does not .* if it counts down, .*'unread': 't'", {}, 8),
    (SEVERAL | {"time": 0 * INDEX}, CUT_ALL, "'time' does not increase .*row 0.: .*'unread': 'time'", {}, 8),
    (without(COUNTED, "time") | {"step": INDEX % 50 // 2}, CUT_ALL, "does not count .*row 0.: if", {}, 8),
    (STATES | {"step": 0 * ROWS, **FLAGS}, {}, "'step' does not count .*sort them first, .*'episode', 'step'", None, 0),
    (STATES | {"episode": IDS // 6, "agent_id": ROWS % 2}, CUT_ALL, "'episode, agent_id' goes back ", {}, 4),
    (NOISE | {"episode": INDEX // 20, "done": INDEX % 20 == 19}, {"max_episode_steps": 9}, "steps=9, but", None, 0),
    (NOISE | {"episode": INDEX // 20}, BANDIT_LIMIT, "steps=1, but an episode goes on at 380", None, 0),
    (STATES | {"terminals": FELL, "terminated": LAST}, {}, "'terminated' both mean the terminals", TERMINAL, 3),
    (STATES | {"masks": FELL, **FLAGS}, {}, "'terminals' and 'masks' both mean .*; choose .*, or leave", {}, 4),
    (STATES | {"cost": ROWS, **FLAGS}, {}, "both 'rewards' and 'cost', .*'unread': 'cost'", {}, 4),
    (STATES | {"is_first": FIRST, "is_last": LAST, "is_terminal": FELL}, {}, "'is_terminal' are of dm_env", {}, 4),
    (STATES | FLAGS, {"ends": "done"}, "ends must be 'terminal' or 'cut', got 'done'", None, 0),
]  # fmt: skip


@pytest.mark.parametrize(("log", "options", "message", "advised", "episodes"), REFUSED, ids=[row[2] for row in REFUSED])
def test_incomplete_or_contradictory_logs_are_refused_by_advice_that_works(log, options, message, advised, episodes):
    """The first `columns`, or the order, of the message are followed, and `advised`, which it names too."""
    with pytest.raises(ValueError, match=f"^(dataset: )?.*{message}") as raised:
        load(log, **options)
    text = str(raised.value)
    if advised is None and not episodes:
        return
    followed = {}
    if "goes back to" in text:
        names = ast.literal_eval(re.search(r"sort_values\((\[.*?\])", text)[1])
        log = only(np.lexsort([log[name] for name in reversed(names)]), log)
    elif (match := re.search(r"columns=({[^]}]*\]?})", text)) and "…" not in match[1]:
        followed["columns"] = ast.literal_eval(match[1])
    read = load(log, **options | followed | (advised or {}))
    assert len(read.episodes) - 1 == episodes
    np.testing.assert_array_equal(
        read.states, log["observations"][read.source].astype(np.float32).reshape(len(read), -1)
    )


def test_flags_that_stay_set_are_read_by_numbers_of_one_step_episodes():
    given = NOISE | {"done": INDEX % 3 > 0}
    read = load(given | {"episode": cumulated(given["done"])}, ends="terminal")
    assert np.diff(read.episodes).tolist() == [2, 1] * 133 + [1] and read.terminals.sum() == 267


def test_arrays_of_time_and_environment_are_refused_until_rows_are_one_after_another():
    """The advice is followed."""
    log = {name: x.reshape(8, 50, -1).swapaxes(0, 1) for name, x in without(SEVERAL, "episode", NEXT).items()}
    log["done"] = np.tile(np.arange(50)[:, None] == 49, 8)
    with pytest.raises(ValueError, match="axis 1 of environments, pass one dictionary of their rows, {") as raised:
        load(log, ends="cut")
    line = re.search(r"rows, ({name: .*\)})", str(raised.value))[1]
    read = load(eval(line, {"numpy": np, "range": range, "log": log}), ends="cut")
    np.testing.assert_array_equal(read.states, SEVERAL["observations"][INDEX % 50 < 49])


def test_costs_rows_of_padding_and_unknown_next_states():
    expected = load(WALK | FLAGS)
    padded = only(np.insert(ROWS, ENDS + 1, 0), WALK | FLAGS)
    valid = ~np.isin(np.arange(22), ENDS + 1 + np.arange(4))
    log = load(without(padded, "rewards") | {"cost": -padded["rewards"], "valid": valid})
    for part in ("states", "rewards", "next_states", "terminals", "timeouts", "episodes"):
        np.testing.assert_array_equal(getattr(log, part), getattr(expected, part))
    assert "rewards are the negative of 'cost'" in log.summary
    ends = np.insert(CUT, ENDS + 1, CUT[ENDS])
    with pytest.raises(ValueError, match="'timeouts' marks a row that 'valid' leaves out, and not the row before"):
        load(padded | {"valid": valid, "timeouts": ends & ~valid})
    unknown = WALK | FLAGS | {NEXT: np.where(LAST[:, None], np.nan, WALK[NEXT])}
    log = load(unknown)
    assert np.diff(log.episodes).tolist() == [5, 2, 6, 3] and log.terminals.sum() == 2
    with pytest.raises(ValueError, match="and no end is marked .* leave .*'unread': 'next_obs"):
        load(unknown | {"timeouts": NEVER})


def test_arrays_are_one_constructor_away():
    expected = load(WALK | FLAGS)
    parts = dict(zip(("states", "actions", "rewards", "next_states"), WALK.values(), strict=True))
    made = Transitions.from_arrays(**parts, terminals=FELL, truncations=CUT)
    np.testing.assert_array_equal(made.next_states, expected.next_states)
    np.testing.assert_array_equal(made.episodes, expected.episodes)
    facts = "4 of 3 to 6 steps; 2 end in a terminal state, 2 are cut; said by 'terminals' and 'truncations'"
    assert made.summary == f"episodes: {facts}"
    with pytest.raises(ValueError, match="^arrays: by 'dones' alone, nothing"):
        Transitions.from_arrays(**parts, dones=LAST)
    with pytest.raises(ValueError, match="the part 'time_limits'; a log's parts are states, actions"):
        Transitions.from_arrays(**parts, time_limits=CUT)
    with pytest.raises(ValueError, match="both 'truncated' and 'timeouts' are given as the truncations"):
        Transitions.from_arrays(**parts, terminals=FELL, timeouts=CUT, truncated=CUT)
    with pytest.raises(ValueError, match="arrays: no array 'actions'"):
        Transitions.from_arrays(states=STATES["observations"], rewards=STATES["rewards"])


def test_facts_are_told_and_nothing_is_judged():
    held = NOISE | {"actions": INDEX // 4, "episode": INDEX // 20, "timestamp_ms": INDEX}
    log = load(held, ends="cut")
    words = log.summary.split("; ")
    assert words[2:4] == ["said by 'episode' and ends='cut'", "20 last steps left out, whose next state is unknown"]
    assert words[4] == "actions repeat the one before in 78 % of steps"  # of 18 pairs in 19 steps, 14 are equal
    assert words[-1] == "not read: timestamp_ms"
    states = load(without(held, "rewards") | {"penalty": INDEX, "x_1": INDEX})
    assert states.summary == "only states are read, since there are no rewards; not read: timestamp_ms, penalty, x_1"
    with pytest.raises(ValueError, match="not read: timestamp_ms, penalty; actions and rewards are .*'costs': …}"):
        load_transitions(without(held, "rewards") | {"penalty": INDEX})


BANDIT = {"context": NOISE["observations"], "action": INDEX % 3, "reward": np.random.default_rng(1).random(400)}
ONES = np.ones(400)


def test_every_row_of_a_bandit_is_an_episode():
    log = load(BANDIT | {"pscore": ONES / 3}, max_episode_steps=1)
    assert log.episodes.tolist() == [*range(401)] and log.terminals.all() and len(log) == 400
    np.testing.assert_allclose(log.log_probs, np.log(1 / 3), rtol=1e-6)
    prefers = {"first": lambda states: torch.distributions.Categorical(torch.eye(3)[[0] * len(states)])}
    with warnings.catch_warnings(action="ignore"):
        value = ImportanceWeighting(discount=1).estimate(prefers, log).values[0]
        FQE(discount=1, updates=20, hidden=(4,)).estimate(prefers, log)
    assert value == pytest.approx(BANDIT["reward"][BANDIT["action"] == 0].mean(), rel=1e-5)
    weights = sopr_fast.load_log(BANDIT | {"pscore": 1.5 * ONES}, max_episode_steps=1)
    with pytest.raises(ValueError, match="log: the probability of a discrete action is 1.5 at row 0: give it"):
        ImportanceWeighting(discount=1).estimate(prefers, weights)


def test_undiscounted_values_need_episodes_that_end():
    policy = {"still": lambda states: np.zeros((len(states), 2), np.float32)}
    with pytest.raises(ValueError, match="discount=1 needs episodes that end in .* states, but 2 of 4 are cut"):
        FQE(discount=1).estimate(policy, WALK | FLAGS)
    with pytest.raises(ValueError, match="DualDICE needs a discount below 1"):
        DualDICE(discount=1).estimate(policy, WALK | {"terminals": LAST})


FRAME = pandas.DataFrame(WALK["observations"][:, :2], columns=["obs_0", "obs_1"])
FRAME[["next_obs_0", "next_obs_1"]] = WALK[NEXT][:, :2]
FRAME = FRAME.assign(action=0.0, reward=1.0, terminated=FELL, truncated=CUT)
NUMBERS = [
    ({"obs_1": "obs_2"}, r"the columns of states leave some out: .* columns={'states': \['obs_0', 'obs_2'\]"),
    ({"next_obs_1": "next_obs_2"}, "the columns of next_states leave some out: "),
    ({"obs_0": "obs", "next_obs_0": "next_obs"}, r"there are 'obs' and 'obs_1'; .* columns={'states': \['obs', 'ob"),
]


@pytest.mark.parametrize(("names", "message"), NUMBERS)
def test_columns_whose_numbers_tell_no_order_are_refused_by_advice_that_works(names, message):
    log = FRAME.rename(columns=names)
    with pytest.raises(ValueError, match=f"data frame: .*{message}") as raised:
        sopr_fast.load_log(log)
    columns = ast.literal_eval(re.search(r"columns=({[^}]*})", str(raised.value))[1])
    assert load(log, columns=columns).source_count == COUNT


TIMES = pandas.Timestamp("2020-01-31 22:00") + pandas.to_timedelta(STEPS, "h")


@pytest.mark.parametrize("values", [STEPS, TIMES.astype(str), [*TIMES]])
def test_rows_of_tables_must_be_sorted(values):
    """As in clinical tables: stays differ in length, and the only reward is that of the last step."""
    name = "hour" if values is STEPS else "time"
    frame = FRAME.assign(stay=np.repeat(["d", "b", "c", "a"], LENGTHS), reward=15.0 * LAST, **{name: values})
    table = frame.iloc[np.random.default_rng(0).permutation(COUNT)]
    columns = {"episodes": "stay"} | ({"steps": "hour"} if name == "hour" else {})
    with pytest.raises(ValueError, match=f"'stay' goes back to .*table.sort_values...stay', '{name}'., kind='stable"):
        sopr_fast.load_log(table, columns=columns)
    table = table.sort_values(["stay", name])
    np.testing.assert_array_equal(load(table, columns=columns).states, table[["obs_0", "obs_1"]])


@pytest.mark.parametrize("fields", [{"size": COUNT, "ptr": np.inf}, {"_size": COUNT}])
def test_unfilled_rows_of_a_buffer_are_left_out(fields):
    arrays = {key: np.concatenate([x, np.zeros((42, *x.shape[1:]))]) for key, x in (WALK | FLAGS).items()}
    for log in (arrays | fields, arrays | {"_size": 0, "_lengths": [COUNT, 0], "_offset": [0, 40]}):
        assert len(load(log)) == len(load_states(log)) == COUNT
    full = {key: np.arange(60)[:, None] * 1.0 for key in ("obs", "actions")} | {"rewards": np.arange(60.0)}
    full |= {"next_obs": full["obs"] + 1, "terminals": np.arange(60) == 59, "timeouts": np.arange(60) == 19}
    with pytest.raises(ValueError, match=r"full buffer, of which row 20 is the oldest: pass .*numpy\.roll\(x, -20"):
        load(full | {"size": 60, "ptr": 20})
    assert len(load(full | {"size": 60, "ptr": 0}, columns={"unread": "next_obs"})) == 59
