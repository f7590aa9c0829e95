"""State dicts of papers' code and of libraries, found by the table of patterns.

Modules are written as in the libraries' sources: CleanRL 1.0.0, rsl_rl 2.3.3, rl_games 1.6.5, Tianshou 1.2.0.
"""

import math
import re
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import distributions as dist
from torch import nn

from sopr_fast.inputs.policies import Actor, load

DS, DA = 5, 3
MODULES = (nn.ReLU, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.SELU, nn.Sigmoid, nn.Softplus, nn.Identity)
ACTIVATIONS = {"leaky_relu": nn.LeakyReLU, **{module.__name__.lower(): module for module in MODULES}}
RELU, TANH = {"activation": "relu"}, {"activation": "tanh"}
SQUASHED = {**RELU, "squash": "tanh"}
PLAIN = {**RELU, "squash": "none", "head": "action"}
ELU, ELU_PLAIN = {"activation": "elu"}, {"activation": "elu", "squash": "none", "head": "action"}


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for reads, gives in pairwise(widths):
        layers += [nn.Linear(reads, gives), activation()]
    return nn.Sequential(*layers[:-1])


def named(prefix, module):
    weights = module if isinstance(module, dict) else module.state_dict()
    return {f"{prefix}{key}": value for key, value in weights.items()}


def expanded(content):
    """Return a file's content with the weights of each module under its key; "l#1" names its layers l1, l2, …"""
    if isinstance(content, tuple):
        return tuple(map(expanded, content))
    if not isinstance(content, dict):
        return content
    result = {}
    for key, value in content.items():
        stem, is_lettered, first = key.partition("#") if isinstance(key, str) else (key, "", "")
        if is_lettered:
            linear = [part for part in value if isinstance(part, nn.Linear)]
            for i, part in enumerate(linear, int(first)):
                result |= named(f"{stem}{i}.", part)
        elif isinstance(value, nn.Module):
            result |= named(key, value)
        else:
            result[key] = expanded(value)
    return result


def statistics(width=DS):
    mean, std = torch.randn(1, width), torch.rand(1, width) + 0.5
    return {"_mean": mean, "_var": std**2, "_std": std, "count": torch.tensor(7)}


torch.manual_seed(0)
NET, CRITIC, TWICE, MU = mlp(DS, 8, 6, DA), mlp(DS + DA, 8, 1), mlp(DS, 8, 2 * DA), nn.Linear(6, DA)
BODY = nn.Sequential(*mlp(DS, 8, 6), nn.ReLU())
TANH_NET, ELU_NET, VALUES = mlp(DS, 8, DA, activation=nn.Tanh), mlp(DS, 8, DA, activation=nn.ELU), mlp(DS, 8, 4)
LOG_STD, BOUND, STATS = torch.randn(DA) / 3, torch.tensor([1.0, 2.0, 0.5]), statistics()
MEAN, STD = STATS["_mean"][0], STATS["_std"][0]
OPTIMISER = torch.optim.Adam(NET.parameters()).state_dict()
RUNNING_MEAN, RUNNING_VAR = torch.randn(DS).double(), torch.rand(DS).double() + 0.1
RUNNING = {"running_mean": RUNNING_MEAN, "running_var": RUNNING_VAR}


def squashed(x):
    return NET(x).tanh()


def two_parts(x):
    return MU(BODY(x)).tanh()


def standardised(x):
    return ELU_NET((x - STATS["_mean"]) / (STATS["_std"] + 1e-2))


def by_statistics(x):
    return ELU_NET((x - MEAN) / STD)


def clipped(x, epsilon=1e-5, clip=5, net=ELU_NET):
    return net(((x - RUNNING_MEAN) / (RUNNING_VAR + epsilon).sqrt()).clamp(-clip, clip).float())


AFFINE = {"log_std_multiplier.constant": torch.tensor(0.5), "log_std_offset.constant": torch.tensor(-1.0)}
SCALER = {"running_mean": RUNNING_MEAN, "running_variance": RUNNING_VAR}
SKRL = {"net_container.": BODY, "policy_layer.": MU, "value_layer.": nn.Linear(6, 1), "log_std_parameter": LOG_STD}
BODY_AND_MU = {"linear#1": BODY, "mean_linear.": MU, "log_std_linear.": MU}
RSL = {"iter": 5, "optimizer_state_dict": {"state": {}}, "infos": None}
RSL_MODEL = {"actor.": ELU_NET, "critic.": CRITIC, "std": LOG_STD.exp()}
GAMES = {"a2c_network.actor_mlp.0.": ELU_NET[0], "a2c_network.mu.": ELU_NET[2], "a2c_network.sigma": LOG_STD}
GAMES |= {"a2c_network.critic_mlp.0.": ELU_NET[0], "a2c_network.value.": nn.Linear(8, 1), "value_mean_std.count": BOUND}
ATOMS = torch.linspace(-3, 7, 11)
C51 = mlp(DS, 8, 4 * 11)
SCALED = {"action_scale": BOUND[None], "action_bias": -BOUND[None]}
FC = {"fc#1": BODY, "fc_mu.": MU} | SCALED
RLLIB = {f"_hidden_layers.{i}._model.0.": BODY[2 * i] for i in range(2)} | {"_value_branch._model.0.": nn.Linear(6, 1)}
HALVES, RLLIB_HEAD = nn.Linear(6, 2 * DA), {**RELU, "squash": "none", "head": "mean_log_std"}
CONTINUOUS = {  # file → its content, its actions, the options that it needs
    "CORL": ({"critic_1": {"net.": CRITIC}, "actor": {"net.": NET}, "actor_optimizer": OPTIMISER}, squashed, SQUASHED),
    "CORL IQL": ({"qf": {"q1.net.": CRITIC}, "actor": {"net.net.": NET, "log_std": LOG_STD}}, squashed, SQUASHED),
    "CORL AWAC": ({"actor": {"_mlp.": NET, "_log_std": LOG_STD}, "critic_1": {"_mlp.": CRITIC}}, NET, PLAIN),
    "body and critic": ({"net.": NET, "q1.": CRITIC}, squashed, SQUASHED),
    "flat": ({"pi.": NET, "vf.": CRITIC}, squashed, SQUASHED),
    "one layer": ({"pi.": NET[0]}, lambda x: NET[0](x).tanh(), {"squash": "tanh"}),
    "author's TD3": ({"l#1": NET}, lambda x: squashed(x) * 2.5, {**SQUASHED, "max_action": 2.5}),
    "max_action in the file": ({"actor": {"l#1": NET}, "max_action": 2.0}, lambda x: squashed(x) * 2, SQUASHED),
    "actor and target": ({"actor": {"fc#0": NET}, "actor_target": {"fc#0": mlp(DS, 2, DA)}}, squashed, SQUASHED),
    "author's SAC": (BODY_AND_MU, two_parts, SQUASHED),
    "actor-critic": ({"actor_critic.pi.net.": NET, "actor_critic.v.v_net.": CRITIC}, squashed, SQUASHED),
    "Lightning": ({"state_dict": {"actor.net.": NET}, "optimizer_states": [OPTIMISER], "loops": [[1], [2, 3]],
        "epoch": 2}, squashed, SQUASHED),
    "SpinUp": ({"pi.net.": BODY, "pi.mu_layer.": MU, "pi.log_std_layer.": MU, "q1.q.": CRITIC}, two_parts, SQUASHED),
    "trunk": ({"policy": {"trunk.": BODY, "mu.": MU}}, two_parts, SQUASHED),
    "averaged": ({"model": {"net.": mlp(DS, 8, 6, DA)}, "ema": {"net.": NET}}, squashed, SQUASHED),
    "wrapped": ({"model_state_dict": OrderedDict({"actor.net.": NET}), "epoch": 3}, NET, PLAIN),
    "half of its outputs": ({"": TWICE}, lambda x: TWICE(x)[:, :DA].tanh(), {**SQUASHED, "head": "mean_log_std"}),
    "half, scaled": ({"": TWICE}, lambda x: 2 * TWICE(x)[:, :DA].tanh(), {**SQUASHED, "head": "mean_log_std",
        "max_action": 2.0}),
    "d3rlpy IQL": ({"policy": {"_encoder._layers.": BODY, "_mu.": MU, "_logstd": LOG_STD[None]},
        "q_funcs": {"0._encoder._layers.": BODY, "0._fc.": nn.Linear(6, 1)}}, two_parts, SQUASHED),
    "CORL CQL": ({"actor": {"base_network.network.": TWICE} | AFFINE}, lambda x: TWICE(x)[:, :DA].tanh(), SQUASHED),
    "skrl": ({"policy": SKRL,
        "state_preprocessor": SCALER,
        "value_preprocessor": {"running_mean": torch.zeros(1), "running_variance": torch.ones(1)}},
        lambda x: MU(clipped(x, 0, net=BODY)), {**RELU, "squash": "none"}),
    "skrl 2": ({"policy": SKRL, "observation_preprocessor": SCALER | {"current_count": torch.ones(())},
        "state_preprocessor": {"running_mean": RUNNING_VAR, "running_variance": RUNNING_VAR}},
        lambda x: MU(clipped(x, 0, net=BODY)), {**RELU, "squash": "none"}),
    "scale without bias": ({"actor": {"l#1": NET}, "action_scale": BOUND}, lambda x: squashed(x) * BOUND, SQUASHED),
    "RLlib": (RLLIB | {"_logits._model.0.": HALVES}, lambda x: HALVES(BODY(x))[:, :DA], RLLIB_HEAD),
    "by key": ({"a": {"": NET}, "b": {"": CRITIC}}, squashed, {**SQUASHED, "actor": "a"}),
    "by layers": ({"x#1": NET}, squashed, {**SQUASHED, "layers": "x1,x2,x3"}),
    "dropout": ({"0.": NET[0], "3.": NET[2], "6.": NET[4]}, squashed, {**SQUASHED, "layers": ["0", "3", "6"]}),
    "statistics": ({"actor": {"": ELU_NET}, "obs_mean": MEAN, "obs_std": STD}, by_statistics, ELU_PLAIN),
    "numbered blocks": ({k: v for i in range(3) for k, v in named(f"_layers.{i}.linear.", NET[2 * i]).items()},
        squashed, SQUASHED),
    "a body of another name": ({"a_net.": BODY, "mu_layer.": MU, "log_std_layer.": MU}, two_parts, SQUASHED),
    "author's GAIL": ({"net.": NET, "log_stds": LOG_STD[None]}, squashed, SQUASHED),
    "ElegantRL": ({"net.": ELU_NET, "action_std_log": LOG_STD, "state_avg": STATS["_mean"],
        "state_std": STATS["_std"]}, lambda x: by_statistics(x).tanh(), {"activation": "elu", "squash": "tanh"}),
    "statistics without a name": ({"actor": {"": ELU_NET}, "mean": MEAN, "std": STD}, by_statistics, ELU_PLAIN),
    "statistics after the weights": (({"": ELU_NET}, {"mean": MEAN, "var": STD**2}), by_statistics, ELU_PLAIN),
    "CleanRL PPO with statistics": ({"actor_mean.": TANH_NET, "actor_logstd": LOG_STD[None],
        "obs_rms_state.mean": RUNNING_MEAN, "obs_rms_state.var": RUNNING_VAR},
        lambda x: clipped(x, 1e-8, 10, TANH_NET), {}),
    "Tianshou PPO": ({"policy.actor.preprocess.model.model.": BODY, "policy.actor.mu.model.0.": MU,
        "actor.sigma_param": LOG_STD[:, None], "critic.last.model.0.": nn.Linear(6, 1)}, lambda x: MU(BODY(x)),
        {**RELU, "squash": "none"}),
    "Stable-Baselines3 PPO": ({"mlp_extractor.policy_net.": BODY, "mlp_extractor.value_net.": BODY,
        "action_net.": MU, "value_net.": nn.Linear(6, 1), "log_std": LOG_STD}, lambda x: MU(BODY(x)), RELU),
    "Stable-Baselines3 SAC": ({"actor.latent_pi.": BODY, "actor.mu.": MU, "actor.log_std.": MU,
        "critic.qf0.": CRITIC}, two_parts, RELU),
    "CleanRL PPO": ({"actor_mean.": TANH_NET, "actor_logstd": LOG_STD[None], "critic.": CRITIC}, TANH_NET, {}),
    "CleanRL TD3": ((FC, {"": CRITIC}, {"": CRITIC}), lambda x: two_parts(x) * BOUND - BOUND, {}),
    "CleanRL SAC": ({**FC, "fc_logstd.": MU}, lambda x: two_parts(x) * BOUND - BOUND, {}),
    "rsl_rl 2": ({**RSL, "model_state_dict": RSL_MODEL, "obs_norm_state_dict": STATS}, standardised, ELU),
    "rsl_rl 3": ({**RSL, "model_state_dict": RSL_MODEL | {"actor_obs_normalizer": STATS,
        "critic_obs_normalizer": statistics()}}, standardised, ELU),
    "rsl_rl 5": ({**RSL, "actor_state_dict": {"mlp.": ELU_NET, "distribution.std_param": LOG_STD.exp(),
        "obs_normalizer": STATS}}, standardised, ELU),
    "rl_games": ({"model": GAMES | {"running_mean_std": RUNNING}, "epoch": 3}, clipped, {**ELU, "squash": "none"}),
    "rl_games before 1.2": ({"model": GAMES, "running_mean_std": RUNNING}, clipped, {**ELU, "squash": "none"}),
}  # fmt: skip
DISCRETE = {  # … its action values or logits
    "values": ({"": VALUES}, VALUES, {**RELU, "head": "values"}),
    "logits": ({"": VALUES}, VALUES, {**RELU, "head": "logits", "action_count": 4}),
    "probabilities": ({"": VALUES}, VALUES, {**RELU, "head": "probabilities", "action_count": 4}),
    "layer of values": ({"fc#1": BODY, "q.": MU}, lambda x: MU(BODY(x)), RELU),
    "q_net": ({"q_net.": VALUES, "q_net_target.": mlp(DS, 2, 4)}, VALUES, RELU),
    "SpinningUp": ({"pi.logits_net.": VALUES, "v.v_net.": CRITIC}, VALUES, RELU),
    "duelling": ({"body.": BODY, "advantage.": MU, "value.": nn.Linear(6, 1)}, lambda x: MU(BODY(x)), RELU),
    "CleanRL DQN": ({"network.": VALUES}, VALUES, {}),
    "CleanRL PPO": ({"actor.": TANH_NET, "critic.": CRITIC}, TANH_NET, {}),
    "CleanRL C51": ({"model_weights": {"network.": C51, "atoms": ATOMS}, "args": {"seed": 1}},
        lambda x: (C51(x).view(len(x), 4, 11).softmax(2) * ATOMS).sum(2), {}),
    "rl_games": ({"model": {k.replace("mu", "logits"): v for k, v in GAMES.items()}}, ELU_NET, ELU),
}  # fmt: skip


def saved(folder, content, name):
    suffix = ".cleanrl_model" if "CleanRL" in name else ".pt"
    path = folder / f"model{suffix}"
    torch.save(expanded(content), path)
    return path


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_actions(tmp_path, states, name):
    content, expected, options = CONTINUOUS[name]
    (policy,) = load(saved(tmp_path, content, name), **options).values()
    assert type(policy) is Actor
    torch.testing.assert_close(policy.act(states), expected(states).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions(tmp_path, states, name):
    content, outputs, options = DISCRETE[name]
    (policy,) = load(saved(tmp_path, content, name), **options).values()
    np.testing.assert_array_equal(policy.predict(states)[0], outputs(states).argmax(1))
    assert policy.output(states).mean.max() == 1  # the action that `predict` returns, not the distribution
    is_distribution = "PPO" in name or name in ("logits", "probabilities", "SpinningUp", "rl_games")
    if is_distribution:
        (policy,) = load(saved(tmp_path, content, name), stochastic=True, **options).values()
        torch.testing.assert_close(policy.output(states).mean, outputs(states).softmax(1).detach())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(tmp_path, states, activation):
    net = mlp(DS, 16, 8, DA, activation=ACTIVATIONS[activation])
    torch.save(net.state_dict(), tmp_path / "net.pt")
    save_file({f"actor.{key}": value.half() for key, value in net.state_dict().items()}, tmp_path / "half.safetensors")
    policies = load(tmp_path, activation=activation, squash="none", head="action")
    torch.testing.assert_close(policies["net"].act(states), net(states).detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(policies["half"].act(states), net(states).detach(), atol=1e-2, rtol=1e-2)


def tanh_normal(mean, std):
    return dist.TransformedDistribution(dist.Normal(mean, std), [dist.TanhTransform()])


DISTRIBUTIONS = {
    "CleanRL PPO": lambda x: dist.Normal(TANH_NET(x), LOG_STD.exp().expand(len(x), -1)),
    "rsl_rl 2": lambda x: dist.Normal(standardised(x), LOG_STD.exp().expand(len(x), -1)),
    "rsl_rl 5": lambda x: dist.Normal(standardised(x), LOG_STD.exp().expand(len(x), -1)),
    "Tianshou PPO": lambda x: dist.Normal(MU(BODY(x)), LOG_STD.exp().expand(len(x), -1)),
    "author's SAC": lambda x: tanh_normal(MU(BODY(x)), MU(BODY(x)).clamp(-20, 2).exp()),
    "CORL CQL": lambda x: tanh_normal(TWICE(x)[:, :DA], (0.5 * TWICE(x)[:, DA:] - 1).exp()),
    "CleanRL SAC": lambda x: dist.TransformedDistribution(
        tanh_normal(MU(BODY(x)), (-5 + 3.5 * (MU(BODY(x)).tanh() + 1)).exp()), dist.AffineTransform(-BOUND, BOUND)
    ),
    "half of its outputs": lambda x: tanh_normal(TWICE(x)[:, :DA], TWICE(x)[:, DA:].exp()),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(tmp_path, states, name):
    content, _, options = CONTINUOUS[name]
    (policy,) = load(saved(tmp_path, content, name), stochastic=True, **options).values()
    states = states[:40] / 3  # far from the bounds of tanh
    expected = DISTRIBUTIONS[name](states)
    actions = expected.sample()
    log_prob = expected.log_prob(actions).sum(1).detach()
    torch.testing.assert_close(policy.output(states).log_prob(actions), log_prob, rtol=1e-4, atol=1e-4)
    assert policy.output(states).log_prob(torch.ones_like(actions)).isfinite().all()  # also on the bound of tanh


WARNED = {
    "SAC": ("model.pt", CONTINUOUS["Stable-Baselines3 SAC"][0], RELU, "does not hold: pass max_action=… "),
    "CleanRL": ("model.cleanrl_model", CONTINUOUS["CleanRL PPO"][0], {}, "statistics that they do not save"),
    **{name: ("model.pt", CONTINUOUS[name][0], {**SQUASHED, "max_action": 2.0}, "statistics that they do not save")
       for name in ("CORL", "CORL IQL", "CORL CQL", "CORL AWAC")},
    "d3rlpy IQL": ("model.pt", *CONTINUOUS["d3rlpy IQL"][::2], r"save the model by model\.save\('model\.d3'\)"),
    "statistics": ("model.pt", *CONTINUOUS["statistics"][::2], r"standardised by 'obs' .* clipped to inf"),
}  # fmt: skip
SCALING = {  # what lies next to the weights and is not read
    r"ema\.shadow": {"ema": {"shadow": [torch.ones(3)]}},
    "action_high": {"action_high": torch.ones(3)},
    "min_action": {"min_action": 0.0, "max_action": 1.0},
    "action_multiplier": {"action_multiplier": 2.0},
    r"args\.action_scale": {"args": {"action_scale": 0.5}},
    "s_mean, s_std": {"s_mean": torch.ones(DS), "s_std": torch.ones(1, DS)},
    r"scaler\.mean_, scaler\.scale_": {"scaler": {"mean_": np.ones(DS), "scale_": np.ones(DS)}},
}
WARNED |= {
    name: ("model.pt", {"model": NET.state_dict(), **numbers, "obs_norm": True, "epoch": 3}, SQUASHED,
        rf"'model': {name} next to its layers are not read")
    for name, numbers in SCALING.items()
}  # fmt: skip


@pytest.mark.parametrize("file, content, options, message", WARNED.values(), ids=WARNED)
def test_what_may_scale_states_or_actions_is_warned_of(tmp_path, file, content, options, message):
    torch.save(expanded(content), tmp_path / file)
    with pytest.warns(UserWarning, match=message):
        load(tmp_path, **options)


def changed(**changes):
    return {key: value for key, value in {**NET.state_dict(), **changes}.items() if value is not None}


def moved(*places):
    """Return the layers at other positions of the `nn.Sequential`."""
    return {k: v for i, place in enumerate(places) for k, v in named(f"{place}.", NET[2 * i]).items()}


HEADS = "heads are action, mean, mean_log_std, values, logits, probabilities"
REFUSED = {  # … the message, and the options that it advises
    "nothing given": (changed(), {}, "does not say its activation and head and squash: pass activation=…", PLAIN),
    "no head": (changed(), {**RELU, "squash": "none"}, HEADS, {**RELU, "head": "values"}),
    "continuous and a count": (changed(), {**SQUASHED, "action_count": 3},
        "a continuous action, but action_count=3: pass head='values'",
        {**RELU, "action_count": 3, "head": "values"}),
    "several actions at once": ({"mlp_extractor.policy_net.": BODY, "action_net.": MU}, {**RELU, "head": "logits"},
        "does not say its action_count: pass action_count=… (--action-count …); of a network that chooses several",
        {**RELU, "head": "logits", "action_count": 3}),
    "another count": (changed(), {**RELU, "head": "logits", "action_count": 4},
        "has 3 discrete actions, but action_count=4: pass 3", {**RELU, "head": "logits", "action_count": 3}),
    "an actor and its average of one width": ({"actor": {"": mlp(DS, 8, DS)}, "actor_ema": {"": mlp(DS, 8, DS)}},
        PLAIN, "not clear among actor., actor_ema.: name the actor's key with actor=…",
        {**PLAIN, "actor": "actor_ema"}),
    "RLlib": (RLLIB | {"_logits._model.0.": HALVES}, RELU, "of RLlib does not say its head and squash", RLLIB_HEAD),
    "several agents": ({"actors.0.net.": mlp(DS, 8, DS), "actors.1.net.": mlp(DS, 8, DS)}, PLAIN,
        "not clear among actors.0.net., actors.1.net.: name the actor's key with actor=…",
        {**PLAIN, "actor": "actors.1"}),
    "no such actor": ({"a": changed(), "b": changed()}, {**PLAIN, "actor": "c"},
        "no layers of an actor 'c' in it, whose layers are in a, b", {**PLAIN, "actor": "a"}),
    "two critics": ({"q1.": NET, "q2.": NET}, RELU, "not clear among q1., q2.", {**RELU, "actor": "q1"}),
    "order": ({"a.": NET[0], "b.": NET[2], "c.": NET[4]}, PLAIN, "order with layers=…", {**PLAIN, "layers": "a,b,c"}),
    "no such layer": (changed(), {**PLAIN, "layers": "0,9"}, "no linear layer '9', expected one of 0, 2, 4",
        {**PLAIN, "layers": "0,2,4"}),
    "nothing between": (moved(0, 2, 3), PLAIN,
        "layers 2 and 3 have 0 modules between them, expected one activation", {**PLAIN, "layers": "0,2,3"}),
    "two networks": ({"encoder.": mlp(DS, 8, 6), "actor.": mlp(6, 8, DA)}, SQUASHED,
        "encoder.2 and actor.0 are of two networks, and a state dict does not say what is between them",
        {**SQUASHED, "layers": "encoder.0,encoder.2,actor.0,actor.2"}),
    "something before": (moved(1, 3, 5), PLAIN,
        "its first layer is 1, and a state dict does not say what is before", {**PLAIN, "layers": "1,3,5"}),
    "a name that says otherwise": ({"net.": BODY, "mu.": MU}, {**RELU, "head": "values"},
        "'mu' gives mean by its name, but head='values'", SQUASHED),
    "beta": ({"l#1": BODY, "alpha_head.": MU, "beta_head.": MU}, {**PLAIN, "layers": "l1,l2,alpha_head"},
        "alpha_head and beta_head are parameters of Beta distributions: pass a callable of states", None),
    "alpha and beta": ({"l#1": BODY, "alpha.": MU, "beta.": MU}, PLAIN, "alpha and beta are parameters of Beta", None),
    "something added": ({"fc#1": NET[:1], "res#1": mlp(8, 8, 8), "out.": NET[2]}, PLAIN,
        "if each layer reads the one before and nothing is added, its layers in order with layers=…", None),
    "deviations of rl_games": ({"model": GAMES}, {"activation": "elu", "squash": "none", "stochastic": True},
        "standard deviations are not known: load it without stochastic", {**ELU, "squash": "none"}),
    "deviations of d3rlpy": (CONTINUOUS["d3rlpy IQL"][0], {**SQUASHED, "stochastic": True},
        "standard deviations are not known: load it without stochastic", SQUASHED),
    "deviations of unknown kind": ({"net.": BODY, "mu.": MU, "sigma.": MU}, {**SQUASHED, "stochastic": True},
        "load it without stochastic", SQUASHED),
    "odd halves": (changed(), {**SQUASHED, "head": "mean_log_std"}, "which are no means and log standard", PLAIN),
    "halves and deviations": (BODY_AND_MU, {**SQUASHED, "head": "mean_log_std"},
        "lie apart from its means: leave head='mean_log_std' out", SQUASHED),
    "no deviations": (changed(), {**PLAIN, "stochastic": True}, "load it without stochastic", PLAIN),
    "unknown activation": (changed(), {**PLAIN, "activation": "sine"}, "'sine', expected one of relu, tanh", PLAIN),
    "norm": (changed(**{"1.weight": torch.ones(8), "1.bias": torch.ones(8)}), PLAIN, "linear layers: 1.weight", None),
    "cnn": ({"cnn.0.weight": torch.zeros(1, 1, 2, 2), "actor.": NET}, PLAIN, "linear layers: cnn.0.weight", None),
    "noise": ({"Q.": NET, "Q.6.weight_mu": torch.zeros(2, 3)}, RELU, "more than linear layers: Q.6.weight_mu", None),
    "noisy": ({"features.": NET, "adv.weight_mu": torch.ones(2, 3)}, {**RELU, "head": "values"}, "adv.weight", None),
    "memory": ({"actor.": NET, "memory_a.rnn.weight_ih_l0": torch.zeros(2, 2)}, PLAIN, "it is recurrent", None),
    "exploration": ({"actor.mu.": NET, "actor.log_std": torch.zeros(8, 3)}, SQUASHED, "save it as .zip", None),
    "widths": (changed(**{"2.weight": torch.zeros(6, 9)}), PLAIN, "2.weight reads 9 values, the layer before", None),
    "bias": (changed(**{"4.bias": torch.zeros(4)}), PLAIN, "4.weight (3, 6) and 4.bias (4,) are not a layer", None),
    "several statistics": ({"actor": {"": NET}, "obs_rms": STATS, "state_norm": STATS}, PLAIN,
        "several statistics of observations: obs_rms., state_norm.; save its own only, or as ONNX", None),
    "nan": (changed(**{"4.bias": torch.full((3,), math.nan)}), PLAIN,
        "4.bias must be finite floats, got float32; if training diverged, leave the file out, in a folder by skip=True",
        None),
    "sparse": (changed(**{"4.weight": torch.eye(3, 6).to_sparse()}), PLAIN, "names torch._utils._rebuild_sparse", None),
    "no layers": ({"weight": torch.zeros(2, 2)}, PLAIN, "expected linear layers such as '0.weight'", None),
    "a state's value": ({"value_net.": mlp(DS, 8, 1)}, RELU, "one output, expected one for each action", None),
}  # fmt: skip


@pytest.mark.parametrize("content, given, message, advised", REFUSED.values(), ids=REFUSED)
def test_state_dicts_are_refused_with_advice(tmp_path, states, content, given, message, advised):
    torch.save(expanded(content), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path / "net.pt", **given)["net"].output(states)
    if advised is not None:
        load(tmp_path / "net.pt", **advised)["net"].output(states)


def test_unordered_files_need_the_order_of_unnumbered_layers(tmp_path, states):
    save_file(expanded({"shared_net.": NET[0], "body.": NET[2], "mu.": NET[4]}), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="does not keep the order of its layers body, mu, shared_net: name "):
        load(tmp_path, **SQUASHED)
    policy = load(tmp_path, layers="shared_net,body,mu", **SQUASHED)["net"]
    torch.testing.assert_close(policy.act(states), squashed(states).detach())
