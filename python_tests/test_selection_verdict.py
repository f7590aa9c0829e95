"""Probabilities, what to measure next, and verdicts."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from selection_panels import synthetic

from sopr_fast.selection.measure import (
    draw_returns,
    leaders,
    measure_next,
    probability_beats,
    probability_best,
    regret_draws,
)
from sopr_fast.selection.panel import Panel
from sopr_fast.selection.posterior import Posterior
from sopr_fast.selection.predict import predict
from sopr_fast.selection.verdict import judge


def with_posterior(mean, covariance):
    """Return a prediction with a given posterior of candidates b, c, …; known policies a and z have return 0."""
    count = len(mean)
    names = ["a", "z", *(chr(98 + i) for i in range(count))]
    prediction = predict(Panel.build(names, [0.0, 0.0, *[np.nan] * count], {"fqe": np.arange(count + 2)}))
    full = np.zeros((count + 2, count + 2))
    full[2:, 2:] = covariance
    return replace(prediction, posterior=Posterior(np.array([0.0, 0.0, *mean]), full, {}))


def test_probabilities_follow_the_joint_gaussian():
    prediction = with_posterior([2.0, 3.0], [[4.0, 2.0], [2.0, 9.0]])
    best = probability_best(prediction)
    assert best[:2].tolist() == [0, 0]
    assert best.sum() == pytest.approx(1)
    assert best[3] == pytest.approx(stats.norm.cdf(1 / np.sqrt(4 + 9 - 2 * 2)), abs=0.03)
    beats = probability_beats(prediction, "a")
    assert beats[2] == pytest.approx(stats.norm.cdf(2 / 2))
    assert beats[3] == pytest.approx(stats.norm.cdf(3 / 3))
    assert beats[:2].tolist() == [0.5, 0.5]
    # The variance of a difference: 4 + 9 - 2 * 2.
    assert probability_beats(prediction, "b")[2:] == pytest.approx([0.5, stats.norm.cdf(1 / 3)])


@pytest.mark.parametrize("seed", range(3))
def test_measured_returns_are_compared_by_their_errors_alone(seed):
    """However far predictions err, here about twice as far as the posterior says."""
    rng = np.random.default_rng(seed)
    skill = 20 * rng.standard_t(1.5, 16)
    columns = {name: skill + 30 * rng.standard_t(1.2, 16) for name in ("good", "fair", "bad")}
    returns, errors = np.where(np.arange(16) < 12, skill, np.nan), np.where(np.arange(16) < 12, 1.0, 0.0)
    names = [f"policy {i}" for i in range(16)]
    prediction = predict(Panel.build(names, returns, columns, groups=["one"] * 16, return_errors=errors))
    measured = prediction.update({"policy 15": skill[0] + 2}, {"policy 15": 1.0})
    beats = probability_beats(measured, "policy 0")[measured.panel.names.index("policy 15")]
    assert beats == pytest.approx(stats.norm.cdf(2 / np.sqrt(2)), abs=0.01)


def test_draws_are_equal_for_equal_seeds():
    prediction, both = with_posterior([2.0, 3.0], np.eye(2)), np.array([2, 3])
    draws = draw_returns(prediction, both)
    np.testing.assert_array_equal(draw_returns(prediction, both), draws)
    assert (draw_returns(replace(prediction, seed=1), both) != draws).all()


def test_leaders_are_those_that_beat_the_first_with_a_probability_of_a_fifth():
    assert leaders(with_posterior([5.0, 4.9, 0.0], np.eye(3))) == ["b", "c"]
    behind = np.sqrt(2) * stats.norm.ppf([0.5, 0.21, 0.19])
    assert leaders(with_posterior(behind, np.eye(3))) == ["b", "c"]


def test_regret_draws_of_a_sure_best_are_zero():
    prediction = with_posterior([5.0, 3.0, 1.0], 1e-12 * np.eye(3))
    np.testing.assert_allclose(regret_draws(prediction, "b"), 0, atol=1e-5)
    np.testing.assert_allclose(regret_draws(prediction, "c"), 0.5, atol=1e-4)


def test_batch_avoids_candidates_of_one_hope():
    # b and c are equal but for noise; d is a little worse and independent.
    covariance = np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-6, 0.0], [0.0, 0.0, 1.0]])
    assert measure_next(with_posterior([1.0, 0.999, 0.9], covariance), 2) == ["b", "d"]


def test_measure_next_prefers_uncertain_candidates_above_a_floor():
    prediction = with_posterior([1.0, 0.5], np.diag([0.01, 4.0]))
    assert measure_next(prediction, 1) == ["b"]
    assert measure_next(prediction, 1, floor=1.2) == ["c"]
    assert measure_next(prediction, 9) == ["b", "c"]


def test_a_batch_gains_over_the_best_of_all_its_members():
    # b is surely 3, so that d, surely 2.9, gains nothing after it, however uncertain c is.
    prediction = with_posterior([3.0, 0.0, 2.9, 1.0], np.diag([1e-6, 16.0, 1e-6, 4.0]))
    assert measure_next(prediction, 3) == ["b", "c", "e"]


def test_candidates_without_gain_follow_by_their_expected_returns():
    prediction = with_posterior([-48.0, -50.0, -49.0], 0.01 * np.eye(3))
    assert measure_next(replace(prediction, incumbent="a"), 3) == ["b", "d", "c"]


def test_measuring_what_is_suggested_finds_the_best_sooner_than_random_picks():
    ours, random = [], []
    for seed in range(8):
        panel, truth = synthetic(seed, noise=0.6)
        values = truth[~panel.known]
        prediction = predict(panel)
        measured = []
        for _ in range(3):
            name = measure_next(prediction)[0]
            measured.append(truth[panel.names.index(name)])
            prediction = prediction.update({name: measured[-1]})
        ours.append((values.max() - max(measured)) / np.ptp(values))
        picks = np.random.default_rng(seed).permuted(np.tile(values, (200, 1)), axis=1)[:, :3]
        random.append(((values.max() - picks.max(1)) / np.ptp(values)).mean())
    assert np.mean(ours) < 0.6 * np.mean(random)


def by_name(prediction, offset=0.0, unit=1.0):
    """Return means, intervals and probabilities by name, and the verdict, of returns `unit` * r + `offset`."""
    values = np.column_stack([prediction.posterior.mean, prediction.intervals()])
    table = np.column_stack([(values - offset) / unit, probability_best(prediction)])
    return table[np.argsort(prediction.panel.names)], judge(prediction)


@pytest.mark.parametrize("change", ["order", "large unit", "small unit", "offset"])
def test_order_and_unit_of_returns_change_nothing(change):
    panel, _ = synthetic(seed=1, size=8)
    expected, verdict = by_name(predict(panel))
    offset, unit = {"large unit": (0.0, 1e6), "small unit": (0.0, 1e-9), "offset": (-1e3, 1.0)}.get(change, (0.0, 1.0))
    known, candidates = (np.flatnonzero(part) for part in (panel.known, ~panel.known))
    if change == "order":
        random = np.random.default_rng(0)
        panel = panel.take(np.concatenate([random.permutation(known), random.permutation(candidates)]))
    table, other = by_name(predict(panel.with_returns(unit * panel.returns + offset)), offset, unit)
    np.testing.assert_allclose(table, expected, rtol=1e-8, atol=1e-8)
    assert (other.kind, other.policies) == (verdict.kind, verdict.policies)


def test_measuring_two_candidates_in_turn_is_measuring_them_together():
    panel, truth = synthetic(seed=1, size=8)
    prediction = predict(panel)
    second, first = np.flatnonzero(~panel.known)[[1, 5]]
    measured = [{panel.names[i]: truth[i]} for i in (first, second)]
    together, verdict = by_name(prediction.update(measured[0] | measured[1]))
    in_turn, other = by_name(prediction.update(measured[0]).update(measured[1]))
    np.testing.assert_allclose(in_turn, together, rtol=1e-8, atol=1e-8)
    assert other.policies == verdict.policies


def clear_winner(groups):
    """Predict candidates of which the fourth is far above all others in every column."""
    panel, _ = synthetic(noise=0.05, offset=0.1, groups=groups)
    columns = {name: values for name, values in panel.columns.items() if name in ("good", "fair")}
    winner = int(np.flatnonzero(~panel.known)[3])
    for values in columns.values():
        values[winner] = values.max() + 1
    return predict(replace(panel, columns=columns, grouped_columns=columns))


def test_verdict_deploys_a_clear_winner():
    prediction = clear_winner(groups=5)
    panel, winner = prediction.panel, int(np.flatnonzero(~prediction.panel.known)[3])
    verdict = judge(prediction)
    assert verdict.trust > 0.9
    assert verdict.kind == "deploy"
    assert verdict.policies == (panel.names[winner],)
    assert verdict.sure >= 0.9
    assert str(verdict).startswith(f"deploy {panel.names[winner]}. Its regret is at most 0.05 of the candidates' range")


@pytest.mark.parametrize(
    ("groups", "behind", "kind"), [(3, 2.5, "measure first"), (3, 5.0, "deploy"), (6, 2.5, "deploy")]
)
def test_verdict_measures_first_where_an_uncalibrated_foreign_candidate_may_win(groups, behind, kind):
    prediction = clear_winner(groups)
    names, posterior = prediction.panel.names, prediction.posterior
    rows = np.flatnonzero(~prediction.panel.known)
    leader, other = rows[np.argsort(-posterior.mean[rows])[[0, 1]]]
    mean, covariance = posterior.mean.copy(), np.diag(np.full(len(names), 1e-8))
    covariance[leader, leader] = covariance[other, other] = 0.5
    mean[other] = mean[leader] - behind  # in standard deviations of the difference
    gate = np.where(np.arange(len(names)) == other, 1.0, 0.0)
    placement = replace(prediction.placement, gate=gate)
    verdict = judge(
        replace(prediction, placement=placement, posterior=replace(posterior, mean=mean, covariance=covariance))
    )
    assert verdict.kind == kind
    assert verdict.policies == ((names[leader], names[other]) if kind == "measure first" else (names[leader],))


def against(lead, role):
    """Predict a leader whose return is `lead` standard deviations above that of the best known policy."""
    prediction = clear_winner(groups=6)
    names, posterior = prediction.panel.names, prediction.posterior
    known = prediction.panel.known
    leader = int(np.flatnonzero(~known)[3])
    best = int(np.argmax(np.where(known, prediction.panel.returns, -np.inf)))
    mean, covariance = np.where(known, posterior.mean, posterior.mean[known].min()), np.diag(np.full(len(names), 1e-8))
    mean[best] = prediction.panel.returns[best]
    deviation = np.ptp(mean) / 4
    mean[leader], covariance[leader, leader] = mean[best] + lead * deviation, deviation**2
    posterior = replace(posterior, mean=mean, covariance=covariance)
    part = {"incumbent": {"incumbent": names[best]}, "measured": {"measured": (names[best],)}}.get(role, {})
    return replace(prediction, posterior=posterior, **part), names[leader], names[best]


@pytest.mark.parametrize(
    ("lead", "kinds"),
    [
        (3.0, {None: "deploy", "incumbent": "deploy", "measured": "deploy"}),
        (0.5, {None: "deploy", "incumbent": "measure first", "measured": "measure first"}),
        (-2.0, {None: "deploy", "incumbent": "keep", "measured": "deploy"}),
    ],
)
@pytest.mark.parametrize("role", [None, "incumbent", "measured"])
def test_a_candidate_must_beat_the_incumbent_and_what_was_measured(lead, kinds, role):
    prediction, leader, best = against(lead, role)
    verdict = judge(prediction)
    assert verdict.kind == kinds[role]
    chosen = {"deploy": best if role == "measured" and lead < 0 else leader, "keep": best}.get(verdict.kind)
    assert chosen is None or verdict.policies == (chosen,)
    if role is not None and lead > 0:
        within = 0.05 * 4  # standard deviations: the regret that is allowed
        assert verdict.sure == pytest.approx(stats.norm.cdf(lead + within), abs=0.03)
        assert best in verdict.reason
    if verdict.kind == "measure first":
        assert verdict.policies == (leader,)
        assert f"with probability {stats.norm.cdf(lead):.2f} only" in verdict.reason


@pytest.mark.parametrize(("share", "kind"), [(0.19, "keep"), (0.21, "measure first")])
def test_the_incumbent_stands_unless_a_candidate_exceeds_it_with_a_probability_of_a_fifth(share, kind):
    prediction, _, _ = against(stats.norm.ppf(share), "incumbent")
    assert judge(prediction).kind == kind


def believed(mean, covariance, *, inside, agreement):
    """Return a prediction for candidates like the known policies, with its evidence given."""
    prediction = with_posterior(mean, covariance)
    weights = replace(prediction.weights, agreement=np.array(agreement))
    placement = replace(prediction.placement, gate=np.zeros(len(mean) + 2))
    return replace(prediction, inside=inside, weights=weights, placement=placement)


def test_trust_is_the_mean_of_success_and_of_the_median_agreement():
    verdict = judge(believed([9.0, 1.0], np.eye(2), inside=0.8, agreement=[0.1, 0.3, 0.9, np.nan]))
    assert (verdict.success, verdict.agreement) == (0.8, 0.3)
    assert verdict.trust == pytest.approx((0.8 + 0.3) / 2)
    untried = judge(believed([9.0, 1.0], np.eye(2), inside=np.nan, agreement=[0.3]))
    assert np.isnan(untried.success) and untried.trust == pytest.approx(0.3 / 2)
    assert judge(believed([9.0, 1.0], np.eye(2), inside=-0.8, agreement=[0.3])).trust == pytest.approx(0.3 / 2)


@pytest.mark.parametrize(
    ("trust", "kind"),
    [(0.24, "cannot rank these"), (0.26, "measure first"), (0.69, "measure first"), (0.71, "deploy")],
)
def test_verdicts_follow_the_trust(trust, kind):
    verdict = judge(believed([9.0, 1.0, 0.0], 1e-4 * np.eye(3), inside=trust, agreement=[trust]))
    assert (verdict.kind, verdict.sure) == (kind, 1)


@pytest.mark.parametrize(
    ("mean", "kind", "policies"),
    [
        ([10.0, 9.9, 0.0], "undecided", ("b", "c")),
        ([10.0, 9.9, 9.8, 0.0], "undecided", ("b", "c", "d")),
        ([10.0, 9.9, 9.8, 9.7, 0.0], "measure first", None),  # four are too many to choose from
        ([10.0, 9.9, *[8.5] * 9, 0.0], "measure first", None),  # one of nine others may be the best
    ],
)
def test_a_few_leaders_of_which_one_is_surely_near_the_best_are_left_undecided(mean, kind, policies):
    verdict = judge(believed(mean, np.eye(len(mean)), inside=0.9, agreement=[0.9]))
    assert verdict.kind == kind and verdict.sure < 0.9
    assert policies is None or verdict.policies == policies


def test_the_incumbent_is_the_floor_of_what_is_worth_measuring():
    prediction = with_posterior([-1.0, -1.5], np.diag([0.01, 4.0]))  # b surely returns less than a
    assert measure_next(prediction, 1) == ["b"]
    assert measure_next(replace(prediction, incumbent="a"), 1) == ["c"]


def test_the_incumbent_stays_when_every_candidate_was_measured():
    prediction = replace(with_posterior([1.0], np.eye(1)), incumbent="a")
    verdict = judge(prediction.update({"b": -1.0}))
    assert (verdict.kind, verdict.policies) == ("keep", ("a",))
    assert judge(prediction.update({"b": 1.0})).policies == ("b",)


def measured(errors):
    """Measure b and c, 2 and 1 above the incumbent a; their errors are given, and nothing else is known of them."""
    prediction = replace(with_posterior([2.0, 1.0], np.diag(np.square(errors))), incumbent="a", measured=("b", "c"))
    panel = prediction.panel
    known = panel.with_returns(np.array([0.0, 0.0, 2.0, 1.0]), np.array([0.0, 0.0, *errors]))
    return replace(prediction, placement=replace(prediction.placement, panel=known))


def test_noisy_measurements_are_repeated_before_one_is_deployed():
    sure, close, wide = (judge(measured(errors)) for errors in ([0.0, 0.0], [0.1, 1.0], [3.0, 1.0]))
    assert (sure.kind, sure.policies) == ("deploy", ("b",))
    beats = stats.norm.sf(1 / np.hypot(0.1, 1.0))  # c against b: 0.16
    assert beats < 0.2 and (close.kind, close.policies) == ("deploy", ("b",))
    assert stats.norm.sf(1 / np.hypot(3, 1)) > stats.norm.sf(2 / 3) > 0.2  # c against b, and a against b
    assert (wide.kind, wide.policies) == ("measure first", ("b", "c", "a"))
    assert f"c returns more than b with probability {stats.norm.sf(1 / np.hypot(3, 1)):.2f}" in wide.reason


def test_a_lucky_measurement_does_not_replace_the_incumbent():
    """All evidence but a noisy measurement says that b returns far less than the incumbent."""
    prediction = measured([0.1, 0.1])
    panel = prediction.panel.with_returns(np.array([0.0, 0.0, 2.0, -5.0]), np.array([0.0, 0.0, 40.0, 0.1]))
    posterior = replace(prediction.posterior, mean=np.array([0.0, 0.0, -3.0, -5.0]))
    prediction = replace(
        prediction, posterior=posterior, placement=replace(prediction.placement, panel=panel), measured=("b", "c")
    )
    assert prediction.rival == "a"
    assert (judge(prediction).kind, judge(prediction).policies) == ("keep", ("a",))


@pytest.mark.parametrize("seed", range(3))
def test_the_incumbent_stands_against_a_candidate_that_returns_as_much(seed):
    panel, _ = synthetic(seed=seed, size=8)
    incumbent = panel.names[int(np.nanargmax(panel.returns))]
    candidate = panel.names[int(np.flatnonzero(~panel.known)[0])]
    prediction = replace(predict(panel), incumbent=incumbent).update({candidate: np.nanmax(panel.returns)})
    assert prediction.rival == incumbent
    assert probability_beats(prediction, incumbent)[panel.names.index(candidate)] == 0.5


def test_verdict_refuses_to_rank_with_useless_columns():
    panel, _ = synthetic(quality=0.0, noise=1.0)
    verdict = judge(predict(panel))
    assert verdict.kind in ("cannot rank these", "measure first")
    assert verdict.trust < 0.7


def test_verdict_asks_to_measure_when_known_policies_form_one_group():
    panel, _ = synthetic(groups=2, noise=0.1)
    verdict = judge(predict(panel))
    assert verdict.kind == "measure first"
    assert "one group" in verdict.reason
    assert len(verdict.policies) == 3


@pytest.mark.parametrize(("gate", "refused"), [(0.0, False), (1.0, True)])
def test_verdict_needs_outside_weights_for_foreign_candidates_alone(gate, refused):
    prediction = predict(synthetic(noise=0.1)[0])
    weights = replace(prediction.weights, outside=np.zeros(len(prediction.weights.methods)))
    placement = replace(prediction.placement, gate=np.full(len(prediction.panel.names), gate))
    verdict = judge(replace(prediction, weights=weights, placement=placement))
    assert verdict.success > 0.5
    assert (verdict.kind == "cannot rank these") == refused


def test_verdict_without_columns_cannot_rank():
    panel, _ = synthetic()
    verdict = judge(predict(replace(panel, columns={}, grouped_columns={}, errors={})))
    assert verdict.kind == "cannot rank these"
    assert str(verdict) == "cannot rank these. No estimator left a usable column."


def test_verdict_without_candidates_says_so():
    panel, _ = synthetic(held=0)
    assert "no candidates" in judge(predict(panel)).reason


def test_one_candidate_gets_a_verdict():
    panel, _ = synthetic(noise=0.1)
    verdict = judge(predict(panel.take(np.arange(37))))
    assert np.isnan(verdict.agreement)
    assert verdict.reason.startswith("It is the only candidate left, and ")
    assert verdict.probability_best == 1
