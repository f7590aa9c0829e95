"""Weights, posterior and intervals on panels whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from selection_panels import synthetic

from sopr_fast.selection.blend import Recipe, blend, outside_weights, ranks, within_correlations
from sopr_fast.selection.groups import place
from sopr_fast.selection.intervals import Calibration, conformal_quantile
from sopr_fast.selection.metrics import gap_accuracy, risk_coverage
from sopr_fast.selection.panel import Panel
from sopr_fast.selection.posterior import _PRIOR, Design, Posterior, fit_posterior
from sopr_fast.selection.predict import Trial, _left_out, hold_out, predict


def test_ranks_agree_with_scipy_and_put_nan_in_the_middle():
    values = np.array([[3.0, 1.0], [1.0, 1.0], [1.0, np.nan], [9.0, 5.0]])
    expected = (stats.rankdata(values[:, 0]) - 1) / 3
    np.testing.assert_allclose(ranks(values)[:, 0], expected)
    np.testing.assert_allclose(ranks(values)[:, 1], [0.25, 0.25, 0.5, 1])


def test_within_correlations_ignore_offsets_between_groups():
    returns = np.array([1.0, 2, 3, 4, 101, 102, 103, 104])
    column = np.array([5.0, 6, 7, 8, 1, 2, 3, 4])  # right in each group, wrong between them
    table = within_correlations(column[:, None], returns, list("aaaabbbb"), 4)
    np.testing.assert_allclose(table, [[1, 4], [1, 4]])
    pooled = within_correlations(column[:, None], returns, list("abcdefgh"), 4)
    np.testing.assert_allclose(pooled, [[stats.spearmanr(column, returns).statistic, 8]])


def test_weights_go_to_columns_that_order_groups_rightly():
    weights = blend(place(synthetic(noise=0.3)[0]))[1]
    named = dict(zip(weights.methods, weights.outside, strict=True))
    assert named["good"] > named["fair"] > 0.1
    assert named["reversed"] == 0
    assert named["useless"] < 0.1
    assert weights.outside.sum() == pytest.approx(1)


def test_supervised_columns_earn_their_outside_weight_across_groups_only():
    panel, truth = synthetic(noise=0.3)
    shuffled = np.random.default_rng(1).standard_normal(len(panel))
    panel = replace(
        panel, columns=panel.columns | {"sopr": truth}, grouped_columns=panel.grouped_columns | {"sopr": shuffled}
    )
    weights = blend(place(panel))[1]
    assert dict(zip(weights.methods, weights.outside, strict=True))["sopr"] < 0.1


def test_unusable_columns_are_named_with_the_reason():
    panel, _ = synthetic()
    count = len(panel)
    number = np.arange(float(count))
    extra = {
        "constant": np.ones(count),
        "diverged": np.where(number < 23, number, np.nan),
        "half": np.where(number < 24, number, np.nan),
    }
    panel = replace(panel, columns=panel.columns | extra, grouped_columns=panel.grouped_columns | extra)
    weights = blend(place(panel))[1]
    assert weights.unused == {"constant": "all values are equal", "diverged": "only 23 of 48 values are finite"}
    assert weights.methods == ["good", "fair", "useless", "reversed", "half"]


def test_outside_weights_follow_the_standard_error_of_the_mean_correlation():
    correlations = np.array([[0.9, 0.5, 0.4, -0.9, 10], [0.7, 0.6, -0.1, -0.8, 6]])
    variance = [(1 - correlations[g, :4] ** 2) ** 2 / (correlations[g, 4] - 1) for g in (0, 1)]
    mean, error = correlations[:, :4].mean(0), np.sqrt(variance[0] + variance[1]) / 2
    few = np.zeros((4, 4))
    weights, agreement = outside_weights(correlations, few, Recipe())
    sure = np.maximum(mean - 2 * error, 0) ** 2
    assert (sure > 0).tolist() == [True, True, False, False]
    np.testing.assert_allclose(weights, sure / sure.sum())
    assert np.isnan(agreement).all()
    unsure, _ = outside_weights(correlations[:, 2:], few[:, 2:], Recipe())
    assert mean[2] > error[2] / 2
    np.testing.assert_allclose(unsure, [1, 0])
    nothing, _ = outside_weights(correlations[:, 3:], few[:, 3:], Recipe())
    assert nothing.tolist() == [0]


def test_columns_that_agree_on_the_candidates_weigh_more():
    rng = np.random.default_rng(0)
    skill = rng.standard_normal(30)
    columns = np.stack([skill, skill + rng.standard_normal(30), rng.standard_normal(30), -skill], axis=1)
    correlations = np.array([[0.9, 0.9, 0.8, 0.8, 50]])
    before, _ = outside_weights(correlations, columns[:4], Recipe())
    weights, agreement = outside_weights(correlations, columns, Recipe())
    units = (columns - columns.mean(0)) / columns.std(0)
    expected = [np.corrcoef(units[:, j], np.delete(units, j, 1) @ np.delete(before, j))[0, 1] for j in range(4)]
    np.testing.assert_allclose(agreement, expected)
    assert agreement[3] < 0
    product = before * np.maximum(agreement, 0)
    np.testing.assert_allclose(weights, product / product.sum())


def test_the_slope_is_the_correlation_of_the_weighted_mean_within_groups():
    placement = place(synthetic(noise=0.8)[0])
    panel, (design, weights) = placement.panel, blend(placement)
    order = stats.rankdata(np.stack([panel.columns[name] for name in weights.methods], 1), axis=0) @ weights.outside
    groups = np.array(panel.groups)
    within = [groups == f"group {g}" for g in range(3)]
    expected = np.mean([stats.spearmanr(order[rows], panel.returns[rows]).statistic for rows in within])
    assert 0.3 < expected < 1
    assert weights.slope == design.slope == pytest.approx(expected)
    np.testing.assert_allclose(design.score, stats.zscore(order))
    np.testing.assert_allclose(design.score @ design.columns, 0, atol=1e-9)  # they explain what the score does not


def test_distances_are_in_units_of_the_median_distance_of_known_policies_to_their_nearest():
    panel, _ = synthetic()
    points = np.random.default_rng(0).standard_normal(len(panel)) ** 3
    distances = (points[:, None] - points) ** 2
    design, _ = blend(place(replace(panel, distances=distances)))
    known = distances[np.ix_(panel.known, panel.known)]
    np.testing.assert_allclose(design.distances, distances / np.median(np.sort(known)[:, 1]))


def covariance_of_returns(design, variances):
    """The prior covariance of the returns without noise, in units of the variance of the known ones."""
    s = np.outer(design.score, design.score)
    near = design.columns * (1 - design.gate)[:, None]
    same = design.membership @ design.membership.T
    local = np.exp(-0.5 * design.distances / variances["length"])
    of_groups = same * (variances["offset"] + variances["slope"] * s)
    return 4 + 0.1 * s + of_groups + variances["weights"] * near @ near.T + variances["local"] * local


def small_design():
    rng = np.random.default_rng(0)
    points = rng.standard_normal(6)
    gate = np.array([0.0, 0.25, 0.0, 0.0, 1.0, 0.5])
    return Design(
        rng.standard_normal(6), rng.standard_normal((6, 2)), gate, np.eye(6), (points[:, None] - points) ** 2, slope=0.4
    )


def test_posterior_equals_gaussian_conditioning():
    design = small_design()
    returns = np.array([1.0, 3.0, 2.0, 5.0, np.nan, np.nan])
    errors = np.full(6, 0.1)
    variances = {"offset": 0.3, "slope": 0.2, "weights": 0.1, "local": 1.0, "length": 1.5, "noise": 0.05}
    posterior = fit_posterior(design, returns, errors, sweeps=0, start=variances)
    scale, center = returns[:4].std(), returns[:4].mean()
    prior = covariance_of_returns(design, variances) + 0.05 * np.eye(6)
    observed = prior[:4, :4] + np.eye(4) * (0.1 / scale) ** 2
    residual = (returns[:4] - center) / scale - 0.4 * design.score[:4]
    mean = 0.4 * design.score + prior[:, :4] @ np.linalg.inv(observed) @ residual
    covariance = prior - prior[:, :4] @ np.linalg.inv(observed) @ prior[:4]
    np.testing.assert_allclose(posterior.mean, center + scale * mean, rtol=1e-5)
    np.testing.assert_allclose(posterior.covariance, scale**2 * covariance, rtol=1e-4, atol=1e-6)


def test_variances_maximise_the_likelihood_times_a_log_normal_prior():
    design = small_design()
    returns, errors = np.array([1.0, 3.0, 2.0, 5.0, 4.0, 9.0]), np.full(6, 0.1)
    y = stats.zscore(returns) - 0.4 * design.score
    noise = (errors / returns.std()) ** 2

    def quality(variances):
        covariance = covariance_of_returns(design, variances) + np.diag(variances["noise"] + noise)
        logs = [stats.norm(np.log(m), width).logpdf(np.log(variances[name])) for name, (m, width) in _PRIOR.items()]
        return stats.multivariate_normal(np.zeros(6), covariance).logpdf(y) + sum(logs)

    best = fit_posterior(design, returns, errors, sweeps=20).variances
    for name in best:
        for factor in (0.1, 10**-0.25, 10**0.25, 10):
            assert quality(best | {name: factor * best[name]}) <= quality(best) + 1e-6
    start = {name: median for name, (median, _) in _PRIOR.items()}
    assert quality(fit_posterior(design, returns, errors).variances) > quality(start) + 0.01


def test_local_term_vanishes_far_away():
    points = np.array([0.0, 0.1, 5.0, 5.1, 0.05, 1e3])
    distances = (points[:, None] - points[None]) ** 2
    design = Design(np.zeros(6), np.zeros((6, 0)), np.zeros(6), np.eye(6), distances, slope=0.0)
    returns = np.array([10.0, 10.0, -10.0, -10.0, np.nan, np.nan])
    variances = {"offset": 1e-6, "slope": 1e-6, "weights": 1e-6, "local": 1.0, "length": 1.0, "noise": 1e-4}
    posterior = fit_posterior(design, returns, np.zeros(6), sweeps=0, start=variances)
    assert posterior.mean[4] == pytest.approx(10, abs=0.2)
    assert posterior.mean[5] == pytest.approx(0, abs=0.2)
    assert posterior.deviation[5] > 5 * posterior.deviation[4]


def test_predictions_order_candidates_of_a_new_group():
    correlations = []
    for seed in range(5):
        panel, truth = synthetic(seed, noise=0.3)
        candidates = ~panel.known
        prediction = predict(panel)
        correlations.append(stats.spearmanr(prediction.posterior.mean[candidates], truth[candidates]).statistic)
        assert prediction.success > 0.7
    assert np.mean(correlations) > 0.85


def test_success_is_the_mean_gap_accuracy_of_the_groups_in_which_gaps_exceed_their_errors():
    panel, _ = synthetic()
    prediction = predict(panel)
    trials = [Trial(name, 4, 0.1, gap, 0.0) for name, gap in (("a", 0.5), ("b", np.nan), ("c", 0.7))]
    assert replace(prediction, trials=trials).success == pytest.approx(0.6)
    assert prediction.success > 0
    unsure = predict(replace(panel, return_errors=np.where(panel.known, 1e3, 0.0)))
    assert len(unsure.trials) == 3 and np.isnan(unsure.success)


def test_what_is_left_out_deviates_by_the_posterior_and_the_measurement():
    panel = Panel.build(list("abc"), [1.0, 2.0, 3.0], {}, return_errors=np.array([0.0, 4.0, 12.0]))
    posterior = Posterior(np.array([5.0, 0.0]), np.diag([9.0, 25.0]), {})
    part = _left_out(posterior, panel, np.array([1, 2]))
    assert part.names == ["b", "c"] and part.deviation.tolist() == [5, 13]
    assert part.scores.tolist() == [3 / 5, 3 / 13]


def test_intervals_of_a_new_group_cover_the_nominal_share():
    covered = []
    for seed in range(20):
        panel, truth = synthetic(seed, groups=7, size=8)
        ends = predict(panel).intervals(0.8)[~panel.known]
        covered.append(np.mean((ends[:, 0] <= truth[~panel.known]) & (truth[~panel.known] <= ends[:, 1])))
    # The largest quantile of six groups errs to the wide side.
    assert 0.75 < np.mean(covered) <= 1


def test_intervals_inside_cover_the_nominal_share():
    covered = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        panel, truth = synthetic(seed, held=0)
        order = rng.permutation(len(panel))
        shuffled = replace(panel, returns=np.full(len(panel), np.nan)).take(order)
        returns = np.where(np.arange(len(panel)) < 36, truth[order], np.nan)
        ends = predict(shuffled.with_returns(returns)).intervals(0.8)[36:]
        covered.append(np.mean((ends[:, 0] <= truth[order][36:]) & (truth[order][36:] <= ends[:, 1])))
    assert np.mean(covered) == pytest.approx(0.8, abs=0.1)  # 240 policies, 3 standard errors are 0.08


def test_intervals_of_known_policies_are_those_of_their_returns():
    panel, truth = synthetic()
    panel = replace(panel, return_errors=np.where(panel.known, 2.0, 0.0))
    ends = predict(panel).intervals(0.8)[panel.known]
    np.testing.assert_allclose(ends.mean(1), truth[panel.known])
    np.testing.assert_allclose(np.ptp(ends, axis=1), 2 * 2.0 * stats.norm.ppf(0.9))


def test_conformal_quantile_covers_exchangeable_scores():
    rng = np.random.default_rng(0)
    covered = [rng.exponential() <= conformal_quantile(rng.exponential(size=19), 0.8) for _ in range(4000)]
    assert np.mean(covered) == pytest.approx(0.8, abs=0.02)
    assert conformal_quantile(np.array([1.0, 2.0]), 0.9) == 2.0
    # A new score is equally likely to have any of 11 places among ten: the ninth score covers 9 / 11 of them.
    assert conformal_quantile(np.arange(1.0, 11), 0.8) == 9


def test_outside_factor_is_the_largest_group_quantile():
    calibration = Calibration(np.arange(1, 10) / 10, {"a": np.array([1.0, 2.0, 3.0, 4.0]), "b": np.array([9.0] * 4)})
    factors = calibration.factors(0.8, np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(factors, [0.8, 4.9, 9.0])
    few = {"a": np.array([0.1] * 4)}
    assert Calibration(np.arange(1, 10) / 10, few).factors(0.8, np.ones(1)) == 0.8  # never less than inside


def test_factors_are_those_of_a_normal_where_too_few_policies_were_left_out():
    normal = stats.norm.ppf(0.9)
    for inside, expected in ((np.full(3, 9.0), [normal, normal]), (np.full(4, 9.0), [9, 9])):
        np.testing.assert_allclose(Calibration(inside, {}).factors(0.8, np.array([0, 1])), expected)
    np.testing.assert_allclose(Calibration(np.full(5, 0.1), {}).factors(0.8, np.array([0, 1])), [0.1, normal])


def test_five_groups_calibrate_the_intervals_of_foreign_candidates():
    groups = {str(g): np.ones(4) for g in range(5)}
    assert Calibration(np.ones(9), groups).calibrated_outside
    groups.popitem()
    assert not Calibration(np.ones(9), groups).calibrated_outside


def test_intervals_grow_with_levels_that_few_policies_cannot_tell():
    """The largest of nine scores covers 90 % of new ones; beyond, half widths grow as those of a normal."""
    calibration = Calibration(np.arange(1, 10) / 10, {})
    factors = [calibration.factors(level, np.zeros(1))[0] for level in (0.9, 0.95, 0.99)]
    assert factors == pytest.approx([0.9, *(0.9 * stats.norm.ppf([0.975, 0.995]) / stats.norm.ppf(0.95))])


def test_intervals_of_four_known_policies_are_calibrated():
    """Without calibration they cover half of the candidates instead of 80 %."""
    covered = []
    for seed in range(60):
        rng = np.random.default_rng([seed, 4])
        skill = rng.standard_normal(10)
        columns = {name: skill + noise * rng.standard_normal(10) for name, noise in (("good", 0.5), ("fair", 1.0))}
        returns = np.where(np.arange(10) < 4, skill, np.nan)
        prediction = predict(Panel.build(list("abcdefghij"), returns, columns, groups=["one"] * 10), seed=seed)
        assert np.isnan(prediction.inside)
        low, high = prediction.intervals(0.8)[4:].T
        covered.append(np.mean((low <= skill[4:]) & (skill[4:] <= high)))
    assert np.mean(covered) == pytest.approx(0.8, abs=0.1)


def test_hold_out_uses_grouped_columns_for_foreign_policies():
    panel, _ = synthetic(held=1)
    grouped = panel.grouped_columns | {"good": panel.columns["good"] + 1000}
    placement = place(replace(panel, grouped_columns=grouped))
    held = np.arange(12)
    foreign = hold_out(placement, held, foreign=True)
    assert foreign.panel.names[-12:] == panel.names[:12]
    assert not foreign.panel.known[-12:].any() and foreign.panel.known[:-12].all()
    np.testing.assert_array_equal(foreign.panel.columns["good"][-12:], grouped["good"][:12])
    inside = hold_out(placement, held, foreign=False)
    np.testing.assert_array_equal(inside.panel.grouped_columns["good"][-12:], panel.columns["good"][:12])
    assert foreign.gate[-12:].tolist() == [1] * 12 and inside.gate[-12:].tolist() == [0] * 12


@pytest.mark.parametrize(
    "known, candidates", [(2, 1), (2, 5), (3, 0), (8, 1)], ids=["two known", "two and five", "no candidate", "one"]
)
def test_small_panels_are_predicted(known, candidates):
    count = known + candidates
    returns = [*np.arange(known), *[np.nan] * candidates]
    panel = Panel.build([str(i) for i in range(count)], returns, {"fqe": np.arange(count) ** 2.0})
    prediction = predict(panel)
    assert np.isfinite(prediction.posterior.mean).all()
    assert np.isfinite(prediction.intervals()).all()


def test_one_known_policy_is_refused():
    with pytest.raises(ValueError, match="1 known policies; at least 2"):
        predict(Panel.build(["a", "b"], [1.0, np.nan], {"fqe": [1.0, 2.0]}))


@pytest.mark.parametrize("change", ["no columns", "constant columns", "equal returns", "NaN columns"])
def test_degenerate_panels_are_predicted(change):
    panel, _ = synthetic(groups=3, size=6)
    count = len(panel)
    if change == "no columns":
        panel = replace(panel, columns={}, grouped_columns={}, errors={})
    elif change == "constant columns":
        columns = {name: np.ones(count) for name in panel.columns}
        panel = replace(panel, columns=columns, grouped_columns=columns)
    elif change == "NaN columns":
        columns = {name: np.full(count, np.nan) for name in panel.columns}
        panel = replace(panel, columns=columns, grouped_columns=columns)
    else:
        panel = replace(panel, returns=np.where(panel.known, 5.0, np.nan))
    prediction = predict(panel)
    assert np.isfinite(prediction.posterior.mean).all()
    assert np.isfinite(prediction.posterior.deviation).all()
    if change != "equal returns":
        assert len(prediction.weights.methods) == 0


def test_update_keeps_measured_returns_and_narrows_the_rest():
    panel, truth = synthetic(offset=3.0, noise=0.2)
    prediction = predict(panel)
    names = [panel.names[i] for i in np.flatnonzero(~panel.known)]
    after = prediction.update({name: truth[panel.names.index(name)] for name in names[:3]})
    assert after.measured == tuple(names[:3])
    rest = [after.panel.names.index(name) for name in names[3:]]
    before = [prediction.panel.names.index(name) for name in names[3:]]
    true = truth[[panel.names.index(name) for name in names[3:]]]
    error = np.abs(after.posterior.mean[rest] - true).mean()
    assert error < np.abs(prediction.posterior.mean[before] - true).mean()
    assert np.ptp(after.intervals()[rest], axis=1).mean() < np.ptp(prediction.intervals()[before], axis=1).mean()
    with pytest.raises(ValueError, match="'nobody' is not in the selection"):
        prediction.update({"nobody": 1.0})
    with pytest.raises(ValueError, match="pass a finite number"):
        prediction.update({names[0]: np.nan})


def test_recipe_without_caution_or_agreement_is_a_power_of_the_mean_correlation():
    placement = place(synthetic()[0])
    weights = blend(placement, Recipe(power=4, caution=0, agreement=0))[1]
    expected = np.maximum(weights.within, 0) ** 4
    np.testing.assert_allclose(weights.outside, expected / expected.sum())


def test_gap_accuracy_weighs_pairs_by_their_gap():
    # Pairs: gaps 1 (right), 10 (wrong), 9 (wrong).
    assert gap_accuracy([0, 1, 10], [1, 2, 0]) == pytest.approx((1 - 10 - 9) / 20)
    assert gap_accuracy([0, 1, 10], [1, 2, 0], errors=[1, 1, 0]) == pytest.approx(-1)  # a gap of 1 is a tie
    assert gap_accuracy([0, 1], [3, 3]) == 0
    assert np.isnan(gap_accuracy([1, 1], [1, 2]))


def test_gaps_within_the_standard_error_of_their_difference_are_ties():
    assert np.isnan(gap_accuracy([0, 5], [1, 2], errors=[3, 4]))  # the difference has a standard error of 5
    assert gap_accuracy([0, 5.1], [1, 2], errors=[3, 4]) == 1


def test_risk_coverage_shares_the_risk_of_equal_confidence():
    coverage, risk, area = risk_coverage([0.9, 0.5, 0.5, 0.1], [0, 1, 0, 1])
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(risk, [0, 0.25, 1 / 3, 0.5])
    assert area == pytest.approx(np.mean([0, 0.25, 1 / 3, 0.5]))
    with pytest.raises(ValueError, match="at least one"):
        risk_coverage([], [])


def test_columns_weigh_alike_on_request_if_one_group_is_known_and_a_column_was_learned_from_it():
    panel, _ = synthetic(groups=2, held=1)
    within, recipe = blend(place(panel))[1].outside, Recipe(agreement=0, lone=1)
    learned = blend(place(replace(panel, supervised=frozenset({"good"}))), recipe)[1].outside
    assert within.max() > 0.5
    np.testing.assert_allclose(learned, 0.25)
    several, _ = synthetic(groups=3, held=1)
    both = blend(place(several))[1].outside
    learned_from_two = blend(place(replace(several, supervised=frozenset({"good"}))), Recipe(lone=1))[1].outside
    np.testing.assert_array_equal(learned_from_two, both)
