"""Every algorithm of d3rlpy, Stable-Baselines3 and sb3-contrib acts as its `predict`, from its file and in memory."""

import contextlib
import warnings

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import load

with warnings.catch_warnings(action="ignore"):
    d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra [d3rlpy]")
    stable_baselines3 = pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    sb3_contrib = pytest.importorskip("sb3_contrib", reason="needs the extra [sb3]")
from gymnasium import Env, spaces

STATES = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
NOT_SAVED = ("Transformer", "TQLearning", "RandomPolicy", "DiscreteRandomPolicy")
ALGOS = [kind for name in dir(d3rlpy.algos) if (kind := name.removesuffix("Config")) not in (name, *NOT_SAVED)]
SAMPLE = ("BEAR", "CRR", "BCQ")
SEQUENCES = ("DecisionTransformer", "DiscreteDecisionTransformer", "TACR")


class Still(Env):
    """An environment that makes spaces known."""

    observation_space = spaces.Box(-3, 3, (4,), np.float32)

    def __init__(self, actions, observations=None):
        self.action_space, self.observation_space = actions, observations or self.observation_space

    def action_masks(self):
        return np.ones(3, bool)


def shaken(module):
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)


def loaded(path):
    """Return the policies of a file, trusted only if needed."""
    try:
        return load(path)
    except ValueError as error:
        if "trust=True" not in str(error):
            raise
        return load(path, trust=True)


@pytest.mark.parametrize("kind", ALGOS)
def test_d3rlpy(tmp_path, kind):
    model = getattr(d3rlpy.algos, f"{kind}Config")(**{"context_size": 4} if kind in SEQUENCES else {}).create("cpu")
    model.create_impl((4,), 3)
    for module in vars(model.impl.modules).values():
        if isinstance(module, torch.nn.Module):
            shaken(module)
    path = tmp_path / "model.d3"
    model.save(str(path))
    for read in (lambda: loaded(path), lambda: list(load({"model": model}).values())):
        if kind in SEQUENCES:
            with pytest.raises(ValueError, match="array of its actions in every logged state"):
                read()
            continue
        policies = read()
        (policy,) = policies.values() if isinstance(policies, dict) else policies
        torch.manual_seed(0)
        expected = model.predict(STATES)
        torch.manual_seed(0)
        actions = policy.predict(STATES)[0]
        if kind in SAMPLE:
            assert actions.shape == expected.shape
        else:
            np.testing.assert_allclose(actions, expected, atol=1e-5)


DISCRETE, BOX = spaces.Discrete(3), spaces.Box(np.array([-2.0, 0, -1], np.float32), np.array([1.0, 3, 1], np.float32))


@pytest.mark.parametrize("actions", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize(
    "kind",
    [
        k
        for lib in (stable_baselines3, sb3_contrib)
        for k in vars(lib).values()
        if isinstance(k, type) and hasattr(k, "predict")
    ],
)
def test_stable_baselines3(tmp_path, kind, actions):
    policy_class = "MlpLstmPolicy" if kind.__name__ == "RecurrentPPO" else "MlpPolicy"
    try:
        model = kind(policy_class, Still(actions), device="cpu", seed=0)
    except (AssertionError, ValueError):
        pytest.skip(f"{kind.__name__} has no such actions")
    shaken(model.policy)
    path = tmp_path / "model.zip"
    model.save(path)
    reads = (lambda: loaded(path).values(), lambda: list(load({"model": model}).values()))
    for read in reads:
        if kind.__name__ == "RecurrentPPO":
            with pytest.raises(ValueError, match="array of its actions in every logged state"):
                read()
            continue
        warns = (
            pytest.warns(UserWarning, match="'model'.*mask")
            if "Maskable" in kind.__name__
            else contextlib.nullcontext()
        )
        with warns:
            (policy,) = read()
        np.testing.assert_allclose(policy.predict(STATES)[0], model.predict(STATES, deterministic=True)[0], atol=1e-5)


MATRIX = spaces.Box(-1, 1, (2, 2), np.float32)


@pytest.mark.parametrize("kind, actions", [("PPO", MATRIX), ("SAC", MATRIX), ("DQN", DISCRETE)])
def test_matrices_are_rows(tmp_path, kind, actions):
    model = getattr(stable_baselines3, kind)("MlpPolicy", Still(actions, MATRIX), device="cpu")
    shaken(model.policy)
    model.save(tmp_path / "model.zip")
    expected = model.predict(STATES.reshape(-1, 2, 2), deterministic=True)[0]
    for source in (tmp_path, {"model": model}, {"model": model.policy}):
        (policy,) = load(source).values()
        np.testing.assert_allclose(policy(STATES), expected.reshape(policy(STATES).shape), atol=1e-5)


UNUSUAL = {  # spaces → what the refusal says
    "discrete states": (spaces.Discrete(16), DISCRETE, "observations of a Discrete space"),
    "named states": (spaces.Dict({"a": Still.observation_space}), DISCRETE, "observations of a Dict space"),
    "several actions": (Still.observation_space, spaces.MultiDiscrete([2, 3]), "several actions at once"),
    "switches": (Still.observation_space, spaces.MultiBinary(3), "several actions at once"),
}


@pytest.mark.parametrize("observations, actions, message", UNUSUAL.values(), ids=UNUSUAL)
def test_more_than_a_row_of_numbers_needs_a_callable(tmp_path, observations, actions, message):
    policy_class = "MultiInputPolicy" if isinstance(observations, spaces.Dict) else "MlpPolicy"
    model = stable_baselines3.PPO(policy_class, Still(actions, observations), device="cpu")
    model.save(tmp_path / "model.zip")
    for read in (
        lambda: load(tmp_path),
        lambda: load(tmp_path, trust=True),
        lambda: load({"model": model}),
        lambda: load({"model": model.policy}),
    ):
        with pytest.raises(ValueError, match=rf"model.*{message}.*pass a callable") as caught:
            read()
        assert "trust" not in str(caught.value)
