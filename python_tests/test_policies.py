"""Every kind of policy gives the same columns as the numbers it was made from."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import distributions as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import sopr_fast
from sopr_fast.inputs.policies import ArrayPolicy, Gaussian, Layout, Probabilities, collect, load, probe
from sopr_fast.inputs.policies.output import on_cpu

U, DS, DA = 40, 5, 3


@pytest.fixture
def states(generator):
    return torch.randn(U, DS, generator=generator)


@pytest.fixture
def source():
    return torch.arange(U) * 2 + 1  # rows in user data of 100 states


def columns(policy, states, source, **options):
    policies = list(load([policy], **options).for_log(100).values())
    with sopr_fast.options(batch_size=7):
        return collect(policies, states, source, probe(policies, states, source))[0]


def linear(states):
    return states[:, :DA] * 2 - 1


class Predictor:
    def predict(self, states, deterministic=False):
        assert isinstance(states, np.ndarray) and deterministic
        return linear(states), None


class Wrapper:
    def predict(self, states, **options):
        return Predictor().predict(states, **options)


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=dtype))
        self.drop = nn.Dropout(0.5)

    def forward(self, states):
        assert states.dtype == self.scale.dtype and not torch.is_grad_enabled()
        return self.drop(states[:, :DA]) * self.scale - 1


class Doubled(nn.Module):
    def forward(self, states):
        return states[:, :3] * 2 - 1


def exported(module):
    rows = torch.export.Dim("rows", min=2)
    return torch.export.export(module, (torch.zeros(7, DS),), dynamic_shapes=({0: rows},)).module()


class Frozen:
    """A distribution like those of scipy, whose moments are methods."""

    def __init__(self, mean):
        self._mean = mean

    def mean(self):
        return self._mean

    def stddev(self):
        return np.full_like(self._mean, 0.5)


ACTING = {
    "numpy": linear,
    "float64": lambda s: linear(s.astype(np.float64)),
    "fortran": lambda s: np.asfortranarray(linear(s)),
    "list": lambda s: linear(s).tolist(),
    "tensor": lambda s: linear(torch.from_numpy(s)).requires_grad_(),
    "predict": Predictor(),
    "wrapped predict": Wrapper(),
    "module": Net(),
    "float64 module": Net(torch.float64),
    "frozen program": torch.jit.freeze(torch.jit.script(Doubled().eval())),
    "exported program": exported(Doubled()),
}


@pytest.mark.parametrize("policy", ACTING.values(), ids=ACTING.keys())
def test_deterministic_policies(policy, states, source):
    torch.testing.assert_close(columns(policy, states, source), linear(states), atol=1e-6, rtol=0)


def make_array(kind, values, tmp_path):
    if kind == "memmap":
        np.save(tmp_path / "actions.npy", values)
        return np.load(tmp_path / "actions.npy", mmap_mode="r")
    if kind == "path":
        np.save(tmp_path / "actions.npy", values)
        return tmp_path / "actions.npy"
    if kind == "read-only":
        values.flags.writeable = False
    return {
        "fortran": np.asfortranarray,
        "strided": lambda v: np.repeat(v, 2, 0)[::2],
        "tensor": torch.tensor,
    }.get(kind, lambda v: v)(values)


@pytest.mark.parametrize("kind", ["float64", "memmap", "path", "read-only", "fortran", "strided", "tensor"])
def test_arrays_are_indexed_like_the_states(kind, tmp_path, states, source):
    values = np.random.default_rng(0).normal(size=(100, DA))
    policy = make_array(kind, values.copy(), tmp_path)
    expected = torch.from_numpy(values).float()[source]
    assert torch.equal(columns(policy, states, source), expected)


GAUSSIAN = {
    "ours": lambda s: Gaussian(linear(s), np.full((len(s), DA), 0.5)),
    "one deviation": lambda s: Gaussian(linear(s), np.float32(0.5)),
    "torch": lambda s: dist.Independent(dist.Normal(linear(torch.from_numpy(s)), 0.5), 1),
    "methods": lambda s: Frozen(linear(s)),
    "array": Gaussian(np.zeros((100, DA)), np.ones((100, DA))),
}


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_policies(name, states, source):
    got = columns(GAUSSIAN[name], states, source)
    mean, std = (torch.zeros(U, DA), 1.0) if name == "array" else (linear(states), 0.5)
    torch.testing.assert_close(got, torch.cat([mean, torch.full((U, DA), std)], 1))


DISCRETE = {
    "ours": lambda s: Probabilities(softmax(s)),
    "torch": lambda s: dist.Categorical(logits=torch.from_numpy(s)),
    "one-hot": lambda s: dist.OneHotCategorical(logits=torch.from_numpy(s)),
}


def softmax(s):
    return np.exp(s) / np.exp(s).sum(1, keepdims=True)


@pytest.mark.parametrize("policy", DISCRETE.values(), ids=DISCRETE.keys())
def test_discrete_probabilities(policy, states, source):
    torch.testing.assert_close(columns(policy, states, source), states.softmax(1))


def test_floats_are_probabilities_with_action_count(states, source):
    torch.testing.assert_close(columns(softmax, states, source, action_count=DS), states.softmax(1))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_discrete_indices_become_one_hot(shape, states, source):
    got = columns(lambda s: s.argmax(1).reshape(shape), states, source, action_count=DS)
    assert torch.equal(got, torch.eye(DS)[states.argmax(1)])
    index_array = np.arange(100, dtype=np.uint8) % 4
    index_tensor = torch.from_numpy(index_array).to(torch.uint16)
    for policy in (index_array, ArrayPolicy("x", index_array), index_tensor):
        got = columns(policy, states, source, action_count=DS)
        assert torch.equal(got, torch.eye(DS)[source % 4])


def test_deterministic_policies_beside_stochastic_ones_have_zero_deviation(states, source):
    policies = list(load({"normal": GAUSSIAN["ours"], "plain": linear}).values())
    layout = probe(policies, states, source)
    assert (layout.kind, layout.action_dim, layout.width) == ("gaussian", DA, 2 * DA)
    assert type(layout).from_dict(layout.to_dict()) == layout
    got = collect(policies, states, source, layout)
    assert got.shape == (2, U, 2 * DA)
    assert torch.equal(got[:, :, :DA], linear(states).expand(2, -1, -1))
    assert (got[0, :, DA:] == 0.5).all() and (got[1, :, DA:] == 0).all()


def test_stochastic_policies_under_an_action_layout_give_their_mean(states, source):
    layout = probe(list(load([linear]).values()), states, source)
    got = collect(list(load([GAUSSIAN["torch"]]).values()), states, source, layout)
    assert torch.equal(got[0], linear(states))


def test_every_state_is_shown_once_in_batches(states, source):
    seen = []

    def policy(s):
        seen.append(len(s))
        return linear(s)

    policies, done = list(load([policy]).values()), []
    layout = probe(policies, states, source)
    seen.clear()
    with sopr_fast.options(batch_size=16):
        collect(policies, states, source, layout, progress=done.append)
    assert seen == [16, 16, 8] and done == [1]


@pytest.mark.parametrize("batch_size", [2, DA, 16])
def test_a_deviation_for_each_action_does_not_depend_on_the_batch(batch_size, states, source):
    deviation = np.arange(1, DA + 1, dtype=np.float32)
    policies = list(load([lambda s: Gaussian(linear(s), deviation)]).values())
    layout = Layout("gaussian", DA, 2 * DA)
    with sopr_fast.options(batch_size=batch_size):
        columns = collect(policies, states, source, layout)[0]
    assert torch.equal(columns[:, DA:], torch.from_numpy(deviation).expand(len(states), -1))


def test_an_array_may_hold_a_deviation_for_each_state():
    deviation = np.arange(1, 1 + DA, dtype=np.float32)  # as many states as columns of the actions
    (policy,) = load({"x": Gaussian(np.zeros((DA, DA)), deviation)}).for_log(DA).values()
    got = policy.output(np.zeros((DA, 2)), torch.arange(DA)).std
    assert torch.equal(got, torch.from_numpy(deviation)[:, None].expand(-1, DA))


def test_a_policy_may_return_the_same_memory_again(states, source):
    memory = torch.empty(len(states), DA)
    first, second = list(
        load(
            [lambda s, gain=gain: torch.mul(torch.from_numpy(linear(s)), gain, out=memory) for gain in (1.0, 2.0)]
        ).values()
    )
    actions = first.act(states, source)
    assert torch.equal(second.act(states, source), 2 * actions)
    noisy = list(load({"noisy": lambda s: memory[: len(s)].normal_()}).values())
    with pytest.warns(UserWarning, match="policies 'noisy' give different actions when asked twice"):
        probe(noisy, states, source)


def test_one_number_per_state_is_an_action_of_width_one(states, source):
    assert torch.equal(columns(lambda s: s[:, 0], states, source), states[:, :1])


def test_acting_changes_neither_module_modes_nor_states(states, source):
    net = Net().train()
    frozen = nn.Sequential(nn.BatchNorm1d(DS).eval(), nn.Dropout()).train()
    frozen[0].eval()

    def overwrite(s):
        s *= 0
        return s

    before = states.clone()
    policies = list(load({"net": net, "frozen": frozen, "overwrite": overwrite}).values())
    for policy in policies:
        policy.act(states)
    assert net.training and net.drop.training
    assert frozen.training and not frozen[0].training and frozen[1].training
    assert torch.equal(states, before)


def test_module_mode_is_restored_when_it_raises(states):
    class Broken(Net):
        def forward(self, states):
            assert not self.training
            raise KeyError("weights")

    net = Broken()
    with pytest.raises(RuntimeError):
        next(iter(load([net]).values())).act(states)
    assert net.training and net.drop.training


def test_a_module_is_in_eval_mode_in_every_thread(states):
    class Slow(nn.Module):
        def forward(self, states):
            assert not any(self.training for _ in range(1000))  # long enough for calls to overlap
            return linear(states)

    net = Slow().train()
    with ThreadPoolExecutor(4) as pool:
        policies = [*load([net, nn.Sequential(net)]).values()] * 20
        assert all(torch.equal(actions, linear(states)) for actions in pool.map(lambda p: p.act(states), policies))
    assert net.training


def test_sample_and_log_prob_of_gaussian(states, generator):
    (policy,) = load([GAUSSIAN["ours"]]).values()
    state = torch.get_rng_state()
    many = states[:1].expand(20000, DS)
    drawn = policy.sample(many, generator)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(drawn.mean(0), linear(states)[0], atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.full((DA,), 0.5), atol=0.02, rtol=0)
    again = policy.sample(many, torch.Generator().manual_seed(1))
    assert torch.equal(again, policy.sample(many, torch.Generator().manual_seed(1)))
    expected = dist.Normal(linear(states), 0.5).log_prob(drawn[:U]).sum(1)
    torch.testing.assert_close(policy.log_prob(states, drawn[:U]), expected)


def test_sample_and_log_prob_of_discrete(states, generator):
    (policy,) = load([DISCRETE["torch"]]).values()
    drawn = policy.sample(states[:1].expand(20000, DS), generator)
    torch.testing.assert_close(drawn.mean(0), states[0].softmax(0), atol=0.02, rtol=0)
    torch.testing.assert_close(policy.log_prob(states, drawn[:U]), (states.log_softmax(1) * drawn[:U]).sum(1))
    assert torch.equal(policy.act(states), torch.eye(DS)[states.argmax(1)])


@pytest.mark.usefixtures("undisturbed_draws")
@pytest.mark.parametrize("policy", [GAUSSIAN["ours"], DISCRETE["torch"]])
def test_sampling_does_not_disturb_draws_of_other_threads(policy, states):
    (policy,) = load([policy]).values()
    for _ in range(200):
        policy.sample(states, torch.Generator().manual_seed(1))


def test_user_distributions_can_be_sampled_in_parallel(states):
    (policy,) = load([lambda s: dist.Beta(torch.full((len(s), DA), 2.0), torch.full((len(s), DA), 3.0))]).values()

    def sample(seed):
        return policy.sample(states, torch.Generator().manual_seed(seed % 2))

    alone, before = [sample(0), sample(1)], torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(sample, range(400)))
    assert all(torch.equal(drawn, alone[i % 2]) for i, drawn in enumerate(parallel))
    assert torch.equal(torch.get_rng_state(), before)


def test_user_distribution_keeps_its_own_density(states, generator):
    (policy,) = load([lambda s: dist.Beta(torch.full((len(s), DA), 2.0), torch.full((len(s), DA), 3.0))]).values()
    drawn = policy.sample(states, generator)
    assert ((drawn > 0) & (drawn < 1)).all()
    expected = dist.Beta(2.0, 3.0).log_prob(drawn).sum(1)
    torch.testing.assert_close(policy.log_prob(states, drawn), expected)


@pytest.mark.parametrize(
    "made",
    [
        lambda mean: dist.Normal(mean, 0.5),
        lambda mean: dist.Independent(dist.Normal(mean, 0.5), 0),
        lambda mean: dist.Uniform(mean - 5, mean + 5),
    ],
    ids=["normal", "independent", "uniform"],
)
def test_a_distribution_over_n_numbers_has_actions_of_width_one(made, states):
    flat, wide = list(
        load([lambda s: made(torch.from_numpy(s[:, 0])), lambda s: made(torch.from_numpy(s[:, :1]))]).values()
    )
    drawn = flat.sample(states, torch.Generator().manual_seed(1))
    assert drawn.shape == (U, 1)
    assert torch.equal(drawn, wide.sample(states, torch.Generator().manual_seed(1)))
    log_prob = flat.log_prob(states, drawn)
    torch.testing.assert_close(log_prob, made(states[:, 0]).log_prob(drawn[:, 0]))
    assert torch.equal(log_prob, wide.log_prob(states, drawn))


BOUNDED = {
    "uniform": (lambda s: dist.Uniform(s - 5, s + 5), lambda a, s: abs(a - s) <= 5),
    "beta": (lambda s: dist.Beta(2 + 0 * s, 3 + 0 * s), lambda a, s: 0 <= a <= 1),
    "log-normal": (lambda s: dist.LogNormal(s, 1 + 0 * s), lambda a, s: a > 0),
    "exponential": (lambda s: dist.Exponential(1 + 0 * s), lambda a, s: a >= 0),
}


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("made, holds", BOUNDED.values(), ids=BOUNDED.keys())
def test_actions_outside_the_support_have_log_probability_of_minus_infinity(made, holds, independent, states):
    def policy(s):
        distribution = made(torch.from_numpy(s[:, :2]))
        return dist.Independent(distribution, 1) if independent else distribution

    (policy,) = load([policy]).values()
    actions = torch.tensor([[0.5, 0.25], [0.5, -9], [9, 0.5], [-9, 9]]).repeat(U // 4, 1)
    expected = []
    for action, state in zip(actions, states[: len(actions)], strict=True):
        inside = all(holds(float(a), float(s)) for a, s in zip(action, state, strict=False))
        expected.append(float(made(state[:2]).log_prob(action).sum()) if inside else -math.inf)
    assert 0 < np.isinf(expected).sum() < len(expected)
    torch.testing.assert_close(policy.log_prob(states[: len(actions)], actions), torch.tensor(expected))


def test_policies_on_cuda_act_on_states_of_the_cpu(cuda, states, source):
    for policy in (Net().to(cuda), lambda s: linear(torch.from_numpy(s).to(cuda))):
        torch.testing.assert_close(columns(policy, states, source), linear(states), atol=1e-6, rtol=0)

    def sampled(device):
        (policy,) = load([lambda s: dist.Normal(linear(torch.from_numpy(s).to(device)), 0.5)]).values()
        drawn = policy.sample(states, torch.Generator().manual_seed(1))
        return drawn, policy.log_prob(states, drawn)

    assert all(map(torch.equal, sampled(cuda), sampled("cpu")))


def test_distributions_on_a_gpu_are_moved_to_the_cpu():
    """Fake tensors refuse mixed devices as real ones do."""
    with FakeTensorMode():
        mean, std = torch.empty(2, 13, DA, device="cuda")
        on_gpu = dist.Independent(dist.Normal(mean, std, validate_args=False), 1, validate_args=False)
        moved = on_cpu(on_gpu)
        assert moved.log_prob(torch.empty(13, DA)).device.type == moved.sample().device.type == "cpu"
        assert on_gpu.mean.device.type == "cuda"


def test_deterministic_policy_has_no_density(states):
    (policy,) = load({"plain": linear}).values()
    assert torch.equal(policy.sample(states), linear(states))
    with pytest.raises(ValueError, match="'plain' is deterministic"):
        policy.log_prob(states, linear(states))


def test_names_come_from_keys_attributes_files_or_positions(tmp_path):
    np.save(tmp_path / "sac.npy", np.zeros((9, 2)))
    named = Predictor()
    named.name = "ppo"
    policies = list(load([linear, named, tmp_path / "sac.npy"]).values())
    assert [p.name for p in policies] == ["policy-000", "ppo", "sac"]
    renamed = list(load({"a": policies[0], "b": policies[0], "c": tmp_path / "sac.npy"}).values())
    assert [p.name for p in renamed] == ["a", "b", "c"]
    assert policies[0].name == "policy-000"
    assert [p.name for p in list(load(nn.ModuleList([Net(), Net()])).values())] == ["policy-000", "policy-001"]
    assert [p.name for p in list(load(str(tmp_path / "sac.npy")).values())] == ["sac"]
