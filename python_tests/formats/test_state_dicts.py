"""State dicts: the user's network with exactly their weights, and files that libraries write with fixed names."""

import pickle
import re
import warnings
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.needs import needs
from torch import nn

from sopr_fast.inputs.policies import Actor, collect, probe
from sopr_fast.inputs.policies import load_policies as load

DS, DA = 5, 3


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for reads, gives in pairwise(widths):
        layers += [nn.Linear(reads, gives), activation()]
    return nn.Sequential(*layers[:-1])


def named(prefix, module):
    return {f"{prefix}{key}": value for key, value in module.state_dict().items()}


torch.manual_seed(0)
NET, ONE, CRITIC, VALUES = mlp(DS, 8, 6, DA), mlp(DS, DA), mlp(DS + DA, 8, 1), mlp(DS, 8, 4)
TANH_NET, ELU_NET = mlp(DS, 8, DA, activation=nn.Tanh), mlp(DS, 8, DA, activation=nn.ELU)
LOG_STD, BOUND = torch.randn(DA) / 3, torch.tensor([1.0, 2.0, 0.5])
OPTIMISER = torch.optim.Adam(NET.parameters()).state_dict()


class Squashed(nn.Module):
    """An architecture that no table knows: a norm with a counter, actions scaled after tanh, and a higher precision."""

    def __init__(self):
        super().__init__()
        self.norm, self.pi = nn.BatchNorm1d(DS), mlp(DS, 8, 6, DA)
        self.register_buffer("bound", BOUND.clone())
        self.double()

    def forward(self, states):
        return self.bound * self.pi(self.norm(states)).tanh()


ACTOR = Squashed()
ACTOR(torch.randn(50, DS).double())
ACTOR.eval()
WEIGHTS = ACTOR.state_dict()
CHECKPOINT = {"actor": WEIGHTS, "actor_optimizer": OPTIMISER, "critic": CRITIC.state_dict(), "epoch": 3}
CONTAINERS = {  # file → what writes it, and the key of its weights
    "weights.pt": (lambda path: torch.save(WEIGHTS, path), None),
    "checkpoint.pt": (lambda path: torch.save(CHECKPOINT, path), "actor"),
    "nested.pth": (lambda path: torch.save({"model": {"agent.actor": {}, **CHECKPOINT}}, path), "model.actor"),
    "flat.pt": (lambda path: torch.save(named("pi.", ACTOR) | named("vf.", CRITIC), path), "pi"),
    "tensors.safetensors": (lambda path: save_file(WEIGHTS, path), None),
    "arrays.npz": (lambda path: np.savez(path, **{key: value.numpy() for key, value in WEIGHTS.items()}), None),
    "pickle.pkl": (lambda path: path.write_bytes(pickle.dumps({"a": {k: v.numpy() for k, v in WEIGHTS.items()}})), "a"),
}


@pytest.mark.parametrize("file", CONTAINERS)
def test_weights_of_every_container_act_in_the_users_module(tmp_path, states, file):
    write, key = CONTAINERS[file]
    write(tmp_path / file)
    for module in (Squashed, Squashed()):
        (policy,) = load(tmp_path / file, module=module, key=key).values()
        assert all(torch.equal(value, WEIGHTS[name]) for name, value in policy.original.state_dict().items())
        torch.testing.assert_close(policy.act(states), ACTOR(states.double()).float().detach())


def test_a_pattern_gives_each_file_a_module_of_its_own(tmp_path, states):
    for i in range(3):
        (tmp_path / f"run{i}").mkdir()
        torch.save({key: value * i for key, value in NET.state_dict().items()}, tmp_path / f"run{i}" / "actor.pt")
        torch.save(CRITIC.state_dict(), tmp_path / f"run{i}" / "critic.pt")
    policies = load(f"{tmp_path}/*/actor.pt", module=mlp(DS, 8, 6, DA))
    assert list(policies) == ["run0/actor", "run1/actor", "run2/actor"]
    torch.testing.assert_close(policies["run1/actor"].act(states), NET(states).detach())
    assert not policies["run0/actor"].act(states).any()
    with pytest.raises(FileNotFoundError, match=r"none/\*\.pt: no such file"):
        load(f"{tmp_path}/none/*.pt")


def test_weights_that_are_not_those_of_the_module_list_both_sides(tmp_path):
    torch.save(CHECKPOINT, tmp_path / "net.pt")
    wide = nn.Sequential(nn.Linear(DS, 9), nn.ReLU(), nn.Linear(9, 1), nn.ReLU(), nn.Linear(1, 1))
    torch.save(mlp(DS, 8, 1).state_dict() | {"extra.weight": torch.ones(2)}, tmp_path / "other.pt")
    for path, key, module, message in (
        ("other.pt", None, lambda: wide, r'Missing key.*"4\.weight", "4\.bias"\. Unexpected key.*"extra\.weight"\. '
         r"size mismatch for 0\.weight: .*\[8, 5\]\) from checkpoint, the shape in current model is .*\[9, 5\]"),
        ("net.pt", "policy", Squashed, "nothing under key='policy', its keys are actor, critic, epoch"),
        ("net.pt", None, Squashed, r"not those of the module: .*Missing key.*Unexpected key.*actor\.bound.*pass key=…"),
        ("net.pt", "actor", lambda: 3, "module=… made a int, expected a torch.nn.Module"),
        ("net.pt", "actor", nn.Linear, "module=… raised TypeError, called without arguments: .*in_features"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            load(tmp_path / path, module=module, key=key)
    torch.save(mlp(DS, 8, 1).state_dict() | {"0.bias": torch.full((8,), torch.nan)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"0\.bias must be finite floats.*diverged, leave the file out"):
        load(tmp_path / "other.pt", module=lambda: mlp(DS, 8, 1))


REFUSED = {  # content → the key that the refusal advises
    "a list of layers": (NET.state_dict(), None),
    "a checkpoint": ({"actor": NET.state_dict(), "critic": CRITIC.state_dict()}, "actor"),
    "CleanRL's and more": ({**named("actor_mean.", NET), "actor_logstd": LOG_STD, "x.weight": BOUND}, "actor_mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_prints_the_arrays_and_the_call_that_reads_them(tmp_path, monkeypatch, states, name):
    content, key = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    torch.save(content, "net.pt")
    with pytest.raises(ValueError, match=r"does not say its network\. .*(0\.weight|0\.bias) \(") as caught:
        load("net.pt")
    call = re.search(r"load_policies\((.*?)\), where make_actor", str(caught.value))[1]
    assert (f"key={key!r})" in str(caught.value)) == (key is not None)
    policies = eval(f"load({call})", {"load": load, "make_actor": lambda: mlp(DS, 8, 6, DA)})
    torch.testing.assert_close(policies["net"].act(states), NET(states).detach())


STATISTICS = {"_mean": torch.randn(1, DS), "_var": torch.ones(1, DS), "_std": torch.rand(1, DS) + 0.5, "count": BOUND}


def standardised(x):
    return ELU_NET((x - STATISTICS["_mean"]) / (STATISTICS["_std"] + 1e-2))


def layers(module, *names):
    """Return the weights of a sequence whose layers have these names."""
    return {f"{names[int(key[0]) // 2]}{key[1:]}": value for key, value in module.state_dict().items()}


FC, OWN = layers(NET, "fc1", "fc2", "fc_mu"), layers(NET, "hidden_0", "hidden_1", "mean")
D4RL = layers(NET, "fc0", "fc1", "last_fc") | layers(mlp(6, DA), "last_fc_log_std")
D4RL = {name.replace(".", "/"): value.numpy() for name, value in D4RL.items()}
D4RL |= {"fc0/weight": D4RL["fc0/weight"].astype(">f8"), "nonlinearity": "relu", "output_distribution": "tanh_gaussian"}
RSL = {"iter": 5, "optimizer_state_dict": OPTIMISER, "infos": None}
RSL_MODEL = named("actor.", ELU_NET) | named("critic.", CRITIC) | {"std": LOG_STD.exp()}
ELU = {"activation": "elu"}
FORMS = {  # file → content, its actions (or values of actions), options
    "ppo.cleanrl_model": ({**named("actor_mean.", TANH_NET), "actor_logstd": LOG_STD[None], **named("critic.", CRITIC)},
        TANH_NET, {}),
    "td3.cleanrl_model": (({**FC, "action_scale": BOUND[None], "action_bias": -BOUND[None]}, CRITIC.state_dict()),
        lambda x: NET(x).tanh() * BOUND - BOUND, {}),
    "discrete.cleanrl_model": ({**named("actor.", TANH_NET), **named("critic.", CRITIC)}, TANH_NET, {}),
    "dqn.cleanrl_model": (named("network.", VALUES), VALUES, {}),
    "rsl2.pt": ({**RSL, "model_state_dict": RSL_MODEL, "obs_norm_state_dict": STATISTICS}, standardised, ELU),
    "rsl3.pt": ({**RSL, "model_state_dict": RSL_MODEL | {f"actor_obs_normalizer.{k}": x for k, x in STATISTICS.items()}
        | {"critic_obs_normalizer._mean": BOUND}}, standardised, ELU),
    "rsl.pt": ({**RSL, "model_state_dict": RSL_MODEL}, ELU_NET, ELU),
    "d4rl.pkl": (D4RL, lambda x: NET(x).tanh(), {}),
    "bc.pkl": ({key.replace(".", "/"): value.numpy() for key, value in layers(TANH_NET, "fc0", "last_fc").items()}
        | {"nonlinearity": "tanh", "output_distribution": "gaussian"}, TANH_NET, {}),
    "own.npz": (OWN | layers(mlp(8, DA), "log_std"), lambda x: NET(x).tanh(), {}),
    "linear.npz": (layers(ONE, "mean"), lambda x: ONE(x).tanh(), {}),
    "texts.npz": (layers(TANH_NET, "hidden_0", "mean") | {"activation": "tanh", "squash": "none"}, TANH_NET, {}),
}  # fmt: skip


@pytest.mark.parametrize("file", FORMS)
def test_files_of_libraries_act_as_their_scripts(tmp_path, states, file):
    content, expected, options = FORMS[file]
    if file.endswith("npz"):
        np.savez(tmp_path / file, **content)
    elif file.endswith("pkl"):
        (tmp_path / file).write_bytes(pickle.dumps(content))
    else:
        torch.save(content, tmp_path / file)
    with warnings.catch_warnings(record=True, action="always") as caught:
        (policy,) = load(tmp_path / file, **options).values()
    told = "CleanRL standardise states by statistics that they do not save"
    assert [told in str(warning.message) for warning in caught] == [True] * (file == "ppo.cleanrl_model")
    assert type(policy) is Actor and (policy.name, policy.state_dim) == (file.partition(".")[0], DS)
    expected = expected(states).detach()
    if policy.is_discrete:
        np.testing.assert_array_equal(policy(states), expected.argmax(1))
    else:
        torch.testing.assert_close(policy.act(states), expected, rtol=1e-5, atol=1e-5)
    message = "rsl_rl does not say its activation: pass activation=…" if options else "its activation is .* out"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / file, activation=None if options else "elu")


def test_stacks_of_actors_of_one_form(tmp_path, states):
    nets = [layers(mlp(DS, 8, DA), "hidden_0", "mean") for _ in range(4)]
    np.savez(tmp_path / "sac.npz", **{name: torch.stack([net[name] for net in nets]) for name in nets[0]})
    policies = load([tmp_path / "sac.npz"])
    assert list(policies) == [f"sac-00{i}" for i in range(4)]
    rows = torch.arange(len(states))
    acted = collect([*policies.values()], states, rows, probe([*policies.values()], states, rows))
    for net, policy, actions in zip(nets, policies.values(), acted, strict=True):
        hidden = torch.relu(states @ net["hidden_0.weight"].T + net["hidden_0.bias"])
        expected = (hidden @ net["mean.weight"].T + net["mean.bias"]).tanh()
        torch.testing.assert_close(actions, expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(actions, policy.act(states))
    with pytest.raises(ValueError, match="'run': 4 policies at this path: pass the path alone"):
        load({"run": tmp_path / "sac.npz"})


@pytest.mark.parametrize("normalised", [False, True])
def test_models_of_rsl_rl(tmp_path, states, normalised):
    models, tensordict = needs("rsl_rl.models"), needs("tensordict")
    observed = tensordict.TensorDict({"policy": states}, [len(states)])
    distribution = {"class_name": "GaussianDistribution", "init_std": 1.0}
    model = models.MLPModel(observed, {"actor": ["policy"]}, "actor", DA, (8, 6), "elu", normalised, distribution)
    if normalised:
        model.obs_normalizer.update(states * 3 + 1)
    model.eval()
    content = {"actor_state_dict": model.state_dict(), "critic_state_dict": CRITIC.state_dict(), **RSL}
    torch.save(content, tmp_path / "m.pt")
    policy = load(tmp_path, activation="elu")["m"]
    torch.testing.assert_close(policy.act(states), model(observed).detach(), rtol=1e-5, atol=1e-5)


BROKEN = {
    "nonlinearity": ({**D4RL, "nonlinearity": "sine"}, "its activation is 'sine', expected one of relu, tanh, "),
    "no distribution": ({**D4RL, "output_distribution": None}, "'output_distribution' is '', expected tanh or none"),
    "objects": ({**D4RL, "fc0/bias": np.array([None] * 8)}, "an array of dtype 'O8'; only arrays"),
    "widths": ({**D4RL, "fc1/weight": np.zeros((6, 9), "f4")}, "reads 9 values, the layer before gives 8"),
    "bias": ({**D4RL, "fc1/bias": np.zeros(9, "f4")}, "fc1.bias (9,) are not a layer"),
    "nothing": ({"a": 1}, "expected arrays, found a; pass a callable of states instead, or move the file"),
}


@pytest.mark.parametrize("weights, message", BROKEN.values(), ids=BROKEN)
def test_files_that_are_not_policies(tmp_path, weights, message):
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(weights))
    with pytest.raises(ValueError) as caught:
        load(tmp_path / "p.pkl")
    assert message in str(caught.value) and "p.pkl: " in str(caught.value)


def test_pickled_modules_need_trust(tmp_path, states):
    for content, key in ((NET, None), ({"actor": NET, "critic": CRITIC}, "actor")):
        torch.save(content, tmp_path / "net.pt")
        with pytest.raises(ValueError, match=r"names \S+; only arrays, .*; trust=True opens it as code"):
            load(tmp_path, key=key)
        policy = load(tmp_path, key=key, trust=True)["net"]
        torch.testing.assert_close(policy.act(states), NET(states).detach())
    torch.save(NET.state_dict(), tmp_path / "net.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"damaged, or written by torch before 1\.6; trust=True opens it as code"):
        load(tmp_path, module=NET)
    torch.testing.assert_close(load(tmp_path, module=NET, trust=True)["net"].act(states), NET(states).detach())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_torch_did_not_write_are_refused(tmp_path):
    """Of members of one name, another program may read another one."""
    torch.save(NET.state_dict(), tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt", "a") as archive:
        archive.writestr(next(name for name in archive.namelist() if name.endswith("data/0")), b"")
    with pytest.raises(ValueError, match=r"net\.pt: an archive that torch did not write"):
        load(tmp_path, module=NET)
