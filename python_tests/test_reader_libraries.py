"""Checkpoints of CleanRL, rsl_rl, rl_games, Tianshou and TorchRL.

Where a library is light enough to be installed with the tests, it writes the file and acts; where it is not, the module
is written as in the library's source, whose version stands beside it.
"""

import re
import sys
import types
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import distributions as dist
from torch import nn

from sopr_fast.cli import main as cli
from sopr_fast.cli.options import read_policies
from sopr_fast.inputs.policies import load

DS, DA = 5, 3


@pytest.fixture
def states(generator):
    return torch.randn(40, DS, generator=generator)


def mlp(*widths, activation=nn.Tanh):
    layers = []
    for reads, gives in pairwise(widths):
        layers += [nn.Linear(reads, gives), activation()]
    return nn.Sequential(*layers[:-1])


def close(policy, states, expected):
    torch.testing.assert_close(policy.act(states), expected.detach().float(), rtol=1e-5, atol=1e-5)


def same_distribution(path, states, expected, **options):
    """The policy's distribution: its log-density, since the standard deviation of a squashed one is that before it."""
    policy = load(path, stochastic=True, **options)["model"]
    actions = expected.sample()
    torch.testing.assert_close(
        policy.log_prob(states, actions), expected.log_prob(actions).sum(1).detach(), rtol=1e-4, atol=1e-4
    )


# CleanRL v1.0.0: cleanrl/ppo_continuous_action.py, sac_continuous_action.py, td3_continuous_action.py, dqn.py, c51.py


class CleanRLPPO(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = mlp(DS, 8, 8, 1)
        self.actor_mean = mlp(DS, 8, 8, DA)
        self.actor_logstd = nn.Parameter(torch.randn(1, DA) / 3)


class CleanRLActor(nn.Module):
    def __init__(self, low, high, last):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(DS, 8), nn.Linear(8, 8)
        setattr(self, last, nn.Linear(8, DA))
        if last == "fc_mean":
            self.fc_logstd = nn.Linear(8, DA)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)

    def hidden(self, x):
        return torch.relu(self.fc2(torch.relu(self.fc1(x))))


LOW, HIGH = torch.tensor([-1.0, -2.0, 0.0]), torch.tensor([1.0, 3.0, 5.0])


def test_cleanrl_ppo(tmp_path, states):
    agent, path = CleanRLPPO(), tmp_path / "model.cleanrl_model"
    torch.save(agent.state_dict(), path)
    with pytest.warns(
        UserWarning, match=r"model\.cleanrl_model: CleanRL's scripts .* statistics that they do not save"
    ):
        close(load(path)["model"], states, agent.actor_mean(states))
        normal = dist.Normal(agent.actor_mean(states), agent.actor_logstd.exp().expand(len(states), -1))
        same_distribution(path, states, normal)


def test_cleanrl_sac(tmp_path, states):
    actor, path = CleanRLActor(LOW, HIGH, "fc_mean"), tmp_path / "model.pt"
    torch.save(actor.state_dict(), path)
    mean = actor.fc_mean(actor.hidden(states))
    close(load(path)["model"], states, mean.tanh() * actor.action_scale + actor.action_bias)
    log_std = -5 + 0.5 * 7 * (actor.fc_logstd(actor.hidden(states)).tanh() + 1)
    transforms = [dist.TanhTransform(), dist.AffineTransform(actor.action_bias, actor.action_scale)]
    same_distribution(path, states, dist.TransformedDistribution(dist.Normal(mean, log_std.exp()), transforms))


def test_cleanrl_td3_saves_actor_and_critics(tmp_path, states):
    # DDPG's script takes the bounds of the vector of environments, which have one more dimension.
    actor, path = CleanRLActor(LOW[None], HIGH[None], "fc_mu"), tmp_path / "model.cleanrl_model"
    torch.save((actor.state_dict(), nn.Linear(2, 2).state_dict(), nn.Linear(2, 2).state_dict()), path)
    expected = actor.fc_mu(actor.hidden(states)).tanh() * actor.action_scale + actor.action_bias
    close(load(path)["model"], states, expected)


def test_cleanrl_discrete(tmp_path, states):
    agent = nn.ModuleDict({"critic": mlp(DS, 8, 1), "actor": mlp(DS, 8, 4)})
    torch.save(agent.state_dict(), tmp_path / "ppo.cleanrl_model")
    dqn = nn.ModuleDict({"network": mlp(DS, 8, 4, activation=nn.ReLU)})
    torch.save(dqn.state_dict(), tmp_path / "dqn.cleanrl_model")
    c51 = nn.ModuleDict({"network": mlp(DS, 8, 4 * 11, activation=nn.ReLU)})
    atoms = torch.linspace(-3, 7, 11)
    weights = {**c51.state_dict(), "atoms": atoms}
    torch.save({"model_weights": weights, "args": {"env_id": "x", "seed": 1}}, tmp_path / "c51.cleanrl_model")
    policies = load(tmp_path)
    torch.testing.assert_close(policies["ppo"].output(states).mean, agent["actor"](states).softmax(1).detach())
    values = {
        "dqn": dqn["network"](states),
        "c51": (c51["network"](states).view(len(states), 4, 11).softmax(2) * atoms).sum(2),
    }
    for name, value in values.items():
        assert policies[name].action_dim == 4
        np.testing.assert_array_equal(policies[name].predict(states)[0], value.argmax(1))


def test_cleanrl_of_other_scripts_is_refused(tmp_path):
    path = tmp_path / "model.cleanrl_model"
    torch.save(nn.ModuleDict({"network": nn.Sequential(nn.Conv2d(1, 2, 3))}).state_dict(), path)
    with pytest.raises(ValueError, match=r"model\.cleanrl_model: network\.0 is not a linear layer"):
        load(path)
    torch.save({"net.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ValueError, match="not an agent of CleanRL's PPO, RPO, SAC, .* it has net.weight"):
        load(path)
    path.write_bytes(b"\x82\xa6params\x81")  # as CleanRL's JAX scripts write
    with pytest.raises(ValueError, match=r"model\.cleanrl_model: not a zip archive"):
        load(path)


# rsl_rl 2.3.3: rsl_rl/modules/actor_critic.py, normalizer.py, runners/on_policy_runner.py


def empirical(width):
    mean, std = torch.randn(1, width), torch.rand(1, width) + 0.5
    return {"_mean": mean, "_var": std**2, "_std": std, "count": torch.tensor(7)}


def old_rsl_rl(kind="std", **others):
    model = nn.ModuleDict({"actor": mlp(DS, 8, DA, activation=nn.ELU), "critic": mlp(DS, 8, 1, activation=nn.ELU)})
    spread = torch.rand(DA) + 0.1
    state = {kind: spread if kind == "std" else spread.log(), **model.state_dict()}
    content = {"model_state_dict": state, "optimizer_state_dict": {"state": {}}, "iter": 5, "infos": None, **others}
    return model["actor"], spread, content


@pytest.mark.parametrize("kind", ["std", "log_std"])
def test_rsl_rl_2_keeps_the_normaliser_beside_the_model(tmp_path, states, kind):
    normaliser = empirical(DS)
    actor, spread, content = old_rsl_rl(kind, obs_norm_state_dict=normaliser)
    path = tmp_path / "model.pt"
    torch.save(content, path)
    mean = actor((states - normaliser["_mean"]) / (normaliser["_std"] + 1e-2))
    close(load(path, activation="elu")["model"], states, mean)
    same_distribution(path, states, dist.Normal(mean, spread.expand_as(mean)), activation="elu")


def test_rsl_rl_3_keeps_the_normaliser_in_the_model(tmp_path, states):
    normaliser = empirical(DS)
    actor, _, content = old_rsl_rl()
    content["model_state_dict"] |= {f"actor_obs_normalizer.{key}": value for key, value in normaliser.items()}
    content["model_state_dict"] |= {f"critic_obs_normalizer.{key}": value for key, value in empirical(DS).items()}
    torch.save(content, tmp_path / "model.pt")
    mean = actor((states - normaliser["_mean"]) / (normaliser["_std"] + 1e-2))
    close(load(tmp_path / "model.pt", activation="elu")["model"], states, mean)


@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_rsl_rl_writes_what_is_read(tmp_path, states, is_normalised, std_type):
    models = pytest.importorskip("rsl_rl.models")
    tensordict = pytest.importorskip("tensordict")
    observations = tensordict.TensorDict({"policy": states}, batch_size=[len(states)])
    distribution = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "std_type": std_type}
    actor = models.MLPModel(
        observations, {"actor": ["policy"]}, "actor", DA, (8, 6), "elu", is_normalised, distribution
    )
    if is_normalised:
        actor.update_normalization(observations)
    actor.eval()
    # As OnPolicyRunner.save and PPO.save.
    path = tmp_path / "model.pt"
    torch.save({"actor_state_dict": actor.state_dict(), "critic_state_dict": {}, "iter": 3, "infos": None}, path)
    close(load(path, activation="elu")["model"], states, actor(observations))
    actor(observations, stochastic_output=True)
    same_distribution(path, states, dist.Normal(actor.output_mean, actor.output_std), activation="elu")


def test_the_activation_stands_in_the_settings_of_the_run(tmp_path, states):
    actor, _, content = old_rsl_rl()
    run = tmp_path / "logs" / "2024-05-01"
    (run / "params").mkdir(parents=True)
    torch.save(content, run / "model_1500.pt")
    with pytest.raises(ValueError, match=r"model_1500\.pt: a checkpoint of rsl_rl does not say its activation: give "):
        load(run)
    (run / "params" / "agent.yaml").write_text("policy:\n  class_name: ActorCritic\n  activation: 'elu'  # as usual\n")
    close(load(run)["model_1500"], states, actor(states))
    (run / "params" / "agent.yaml").write_text("policy:\n  activation: elu\ncritic:\n  activation: relu\n")
    with pytest.raises(ValueError, match=r"rsl_rl \(whose settings name elu, relu\) does not say its activation"):
        load(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_a.rnn.weight_ih_l0": torch.zeros(2, 2)}, "not a plain perceptron: it also has memory_a.rnn.weight"),
        ({"std": None}, "has no standard deviation of its own; export it to ONNX"),
    ],
)
def test_rsl_rl_of_other_networks_is_refused(tmp_path, change, message):
    content = old_rsl_rl()[2]
    content["model_state_dict"] = {k: v for k, v in {**content["model_state_dict"], **change}.items() if v is not None}
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=rf"model\.pt: rsl_rl's actor.*{re.escape(message)}"):
        load(tmp_path / "model.pt", activation="elu")


# rl_games 1.6.5: algos_torch/network_builder.py (A2CBuilder), models.py, running_mean_std.py, common/a2c_common.py. Not
# among the extras, since it needs an older psutil; where it is installed, it writes the file.


class RLGamesStatistics(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_mean", torch.randn(width, dtype=torch.float64))
        self.register_buffer("running_var", torch.rand(width, dtype=torch.float64) + 0.1)
        self.register_buffer("count", torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return ((x - self.running_mean.float()) / (self.running_var.float() + 1e-5).sqrt()).clamp(-5, 5)


class RLGames(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.value_mean_std = RLGamesStatistics(1)
        self.running_mean_std = RLGamesStatistics(DS)
        body = nn.Sequential(nn.Linear(DS, 8), nn.ELU(), nn.Linear(8, 6), nn.ELU())
        self.a2c_network = nn.ModuleDict({"actor_mlp": body, "value": nn.Linear(6, 1), head: nn.Linear(6, DA)})
        self.head = head
        if head == "mu":
            self.a2c_network.sigma = nn.Parameter(torch.full((DA,), -0.5))

    def forward(self, inputs):
        outputs = self.a2c_network[self.head](self.a2c_network["actor_mlp"](self.running_mean_std(inputs["obs"])))
        if self.head == "logits":
            return {"logits": outputs}
        return {"mus": outputs, "sigmas": self.a2c_network.sigma.exp().expand_as(outputs)}


def rl_games_model(states, head):
    builders = pytest.importorskip("rl_games.algos_torch.network_builder")
    models = pytest.importorskip("rl_games.algos_torch.models")
    builder, none = builders.A2CBuilder(), {"name": "default"}
    continuous = {"mu_activation": "None", "sigma_activation": "None", "mu_init": none, "fixed_sigma": True}
    continuous["sigma_init"] = {"name": "const_initializer", "val": -0.5}
    perceptron = {"units": [8, 6], "activation": "elu", "d2rl": False, "initializer": none}
    space = {"continuous": continuous} if head == "mu" else {"discrete": {}}
    builder.load({"separate": False, "space": space, "mlp": perceptron})
    kind = models.ModelA2CContinuousLogStd if head == "mu" else models.ModelA2C
    model = kind(builder).build(
        {"input_shape": (DS,), "actions_num": DA, "normalize_input": True, "normalize_value": True, "num_seqs": 1}
    )
    model.train()
    model.running_mean_std(states * 3 + 1)
    return model.eval()


def make_rl_games(states, head, written):
    return rl_games_model(states, head) if written == "library" else RLGames(head)


def save_rl_games(model, path):
    # As A2CBase.get_full_state_weights; last_mean_rewards is a number of NumPy.
    content = {"model": model.state_dict(), "epoch": 3, "frame": 100, "optimizer": {"state": {}}, "env_state": None}
    torch.save({**content, "last_mean_rewards": np.float32(12.5)}, path)


@pytest.mark.parametrize("written", ["by hand", "library"])
def test_rl_games_reads_its_activation_from_the_settings_of_the_run(tmp_path, states, written):
    model = make_rl_games(states, "mu", written)
    (tmp_path / "nn").mkdir()
    path = tmp_path / "nn" / "model.pth"
    save_rl_games(model, path)
    with torch.no_grad():
        result = model({"obs": states.clone(), "is_train": False})
    with pytest.raises(ValueError, match=r"model\.pth: a checkpoint of rl_games does not say its activation"):
        load(path)
    close(load(path, activation="elu")["model"], states, result["mus"])
    with pytest.raises(ValueError, match="whether its sigma is a logarithm stands in the settings of the run"):
        load(path, activation="elu", stochastic=True)
    text = "params:\n  model:\n    name: continuous_a2c_logstd\n  network:\n    mlp:\n      activation: elu\n"
    (tmp_path / "config.yaml").write_text(
        f"{text}    space:\n      mu_activation: None\n      sigma_activation: None\n"
    )
    close(load(path)["model"], states, result["mus"])
    same_distribution(path, states, dist.Normal(result["mus"], result["sigmas"]))


@pytest.mark.parametrize("written", ["by hand", "library"])
def test_rl_games_of_discrete_actions(tmp_path, states, written):
    model = make_rl_games(states, "logits", written)
    save_rl_games(model, tmp_path / "model.pth")
    with torch.no_grad():
        logits = model({"obs": states.clone(), "is_train": False})["logits"]
    policy = load(tmp_path / "model.pth", activation="elu")["model"]
    torch.testing.assert_close(policy.output(states).mean, logits.softmax(1), rtol=1e-5, atol=1e-6)


def test_rl_games_before_1_2_keeps_statistics_apart(tmp_path, states):
    body, mu = mlp(DS, 8, activation=nn.ELU), nn.Linear(8, DA)
    weights = nn.ModuleDict({"actor_mlp": nn.Sequential(*body, nn.ELU()), "mu": mu}).state_dict()
    statistics = {"running_mean": torch.randn(DS).double(), "running_var": torch.rand(DS).double() + 0.1}
    model = {f"a2c_network.{key}": value for key, value in weights.items()} | {"a2c_network.sigma": torch.zeros(DA)}
    torch.save({"model": model, "running_mean_std": statistics, "epoch": 1}, tmp_path / "model.pth")
    mean, variance = statistics["running_mean"].float(), statistics["running_var"].float()
    inputs = ((states - mean) / (variance + 1e-5).sqrt()).clamp(-5, 5)
    close(load(tmp_path / "model.pth", activation="elu")["model"], states, mu(nn.functional.elu(body(inputs))))


# Tianshou 1.2.0: tianshou/utils/net/common.py (Net, MLP), continuous.py (Actor, ActorProb), examples/mujoco


class TianshouMLP(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.model = mlp(*widths)


class TianshouNet(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.model = TianshouMLP(*widths)
        self.model.model.append(nn.Tanh())

    def forward(self, x):
        return self.model.model(x)


def tianshou(prefix, **heads):
    actor = nn.ModuleDict({"preprocess": TianshouNet(DS, 8, 8), **{k: TianshouMLP(8, DA) for k in heads}})
    return actor, {f"{prefix}{key}": value for key, value in actor.state_dict().items()}


@pytest.mark.parametrize("prefix", ["actor.", "policy.actor."])  # version 1, version 2
def test_tianshou_ppo(tmp_path, states, prefix):
    actor, weights = tianshou(prefix, mu=1)
    sigma = torch.randn(DA, 1) / 3
    weights |= {f"{prefix}sigma_param": sigma, "critic.last.model.0.weight": torch.zeros(1, 8)}
    torch.save(weights, tmp_path / "model.pth")
    mean = actor["mu"].model(actor["preprocess"](states))
    options = {"activation": "tanh", "squash": "none"}
    close(load(tmp_path / "model.pth", **options)["model"], states, mean)
    same_distribution(tmp_path / "model.pth", states, dist.Normal(mean, sigma[:, 0].exp().expand_as(mean)), **options)
    with pytest.raises(ValueError, match="a state dict of Tianshou does not say its squash"):
        load(tmp_path / "model.pth", activation="tanh")


def test_tianshou_sac_and_discrete_heads(tmp_path, states):
    actor, weights = tianshou("actor.", mu=1, sigma=1)
    torch.save({"model": weights}, tmp_path / "model.pth")
    hidden = actor["preprocess"](states)
    mean, log_std = actor["mu"].model(hidden), actor["sigma"].model(hidden).clamp(-20, 2)
    expected = dist.TransformedDistribution(dist.Normal(mean, log_std.exp()), [dist.TanhTransform()])
    options = {"activation": "tanh", "squash": "tanh"}
    close(load(tmp_path / "model.pth", **options)["model"], states, mean.tanh())
    same_distribution(tmp_path / "model.pth", states, expected, **options)
    actor, weights = tianshou("actor.", last=1)
    torch.save(weights, tmp_path / "discrete.pth")
    logits = actor["last"].model(actor["preprocess"](states))
    policy = load(tmp_path / "discrete.pth", activation="tanh", action_count=DA)["discrete"]
    torch.testing.assert_close(policy.output(states).mean, logits.softmax(1).detach())
    close(load(tmp_path / "discrete.pth", **options)["discrete"], states, logits.tanh())


def test_tianshou_dqn(tmp_path, states):
    net = TianshouMLP(DS, 8, 4)
    weights = {f"model.model.{key}": value for key, value in net.state_dict().items()}
    weights |= {key.replace("model.", "model_old.", 1): value for key, value in weights.items()}
    torch.save(weights, tmp_path / "model.pth")
    actions = load(tmp_path / "model.pth", activation="tanh")["model"].predict(states)[0]
    np.testing.assert_array_equal(actions, net.model(states).argmax(1))


class RunningMeanStd:
    def __init__(self, generator):
        self.mean, self.var = generator.normal(size=DS), generator.random(DS) + 0.1
        self.clip_max, self.count, self.eps = 10.0, 5, 1e-7


def test_tianshou_statistics_beside_the_weights(tmp_path, states, monkeypatch):
    for name in ("tianshou", "tianshou.utils", "tianshou.utils.statistics"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[name].RunningMeanStd = RunningMeanStd
    monkeypatch.setattr(RunningMeanStd, "__module__", name)
    actor, weights = tianshou("actor.", mu=1)
    statistics = RunningMeanStd(np.random.default_rng(0))
    torch.save(
        {"model": weights | {"actor.sigma_param": torch.zeros(DA, 1)}, "obs_rms": statistics}, tmp_path / "p.pth"
    )
    accepted = set(torch.serialization.get_safe_globals())
    policy = load(tmp_path / "p.pth", activation="tanh", squash="none")["p"]
    assert set(torch.serialization.get_safe_globals()) == accepted
    inputs = (states.double().numpy() - statistics.mean) / np.sqrt(statistics.var + 1e-7)
    inputs = torch.from_numpy(inputs.clip(-10, 10)).float()
    close(policy, states, actor["mu"].model(actor["preprocess"](inputs)))


def test_the_command_line_passes_the_number_of_discrete_actions(tmp_path, states):
    _, weights = tianshou("actor.", last=1)
    torch.save(weights, tmp_path / "model.pth")
    options = ["--policies", str(tmp_path), "--activation", "tanh", "--returns", "r.csv", "--log", "log.npz"]
    parsed = cli._parser().parse_args(["evaluate", *options, "--action-count", str(DA)])
    assert read_policies(parsed)["model"].output(states).kind == "discrete"


# TorchRL


@pytest.fixture
def torchrl():
    pytest.importorskip("torchrl")
    import tensordict.nn
    import torchrl.modules

    return torchrl.modules, tensordict.nn


def observed(states):
    from tensordict import TensorDict

    return TensorDict({"observation": states}, batch_size=[len(states)])


def test_torchrl_probabilistic_actors(tmp_path, states, torchrl):
    modules, nets = torchrl
    net = modules.MLP(in_features=DS, out_features=2 * DA, depth=2, num_cells=8)
    body = nets.TensorDictModule(
        nn.Sequential(net, modules.NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    actor = modules.ProbabilisticActor(body, in_keys=["loc", "scale"], distribution_class=modules.TanhNormal)
    torch.save(actor.state_dict(), tmp_path / "model.pt")
    close(load(tmp_path / "model.pt", activation="tanh", squash="tanh")["model"], states, net(states)[:, :DA].tanh())
    net = modules.MLP(in_features=DS, out_features=DA, depth=2, num_cells=8)
    scale = nets.AddStateIndependentNormalScale(DA)
    body = nets.TensorDictModule(nn.Sequential(net, scale), in_keys=["observation"], out_keys=["loc", "scale"])
    actor = modules.ProbabilisticActor(body, in_keys=["loc", "scale"], distribution_class=modules.IndependentNormal)
    torch.save(actor.state_dict(), tmp_path / "model.pt")
    out = body(observed(states))
    options = {"activation": "tanh", "squash": "none"}
    close(load(tmp_path / "model.pt", **options)["model"], states, out["loc"])
    same_distribution(tmp_path / "model.pt", states, dist.Normal(out["loc"], out["scale"]), **options)


def test_torchrl_deterministic_actors(tmp_path, states, torchrl):
    modules, nets = torchrl
    net = modules.MLP(in_features=DS, out_features=DA, depth=2, num_cells=8)
    squash = modules.TanhModule(in_keys=["param"], out_keys=["action"], low=-2.0, high=3.0)
    actor = nets.TensorDictSequential(modules.Actor(net, out_keys=["param"]), squash)
    torch.save(actor.state_dict(), tmp_path / "td3.pt")
    close(load(tmp_path / "td3.pt", activation="tanh")["td3"], states, actor(observed(states))["action"])
    torch.save(modules.Actor(net).state_dict(), tmp_path / "plain.pt")
    close(load(tmp_path / "plain.pt", activation="tanh", squash="none")["plain"], states, net(states))
    critic = modules.QValueActor(net, spec=None, action_space="one_hot")
    torch.save(critic.state_dict(), tmp_path / "q.pt")
    actions = load(tmp_path / "q.pt", activation="tanh", action_count=DA)["q"].act(states)
    torch.testing.assert_close(actions, critic(observed(states))["action"].float())
