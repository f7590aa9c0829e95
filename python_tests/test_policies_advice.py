"""Every refusal that names an option: the advice is applied to the very file, which then acts as expected."""

import re
import warnings

import numpy as np
import pytest
import torch
from test_reader_networks import DA, DS, REFUSED, expanded
from torch import nn

from sopr_fast.inputs.policies import load

STATES = torch.randn(60, DS, generator=torch.Generator().manual_seed(0)) * 2
NET = nn.Sequential(nn.Linear(DS, 4), nn.ReLU(), nn.Linear(4, DA))
SQUASHED, TRUST = {"activation": "relu", "squash": "tanh"}, {"trust": True}
RAN = r"names \S+; only arrays, .*; trust=True \(--trust\) opens it as code"
LETS = r".*; trust=True \(--trust\) lets"


class Settings:
    """An object next to weights."""


class RunningMeanStd:
    """Statistics as baselines keeps them."""

    mean, var = np.arange(DS) / 2.0, np.arange(1.0, DS + 1)

    def __init__(self):
        vars(self).update(mean=self.mean, var=self.var, count=9)


def standardised(states):
    return NET(((states.double() - RunningMeanStd.mean) / np.sqrt(RunningMeanStd.var + 1e-8)).float())


def script(path):
    torch.jit.script(NET).save(path)


def export(path):
    torch.export.save(torch.export.export(NET, (torch.zeros(8, DS),)), path)


def write_onnx(path):
    for library in ("onnx", "onnxruntime"):
        pytest.importorskip(library)
    torch.onnx.export(NET, (torch.zeros(7, DS),), path, dynamo=False, dynamic_axes={"states": {0: "n"}},
                      input_names=["states"], output_names=["out"])  # fmt: skip


def pickled(content):
    return lambda path: torch.save(content, path)


FILES = {  # file → what writes it, given options, message, advised options, the actions that they then give
    "module.pt": (pickled(NET), {}, RAN, TRUST, NET),
    "modules.pt": (
        pickled({"actor": NET, "critic": nn.Linear(1, 1)}),
        SQUASHED,
        RAN,
        {**TRUST, **SQUASHED},
        lambda s: NET(s).tanh(),
    ),
    "values.pt": (pickled(NET), {"head": "values"}, RAN, {**TRUST, "head": "values"}, lambda s: NET(s).argmax(1)),
    "settings.pt": (
        pickled({"actor": NET.state_dict(), "settings": Settings()}),
        SQUASHED,
        RAN,
        {**TRUST, **SQUASHED},
        lambda s: NET(s).tanh(),
    ),
    **{
        f"statistics.{suffix}": (
            pickled(content),
            TRUST,
            "does not say its activation and head and squash: pass activation=…",
            {**TRUST, "activation": "relu", "squash": "none", "head": "action"},
            standardised,
        )
        for suffix, content in (
            ("pt", [NET, RunningMeanStd()]),
            ("pkl", (NET, RunningMeanStd())),
            ("pth", {"actor": NET, "obs_rms": RunningMeanStd()}),
        )
    },
    "net.pt": (script, {}, r"a TorchScript program is code: read only with trust=True \(--trust\)", TRUST, NET),
    "net.pt2": (export, {}, r"an exported torch program is code: read only with trust=True", TRUST, NET),
    "net.onnx": (
        write_onnx,
        {"action_count": DA},
        "not probabilities, .* for a file, pass head='logits' or head='values'",
        {"action_count": DA, "head": "values"},
        lambda s: NET(s).argmax(1),
    ),
    "deviations.onnx": (write_onnx, {"stochastic": True}, "not known: load it without stochastic", {}, NET),
    "indices.npy": (
        lambda path: np.save(path, np.arange(60) % 3),
        {},
        r"integer actions: load the policies by sopr_fast\.load_policies\(…, action_count=N\)",
        {"action_count": 3},
        lambda s: torch.arange(60) % 3,
    ),
}


def acted(path, options):
    (policy,) = load(path, **options).values()
    output = policy.output(STATES, torch.arange(60))
    return output.mean.argmax(1) if output.kind == "discrete" else output.mean


def check(path, given, message, advised, expected=None):
    with pytest.raises(ValueError, match=message) as caught:
        acted(path, given)
    assert given is TRUST or "trust" in advised or "trust" not in str(caught.value)
    actions = acted(path, advised)
    if expected is not None:
        np.testing.assert_allclose(actions, torch.as_tensor(expected(STATES)).detach(), atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_files_of_any_library(tmp_path, name):
    write, *case = FILES[name]
    write(tmp_path / name)
    check(tmp_path / name, *case)


@pytest.mark.parametrize("content, given, message, advised", REFUSED.values(), ids=REFUSED)
def test_state_dicts(tmp_path, content, given, message, advised):
    path = tmp_path / "net.pt"
    torch.save(expanded(content), path)
    if advised is None:
        with pytest.raises(ValueError, match=re.escape(message)):
            load(path, **given)
    else:
        check(path, given, re.escape(message), advised)


with warnings.catch_warnings(action="ignore"):
    sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    contrib = pytest.importorskip("sb3_contrib", reason="needs the extra [sb3]")
    d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra [d3rlpy]")
from d3rlpy.models import VectorEncoderFactory  # noqa: E402
from gymnasium import Env, spaces  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

PIXELS = spaces.Box(0, 255, (1, 36, 36), np.uint8)


class Still(Env):
    """An environment that makes spaces known."""

    def __init__(self, observations=None, actions=None):
        self.observation_space = observations or spaces.Box(-9, 9, (DS,), np.float32)
        self.action_space = actions or spaces.Box(np.float32([-2, -1, 0]), np.float32([1, 3, 0.5]))


class Halved(VecNormalize):
    """Normalisation by a user's class."""

    def normalize_obs(self, obs):
        return super().normalize_obs(obs) / 2


class Scaled(BaseFeaturesExtractor):
    """Features without parameters."""

    def __init__(self, observation_space):
        super().__init__(observation_space, DS)

    def forward(self, observations):
        return observations / 2


def extractor(kind):
    return {"policy_kwargs": {"features_extractor_class": kind}}


MODELS = {  # … of Stable-Baselines3: algorithm, its options, given options, message
    "crossq": (contrib.CrossQ, {}, {}, f"a policy of class sb3_contrib.crossq.policies.CrossQPolicy{LETS}"),
    "features": (sb3.PPO, extractor(Scaled), {}, f"extracts features{LETS}"),
    "activation": (sb3.PPO, {"policy_kwargs": {"activation_fn": nn.Hardswish}}, {}, f"its activation is <class{LETS}"),
    "images": (sb3.PPO, {"policy": "CnnPolicy", "env": Still(PIXELS)}, {}, rf"images of shape \(1, 36, 36\){LETS}"),
    "statistics": (
        sb3.PPO,
        {"env": Halved(DummyVecEnv([Still]), clip_obs=1.5)},
        {},
        rf"statistics in vecnormalize\.pkl: its pickle names \S*Halved;{LETS}",
    ),
    "a count": (sb3.SAC, {}, {"action_count": 4}, r"its actions are continuous, but action_count=4: leave it out"),
    "another count": (
        sb3.PPO,
        {"env": "CartPole-v1"},
        {"action_count": 4},
        "it has 2 discrete actions, but action_count=4: pass 2",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_stable_baselines3(tmp_path, name):
    kind, options, given, message = MODELS[name]
    model = kind(**{"policy": "MlpPolicy", "env": Still(), "device": "cpu", "seed": 0} | options)
    model.save(tmp_path / "model.zip")
    env, shape = model.get_vec_normalize_env(), model.observation_space.shape
    if env is not None:
        env.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(ValueError, match=rf"model\.zip: .*{message}"):
        load(tmp_path, **given)
    states = np.random.default_rng(0).random((9, np.prod(shape)), np.float32) * 9
    seen = states.reshape(9, *shape) if env is None else env.normalize_obs(states)
    expected = model.predict(seen, deterministic=True)[0]
    for source in (tmp_path, {"model": model}):
        policy = load(source, **({} if given else TRUST))["model"]
        np.testing.assert_allclose(policy(states), expected, atol=1e-5)
    if not given:
        with pytest.raises(ValueError, match="acts by its means: load it without stochastic"):
            load(tmp_path, stochastic=True, **TRUST)


OTHERS = {  # … of d3rlpy
    "BEAR": ({}, (DS,), f"predict of bear uses more than one network{LETS}"),
    "CRR": ({}, (DS,), f"predict of crr uses more than one network{LETS}"),
    "TD3": ({"actor_encoder_factory": VectorEncoderFactory([8], use_layer_norm=True)}, (DS,), "with use_layer_norm"),
    "DQN": ({"n_critics": 2}, (DS,), f"dqn with several or distributional critics{LETS}"),
    "DiscreteBC": ({}, (1, 84, 84), rf"it reads observations of shape \(1, 84, 84\){LETS}"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_models_of_d3rlpy(tmp_path, kind):
    options, shape, message = OTHERS[kind]
    model = getattr(d3rlpy.algos, f"{kind}Config")(**options).create(device="cpu")
    model.create_impl(shape, DA)
    model.save(str(tmp_path / "model.d3"))
    with pytest.raises(ValueError, match=rf"model\.d3: .*{message}"):
        load(tmp_path)
    states = np.random.default_rng(0).random((9, *shape), np.float32)
    with pytest.raises(ValueError, match="acts by its means: load it without stochastic"):
        load(tmp_path, trust=True, stochastic=True)
    for source in (tmp_path, {"model": model}):
        actions = load(source, trust=True)["model"](states.reshape(9, -1))
        if kind in ("BEAR", "CRR"):  # they draw a hundred actions for each
            assert actions.shape == (9, DA)
        else:
            np.testing.assert_allclose(actions, model.predict(states), atol=1e-6)
