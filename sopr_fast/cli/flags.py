"""Every command and flag of `sopr-fast`, and flags in place of the parameters that messages of the library name."""

from __future__ import annotations

import dataclasses
import re
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from ..estimators.methods import DEFAULT_METHODS, METHODS
from ..runtime.checks import descriptions
from ..sopr.config import Config

MEASURE_CODE = 3  # of `--exit-code`
_METHODS = ", ".join(f"'{name}'" if "(" in name else name for name in METHODS)


def _value(metavar: str, about: str, **options: Any) -> dict[str, Any]:
    several = {"action": "extend"} if "nargs" in options else {}  # a repeated flag adds values
    return {"metavar": metavar, "help": about, **several, **options}


def _switch(about: str) -> dict[str, Any]:
    return {"action": "store_true", "help": about}


def _config() -> dict[str, dict[str, Any]]:
    """Return a flag for each option of the model and its training; those that are set go before `--paper`."""
    texts, flags = descriptions(Config), {}
    for field in dataclasses.fields(Config):
        check, about = field.metadata["check"], f"{texts.get(field.name, '')} (default: {field.default})"
        kind = {"choices": check.choices} if check.choices else {"type": check.parse, "metavar": check.parse.__name__}
        flags["--" + field.name.replace("_", "-")] = {"help": about, "default": SUPPRESS, **kind}
    return flags


FLAGS: dict[str, dict[str, dict[str, Any]]] = {  # groups of `--help`, and what argparse takes
    "policies": {
        "--policies": _value(
            "PATH",
            "files of policies (.npz .npy .zip .d3 .onnx .pt .pth .safetensors .pkl .cleanrl_model) or "
            "folders with subfolders, named by their paths relative to the folder that contains all of them; or "
            "file.py:name or package.file:name of a dict, a list, or a function that returns one",
            nargs="+",
        ),
        "--module": _value(
            "NAME", "file.py:name or package.file:name of the function that makes the network of state dicts"
        ),
        "--key": _value("KEY", "where checkpoints hold its weights, such as actor"),
        "--activation": _value("NAME", "activation between layers of files that do not say it (rsl_rl): elu, …"),
        "--action-count": _value("N", "number of discrete actions", type=int),
        "--trust": _switch("run code in the files if reading them needs it"),
    },
    "returns": {
        "--returns": _value(
            "FILE",
            "CSV file with columns name and return, JSON object, evaluations.npz, or a folder of runs with such "
            "files: policies without a return are candidates, or left out; a later one adds returns, and replaces "
            "those of the same name",
            type=Path,
            nargs="+",
        ),
        "--return-columns": _value(
            "PART=NAME",
            "columns of tables: name, return, cost, error, rollouts, such as return=cumulative_reward",
            nargs="+",
        ),
    },
    "log": {
        "--log": _value(
            "FILE",
            "logged transitions: .hdf5, .npz, .csv, .parquet, .pkl or a Minari dataset; or only states, as for fit",
        ),
        "--states": _value(
            "FILE",
            "logged states: .npy, .npz, .hdf5, .csv, .parquet or a Minari dataset (default of rank: the subsets kept "
            "with the model)",
        ),
        "--columns": _value(
            "PART=NAME",
            "names in the log, such as states=x,speed actions=u rewards=r; fit and rank take states=… alone",
            nargs="+",
        ),
        "--ends": {"choices": ("terminal", "cut"), "help": "what ends of episodes are, if the log does not say"},
        "--max-episode-steps": _value(
            "N",
            "time limit of the environment, if the log does not show where it cut episodes, or if policies may reach "
            "it; 1 for a bandit",
            type=int,
        ),
    },
    "run": {
        "--seed": _value("N", "seed of everything random (default: 0)", type=int, default=0),
        "--device": _value("NAME", "compute device, such as cuda (default: cpu)"),
        "--out": _value("FILE", "model to write, .safetensors", type=Path),
        "--paper": _switch("the paper's settings in place of the defaults below"),
        "--model": _value("FILE", "trained model (default: that in SOPR_FAST_MODEL)", type=Path),
        "--subsets": _value("N", "subsets to score on (default: 5 of --states, or all that the model keeps)", type=int),
        "--checkpoint": _value("FILE", "file to write, and to resume from", type=Path),
        "--checkpoints": _value("DIR", "folder to keep the training on this log in, and to resume from", type=Path),
        "--method": _value("NAME", f"one of {_METHODS}"),
        "--methods": _value("NAME", f"methods: {_METHODS} (default: the first {len(DEFAULT_METHODS)})", nargs="+"),
        "--simulator": _value(
            "NAME",
            "method that values policies (default: Simulator; ImportanceWeighting for bandits with probabilities)",
        ),
        "--set": _value(
            "OPTION=VALUE",
            "options of the method, or of the simulator of several methods, such as updates=20000",
            nargs="+",
            default=[],
        ),
        "--cv": _value("N", "random folds (default: 5)", type=int, default=5),
        "--incumbent": _value("NAME", "policy in use (default: the best known one)"),
        "--progress": _value(
            "FILE", "JSON object of policy and training step; in a run, later policies count as better", type=Path
        ),
        "--groups": _value(
            "FILE",
            "JSON object of policy and group: the folds of evaluate, or the runs of --progress",
            type=Path,
        ),
        "--measure": _value("N", "name up to N candidates to measure next", type=int),
        "--exit-code": _switch(
            f"end with {MEASURE_CODE} if the verdict is to measure, 0 if it is to deploy or keep, 2 after an error"
        ),
        "--report": _value("FILE", "write a report, one HTML file", type=Path),
        "--json": _switch("print JSON"),
    },
}


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: what it does, an example, the flags it needs and takes, by name or by group, and flags of its own.

    The example runs after the command that writes its files.
    """

    about: str
    example: str
    required: str = ""
    others: str = ""
    own: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    title: str = "options"  # of its own flags
    after: str = ", after `sopr-fast demo`"


_POLICIES = "--policies out/pendulum/policies"
_INPUT = f"{_POLICIES} --log out/pendulum/log.npz"
_OF_LOG = "policies --columns --ends --max-episode-steps --seed --set --json"
COMMANDS = {
    "demo": Command(
        "rank embedded policies, choose one, and write files for the examples of other commands",
        "--out out",
        own={"--out": _value("DIR", "where to write (default: out)", type=Path, default=Path("out"))},
        after="",
    ),
    "fit": Command(
        "train a scoring model on policies with known returns",
        f"{_POLICIES} --returns out/pendulum/returns.csv --states out/pendulum/log.npz --out out/model.safetensors "
        "--steps 50",
        "--policies --returns --states --out",
        "policies returns --columns --seed --device --checkpoint --paper",
        own=_config(),
        title="model and training, see sopr_fast.Config",
    ),
    "rank": Command(
        "rank candidates with a trained model",
        f"{_POLICIES} --model out/model.safetensors",
        "--policies",
        "policies --states --columns --seed --device --model --subsets --report --json",
        after=", after that of `sopr-fast fit --help`",
    ),
    "evaluate": Command(
        "measure how well each method ranks policies with known returns",
        f"{_INPUT} --returns out/pendulum/returns.csv --methods NearestPolicy GaussianProcess --cv 2",
        "--policies --log --returns",
        f"{_OF_LOG} returns --device --checkpoints --methods --cv --groups --report",
    ),
    "select": Command(
        "say which policy to deploy, keep or measure",
        f"{_INPUT} --measure 2",
        "--policies --log",
        f"{_OF_LOG} returns --checkpoints --incumbent --progress --groups --measure --simulator --exit-code --report",
    ),
    "estimate": Command(
        "value policies by an estimator",
        f"--method FQE {_INPUT} --set updates=1000",
        "--policies --log --method",
        f"{_OF_LOG} --checkpoint",
    ),
    "info": Command(
        "describe the installation or a log",
        "out/pendulum/log.npz",
        others="policies --columns --ends --max-episode-steps",
        own={"path": _value("FILE", "log of states or transitions", type=Path) | {"nargs": "?"}},
    ),
}
_NAMES = [flag[2:].replace("-", "_") for group in FLAGS.values() for flag in group]
_PARAMETERS = "|".join([*_NAMES, "subset_size", "clusters"])  # the last are those of `Config`
_VALUE = r"(?:\{[^}]*\}|\[[^\]]*\]|'[^']*'|[^\s,;:()]*[^\s,;:().])"
_OPTION = re.compile(r"(?<![\w-])--[a-z]")
_PAIR = re.compile(rf"\b({_PARAMETERS})=({_VALUE})")
_CALL = re.compile(rf"(?:sopr_fast\.)?\b(?:load_\w+|Config)\((?:…, |'[^']*', )?((?:\w+={_VALUE}(?:, )?)+)\)")
_CALL_OR_PAIR = re.compile(f"{_CALL.pattern}|{_PAIR.pattern}")


def with_flags(message: str) -> str:
    """Return a message of the library for the command line, such as "pass --trust" for "pass trust=True".

    Messages that name flags, as those of the commands do, are returned.
    """
    if _OPTION.search(message):
        return message
    message = message.replace("load_returns(…, columns=", "load_returns(…, return_columns=")
    return _CALL_OR_PAIR.sub(lambda found: _PAIR.sub(_flag, found[1] or found[0]).replace(", --", " --"), message)


def _flag(pair: re.Match[str]) -> str:
    """Return an option as one types it: a mapping becomes NAME=VALUE, a sequence words."""
    parameter, value = pair.groups()
    flag = f"--{parameter.replace('_', '-')}"
    if value == "True":
        return flag
    if parameter == "module":
        value = f"package.file:{value}"
    value = re.sub(r"\[(.*?)\]", lambda names: names[1].replace(", ", ","), value)
    words = value.strip("{}").replace("': ", "=").replace("'", "")
    return f"{flag} {words.replace(', ', ' ')}"
