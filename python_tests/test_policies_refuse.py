"""Bad policies raise one clear error, before long work starts."""

import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from torch import distributions as dist
from torch import nn

from sopr_fast.inputs.policies import ArrayPolicy, Gaussian, Layout, Probabilities, collect, load, probe

U, DS, DA = 40, 5, 3
STATES = torch.randn(U, DS, generator=torch.Generator().manual_seed(0))
SOURCE = torch.arange(U) * 2 + 1


def good(states):
    return states[:, :DA]


RETURNS = {
    "fewer columns": (lambda s: s[:, :2], "'x' returned shape (13, 2), expected (13, 3) as policy 'good'"),
    "fewer rows": (lambda s: s[1:, :3], "shape (12, 3), expected (13, action width); a policy gets a batch of states"),
    "one action": (lambda s: s[0, :3], "'x' returned shape (3,), expected (13, action width)"),
    "three dimensions": (lambda s: s[:, None], "'x' returned shape (13, 1, 5), expected (13, action width)"),
    "no columns": (lambda s: s[:, :0], "'x' returned shape (13, 0), expected (13, action width)"),
    "complex": (lambda s: good(s) * 1j, "'x' returned dtype complex64, expected an array or tensor"),
    "bool": (lambda s: good(s) > 0, "'x' returned dtype bool"),
    "bool tensor": (lambda s: torch.from_numpy(good(s)) > 0, "'x' returned a tensor of torch.bool"),
    "sparse": (lambda s: torch.from_numpy(good(s)).to_sparse(), "of torch.float32 and torch.sparse_coo on cpu"),
    "text": (lambda s: "left", "'x' returned words: return indices of discrete actions"),
    "nothing": (lambda s: None, "'x' returned a NoneType"),
    "tuple": (lambda s: (good(s), None), "'x' returned a tuple"),
    "object": (lambda s: object(), "'x' returned a object, expected an array"),
    "meta": (lambda s: torch.empty(len(s), DA, device="meta"), "on meta, expected an array or tensor"),
    "nan": (lambda s: np.where(s == s[2, 0], np.nan, s)[:, :3], "'x' returned nan at state row 5"),
    "inf": (lambda s: np.where(s == s[2, 0], -np.inf, s)[:, :3], "'x' returned -inf at state row 5"),
    "nan deviation": (lambda s: Gaussian(good(s), good(s) * np.nan), "'x' returned nan at state row 1"),
    "negative deviation": (lambda s: Gaussian(good(s), -1.0), "a negative standard deviation"),
    "deviation's shape": (lambda s: Gaussian(good(s), s[:, :2]), "of shape (13, 2), expected (13, 3)"),
    "no mean": (
        lambda s: dist.TransformedDistribution(dist.Normal(torch.tensor(good(s)), 1.0), dist.TanhTransform()),
        "'x' returned a TransformedDistribution, whose mean is unknown",
    ),
    "joint": (
        lambda s: dist.Independent(dist.Normal(torch.tensor(good(s)), 1.0), 2),
        "'x' returned one Independent over all states together, of event shape (13, 3)",
    ),
    "improbable": (lambda s: Probabilities(np.abs(s)), "values at state row 1 that are not probabilities"),
    "discrete": (lambda s: Probabilities(s * 0 + 0.2), "'x' has discrete actions, policy 'good' con"),
    "integers": (lambda s: np.ones(len(s), int), "integer actions: load the policies by sopr_fast.load_policies("),
    "integer matrix": (lambda s: np.ones((len(s), 3), int), "of several actions at once, return one index for each"),
}  # fmt: skip


@pytest.mark.parametrize("policy, message", RETURNS.values(), ids=RETURNS.keys())
def test_wrong_outputs(policy, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        probe(list(load({"good": good, "x": policy}).values()), STATES, SOURCE)


DISCRETE = {
    "index": (lambda s: np.full(len(s), 4), "'x' returned action 4 at state row 1, expected 0 to 3"),
    "negative index": (lambda s: np.full(len(s), -1), "'x' returned action -1 at state row 1"),
    "logits": (lambda s: s[:, :4], "]; if they are logits, return the index of the largest, or torch"),
    "width": (lambda s: s, "returned shape (13, 5), expected (13, 4)"),
    "continuous": (
        lambda s: Gaussian(good(s), 1 + 0 * good(s)),
        "continuous distribution, expected probabilities",
    ),
}


@pytest.mark.parametrize("policy, message", DISCRETE.values(), ids=DISCRETE.keys())
def test_wrong_outputs_of_discrete_policies(policy, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        probe(list(load({"x": policy}, action_count=4).values()), STATES, SOURCE)


def test_a_policy_that_raises_is_named_and_chained():
    def broken(states):
        raise KeyError("weights")

    with pytest.raises(RuntimeError, match="policy 'x' raised KeyError on 13 states") as caught:
        probe(list(load({"good": good, "x": broken}).values()), STATES, SOURCE)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_module_for_states_of_another_width():
    with pytest.raises(RuntimeError, match="policy 'net' raised RuntimeError"):
        probe(list(load({"net": nn.Linear(DS + 1, DA)}).values()), STATES, SOURCE)


def test_a_callable_that_passes_its_array_to_a_module_is_told_the_remedy():
    net = nn.Linear(DS, DA)
    with pytest.raises(RuntimeError, match="'around' .*callables receive a numpy array: pass the module itself"):
        collect(list(load({"around": lambda s: net(s)}).values()), STATES, SOURCE, Layout("action", DA, DA))
    with pytest.raises(RuntimeError) as other:
        collect(list(load({"x": lambda s: s + "a"}).values()), STATES, SOURCE, Layout("action", DA, DA))
    assert "callables receive" not in str(other.value)


class Memory(nn.Module):
    """A policy with the attributes of sb3-contrib's recurrent one, which acts from an empty memory by default."""

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)

    def predict(self, states, state=None, episode_start=None, deterministic=False):
        return good(states), state


@pytest.mark.parametrize("attributes", [{"lstm_actor": None}, {"lstm_hidden_state_shape": (1, 1, 8)}])
def test_recurrent_policies_are_refused(attributes):
    policy = Memory(**attributes)
    model = SimpleNamespace(
        policy=policy,
        predict=policy.predict,
        action_space=SimpleNamespace(shape=(DA,)),
        observation_space=SimpleNamespace(shape=(DS,)),
        get_vec_normalize_env=lambda: None,
    )
    for item in (policy, model):
        with pytest.raises(ValueError, match=r"policy 'x' .* recurrent, .* pass an array of its actions in every logg"):
            list(load({"x": item}).values())
    model.policy = Memory()
    for item in (Memory(), model):
        (usable,) = load({"x": item}).values()
        assert torch.equal(usable.act(STATES), STATES[:, :DA])


def test_late_nan_names_the_row_in_the_users_data():
    def late(states):
        actions = good(states)
        actions[(states == STATES[33].numpy()).all(1)] = np.nan
        return actions

    policies = list(load({"x": late}).values())
    with pytest.raises(ValueError, match="policy 'x' returned nan at state row 67"):
        collect(policies, STATES, SOURCE, probe(policies, STATES, SOURCE))


@pytest.mark.parametrize(
    "policy, layout, message",
    [
        (lambda s: s[:, :2], Layout("action", 3, 3), "'x' returned shape (13, 2), expected (13, 3)"),
        (lambda s: s[:, :2], Layout("gaussian", 3, 6), "'x' returned shape (13, 2), expected (13, 3)"),
        (good, Layout("discrete", 3, 3), "'x' has continuous actions, the model discrete ones"),
        (lambda s: Probabilities(s * 0 + 0.2), Layout("action", 5, 5), "the model continuous ones"),
    ],
)  # fmt: skip
def test_candidates_that_do_not_fit_a_model(policy, layout, message):
    calls = []

    def first(states):
        calls.append(len(states))
        return (
            states[:, : layout.action_dim] if layout.kind != "discrete" else Probabilities(np.eye(3)[[0] * len(states)])
        )

    with pytest.raises(ValueError, match=re.escape(message)):
        probe(list(load({"first": first, "x": policy}).values()), STATES, SOURCE, layout)
    assert calls == [13]  # no long work before the error


@pytest.mark.parametrize(
    "policies", [None, 3, True, good, nn.Linear(5, 3), np.zeros((4, 3)), Gaussian(*[np.zeros((4, 3))] * 2)]
)
def test_values_that_are_not_collections_of_policies(policies):
    with pytest.raises(TypeError, match="policies must be a dict or sequence of policies"):
        list(load(policies).values())


@pytest.mark.parametrize(
    "item, kind",
    [
        (3, "of type int"),
        (True, "of type bool"),
        (None, "of type NoneType"),
        (nn.Linear, "the class Linear"),
        ([1, 2], "of type list"),
    ],
)
def test_items_that_are_not_policies(item, kind):
    with pytest.raises(TypeError, match=re.escape(f"policies[1] is {kind}")):
        list(load([good, item]).values())


@pytest.mark.parametrize("empty", [[], {}, ()])
def test_no_policies(empty):
    with pytest.raises(ValueError, match="no policies given"):
        list(load(empty).values())


def test_duplicate_names_give_both_positions():
    policy = nn.Linear(5, 3)
    policy.name = "sac"
    with pytest.raises(ValueError, match=re.escape("policies[0] and policies[2] are both named 'sac'")):
        list(load([policy, good, policy]).values())


@pytest.mark.parametrize("kind", [set, frozenset])
def test_sets_of_policies_have_no_order(kind):
    with pytest.raises(TypeError, match="policies are a set, which has no order: pass a list, or a dict"):
        list(load(kind([good, np.tanh])).values())


def test_data_frames_are_no_policies():
    frame = pandas.DataFrame({"policy": ["a", "b"], "a0": [0.1, 0.2]})
    with pytest.raises(TypeError, match="policies are a data frame: pass a dict from name to its array of actions"):
        load(frame)


def test_names_must_be_strings():
    with pytest.raises(TypeError, match="names of policies must be strings, got 3"):
        list(load({3: good}).values())


def test_arrays_without_one_row_per_state():
    with pytest.raises(ValueError, match="'x' has actions for 99 states, the data has 100"):
        list(load({"x": np.zeros((99, 3))}).for_log(100).values())
    with pytest.raises(ValueError, match="'x' has actions for 99 states, the data has 100"):
        list(load([ArrayPolicy("x", np.zeros((99, 3)))]).for_log(100).values())
    with pytest.raises(ValueError, match=re.escape("'x' has shape (2, 9, 3)")):
        list(load({"x": np.zeros((2, 9, 3))}).values())
    with pytest.raises(ValueError, match="'x' is a tensor of layout torch.sparse_coo, expected torch.strided"):
        list(load({"x": torch.zeros(60, 3).to_sparse()}).values())
    (policy,) = load({"x": np.zeros((60, 3))}).values()
    with pytest.raises(ValueError, match="'x' is an array of actions: pass source"):
        policy.act(STATES)
    with pytest.raises(ValueError, match="'x' has actions for 60 states, not for row 79"):
        policy.act(STATES, SOURCE)


def test_nan_in_an_array_matters_only_where_it_is_read():
    actions = np.zeros((100, 3))
    actions[0] = np.nan
    policies = list(load({"x": actions}).values())
    assert collect(policies, STATES, SOURCE, Layout("action", 3, 3)).shape == (1, U, 3)
    actions[3, 1] = np.inf
    with pytest.raises(ValueError, match="policy 'x' returned inf at state row 3"):
        collect(policies, STATES, SOURCE, Layout("action", 3, 3))
