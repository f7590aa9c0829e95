"""Policies are called as Stable-Baselines3's are, on arrays; those that sample are noticed."""

import statistics
import warnings

import numpy as np
import pytest
import torch

import sopr_fast
from sopr_fast.inputs.policies import Actor, Gaussian, Layout, Probabilities, load, probe
from sopr_fast.inputs.policies.output import Bounds

DS, DA = 5, 3
STATES = np.random.default_rng(0).standard_normal((40, DS)).astype(np.float32)
SOURCE = torch.arange(40)


def actor(**options):
    rng = np.random.default_rng(1)
    layer = tuple(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((DA, DS), (DA,)))
    return Actor("x", [layer], **options)


def linear(states):
    return states[:, :DA] * 2 - 1


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, np.ndarray.tolist, lambda s: s.astype(np.float64)])
def test_a_batch_and_its_rows_give_the_same_actions(kind):
    for policy in (actor(), *list(load([linear, torch.nn.Linear(DS, DA)]).values())):
        actions = policy(kind(STATES))
        assert type(actions) is np.ndarray and actions.dtype == np.float32 and actions.shape == (40, DA)
        np.testing.assert_allclose(actions, policy.act(torch.from_numpy(STATES)), rtol=1e-5, atol=1e-6)
        one = policy(kind(STATES)[7])
        assert one.shape == (DA,)
        np.testing.assert_allclose(one, actions[7], rtol=1e-5, atol=1e-6)
        both, state = policy.predict(kind(STATES), deterministic=True)
        np.testing.assert_allclose(both, actions, rtol=1e-5, atol=1e-6)
        assert state is None


def test_discrete_actions_are_indices():
    (policy,) = load([lambda s: Probabilities(np.abs(s) / np.abs(s).sum(1, keepdims=True))]).values()
    expected = np.abs(STATES).argmax(1)
    actions, _ = policy.predict(STATES)
    assert actions.dtype == np.int64
    np.testing.assert_array_equal(actions, expected)
    one = policy(STATES[3])
    assert isinstance(one, np.ndarray) and one.shape == () and one == expected[3]


def test_predict_samples_on_request():
    (policy,) = load([lambda s: Gaussian(linear(s), np.float32(0.5))]).values()
    state = np.repeat(STATES[:1], 20_000, axis=0)
    torch.manual_seed(0)
    sampled, _ = policy.predict(state, deterministic=False)
    np.testing.assert_allclose(sampled.mean(0), linear(STATES[:1])[0], atol=0.02)
    np.testing.assert_allclose(sampled.std(0), 0.5, atol=0.02)
    plain = actor()
    np.testing.assert_array_equal(plain.predict(STATES, deterministic=False)[0], plain(STATES))

    (discrete,) = load([lambda s: Probabilities(np.tile([0.2, 0.8], (len(s), 1)))]).values()
    indices, _ = discrete.predict(state, deterministic=False)
    assert set(indices) == {0, 1} and abs(indices.mean() - 0.8) < 0.02


def narrow_actor(squash, **options):
    return actor(stochastic=True, squash=squash, log_std=torch.tensor([0.0, 0.5, -1.0]), **options)


@pytest.mark.parametrize("squash", [False, True])
def test_samples_are_clipped_as_the_mean_is(squash):
    low, high = np.array([-0.5, -0.1, 0.0], np.float32), np.array([0.5, 0.2, 0.3], np.float32)
    clipped = narrow_actor(squash, clip=Bounds(torch.from_numpy(low), torch.from_numpy(high)))
    plain = narrow_actor(squash)

    def predicted(policy):
        torch.manual_seed(0)
        return policy.predict(STATES, deterministic=False)[0]

    expected = np.clip(predicted(plain), low, high)
    assert ((expected == low) | (expected == high)).mean() > 0.3 and not np.array_equal(expected, predicted(plain))
    np.testing.assert_array_equal(predicted(clipped), expected)
    sampled, free = (p.sample(STATES, torch.Generator().manual_seed(0)).numpy() for p in (clipped, plain))
    np.testing.assert_array_equal(sampled, np.clip(free, low, high))
    # The density stays that before clipping, also of actions outside.
    assert torch.equal(clipped.log_prob(STATES, 0.9 * free), plain.log_prob(STATES, 0.9 * free))


def test_a_share_of_clipped_samples_lies_on_each_bound():
    zero = [(torch.zeros(1, DS), torch.full((1,), 0.25))]
    bounds = Bounds(torch.tensor([-0.5]), torch.tensor([1.0]))
    policy = Actor("x", zero, squash=False, log_std=torch.zeros(1), stochastic=True, clip=bounds)
    torch.manual_seed(0)
    actions, _ = policy.predict(np.zeros((40_000, DS)), deterministic=False)
    normal = statistics.NormalDist(0.25, 1)
    assert (actions == -0.5).mean() == pytest.approx(normal.cdf(-0.5), abs=0.01)
    assert (actions == 1.0).mean() == pytest.approx(1 - normal.cdf(1.0), abs=0.01)


def test_methods_take_arrays():
    (policy,) = load([lambda s: Gaussian(linear(s), np.float32(0.5))]).values()
    tensor = torch.from_numpy(STATES)
    assert torch.equal(policy.act(STATES), policy.act(tensor))
    actions = policy.sample(STATES, torch.Generator().manual_seed(0))
    assert torch.equal(actions, policy.sample(tensor, torch.Generator().manual_seed(0)))
    assert torch.equal(policy.log_prob(STATES, actions.numpy()), policy.log_prob(tensor, actions))


def test_states_of_wrong_kinds():
    policy = actor()
    with pytest.raises(ValueError, match=r"policy 'x': states must have shape \(N, width\), got \(5,\)"):
        policy.act(STATES[0])
    with pytest.raises(ValueError, match=r"observation must have shape \(width,\) or \(N, width\), got \(1, 40, 5\)"):
        policy.predict(STATES[None])
    with pytest.raises(TypeError, match="policy 'x': observation must be an array of numbers, got a tuple"):
        policy((STATES[0], {}))  # what reset() of gymnasium returns
    with pytest.raises(TypeError, match="must be an array of numbers, got a dict"):
        policy.predict({"observation": STATES[0]})
    with pytest.raises(ValueError, match="source, the states' rows"):
        next(iter(load({"x": np.zeros((40, DA))}).values())).predict(STATES)


def sampler(seed):
    rng = np.random.default_rng(seed)
    return lambda states: linear(states) + rng.standard_normal((len(states), DA))


FIXED = {"plain": linear, "gaussian": lambda s: Gaussian(linear(s), np.float32(0.5)), "array": np.zeros((40, DA))}
MESSAGE = (
    "policies 'a', 'b' give different actions when asked twice for the same states: they sample, or depend on earlier "
    "calls. Return the mean action (for Stable-Baselines3, call predict with deterministic=True) or the distribution"
)


@pytest.mark.parametrize("ask", [probe, lambda *args: probe(*args, Layout("gaussian", DA, 2 * DA))])
def test_policies_that_sample_are_warned_of(ask):
    states = torch.from_numpy(STATES)
    with pytest.warns(UserWarning) as caught:
        ask(list(load({"a": sampler(1), **FIXED, "b": sampler(2)}).values()), states, SOURCE)
    assert [str(warning.message) for warning in caught] == [MESSAGE]
    with pytest.warns(UserWarning, match=r"policies '0', '1', '2', '3', '4' and 3 others give different actions"):
        ask(list(load({str(i): sampler(i) for i in range(8)}).values()), states, SOURCE)


@pytest.mark.parametrize("width", [1, 2])
def test_whole_numbers_are_questioned(width):
    def act(states):
        return np.tile((states[:, :1] > 0) + 1.0, (1, width)).astype(np.float32)

    with pytest.warns(UserWarning, match="policies 'a' return whole numbers, which are taken as continuous actions"):
        probe(list(load({"a": act}).values()), torch.from_numpy(STATES), SOURCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe(list(load({"a": act, "b": lambda s: act(s) / 2}).values()), torch.from_numpy(STATES), SOURCE)


class Recurrent(torch.nn.Module):
    """Reads the rows of a batch as the steps of one episode."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.cell = torch.nn.GRU(STATES.shape[1], DA)

    def forward(self, states):
        return self.cell(states)[0]


@pytest.mark.parametrize("ask", [probe, lambda *args: probe(*args, Layout("gaussian", DA, 2 * DA))])
def test_policies_whose_actions_depend_on_the_batch_are_warned_of(ask):
    states = torch.from_numpy(STATES)
    half = torch.nn.Linear(STATES.shape[1], DA).bfloat16()  # rounds otherwise in batches of other sizes
    mixing = {"standardised": lambda s: linear((s - s.mean(0)) / s.std(0)), "recurrent": Recurrent()}
    with pytest.warns(UserWarning) as caught:
        ask(list(load(mixing | {**FIXED, "half": half}).values()), states, SOURCE)
    assert [str(warning.message) for warning in caught] == [
        "policies 'standardised', 'recurrent' give different actions for the same states in another batch: they use "
        "statistics of the batch, or read its rows as a sequence. Answer each state on its own"
    ]
    with warnings.catch_warnings(), sopr_fast.options(batch_size=1):  # every state is a batch
        warnings.simplefilter("error")
        probe(list(load([Recurrent()]).values()), states, SOURCE)


def test_rounding_and_fixed_policies_are_not_warned_of():
    calls = [0]

    def rounding(states):
        calls[0] += 1
        return linear(states) * np.float32(1 + 1e-6 * (calls[0] % 2))

    def nearly_zero(states):  # and exactly in large batches
        return np.full((len(states), DA), 0 if len(states) > 9 else 1e-9, np.float32)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe(
            list(load({**FIXED, "rounding": rounding, "nearly zero": nearly_zero}).values()),
            torch.from_numpy(STATES),
            SOURCE,
        )
    assert calls == [3]
