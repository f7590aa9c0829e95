"""Where episodes end: names of ends, contradictions, trajectories that go on, ids, buffers, and one-step episodes."""

import re
import warnings
from collections import deque, namedtuple
from itertools import pairwise

import h5py
import numpy as np
import pandas
import pytest

import sopr_fast
from sopr_fast.estimators import FQE, DualDICE, ImportanceWeighting
from sopr_fast.inputs.logs import describe, load_states
from sopr_fast.inputs.policies import Probabilities

LENGTHS = (5, 3, 6, 4)
ENDS = np.cumsum(LENGTHS) - 1
COUNT = sum(LENGTHS)
ROWS = np.arange(COUNT)
FELL = np.isin(ROWS, ENDS[[0, 2]])  # the other two episodes are cut
LAST = np.isin(ROWS, ENDS)
CUT = LAST & ~FELL
FIRST = np.roll(LAST, 1)
IDS = np.repeat([7, 3, 5, 1], LENGTHS)
STEPS = np.concatenate([*map(np.arange, LENGTHS)])
NEVER = np.zeros(COUNT)
ONES, COUNTED = np.ones(400), np.arange(400)


def walk(*, next_states=True, seed=0):
    """Return four episodes of a walk with small steps that begins near 0."""
    random = np.random.default_rng(seed)
    states = np.concatenate([np.cumsum(random.uniform(0.5, 1, (n + 1, 2)), 0) for n in LENGTHS])
    first = ROWS + np.repeat(range(4), LENGTHS)
    log = {"observations": states[first], "actions": random.normal(size=(COUNT, 1)), "rewards": np.ones(COUNT)}
    return log | ({"next_observations": states[first + 1]} if next_states else {})


def load(log, quiet=True, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error" if quiet else "ignore")
        return sopr_fast.load_log(log, **options)


def advised_columns(error):
    """Return the mapping that a message advises."""
    return dict([re.search(r"columns={'(\w+)': '([\w/.]+)'}", str(error)).groups()])


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
    log = load(walk() | flags)
    np.testing.assert_array_equal(log.terminals, FELL)
    np.testing.assert_array_equal(log.episodes[1:] - 1, ENDS)
    assert log.verdict.startswith("episodes: 4 of 3 to 6 steps; 2 end in a terminal state, 2 are cut; decided by ")
    assert all(repr(name) in log.verdict for name in flags)
    assert repr(log) == f"Transitions({len(log)} steps; {log.verdict})"


@pytest.mark.parametrize("name", ["episode_terminals", "is_last", "dones", "done"])
def test_ends_that_may_be_time_limits_are_taken_as_terminals_with_a_warning(name):
    with pytest.warns(UserWarning, match=f"dataset: ends by '{name}' are taken as terminals; if a time limit cut"):
        log = sopr_fast.load_log(walk() | {name: LAST})
    np.testing.assert_array_equal(log.terminals, LAST)
    limited = load(walk() | {name: LAST}, max_episode_steps=6)
    assert np.flatnonzero(limited.terminals).tolist() == [ENDS[0], ENDS[1], ENDS[3]]


@pytest.mark.parametrize("following", [True, False])
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
def test_contradictions_are_refused_by_advice_that_works(extra, message, following):
    given = walk(next_states=following) | extra
    with pytest.raises(ValueError, match=f"dataset: {message}") as raised:
        sopr_fast.load_log(given)
    log = load(given, quiet=False, columns=advised_columns(raised.value))
    assert log.source_count == COUNT and ("episode" not in extra or len(log.episodes) == 5)


@pytest.mark.parametrize("name", ["terminals", "timeouts", "done", "is_last", "masks"])
@pytest.mark.parametrize("log", [walk(), walk(next_states=False) | {"episode": IDS}])
def test_flags_whose_0_marks_ends_are_refused(name, log):
    flags = LAST if name == "masks" else ~LAST
    with pytest.raises(ValueError, match=f"dataset: '{name}' marks 77.8% of rows as ends: if 0 marks ends, pass 1"):
        sopr_fast.load_log(log | {name: flags})
    assert len(load(log | {name: 1 - flags}, quiet=False).episodes) == 5
    with pytest.raises(ValueError, match=f"dataset: '{name}' marks rows before the last ones of episodes: move"):
        sopr_fast.load_log(log | {name: np.roll(1 - flags, -1)})


@pytest.mark.parametrize(
    ("name", "values", "part"),
    [
        ("infos/TimeLimit.truncated", CUT, "timeouts"),
        ("infos/timeouts", CUT, "timeouts"),
        ("patient_id", IDS, "episodes"),
        ("icustayid", IDS, "episodes"),
        ("discount", 0.99 * ~FELL, "terminals"),
        ("continues", ~FELL, "terminals"),
        ("nonterminals", ~FELL, "terminals"),
        ("mask", ~FELL, "terminals"),
        *((name, 1.0 * FELL, "") for name in ("absorbing", "crashed", "Episode.End", "x")),
    ],
)
def test_an_unread_array_is_read_as_is_advised(name, values, part):
    ends = {"timeouts": {"done": LAST}, "episodes": {"done": FELL}, "terminals": {"timeouts": CUT}, "": {}}[part]
    part = part or "terminals"
    given = walk() | ends | {name: values}
    with pytest.warns(UserWarning, match=f"looks like .*: '{name}'; .*columns={{'{part}': '{name}'}}") as caught:
        assert f"; not read, but like ends or numbers of episodes: {name}\n" in describe(given)
    (message,) = (str(each.message) for each in caught if "looks like" in str(each.message))
    assert ("; 0 marks ends there" in message) == (values[0] > 0 and part == "terminals")
    log = load(given, quiet=False, columns={part: name})
    np.testing.assert_array_equal(log.terminals, FELL)
    assert len(log.episodes) == 5
    quiet = load(walk() | {"terminals": FELL, "x": LAST, "constant": np.ones(COUNT)})
    assert quiet.verdict.endswith(": x")  # its name tells nothing, and other arrays mark the ends


LONG = np.arange(20, 60)  # lengths of episodes
LONG_ENDS = np.isin(np.arange(LONG.sum()), np.cumsum(LONG) - 1)


def long_log(**parts):
    """Return forty episodes of a walk by small steps, without next states."""
    random = np.random.default_rng(0)
    states = np.concatenate([np.cumsum(random.normal(size=(n, 3)), 0) + 0.5 for n in LONG])
    log = {"observations": states, "actions": random.normal(size=(len(states), 1)), "rewards": states[:, 0]}
    return log | {"terminals": LONG_ENDS & False, "timeouts": LONG_ENDS} | parts


def only(rows, log):
    return {key: x[rows] for key, x in log.items()}


def padded():
    is_padding = np.arange(1580) % 79 > 70
    log = long_log()
    for part in ("observations", "actions", "rewards"):
        log[part][is_padding] = 0
    return log


def ended_at_79():
    states = np.cumsum(np.random.default_rng(0).normal(size=(20, 79, 3)), 1).reshape(-1, 3)
    states += 100 * (np.arange(1580) // 79 % 2)[:, None]
    ends = np.arange(1580) % 79 == 78
    return {"observations": states, "actions": states[:, :1], "rewards": states[:, 0], "terminals": ends}


def unfilled(rows):
    states = np.zeros((400, 2))
    states[: 400 - rows] = np.random.default_rng(0).normal(size=(400 - rows, 2))
    rest = {"actions": np.zeros((400, 1)), "rewards": np.zeros(400), "next_obs": np.zeros((400, 2))}
    return {"obs": states, **rest, "terminals": np.arange(400) % 5 == 4}


HALF = LONG_ENDS & (np.arange(1580) % 2 == 0)
NEVER_LONG = np.zeros(1580)
NUMBERED = {"episode": np.repeat(range(40), LONG), "step": np.concatenate([*map(np.arange, LONG)])}
SHUFFLED = np.random.default_rng(0).permutation(COUNT)
STATES = walk(next_states=False)
IN_TURN = np.argsort(np.tile(np.arange(5), 4)[:COUNT], kind="stable")  # rows of four environments
RESETTING = walk()
RESETTING["next_observations"][ENDS[:-1]] = RESETTING["observations"][ENDS[:-1] + 1]
QUESTIONED = [
    (RESETTING | {"terminals": LAST}, {}, "neither next states nor timeouts show where a time limit cut"),
    (only(SHUFFLED, walk() | {"terminals": FELL}), {}, "'next_observations' are not .*, so that rows do not follow"),
    (only(IN_TURN, walk() | {"terminals": FELL, "timeouts": CUT}), {}, "are not .*, so that rows do not follow each"),
    (only(np.random.default_rng(1).permutation(1580), long_log()), {}, "states are as far from those of the next rows"),
    (long_log(terminals=LONG_ENDS), {}, "'terminals' mark all 40 rows of 'timeouts' too, as 'dones' do"),
    (padded(), {}, "rows, such as row 6., are 0 in everything, as where episodes are"),
    (only(np.arange(1580) % 9 != 4, long_log(**NUMBERED)), {}, "steps are missing, such as after 'step' 3, which 5"),
    (long_log(ep_len=LONG), {}, "ep_len: lengths or bounds of episodes are not read: add"),
    (long_log() | {"timeouts": NEVER_LONG, "terminals": HALF}, {}, "states jump after 13 rows, such as row 85, as far"),
    (ended_at_79(), {}, "ends by 'terminals' are taken as terminals; if a time limit cut"),
    (ended_at_79() | {"done": ended_at_79()["terminals"]}, {}, "ends by 'terminals' are taken as terminals; if a"),
    (long_log(timeouts=~LONG_ENDS), {}, "'timeouts' marks 97.5% of rows as ends: if 0 marks ends, pass 1"),
    (walk() | {"done": LAST | True}, {}, "'done' marks 100.0% of rows as ends"),
    (long_log(timeouts=np.roll(LONG_ENDS, -1)), {}, "states jump one row next to 25 ends, .* move their values down"),
    (long_log(timeouts=np.roll(LONG_ENDS, 1)), {}, "states jump one row next to 24 ends, .* move their values up by"),
    (STATES | {"episode": ROWS // 9, "done": LAST}, {}, "'done' marks 3 rows, such as row 4, inside of episodes"),
    (STATES | {"done": FIRST}, {}, "'done' marks the first row and not the last: if .*'first': 'done'}"),
    (STATES | {"done": NEVER}, {}, "neither next states nor timeouts show where a time limit cut"),
    (STATES | {"terminals": NEVER, "truncated": NEVER}, {}, "neither next states nor timeouts show"),
    (walk() | {"terminals": FELL, "rewards": 1.5 * (STEPS > 0)}, {}, "'rewards' are 0 in the first row of each"),
    (STATES | {"timeouts": LAST}, {"max_episode_steps": 2}, "max_episode_steps=2 cuts episodes, .* has 6 steps"),
    (STATES | {"episode": IDS, "step": STEPS}, {"max_episode_steps": 2}, "max_episode_steps=2 cuts episodes, .* 6 s"),
    (only(SHUFFLED, STATES | {"t": STEPS}), {}, "'t' does not count steps up from its smallest, so that rows"),
    (unfilled(12), {}, "12 rows, such as row 388, are the same row, to the end, as where episodes"),
    (unfilled(120), {}, "120 rows, such as row 280, are the same row, to the end, as where"),
    (walk() | {"terminals": FELL, "episode": IDS % 3}, {}, r"rows of an episode \('episode'\) do not lie together"),
    (STATES | {"next_obs": STATES["observations"]}, {}, "'next_obs' are not .* but those of the same row: lea"),
    (long_log(next_obs=np.ones((1580, 3)), **NUMBERED), {}, "'next_obs' are not .* of the next row: leave them out"),
    (STATES | {"timeouts": LAST, "obs_tp1": STATES["observations"]}, {}, "like next states: 'obs_tp1'; if so, name"),
    (walk() | {"terminals": FELL, "mu_logp": -1.0 * ROWS}, {}, "'mu_logp' is not read: .*columns={'log_probs': 'mu"),
    (walk() | {"terminals": FELL, "size": 10}, {}, "10 rows were filled; the other 8 are left out, though they"),
]


@pytest.mark.parametrize(("log", "options", "message"), QUESTIONED)
def test_what_may_be_read_wrong_is_questioned(log, options, message):
    with pytest.warns(UserWarning, match=f"dataset: .*{message}"):
        sopr_fast.load_log(log, **options)


def test_rows_without_next_states_and_rows_of_padding_are_left_out(tmp_path):
    given = walk() | {"terminals": FELL, "timeouts": CUT}
    rows = np.insert(ROWS, ENDS + 1, 0)
    valid = ~np.isin(np.arange(22), ENDS + 1 + np.arange(4))
    np.testing.assert_array_equal(load(only(rows, given) | {"valid": valid}).states, load(given).states)
    del given["timeouts"]
    given["next_observations"][LAST] = np.nan
    columns = {f"{name}_{i}": x for name in given for i, x in enumerate(given[name].reshape(COUNT, -1).T)}
    frame = pandas.DataFrame({name.replace("terminals_0", "terminal"): x for name, x in columns.items()})
    frame.rename(columns={"rewards_0": "reward"}).to_csv(tmp_path / "log.csv", index=False, na_rep="NULL")
    for source in (given, tmp_path / "log.csv"):
        log = load(source)
        assert np.diff(log.episodes).tolist() == [5, 2, 6, 3] and log.terminals.sum() == 2
    shifted = np.append(given["observations"][1:], [[np.nan, np.nan]], 0)
    assert len(load(STATES | {"next_observations": shifted, "terminals": LAST}, quiet=False).episodes) == 5


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize(
    "extra",
    [
        {"episode": ROWS, "done": NEVER},
        {"episode": ROWS, "done": LAST},
        {"episode_id": ROWS, "terminals": FELL, "timeouts": CUT},
        {"episode": ROWS, "step": STEPS},
    ],
)
def test_numbers_of_rows_are_no_numbers_of_episodes(extra, following):
    given = walk(next_states=following) | extra
    with pytest.warns(UserWarning, match="dataset: 'episode.*' differs in each row, but .*, so that it counts rows"):
        log = sopr_fast.load_log(given)
    assert len(log.episodes) == (2 if extra.get("done") is NEVER and not following else 5)
    assert len(load(given, max_episode_steps=1).episodes) == COUNT + 1
    assert len(load(given | {"done": LAST | True, "terminals": LAST | True}, quiet=False).episodes) == COUNT + 1


COLUMNS = {f"obs_{i}": walk()["observations"][:, i] for i in range(2)}
COLUMNS |= {f"next_obs_{i}": walk()["next_observations"][:, i] for i in range(2)}


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
    frame = pandas.DataFrame({names.get(name, name): x for name, x in COLUMNS.items()})
    frame = frame.assign(action=0.0, reward=1.0, terminated=FELL)
    frame.to_csv(tmp_path / "log.csv", index=False)
    for source in (frame, tmp_path / "log.csv"):
        for read in (sopr_fast.load_log, load_states)[: 1 if "next" in message else 2]:
            with pytest.raises(ValueError, match=message):
                read(source)
    parts = {"states": ["obs_0", "obs_1"], "next_states": ["next_obs_0", "next_obs_1"]}
    columns = {part: [names.get(name, name) for name in found] for part, found in parts.items()}
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


RANDOM = np.random.default_rng(0)
NOISE = {"observations": RANDOM.normal(size=(400, 2)), "actions": RANDOM.normal(size=400), "rewards": ONES}
EIGHTH = {"terminals": COUNTED % 8 == 7, "timeouts": np.zeros(400)}
CARDS = {"observations": RANDOM.integers(0, 20, 2000), "actions": np.zeros(2000), "rewards": np.ones(2000)}
CARDS |= {"terminals": RANDOM.random(2000) < 0.7, "timeouts": np.zeros(2000)}  # most of its rows are terminal
BEGIN_AGAIN = STATES | {"dones": LAST, "timeouts": CUT, "episode": np.repeat(range(4), LENGTHS)}
BEGIN_AGAIN = {key: np.concatenate([x, x]) for key, x in BEGIN_AGAIN.items()}
FROM_1 = pandas.DataFrame({name.replace("1", "2").replace("0", "1"): x for name, x in COLUMNS.items()})
FROM_1 = FROM_1.assign(action=0.0, reward=1.0, terminated=FELL)
STEPWISE = [only(i, walk() | {"done": LAST}) | ({"info": {"cut": True}} if CUT[i] else {}) for i in ROWS]
QUIET = [
    (long_log(), {}, 40, 0),
    (ended_at_79(), {"max_episode_steps": 79}, 20, 0),
    (STATES | {"timeouts": LAST}, {"max_episode_steps": 6}, 4, 0),
    (STATES | {"episode": IDS, "step": STEPS}, {"max_episode_steps": 6}, 4, 3),
    (BEGIN_AGAIN, {}, 8, 4),
    (FROM_1, {}, 4, 2),
    (walk() | {"terminals": FELL, "timeouts": CUT, "env": IDS // 6}, {"columns": {"episodes": "env"}}, 4, 2),
    (STEPWISE, {"columns": {"timeouts": "info/cut"}}, 4, 2),
    (RESETTING | {"terminals": LAST, "timeouts": NEVER}, {}, 4, 4),
    (NOISE | {"observations": np.eye(3)[RANDOM.integers(0, 3, 400)]} | EIGHTH, {}, 50, 50),
    (NOISE | {"terminals": COUNTED % 10 == 9}, {}, 40, 40),
    (NOISE | {"done": ONES}, {}, 400, 400),
    (NOISE | {"episode": COUNTED}, {}, 400, 400),
    (CARDS, {}, CARDS["terminals"][:-1].sum() + 1, CARDS["terminals"].sum()),
]


@pytest.mark.parametrize(("log", "options", "episodes", "terminals"), QUIET)
def test_what_cannot_be_read_wrong_is_not_questioned(log, options, episodes, terminals):
    loaded = load(log, **options)
    assert (len(loaded.episodes) - 1, loaded.terminals.sum()) == (episodes, terminals)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("ids", [[104, 7, 33, 12], ["d", "b", "c", "a"]])
def test_clinical_tables_are_sorted_by_patient_and_step(ids, shuffled, tmp_path):
    """Stays differ in length, and the only reward is that of the last step."""
    frame = pandas.DataFrame(STATES["observations"], columns=["lactate", "pressure"])
    frame = frame.assign(patient=np.repeat(ids, LENGTHS), hour=4 * STEPS, action=STEPS % 3, reward=15.0 * LAST)
    table = frame.iloc[SHUFFLED if shuffled else ROWS].reset_index(drop=True)
    table.to_csv(tmp_path / "stays.csv", index=False, sep=";", decimal=",")
    columns = {"states": ["lactate", "pressure"], "episodes": "patient", "steps": "hour"}
    uniform = {"uniform": lambda states: Probabilities(np.full((len(states), 3), 1 / 3, np.float32))}
    for source in (table, tmp_path / "stays.csv"):
        with pytest.warns(UserWarning, match="ends by 'patient' are taken as terminals"):
            log = sopr_fast.load_log(source, columns=columns)
        first = list(dict.fromkeys(table["patient"]))
        assert np.diff(log.episodes).tolist() == [LENGTHS[ids.index(name)] for name in first]
        np.testing.assert_array_equal(log.states, table[["lactate", "pressure"]].to_numpy(np.float32)[log.source])
        assert log.rewards[log.episodes[1:] - 1].tolist() == [15] * 4 and "'patient' and 'hour'" in log.verdict
        method = ImportanceWeighting(discount=1, updates=50, hidden=(4,))
        assert method.estimate(uniform, log).values[0] == pytest.approx(15, rel=0.05)
    assert np.flatnonzero(load(table, quiet=False, columns=columns, max_episode_steps=6).timeouts).size == 1


@pytest.mark.parametrize("form", ["text", "zones", "objects"])
@pytest.mark.parametrize("name", ["timestamp", "date", "step"])
def test_times_order_the_rows_of_episodes(name, form, tmp_path):
    times = pandas.Timestamp("2020-01-31 22:00") + pandas.to_timedelta(STEPS, "h")
    texts = {"text": times.astype(str), "zones": times.strftime("%Y-%m-%dT%H:%M:%SZ"), "objects": [*times]}
    frame = pandas.DataFrame(STATES["observations"], columns=["obs_0", "obs_1"])
    frame = frame.assign(action=0, reward=1.0, terminal=LAST, episode=IDS, **{name: texts[form]})
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "log.csv", index=False)
    for source in (frame.sample(frac=1, random_state=0).sort_values("episode"), tmp_path / "log.csv"):
        log = load(source)
        states = [log.states[i:j] for i, j in pairwise(log.episodes)]
        expected = np.split(STATES["observations"].astype(np.float32), np.cumsum(LENGTHS)[:-1])
        assert {x.tobytes() for x in states} == {x.tobytes() for x in expected}
    assert len(load(frame.assign(**{name: pandas.to_timedelta(STEPS, "h")})).episodes) == 5


def test_steps_of_rlds_hold_nothing_but_the_last_state_at_the_end():
    arrays = STATES | {"is_first": FIRST, "is_last": LAST, "is_terminal": FELL}
    log = load(arrays)
    kept = np.flatnonzero(~LAST)
    assert log.source.tolist() == kept.tolist()
    np.testing.assert_array_equal(log.terminals, FELL[kept + 1])
    np.testing.assert_array_equal(log.next_states, arrays["observations"][kept + 1].astype(np.float32))
    unfinished = load({name: values[:-2] for name, values in arrays.items()})
    assert unfinished.source.tolist() == kept[:-2].tolist()  # of the last state it is unknown what follows
    with pytest.raises(ValueError, match="the next state of no step is known; add next states"):
        load(arrays | {"is_last": LAST | True})


DRAWN = np.random.default_rng(0)
BANDIT = {"context": DRAWN.normal(size=(400, 2)), "action": DRAWN.integers(0, 3, 400), "reward": DRAWN.random(400)}
PSCORE = {"pscore": ONES / 3}


@pytest.mark.parametrize("extra", [{}, {"terminals": ONES}, {"next_obs": np.zeros((400, 2)), "done": ONES}])
def test_every_row_of_a_bandit_is_an_episode(extra):
    log = load(BANDIT | PSCORE | extra, max_episode_steps=1)
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
    policy = {"still": lambda states: np.zeros((len(states), 1), np.float32)}
    log = walk() | {"terminals": LAST, "actions": np.zeros((COUNT, 1))}
    with warnings.catch_warnings(action="ignore"):
        method = FQE(discount=1, updates=2000, hidden=(16,), learning_rate=3e-3, target_rate=0.1)
        value = method.estimate(policy, log).values[0]
        assert value == pytest.approx(np.mean(LENGTHS), rel=0.1)  # the reward of every step is 1
        with pytest.raises(ValueError, match="discount=1 needs episodes that end in .* states, but 2 of 4 are cut"):
            method.estimate(policy, walk() | {"terminals": FELL, "timeouts": LAST})
        with pytest.raises(ValueError, match="DualDICE needs a discount below 1"):
            DualDICE(discount=1).estimate(policy, log)


WORDS = np.array(["left", "right"] * 200)


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
        ({"context/age": np.ones(400)}, "'context' may be the states, and so may named .*'states': 'context'}.* or"),
        ({"action": WORDS}, "'action' must be numbers.*number the words, actions as the policies do, .*'left': 0"),
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
    np.testing.assert_allclose(load(walk() | densities).log_probs, np.log(1.5), rtol=1e-6)


@pytest.mark.parametrize("fields", [{"size": COUNT, "pos": np.inf}, {"_size": COUNT}, {"pos": COUNT, "full": False}])
def test_unfilled_rows_of_a_buffer_are_left_out(fields, tmp_path):
    arrays = {key: np.concatenate([x, np.zeros((42, *x.shape[1:]))]) for key, x in (walk() | {"done": FELL}).items()}
    np.savez(tmp_path / "buffer.npz", **arrays, **fields)
    with h5py.File(tmp_path / "buffer.hdf5", "w") as file:
        file.attrs.update(fields)
        for key, values in arrays.items():
            file[key] = values
    for source in (arrays | fields, tmp_path / "buffer.npz", tmp_path / "buffer.hdf5"):
        assert len(load(source, quiet=False)) == COUNT == len(load_states(source))
    full = {key: np.arange(60)[:, None] * 1.0 for key in ("obs", "actions", "next_obs")} | {"rewards": np.arange(60.0)}
    rolled = load(full | {"size": 60, "ptr": 20}, quiet=False)
    assert rolled.source.tolist() == [*range(20, 60), *range(20)]


def test_a_number_of_rows_keeps_whole_episodes():
    arrays = walk() | {"terminals": FELL, "timeouts": CUT}
    whole = load(arrays)
    for rows, most in ((1, 6), (10, 10), (COUNT, COUNT)):
        for log in (load(arrays, rows=rows), sopr_fast.load_log(whole, rows=rows)):
            assert 0 < len(log) <= most and set(np.diff(log.episodes)) <= {*LENGTHS}
            np.testing.assert_array_equal(log.states, whole.states[log.source])
            assert (log.terminals | log.timeouts)[log.episodes[1:] - 1].all() and log.source_count == COUNT
            drawn = f"{len(log.episodes) - 1} episodes, drawn from " if len(log) < COUNT else ""
            assert log.verdict == drawn + whole.verdict


Transition = namedtuple("Transition", ["state", "action", "next_state", "reward"])


def test_steps_without_a_next_state_are_terminal():
    arrays = walk() | {"terminals": FELL}
    unknown = np.where(FELL[:, None], np.nan, arrays["next_observations"])
    expected = load(arrays | {"next_observations": unknown}, quiet=False)
    parts = (arrays[key] for key in ("observations", "actions", "rewards", "next_observations"))
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
    arrays = walk()
    log = {key: np.zeros((COUNT + 4, *arrays[key].shape[1:])) for key in ("observations", "actions", "rewards")}
    rows = kinds != 2
    log["observations"][last] = arrays["next_observations"][ENDS]
    for key in log:
        log[key][rows] = arrays[key]
    for shift in (0, 1):
        discount = np.ones(COUNT + 4)
        discount[last[[0, 2]] - shift] = 0
        read = load(log | {"step_type": kinds, "discount": discount}, columns={"terminals": "discount"})
        np.testing.assert_array_equal(read.terminals, FELL)
        np.testing.assert_array_equal(read.timeouts, CUT)
        np.testing.assert_allclose(read.next_states, arrays["next_observations"], rtol=1e-6)


@pytest.mark.parametrize("flag", ["terminals", "dones"])
def test_next_states_of_0_at_ends_are_unknown(flag):
    arrays = walk() | {flag: LAST}
    filled = arrays | {"next_observations": np.where(LAST[:, None], 0, arrays["next_observations"])}
    with pytest.warns(UserWarning, match="'next_observations' are 0 at 4 ends, such as row 4, and no state is: "):
        log = sopr_fast.load_log(filled)
    np.testing.assert_allclose(log.next_states[LAST], arrays["observations"][LAST], rtol=1e-6)
    at_0 = filled | {"observations": np.where(FIRST[:, None], 0, arrays["observations"])}
    assert (load(at_0, quiet=False).next_states[LAST] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"is_first": ~(COUNTED % 20 == 0)},
            "'is_first' marks 95.0% of rows as first rows: if 0 marks first rows, ",
        ),
        ({"states": -999}, "'observations' are -999 in column 1 of 20 rows, such as row 7, far from its other values"),
        ({"actions": 9999}, "'actions' are 9999 in column 0 of 20 rows, such as row 7, far from its other values"),
        ({"padding": 8}, "240 rows, such as row 8, are the same as the row before, whose next state is another"),
        ({"states": -3}, None),
        ({"padding": 20}, None),
    ],
    ids=str,
)
def test_marks_and_padding_are_questioned(change, message):
    random = np.random.default_rng(0)
    paths = np.cumsum(random.uniform(0.1, 0.2, (20, 21, 2)), 1) + random.normal(size=(20, 1, 2))
    log = {"observations": paths[:, :-1].reshape(400, 2), "actions": random.normal(size=(400, 1))}
    log |= {"next_observations": paths[:, 1:].reshape(400, 2), "rewards": random.normal(size=400)}
    log |= {"is_first": COUNTED % 20 == 0}
    if "padding" in change:  # rows of each episode from this one on repeat the one before
        rows = COUNTED - np.maximum(COUNTED % 20 - change["padding"] + 1, 0)
        log = {key: values[rows] if key != "is_first" else values for key, values in log.items()}
    elif "is_first" in change:
        log = {key: values for key, values in (log | change).items() if key != "next_observations"}
    else:
        [(part, value)] = change.items()
        log["observations" if part == "states" else part][7::20, -1] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sopr_fast.load_log(log)
    said = "\n".join(str(warning.message) for warning in caught)
    assert message in said if message else "row 7" not in said and "same" not in said
