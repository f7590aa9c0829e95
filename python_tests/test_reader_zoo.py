"""Files of the RL Zoo, saved by earlier versions of gym and Stable-Baselines3, act as the library's `predict` does."""

import re
import warnings

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import Actor, load

sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
contrib = pytest.importorskip("sb3_contrib", reason="needs the extra [sb3]")

from old_files import LAYOUTS, make_old, save_old_statistics  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402
from test_reader_sb3 import ALGORITHMS, DISCRETE, Still, make, predicted  # noqa: E402

NAMES = ("ppo", "a2c", "trpo", "sac", "tqc", "td3", "ddpg", "ars", "a2c discrete", "dqn", "ars discrete")


@pytest.fixture(scope="module")
def normalised():
    env = VecNormalize(DummyVecEnv([Still]), clip_obs=1.5)
    env.reset()
    for _ in range(50):
        env.step(env.action_space.sample()[None])
    return env


def assert_acts_like(policy, model, states, env=None):
    """Check the policy against the model, which sees the states as `env` standardises them."""
    seen = states if env is None else torch.from_numpy(env.normalize_obs(states.numpy()).astype(np.float32))
    torch.testing.assert_close(policy.act(states), predicted(model, seen), atol=1e-5, rtol=1e-5)


LINEAR, ONE_LAYER = {"policy": "LinearPolicy", "policy_kwargs": {}}, ("action_net.0.", "action_net.")
OLD = {  # algorithm, its options, version of gym, changed names of layers
    **{name: (*ALGORITHMS[name], "0.17", None) for name in NAMES},
    **{f"{name} of gym {v}": (*ALGORITHMS[name], v, None) for name in ("ppo", "dqn") for v in LAYOUTS},
    # Before version 2, the only layer of a linear policy was not in an `nn.Sequential`.
    "ars linear": (contrib.ARS, LINEAR, "0.21", ONE_LAYER),
    "ars linear, discrete": (contrib.ARS, {**LINEAR, "actions": DISCRETE}, "0.21", ONE_LAYER),
    "ppo of shared layers": (sb3.PPO, {}, "0.17", (r"mlp_extractor\.policy_net\.0", "mlp_extractor.shared_net.0")),
    # Version 1.0 could give state-dependent exploration a network of its own, unused by the mean action.
    "ppo sde": (sb3.PPO, {"use_sde": True}, "0.17", ("^value_net", "sde_features_extractor.0")),
    "sac sde": (sb3.SAC, {"use_sde": True}, "0.17", ("^critic.qf0.0", "actor.sde_features_extractor.0")),
}


@pytest.mark.parametrize("algorithm, options, version, layers", OLD.values(), ids=OLD)
def test_models_saved_with_gym(tmp_path, states, algorithm, options, version, layers):
    model, path = make(algorithm, **options), tmp_path / "model.zip"
    model.save(path)
    make_old(path, version, **({"rename": lambda key: re.sub(*layers, key)} if layers else {}))
    assert b"gymnasium" not in path.read_bytes()
    (policy,) = load(path).values()
    assert type(policy) is Actor
    assert_acts_like(policy, model, states)


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


OTHERS = r"states are not standardised, though its folder has {}; copy .* to model_vecnormalize\.pkl next to it"
RAW = r"trained without VecNormalize, .* not standardised by {} of its folder; copy .* to model_vecnormalize\.pkl next"
FOLDERS = {  # statistics in the folder of model.zip, how that was trained → whether they standardise, or what is said
    "own": (["model_vecnormalize.pkl"], "", True),
    "in a folder of its name": (["model/vecnormalize.pkl"], "", True),
    "of the folder": (["vecnormalize.pkl"], "", True),
    "of the folder, older": (["vec_normalize.pkl"], "", True),
    "several": (["A/vecnormalize.pkl", "B/vecnormalize.pkl"], "", r"several .*: A/v\S*, B/vecn\S*; copy .* to model_v"),
    "of a folder next to it": (["Env/vecnormalize.pkl"], "", True),
    "of its step": (["model_vecnormalize_2000_steps.pkl", "vecnormalize.pkl"], "", True),
    "one chosen": (["model_vecnormalize.pkl", "A/vecnormalize.pkl", "B/vecnormalize.pkl"], "", True),
    "raw": (["A/vecnormalize.pkl"], "raw", False),
    "raw, of the folder": (["vecnormalize.pkl"], "raw", RAW.format("vecnormalize.pkl")),
    "raw, own": (["model_vecnormalize.pkl"], "raw", True),
    "missing": ([], "normalised", "states are not standardised, though the model was trained with VecNormalize; copy "),
    "another case": (["VecNormalize.pkl"], "", OTHERS.format("VecNormalize.pkl")),
    "other separators": (["vec-normalize-final.pkl"], "", OTHERS.format("vec-normalize-final.pkl")),
    "another name": (["sac_vecnormalize.pkl"], "", OTHERS.format("sac_vecnormalize.pkl")),
}  # fmt: skip


@pytest.mark.parametrize("files, trained, outcome", FOLDERS.values(), ids=FOLDERS)
def test_which_statistics_standardise_a_model(tmp_path, states, normalised, files, trained, outcome):
    env = VecNormalize(DummyVecEnv([Still])) if trained == "normalised" else None
    model = make(sb3.A2C, env, **({"n_steps": 8} if trained else {}))
    path = tmp_path / ("model_2000_steps.zip" if "steps" in "".join(files) else "model.zip")
    (model.learn(16) if trained else model).save(path)
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        save_old_statistics(tmp_path / file, normalised, "0.17")
    if isinstance(outcome, str) and outcome.startswith("several"):
        with pytest.raises(ValueError, match=rf"model\.zip: {outcome}"):
            load(path)
        return
    with warnings.catch_warnings(record=True, action="always") as caught:
        (policy,) = load(path).values()
    said = [str(warning.message) for warning in caught]
    assert len(said) == isinstance(outcome, str) and all(re.search(rf"model\.zip: .*{outcome}", text) for text in said)
    assert_acts_like(policy, model, states, normalised if outcome is True else None)
    assert policy.normalisation == (str(tmp_path / files[0]) if outcome is True else None)
    assert outcome is not True or repr(policy) == f"Actor({path.stem!r}, standardised by {str(tmp_path / files[0])!r})"


def test_statistics_that_leave_observations_alone(tmp_path, states):
    env = VecNormalize(DummyVecEnv([Still]), norm_obs=False)
    model = make(sb3.PPO, env)
    model.save(tmp_path / "model.zip")
    env.obs_rms = None  # newer versions do not keep it
    save_old_statistics(tmp_path / "vecnormalize.pkl", env, "0.17")
    (policy,) = load(tmp_path / "model.zip").values()
    assert policy.normalisation is None
    assert_acts_like(policy, model, states)


def test_live_models_use_the_statistics_attached_to_them(tmp_path, states, normalised):
    model = make(sb3.PPO, normalised)
    model.save(tmp_path / "model.zip")
    normalised.save(str(tmp_path / "vecnormalize.pkl"))
    (file,) = load(tmp_path / "model.zip").values()
    (live,) = load({"live": model}).values()
    assert repr(live) == "Called('live', standardised by 'its VecNormalize')"
    torch.testing.assert_close(live.act(states), file.act(states), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(live.act(states), predicted(model, states), atol=0.1)
