"""Policies next to a log: one check for every method and every way to pass a log, and facts about both."""

import warnings

import numpy as np
import pytest
import torch
from support.estimators import acting
from support.problems import transitions
from torch import nn

import sopr_fast
from sopr_fast import estimators, example
from sopr_fast.inputs.policies import Actor, probe
from sopr_fast.inputs.policies import load_policies as load
from sopr_fast.inputs.policies.actor import Standardisation

DS, DA, ROWS = 4, 3, 60
RANDOM = np.random.default_rng(0)
STATES = RANDOM.normal(size=(ROWS, DS)).astype(np.float32)
ARRAYS = {"observations": STATES, "actions": RANDOM.uniform(-1, 1, (ROWS, DA)), "rewards": np.ones(ROWS)}
ARRAYS |= {"terminals": np.arange(ROWS) % 20 == 19, "timeouts": np.zeros(ROWS, bool)}
WEIGHTS = RANDOM.normal(size=(6, DS, 2 * DA))
WIDE = {f"p{i}": (lambda states, i=i: np.tanh(states @ WEIGHTS[i])) for i in range(6)}
INDICES = {f"p{i}": (lambda states, i=i: (states @ WEIGHTS[i]).argmax(1)) for i in range(6)}
RETURNS = {f"p{i}": float(i) for i in range(6)}
SMALL = {"width": 8, "low_layers": 1, "high_layers": 1, "high_heads": 2, "subset_size": 32, "clusters": 4}
CONFIG = sopr_fast.Config(**SMALL, subsets=2, steps=2)
FAST = {"updates": 4, "hidden": (8,), "batch_size": 16}


def supervised(method):
    return lambda policies, log: method.estimate(policies, log, known=policies, returns=RETURNS)


METHODS = {
    "FQE": lambda policies, log: estimators.FQE(**FAST).estimate(policies, log),
    "weighting": lambda policies, log: estimators.ImportanceWeighting().estimate(policies, log),
    "simulator": lambda policies, log: estimators.Simulator(updates=4, hidden=(8,)).estimate(policies, log),
    "nearest": supervised(estimators.NearestPolicy()),
    "process": supervised(estimators.GaussianProcess()),
    "SOPR": supervised(estimators.SOPR(CONFIG)),
    "fit": lambda policies, log: sopr_fast.fit(policies, log, RETURNS, config=CONFIG),
    "select": lambda policies, log: sopr_fast.select(policies, log, RETURNS),
    "evaluate": lambda policies, log: sopr_fast.evaluate(policies, log, RETURNS, methods=["NearestPolicy"], cv=2),
}
LOGS = {  # how a log is passed, by its arrays
    "dictionary": lambda arrays, _: arrays,
    "loaded": lambda arrays, _: sopr_fast.load_log(arrays),
    "states of a dictionary": lambda arrays, _: {key: arrays[key] for key in ("observations", "actions")},
    "path": lambda arrays, folder: np.savez(folder / "log.npz", **arrays) or folder / "log.npz",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", LOGS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_refuses_policies_that_do_not_fit_the_log(tmp_path, method, way):
    learns_rewards = method in ("FQE", "weighting", "simulator")
    if way == "states of a dictionary" and learns_rewards:
        pytest.skip("needs rewards")
    with pytest.raises(ValueError, match=r"have 3 columns, .* 'p0' need 6 columns: .*distributions\.Normal\(mean"):
        METHODS[method](WIDE, LOGS[way](ARRAYS, tmp_path))
    labels = ARRAYS | {"actions": np.arange(ROWS) % 6 + 1}
    with pytest.raises(ValueError, match=r"action 6.* at row 5 is not an index from 0 to 5: .*from 1, subtract 1 "):
        METHODS[method](load(INDICES, action_count=6), LOGS[way](labels, tmp_path))
    halves = ARRAYS | {"actions": np.arange(ROWS) % 6 / 2}
    with pytest.raises(ValueError, match=r"action 0\.5 at row 1 is not an index from 0 to 5"):
        METHODS[method](load(INDICES, action_count=6), LOGS[way](halves, tmp_path))
    if method == "evaluate":
        METHODS[method](load(INDICES, action_count=6), LOGS[way](labels | {"actions": np.arange(ROWS) % 6}, tmp_path))


def test_a_log_of_another_width_names_the_policies_and_their_widths():
    policies = [Actor(name, [(torch.zeros(DA, n), torch.zeros(DA))]) for name, n in (("a", 5), ("b", 5), ("c", 4))]
    message = "have 4 columns, but 2 of 3 policies read another number: a reads 5, b reads 5; if the log is"
    with pytest.raises(ValueError, match=message):
        probe(policies, torch.zeros(20, 4), torch.arange(20))
    with pytest.raises(ValueError, match="the log's states have 1 column, but 3 of 3 policies"):
        probe(policies, torch.zeros(20, 1), torch.arange(20))


RANGES = "logged actions and those of the policies have other ranges, column 0: "
LOGGED = {  # the log's actions of Pendulum, changed → what is said of them
    "as they are": (lambda a: a, None),
    "moved a little": (lambda a: a + 0.5, None),
    "doubled": (lambda a: 2 * a, f"{RANGES}-4 to 3.99 and -1.93 to 1.97: if the units differ, scale the logged"),
    "halved": (lambda a: a / 2, f"{RANGES}-1 to 0.998 and -1.93 to "),
    "moved": (lambda a: a + 2.2, f"{RANGES}0.2"),
    "wider by a half": (lambda a: 1.6 * a, None),
    "from 0 to 1": (lambda a: (a + 2) / 4, f"{RANGES}0.000244 to 0.999 and "),
    "constant": (lambda a: 0 * a, RANGES),
}


@pytest.mark.parametrize("change, message", LOGGED.values(), ids=LOGGED)
def test_ranges_of_policies_that_leave_the_logged_one_by_half_or_fill_half_of_it_are_facts(change, message):
    policies, logged, _ = example.pendulum()
    with warnings.catch_warnings(action="ignore"):
        found = acting(policies, logged | {"actions": change(logged["actions"])}).log.facts
    assert [str(message) in fact for fact in found if fact.startswith(RANGES[:20])] == [True] * (message is not None)


def test_states_that_a_module_standardises_again_are_a_fact():
    """No statistics are known of it: what shows is that no policy acts as the log's."""
    mean, std = np.array([4.0, -3.0, 0.0, 1.0], np.float32), np.array([2.0, 1.0, 0.5, 3.0], np.float32)
    policy = {"p0": lambda states: np.tanh((states - mean) / std @ WEIGHTS[0, :, :DA])}
    raw = STATES * std + mean
    logged = ARRAYS | {"actions": policy["p0"](raw) + RANDOM.normal(size=(ROWS, DA)) / 9}
    for states, said in ((raw, 0), (STATES, 1)):
        found = acting(policy, logged | {"observations": states}).log.facts
        again = [fact for fact in found if "as far from the logged actions as their mean is" in fact]
        assert len(again) == said and all("'p0'" in fact and "states are standardised twice" in fact for fact in again)


def test_statistics_and_labels_are_facts():
    layers = [(torch.zeros(DA, DS), torch.zeros(DA))]
    log = sopr_fast.load_log(ARRAYS | {"actions": np.zeros((ROWS, DA))})
    for mean, said in ((0.0, []), (20.0, ["'a' standardises state column 1 by 20 ± 1, in the log it is -"])):
        statistics = Standardisation(torch.tensor([0.0, mean, 0.0, 0.0]), torch.ones(DS))
        found = acting({"a": Actor("a", layers, standardisation=statistics)}, log).log.facts
        assert len(found) == len(said) and all(text in fact for text, fact in zip(said, found, strict=True))
    numbers = ARRAYS | {"observations": np.arange(ROWS)[:, None] % 7, "actions": np.arange(ROWS) % 3 + 1}
    found = acting(load({"a": lambda s: np.ones(len(s), int)}, action_count=4), numbers).log.facts
    assert "one column of 7 whole numbers: if they are labels, give them one-hot" in found[0]
    assert "no logged action is 0, but all from 1 to 3 occur: if they are numbered from 1, subtract 1" in found[1]


def test_values_of_actions_next_to_a_one_hot_log_are_a_fact_of_results():
    chosen = np.arange(ROWS) % 4
    logged = transitions(STATES, np.eye(4)[chosen], np.ones(ROWS), terminals=np.arange(ROWS) % 20 == 19)
    net = nn.Linear(DS, 4)
    with warnings.catch_warnings(action="ignore"):
        estimates = estimators.FQE(**FAST).estimate({"q": net}, logged)
    (note,) = (note for note in estimates.notes if "one-hot" in note)
    assert "are one-hot, those of the policies are not" in note and "pass action_count=4" in note
    assert "one-hot" in str(estimates) and note in estimates.to_dict()["notes"]
    advised = load({"q": lambda states: net(torch.from_numpy(states)).argmax(1)}, action_count=4)
    assert acting(advised, logged).log.facts == []
