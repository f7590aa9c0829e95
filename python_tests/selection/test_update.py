"""`Selection.update` with measured episodes: the simulator learns from them too."""

import numpy as np
import pytest

from sopr_fast.estimators import Simulator
from sopr_fast.selection import select

LENGTH = 10
QUICK = Simulator(updates=1600, hidden=(32, 32), members=2)
POLICIES = {name: lambda s, a=a: np.full_like(s, a) for name, a in {"rests": 0, "walks": 0.1, "runs": 0.5}.items()}


def played(actions):
    """Return a log of episodes, whose rewards are 2 for each action of 0.5, else 0."""
    states = np.random.default_rng(0).uniform(-1, 1, (len(actions) // LENGTH, LENGTH + 1))
    before, after = states[:, :-1].reshape(-1, 1), states[:, 1:].reshape(-1, 1)
    ends = np.arange(1, len(actions) + 1) % LENGTH == 0
    steps = {"states": before, "actions": actions[:, None], "next_states": after, "truncations": ends}
    return steps | {"rewards": 2 * (actions == 0.5), "terminals": 0 * ends}


RUNS = played(np.full(3 * LENGTH, 0.5))


@pytest.fixture(scope="module")
def selection():
    """Return a selection by a log that shows no action over 0.2, so that no reward is known."""
    return select(POLICIES, played(np.random.default_rng(1).uniform(-0.2, 0.2, 200 * LENGTH)), simulator=QUICK)


def test_values_move_to_the_measured_return(selection):
    updated = selection.update({"runs": 20.0}, log=RUNS)
    np.testing.assert_allclose(selection.values, 0, atol=1e-6)
    np.testing.assert_allclose(updated.values, [0, 0, 2 * LENGTH], atol=2)
    assert selection.bounds == (0, 0) and updated.bounds == (0, 2 * LENGTH)
    assert updated.flags[2] == "measured" and updated.predicted[2] == 20
    assert updated.unsupported[2] < 0.9 < selection.unsupported[2]
    np.testing.assert_array_equal(updated.update({"rests": 0.0}).values, updated.values)


def test_episodes_of_several_calls_count_together(selection):
    whole, part, rest = ({name: own[rows] for name, own in RUNS.items()} for rows in np.s_[:, :20, 20:])
    together = selection.update(log=whole)
    for again in (selection.update(log=whole), selection.update(log=part).update(log=rest)):
        np.testing.assert_array_equal(again.members, together.members)
    assert not np.array_equal(selection.update(log=part).members, together.members)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (RUNS | {"actions": np.full((30, 2), 0.5)}, "2 action columns follow a log of 1: give both the same"),
        (
            RUNS | {"states": RUNS["states"][:, [0, 0]], "next_states": RUNS["next_states"][:, [0, 0]]},
            "2 state columns follow a log of 1",
        ),
        ({"cost" if name == "rewards" else name: own for name, own in RUNS.items()}, "one of two logs has costs, the"),
        ({"states": RUNS["states"]}, "actions and rewards are needed too"),
    ],
)
def test_other_logs_are_refused(selection, log, message):
    with pytest.raises(ValueError, match=message):
        selection.update(log=log)


def test_only_a_simulator_learns_from_episodes():
    known = select(POLICIES, RUNS, dict(zip(POLICIES, [0, 0, 20], strict=True)))
    with pytest.raises(ValueError, match="not by a simulator, which could learn .* call select again, with a log"):
        known.update(log=RUNS)
