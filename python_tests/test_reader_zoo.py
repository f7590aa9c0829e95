"""Files of the RL Zoo, saved by earlier versions of gym and Stable-Baselines3, act as the library's `predict` does."""

import logging
import pickletools
import re
import shutil
import warnings

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import Actor, load

sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
contrib = pytest.importorskip("sb3_contrib", reason="needs the extra [sb3]")

from old_files import LAYOUTS, make_old, save_old_statistics  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402
from test_reader_sb3 import DS, Still, make, predicted  # noqa: E402

ALGORITHMS = {
    "ppo": (sb3.PPO, {}),
    "a2c": (sb3.A2C, {}),
    "trpo": (contrib.TRPO, {}),
    "sac": (sb3.SAC, {}),
    "tqc": (contrib.TQC, {}),
    "td3": (sb3.TD3, {}),
    "ddpg": (sb3.DDPG, {}),
    "ars": (contrib.ARS, {}),
    "a2c discrete": (sb3.A2C, {"discrete": True}),
    "dqn": (sb3.DQN, {"discrete": True}),
    "ars discrete": (contrib.ARS, {"discrete": True}),
}


@pytest.fixture
def states(generator):
    return torch.randn(300, DS, generator=generator) * 3


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


@pytest.mark.parametrize(
    "name, version",
    [*((name, "0.17") for name in ALGORITHMS), *(("ppo", v) for v in LAYOUTS), *(("dqn", v) for v in LAYOUTS)],
)
def test_models_saved_with_gym(tmp_path, states, name, version):
    algorithm, options = ALGORITHMS[name]
    model, path = make(algorithm, **options), tmp_path / "model.zip"
    model.save(path)
    make_old(path, version)
    assert b"gymnasium" not in path.read_bytes()
    (policy,) = load(path).values()
    assert type(policy) is Actor
    assert_acts_like(policy, model, states)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_protocol_of_pickle(tmp_path, states, normalised, protocol):
    model, path = make(sb3.PPO), tmp_path / "model.zip"
    model.save(path)
    make_old(path, "0.17", protocol)
    save_old_statistics(tmp_path / "vecnormalize.pkl", normalised, "0.17", protocol)
    names = {str(argument) for _, argument, _ in pickletools.genops((tmp_path / "vecnormalize.pkl").read_bytes())}
    assert any("numpy.core." in name for name in names) and not any("numpy._core" in name for name in names)
    (policy,) = load(path).values()
    assert_acts_like(policy, model, states, normalised)


@pytest.mark.parametrize("discrete", [False, True])
def test_linear_policy_of_ars_before_version_2(tmp_path, states, discrete):
    """Its only layer was not in an `nn.Sequential`."""
    model, path = make(contrib.ARS, policy="LinearPolicy", policy_kwargs={}, discrete=discrete), tmp_path / "model.zip"
    model.save(path)
    make_old(path, "0.21", rename=lambda key: key.replace("action_net.0.", "action_net."))
    (policy,) = load(path).values()
    assert_acts_like(policy, model, states)


@pytest.mark.parametrize(
    "algorithm, layer", [(sb3.PPO, "sde_features_extractor.0"), (sb3.SAC, "actor.sde_features_extractor.0")]
)
def test_features_for_exploration_alone_are_ignored(tmp_path, states, algorithm, layer):
    """Version 1.0 could give state-dependent exploration a network of its own, unused by the mean action."""
    model, path = make(algorithm, use_sde=True), tmp_path / "model.zip"
    model.save(path)
    unused = "^value_net" if algorithm is sb3.PPO else "^critic.qf0.0"
    make_old(path, "0.17", rename=lambda key: re.sub(unused, layer, key))
    (policy,) = load(path).values()
    assert_acts_like(policy, model, states)


def test_a_discrete_space_of_another_size_is_refused(tmp_path):
    model, path = make(sb3.DQN, discrete=True), tmp_path / "model.zip"
    model.action_space.n = np.int64(7)
    model.save(path)
    make_old(path, "0.17")
    with pytest.raises(ValueError, match="its network has 4 outputs, its action space n=7"):
        load(path)


@pytest.fixture
def zoo(tmp_path, normalised):
    """A run's folder: `Env.zip`, `best_model.zip`, a checkpoint, and statistics in `Env/`."""
    model = make(sb3.PPO)
    model.save(tmp_path / "Env.zip")
    make_old(tmp_path / "Env.zip", "0.17")
    for name in ("best_model", "rl_model_5000_steps"):
        shutil.copy(tmp_path / "Env.zip", tmp_path / f"{name}.zip")
    (tmp_path / "Env").mkdir()
    save_old_statistics(tmp_path / "Env/vecnormalize.pkl", normalised, "0.17")
    return tmp_path, model


def test_every_model_of_a_run_finds_its_statistics(zoo, states, normalised, caplog):
    folder, model = zoo
    with caplog.at_level(logging.INFO, "sopr_fast"):
        policies = load(folder)
    assert list(policies) == ["Env", "best_model", "rl_model_5000_steps"]
    statistics = str(folder / "Env/vecnormalize.pkl")
    for name, policy in policies.items():
        assert_acts_like(policy, model, states, normalised)
        assert policy.normalisation == statistics and repr(policy) == f"Actor({name!r}, standardised by {statistics!r})"
        assert f"{folder / name}.zip: states are standardised by {statistics}" in caplog.messages


def test_several_statistics_are_refused_until_one_is_chosen(zoo, states, normalised):
    folder, model = zoo
    (folder / "Other").mkdir()
    shutil.copy(folder / "Env/vecnormalize.pkl", folder / "Other")
    message = (
        r"best_model\.zip: several statistics could belong to it: Env/vecnormalize\.pkl, Other/vecnormalize\.pkl; "
        r"copy .* belong to it to best_model_vecnormalize\.pkl next to it"
    )
    with pytest.raises(ValueError, match=message):
        load(folder / "best_model.zip")
    shutil.copy(folder / "Env/vecnormalize.pkl", folder / "best_model_vecnormalize.pkl")
    (policy,) = load(folder / "best_model.zip").values()
    assert_acts_like(policy, model, states, normalised)


def test_a_model_trained_on_raw_states_takes_no_statistics_of_another(tmp_path, states, normalised):
    model = make(sb3.A2C, n_steps=8).learn(16)
    model.save(tmp_path / "raw.zip")
    (tmp_path / "Env").mkdir()
    save_old_statistics(tmp_path / "Env/vecnormalize.pkl", normalised, "0.17")
    (policy,) = load(tmp_path / "raw.zip").values()
    assert policy.normalisation is None
    assert_acts_like(policy, model, states)


def test_a_model_trained_on_raw_states_takes_statistics_of_its_name_alone(tmp_path, states, normalised):
    model = make(sb3.A2C, n_steps=8).learn(16)
    model.save(tmp_path / "raw.zip")
    for name in ("vec_normalize.pkl", "vecnormalize.pkl"):
        save_old_statistics(tmp_path / name, normalised, "0.17")
        message = (
            rf"raw\.zip: the model was trained without VecNormalize, .* not standardised by {name} of its folder; "
            r"copy .* to raw_vecnormalize\.pkl next to it"
        )
        with pytest.warns(UserWarning, match=message):
            (policy,) = load(tmp_path / "raw.zip").values()
        assert policy.normalisation is None
        assert_acts_like(policy, model, states)
    shutil.copy(tmp_path / "vecnormalize.pkl", tmp_path / "raw_vecnormalize.pkl")
    (policy,) = load(tmp_path / "raw.zip").values()
    assert_acts_like(policy, model, states, normalised)


def test_missing_statistics_are_warned_of(tmp_path):
    model = make(sb3.A2C, VecNormalize(DummyVecEnv([Still])), n_steps=8).learn(16)
    model.save(tmp_path / "model.zip")
    with pytest.warns(
        UserWarning,
        match=r"model\.zip: states are not standardised, though the model was trained with VecNormalize; copy ",
    ):
        load(tmp_path / "model.zip")
    model.get_vec_normalize_env().save(str(tmp_path / "vecnormalize.pkl"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path / "model.zip")


@pytest.mark.parametrize("name", ["VecNormalize.pkl", "vec-normalize-final.pkl", "sac_vecnormalize.pkl"])
def test_statistics_of_another_name_are_warned_of(tmp_path, states, normalised, name):
    model = make(sb3.PPO, normalised)  # not trained, so its settings do not tell whether states were standardised
    model.save(tmp_path / "model.zip")
    normalised.save(str(tmp_path / name))
    message = rf"model\.zip: states are not standardised, though its folder has {name}; copy .* model_vecnormalize\.pkl"
    with pytest.warns(UserWarning, match=message):
        (policy,) = load(tmp_path).values()
    assert policy.normalisation is None
    shutil.copy(tmp_path / name, tmp_path / "model_vecnormalize.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (policy,) = load(tmp_path).values()
    assert_acts_like(policy, model, states, normalised)


def test_statistics_that_leave_observations_alone(tmp_path, states, caplog):
    env = VecNormalize(DummyVecEnv([Still]), norm_obs=False)
    model = make(sb3.PPO, env)
    model.save(tmp_path / "model.zip")
    env.obs_rms = None  # newer versions do not keep it
    save_old_statistics(tmp_path / "vecnormalize.pkl", env, "0.17")
    with caplog.at_level(logging.INFO, "sopr_fast"):
        (policy,) = load(tmp_path / "model.zip").values()
    assert policy.normalisation is None and not caplog.messages
    assert_acts_like(policy, model, states)


def test_live_models_use_the_statistics_attached_to_them(tmp_path, states, normalised, caplog):
    model = make(sb3.PPO, normalised)
    model.save(tmp_path / "model.zip")
    normalised.save(str(tmp_path / "vecnormalize.pkl"))
    (file,) = load(tmp_path / "model.zip").values()
    with caplog.at_level(logging.INFO, "sopr_fast"):
        (live,) = load({"live": model}).values()
    assert "policy 'live': states are standardised by the VecNormalize of its environment" in caplog.messages
    assert repr(live) == "Called('live', standardised by 'the VecNormalize of its environment')"
    torch.testing.assert_close(live.act(states), file.act(states), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(live.act(states), predicted(model, states), atol=0.1)


@pytest.mark.parametrize("algorithm", [sb3.PPO, sb3.DQN, contrib.QRDQN])
def test_live_discrete_models_give_the_columns_of_their_files(tmp_path, states, algorithm):
    model = make(algorithm, discrete=True)
    (live,) = load([model]).values()
    output = live.output(states)
    assert output.kind == "discrete" and output.mean.shape == (len(states), 4)
    model.save(tmp_path / "model.zip")
    (file,) = load(tmp_path / "model.zip", trust=True).values()
    torch.testing.assert_close(output.mean, file.output(states).mean, atol=1e-5, rtol=1e-4)
    assert (output.mean.max() < 1) == (algorithm is sb3.PPO)  # probabilities, or one action
