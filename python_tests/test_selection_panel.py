"""The panel checks its shapes and keeps known policies first."""

import numpy as np
import pytest

from sopr_fast.selection.panel import Panel


def small_panel(**changes):
    arguments = dict(
        names=["a", "b", "c", "d"],
        returns=[1.0, 2.0, np.nan, np.nan],
        columns={"fqe": [0.1, 0.2, 0.3, 0.4], "sopr": [4, 3, 2, 1]},
        grouped_columns={"sopr": [3, 4, 2, 1]},
        groups=["x", "y", "", "z"],
        distances=np.arange(16).reshape(4, 4),
    )
    return Panel.build(**(arguments | changes))


def test_build_fills_in_the_defaults():
    panel = small_panel()
    assert panel.known.tolist() == [True, True, False, False]
    assert panel.methods == ["fqe", "sopr"]
    np.testing.assert_array_equal(panel.grouped_columns["fqe"], panel.columns["fqe"])
    np.testing.assert_array_equal(panel.grouped_columns["sopr"], [3, 4, 2, 1])
    np.testing.assert_array_equal(panel.return_errors, np.zeros(4))
    assert np.isnan(panel.errors["fqe"]).all()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"names": ["a", "b", "a", "d"]}, "'a' occurs twice"),
        ({"columns": {"fqe": [1, 2, 3]}}, r"columns\['fqe'\] of the panel has shape \(3,\), expected \(4,\)"),
        ({"returns": [1.0, np.nan, 2.0, np.nan]}, "put known policies first"),
        ({"distances": np.zeros((4, 3))}, "distances"),
        ({"groups": ["x"]}, "groups"),
        ({"grouped_columns": {"dice": [1, 2, 3, 4]}}, "'dice' is in only one"),
    ],
)
def test_build_rejects_what_does_not_fit(changes, message):
    arguments = {"grouped_columns": None} | changes
    with pytest.raises(ValueError, match=message):
        small_panel(**arguments)


def test_take_selects_rows_and_both_axes_of_distances():
    part = small_panel().take(np.array([1, 3]))
    assert part.names == ["b", "d"]
    assert part.groups == ["y", "z"]
    np.testing.assert_array_equal(part.columns["sopr"], [3, 1])
    np.testing.assert_array_equal(part.distances, [[5, 7], [13, 15]])


def test_with_returns_moves_measured_candidates_to_the_known_policies():
    panel = small_panel().with_returns([1.0, 2.0, np.nan, 9.0], [0.0, 0.0, 0.0, 0.5])
    assert panel.names == ["a", "b", "d", "c"]
    np.testing.assert_array_equal(panel.returns, [1, 2, 9, np.nan])
    np.testing.assert_array_equal(panel.return_errors, [0, 0, 0.5, 0])
    np.testing.assert_array_equal(panel.columns["fqe"], [0.1, 0.2, 0.4, 0.3])
