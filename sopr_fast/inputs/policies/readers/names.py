"""Names by which libraries and papers' code keep the networks of a policy: one table for all state dicts."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
    r"(?:.*\.)?(?:actor_|action_)?(log_?stds?|std_log|log_sigma|sigma_param|std|sigma|state_independent_scale)(?:_param(?:eter)?)?"
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

    library: str = ""
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
    warning: str = ""  # of files without statistics of observations


_CLEANRL = ".cleanrl_model"
AFFINE = ("log_std_multiplier.constant", "log_std_offset.constant")  # of log standard deviations
FORMS = (
    Form("CleanRL", ("actor_mean.0.weight", "actor_logstd"), activation="tanh", squash="none", clip=10.0,
         warning="CleanRL's scripts for continuous actions standardise observations by statistics that they do not "
         "save: rank with states standardised in the same way"),
    Form("CleanRL", ("fc1.weight", "fc_(mean|mu).weight", "action_scale"), activation="relu", squash="tanh",
         log_std_bounds=(-5.0, 2.0), log_std_tanh=True),
    Form("CleanRL", ("network.0.weight", "atoms"), activation="relu", head="values"),
    Form("CleanRL", ("network.0.weight",), _CLEANRL, activation="relu", head="values"),
    Form("CleanRL", ("actor.0.weight", "critic.0.weight"), _CLEANRL, activation="tanh", head="logits"),
    Form("rsl_rl", ("iter", "(model_state_dict.actor|actor_state_dict.mlp).0.weight"), squash="none", epsilon=1e-2),
    Form("rl_games", ("a2c_network..*",), epsilon=1e-5, clip=5.0),
    Form("skrl", ("policy..*.weight", "state_preprocessor.running_variance"), clip=5.0),
    Form("RLlib", ("_hidden_layers.0._model.0.weight", "_logits._model.0.weight"), is_named=False),
    Form("CORL", ("base_network.network.0.weight", AFFINE[0]), head="mean_log_std"),
    Form("Stable-Baselines3", ("mlp_extractor.policy_net.0.weight", "action_net.weight"), squash="none"),
    Form("Stable-Baselines3", ("actor.(latent_pi|mu).0.weight", "critic.qf0.0.weight"), squash="tanh", head="action"),
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
    """Return what the name of a group of layers says: a key of `HEADS`, "body", or "" if nothing."""
    parts = [part for part in parts_of(name) if part not in _GENERIC]
    for part in reversed(parts):
        if BODY.fullmatch(part):
            continue
        return next((role for role, pattern in HEADS.items() if pattern.fullmatch(part)), "")
    return "body" if parts_of(name) else ""


def is_read(key: str) -> bool:
    """Return whether an array of this name may belong to an actor."""
    is_layer = key.endswith((".weight", ".bias"))
    return is_layer or key in (*TEXTS, *SIDES) or bool(STATISTICS.fullmatch(key.lower()) or SPREAD.fullmatch(key))


def is_part_of(key: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a part of a dotted name matches the pattern."""
    return any(map(pattern.fullmatch, parts_of(key)))


def parts_of(key: str) -> list[str]:
    """Return the parts of a dotted name that are no numbers, in lower case, without leading underscores."""
    return [part.lstrip("_") for part in key.lower().split(".") if part.strip("_") and not part.isdigit()]
