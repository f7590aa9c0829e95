"""Every kind of policy gives the columns of the numbers it was made from, and acts and samples by them."""

import itertools
import threading
import warnings
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributions as dist
from torch import nn

import sopr_fast
from sopr_fast.inputs.policies import Actor, ArrayPolicy, Layout, collect, probe
from sopr_fast.inputs.policies import load_policies as load
from sopr_fast.inputs.policies.actor import Standardisation, stacks
from sopr_fast.inputs.policies.output import Bounds

U, DS, DA = 40, 5, 3
GAUSSIAN_LAYOUT = Layout("gaussian", DA)


@pytest.fixture
def states(generator):
    return torch.randn(U, DS, generator=generator)


@pytest.fixture
def source():
    return torch.arange(U) * 2 + 1  # rows in user data of 100 states


def one(item, **options):
    (policy,) = load([item], **options).for_log(100)
    return policy


def several(**items):
    return load(items).for_log(100)


def columns(item, states, source, **options):
    policies = [one(item, **options)]
    with sopr_fast.options(batch_size=DA):  # as many rows as an action has columns
        return collect(policies, states, source, probe(policies, states, source))[0]


def linear(states):
    return states[:, :DA] * 2 - 1


def softmax(s):
    return np.exp(s) / np.exp(s).sum(1, keepdims=True)


class Predictor:
    def predict(self, states, deterministic=False):
        assert isinstance(states, np.ndarray) and deterministic
        return linear(states), None


def wrapped(call):
    """Return an object that hands options on, as pipelines of scikit-learn do."""
    return SimpleNamespace(predict=lambda states, **options: call(states, **options))


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=dtype))
        self.drop = nn.Dropout(0.5)

    def forward(self, states):
        assert states.dtype == self.scale.dtype and not torch.is_grad_enabled()
        return self.drop(states[:, :DA]) * self.scale - 1


def gaussian(mean, std=0.5):
    return torch.cat([mean, torch.as_tensor(std).expand(mean.shape)], 1)


def greedy(s):
    return torch.eye(DS)[s.argmax(1)]


torch.manual_seed(0)
COUNT, LINEAR, GRU = {"action_count": DS}, nn.Linear(DS, DA), nn.GRU(DS, DA)


def normal(states):
    return dist.Normal(torch.from_numpy(linear(states)), 0.5)


CALLED = {  # policy, expected columns, options
    "numpy": (linear, linear, {}),
    "float64": (lambda s: linear(s.astype(np.float64)), linear, {}),
    "fortran": (lambda s: np.asfortranarray(linear(s)), linear, {}),
    "list": (lambda s: linear(s).tolist(), linear, {}),
    "tensor": (lambda s: linear(torch.from_numpy(s)).requires_grad_(), linear, {}),
    "predict": (Predictor(), linear, {}),
    "wrapped predict": (wrapped(Predictor().predict), linear, {}),
    "module": (Net(), linear, {}),
    "float64 module": (Net(torch.float64), linear, {}),
    "frozen program": (torch.jit.freeze(torch.jit.script(LINEAR.eval())), lambda s: LINEAR(s).detach(), {}),
    "normal": (normal, lambda s: gaussian(linear(s)), {}),
    "independent normals": (lambda s: dist.Independent(normal(s), 1), lambda s: gaussian(linear(s)), {}),
    "of a number": (lambda s: dist.Normal(torch.from_numpy(s[:, 0]), 0.5), lambda s: gaussian(s[:, :1]), {}),
    "probabilities": (softmax, lambda s: s.softmax(1), COUNT),
    "categorical": (lambda s: dist.Categorical(logits=torch.from_numpy(s)), lambda s: s.softmax(1), {}),
    "one-hot categorical": (lambda s: dist.OneHotCategorical(logits=torch.from_numpy(s)), lambda s: s.softmax(1), {}),
    "indices": (lambda s: s.argmax(1), greedy, COUNT),
    "a column of indices": (lambda s: s.argmax(1)[:, None], greedy, COUNT),
    "bools": (lambda s: s[:, 0] > 0, lambda s: torch.eye(2)[(s[:, 0] > 0).long()], {"action_count": 2}),
}  # fmt: skip


@pytest.mark.parametrize("policy, expected, options", CALLED.values(), ids=CALLED)
def test_columns_of_what_is_called(policy, expected, options, states, source):
    torch.testing.assert_close(columns(policy, states, source, **options), expected(states), atol=1e-6, rtol=1e-6)


ACTIONS = np.random.default_rng(0).normal(size=(100, DA))
INDICES = np.arange(100, dtype=np.uint8) % 4
ARRAYS = {
    "float64": ACTIONS,
    "read-only": np.broadcast_to(ACTIONS, (100, DA)),
    "strided": np.repeat(ACTIONS, 2, 0)[::2],
    "tensor": torch.tensor(ACTIONS),
}
LABELS = {
    "indices": INDICES,
    "a policy of indices": ArrayPolicy("x", INDICES),
    "uint16": torch.from_numpy(INDICES).to(torch.uint16),
}


@pytest.mark.parametrize("kind", ["path", *ARRAYS, *LABELS])
def test_arrays_are_indexed_like_the_states(kind, tmp_path, states, source):
    np.save(tmp_path / "actions.npy", ACTIONS)
    policy = {"path": tmp_path / "actions.npy", **ARRAYS, **LABELS}[kind]
    expected = torch.eye(DS)[source % 4] if kind in LABELS else torch.from_numpy(ACTIONS).float()[source]
    assert torch.equal(columns(policy, states, source, **(COUNT if kind in LABELS else {})), expected)


def test_deviations_stand_beside_means_if_any_policy_is_stochastic(states, source):
    policies = several(normal=normal, plain=linear)
    layout = probe(policies, states, source)
    assert layout == GAUSSIAN_LAYOUT
    got = collect(policies, states, source, layout)
    assert torch.equal(got[:, :, :DA], linear(states).expand(2, -1, -1))
    assert (got[0, :, DA:] == 0.5).all() and (got[1, :, DA:] == 0).all()
    alone = collect(policies[:1], states, source, probe(policies[1:], states, source))
    assert torch.equal(alone[0], linear(states))


def test_acting_changes_neither_module_modes_nor_states_nor_actions(states):
    def overwrite(s):
        s *= 0
        return s

    net, partly = Net().train(), nn.Sequential(nn.BatchNorm1d(DS), nn.Dropout()).train()
    partly[0].eval()
    before = states.clone()
    for item in (net, partly, overwrite):
        one(item).act(states)
    assert net.training and net.drop.training
    assert partly.training and not partly[0].training and partly[1].training
    assert torch.equal(states, before)
    net.forward = lambda states: states.missing
    with pytest.raises(RuntimeError):
        one(net).act(states)
    assert net.training and net.drop.training
    memory = torch.empty(len(states), DA)  # which policies may return again
    first, second = (one(lambda s, g=g: torch.mul(torch.from_numpy(linear(s)), g, out=memory)) for g in (1.0, 2.0))
    actions = first.act(states)
    assert torch.equal(second.act(states), 2 * actions)


def test_threads_that_share_a_module_call_it_in_eval_mode(states):
    left, calls = threading.Event(), []

    class Shared(nn.Module):
        def forward(self, states):
            if calls:
                assert left.wait(10)
            else:
                calls.append(pool.submit(policy.act, states))
                futures.wait(calls, 0.1)  # for a call in between, which there must not be
            assert not self.training
            return linear(states)

    policy = one(Shared().train())
    with futures.ThreadPoolExecutor(1) as pool:
        policy.act(states)
        left.set()
    assert torch.equal(calls[0].result(), linear(states))


def test_samples_and_densities(states, generator):
    policy, discrete, many = one(normal), one(CALLED["categorical"][0]), states[:1].expand(20000, DS)
    before = torch.get_rng_state()
    drawn, chosen = policy.output(many).sample(generator), discrete.output(many).sample(generator)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(drawn.mean(0), linear(states)[0], atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.full((DA,), 0.5), atol=0.02, rtol=0)
    torch.testing.assert_close(chosen.mean(0), states[0].softmax(0), atol=0.02, rtol=0)
    expected = dist.Normal(linear(states), 0.5).log_prob(drawn[:U]).sum(1)
    torch.testing.assert_close(policy.output(states).log_prob(drawn[:U]), expected)
    torch.testing.assert_close(policy.output(states.numpy()).log_prob(drawn[:U]), expected)
    expected = (states.log_softmax(1) * chosen[:U]).sum(1)
    torch.testing.assert_close(discrete.output(states).log_prob(chosen[:U]), expected)


def test_policies_on_cuda_act_on_states_of_the_cpu(cuda, states, source):
    for policy in (Net().to(cuda), lambda s: linear(torch.from_numpy(s).to(cuda))):
        torch.testing.assert_close(columns(policy, states, source), linear(states), atol=1e-6, rtol=0)


def test_names_come_from_keys_files_or_positions(tmp_path):
    np.save(tmp_path / "sac.npy", np.zeros((9, 2)))
    policies = load([linear, Predictor()])
    assert list(policies) == [policy.name for policy in policies.values()] == ["policy-000", "policy-001"]
    first = policies["policy-000"]
    renamed = load({"a": first, "b": first, "c": tmp_path / "sac.npy"})
    assert [policy.name for policy in renamed.values()] == ["a", "b", "c"] and first.name == "policy-000"


def actor(**options):
    rng = np.random.default_rng(1)
    layer = tuple(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((DA, DS), (DA,)))
    return Actor("x", [layer], **options)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, lambda s: s.tolist(), lambda s: s.astype(np.float64)])
def test_a_batch_and_its_rows_give_the_same_actions(kind, states):
    for policy in (actor(), one(linear), one(LINEAR)):
        batch = kind(states.numpy())
        actions = policy(batch)
        assert type(actions) is np.ndarray and actions.dtype == np.float32 and actions.shape == (U, DA)
        np.testing.assert_allclose(actions, policy.act(states), rtol=1e-5, atol=1e-6)
        row = policy(batch[7])
        assert row.shape == (DA,)
        np.testing.assert_allclose(row, actions[7], rtol=1e-5, atol=1e-6)


def test_discrete_actions_are_indices(states):
    policy, expected = one(softmax, **COUNT), states.argmax(1).numpy()
    actions, row = policy(states), policy(states[3])
    assert actions.dtype == np.int64 and np.array_equal(actions, expected)
    assert torch.equal(policy.act(states), greedy(states))
    assert isinstance(row, np.ndarray) and row.shape == () and row == expected[3]


def layers(random, *widths):
    return [
        (torch.randn(after, before, generator=random), torch.randn(after, generator=random))
        for before, after in itertools.pairwise(widths)
    ]


def test_perceptrons_of_one_form_act_as_each_of_them_alone():
    random = torch.Generator().manual_seed(0)
    forms = {"plain": [], "scaled": [], "clipped": [], "wide": [], "discrete": []}
    for _ in range(3):
        limit = torch.rand(2, generator=random)
        moments = Standardisation(*torch.rand(2, 3, generator=random).double() + 0.1, clip=2.0)
        scaled = {"scale": Bounds(-limit, limit), "standardisation": moments}
        forms["plain"].append(Actor("", layers(random, 3, 16, 2)))
        forms["scaled"].append(Actor("", layers(random, 3, 16, 2), **scaled))
        forms["clipped"].append(Actor("", layers(random, 3, 16, 2), squash=False, clip=Bounds(-limit, limit)))
        forms["wide"].append(Actor("", layers(random, 3, 40, 8, 2), activation="tanh"))
        forms["discrete"].append(Actor("", layers(random, 3, 16, 4), is_discrete=True))
    states = 2 * torch.randn(3, 70, 3, generator=random)
    for actors in forms.values():
        alone = torch.stack([actor.act(own) for actor, own in zip(actors, states, strict=True)])
        ((places, stack),) = stacks(actors)
        assert places == [0, 1, 2] and torch.equal(stack._output(states, None).mean, alone)
    mixed = [actor for actors in zip(*forms.values(), strict=True) for actor in actors]
    assert [places for places, _ in stacks(mixed)] == [[form, form + 5, form + 10] for form in range(5)]
    ((_, stack),) = stacks([Actor("", layers(random, 3, 16, 2), activation="gelu")])
    assert stack is None


def sampler(seed):
    rng = np.random.default_rng(seed)
    return lambda states: linear(states) + rng.standard_normal((len(states), DA))


def recurrent(states):
    """Read the rows of a batch as the steps of one episode."""
    return GRU(torch.from_numpy(states))[0]


FIXED = {
    "plain": linear,
    "normal": normal,
    "array": np.zeros((100, DA)),
    "half": nn.Linear(DS, DA).bfloat16(),  # rounds otherwise in batches of other sizes
    "nearly zero": lambda s: np.full((len(s), DA), 0 if len(s) > 9 else 1e-9, np.float32),
}
NOISE = sampler(2)
DOUBTFUL = {
    "samples": sampler(1),
    "nearly the mean": lambda s: linear(s) + NOISE(s) / 99,
    "batch": lambda s: linear((s - s.mean(0)) / s.std(0)),
    "recurrent": recurrent,
}


@pytest.mark.parametrize("layout", [None, GAUSSIAN_LAYOUT])
def test_policies_that_do_not_answer_each_state_alone_are_warned_of(layout, states, source):
    with pytest.warns(UserWarning) as caught:
        probe(several(**FIXED, **DOUBTFUL), states, source, layout)
    message = f"actions of {', '.join(DOUBTFUL)} differ when asked again for some of the states"
    assert len(caught) == 1 and str(caught[0].message).startswith(message)
    with warnings.catch_warnings(), sopr_fast.options(batch_size=1):  # every state is a batch
        warnings.simplefilter("error")
        probe(several(**FIXED, recurrent=recurrent), states, source)


def test_whole_numbers_are_questioned(states, source):
    def act(states):
        return (states[:, :1] > 0) + 1.0

    with pytest.warns(UserWarning, match="actions of a are whole numbers, and taken as continuous ones"):
        probe(several(a=act), states, source)
    with warnings.catch_warnings(action="error"):
        probe(several(a=act, b=lambda s: act(s) / 2), states, source)
