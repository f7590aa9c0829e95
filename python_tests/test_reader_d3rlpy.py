"""Policies that d3rlpy saved act as its `predict` does."""

import io
import json
import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from test_reader_weights import Runs

from sopr_fast.inputs.policies import Actor, load

with warnings.catch_warnings(action="ignore"):
    d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra [d3rlpy]")

from d3rlpy.models import VectorEncoderFactory
from d3rlpy.preprocessing import MinMaxActionScaler, MinMaxObservationScaler, StandardObservationScaler

DS, DA = 5, 3
SWISH = VectorEncoderFactory([16, 8], activation="swish", dropout_rate=0.1)
SMALL = VectorEncoderFactory([8])
RANGE = MinMaxActionScaler(minimum=np.array([-2.0, -1, 0]), maximum=np.array([1.0, 3, 0.5]))
STANDARD = StandardObservationScaler(mean=np.arange(DS) / 2, std=np.arange(1, DS + 1) / 2)
MIN_MAX = MinMaxObservationScaler(minimum=-np.arange(1.0, DS + 1), maximum=np.arange(2.0, DS + 2))

ALGORITHMS = {
    "SAC": {"actor_encoder_factory": SWISH, "observation_scaler": STANDARD, "action_scaler": RANGE},
    "CQL": {"actor_encoder_factory": SMALL},
    "IQL": {"actor_encoder_factory": SMALL, "observation_scaler": MIN_MAX},
    "TD3": {"actor_encoder_factory": SWISH, "action_scaler": RANGE},
    "BC": {"encoder_factory": SMALL},
    "NFQ": {"encoder_factory": SMALL, "observation_scaler": STANDARD},
    "DiscreteCQL": {"encoder_factory": SWISH},
    "DiscreteSAC": {"actor_encoder_factory": SMALL, "observation_scaler": STANDARD},
}


def make(kind, options, width=DA):
    torch.manual_seed(0)
    algorithm = getattr(d3rlpy.algos, f"{kind}Config")(**options).create(device="cpu")
    algorithm.create_impl((DS,), width)
    modules = vars(algorithm.impl.modules).values()
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters() if isinstance(module, torch.nn.Module) else ():
                parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 0.3))
    return algorithm


@pytest.fixture
def states(generator):
    return torch.randn(1200, DS, generator=generator) * 2


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_acts_as_the_library_does(tmp_path, states, kind):
    algorithm = make(kind, ALGORITHMS[kind])
    algorithm.save(str(tmp_path / "policy.d3"))
    (policy,) = load(tmp_path / "policy.d3").values()
    assert type(policy) is Actor
    np.testing.assert_allclose(policy(states), algorithm.predict(states.numpy()), atol=1e-5, rtol=1e-5)


def test_stochastic_cql_has_the_distribution_of_d3rlpy(tmp_path, states):
    make("CQL", ALGORITHMS["CQL"]).save(str(tmp_path / "cql.d3"))
    algorithm = d3rlpy.load_learnable(str(tmp_path / "cql.d3"))
    (policy,) = load(tmp_path / "cql.d3", stochastic=True).values()
    output = policy.output(states)
    with torch.no_grad():
        theirs = algorithm.impl.policy(states)
    torch.testing.assert_close(output.mean, theirs.squashed_mu, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.std, theirs.logstd.exp(), atol=1e-5, rtol=1e-4)


def test_exports_by_save_policy(tmp_path, states):
    algorithm = make("TD3", ALGORITHMS["TD3"])
    expected = torch.from_numpy(algorithm.predict(states.numpy())).float()
    algorithm.save_policy(str(tmp_path / "policy.pt"))
    (policy,) = load(tmp_path / "policy.pt", trust=True).values()
    torch.testing.assert_close(policy.act(states), expected, atol=1e-5, rtol=1e-5)


def test_damaged_files(tmp_path):
    path = tmp_path / "policy.d3"
    make("BC", ALGORITHMS["BC"]).save(str(path))
    whole = path.read_bytes()
    for content in (b"", whole[:2000], whole[:-3000], b"\x80\x04}."):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"policy\.d3: .*damaged"):
            load(path)


def test_hostile_file_is_refused_and_not_run(tmp_path):
    runs = Runs(os.system, f"touch {tmp_path / 'ran'}")
    weights = io.BytesIO()
    torch.save({"policy": {"_mu.weight": runs}}, weights)
    config = json.dumps({"config": {"type": "sac", "params": {}}})
    for poisoned in (runs, weights.getvalue()):
        saved = {"config": config, "torch": poisoned}
        (tmp_path / "policy.d3").write_bytes(pickle.dumps(saved))
        with pytest.raises(ValueError, match=r"policy\.d3: its pickle names posix\.system; only arrays"):
            load(tmp_path)
    assert not (tmp_path / "ran").exists()
