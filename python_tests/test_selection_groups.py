"""Groups of policies and the gate of candidates."""

import numpy as np
import pandas
import pytest
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from sopr_fast.selection.groups import _merges, find_groups, place, read_groups
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


def test_names_count_only_where_most_policies_are_in_groups_of_three():
    names = ["sac-0", "sac-1", "sac-2", "ars-0", "dope-5", "trpo-1"]
    unknown = np.full((7, 7), np.nan)
    assert find_groups(names, unknown[:6, :6]) == (["sac"] * 3 + ["others"] * 3, "names")
    assert find_groups([*names, "td3-1"], unknown) == (["all"] * 7, "none")


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_missing_groups_are_no_group(missing):
    with pytest.raises(ValueError, match="the group of policy 'b' is (None|nan|<NA>); give it one"):
        read_groups(pandas.Series({"a": "x", "b": missing, "c": missing}), ["a", "b", "c"], np.zeros((3, 3)))
    assert read_groups(["None", 1, "x"], ["a", "b", "c"], np.zeros((3, 3))) == (["None", "1", "x"], "given")


def test_linkage_is_that_of_scipy():
    distances = np.sqrt(squared_distances(np.random.default_rng(0).standard_normal((12, 2))))
    _, heights = _merges(distances)
    np.testing.assert_allclose(heights, linkage(squareform(distances), "average")[:, 2])


def test_blocks_need_a_linkage_distance_that_grows_by_a_quarter():
    # Policies of a block join at 1.5 at last, the two blocks at their mean distance.
    for gap, source in ((5, "action distance"), (1.8, "none")):
        assert find_groups(list("abcdef"), squared_distances([0, 1, 2, gap, gap + 1, gap + 2]))[1] == source


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


def test_gate_is_the_logarithm_of_the_distance_between_that_of_neighbours_and_that_of_another_group():
    points, candidates = np.array([0, 1, 3, 7, 100, 101, 104, 110.0]), [2, 12.5, 40, 60, 95, 125, 1e4]
    gate = place(line_panel(points, candidates, ["x"] * 4 + ["y"] * 4)).gate[8:]
    distances = squared_distances(points)
    np.fill_diagonal(distances, np.inf)
    groups = [slice(0, 4), slice(4, 8)]
    siblings = [distances[group, group].min(1) for group in groups]
    most = np.quantile(np.concatenate(siblings), 0.9)
    assert np.quantile(siblings[1], 0.9) > most > np.quantile(siblings[0], 0.9)
    opens = [min(np.quantile(own, 0.9), most) for own in siblings]
    ends = [np.median(distances[group, other].min(1)) for group, other in zip(groups, groups[::-1], strict=True)]
    for point, actual in zip(candidates, gate, strict=True):
        nearest = np.abs(points - point).argmin()
        low, high = opens[nearest // 4], ends[nearest // 4]
        share = np.log((points[nearest] - point) ** 2 / low) / np.log(high / low)
        assert actual == pytest.approx(np.clip(share, 0, 1))
    assert ((gate > 0) & (gate < 1)).sum() >= 4


def test_gate_of_mixed_groups_ends_at_twice_the_distance_of_neighbours():
    known = [0, 10, 20, 30, 1, 11, 21, 31]  # neighbours in a group are at 100, in the other one at 1
    gate = place(line_panel(known, [31 + 150**0.5, 31 + 201**0.5], ["x"] * 4 + ["y"] * 4)).gate
    assert gate[8:] == pytest.approx([np.log2(1.5), 1])


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
