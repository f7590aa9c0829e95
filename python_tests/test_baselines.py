"""What the estimators share: errors, seeds, checkpoints, kinds of policies, warnings, conversion to a ranking."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mdps import Linear, LinearGain, TablePolicy, Tabular
from torch.distributions import Normal, TanhTransform

from sopr_fast import checkpoints, progress
from sopr_fast.baselines import (
    FQE,
    BehaviourQ,
    DualDICE,
    Estimates,
    ImportanceWeighting,
    ModelBased,
    NearestPolicy,
    UncertainEstimateWarning,
    critics,
    learning,
)
from sopr_fast.baselines.behaviour import held_out_rows
from sopr_fast.baselines.log import Log, PolicyActions, read
from sopr_fast.data import Transitions, load
from sopr_fast.files import save_tensors
from sopr_fast.metrics import policy_distance
from sopr_fast.policies import Gaussian, collect
from sopr_fast.policies.actor import Actor

SMALL = {"updates": 30, "batch_size": 32, "hidden": (8,)}
METHODS = {
    "fqe": FQE(**SMALL),
    "fqe-ensemble": FQE(**SMALL, ensemble=3),
    "behaviour-q": BehaviourQ(**SMALL, ensemble=2),
    "dual-dice": DualDICE(**SMALL),
    "importance-weighting": ImportanceWeighting(**SMALL, bootstraps=10),
    "model-based": ModelBased(**SMALL, ensemble=2, rollouts=3, horizon=5),
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
quiet = {"discount": 0.9, "progress": False}
pytestmark = pytest.mark.filterwarnings("ignore::sopr_fast.baselines.UncertainEstimateWarning")
loud = pytest.mark.filterwarnings("default::sopr_fast.baselines.UncertainEstimateWarning")


@pytest.fixture(scope="module")
def log():
    return Linear.small().log(np.array([0.0, -0.3]), 0.5, 12, 10, seed=0)


def gains(count=3, std=None):
    return {f"gain-{i}": LinearGain(np.array([0.1 * i, -0.2 * i]), std) for i in range(count)}


@each_method
@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_same_seed_same_result(method, std, log):
    first, second = (method.estimate(gains(std=std), log, seed=3, **quiet) for _ in range(2))
    assert first.names == ["gain-0", "gain-1", "gain-2"]
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(first.standard_errors, second.standard_errors)
    other = method.estimate(gains(std=std), log, seed=4, **quiet)
    if not (isinstance(method, ImportanceWeighting)):
        assert (other.values != first.values).all()
    assert json.loads(json.dumps(first.to_dict()))["names"] == first.names


@each_method
@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_torch_s_default_dtype_changes_no_bit(method, std, log, set_default_dtype):
    expected = method.estimate(gains(std=std), log, **quiet).values
    set_default_dtype(torch.bfloat16)
    assert np.array_equal(method.estimate(gains(std=std), log, **quiet).values, expected)


@each_method
def test_estimates_do_not_depend_on_the_other_policies(method, log):
    together = method.estimate(gains(3), log, **quiet).values
    alone = method.estimate({"gain-1": gains()["gain-1"]}, log, **quiet).values
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-4)


@each_method
def test_cuda_estimates_as_the_cpu_does(method, log, cuda):
    here, there = (method.estimate(gains(std=0.3), log, device=device, **quiet).values for device in ("cpu", cuda))
    assert np.linalg.norm(there - here) <= 1e-2 * np.linalg.norm(here)


@each_method
def test_resumed_run_ends_the_same(method, log, tmp_path, monkeypatch):
    whole = method.estimate(gains(), log, **quiet)
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", -1.0)
    steps = itertools.count()
    batches = learning.Batches.__call__

    def interrupted(self, update):
        if next(steps) == 25:
            raise KeyboardInterrupt
        return batches(self, update)

    path = tmp_path / "run.safetensors"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(learning.Batches, "__call__", interrupted)
        method.estimate(gains(), log, checkpoint=path, **quiet)
    resumed = method.estimate(gains(), log, checkpoint=path, **quiet)
    np.testing.assert_array_equal(whole.values, resumed.values)
    if "curve" in whole.diagnostics:
        curves = [{**x.diagnostics["curve"], "seconds": None} for x in (whole, resumed)]
        assert curves[0] == curves[1]
    with pytest.raises(ValueError, match="is of a run with other policies"):
        method.estimate(gains(), log, seed=1, checkpoint=path, **quiet)


@each_method
def test_a_checkpoint_that_cannot_be_used_fails_before_long_work(method, log, tmp_path, monkeypatch):
    def acts_on_a_few(states):
        assert len(states) < 20
        return np.zeros((len(states), log.actions.shape[1]))

    monkeypatch.setattr(learning.Batches, "__call__", None)
    foreign, truncated = tmp_path / "foreign", tmp_path / "truncated"
    save_tensors(foreign, {}, "model", {})
    truncated.write_bytes(foreign.read_bytes()[:20])
    for path, error, message in (
        (tmp_path / "none" / "run", FileNotFoundError, "cannot write"),
        (tmp_path, IsADirectoryError, "cannot write"),
        (foreign, ValueError, "foreign"),
        (truncated, ValueError, "truncated"),
    ):
        with pytest.raises(error, match=message):
            method.estimate([acts_on_a_few], log, checkpoint=path, **quiet)


def with_other(log, **parts):
    return Transitions(**{**vars(log), **parts})


@each_method
def test_checkpoint_is_refused_for_another_log(method, log, tmp_path):
    path = tmp_path / "run.safetensors"
    method.estimate(gains(), log, checkpoint=path, **quiet)
    last = np.arange(len(log)) == len(log) - 1
    others = [
        with_other(log, terminals=log.timeouts, timeouts=log.terminals),
        with_other(log, episodes=log.episodes[[0, *range(2, len(log.episodes))]]),
        *(
            with_other(log, **{part: getattr(log, part) + last.reshape(-1, *[1] * (getattr(log, part).ndim - 1))})
            for part in ("states", "actions", "rewards", "next_states")
        ),
    ]
    for other in others:
        with pytest.raises(ValueError, match="is of a run with other policies, transitions"):
            method.estimate(gains(), other, checkpoint=path, **quiet)


@pytest.mark.parametrize("first", ["fit", "estimate"])
def test_a_shared_critic_s_checkpoint_serves_other_policies(first, log, tmp_path, monkeypatch):
    path, method = tmp_path / "run.safetensors", BehaviourQ(**SMALL)
    whole = method.estimate(gains(), log, **quiet)
    if first == "fit":
        method.fit(log, discount=0.9, checkpoint=path, progress=False)
    else:
        others = {"other": LinearGain(np.array([0.3, 0.1]), 0.3)}
        replace(method, draws=2).estimate(others, log, checkpoint=path, **quiet)
    monkeypatch.setattr(learning.Batches, "__call__", None)
    found = method.estimate(gains(), log, checkpoint=path, **quiet)
    np.testing.assert_array_equal(found.values, whole.values)
    curves = [np.array(x.diagnostics["curve"]["values"]) for x in (found, whole)]
    np.testing.assert_array_equal(curves[0][-1], curves[1][-1])
    assert np.isnan(curves[0][:-1]).all() and curves[0].shape == curves[1].shape
    critic = method.fit(log, discount=0.9, checkpoint=path, progress=False)
    np.testing.assert_array_equal(*(c(log.states, log.actions) for c in (critic, whole.diagnostics["critic"])))


def test_a_fitted_behaviour_s_checkpoint_serves_other_weightings(log, tmp_path, monkeypatch):
    path, method = tmp_path / "run.safetensors", METHODS["importance-weighting"]
    method.estimate(gains(), log, checkpoint=path, **quiet)
    other = replace(method, clip=(-6, 2), noise=0.3, bootstraps=3)
    whole = other.estimate(gains(), log, **quiet)
    monkeypatch.setattr(learning.Batches, "__call__", None)
    found = other.estimate(gains(), log, checkpoint=path, **quiet)
    np.testing.assert_array_equal(found.values, whole.values)
    with pytest.raises(ValueError, match="is of a run with other"):
        replace(method, components=2).estimate(gains(), log, checkpoint=path, **quiet)


@pytest.mark.parametrize("method", [FQE(**SMALL), FQE(**SMALL, memory=0)])
@pytest.mark.parametrize("std", [None, 0.3], ids=["deterministic", "stochastic"])
def test_checkpoint_is_refused_for_policies_that_act_otherwise_in_one_state(method, std, log, tmp_path):
    path, policy = tmp_path / "run.safetensors", gains(std=std)["gain-1"]
    method.estimate({"policy": policy}, log, checkpoint=path, **quiet)
    for row in (2, 59):

        def other(states, there=log.states[row]):
            return policy(np.where((states == there).all(1, keepdims=True), states + 1, states))

        with pytest.raises(ValueError, match="is of a run with other policies"):
            method.estimate({"policy": other}, log, checkpoint=path, **quiet)


def test_diverged_run_names_itself_after_a_checkpoint(log, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", -1.0)
    path = tmp_path / "run.safetensors"
    with pytest.raises(FloatingPointError, match="^FQE: the loss is not finite after"):
        replace(METHODS["fqe"], learning_rate=1e30).estimate(gains(), log, checkpoint=path, **quiet)
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("fqe", ["acting", "coverage", "FQE", "evaluating", "evaluating"]),
        ("behaviour-q", ["coverage", "SARSA critic", "evaluating"]),
        ("dual-dice", ["acting", "DualDICE", "evaluating"]),
        ("importance-weighting", ["behaviour", "weighting"]),
        ("model-based", ["dynamics", "rolling out"]),
    ],
)
@pytest.mark.parametrize("shown", [True, False], ids=["shown", "off"])
def test_each_phase_has_a_bar_that_fills(name, phases, shown, log, monkeypatch):
    bars = []

    class Bar:
        def __init__(self, *, total, initial, desc, disable, **options):
            self.total, self.done, self.phase, self.off = total, initial, desc, disable
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            assert self.done == self.total > 0

        def update(self, done=1):
            self.done += done

        def set_postfix(self, **values): ...

    monkeypatch.setattr(progress, "tqdm", Bar)
    METHODS[name].estimate(gains(), log, discount=0.9, progress=shown)
    # Means watched in training show none of their own.
    assert [bar.phase for bar in bars if bar.off is not True] == (phases if shown else [])
    assert {bar.phase for bar in bars} == set(phases)


@pytest.mark.parametrize("method", [METHODS["fqe"], METHODS["dual-dice"]], ids=["fqe", "dual-dice"])
@pytest.mark.parametrize("std", [None, 1e-5], ids=["deterministic", "stochastic"])
def test_acting_on_batches_is_acting_on_all(method, std, log):
    kept = method.estimate(gains(std=std), log, **quiet).values
    asked = replace(method, memory=0).estimate(gains(std=std), log, **quiet).values
    np.testing.assert_allclose(asked, kept, rtol=1e-4 if std else 1e-5)


@pytest.mark.parametrize("name", ["fqe", "behaviour-q", "dual-dice", "model-based"])
def test_units_of_actions_change_nothing(name, log):
    """Nor does a column that is always 0."""

    def values(unit):
        policies = {name: lambda s, p=policy: np.pad(unit * p(s), ((0, 0), (0, 1))) for name, policy in gains().items()}
        actions = np.float32(unit * np.pad(log.actions, ((0, 0), (0, 1))))
        return METHODS[name].estimate(policies, with_other(log, actions=actions), **quiet).values

    np.testing.assert_array_equal(values(2.0**-13), values(2.0))


@pytest.mark.parametrize("name", ["fqe", "behaviour-q", "dual-dice", "model-based"])
def test_values_are_in_the_units_of_rewards(name, log):
    unit = 2.0**-40
    values = METHODS[name].estimate(gains(), log, **quiet).values
    scaled = METHODS[name].estimate(gains(), with_other(log, rewards=np.float32(unit) * log.rewards), **quiet).values
    np.testing.assert_allclose(scaled / unit, values, rtol=1e-4)


@each_method
def test_rewards_of_zero_are_worth_nothing(method, log):
    found = method.estimate(gains(), with_other(log, rewards=0 * log.rewards), **quiet)
    np.testing.assert_allclose(found.values, 0, atol=1e-6)


@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["asked", "kept"])
def test_draws_of_actions_are_the_policies_own(memory):
    found, layout, log = read(
        gains(std=0.3),
        Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0),
        discount=0.9,
        action_count=None,
        device="cpu",
    )
    actions = PolicyActions(found, layout, log, draws=3, memory=memory, progress=False)
    drawn = np.stack([actions(torch.arange(2000), draw) for draw in range(3)])[..., 0] * log.action_scale
    means = np.stack([policy(log.transitions.states)[:, 0] for policy in gains().values()])
    noise = (drawn - means) / 0.3  # (draws, P, B)
    np.testing.assert_allclose(noise.mean(2), 0, atol=4 / math.sqrt(2000))
    np.testing.assert_allclose(noise.std(2), 1, atol=4 / math.sqrt(4000))
    for p in range(3):
        np.testing.assert_allclose(np.corrcoef(noise[:, p]), np.eye(3), atol=4 / math.sqrt(2000))


def test_acting_everywhere_holds_few_actions_beside_the_table(monkeypatch):
    held = []

    def collecting(*arguments, **options):
        held.append(collect(*arguments, **options))
        return held[-1]

    monkeypatch.setattr("sopr_fast.baselines.log.collect", collecting)
    prepared = read(
        gains(),
        Linear.small().log(np.array([0.0, -0.3]), 0.5, 400, 100, seed=0),
        discount=0.9,
        action_count=None,
        device="cpu",
    )
    actions = PolicyActions(*prepared, progress=False)(torch.arange(40400))
    assert max(part.numel() for part in held) < actions.numel() / 2
    log = prepared[2]
    expected = np.stack([policy(log.raw_states.numpy()) for policy in gains().values()]) / log.action_scale
    np.testing.assert_allclose(actions, expected, atol=1e-6)


def two_states(terminal: bool, episodes: int = 40) -> Transitions:
    """Reward 1 in one state, then 3 in the other and the end, or more of it."""
    ends = np.tile([False, True], episodes)
    states, following = np.tile(np.eye(2), (episodes, 1)), np.tile([0.0, 1.0], (2 * episodes, 1))
    parts = states, np.zeros((len(ends), 1)), np.tile([1.0, 3.0], episodes), following
    return Transitions.from_arrays(*parts, ends & terminal, ends & (not terminal))


@pytest.mark.parametrize(
    "method",
    [
        FQE(updates=1000, hidden=(), learning_rate=1e-2, target_rate=0.1),
        DualDICE(updates=1000, hidden=(), nu_rate=1e-2, zeta_rate=1e-2),
        ModelBased(updates=1000, hidden=(), learning_rate=5e-2, ensemble=1, rollouts=2, horizon=200),
    ],
    ids=["fqe", "dual-dice", "model-based"],
)
@pytest.mark.parametrize(("terminal", "value"), [(True, 1 + 0.8 * 3), (False, 1 + 0.8 * 3 / 0.2)])
def test_terminals_end_and_timeouts_do_not(method, terminal, value):
    found = method.estimate([lambda states: 0 * states[:, :1]], two_states(terminal), discount=0.8, progress=False)
    assert found.values[0] == pytest.approx(value, rel=0.02)


def test_models_learn_nothing_of_states_after_terminals():
    """A walk, each of whose episodes ends: without next states those of terminals are made up."""
    random = np.random.default_rng(0)
    ends = random.random(200) < 0.2
    ends[-1] = True
    states = random.standard_normal((200, 1))
    following = np.where(ends[:, None], 3 + random.standard_normal((200, 1)), np.roll(states, -1, 0))
    parts = states, 0 * states, states[:, 0]
    logs = (Transitions.from_arrays(*parts, after, ends, 0 * ends) for after in (following, None))
    known, made_up = (METHODS["model-based"].estimate([np.tanh], log, **quiet) for log in logs)
    np.testing.assert_array_equal(known.values, made_up.values)
    for key in ("state_error", "reward_error", "negative_log_likelihood"):
        assert known.diagnostics[key] == made_up.diagnostics[key]


def test_importance_weighting_keeps_ended_episodes_and_drops_cut_ones():
    """One episode ends after reward 1, the other earns 1 and then 3."""
    states, rewards = np.zeros((3, 1)), np.array([1.0, 1.0, 3.0])
    density = -math.log(0.1 * math.sqrt(2 * math.pi))  # of the policy, so that all weights are 1
    for flags, expected in ((([1, 0, 0], [0, 0, 1]), 1 + 0.5 * 1.5), (([0, 0, 0], [1, 0, 1]), 1 + 0.5 * 3)):
        log = Transitions.from_arrays(states, states, rewards, states, *flags, log_probs=np.full(3, density))
        found = ImportanceWeighting().estimate([lambda s: 0 * s], log, discount=0.5, progress=False)
        assert found.values[0] == pytest.approx(expected)


def test_importance_weighting_of_deterministic_policies_is_that_of_narrow_normals(log):
    log = with_other(log, log_probs=np.zeros(len(log), np.float32))
    plain, noisy = (ImportanceWeighting(noise=0.3).estimate(gains(std=std), log, **quiet) for std in (None, 0.3))
    np.testing.assert_allclose(plain.values, noisy.values, rtol=1e-5)


@pytest.mark.parametrize("largest", [1.0, 1.1], ids=["within", "beyond"])
def test_noise_of_deterministic_policies_is_before_tanh_within_its_range(largest):
    """One step, and actions a policy's own but for noise; saturated ones, taken just inside, count in full."""
    random = np.random.default_rng(0)
    states, noise = np.repeat([0.0, 0.5, 30.0], 20)[:, None], 0.2 * random.standard_normal((60, 1))
    actions = np.float32(largest * np.tanh(states + noise))
    rewards = random.standard_normal(60).astype(np.float32)
    log = Transitions.from_arrays(states, actions, rewards, states, np.ones(60), None, np.zeros(60))
    found = ImportanceWeighting(noise=0.3).estimate([lambda states: largest * np.tanh(states)], log, **quiet)
    acted, logged = largest * np.tanh(states), actions.astype(np.float64)
    if largest == 1:
        acted, logged = (torch.from_numpy(x).clamp(-1 + 1e-4, 1 - 1e-4) for x in (acted, logged))
        density = torch.distributions.TransformedDistribution(Normal(acted.atanh(), 0.3), TanhTransform())
    else:
        acted, logged = map(torch.from_numpy, (acted, logged))
        density = Normal(acted, 0.3)
    weights = density.log_prob(logged).exp().numpy()[:, 0]
    assert found.values[0] == pytest.approx(weights @ rewards / weights.sum(), rel=1e-4)


@pytest.mark.parametrize("mean", [5.5, 8.0])
def test_a_saturated_policy_weighs_its_own_log_evenly(mean):
    """Its actions are within 1e-4 of ±1, many of them 1 in float32."""
    layers, random = [(torch.zeros(1, 1), torch.tensor([mean]))], torch.Generator().manual_seed(0)
    actor = Actor("actor", layers, log_std=torch.tensor([math.log(0.3)]), stochastic=True)
    states, cut = torch.zeros(400, 1), np.tile([0, 0, 0, 1], 100)
    actions = actor.sample(states, random)
    log = Transitions.from_arrays(states, actions, cut, states, None, cut, actor.log_prob(states, actions))
    found = ImportanceWeighting().estimate([actor], log, **quiet)
    np.testing.assert_allclose(found.diagnostics["effective_by_step"], np.full((1, 4), 100), rtol=1e-4)


def test_importance_weighting_clips_log_ratios(log):
    log = with_other(log, log_probs=np.zeros(len(log), np.float32))
    clipped = ImportanceWeighting(clip=(-1e-9, 1e-9)).estimate(gains(), log, **quiet)
    rewards = log.rewards.reshape(12, 10).mean(0)
    np.testing.assert_allclose(clipped.values, float(0.9 ** np.arange(10) @ rewards), rtol=1e-6)


@pytest.fixture
def disjoint():
    """A log that never takes the action that the first policy always takes."""
    behaviour = np.tile([0.5, 0.5, 0.0], (5, 1))
    never, often = np.tile([0.0, 0.0, 1.0], (5, 1)), np.tile([0.4, 0.6, 0.0], (5, 1))
    log = Tabular.random(seed=0).log(behaviour, 200, 5, seed=0, log_probs=True)
    return {"never": TablePolicy(never), "often": TablePolicy(often)}, log


@loud
@pytest.mark.parametrize("fitted", [False, True])
def test_disjoint_support_is_no_confident_weighting(fitted, disjoint):
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'never' \(0\): fewer"):
        found = ImportanceWeighting(fitted=fitted, updates=500, hidden=(16,)).estimate(*disjoint, **quiet)
    effective = found.diagnostics["effective_sample_size"]
    assert effective[0] == 0 and effective[1] > 100
    assert math.isnan(found.standard_errors[0]) and found.standard_errors[1] < 0.5


@loud
def test_support_lost_after_the_first_step_is_no_confident_weighting():
    """In the second state, where all stay, the log takes the first action only, a policy the other, and one both."""
    step = np.zeros((2, 2, 2))
    step[..., 1] = 1
    mdp = Tabular(step, np.zeros((2, 2)), np.array([[1.0, 1.0], [1.0, -100.0]]), np.array([1.0, 0.0]))
    log = mdp.log(np.array([[0.5, 0.5], [1.0, 0.0]]), 200, 20, seed=0, log_probs=True)
    asked = {
        "other": TablePolicy(np.array([[0.5, 0.5], [0.0, 1.0]])),
        "both": TablePolicy(np.array([[0.5, 0.5], [0.7, 0.3]])),
        "logged": TablePolicy(np.array([[0.2, 0.8], [1.0, 0.0]])),
    }
    with pytest.warns(
        UncertainEstimateWarning, match=r"hardly covers 'other' \(0\), 'both' \([\d.]+\): fewer"
    ) as warned:
        found = ImportanceWeighting().estimate(asked, log, **quiet)
    assert len(warned) == 1
    by_step = found.diagnostics["effective_by_step"]
    np.testing.assert_allclose(by_step[1], 200 * 0.7 ** np.arange(20), rtol=1e-5)
    effective = found.diagnostics["effective_sample_size"]
    # Steps 15 to 19 have 0.096 of the weight, 14 to 19 0.122.
    np.testing.assert_allclose(effective, [0, by_step[1, 14], 200 / (0.4**2 + 1.6**2) * 2], rtol=0.1)
    np.testing.assert_array_equal(np.isnan(found.standard_errors), [True, True, False])


def test_a_row_without_density_is_no_longer_weighed():
    """One of four episodes has a normal of standard deviation 0 at its first step."""
    states = np.repeat([[0.0], [1.0], [1.0], [1.0]], 2, axis=0)
    rewards = np.array([5.0, 7.0, 1.0, 2.0, 1.0, 3.0, 1.0, 4.0])
    log = Transitions.from_arrays(
        states, 0 * states, rewards, states, None, [0, 1] * 4, log_probs=np.full(8, -0.5 * math.log(2 * math.pi))
    )
    found = ImportanceWeighting().estimate([lambda s: Gaussian(0 * s, s)], log, discount=0.5, progress=False)
    assert found.values[0] == pytest.approx(1 + 0.5 * 3)
    np.testing.assert_allclose(found.diagnostics["effective_by_step"], [[3, 3]])


@loud
@pytest.mark.parametrize("method", [FQE(**SMALL), BehaviourQ(**SMALL)], ids=["fqe", "behaviour-q"])
def test_critics_warn_of_disjoint_support(method, disjoint, log):
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'never' \(100%\): in that share") as warned:
        found = method.estimate(*disjoint, **quiet)
    assert len(warned) == 1 and warned[0].filename == __file__
    np.testing.assert_allclose(found.diagnostics["uncovered"], [1, 0])
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match=r"hardly covers 'far' \(100%\)"):
        method.estimate({**gains(), **far}, log, **quiet)


@loud
@pytest.mark.parametrize("method", [FQE(**SMALL), BehaviourQ(**SMALL)], ids=["fqe", "behaviour-q"])
@pytest.mark.parametrize("std", [None, 0.5], ids=["deterministic", "stochastic"])
def test_critics_do_not_warn_of_covered_policies(method, std, recwarn):
    """A policy that acts as the log does is uncovered in as many states as the log itself, 1 %."""
    log = Linear.small().log(np.array([0.0, -0.3]), 0.5, 40, 50, seed=0)
    behaviour = {"behaviour": LinearGain(np.array([0.0, -0.3]), std)}
    found = method.estimate({**behaviour, **gains(std=std)}, log, **quiet)
    assert not recwarn.list
    assert found.diagnostics["uncovered"][0] == pytest.approx(0.01 if std else 0, abs=0.01)


def test_coverage_counts_what_policies_do_apart_from_the_nearest_rows(disjoint):
    """Half of the time an action that is never logged; an action that is logged in 30 % of the states only."""
    policies, log = disjoint
    half = {"half": TablePolicy(0.5 * sum(policy.table for policy in policies.values()))}
    assert FQE(**SMALL).estimate(half, log, **quiet).diagnostics["uncovered"] == pytest.approx(0.5)
    states = np.random.default_rng(0).uniform(0, 1, (400, 1))
    actions = np.where(states < 0.3, 1.0, 0.0)
    log = Transitions.from_arrays(states, actions, np.zeros(400), states)
    found = FQE(**SMALL).estimate({"ones": lambda states: np.ones((len(states), 1))}, log, **quiet)
    assert found.diagnostics["uncovered"] == pytest.approx(0.7, abs=0.1)


@loud
def test_dual_dice_warns_of_disjoint_support(disjoint):
    with pytest.warns(
        UncertainEstimateWarning, match=r"DualDICE cannot be trusted for 'never' \(\d+ effective[^)]*\):"
    ):
        DualDICE(hidden=(), updates=500, nu_rate=5e-2, zeta_rate=5e-2).estimate(*disjoint, **quiet)


@loud
def test_actions_far_from_the_log_are_no_confident_estimate(log):
    far = {"far": lambda states: np.full((len(states), 1), 40.0, np.float32)}
    with pytest.warns(UncertainEstimateWarning, match="'far'"):
        found = ImportanceWeighting(updates=300, hidden=(16,)).estimate(far, log, **quiet)
    assert found.diagnostics["effective_sample_size"][0] < 1
    with pytest.warns(UncertainEstimateWarning, match="leave the range of the log"):
        ModelBased(updates=300, hidden=(16,), ensemble=1, rollouts=4, horizon=20).estimate(far, log, **quiet)


@loud
def test_a_constant_column_is_not_left(log, recwarn):
    states, following = (np.pad(part, ((0, 0), (0, 1)), constant_values=7) for part in (log.states, log.next_states))
    method = ModelBased(updates=300, hidden=(16,), ensemble=1, rollouts=4, horizon=20)
    padded = with_other(log, states=states, next_states=following)
    found = method.estimate([lambda states: 0 * states[:, :1]], padded, **quiet)
    assert found.diagnostics["guarded"] < 0.1 and not recwarn.list


@pytest.mark.parametrize("name", ["fqe", "fqe-ensemble", "dual-dice"])
def test_arrays_of_actions_leave_out_the_ends_of_episodes_for_themselves_alone(name, log):
    """What they are worth: test_baselines_exact.py."""
    policies = {"array": gains()["gain-2"](log.states), "policy": gains()["gain-2"]}
    alone = [METHODS[name].estimate([policy], log, **quiet).values[0] for policy in policies.values()]
    both = METHODS[name].estimate(policies, log, **quiet)
    np.testing.assert_allclose(both.values, alone, rtol=1e-4)
    assert both.diagnostics["dropped_rows"].tolist() == [12, 0]


def test_arrays_of_actions_cannot_be_rolled_out(log):
    with pytest.raises(ValueError, match="'array' is an array of actions"):
        ModelBased(**SMALL).estimate({"array": gains()["gain-2"](log.states)}, log, **quiet)


def test_an_array_beside_a_policy_does_not_cut_its_value():
    def policy(states):
        return 0 * states[:, :1]

    data = two_states(terminal=False)
    method = FQE(updates=1000, hidden=(), learning_rate=1e-2, target_rate=0.1)
    found = method.estimate({"policy": policy, "array": policy(data.states)}, data, discount=0.8, progress=False)
    assert found.values[0] == pytest.approx(1 + 0.8 * 3 / 0.2, rel=0.02)


@pytest.mark.parametrize("name", ["fqe", "behaviour-q", "dual-dice", "importance-weighting", "nearest"])
def test_arrays_of_actions_have_the_rows_of_the_data(name, log):
    """Without next states the last rows of episodes are dropped from the log, not from the arrays."""
    data = {key: getattr(log, key) for key in ("states", "actions", "rewards", "timeouts")}
    shifted = load(data)
    assert len(shifted) == 108 and shifted.source_count == 120
    arrays = {name: policy(log.states) for name, policy in gains().items()}
    for part in ("states", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(shifted, part), getattr(log, part)[shifted.source])
    known = {"other": LinearGain(np.array([0.1, 0.0])), "far": LinearGain(np.array([0.9, 0.0]))}
    method = {**METHODS, "nearest": NearestPolicy(known, [1.0, 2.0])}[name]
    found = method.estimate(arrays, data, **quiet)
    short = with_other(shifted, source=np.arange(108), source_count=108)
    expected = method.estimate({name: array[shifted.source] for name, array in arrays.items()}, short, **quiet)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-6)
    with pytest.raises(ValueError, match="'gain-0' has actions for 108 states, the data has 120"):
        method.estimate({"gain-0": arrays["gain-0"][:108]}, data, **quiet)


def test_discrete_actions_as_indices_or_one_hot():
    mdp = Tabular.random(seed=0)
    log = mdp.log(np.full((5, 3), 1 / 3), 10, 5, seed=0)
    indices = with_other(log, actions=log.actions.argmax(1)[:, None].astype(np.float32))
    choose = {"second": lambda states: np.ones(len(states), int)}
    for method in (FQE(**SMALL), BehaviourQ(**SMALL), DualDICE(**SMALL), ModelBased(**SMALL, horizon=3)):
        values = [method.estimate(choose, data, action_count=3, **quiet).values for data in (log, indices)]
        np.testing.assert_array_equal(*values)
    wrong = with_other(log, actions=log.actions + 3)
    with pytest.raises(ValueError, match="must be indices"):
        FQE(**SMALL).estimate(choose, wrong, action_count=3, **quiet)


def test_nearest_policy_takes_the_return_of_the_nearest(log):
    known, returns = gains(6), np.arange(6.0) ** 2
    asked = {"a": LinearGain(np.array([0.12, -0.2])), "b": LinearGain(np.array([0.41, -0.9]))}
    found = NearestPolicy(known, returns).estimate(asked, log)
    columns = [np.stack([policy(log.states) for policy in group.values()]) for group in (known, asked)]
    distances, nearest = policy_distance(*columns)
    assert found.diagnostics["nearest"] == [f"gain-{i}" for i in nearest]
    np.testing.assert_array_equal(found.values, returns[nearest])
    np.testing.assert_allclose(found.diagnostics["distances"], distances, rtol=1e-4)


def test_a_training_policy_is_not_its_own_nearest(log):
    known = {name: LinearGain(np.array([gain, 0.0])) for name, gain in zip("abcd", [0.2, 0.5, 0.6, 1.2], strict=True)}
    found = NearestPolicy(known, [20, 50, 60, 120]).estimate(known, log)
    assert found.diagnostics["nearest"] == ["b", "c", "b", "c"] and found.values.tolist() == [50, 60, 50, 60]
    assert (found.diagnostics["distances"] > 0).all()


def test_a_training_policy_is_known_by_more_than_its_name(log):
    """Policies in lists are named by position, so that equal names say nothing."""
    policies = [LinearGain(np.array([gain, 0.0])) for gain in [0.2, 0.5, 0.6, 1.2]]
    close = [LinearGain(policy.gain + 0.01) for policy in policies]
    known = NearestPolicy(policies, [20, 50, 60, 120])
    assert known.estimate(close, log).values.tolist() == [20, 50, 60, 120]
    again = [LinearGain(policy.gain) for policy in policies]
    assert known.estimate(again, log).values.tolist() == [50, 60, 50, 60]
    draws = np.random.default_rng(0)
    noisy = [lambda s, p=policy: p(s) + draws.normal(0, 1e-3, (len(s), 1)).astype(np.float32) for policy in policies]
    assert NearestPolicy(noisy, [20, 50, 60, 120]).estimate(noisy, log).values.tolist() == [50, 60, 50, 60]


def test_the_only_training_policy_has_no_nearest(log):
    known = gains(1)
    with pytest.raises(ValueError, match="'gain-0' is the only training policy"):
        NearestPolicy(known, [7.0]).estimate(gains(2), log)
    assert NearestPolicy(known, [7.0]).estimate({"other": known["gain-0"]}, log).values == 7


def test_the_curve_of_a_shared_critic_ends_at_its_values(log):
    """The log has fewer rows than the curve looks at."""
    found = BehaviourQ(**SMALL, ensemble=2).estimate(gains(), log, **quiet)
    values = np.array(found.diagnostics["curve"]["values"])
    assert len(values) == len(found.diagnostics["curve"]["updates"]) > 1
    np.testing.assert_allclose(values[-1], found.values, rtol=1e-6)
    assert (values[0] != values[-1]).all()


def test_critics_evaluate_as_many_rows_at_once_as_their_chunk(log, monkeypatch):
    """Three critics of one policy each, or two that are asked about all three policies."""
    monkeypatch.setattr(critics, "_CHUNK", 600)
    for method, mean, states in (
        (FQE(**SMALL), "mean_values", 200),
        (BehaviourQ(**SMALL, ensemble=2), "shared_mean_values", 100),
    ):
        asked = []

        class Actions:
            policies, draws = [None] * 3, 1

            def __call__(self, rows, draw, asked=asked):
                asked.append(len(rows))
                return torch.zeros(3, len(rows), 1)

        critic = method.estimate(gains(), log, **quiet).diagnostics["critic"]
        getattr(critic, mean)(Actions(), torch.zeros(1000, dtype=torch.int64))
        assert set(asked) == {states}


def test_critic_answers_in_units_of_return(log):
    critic = BehaviourQ(**SMALL).fit(log, discount=0.9, progress=False)
    values = critic(log.states, log.actions)
    assert values.shape == (1, len(log))
    policy = gains()["gain-1"]
    found = BehaviourQ(**SMALL).estimate({"policy": policy}, log, **quiet)
    assert found.values[0] == pytest.approx(critic(log.states, policy(log.states)).mean(), rel=1e-4)


def test_critic_takes_tensors_of_any_device(log, device):
    critic = BehaviourQ(**SMALL).fit(log, discount=0.9, progress=False)
    states, actions = (torch.from_numpy(part).to(device) for part in (log.states, log.actions))
    np.testing.assert_array_equal(critic(states, actions), critic(log.states, log.actions))


@pytest.mark.parametrize(
    ("states", "actions", "message"),
    [
        (np.zeros((4, 3)), np.zeros((4, 1)), r"states have shape \(4, 3\), expected \(4, 2\)"),
        (np.zeros((4, 2)), np.zeros((3, 1)), r"actions have shape \(3, 1\), expected \(4, 1\)"),
        (np.zeros((4, 2)), np.zeros(4), r"actions have shape \(4,\), expected \(4, 1\)"),
    ],
)
def test_critic_names_what_has_the_wrong_shape(states, actions, message, log):
    critic = BehaviourQ(**SMALL).fit(log, discount=0.9, progress=False)
    with pytest.raises(ValueError, match=message):
        critic(states, actions)


def test_estimates_show_themselves_best_first():
    found = Estimates(["a", "b"], np.array([1.0, 3.0]), np.array([[0.0, 2.0], [3.0, 3.0]]), method="FQE")
    heading, *rows = found.table().splitlines()
    assert heading.split() == ["rank", "policy", "score", "±", "error"]
    assert [row.split() for row in rows] == [["1", "b", "3.0000", "0.0000"], ["2", "a", "1.0000", "1.4142"]]
    assert repr(found) == f"Estimates of 2 policies by FQE\n{found.table()}" and str(found) == found.table()


def test_estimates_become_a_ranking():
    replicates = np.random.default_rng(0).normal(0, [[1], [2], [3]], (3, 7))
    found = Estimates(["a", "b", "c"], np.array([1.0, 3.0, 2.0]), replicates)
    ranking = found.ranking()
    assert ranking.order == ["b", "c", "a"]
    np.testing.assert_allclose(ranking.scores, found.values)
    np.testing.assert_allclose(ranking.standard_errors, found.standard_errors)
    difference = (replicates[1] - replicates[0]).std(ddof=1)
    assert ranking.win_probability[1, 0] == pytest.approx(0.5 * (1 + math.erf(2 / difference / math.sqrt(2))))
    assert np.isnan(Estimates(["a"], np.ones(1)).ranking().standard_errors).all()


def test_unknown_standard_errors_stay_unknown_in_a_ranking():
    replicates = np.array([[np.nan, np.nan, np.nan], [0.0, 1.0, 2.0], [1.0, 3.0, 2.0]])
    found = Estimates(["unknown", "b", "c"], np.array([5.0, 1.0, 2.0]), replicates)
    ranking = found.ranking()
    assert ranking.order == ["unknown", "c", "b"]
    np.testing.assert_array_equal(ranking.scores, found.values)
    np.testing.assert_allclose(ranking.standard_errors, [np.nan, 1, 1])
    wins = ranking.win_probability
    assert np.isnan(wins[0]).all() and np.isnan(wins[:, 0]).all()
    assert 0.8 < wins[2, 1] < 1
    assert found.table().splitlines()[1].split() == ["1", "unknown", "5.0000", "nan"]


def test_errors_come_before_long_work(log):
    with pytest.raises(ValueError, match="'wide' has 2 action columns, the transitions have 1"):
        FQE().estimate({"wide": lambda states: states}, log, discount=0.9)


@pytest.mark.parametrize(
    ("lengths", "held"), [([10] * 40, 20), ([1000], 50), ([999, 1], 50), ([10] * 9 + [910], 50), ([1, 1], 1)]
)
def test_few_rows_are_held_out_of_training(lengths, held):
    """Whole episodes, or the end of one that is much of the log; or an episode that is less."""
    ends, count = np.cumsum(lengths), sum(lengths)
    states = np.zeros((count, 1))
    transitions = Transitions.from_arrays(states, states, states[:, 0], states, np.isin(np.arange(count), ends - 1))
    rows = [held_out_rows(Log(transitions), seed) for seed in range(8)]
    assert max(map(len, rows)) == held
    for found in rows:
        episode = np.searchsorted(ends, found, side="right")
        assert np.isin(ends[episode] - 1, found).all() and (np.diff(found) > 0).all()
        np.testing.assert_array_equal(np.diff(found)[np.diff(episode) == 0], 1)


@pytest.mark.parametrize("name", ["importance-weighting", "model-based"])
def test_a_single_row_is_too_few_to_hold_some_out(name):
    zero = np.zeros((1, 1))
    with pytest.raises(ValueError, match="transitions: one row is too few"):
        METHODS[name].estimate([np.tanh], Transitions.from_arrays(zero, zero, zero, zero), **quiet)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(
            (method, {name: 0})
            for method in (FQE, BehaviourQ)
            for name in ("updates", "batch_size", "ensemble", "draws")
        ),
        *((FQE, {"hidden": hidden}) for hidden in (8, "8", (8, 0), (8.0,), None)),
        *((FQE, {name: value}) for name in ("learning_rate", "target_rate") for value in (0, -1e-3, math.nan, "1")),
        (FQE, {"updates": 10.0}),
        (FQE, {"ensemble": True}),
        (FQE, {"target_rate": 1.5}),
        (FQE, {"memory": -1}),
        (FQE, {"start": "end"}),
        (BehaviourQ, {"learning_rate": math.inf}),
        *((DualDICE, {name: 0}) for name in ("updates", "batch_size", "draws", "nu_rate", "zeta_rate")),
        *((DualDICE, {"average": value}) for value in (5, -0.1)),
        *((DualDICE, {"exponent": value}) for value in (1.0, math.inf)),
        *((ImportanceWeighting, {name: 0}) for name in ("updates", "components", "noise", "learning_rate")),
        (ImportanceWeighting, {"bootstraps": -1}),
        *((ImportanceWeighting, {"clip": clip}) for clip in ((1, 0), 2.0, (1, 2, 3))),
        *((ModelBased, {name: 0}) for name in ("updates", "ensemble", "rollouts", "learning_rate", "horizon")),
        (ModelBased, {"horizon": -3}),
        (lambda **options: NearestPolicy(gains(), [0, 1, 2], **options), {"rows": 0}),
    ],
)
def test_option_that_cannot_be_is_named(method, options):
    with pytest.raises(ValueError, match=rf"^{next(iter(options))}\b"):
        method(**options)


@each_method
@pytest.mark.parametrize("run", [{"seed": -1}, {"seed": 1.5}, {"discount": 1.0}, {"discount": -0.1}])
def test_seed_and_discount_that_cannot_be_are_named(method, run, log):
    with pytest.raises(ValueError, match=rf"^{next(iter(run))} must be"):
        method.estimate({"never asked": None}, log, **{"discount": 0.9, **run})


@each_method
def test_options_of_numpy_are_as_those_of_python(method, log, tmp_path):
    path = tmp_path / "run.safetensors"
    numbers = {key: np.array(value)[()] for key, value in vars(method).items() if type(value) in (int, float)}
    other = replace(method, **numbers, hidden=[np.int64(width) for width in method.hidden])
    expected = method.estimate(gains(std=0.3), log, seed=3, checkpoint=path, **quiet).values
    run = {"seed": np.int64(3), "discount": np.float64(0.9), "progress": False}
    np.testing.assert_array_equal(other.estimate(gains(std=0.3), log, **run).values, expected)
    np.testing.assert_array_equal(other.estimate(gains(std=0.3), log, checkpoint=path, **run).values, expected)


@pytest.mark.parametrize("name", ["fqe", "behaviour-q", "dual-dice", "importance-weighting", "model-based", "nearest"])
def test_runs_on_each_device(name, log, device, tmp_path):
    method = {**METHODS, "nearest": NearestPolicy(gains(), [1.0, 2.0, 3.0])}[name]
    found = method.estimate(gains(), log, device=device, checkpoint=tmp_path / "run", **quiet)
    np.testing.assert_allclose(found.values, method.estimate(gains(), log, **quiet).values, rtol=1e-2)
