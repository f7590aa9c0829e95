"""Groups of policies and the gate of candidates."""

import numpy as np
import pytest

from sopr_fast.selection.groups import find_groups, place
from sopr_fast.selection.panel import Panel


def squared_distances(points):
    points = np.asarray(points, float).reshape(len(points), -1)
    return ((points[:, None] - points[None]) ** 2).sum(-1)


def line_panel(known, candidates, groups, claims=None, distances=True):
    points = [*known, *candidates]
    return Panel.build(
        [f"policy {chr(97 + i)}" for i in range(len(points))],
        [*np.arange(len(known)), *[np.nan] * len(candidates)],
        {"fqe": np.arange(len(points))},
        groups=[*groups, *(claims or [""] * len(candidates))],
        distances=squared_distances(points) if distances else None,
    )


def test_names_with_steps_group_by_run():
    names = [f"sac/run{run}/step_{step}" for run in (1, 2) for step in (100, 2000, 30000)]
    groups, source = find_groups(names, np.full((6, 6), np.nan))
    assert source == "names"
    assert groups == ["sac/run1"] * 3 + ["sac/run2"] * 3


def test_small_groups_of_names_join():
    points = [0, 1, 2, 3, 50, 51, 52, 53, 2.1]
    names = [f"sac-{i}" for i in range(4)] + [f"trpo-{i}" for i in range(4)] + ["ars-0"]
    groups, source = find_groups(names, squared_distances(points))
    assert source == "names"
    assert groups == ["sac"] * 4 + ["trpo"] * 4 + ["sac"]


def test_several_small_groups_of_names_form_one():
    names = [f"sac-{i}" for i in range(6)] + ["ars-0", "dope-5", "dope-10"]
    groups, source = find_groups(names, squared_distances(range(9)))
    assert source == "names"
    assert groups == ["sac"] * 6 + ["others"] * 3


def test_a_single_policy_beside_one_group_of_names_is_no_group():
    names = [f"sac-{i}" for i in range(6)] + ["ars-0"]
    assert find_groups(names, np.zeros((7, 7))) == (["all"] * 7, "none")


def test_blocks_follow_action_distance_when_names_say_nothing():
    names = ["tern", "gull", "crow", "wren", "rook", "kite", "swan"]
    groups, source = find_groups(names, squared_distances([0, 0.1, 0.2, 9, 9.1, 9.2, 40]))
    assert source == "action distance"
    assert len(set(groups)) == 3
    assert len(set(groups[:3])) == len(set(groups[3:6])) == 1


@pytest.mark.parametrize("distances", [np.zeros((7, 7)), np.full((7, 7), np.nan)])
def test_policies_without_structure_form_one_group(distances):
    assert find_groups(list("abcdefg"), distances) == (["all"] * 7, "none")


def test_gate_opens_with_distance():
    known = [0, 1, 2, 3, 100, 101, 102, 103]
    panel = line_panel(known, [0, 1.5, 10, 50, 1e4], ["x"] * 4 + ["y"] * 4)
    gate = place(panel).gate
    assert gate[:8].tolist() == [0] * 8
    assert gate[8:10].tolist() == [0, 0]
    assert 0 < gate[10] < gate[11] < 1
    assert gate[12] == 1


def test_gate_goes_by_the_claim_without_distances():
    panel = line_panel(range(4), range(3), ["x", "x", "y", "y"], claims=["x", "z", ""], distances=False)
    placement = place(panel)
    assert placement.gate.tolist() == [0, 0, 0, 0, 0, 1, 1]
    same = placement.membership @ placement.membership.T
    assert same[4].tolist() == [1, 1, 0, 0, 1, 0, 0]
    assert same[5].tolist() == [0, 0, 0, 0, 0, 1, 0]


def test_membership_has_norm_one_and_follows_the_gate():
    placement = place(line_panel([0, 1, 2, 3, 100, 101, 102, 103], [1.5, 10, 1e4], ["x"] * 4 + ["y"] * 4))
    same = placement.membership @ placement.membership.T
    np.testing.assert_allclose(np.diagonal(same), 1)
    np.testing.assert_allclose(same[0, 8:10], np.sqrt(1 - placement.gate[8:10]))
    assert same[0, 10] == same[4, 10] == 0


def test_candidates_that_repeat_a_known_policy_are_inside():
    placement = place(line_panel([5, 5, 5, 5], [5], [""] * 4))
    assert placement.source == "none"
    assert placement.gate.tolist() == [0] * 5


def test_relabelling_is_stable_when_a_candidate_is_measured():
    placement = place(line_panel([0, 1, 2, 3, 100, 101, 102, 103], [1.5, 1e4], ["x"] * 4 + ["y"] * 4))
    returns = placement.panel.returns.copy()
    returns[8] = 7.0
    after = place(placement.panel.with_returns(returns))
    assert after.panel.groups[8] == "x"
    assert after.gate[9] == 1
