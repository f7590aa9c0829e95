"""Bad policies raise one clear error, before long work starts; the options that it names let the very file act."""

import re

import numpy as np
import pytest
import torch
from torch import distributions as dist
from torch import nn

from sopr_fast.inputs.policies import Actor, ArrayPolicy, Layout, collect, probe
from sopr_fast.inputs.policies import load_policies as load

U, DS, DA = 40, 5, 3
STATES = torch.randn(U, DS, generator=torch.Generator().manual_seed(0))
SOURCE = torch.arange(U) * 2 + 1
ZEROS, NET = torch.zeros, nn.Linear(DS, DA)


def good(states):
    return states[:, :DA]


def fifths(states):
    return dist.Categorical(torch.full((len(states), 5), 0.2))


RETURNS = {  # what a policy returns next to a good one → message
    "fewer columns": (lambda s: s[:, :2], "'x' returned shape (13, 2), expected (13, 3) as policy 'good'"),
    "fewer rows": (lambda s: s[1:, :3], "shape (12, 3), expected (13, action width); a policy gets a batch of states"),
    "complex": (lambda s: good(s) * 1j, "'x' returned a ndarray of complex64, expected an array or tensor"),
    "bools": (lambda s: s[:, 0] > 0, "integer actions: load the policies by sopr_fast.load_policies("),
    "sparse": (lambda s: torch.from_numpy(good(s)).to_sparse(), "'x' returned a Tensor of torch.float32, expected"),
    "pair": (lambda s: (good(s), None), "'x' returned a tuple, expected an array or tensor of actions, such as"),
    "words": (lambda s: np.full(len(s), "left"), "give words as indices of discrete actions, codes[word], with one"),
    "nothing": (lambda s: None, "'x' returned a NoneType"),
    "nan": (lambda s: np.where(s == s[2, 0], np.nan, s)[:, :3], "'x' returned nan at state row 5"),
    "squashed": (lambda s: dist.TransformedDistribution(dist.Normal(torch.tensor(good(s)), 1.0),
        dist.TanhTransform()), "a TransformedDistribution, expected an array or tensor of actions, such as means, or"),
    "discrete": (fifths, "'x' has discrete actions, policy 'good' con"),
    "integers": (lambda s: np.ones(len(s), int), "integer actions: load the policies by sopr_fast.load_policies("),
    "integer matrix": (lambda s: np.ones((len(s), 3), int), "return floats of continuous actions, and of several"),
    "raising": (lambda s: {}["weights"], "policy 'x' raised KeyError on 13 states: 'weights'"),
    "a module in a callable": (lambda s: NET(s), "(policies get a numpy array (N, width) of N states, "),
}  # fmt: skip
DISCRETE = {  # ... with action_count=4
    "index": (lambda s: np.full(len(s), 4), "'x' returned action 4, expected 0 to 3, at state row 1"),
    "logits": (lambda s: s[:, :4], "not probabilities at state row 1; of values or logits, return"),
    "width": (lambda s: s, "returned shape (13, 5), expected (13, 4)"),
    "normal": (lambda s: dist.Normal(torch.tensor(s[:, :4]), 1.0), "'x' returned a normal distribution of actions"),
    "float index": (lambda s: 0 * s[:, 0], "(13,), expected (13, 4); a policy gets"),
}
UNLIKE = {  # ... with the layout of a model
    "fewer than its columns": (lambda s: s[:, :2], Layout("action", 3), "(13, 2), expected (13, 3) as the model"),
    "fewer than its means": (lambda s: s[:, :2], Layout("gaussian", 3), "(13, 2), expected (13, 3) as the model"),
    "continuous": (good, Layout("discrete", 3), "'x' has continuous actions, the model discrete ones"),
    "not continuous": (fifths, Layout("action", 5), "discrete actions, the model con"),
}
WRONG = {name: (policy, None, None, message) for name, (policy, message) in RETURNS.items()}
WRONG |= {name: (policy, 4, None, message) for name, (policy, message) in DISCRETE.items()}
WRONG |= {name: (policy, None, layout, message) for name, (policy, layout, message) in UNLIKE.items()}


@pytest.mark.parametrize("policy, count, layout, message", WRONG.values(), ids=WRONG)
def test_wrong_outputs(policy, count, layout, message):
    calls = []

    def first(states):
        calls.append(len(states))
        is_discrete = count or (layout is not None and layout.kind == "discrete")
        return dist.Categorical(torch.eye(count or 3)[[0] * len(states)]) if is_discrete else states[:, :wanted]

    wanted = DA if layout is None else layout.action_dim
    with pytest.raises((ValueError, RuntimeError), match=re.escape(message)) as caught:
        probe(list(load({"good": first, "x": policy}, action_count=count).values()), STATES, SOURCE, layout)
    assert isinstance(caught.value.__cause__, KeyError) == ("KeyError" in message)
    assert calls == [13]  # no long work before the error


ACTOR, TABLE = Actor("x", [(ZEROS(DA, DS), ZEROS(DA))]), ArrayPolicy("x", np.zeros((60, DA)))
ONE = "policies must be a dict or sequence of policies, not of type "
NO_POLICIES = {
    "nothing": (None, TypeError, f"{ONE}NoneType; put one in a list"),
    "a module": (nn.Sequential(NET), TypeError, ONE),
    "a set": ({good, np.tanh}, TypeError, f"{ONE}set"),
    "a key": ({3: good}, TypeError, "names of policies must be strings, got 3"),
    "a number in it": ([good, 3], TypeError, "policy 'policy-001' is of type int, expected a callable of states"),
    "empty": ([], ValueError, "no policies given"),
    "one name": ([ACTOR, good, ACTOR], ValueError, "2 policies are named 'x': name them in a dict"),
    "a count": ({"x": good}, ValueError, "action_count"),
    "words": ({"x": np.array(["left"])}, ValueError, "'x' holds values of dtype <U4, expected numbers; give words as"),
    "records": ({"x": np.zeros(9, [("a", "f4")])}, ValueError, "'x' holds values of dtype [('a', '<f4')]"),
    "an array's layout": ({"x": ZEROS(60, 3).to_sparse()}, ValueError, "'x' holds values of dtype object"),
}  # fmt: skip


@pytest.mark.parametrize("policies, kind, message", NO_POLICIES.values(), ids=NO_POLICIES)
def test_what_is_no_collection_of_policies(policies, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        load(policies, action_count=1 if message == "action_count" else None)


GAPS = np.array([1.0, np.nan])
CALLS = {
    "a row": (lambda: ACTOR.act(STATES[0]), "policy 'x': states must have shape (N, width), got (5,)"),
    "an array": (lambda: ACTOR(STATES[None]), "states must have shape (N, width), got (1, 40, 5)"),
    "of reset()": (lambda: ACTOR((STATES[0], {})), "states must be an array of numbers, got a tuple"),
    "columns": (lambda: ACTOR.act(ZEROS(2, 4)), "policy 'x' reads states of width 5, got 4"),
    "density": (lambda: ACTOR.output(STATES).log_prob(STATES[:, :DA]), "a deterministic policy: its actions have"),
    "no source": (lambda: TABLE.act(STATES), "'x' is an array of actions: pass source"),
    "a gap": (lambda: load({"x": GAPS})["x"].act(STATES[:1], torch.tensor([1])), "'x' returned nan at state row 1"),
    "rows": (lambda: load([TABLE]).for_log(100), "'x' has actions for 60 states, the data has 100"),
}  # fmt: skip


@pytest.mark.parametrize("call, message", CALLS.values(), ids=CALLS)
def test_calls_that_do_not_fit_the_policy(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_nan_matters_only_where_it_is_read_and_names_the_row_in_the_users_data():
    def late(states):
        return np.where((states == STATES[33].numpy()).all(1, keepdims=True), np.nan, good(states))

    policies = list(load({"x": late}).values())
    with pytest.raises(ValueError, match="policy 'x' returned nan at state row 67"):
        collect(policies, STATES, SOURCE, probe(policies, STATES, SOURCE))
    actions = np.zeros((100, 3))
    actions[0] = np.nan
    policies = list(load({"x": actions}).values())
    assert collect(policies, STATES, SOURCE, Layout("action", 3)).shape == (1, U, 3)
    actions[3, 1] = np.inf
    with pytest.raises(ValueError, match="policy 'x' returned inf at state row 3"):
        collect(policies, STATES, SOURCE, Layout("action", 3))
