"""One order of arguments: policies, then the log or its states, then returns; everything else by keyword."""

import inspect
import re
import sys

import numpy as np
import pytest
from support.problems import transitions

import sopr_fast
from sopr_fast.estimators import Estimator

ORDERS = {
    sopr_fast.fit: ["policies", "states", "returns"],
    sopr_fast.rank: ["policies", "states"],
    sopr_fast.Ranker.rank: ["self", "policies", "states"],
    sopr_fast.evaluate: ["policies", "log", "returns"],
    sopr_fast.select: ["policies", "log", "returns"],
    Estimator.estimate: ["self", "policies", "log"],
}
STATES, POLICIES = np.ones((9, 2)), {"a": np.tanh, "b": np.sin}
TRANSITIONS = transitions(STATES, STATES, np.ones(9), STATES)


@pytest.mark.parametrize(("function", "order"), ORDERS.items(), ids=lambda part: getattr(part, "__qualname__", ""))
def test_arguments_have_one_order(function, order):
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    assert [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY] == order


@pytest.mark.parametrize("function", ORDERS, ids=lambda function: function.__qualname__)
def test_signatures_name_public_classes_of_the_package_alone(function):
    words = re.findall(r"\w+", str(inspect.signature(function)))
    named = [vars(sys.modules[function.__module__]).get(word) for word in words]
    classes = {each.__name__ for each in named if isinstance(each, type) and each.__module__.startswith("sopr_fast")}
    assert classes <= {*sopr_fast.__all__, *sopr_fast.estimators.__all__}


@pytest.mark.parametrize("log", [STATES, TRANSITIONS, {"observations": STATES, "actions": STATES}], ids=type)
@pytest.mark.parametrize("function", [sopr_fast.fit, sopr_fast.evaluate, sopr_fast.select])
def test_a_log_in_the_place_of_policies_is_refused(function, log):
    with pytest.raises(TypeError, match="policies come first, then the log, then returns"):
        function(log, POLICIES, {"a": 1, "b": 2})
    found = (
        "there are 9 returns .* after the log|returns are a Transitions: .* and log|return of policy 'observations' is"
    )
    with pytest.raises((TypeError, ValueError), match=found):
        function(POLICIES, {"a": 1, "b": 2}, log)
