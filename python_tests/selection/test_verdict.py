"""The verdict of `select`: what to deploy, keep or measure, and why."""

import numpy as np
import pytest
from support.selection_problems import BEST, CANDIDATES, KNOWN, RETURNS, TRUTH, Scripted, choose, log, simulator

from sopr_fast.estimators.gaussian_process_posterior import Posterior
from sopr_fast.selection import select
from sopr_fast.selection.compared import distance_ratios
from sopr_fast.selection.draws import best_to_measure, draw_returns, probability_best


def far(name="far", value=-1.0):
    return {name: lambda states: np.full((len(states), 1), 50.0)}, simulator(**{name: value})


@pytest.mark.parametrize(
    ("value", "known", "options", "text"),
    [
        (-99, 12, {}, f"Deploy {BEST}; measured "),
        (-99, 12, {"incumbent": BEST}, f"Keep {BEST}; measured "),
        (-99, 12, {"incumbent": min(RETURNS, key=RETURNS.get)}, f"Deploy {BEST}; measured "),
        (RETURNS[BEST] + 3, 12, {}, "Deploy right-20; predicted "),
        (RETURNS[BEST] + 9, 5, {}, "Measure right-20, 20 episodes. right-20 beats "),
    ],
)
def test_one_candidate_is_deployed_measured_or_neither(value, known, options, text):
    """It is surely better or worse; with fewer than six known returns nothing is sure."""
    few = dict([*RETURNS.items()][:known])
    candidate, known = {"right-20": CANDIDATES["right-20"]}, {name: KNOWN[name] for name in few}
    selection = choose(candidate, known, few, simulator=simulator(**{"right-20": value}), **options)
    assert str(selection.verdict).startswith(text)
    assert selection.verdict.kind == text.split()[0].lower() and selection.verdict.policies[0] in text
    assert selection.measure_next(3) == (["right-20"] if "right-20" in text else [])
    assert ("but only 5 returns are known. It may return as little as " in selection.verdict.reason) == (len(few) < 6)


@pytest.mark.parametrize(("most", "first"), [(np.inf, 0), (40, 1)])
def test_what_is_measured_first_gains_most_among_possible_returns(most, first):
    mean, deviation = np.array([22.0, 37.4]), np.array([15.0, 1.5])
    posterior = Posterior(mean, np.diag(deviation**2), 1.0, np.full((2, 2), np.nan), (-np.inf, most))
    draws = draw_returns(posterior, 0)
    assert best_to_measure(draws, mean, np.full(len(draws), 38.0), 1)[0] == [first]
    assert draws.max() <= most


@pytest.mark.parametrize("scale", [1, 1e5])
def test_draws_have_mean_and_covariance_of_the_posterior_and_equal_policies_share(scale):
    """Two returns are one, a third is exact: the covariance is singular."""
    loads = scale * np.array([[1.0, 0], [1, 0], [0, 0], [0.5, 2], [-1, 1]])
    mean, covariance = scale * np.array([3.0, 3, 1, 2, 0]), loads @ loads.T
    posterior = Posterior(mean, covariance.copy(), scale, np.full((2, 5), np.nan))
    draws = draw_returns(posterior, 0)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.1 * scale)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.3 * scale**2)
    np.testing.assert_allclose(draws[:, 0], draws[:, 1], atol=1e-3 * scale)
    np.testing.assert_array_equal(posterior.covariance, covariance)
    best = probability_best(posterior, draws)
    assert best[0] == best[1] and best.sum() == pytest.approx(1)
    turned = Posterior(mean[::-1], covariance[::-1, ::-1], scale, np.full((2, 5), np.nan))
    np.testing.assert_allclose(draw_returns(turned, 0)[:, ::-1], draws, atol=1e-3 * scale)


def test_what_is_not_decided_is_measured_in_the_order_of_measure_next():
    errors = {name: [value - 0.5, value + 0.5] for name, value in RETURNS.items()}
    near = {name: RETURNS[BEST] + 0.02 * i for i, name in enumerate(CANDIDATES)}
    selection = choose(returns=errors, simulator=simulator(**near))
    assert selection.verdict.kind == "measure"
    assert list(selection.verdict.policies) == selection.measure_next(2)
    assert selection.verdict.text == f"Measure {' and '.join(selection.measure_next(2))}, 20 episodes each"


def test_a_known_policy_that_may_beat_the_incumbent_is_measured_again():
    rollouts = {name: [-9.0, -8.0] for name in KNOWN} | {"right-00": [0.0, 2.0], "left-01": [0.3, 2.3]}
    selection = select(KNOWN, log(), returns=rollouts, simulator=simulator(), incumbent="right-00")
    assert (selection.verdict.kind, set(selection.verdict.policies)) == ("measure", {"right-00", "left-01"})
    assert selection.measure_next(2) == list(selection.verdict.policies)
    assert selection.verdict.reason.startswith("left-01 beats right-00 with a probability of ")


def test_only_measured_policies_get_a_verdict(monkeypatch):
    rollouts = {name: [-5.0 - i // 3, -4.0 - i // 3, -3.0 - i // 3] for i, name in enumerate(KNOWN)}
    right = simulator(**{name: returns[1] for name, returns in rollouts.items()})
    selection = select(KNOWN, log(), returns=rollouts, simulator=right)
    assert selection.verdict.kind == "deploy"
    assert "; measured -4.00 ± 0.58" in selection.verdict.text
    kept = select(KNOWN, log(), returns=rollouts, simulator=right, incumbent=selection.verdict.policies[0])
    assert kept.verdict.kind == "keep"
    monkeypatch.setattr("sopr_fast.selection.values.Simulator", None)  # which is not needed
    selection = select(KNOWN, log(), returns=RETURNS)
    assert selection.verdict.policies == (BEST,) and selection.values is None


def test_without_known_returns_only_the_simulator_ranks():
    selection = select(CANDIDATES, log(), simulator=simulator())
    assert selection.columns()["policy"] == sorted(CANDIDATES, key=simulator().says.get, reverse=True)
    assert selection.verdict.kind == "measure"
    assert list(selection.verdict.policies) == selection.measure_next(2)
    assert "No return is known: the order is by Simulator" in str(selection)
    assert (np.diff(selection.intervals()) > 0).all()
    assert np.isnan(selection.evidence["Simulator"])


def test_without_known_returns_a_policy_that_is_surely_worse_is_not_to_be_measured():
    random = np.random.default_rng(0)
    states = random.standard_normal((2000, 1))
    alike = {f"near-{i}": (lambda s, g=0.02 * i: 0.5 * s + g) for i in range(4)}
    policies = {**alike, "opposite": lambda s: -3 * s}
    said = Scripted({**{name: 1.0 - 0.1 * i for i, name in enumerate(alike)}, "opposite": -1.0})
    bandit = {"states": states, "actions": states, "rewards": states[:, 0], "terminals": np.ones(len(states), bool)}
    selection = select(policies, bandit, simulator=said)
    assert selection.verdict.text.endswith(", 1,000 episodes each")  # of one step
    chosen = selection.measure_next(5)
    assert chosen[0] == "near-0" and "opposite" not in chosen


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_known_returns_work_and_are_said_to_be_few(count):
    few = dict(list(RETURNS.items())[:count])
    selection = choose(returns=few)
    assert f"Only {count} return" in " ".join(selection.doubts)
    assert selection.verdict.kind != "deploy" or selection.verdict.policies[0] in few
    assert {name for name, known in zip(selection.names, selection.known, strict=True) if known} == set(few)


def test_candidates_unlike_all_known_policies_are_not_ranked():
    stranger, method = far(value=0.0)
    alone = choose(stranger, simulator=method)
    assert alone.verdict.text == "Measure far, 20 episodes"
    assert alone.verdict.reason.startswith("far may be better (")
    low = alone.intervals()[alone.names.index("far"), 0]
    assert alone.verdict.reason.endswith(f". It may return as little as {low:.2f}.")
    selection = choose(CANDIDATES | stranger, simulator=method)
    place = selection.names.index("far")
    assert selection.distance_ratio[place] > 1.4 and not selection.rankable[place]
    assert selection.flags[place] == "cannot be ranked"
    assert selection.verdict.policies[:1] != ("far",) or selection.verdict.kind == "measure"
    assert "far" in selection.measure_next(4)
    told = "What known returns say of far rests on assumptions: it acts unlike every known policy"
    assert selection.unrankable() == [told]
    assert all(len(line) <= 80 for line in str(selection).splitlines())


def test_a_candidate_that_is_hardly_ever_better_is_not_measured_even_if_the_log_cannot_rank_it():
    stranger, method = far(value=-60.0)
    selection = choose(CANDIDATES | stranger, simulator=method)
    place = selection.names.index("far")
    assert not selection.rankable[place] and selection.probability_better("far", BEST) < 0.1
    assert "far" not in selection.measure_next(9)


def test_impossible_returns_other_units_and_equal_rewards_are_doubted():
    selection = choose()
    low, high = selection.bounds
    known = selection.names[int(np.argmax(selection.known))]
    above, below = (selection.update({known: value}).doubts[0] for value in (high + 100, low - 100))
    assert above.startswith(f"The return of {known}, ") and ", the highest that the logged rewards" in above
    assert ", the lowest that the logged rewards" in below
    (doubt,) = choose(returns={name: value / 20 for name, value in RETURNS.items()}).doubts
    assert doubt.startswith("The known returns are 0.05 times the values by Simulator")
    few = {name: RETURNS[name] / 2000 for name in [*RETURNS][:3]}
    assert choose(returns=few).doubts[-1].startswith("The known returns are 0.0005 times the values by Simulator")
    assert " times the values" not in str(choose(returns=dict([*few.items()][:2])).doubts)
    assert choose(returns={name: value / 4 for name, value in RETURNS.items()}).doubts == []
    assert selection.doubts == []
    transitions = log()
    arrays = {"states": transitions.states, "actions": transitions.actions, "rewards": 0 * transitions.rewards}
    arrays |= {"next_states": transitions.next_states, "timeouts": transitions.timeouts | transitions.terminals}
    arrays["terminals"] = 0 * arrays["timeouts"]
    selection = select(CANDIDATES, arrays, simulator=simulator())
    assert selection.doubts[0].startswith("By the logged rewards every policy returns 0.00: check")


@pytest.mark.parametrize("incumbent", [None, min(RETURNS, key=RETURNS.get)])
def test_returns_in_reverse_deploy_no_policy_even_if_all_are_known(incumbent):
    reverse = Scripted({name: -10 - value for name, value in TRUTH.items()})
    selection = choose({}, simulator=reverse, incumbent=incumbent)
    assert (
        selection.verdict.reason == "Values by Simulator order the known policies in reverse, as if returns were costs."
    )
    assert [*selection.verdict.policies] == selection.measure_next(2) == [BEST]
    assert "rank correlation of -1.00: if returns or logged rewards are costs" in str(selection.notes)


@pytest.mark.parametrize("candidates", [{}, CANDIDATES])
def test_a_policy_whose_return_the_log_does_not_allow_is_measured_again(candidates):
    name = next(name for name in KNOWN if name != BEST)
    selection = choose(candidates, returns=RETURNS | {name: 1e9})
    assert str(selection.verdict).startswith(f"Measure {name}, 20 episodes. The log does not allow its return, 1,000,0")
    assert selection.measure_next(2) == [name]
    assert choose(candidates, returns=RETURNS | {name: 1e9}, incumbent=name).verdict.kind == "keep"


def test_one_disastrous_return_does_not_end_measuring():
    returns = RETURNS | {min(RETURNS, key=RETURNS.get): -1e4}
    selection = choose(returns=returns, simulator=simulator(**dict.fromkeys(CANDIDATES, RETURNS[BEST])))
    assert selection.verdict.kind == "measure" and len(selection.measure_next(2)) == 2


def test_a_near_policy_can_be_ranked_after_two_twins_of_it_were_measured():
    places = np.array([0.0, 0.1, 0.3, 3, 5, 8])
    ratios = distance_ratios((places[:, None] - places) ** 2, np.array([0, 1]))
    assert ratios[2] < 0.1 and ratios[5] > 1.4
