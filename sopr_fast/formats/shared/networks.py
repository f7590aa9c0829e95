"""Layers of the acting network among the arrays of a file, found by one table of names for all libraries and papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...inputs.policies.actor import Layer
from ...inputs.policies.output import to_array
from ...runtime.text import list_names

Arrays = Mapping[str, Any]  # tensors, or values that numpy.asarray accepts
_MOST_ARRAYS, _LONGEST_NAME = 10_000, 400  # a file that repeats long names in long ones would fill the memory
_ASK = (
    "name the actor's key with actor=… (--actor …), or, if each layer reads the one before and nothing is added, its "
    "layers in order with layers=… (--layers …); else export it to ONNX"
)


def _names(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


# Parts of a dotted name, in lower case and without leading underscores.
NO_NETWORK = _names(r".*targ(et)?(_.*|\d*)", r"(target|targ|old)_.*", r".*_old", r".*optim.*", r"(log_)?alpha|sde_.*")
CRITIC = _names(
    r"(?!actor_)(.*_)?critics?(_.*|\d*)",
    r".*value.*|baseline.*",
    r"vf?(_?(net|head|func|function|mlp|layer))?_?\d*",
    r"q(f|_?net(work)?s?|_?func(tion)?s?|_head|_layer)?_?\d*|twin_?q.*|quantile_net|v_?out",
)
BODY = _names(
    r"(mlp|net|network|body|base|trunk|torso|backbone|shared|common|main|encoder|features?|preprocess|layer)s?(_?\d*)",
    r"hiddens?(_.*)?|(fc|l|linear|lin|dense|affine|layer)_?s?\d*",
    r"mlp_extractor|(policy|shared)_net|actor_mlp|latent_pi",
    r"(shared|feature|obs|state)_(net|mlp|layers|encoder|extractor)",
)
RECURRENT = _names(r".*(lstm|gru|rnn).*", r"weight_[ih]h_l\d+")
BETA = re.compile(r"(?:.*[._])?(alpha|beta)(?:[._].*)?")  # names of layers
AVERAGES = ("ema", "ema_model", "ema_state_dict")  # deployed instead of the weights next to them
_GENERIC = ("model", "net", "module", "state_dict", "model_state_dict")

_OF = r"(last_)?((fc|actor|action|policy|pi)_?)?"  # as in fc_mean, actor_logits, last_fc_log_std
_KIND = r"(_?(linear|layers?|heads?|fc|net|out(put)?|action|param(eter)?))?"
HEADS = {  # what the name of the last layer says of its output
    "log_std": re.compile(rf"{_OF}(log_?(std|sigma|stddev|scale)|std_log|sigma|std){_KIND}"),
    "mean": re.compile(rf"{_OF}(mu|means?|loc){_KIND}"),
    "logits": re.compile(rf"{_OF}logits?{_KIND}"),
    "probabilities": re.compile(rf"{_OF}prob(s|abilit(y|ies))?{_KIND}"),
    "values": re.compile(rf"{CRITIC.pattern}|adv(antage)?s?{_KIND}"),  # the largest advantage has the largest value
    "output": re.compile(rf"((last|final)_)?(fc|actor|action|policy|pi|out(put)?|last|final|head){_KIND}"),
}
SPREAD = re.compile(
    r"(?:.*\.)?(?:actor_|action_)?(log_?stds?|_log_std|_logstd|std_log|log_sigma|sigma_param|std|sigma|state_independent_scale)(?:_param(?:eter)?)?"
)
STATISTICS = re.compile(
    r"((?:.*\.)?(?:(?:actor_)?(?:obs?|observations?|states?|inputs?)(?:_(?:rms\w*|norm\w*|scaler|stat\w*|filter|preprocessor))?"
    r"|running_mean_std|running_state|normali[sz]er|rms)[._]|)(?:_|running_)?(mean|avg|var|std|eps|clip)(?:iance|_max)?"
)
SCALING = re.compile(  # names of what is not read, but may scale states or actions
    r"(obs?|observations?|states?|inputs?|actions?)_?(rms|means?|stds?|vars?|norm\w*|stat(s|istics)|scal\w+|bias|low|high)"
    r"|actions?_(min|max|limit|range|multiplier)|min_actions?|\w+_(low|high)|running_mean\w*|(vec_?)?normali[sz]\w+"
)

TEXTS = {  # what a file may say in words: its key → the option, and what its words mean
    "activation": ("activation", {}),
    "nonlinearity": ("activation", {}),
    "squash": ("squash", {}),
    "output_distribution": ("squash", {"tanh_gaussian": "tanh", "gaussian": "none"}),
}
SIDES = ("action_scale", "action_bias", "max_action", "atoms")
COUNTERS = ("num_batches_tracked", "count", "total_it", "epoch", "step", "steps", "iter")


@dataclass(frozen=True)
class Form:
    """What the code of a library says of its files, and the files do not; "" where it differs."""

    library: str = ""  # "" if its networks may have other layers than linear ones
    marks: tuple[str, ...] = ()  # patterns of names, each of which the file has
    suffix: str = ""
    activation: str = ""
    squash: str = ""
    head: str = ""
    is_named: bool = True  # the name of the last layer says what it returns
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)  # of a layer of log standard deviations
    log_std_tanh: bool = False  # mapped to these bounds by tanh instead of clamped
    epsilon: float = 1e-8  # added to variances of observations, or to deviations if the file has these
    clip: float = float("inf")  # of standardised observations
    warning: str = ""  # of files without statistics of observations, or without bounds of actions that it names


_CLEANRL = ".cleanrl_model"
_RAW = (
    "scripts of CleanRL and CORL standardise states by statistics that they do not save: if one wrote this file, rank "
    "with states standardised in the same way"
)
AFFINE = ("log_std_multiplier.constant", "log_std_offset.constant")  # of log standard deviations
FORMS = (
    Form("CleanRL", ("actor_mean.0.weight", "actor_logstd"), activation="tanh", squash="none", clip=10.0, warning=_RAW),
    Form("CleanRL", ("fc1.weight", "fc_(mean|mu).weight", "action_scale"), activation="relu", squash="tanh",
         log_std_bounds=(-5.0, 2.0), log_std_tanh=True),
    Form("CleanRL", ("network.0.weight", "atoms"), activation="relu", head="values"),
    Form("CleanRL", ("network.0.weight",), _CLEANRL, activation="relu", head="values"),
    Form("CleanRL", ("actor.0.weight", "critic.0.weight"), _CLEANRL, activation="tanh", head="logits"),
    Form("rsl_rl", ("iter", "(model_state_dict.actor|actor_state_dict.mlp).0.weight"), squash="none", epsilon=1e-2),
    Form("rl_games", ("a2c_network..*",), epsilon=1e-5, clip=5.0),
    Form("skrl", ("policy..*.weight", "(state|observation)_preprocessor.running_variance"), clip=5.0),
    Form("RLlib", ("_hidden_layers.0._model.0.weight", "_logits._model.0.weight"), is_named=False),
    Form("CORL", ("base_network.network.0.weight", AFFINE[0]), head="mean_log_std", warning=_RAW),
    Form("", ("actor.(net.)?(net|_mlp).0.weight", "(critic_1|qf.q1).(net|_mlp).0.weight"), warning=_RAW),
    Form("", ("(q_funcs.0|imitator)._encoder._layers.0.weight",),
         warning="these weights of d3rlpy lack its scalers of states and actions: save the model by "
         "model.save('model.d3'), unless it has none"),
    Form("Stable-Baselines3", ("mlp_extractor.policy_net.0.weight", "action_net.weight"), squash="none"),
    Form("Stable-Baselines3", ("actor.(latent_pi|mu).0.weight", "critic.qf0.0.weight"), squash="tanh", head="action",
         warning="Stable-Baselines3 scales these actions from [-1, 1] to bounds of the environment, which the file "
         "does not hold: pass max_action=… (--max-action …), or save the model as .zip"),
    Form("D4RL", ("last_fc.weight", "nonlinearity"), log_std_bounds=(float("-inf"), float("inf"))),
)  # fmt: skip


def form_of(keys: list[str], suffix: str) -> Form:
    """Return the form of a file with these names, an empty one if it is of no known library."""
    for form in FORMS:
        patterns = [re.compile(rf"(?:.*\.)?(?:{mark})") for mark in form.marks]
        if suffix.lower().endswith(form.suffix) and all(any(map(p.fullmatch, keys)) for p in patterns):
            return form
    return Form()


def role_of(name: str) -> str:
    """Return what the name of a group of layers says: a key of `HEADS`, "body", or "" if a word is not known."""
    for part in reversed(parts_of(name)):
        if not BODY.fullmatch(part) and part not in _GENERIC:
            return next((role for role, pattern in HEADS.items() if pattern.fullmatch(part)), "")
    return "body"


def is_read(key: str) -> bool:
    """Return whether an array of this name may belong to an actor."""
    is_layer = key.endswith((".weight", ".bias"))
    return is_layer or key in (*TEXTS, *SIDES) or bool(STATISTICS.fullmatch(key.lower()) or SPREAD.fullmatch(key))


def is_part_of(key: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a part of a dotted name matches the pattern."""
    return any(map(pattern.fullmatch, parts_of(key)))


def is_elsewhere(key: str) -> bool:
    """Return whether an array, or a file of such a name, belongs to a critic, a target or an optimiser."""
    return is_part_of(key, NO_NETWORK) or is_part_of(key, CRITIC)


def parts_of(key: str) -> list[str]:
    """Return the parts of a dotted name that are no numbers, in lower case, without leading underscores."""
    return [part.lstrip("_") for part in key.lower().split(".") if part.strip("_") and not part.isdigit()]


@dataclass(frozen=True)
class Network:
    """Names of the layers of an actor, in order."""

    layers: list[str]
    role: str  # what the name of the last one says: a key of `HEADS` or ""
    prefix: str  # what the names of all of them begin with
    is_chosen: bool = False  # other layers next to it do not act: the user named it, or it is an average
    log_std: str | None = None  # name of the layer of log standard deviations
    gap: str = ""  # the first place where an `nn.Sequential` does not have one module between two layers


def flatten(content: Any) -> dict[str, Any]:
    """Return the values in nested mappings, modules and statistics by dotted names, without states of optimisers.

    Slashes in names become dots. The first of a tuple of state dicts is that of the actor; statistics may follow.
    """
    result: dict[str, Any] = {}

    def fields(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return value.state_dict()
        inner = getattr(value, "__dict__", {})
        return inner if {"mean", "var"} <= inner.keys() else value

    def add(prefix: str, value: Any) -> None:
        value = fields(value)
        if isinstance(value, Mapping):
            if "param_groups" not in value:
                for key, item in value.items():
                    add(f"{prefix}{key}.".replace("/", "."), item)
        elif prefix:
            result[prefix[:-1]] = value
        if len(prefix) > _LONGEST_NAME or len(result) > _MOST_ARRAYS:
            raise ValueError(f"more than {_MOST_ARRAYS:,} values, or one whose name is longer than {_LONGEST_NAME}")

    if isinstance(content, tuple | list) and content and isinstance(first := fields(content[0]), Mapping):
        for item in map(fields, content[1:]):
            if isinstance(item, Mapping) and "mean" in item:
                add("obs_rms.", item)
        content = first
    add("", content)
    return result


def are_alike(contents: list[Any]) -> bool:
    """Return whether these are several state dicts, whose arrays have the same names and shapes."""
    flatten(dict(enumerate(contents)))  # unless they are too many
    is_nested = any(isinstance(content, tuple | list) for content in contents)
    shapes = [[(key, getattr(value, "shape", ())) for key, value in flatten(item).items()] for item in contents]
    return len(shapes) > 1 and not is_nested and all(each == shapes[0] for each in shapes)


def find_network(
    arrays: Arrays, actor: str | None = None, order: Sequence[str] | None = None, *, is_ordered: bool = True
) -> Network:
    """Return the actor's network among arrays by dotted names, or raise ValueError if it is not clear.

    Its names begin with `actor`, or the table of names finds it. Its layers have the given `order`, or that of their
    numbers and of the table; layers without numbers are in the order of the arrays, if these are ordered.
    """
    linear = [
        key.removesuffix(".weight")
        for key, value in arrays.items()
        if key.endswith(".weight") and getattr(value, "ndim", 0) == 2
    ]
    if len(beta := {match[1]: name for name in linear if (match := BETA.fullmatch(name.lower()))}) == 2:
        raise ValueError(
            f"{' and '.join(sorted(beta.values()))} are parameters of Beta distributions: pass a callable of states "
            "that returns their mean, or export that to ONNX"
        )
    if order is not None:
        if missing := [name for name in order if name not in linear]:
            raise ValueError(f"no linear layer {missing[0]!r}, expected one of {list_names(linear)}")
        spread = _only_log_std(name for name in linear if name not in order)
        return Network(list(order), role_of(order[-1]), "\n", is_chosen=True, log_std=spread)
    if actor is not None:
        names = [name for name in linear if f"{name}.".startswith(f"{actor}.")]
        if not names:
            tops = list_names(sorted({name.partition(".")[0] for name in linear}))
            raise ValueError(f"no layers of an actor {actor!r} in it, whose layers are in {tops}")
        return replace(_ordered(*_descend(names, f"{actor}."), is_ordered), is_chosen=True)
    own = [name for name in linear if not is_part_of(name, NO_NETWORK)]
    names = [name for name in own if not is_part_of(name, CRITIC)]
    if all(role_of(name) == "body" for name in names):  # fc1, fc2, q: the layer next to them acts
        owners = {name.rpartition(".")[0] for name in names}
        names = [name for name in own if not names or name.rpartition(".")[0] in owners]
    if not names:
        seen = list_names(sorted(arrays))
        raise ValueError(f"expected linear layers such as '0.weight', found {seen}; pass a callable of states instead")
    return _ordered(*_descend(names), is_ordered)


def _descend(names: list[str], prefix: str = "") -> tuple[list[str], str]:
    """Return the layers of the container that acts, and its prefix."""
    while True:
        parts = dict.fromkeys(name[len(prefix) :].partition(".")[0] for name in names)
        inner = [part for part in parts if f"{prefix}{part}" not in names]
        averages = [part for part in inner if part in AVERAGES]
        if not averages and not (len(parts) == 1 and inner):
            return names, prefix
        prefix = f"{prefix}{(averages or inner)[0]}."
        names = [name for name in names if name.startswith(prefix)]


def _ordered(names: list[str], prefix: str, is_ordered: bool) -> Network:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_place(name)[0], []).append(name)
    roles = {stem: role_of(stem[len(prefix) :]) for stem in groups}
    bodies, outputs = ([stem for stem in groups if roles[stem] in kinds] for kinds in (("", "body"), ("output",)))
    heads = [stem for stem in groups if roles[stem] not in ("", "body", "output", "log_std")]
    order = [*bodies, *outputs, *heads]
    alike = {re.sub(r"\d+", "#", stem) for stem in bodies}
    is_alone = len(bodies) == 1 and all(len(groups[stem]) == 1 for stem in order[1:])
    is_unknown = any(roles[stem] == "" for stem in bodies) and not is_alone
    if is_unknown or len(alike) < len(bodies) or len(heads) > 1 or not order:
        raise ValueError(f"which of its networks acts is not clear among {list_names(list(groups))}: {_ASK}")
    if not is_ordered and max(len(bodies), len(outputs)) > 1:
        raise ValueError(f"the file does not keep the order of its layers {list_names(sorted(names))}: {_ASK}")
    layers = [name for stem in order for name in sorted(groups[stem], key=lambda name: _place(name)[1])]
    role = roles[order[-1]]
    return Network(
        layers,
        role if role not in ("", "body") else role_of(prefix),
        prefix,
        is_chosen=any(part in AVERAGES for part in prefix.split(".")),
        log_std=_only_log_std(name for stem in groups if roles[stem] == "log_std" for name in groups[stem]),
        gap=_gap(layers),
    )


def _place(name: str) -> tuple[str, int, bool]:
    """Return a layer's stem, its number, and whether it is in an `nn.Sequential`: ("net.", 2, True) of "net.2"."""
    if block := re.fullmatch(r"(.*\.|)(\d+)\.(?:0|fc|lin|linear|layer|dense|_model\.0)", name):
        return block[1], int(block[2]), False  # a block has its activation in itself
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), stem[-1:] in ("", ".")


def _gap(names: list[str]) -> str:
    """Return where there may be other modules than one activation between two layers."""
    before, previous = "", ("\n", 0, False)
    stems = [_place(name)[0] for name in names]
    for name, place in zip(names, map(_place, names), strict=True):
        stem, number, is_in_sequence = place
        if previous[0] not in ("\n", stem) and stems.count(stem) > 1:
            return f"{before} and {name} are of two networks, and a state dict does not say what is between them"
        if is_in_sequence and previous[0] != stem and number > 0:
            return f"its first layer is {name}, and a state dict does not say what is before it"
        if is_in_sequence and previous[0] == stem and (between := number - previous[1] - 1) != 1:
            return f"layers {before} and {name} have {between} modules between them, expected one activation"
        before, previous = name, place
    return ""


def _only_log_std(names: Iterable[str]) -> str | None:
    found = [name for name in names if role_of(name) == "log_std"]
    return found[0] if len(found) == 1 else None


def floats(arrays: Arrays, key: str) -> Tensor:
    """Return array `key` in float32, or raise ValueError if it is not of finite floats."""
    values = to_array(arrays[key])
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        hint = "; if training diverged, leave the file out, in a folder by skip=True (--skip)"
        raise ValueError(f"{key} must be finite floats, got {values.dtype}{hint if values.dtype.kind == 'f' else ''}")
    return torch.from_numpy(np.array(values, np.float32, order="C"))


def layer(arrays: Arrays, name: str) -> Layer:
    """Return weight (out, in) and bias (out,) of a layer, zeros without one, or raise ValueError if they do not fit."""
    weight_key, bias_key = f"{name}.weight", f"{name}.bias"
    weight = floats(arrays, weight_key)
    bias = floats(arrays, bias_key) if bias_key in arrays else weight.new_zeros(len(weight))
    if weight.numel() == 0 or bias.shape != weight.shape[:1]:
        shapes = f"{weight_key} {tuple(weight.shape)} and {bias_key} {tuple(bias.shape)}"
        raise ValueError(f"{shapes} are not a layer, expected (out, in) and (out,)")
    return weight, bias


def perceptron(arrays: Arrays, names: Iterable[str]) -> list[Layer]:
    """Return the layers, each of which reads the output of the one before, or raise ValueError if widths do not fit."""
    result: list[Layer] = []
    for name in names:
        result.append(layer(arrays, name))
        reads = result[-1][0].shape[1]
        if len(result) > 1 and reads != len(result[-2][0]):
            raise ValueError(f"{name}.weight reads {reads} values, the layer before gives {len(result[-2][0])}")
    return result
