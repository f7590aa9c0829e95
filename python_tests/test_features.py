import dataclasses

import numpy as np
import pytest
import torch
from problems import TINY, LinearPolicy, ladder, log, training_gains

import sopr_fast
from sopr_fast.inputs.policies import as_policies
from sopr_fast.ranking.metrics import spearman
from sopr_fast.runtime.arrays import as_numbers
from sopr_fast.sopr.columns import critic_values, read_features
from sopr_fast.sopr.model import ScoringModel

GAINS = training_gains()
UNSEEN = np.array([0.3, 0.5, 0.8, 1.1, 1.3])


def fit(policies, returns, **options):
    config = dataclasses.replace(TINY, dropout=0.0)
    return sopr_fast.fit(policies, returns, log(), config=config, **options)


def alike(names) -> dict[str, LinearPolicy]:
    """Return policies that differ in their names only."""
    return dict.fromkeys(names, LinearPolicy(1.0))


def test_features_order_policies_that_act_alike():
    known, candidates = alike("abcdefghijkl"), alike("mnopq")
    features = dict(zip([*known, *candidates], [*GAINS, *UNSEEN], strict=True))
    ranker = fit(known, GAINS, features=features)
    assert spearman(UNSEEN, ranker.rank(candidates, features=features).scores) == 1.0


def test_a_features_scale_does_not_matter():
    known, candidates = alike("abcdefghijkl"), alike("mnopq")
    scores = []
    for scale, shift in ((1.0, 0.0), (1024.0, 4096.0), (1024.0, 2.0**30)):
        features = {n: (scale * g + shift, 7.0) for n, g in zip([*known, *candidates], [*GAINS, *UNSEEN], strict=True)}
        ranker = fit(known, GAINS, features=features)
        scores.append(ranker.rank(candidates, features=features).scores)
    for other in scores[1:]:
        assert np.allclose(scores[0], other, atol=1e-2 * np.ptp(scores[0]))


def test_features_in_another_unit_are_warned_of(recwarn):
    known, candidates = alike("abcdefghijkl"), alike("mn")
    ranker = fit(known, GAINS, features={name: (1.0, g) for name, g in zip(known, GAINS, strict=True)})
    near = GAINS.mean() + 9 * GAINS.std()
    ranker.rank(candidates, features={"m": (1.0, near), "n": (1.0, 0.5)})
    assert not [warning for warning in recwarn if "features" in str(warning.message)]
    far = GAINS.mean() - 12.5 * GAINS.std()
    with pytest.warns(sopr_fast.ForeignPolicyWarning, match=r"'n' \(feature 1: 12\.5\); these are so many standard"):
        ranker.rank(candidates, features={"m": (1.0, near), "n": (1.0, far)})


@pytest.mark.parametrize("value", [0.1, 123.4, -0.7])
def test_a_feature_that_is_constant_in_training_is_not_scaled(value):
    """The standard deviation of equal float32 numbers may be their rounding."""
    known = ladder(GAINS)
    ranker = fit(known, GAINS, features=dict.fromkeys(known, value))
    assert ranker.model.feature_scale.tolist() == [1.0]


def test_unused_features_change_nothing():
    torch.manual_seed(0)
    plain, featured = ScoringModel(6, TINY).eval(), ScoringModel(6, TINY, 3, seed=1).eval()
    featured.load_state_dict(plain.state_dict(), strict=False)
    torch.nn.init.zeros_(featured.features.weight)
    problem = torch.randn(20, 4), torch.randn(5, 20, 2), torch.arange(20)[None].int(), torch.tensor([[0, 9, 20]]).int()
    assert torch.equal(featured(*problem, features=torch.randn(5, 3)), plain(*problem))


def test_a_critic_orders_policies_by_the_values_of_their_actions():
    """Actions themselves are noise; only the critic's value of them depends on the policy."""
    draws = np.random.default_rng(0)
    noise = draws.standard_normal((17, 600, 1)).astype(np.float32)
    actions = {f"{i}": np.concatenate([noise[i], noise[i] + gain], 1) for i, gain in enumerate([*GAINS, *UNSEEN])}
    known = {name: actions[name].astype(np.float32) for name in list(actions)[:12]}
    candidates = {name: actions[name].astype(np.float32) for name in list(actions)[12:]}
    ranker = fit(known, GAINS, critic=lambda states, actions: actions[:, 1] - actions[:, 0])
    assert spearman(UNSEEN, ranker.rank(candidates, log(), subsets=3).scores) == 1.0


def test_a_critic_is_probed_before_long_work_and_called_once_a_policy(monkeypatch):
    calls = []

    def critic(states, actions):
        calls.append(len(states))
        return torch.full((len(states),), float(len(calls)))

    fit(ladder(GAINS), GAINS, critic=critic)
    drawn = sopr_fast.Subsets.draw(log(), TINY.subsets, size=TINY.subset_size, clusters=TINY.clusters)
    assert calls == [13] + [len(drawn.states)] * len(GAINS)
    monkeypatch.setattr("sopr_fast.sopr.fitting.collect_all", None)
    with pytest.raises(ValueError, match="the critic returned shape"):
        fit(ladder(GAINS), GAINS, critic=lambda states, actions: actions[:2])


def test_a_critic_that_returns_no_numbers_is_named():
    with pytest.raises(TypeError, match="the critic must return numbers, got NoneType"):
        fit(ladder(GAINS), GAINS, critic=lambda states, actions: None)


@pytest.mark.parametrize("layout", [np.flip, lambda values: values.astype(">f8")], ids=["backwards", "big-endian"])
def test_a_critic_may_return_any_array(layout):
    states, actions = torch.arange(12.0).view(6, 2), torch.zeros(6, 1)
    values = critic_values(lambda states, actions: layout(states.numpy().sum(1)), states, actions)
    assert values[:, 0].tolist() == layout(np.array([1.0, 5, 9, 13, 17, 21])).tolist()


def test_numbers_of_a_lazily_negated_tensor():
    assert as_numbers(torch.tensor([1j, -2j]).conj().imag).tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("options", [{"requires_grad": True}, {"dtype": torch.bfloat16}])
def test_features_may_be_any_tensor(options):
    read = read_features({"a": torch.tensor([1.0, 2.5], **options), "b": 3 * np.ones(2)}, ["a", "b"])
    assert read.tolist() == [[1.0, 2.5], [3.0, 3.0]]


def test_a_critic_unlike_that_of_the_training_is_refused():
    ranker = fit(ladder(GAINS), GAINS, critic=lambda states, actions: actions.T[:1])
    with pytest.raises(ValueError, match="the critic returned 2 values a row, the model was trained with 1"):
        ranker.rank(ladder(UNSEEN), critic=lambda states, actions: actions.T[:2])
    with pytest.raises(TypeError, match="critic must be callable"):
        ranker.rank(ladder(UNSEEN), critic=3)


def test_a_critic_may_change_its_arguments_and_reuse_its_result(monkeypatch):
    monkeypatch.setattr("sopr_fast.sopr.columns._CRITIC_ROWS", 100)
    buffer = torch.empty(100)

    def careless(states, actions):
        states += 1.0
        actions *= 0.5
        return torch.add(states[:, 0], actions[:, 0], out=buffer[: len(states)])

    def careful(states, actions):
        return states[:, 0] + 1.0 + actions[:, 0] * 0.5

    rankings = []
    for critic in (careless, careful):
        ranker = fit(ladder(GAINS), GAINS, critic=critic)
        assert torch.isin(ranker.subsets.states, torch.from_numpy(log())).all()
        rankings.append(ranker.rank(ladder(UNSEEN)).subset_scores)
    np.testing.assert_array_equal(*rankings)


def test_a_critic_may_compute_on_any_device(device):
    known = {f"{i}": LinearPolicy(gain) for i, gain in enumerate(GAINS)}
    rankings = []
    for target in (torch.device("cpu"), device):
        ranker = fit(known, GAINS, critic=lambda states, actions, target=target: actions.sum(1).to(target))
        rankings.append(ranker.rank(known).scores)
    np.testing.assert_array_equal(*rankings)


def test_a_loaded_model_needs_its_features_and_critic_again(tmp_path):
    def critic(states, actions):
        return torch.stack([actions.sum(1), states[:, 0]])

    known, candidates = ladder(GAINS), ladder(UNSEEN)
    features = {name: (0.5 * i, i**2) for i, name in enumerate([*known, *candidates])}
    ranker = fit(known, GAINS, features=features, critic=critic)
    ranker.save(tmp_path / "model.safetensors")
    loaded = sopr_fast.load(tmp_path / "model.safetensors")
    expected = ranker.rank(candidates, features=features)
    actual = loaded.rank(candidates, features=features, critic=critic)
    assert np.array_equal(expected.subset_scores, actual.subset_scores)
    with pytest.raises(ValueError, match="trained with 2 features of each policy: give those of the candidates"):
        loaded.rank(candidates, critic=critic)
    with pytest.raises(ValueError, match="trained with a critic, which files do not keep: give critic="):
        loaded.rank(candidates, features=features)


def test_validation_sees_features():
    known, held_out = alike("abcdefghijkl"), alike("mnopq")
    features = dict(zip([*known, *held_out], [*GAINS, *UNSEEN], strict=True))
    ranker = fit(known, GAINS, validation=(held_out, UNSEEN), features=features)
    assert max(ranker.history["validation_rank_correlation"]) == 1.0


def as_arrays(policies):
    return [policy(log()) for policy in policies]


def under_other_names(policies):
    return dict(zip("abcdef", as_policies(policies), strict=True))


@pytest.mark.parametrize(("wrap", "name"), [(list, "policy-000"), (as_arrays, "policy-000"), (under_other_names, "a")])
def test_features_of_a_name_are_those_of_one_policy(wrap, name, monkeypatch):
    monkeypatch.setattr(sopr_fast.ops, "kmeans", None)
    policies = list(ladder(GAINS).values())
    known, other = wrap(policies[:6]), wrap(policies[6:])
    features = dict.fromkeys([*(f"policy-{i:03d}" for i in range(6)), *"abcdef"], 0.0)
    with pytest.raises(ValueError, match=f"a training and a validation policy are both named '{name}'"):
        fit(known, GAINS[:6], validation=(other, GAINS[6:]), features=features)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # it reached the clustering
        fit(known, GAINS[:6], validation=(known, GAINS[:6]), features=features)


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        ([1.0, 2.0], "features must map policy names to numbers, got list"),
        ({"a": 1.0}, "features hold nothing for policy 'b'"),
        ({"a": 1.0, "b": (1.0, 2.0)}, r"features of policy 'b' have shape \(2,\), expected \(1,\) as policy 'a'"),
        ({"a": 1.0, "b": "good"}, "features of policy 'b' must be numbers"),
        ({"a": 1.0, "b": float("nan")}, r"features of policy 'b' are not finite.*: \[nan\]"),
    ],
)
def test_wrong_features_are_refused(features, complaint):
    with pytest.raises((TypeError, ValueError), match=complaint):
        fit(alike("ab"), [0.0, 1.0], features=features)


def test_a_wrong_critic_is_refused():
    with pytest.raises(TypeError, match=r"critic must be callable on \(states, actions\), got int"):
        fit(ladder(GAINS), GAINS, critic=3)
    with pytest.raises(ValueError, match="the critic returned values that are not finite"):
        fit(ladder(GAINS), GAINS, critic=lambda states, actions: actions[:, 0] / 0)
    with pytest.raises(ValueError, match=r"the critic returned shape \(\d+, 2\), expected \(\d+,\) or \(C, \d+\)"):
        fit(ladder(GAINS), GAINS, critic=lambda states, actions: actions)
    plain = fit(ladder(GAINS), GAINS)
    with pytest.raises(ValueError, match="trained without a critic: give none"):
        plain.rank(ladder(UNSEEN), critic=lambda states, actions: actions[:, 0])
    with pytest.raises(ValueError, match="trained without features: give none"):
        plain.rank(ladder(UNSEEN), features=dict.fromkeys(ladder(UNSEEN), 1.0))
