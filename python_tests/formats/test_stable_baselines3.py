"""Models of Stable-Baselines3, sb3-contrib and the RL Zoo act as their `predict`, from their files and in memory."""

import base64
import json
import os
import pickle
import re
import warnings
import zipfile

import numpy as np
import pytest
import torch
from support.needs import needs
from support.pickles import Runs
from torch import nn

from sopr_fast.inputs.policies import Actor
from sopr_fast.inputs.policies import load_policies as load

sb3 = needs("stable_baselines3")
contrib = needs("sb3_contrib")
gymnasium = needs("gymnasium")

from gymnasium import spaces  # noqa: E402
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402
from support.old_files import LAYOUTS, make_old, save_old_statistics  # noqa: E402

DS = 5
LOW, HIGH = np.array([-2, -1, 0], np.float32), np.array([1, 3, 0.5], np.float32)
ROW, MATRIX = spaces.Box(-np.inf, np.inf, (DS,), np.float32), spaces.Box(-1, 1, (2, 2), np.float32)
DISCRETE, PIXELS = spaces.Discrete(4), spaces.Box(0, 255, (1, 36, 36), np.uint8)


class Still(gymnasium.Env):
    """Random observations, no rewards, episodes of `length` steps, and every action allowed."""

    def __init__(self, actions=None, observations=ROW, length=0):
        self.observation_space, self.action_space = observations, actions or spaces.Box(LOW, HIGH)
        self.random, self.length = np.random.default_rng(0), length

    def reset(self, seed=None, options=None):
        self.left = self.length
        return np.zeros(DS, np.float32), {}

    def step(self, action):
        self.left -= 1
        return self.random.normal(3, 2, DS).astype(np.float32), 0.0, False, self.left == 0, {}

    def action_masks(self):
        return np.ones(4, bool)


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


SMALL = {"net_arch": [16, 8]}
ALGORITHMS = {
    "ppo": (sb3.PPO, {}),
    "ppo elu": (sb3.PPO, {"policy_kwargs": {"activation_fn": nn.ELU, "net_arch": {"pi": [8], "vf": [4]}}}),
    "ppo sde": (sb3.PPO, {"use_sde": True}),
    "ppo squashed sde": (sb3.PPO, {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
    "ppo discrete": (sb3.PPO, {"actions": DISCRETE}),
    "ppo of matrices": (sb3.PPO, {"actions": MATRIX, "observations": MATRIX}),
    "a2c": (sb3.A2C, {}),
    "a2c discrete": (sb3.A2C, {"actions": DISCRETE, "policy_kwargs": {"activation_fn": nn.LeakyReLU}}),
    "maskable ppo": (contrib.MaskablePPO, {"actions": DISCRETE}),
    "trpo": (contrib.TRPO, {}),
    "trpo discrete": (contrib.TRPO, {"actions": DISCRETE}),
    "sac": (sb3.SAC, {}),
    "sac flatten": (sb3.SAC, {"policy_kwargs": {"features_extractor_class": FlattenExtractor, **SMALL}}),
    "sac of matrices": (sb3.SAC, {"actions": MATRIX, "observations": MATRIX}),
    "sac sde": (sb3.SAC, {"use_sde": True}),
    "sac sde of one layer": (sb3.SAC, {"use_sde": True, "policy_kwargs": {"net_arch": {"pi": [], "qf": [8]}}}),
    "sac sde unclipped": (sb3.SAC, {"use_sde": True, "policy_kwargs": {"clip_mean": 0.0, **SMALL}}),
    "td3": (sb3.TD3, {}),
    "ddpg": (sb3.DDPG, {}),
    "tqc": (contrib.TQC, {"policy_kwargs": {"activation_fn": nn.SiLU, **SMALL}}),
    "ars": (contrib.ARS, {}),
    "ars linear": (contrib.ARS, {"policy": "LinearPolicy", "policy_kwargs": {}}),
    "ars discrete": (contrib.ARS, {"actions": DISCRETE}),
    "dqn": (sb3.DQN, {"actions": DISCRETE}),
    "dqn of matrices": (sb3.DQN, {"actions": DISCRETE, "observations": MATRIX}),
    "qrdqn": (contrib.QRDQN, {"actions": DISCRETE, "policy_kwargs": {"n_quantiles": 7, **SMALL}}),
}


def make(algorithm, env=None, actions=None, observations=ROW, policy="MlpPolicy", policy_kwargs=SMALL, **options):
    torch.manual_seed(0)
    env = env or Still(actions, observations)
    model = algorithm(policy, env, device="cpu", policy_kwargs=dict(policy_kwargs), seed=0, **options)
    with torch.no_grad():
        for parameter in model.policy.parameters():  # large, so that bounds, squashing and clipping matter
            parameter.copy_(torch.randn_like(parameter) * (0.7 if parameter.dim() > 1 else 0.3))
    return model


def saved(folder, algorithm, env=None, **options):
    model = make(algorithm, env, **options)
    model.save(folder / "model.zip")
    return model


def sources(folder, model):
    return (folder, False), (folder, True), ({"model": model}, False), ({"model": model.policy}, False)


def predicted(model, states):
    observations = states.numpy().reshape(-1, *model.observation_space.shape)
    actions = model.predict(observations, deterministic=True)[0]
    return torch.from_numpy(np.eye(4, dtype=np.float32)[actions] if actions.ndim == 1 else actions).flatten(1)


def assert_acts_like(policy, model, states, env=None):
    """Check the policy against the model, which sees the states as `env` standardises them."""
    seen = states if env is None else torch.from_numpy(env.normalize_obs(states.numpy()).astype(np.float32))
    torch.testing.assert_close(policy.act(states), predicted(model, seen), atol=1e-4, rtol=1e-4)


def test_every_algorithm_has_a_case():
    algorithms = {kind for library in (sb3, contrib) for kind in vars(library).values() if hasattr(kind, "predict")}
    assert algorithms == {kind for kind, _ in ALGORITHMS.values()} | {contrib.CrossQ, contrib.RecurrentPPO}


LINEAR, ONE_LAYER = {"policy": "LinearPolicy", "policy_kwargs": {}}, ("action_net.0.", "action_net.")
SHARED = r"policy_net\.(\d)", lambda layer: ["shared_net.0", "policy_net.0"][int(layer[1]) // 2]
CASES = {  # algorithm, its options, the version of gym that saved it before, changed names of layers
    **{name: (*case, "0.17", None) for name, case in ALGORITHMS.items()},
    **{f"{name} of gym {v}": (*ALGORITHMS[name], v, None) for name in ("ppo", "dqn") for v in LAYOUTS},
    # Before version 2, the only layer of a linear policy was not in an `nn.Sequential`.
    "ars linear": (contrib.ARS, LINEAR, "0.21", ONE_LAYER),
    "ars linear, discrete": (contrib.ARS, {**LINEAR, "actions": DISCRETE}, "0.21", ONE_LAYER),
    "ppo of shared layers": (sb3.PPO, {}, "0.17", SHARED),
    # Version 1.0 could give state-dependent exploration a network of its own, unused by the mean action.
    "ppo sde": (sb3.PPO, {"use_sde": True}, "0.17", ("^value_net", "sde_features_extractor.0")),
    "sac sde": (sb3.SAC, {"use_sde": True}, "0.17", ("^critic.qf0.0", "actor.sde_features_extractor.0")),
}


@pytest.mark.filterwarnings("ignore:.*masks:UserWarning")
@pytest.mark.parametrize("algorithm, options, version, layers", CASES.values(), ids=CASES)
def test_acts_as_the_library_does(tmp_path, states, algorithm, options, version, layers):
    model, path = saved(tmp_path, algorithm, **options), tmp_path / "model.zip"
    states = states[:, : np.prod(model.observation_space.shape)]
    policy, opened, live, inner = (load(source, trust=trust)["model"] for source, trust in sources(tmp_path, model))
    make_old(path, version, **({"rename": lambda key: re.sub(*layers, key)} if layers else {}))
    assert b"gymnasium" not in path.read_bytes()
    old = load(path)["model"]
    assert type(policy) is type(opened) is type(old) is Actor  # no library if our own reader will do
    for each in (policy, live, inner, old):
        assert_acts_like(each, model, states)


def test_masks_are_warned_of(tmp_path):
    model = saved(tmp_path, contrib.MaskablePPO, actions=DISCRETE)
    for source in (tmp_path, {"model": model}):
        with pytest.warns(UserWarning, match="'model': it needs masks of actions: .* calls predict with action_masks"):
            load(source)


LETS = r".*; trust=True lets"
COUNT = {"action_count": 3}
REFUSED = {  # algorithm, its options, given options, message, after whose advice it acts as the library
    "crossq": (contrib.CrossQ, {}, {}, f"a policy of class sb3_contrib.crossq.policies.CrossQPolicy{LETS}"),
    "features": (sb3.PPO, {"policy_kwargs": {"features_extractor_class": Scaled}}, {}, f"extracts features{LETS}"),
    "activation": (sb3.PPO, {"policy_kwargs": {"activation_fn": nn.Hardswish}}, {}, f"its activation is <class{LETS}"),
    "images": (sb3.PPO, {"policy": "CnnPolicy", "observations": PIXELS}, {}, rf"images of shape \(1, 36, 36\){LETS}"),
    "statistics": (sb3.PPO, {"env": "halved"}, {}, rf"in vecnormalize\.pkl: its pickle names \S*Halved;{LETS}"),
    "a count": (sb3.SAC, {}, COUNT, "has continuous actions, but action_count=3: leave it out"),
    "another count": (sb3.PPO, {"actions": DISCRETE}, COUNT, "has 4 discrete actions, but action_count=3: leave it"),
}


@pytest.mark.parametrize("algorithm, options, given, message", REFUSED.values(), ids=REFUSED)
def test_what_needs_trust_or_other_options(tmp_path, algorithm, options, given, message):
    env = Halved(DummyVecEnv([Still]), clip_obs=1.5) if "env" in options else None
    model = saved(tmp_path, algorithm, **{"policy_kwargs": {}, **options, "env": env})
    if env is not None:
        env.save(str(tmp_path / "vecnormalize.pkl"))
    for source in (tmp_path, {"model": model}) if "4 discrete" in message else (tmp_path,):
        with pytest.raises(ValueError, match=rf"model.*{message}"):
            load(source, **given)
    shape = model.observation_space.shape
    states = np.random.default_rng(0).random((9, np.prod(shape)), np.float32) * 9
    seen = states.reshape(9, *shape) if env is None else env.normalize_obs(states)
    for source in (tmp_path, {"model": model}):
        policy = load(source, trust=not given)["model"]
        np.testing.assert_allclose(policy(states), model.predict(seen, deterministic=True)[0], atol=1e-5)


SEVERAL = "several actions at once.*pass a callable"
NO_MEMORY = "it is recurrent, .* pass an array of its actions in every logged state$"
UNUSUAL = {  # algorithm, its options → what the refusal says
    "discrete states": (sb3.PPO, {"observations": spaces.Discrete(16)}, "of a Discrete space.*pass a callable"),
    "named states": (sb3.PPO, {"observations": spaces.Dict({"a": ROW}), "policy": "MultiInputPolicy"},
        "observations of a Dict space.*pass a callable"),
    "several actions": (sb3.PPO, {"actions": spaces.MultiDiscrete([2, 3])}, SEVERAL),
    "switches": (sb3.PPO, {"actions": spaces.MultiBinary(3)}, SEVERAL),
    "a memory": (contrib.RecurrentPPO, {"policy": "MlpLstmPolicy"}, NO_MEMORY),
}  # fmt: skip


@pytest.mark.parametrize("algorithm, options, message", UNUSUAL.values(), ids=UNUSUAL)
def test_more_than_a_row_of_numbers_needs_a_callable_or_an_array(tmp_path, algorithm, options, message):
    model = saved(tmp_path, algorithm, **options)
    for source, trust in sources(tmp_path, model):
        with pytest.raises(ValueError, match=rf"model.*{message}") as caught:
            load(source, trust=trust)
        assert "trust" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_folder_written_by_callbacks(tmp_path):
    train, evaluation = (VecNormalize(DummyVecEnv([lambda: Still(length=3)]), training=t) for t in (True, False))
    paths = {"best_model_save_path": str(tmp_path), "log_path": str(tmp_path)}
    evaluate = EvalCallback(evaluation, eval_freq=10, n_eval_episodes=1, verbose=0, **paths)
    model = sb3.SAC("MlpPolicy", train, policy_kwargs=dict(SMALL), learning_starts=100, device="cpu")
    every = CheckpointCallback(10, str(tmp_path), save_replay_buffer=True, save_vecnormalize=True)
    model.learn(20, callback=[every, evaluate])
    model.save_replay_buffer(tmp_path / "replay_buffer.pkl")
    assert len(list(tmp_path.iterdir())) == 2 * 3 + 2 + 1
    assert list(load(tmp_path)) == ["best_model", "rl_model_10_steps", "rl_model_20_steps"]


def test_statistics_that_do_not_fit(tmp_path):
    saved(tmp_path, sb3.PPO)
    path, wide = tmp_path / "vecnormalize.pkl", spaces.Box(-1, 1, (DS + 1,), np.float32)
    VecNormalize(DummyVecEnv([lambda: Still(observations=wide)])).save(str(path))
    with pytest.raises(ValueError, match=r"standardisation has shape \(6,\), expected \(5,\)"):
        load(tmp_path)
    path.write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(ValueError, match=r"model\.zip: statistics in vecnormalize\.pkl: its pickle names os\.system"):
        load(tmp_path)


def test_statistics_of_named_observations_need_a_callable(tmp_path):
    _, named = saved(tmp_path, sb3.PPO), spaces.Dict({"a": ROW, "b": ROW})
    VecNormalize(DummyVecEnv([lambda: Still(observations=named)])).save(str(tmp_path / "vecnormalize.pkl"))
    for trust in (False, True):
        with pytest.raises(ValueError, match=r"standardises observations by name, a, b: pass a callable [^;]*$"):
            load(tmp_path, trust=trust)


def test_models_without_torch_are_passed_in_memory(tmp_path, states):
    model = needs("sbx", "make .venv/paper").SAC("MlpPolicy", Still(), seed=0)
    model.save(tmp_path / "model.zip")
    with pytest.raises(ValueError, match=r"model\.zip: a model without torch, .* pass \{name: model\}"):
        load(tmp_path, trust=True)
    policy = load({"model": type(model).load(tmp_path / "model.zip")})["model"]
    np.testing.assert_allclose(policy(states), model.predict(states.numpy(), deterministic=True)[0], atol=1e-5)


RUNS = r"its pickle names posix\.system; only arrays"
SETTINGS = {  # changed settings → message
    **{key: (lambda value, runs: {**value, ":serialized:": runs}, RUNS) for key in
       ("policy_class", "action_space", "observation_space")},
    "policy_kwargs": (lambda *_: 3, ""),
    "action_space of text": (lambda *_: "x", ""),
    "policy_class of nothing": (lambda *_: None, ""),
    "policy_kwargs of lists": (lambda *_: {"clip_mean": []}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_hostile_and_damaged_settings(tmp_path, name):
    (change, message), key = SETTINGS[name], name.partition(" ")[0]
    runs = base64.b64encode(pickle.dumps(Runs(os.system, f"touch {tmp_path / 'ran'}"))).decode()

    saved(tmp_path, sb3.SAC, use_sde=True)
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    settings = json.loads(members["data"])
    members["data"] = json.dumps(settings | {key: change(settings[key], runs)})
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    with pytest.raises(ValueError, match=rf"model\.zip: .*{message}"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def normalised():
    env = VecNormalize(DummyVecEnv([Still]), clip_obs=1.5)
    env.reset()
    for _ in range(50):
        env.step(env.action_space.sample()[None])
    return env


def test_models_that_do_not_fit_themselves(tmp_path):
    model, path = make(sb3.DQN, actions=type(DISCRETE)(4)), tmp_path / "model.zip"
    model.action_space.n = np.int64(7)
    model.save(path)
    make_old(path, "0.17")
    with pytest.raises(ValueError, match="its network has 4 outputs, its action space n=7"):
        load(path)
    make(sb3.SAC).save(path)
    make_old(path, "0.17", rename=lambda key: key.replace("actor.log_std", "actor.gate"))
    with pytest.raises(ValueError, match=r"no actor that this package reads among .*actor"):
        load(path)
    (model := make(sb3.SAC)).actor.mu.bias.data[0] = np.nan
    model.save(path)
    with pytest.raises(ValueError, match=r"actor\.mu\.bias must be finite floats, got float32; if training diverged"):
        load(path)


OTHERS = r"not standardised, though its folder, or the one above, has {}; copy .* to model_vecnormalize\.pkl next to it"
FOLDERS = {  # statistics in the folder of model.zip, how that was trained → whether they standardise, or what is said
    "own": (["model_vecnormalize.pkl"], "", True),
    "in a folder of its name": (["model/vecnormalize.pkl"], "", True),
    "of the folder": (["vecnormalize.pkl"], "", True),
    "of the folder, older": (["vec_normalize.pkl"], "", True),
    "several": (["A/vecnormalize.pkl", "B/vecnormalize.pkl"], "", r"several .*: A/v\S*, B/vecn\S*; copy .* to model_v"),
    "of a folder next to it": (["Env/vecnormalize.pkl"], "", True),
    "of its step": (["model_vecnormalize_2000_steps.pkl", "vecnormalize.pkl"], "", True),
    "raw": (["A/vecnormalize.pkl"], "raw", False),
    "raw, of the folder": (["vecnormalize.pkl"], "raw", False),
    "raw, own": (["model_vecnormalize.pkl"], "raw", True),
    "missing": ([], "normalised", "states are not standardised, though the model was trained with VecNormalize; copy "),
    "another name": (["sac_vecnormalize.pkl"], "", OTHERS.format("sac_vecnormalize.pkl")),
    "of the folder above": (["../vec_normalize.pkl"], "", OTHERS.format("vec_normalize.pkl")),
}  # fmt: skip


@pytest.mark.parametrize("files, trained, outcome", FOLDERS.values(), ids=FOLDERS)
def test_which_statistics_standardise_a_model(tmp_path, states, normalised, files, trained, outcome):
    env = VecNormalize(DummyVecEnv([Still])) if trained == "normalised" else None
    model = make(sb3.A2C, env, **({"n_steps": 8} if trained else {}))
    folder = tmp_path / "best_model"
    path = folder / ("model_2000_steps.zip" if "steps" in "".join(files) else "model.zip")
    folder.mkdir()
    (model.learn(16) if trained else model).save(path)
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        save_old_statistics(folder / file, normalised, "0.17")
    if isinstance(outcome, str) and outcome.startswith("several"):
        with pytest.raises(ValueError, match=rf"model\.zip: {outcome}"):
            load(path)
        return
    with warnings.catch_warnings(record=True, action="always") as caught:
        (policy,) = load(path).values()
    said = [str(warning.message) for warning in caught]
    assert len(said) == isinstance(outcome, str) and all(re.search(rf"model\.zip: .*{outcome}", text) for text in said)
    assert_acts_like(policy, model, states, normalised if outcome is True else None)
    own = str((folder / files[0]).resolve()) if outcome is True else None
    assert repr(policy) == f"Actor({path.stem!r}{f', standardised by {own!r}' if own else ''})"


def test_statistics_that_leave_observations_alone(tmp_path, states):
    env = VecNormalize(DummyVecEnv([Still]), norm_obs=False)
    model = saved(tmp_path, sb3.PPO, env)
    env.obs_rms = None  # newer versions do not keep it
    save_old_statistics(tmp_path / "vecnormalize.pkl", env, "0.17")
    (policy,) = load(tmp_path / "model.zip").values()
    assert policy.standardisation is None
    assert_acts_like(policy, model, states)


def test_live_models_use_the_statistics_attached_to_them(tmp_path, states, normalised):
    model = saved(tmp_path, sb3.PPO, normalised)
    normalised.save(str(tmp_path / "vecnormalize.pkl"))
    (file,) = load(tmp_path / "model.zip").values()
    (live,) = load({"live": model}).values()
    assert repr(live) == "Called('live', standardised by 'its VecNormalize')"
    torch.testing.assert_close(live.act(states), file.act(states), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(live.act(states), predicted(model, states), atol=0.1)
