"""Models that Stable-Baselines3 and sb3-contrib saved act as they do in those libraries."""

import base64
import io
import json
import os
import pickle
import re
import sys
import zipfile

import numpy as np
import pytest
import torch
from test_reader_weights import Runs
from torch import distributions as dist
from torch import nn

from sopr_fast.inputs.policies import Actor, load

sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
contrib = pytest.importorskip("sb3_contrib", reason="needs the extra [sb3]")
gymnasium = pytest.importorskip("gymnasium")

from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback  # noqa: E402
from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.common.torch_layers import FlattenExtractor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

DS = 5
LOW, HIGH = np.array([-2, -1, 0], np.float32), np.array([1, 3, 0.5], np.float32)


class Still(gymnasium.Env):
    """Random observations, no rewards."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (DS,), np.float32)

    def __init__(self, discrete=False):
        self.action_space = gymnasium.spaces.Discrete(4) if discrete else gymnasium.spaces.Box(LOW, HIGH)
        self.random = np.random.default_rng(0)

    def reset(self, seed=None, options=None):
        return np.zeros(DS, np.float32), {}

    def step(self, action):
        return self.random.normal(3, 2, DS).astype(np.float32), 0.0, False, False, {}


class Short(Still):
    """Episodes of three steps."""

    def reset(self, seed=None, options=None):
        self.left = 3
        return super().reset(seed, options)

    def step(self, action):
        self.left -= 1
        observation, *_ = super().step(action)
        return observation, 0.0, False, self.left == 0, {}


class Masked(Still):
    """Every action is allowed."""

    def __init__(self):
        super().__init__(discrete=True)

    def action_masks(self):
        return np.ones(4, bool)


class Remembering(ActorCriticPolicy):
    """A policy of a user, with the attribute by which sb3-contrib tells the shape of a hidden state."""

    lstm_hidden_state_shape = 1, 1, 8


SMALL = {"net_arch": [16, 8]}
ALGORITHMS = {
    "ppo": (sb3.PPO, {}),
    "ppo elu": (sb3.PPO, {"policy_kwargs": {"activation_fn": nn.ELU, "net_arch": {"pi": [8], "vf": [4]}}}),
    "ppo sde": (sb3.PPO, {"use_sde": True}),
    "ppo squashed sde": (sb3.PPO, {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
    "ppo discrete": (sb3.PPO, {"discrete": True}),
    "a2c": (sb3.A2C, {}),
    "a2c discrete": (sb3.A2C, {"discrete": True, "policy_kwargs": {"activation_fn": nn.LeakyReLU}}),
    "maskable ppo": (contrib.MaskablePPO, {"env": Masked(), "discrete": True}),
    "trpo": (contrib.TRPO, {}),
    "sac": (sb3.SAC, {}),
    "sac flatten": (sb3.SAC, {"policy_kwargs": {"features_extractor_class": FlattenExtractor, **SMALL}}),
    "sac sde": (sb3.SAC, {"use_sde": True}),
    "sac sde of one layer": (sb3.SAC, {"use_sde": True, "policy_kwargs": {"net_arch": {"pi": [], "qf": [8]}}}),
    "sac sde unclipped": (sb3.SAC, {"use_sde": True, "policy_kwargs": {"clip_mean": 0.0, **SMALL}}),
    "td3": (sb3.TD3, {}),
    "ddpg": (sb3.DDPG, {}),
    "tqc": (contrib.TQC, {"policy_kwargs": {"activation_fn": nn.SiLU, **SMALL}}),
    "ars": (contrib.ARS, {}),
    "ars linear": (contrib.ARS, {"policy": "LinearPolicy", "policy_kwargs": {}}),
    "ars discrete": (contrib.ARS, {"discrete": True}),
    "dqn": (sb3.DQN, {"discrete": True}),
    "qrdqn": (contrib.QRDQN, {"discrete": True, "policy_kwargs": {"n_quantiles": 7, **SMALL}}),
}


def make(algorithm, env=None, discrete=False, policy="MlpPolicy", policy_kwargs=SMALL, **options):
    torch.manual_seed(0)
    model = algorithm(
        policy, env or Still(discrete), device="cpu", policy_kwargs=dict(policy_kwargs), seed=0, **options
    )
    with torch.no_grad():
        for parameter in model.policy.parameters():  # large, so that bounds, squashing and clipping matter
            parameter.copy_(torch.randn_like(parameter) * (0.7 if parameter.dim() > 1 else 0.3))
    return model


def predicted(model, states):
    actions = model.predict(states.numpy(), deterministic=True)[0]
    return torch.from_numpy(np.eye(4, dtype=np.float32)[actions] if actions.ndim == 1 else actions)


@pytest.fixture
def states(generator):
    return torch.randn(1500, DS, generator=generator) * 3


@pytest.mark.filterwarnings("ignore:.*masks:UserWarning")
@pytest.mark.parametrize("algorithm, options", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_acts_as_the_library_does(tmp_path, states, algorithm, options):
    model = make(algorithm, **options)
    model.save(tmp_path / "model.zip")
    (policy,) = load(tmp_path / "model.zip").values()
    assert type(policy) is Actor and policy.name == "model"
    torch.testing.assert_close(policy.act(states), predicted(model, states), atol=1e-5, rtol=1e-5)
    (opened,) = load(tmp_path / "model.zip", trust=True).values()
    assert type(opened) is Actor  # no library where our own reader will do


def test_a_checkpoint_has_the_statistics_of_its_step(tmp_path, states):
    env = VecNormalize(DummyVecEnv([Still]), clip_obs=1.5)
    model = make(sb3.PPO, env)
    env.reset()
    for _ in range(50):
        env.step(env.action_space.sample()[None])
    model.save(tmp_path / "rl_model_2000_steps.zip")
    env.save(str(tmp_path / "rl_model_vecnormalize_2000_steps.pkl"))
    (policy,) = load(tmp_path).values()
    seen = torch.from_numpy(env.normalize_obs(states.numpy()).astype(np.float32))
    assert (seen.abs() == 1.5).any()
    torch.testing.assert_close(policy.act(states), predicted(model, seen), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_folder_written_by_callbacks(tmp_path):
    env = VecNormalize(DummyVecEnv([Short]))
    every = {"save_replay_buffer": True, "save_vecnormalize": True}
    evaluation = EvalCallback(
        VecNormalize(DummyVecEnv([Short]), training=False),
        eval_freq=10,
        n_eval_episodes=1,
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        verbose=0,
    )
    model = sb3.SAC("MlpPolicy", env, policy_kwargs=dict(SMALL), learning_starts=100, device="cpu")
    model.learn(20, callback=[CheckpointCallback(10, str(tmp_path), **every), evaluation])
    model.save_replay_buffer(tmp_path / "replay_buffer.pkl")
    assert len(list(tmp_path.iterdir())) == 2 * 3 + 2 + 1
    assert list(load(tmp_path)) == ["best_model", "rl_model_10_steps", "rl_model_20_steps"]


def test_hostile_statistics(tmp_path):
    make(sb3.PPO).save(tmp_path / "model.zip")
    (tmp_path / "vecnormalize.pkl").write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(ValueError, match=r"model\.zip: statistics in vecnormalize\.pkl: its pickle names os\.system"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"vecnormalize\.pkl: its pickle names os\.system"):
        load(tmp_path / "vecnormalize.pkl")


def test_stochastic_ppo_and_sac_have_the_distributions_of_sb3(tmp_path, states, generator):
    for name, algorithm in (("ppo", sb3.PPO), ("sac", sb3.SAC)):
        model = make(algorithm)
        model.save(tmp_path / f"{name}.zip")
        (policy,) = load(tmp_path / f"{name}.zip", stochastic=True).values()
        torch.testing.assert_close(policy.act(states), predicted(model, states), atol=1e-5, rtol=1e-5)
        if name == "ppo":
            theirs = model.policy.get_distribution(states).distribution
            actions = policy.sample(states, generator)
            expected = theirs.log_prob(actions).sum(1).detach()
            torch.testing.assert_close(policy.output(states).std, theirs.stddev.detach(), atol=1e-5, rtol=1e-5)
        else:
            mean, log_std, _ = model.actor.get_action_dist_params(states)
            low, high = torch.from_numpy(LOW), torch.from_numpy(HIGH)
            actions = policy.sample(states, generator)
            unit = (2 * (actions.double() - low) / (high - low) - 1).clamp(-0.99, 0.99)
            actions = (low + (unit + 1) * (high - low) / 2).float()
            before = dist.Normal(mean.double(), log_std.double().exp()).log_prob(unit.atanh())
            slope = (1 - unit**2) * (high - low) / 2  # of the action by what went into tanh
            expected = (before - slope.log()).sum(1).float().detach()
        torch.testing.assert_close(policy.log_prob(states, actions), expected, atol=2e-2, rtol=1e-3)


RECURRENT = "it is recurrent, .* pass an array of its actions in every logged state"


@pytest.mark.parametrize("trust", [False, True])
def test_recurrent_models_are_refused(tmp_path, trust):
    model = make(contrib.RecurrentPPO, policy="MlpLstmPolicy")
    model.save(tmp_path / "model.zip")
    own = sb3.PPO(Remembering, Still(), device="cpu", seed=0)
    own.save(tmp_path / "own.zip")
    files = [tmp_path / "model.zip", tmp_path / "own.zip"] if trust else [tmp_path / "model.zip"]
    for source in (*files, {"model": model}, {"model": model.policy}):
        with pytest.raises(ValueError, match=rf"{RECURRENT}$"):
            load(source, trust=trust)


def test_models_without_torch_are_passed_in_memory(tmp_path, states):
    model = pytest.importorskip("sbx").SAC("MlpPolicy", Still(), seed=0)
    model.save(tmp_path / "model.zip")
    with pytest.raises(ValueError, match=r"model\.zip: a model without torch, .* pass \{name: model\}"):
        load(tmp_path, trust=True)
    expected = model.predict(states.numpy(), deterministic=True)[0]
    np.testing.assert_allclose(
        load({"model": type(model).load(tmp_path / "model.zip")})["model"](states), expected, atol=1e-5
    )


def test_missing_library_is_named(tmp_path, monkeypatch):
    make(contrib.CrossQ).save(tmp_path / "model.zip")
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.save_util", None)
    remedy = "pip install '.[sb3]' in a clone of sopr_fast, or pip install 'sopr_fast[sb3]'"
    with pytest.raises(ImportError, match=re.escape(f"needs stable_baselines3: {remedy}")):
        load(tmp_path / "model.zip", trust=True)


def rewrite(path, member, change):
    """Change one member of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[member] = change(members[member])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def renamed(old, new):
    def change(content):
        weights = torch.load(io.BytesIO(content), weights_only=True)
        changed = io.BytesIO()
        torch.save({re.sub(old, new, key): value for key, value in weights.items()}, changed)
        return changed.getvalue()

    return change


def test_shared_layers_of_older_versions(tmp_path, states):
    model, path = make(sb3.PPO), tmp_path / "model.zip"
    model.save(path)
    rewrite(path, "policy.pth", renamed(r"mlp_extractor\.policy_net\.0", "mlp_extractor.shared_net.0"))
    (policy,) = load(path).values()
    torch.testing.assert_close(policy.act(states), predicted(model, states), atol=1e-5, rtol=1e-5)


def test_unknown_layers_are_refused(tmp_path):
    make(sb3.SAC).save(tmp_path / "model.zip")
    rewrite(tmp_path / "model.zip", "policy.pth", renamed(r"actor\.log_std", "actor.gate"))
    with pytest.raises(ValueError, match=r"no actor that this package reads among .*actor"):
        load(tmp_path / "model.zip")


@pytest.mark.parametrize("key", ["policy_class", "action_space", "observation_space"])
def test_hostile_settings_are_refused_and_not_run(tmp_path, key):
    runs = Runs(os.system, f"touch {tmp_path / 'ran'}")

    def poison(content):
        settings = json.loads(content)
        settings[key][":serialized:"] = base64.b64encode(pickle.dumps(runs)).decode()
        return json.dumps(settings).encode()

    make(sb3.PPO).save(tmp_path / "model.zip")
    rewrite(tmp_path / "model.zip", "data", poison)
    with pytest.raises(ValueError, match=r"model\.zip: its pickle names posix\.system; only arrays"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "key, value",
    [("policy_kwargs", 3), ("action_space", "x"), ("policy_class", None), ("policy_kwargs", {"clip_mean": []})],
)
def test_damaged_settings(tmp_path, key, value):
    make(sb3.SAC, use_sde=True).save(tmp_path / "model.zip")
    rewrite(tmp_path / "model.zip", "data", lambda content: json.dumps({**json.loads(content), key: value}).encode())
    with pytest.raises(ValueError, match=r"model\.zip: "):
        load(tmp_path / "model.zip")


def test_statistics_of_another_width(tmp_path):
    class Wide(Still):
        observation_space = gymnasium.spaces.Box(-1, 1, (DS + 1,), np.float32)

    make(sb3.PPO).save(tmp_path / "model.zip")
    VecNormalize(DummyVecEnv([Wide])).save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(ValueError, match=r"standardisation has shape \(6,\), expected \(5,\)"):
        load(tmp_path)
