"""SOPR as an estimator, and cross-fitting."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from estimators import METHODS, gains, quiet, small_log, unwarned
from mdps import LinearGain

import sopr_fast
from sopr_fast import Config
from sopr_fast.estimators import FQE, SOPR, NearestPolicy, cross_fit
from sopr_fast.estimators.sopr import _units
from sopr_fast.inputs.policies import Gaussian
from sopr_fast.ranking.metrics import spearman

pytestmark = [
    unwarned,
    pytest.mark.filterwarnings("ignore::sopr_fast.ForeignPolicyWarning"),
    pytest.mark.filterwarnings("ignore::sopr_fast.CollapsedTrainingWarning"),
    pytest.mark.filterwarnings("ignore::sopr_fast.TrainingPolicyWarning"),
    pytest.mark.filterwarnings("ignore:only . training policies"),
]

SMALL_MODEL = {"width": 8, "low_layers": 1, "high_layers": 1, "low_feedforward": 8, "high_feedforward": 8}
CONFIG = Config(**SMALL_MODEL, high_heads=2, subset_size=40, clusters=4, subsets=6, steps=6)
METHOD = SOPR(CONFIG, subsets=3)


@pytest.fixture(scope="module")
def log():
    return small_log()


@pytest.fixture(scope="module")
def known():
    return gains(8), np.arange(8.0) ** 2


def test_cross_fitting_in_inference_mode_changes_no_bit(known, log):
    expected = cross_fit(METHOD, *known, log, folds=2, progress=False).values
    with torch.inference_mode():
        assert np.array_equal(cross_fit(METHOD, *known, log, folds=2, progress=False).values, expected)


def test_values_order_policies_as_rank_does(log, known):
    policies, returns = known
    candidates = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}
    estimates = METHOD.estimate(candidates, log, known=policies, returns=returns, seed=3, progress=False)
    ranker = sopr_fast.fit(policies, returns, log.states, config=CONFIG, seed=3)
    ranking = ranker.rank(candidates, subsets=3)
    np.testing.assert_array_equal(estimates.diagnostics["scores"], ranking.scores)
    scale = np.diff(estimates.values) / np.diff(ranking.scores)
    assert scale > 0
    np.testing.assert_allclose(estimates.standard_errors, scale * ranking.standard_errors, rtol=1e-6)
    assert estimates.method == "SOPR-T" and estimates.names == ["a", "b"]


def test_values_of_a_collapsed_model_are_equal(log, known):
    """Its scores differ by float noise, which must not be scaled to the spread of returns."""
    policies, returns = known
    ranker = sopr_fast.fit(policies, returns, log.states, config=CONFIG, seed=3)
    ranker.history["collapsed"] = True
    assert _units(ranker, returns) == (0.0, returns.mean())


def test_win_probabilities_are_those_of_rank(log, known):
    policies, returns = known
    candidates = {f"near-{i}": LinearGain(policy.gain + 0.003) for i, policy in enumerate(policies.values())}
    candidates["far"] = LinearGain(np.array([9.0, 9.0]))
    estimates = METHOD.estimate(candidates, log, known=policies, returns=returns, seed=3, progress=False)
    ranker = sopr_fast.fit(policies, returns, log.states, config=CONFIG, seed=3)
    expected = ranker.rank(candidates, subsets=3).win_probability
    assert np.isnan(expected[-1]).all() and np.isfinite(expected[0, 1])
    np.testing.assert_allclose(estimates.ranking().win_probability, expected, atol=1e-5)


def test_values_of_known_policies_have_the_moments_of_their_returns(log, known):
    policies, returns = known
    # The model's scores of its training policies are means over five subsets.
    method = SOPR(CONFIG, subsets=5)
    estimates = method.estimate(policies, log, known=policies, returns=returns, progress=False)
    assert estimates.values.mean() == pytest.approx(returns.mean(), rel=1e-4)
    assert estimates.values.std() == pytest.approx(returns.std(), rel=1e-4)


def test_mse_scores_are_values(log, known):
    policies, returns = known
    method = SOPR(replace(CONFIG, loss="mse"), subsets=3)
    estimates = method.estimate(gains(2), log, known=policies, returns=returns, progress=False)
    np.testing.assert_array_equal(estimates.values, estimates.diagnostics["scores"])


def test_sopr_mlp_is_chosen_by_the_encoder(log, known):
    policies, returns = known
    method = SOPR(replace(CONFIG, encoder="mlp"))
    assert method.estimate(gains(2), log, known=policies, returns=returns, progress=False).method == "SOPR-MLP"


def test_validation_policies_do_not_train(log, known):
    policies, returns = known
    trained = []

    class Recording(SOPR):
        def _split(self, count, seed):
            trained.append(super()._split(count, seed))
            return trained[-1]

    Recording(CONFIG, validation=0.25).estimate(gains(2), log, known=policies, returns=returns, progress=False)
    (training, validation) = trained[0]
    assert len(validation) == 2 and sorted([*training, *validation]) == list(range(8))
    assert len(SOPR(CONFIG, validation=0.2)._split(8, 0)[1]) == 0


def test_subsets_beyond_those_of_training_are_refused():
    with pytest.raises(ValueError, match=r"subsets is 7, but config\.subsets is only 6"):
        SOPR(CONFIG, subsets=7)
    with pytest.raises(ValueError, match="config must be a Config"):
        SOPR({"steps": 3})


def acting(policies, kind):
    """Return policies of one kind: deterministic, stochastic, or mixed."""
    stochastic = {"deterministic": set(), "stochastic": set(policies), "mixed": set(list(policies)[::2])}[kind]
    return {
        name: (lambda s, p=policy: Gaussian(p(s), 0.1 + p(s) ** 2)) if name in stochastic else policy
        for name, policy in policies.items()
    }


@pytest.mark.parametrize("method", [METHOD, NearestPolicy(rows=50)], ids=["sopr", "nearest-policy"])
@pytest.mark.parametrize("kind", ["deterministic", "stochastic", "mixed"])
def test_prepared_policies_and_log_give_the_same_values(method, kind, log, known):
    policies, returns = acting(known[0], kind), known[1]
    names = list(policies)
    options = {"seed": 1, "progress": False}
    prepared, prepared_log = method.prepare(policies, log, **options)
    values = []
    for table, states in ((policies, log), (dict(zip(names, prepared, strict=True)), prepared_log)):
        training, candidates = ({name: table[name] for name in part} for part in (names[:6], names[6:]))
        estimates = method.estimate(candidates, states, known=training, returns=returns[:6], **options)
        values.append(np.append(estimates.values, estimates.diagnostics["distances"]))
    # Policies may round differently in batches of other sizes.
    np.testing.assert_allclose(*values, rtol=1e-4)


@pytest.mark.parametrize("method", [METHOD, NearestPolicy()], ids=["sopr", "nearest-policy"])
def test_policies_act_once_for_all_folds(method, log, known):
    calls = []

    def counting(policy):
        def act(states):
            calls.append(len(states))
            return policy(states)

        return act

    policies = {name: counting(policy) for name, policy in known[0].items()}
    method.prepare(policies, log, progress=False)
    prepared, calls[:] = list(calls), []
    cross_fit(method, policies, known[1], log, folds=4, progress=False)
    assert calls == prepared


@pytest.mark.parametrize("method", [METHOD, NearestPolicy()], ids=["sopr", "nearest-policy"])
def test_cross_fitted_values_do_not_depend_on_the_policy_s_own_return(method, log, known):
    policies, returns = known
    changed = returns.copy()
    changed[2] = 1000
    first, second = (cross_fit(method, policies, labels, log, folds=4, progress=False) for labels in (returns, changed))
    fold = first.diagnostics["fold"]
    inside = fold == fold[2]
    assert inside.sum() == 2 and first.names == list(policies)
    np.testing.assert_array_equal(first.values[inside], second.values[inside])
    assert not np.array_equal(first.values[~inside], second.values[~inside])


def test_cross_fitting_leaves_whole_groups_out(log, known):
    policies, returns = known
    groups = dict(zip(policies, "abcabcab", strict=True))
    estimates = cross_fit(METHOD, policies, returns, log, groups=groups, progress=False)
    assert estimates.diagnostics["fold"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    inside = estimates.diagnostics["fold"] == 1
    training = {name: policy for name, policy in policies.items() if groups[name] != "b"}
    candidates = {name: policy for name, policy in policies.items() if groups[name] == "b"}
    alone = METHOD.estimate(candidates, log, known=training, returns=returns[~inside], progress=False)
    np.testing.assert_allclose(estimates.values[inside], alone.values, rtol=1e-4)


def test_cross_fitting_warns_once_of_few_policies(log, known):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_fit(METHOD, known[0], known[1], log, folds=4, progress=False)
    assert sum("training policies" in str(warning.message) for warning in caught) == 1


def test_cross_fitting_resumes(log, known, tmp_path):
    policies, returns = known
    options = {"folds": 2, "checkpoint": tmp_path / "run", "progress": False}
    first = cross_fit(METHOD, policies, returns, log, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.0", "run.1"]
    np.testing.assert_array_equal(cross_fit(METHOD, policies, returns, log, **options).values, first.values)


def test_estimators_that_are_not_supervised_see_no_returns(log):
    """They need no folds, whatever the returns."""
    method = METHODS["fqe"]
    estimates = cross_fit(method, gains(), [1, 2, 3], log, folds=99, **quiet)
    np.testing.assert_array_equal(estimates.values, method.estimate(gains(), log, **quiet).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "folds must be an integer, 2 or more, got 1"),
        ({"folds": 9}, "folds is 9, but there are only 8 known policies"),
        ({"groups": ["a"] * 8}, "groups put all known policies into one group"),
        ({"groups": [*"abcabca", float("nan")]}, "the group of policy 'gain-7' is nan; give it one of its own"),
        ({"groups": ["a"]}, r"groups must be one for each of 8 policies, got \['a'\]"),
        ({"groups": {"gain-0": "a"}}, "groups hold nothing for policy 'gain-1'"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_folds_that_cannot_be_are_refused(options, message, log, known):
    with pytest.raises(ValueError, match=message):
        cross_fit(NearestPolicy(), *known, log, **options)


@pytest.mark.parametrize("method", [METHOD, NearestPolicy()], ids=["sopr", "nearest-policy"])
def test_supervised_estimators_need_known_returns(method, log):
    assert method.supervised and not method.needs_rewards
    for options in ({}, {"known": gains()}, {"returns": [1, 2, 3]}):
        with pytest.raises(ValueError, match=f"{method.name} learns from known returns: pass known="):
            method.estimate(gains(), log, **options)


def test_reward_estimators_need_a_discount(log):
    assert FQE.needs_rewards and not FQE.supervised
    with pytest.raises(ValueError, match="FQE estimates discounted returns: pass discount"):
        FQE().estimate(gains(), log)


def test_sopr_learns_an_order(log):
    """Values of unseen policies between known ones follow their order; a model at random has none."""
    policies, returns = gains(16), np.arange(16.0)
    config = replace(CONFIG, steps=60, subsets=12, warmup_steps=5)
    estimates = cross_fit(SOPR(config), policies, returns, log, folds=4, progress=False)
    assert spearman(estimates.values, returns) > 0.8
