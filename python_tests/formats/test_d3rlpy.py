"""Every algorithm of d3rlpy acts as its `predict`, from its file and in memory."""

import numpy as np
import pytest
import torch
from support.needs import needs

from sopr_fast.inputs.policies import Actor
from sopr_fast.inputs.policies import load_policies as load

d3rlpy = needs("d3rlpy")

from d3rlpy.models import QRQFunctionFactory, VectorEncoderFactory  # noqa: E402
from d3rlpy.preprocessing import MinMaxActionScaler, MinMaxObservationScaler, StandardObservationScaler  # noqa: E402

DS, DA = 5, 3
SWISH = VectorEncoderFactory([16, 8], activation="swish", dropout_rate=0.1)
SMALL = VectorEncoderFactory([8])
RANGE = MinMaxActionScaler(minimum=np.array([-2.0, -1, 0]), maximum=np.array([1.0, 3, 0.5]))
STANDARD = StandardObservationScaler(mean=np.arange(DS) / 2, std=np.arange(1, DS + 1) / 2)
MIN_MAX = MinMaxObservationScaler(minimum=-np.arange(1.0, DS + 1), maximum=np.arange(2.0, DS + 2))
SEQUENCES = ("DecisionTransformer", "DiscreteDecisionTransformer", "TACR")
OPTIONS = {
    "SAC": {"actor_encoder_factory": SWISH, "observation_scaler": STANDARD, "action_scaler": RANGE},
    "CQL": {"actor_encoder_factory": SMALL},
    "IQL": {"actor_encoder_factory": SMALL, "observation_scaler": MIN_MAX},
    "TD3": {"actor_encoder_factory": SWISH, "action_scaler": RANGE},
    "NFQ": {"encoder_factory": SMALL, "observation_scaler": STANDARD},
    "DiscreteCQL": {"encoder_factory": SWISH},
    "DiscreteSAC": {"actor_encoder_factory": SMALL, "observation_scaler": STANDARD},
    **{kind: {"context_size": 4} for kind in SEQUENCES},
}
NOT_SAVED = ("Transformer", "TQLearning", "RandomPolicy", "DiscreteRandomPolicy")
ALGORITHMS = [kind for name in dir(d3rlpy.algos) if (kind := name.removesuffix("Config")) not in (name, *NOT_SAVED)]
SAMPLE = ("BEAR", "CRR", "BCQ")  # they draw a hundred actions for each state
WITH_TRUST = (*SAMPLE, "DiscreteBCQ", "PLAS", "PLASWithPerturbation")
STATES = torch.randn(200, DS, generator=torch.Generator().manual_seed(0)) * 2


def make(kind, path, options=None, shape=(DS,)):
    torch.manual_seed(0)
    config = getattr(d3rlpy.algos, f"{kind}Config")
    algorithm = config(**OPTIONS.get(kind, {}) if options is None else options).create("cpu")
    algorithm.create_impl(shape, DA)
    with torch.no_grad():
        for module in vars(algorithm.impl.modules).values():
            for parameter in module.parameters() if isinstance(module, torch.nn.Module) else ():
                parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 0.3))
    algorithm.save(str(path))
    return algorithm


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_acts_as_the_library_does(tmp_path, kind):
    model = make(kind, tmp_path / "model.d3")
    for source, trust in ((tmp_path, kind in WITH_TRUST), ({"model": model}, False)):
        if kind in SEQUENCES:
            with pytest.raises(ValueError, match="array of its actions in every logged state"):
                load(source)
            continue
        policy = load(source, trust=trust)["model"]
        assert source != tmp_path or (type(policy) is Actor) == (not trust)
        torch.manual_seed(0)
        expected = model.predict(STATES.numpy())
        torch.manual_seed(0)
        actions = policy.predict(STATES)[0]
        if kind in SAMPLE:
            assert actions.shape == expected.shape
        else:
            np.testing.assert_allclose(actions, expected, atol=1e-4, rtol=1e-4)


LETS = r"; trust=True lets"
REFUSED = {  # … its options, shape of states, message, after whose advice it acts as the library
    "BEAR": ({}, (DS,), f"predict of bear uses more than one network.*{LETS}"),
    "TD3": ({"actor_encoder_factory": VectorEncoderFactory([8], use_layer_norm=True)}, (DS,), "with use_layer_norm"),
    "DQN": ({"n_critics": 2}, (DS,), f"dqn with several or distributional critics{LETS}"),
    "DoubleDQN": ({"q_func_factory": QRQFunctionFactory()}, (DS,), f"double_dqn with several or dis.*{LETS}"),
    "DiscreteBC": ({}, (1, 84, 84), rf"it reads observations of shape \(1, 84, 84\){LETS}"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_needs_trust(tmp_path, kind):
    options, shape, message = REFUSED[kind]
    model = make(kind, tmp_path / "model.d3", options, shape)
    with pytest.raises(ValueError, match=rf"model\.d3: .*{message}"):
        load(tmp_path)
    states = np.random.default_rng(0).random((9, *shape), np.float32)
    for source in (tmp_path, {"model": model}):
        actions = load(source, trust=True)["model"](states.reshape(9, -1))
        if kind not in SAMPLE:
            np.testing.assert_allclose(actions, model.predict(states), atol=1e-6)


def test_exports_by_save_policy(tmp_path):
    algorithm = make("TD3", tmp_path / "policy.d3")
    algorithm.save_policy(str(tmp_path / "policy.pt"))
    policy = load(tmp_path / "policy.pt", trust=True)["policy"]
    np.testing.assert_allclose(policy(STATES), algorithm.predict(STATES.numpy()), atol=1e-5, rtol=1e-5)
