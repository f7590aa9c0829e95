"""Models of d3rlpy act as their `predict`, from files that are trusted and in memory."""

import numpy as np
import pytest
import torch
from support.needs import needs

from sopr_fast.inputs.policies import load_policies as load

d3rlpy = needs("d3rlpy")

from d3rlpy.models import VectorEncoderFactory  # noqa: E402
from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler  # noqa: E402

DS, DA = 5, 3
SMALL = VectorEncoderFactory([8])
RANGE = MinMaxActionScaler(minimum=np.array([-2.0, -1, 0]), maximum=np.array([1.0, 3, 0.5]))
STANDARD = StandardObservationScaler(mean=np.arange(DS) / 2, std=np.arange(1, DS + 1) / 2)
MODELS = {  # algorithm → its options, shape of its states
    "TD3": ({"actor_encoder_factory": SMALL, "observation_scaler": STANDARD, "action_scaler": RANGE}, (DS,)),
    "DQN": ({"encoder_factory": SMALL, "observation_scaler": STANDARD}, (DS,)),
    "DiscreteBCQ": ({"encoder_factory": SMALL}, (DS,)),
    "DiscreteBC": ({}, (1, 84, 84)),
}
SEQUENCES = ("DecisionTransformer", "DiscreteDecisionTransformer", "TACR")


def make(kind, path, options, shape):
    torch.manual_seed(0)
    algorithm = getattr(d3rlpy.algos, f"{kind}Config")(**options).create("cpu")
    algorithm.create_impl(shape, DA)
    algorithm.save(str(path))
    return algorithm


@pytest.mark.parametrize("kind", MODELS)
def test_acts_as_the_library_does_if_trusted(tmp_path, kind):
    options, shape = MODELS[kind]
    model = make(kind, tmp_path / "model.d3", options, shape)
    states = np.random.default_rng(0).normal(size=(20, *shape)).astype(np.float32)
    with pytest.raises(ValueError, match=r"model\.d3: a pickle, which is code: trust=True lets d3rlpy open it"):
        load(tmp_path)
    for source in (tmp_path, {"model": model}):
        actions = load(source, trust=True)["model"](states.reshape(20, -1))
        np.testing.assert_allclose(actions, model.predict(states), atol=1e-6)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_models_of_sequences_are_refused(tmp_path, kind):
    model = make(kind, tmp_path / "model.d3", {"context_size": 4}, (DS,))
    for source in (tmp_path, {"model": model}):
        with pytest.raises(ValueError, match="array of its actions in every logged state$"):
            load(source)


def test_exports_by_save_policy(tmp_path):
    algorithm = make("TD3", tmp_path / "policy.d3", {}, (DS,))
    algorithm.save_policy(str(tmp_path / "policy.pt"))
    states = torch.randn(20, DS)
    policy = load(tmp_path / "policy.pt", trust=True)["policy"]
    np.testing.assert_allclose(policy(states), algorithm.predict(states.numpy()), atol=1e-5, rtol=1e-5)
