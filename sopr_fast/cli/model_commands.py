"""Commands `sopr-fast fit` and `sopr-fast rank`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from ..runtime.checks import descriptions
from ..runtime.process import is_first
from ..runtime.text import counted, printable, suggest, to_cell
from ..sopr.config import Config
from .arguments import add_command, check_apart, check_outputs, read_policies, read_returns, read_states, show

_INPUT = "--policies out/pendulum/policies"


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers of `sopr-fast`."""
    example = f"{_INPUT} --returns out/pendulum/returns.csv --states out/pendulum/log.npz --out out/model.safetensors"
    fit = add_command(
        commands,
        "fit",
        "train a scoring model on policies with known returns",
        f"{example} --steps 50",
        _fit,
        "--policies --returns --states --out",
        "policies returns --columns --seed --device --checkpoint --validation --paper",
    )
    _add_config(fit.add_argument_group("model and training, see sopr_fast.Config"))
    add_command(
        commands,
        "rank",
        "rank candidates with a trained model",
        f"{_INPUT} --model out/model.safetensors",
        _rank,
        "--policies",
        "policies --states --columns --seed --device --model --subsets --report --json --csv",
    )


def _add_config(group: argparse._ArgumentGroup) -> None:
    texts = descriptions(Config)
    for field in dataclasses.fields(Config):
        name, check, text = "--" + field.name.replace("_", "-"), field.metadata["check"], texts.get(field.name, "")
        group.add_argument(
            name,
            type=check.parse,
            choices=check.choices or None,
            default=argparse.SUPPRESS,  # those set on the command line go before `--paper`
            metavar=None if check.choices else check.parse.__name__,
            help=f"{text} (default: {field.default})",
        )


def _fit(options: argparse.Namespace) -> None:
    from ..runtime.files import check_place
    from ..sopr.fitting import fit

    changes = {field.name: vars(options)[field.name] for field in dataclasses.fields(Config) if field.name in options}
    config = Config.paper(**changes) if options.paper else Config(**changes)
    check_apart(options)
    if is_first():
        check_place(options.out)
    policies = read_policies(options)
    returns = read_returns(options, list(policies))
    for name in options.validation:
        if name not in policies or name not in returns.index:
            missing = "policy" if name not in policies else "return in --returns of"
            raise ValueError(f"--validation: no {missing} {name!r}{suggest(name, policies)}")
    ranker = fit(
        policies.take(name for name in policies if name not in options.validation),
        read_states(options.states, options),
        returns,
        validation=(policies.take(options.validation), returns) if options.validation else None,
        config=config,
        seed=options.seed,
        checkpoint=options.checkpoint,
    )
    ranker.save(options.out)
    count = counted(len(ranker.training_policies.names), "policy")
    print(f"{printable(options.out)}: trained on {count}, {counted(ranker.config.steps, 'step')}")


def _rank(options: argparse.Namespace) -> None:
    from ..sopr.ranker import open_model, rank

    check_outputs(options)
    model = open_model(options.model)  # before long work
    states = read_states(options.states, options)
    ranking = rank(read_policies(options), states, model=model, subsets=options.subsets, seed=options.seed)
    if options.csv:
        frame = ranking.to_pandas().reset_index()
        text = frame.assign(policy=frame["policy"].map(to_cell)).to_csv(index=False, lineterminator="\n").rstrip("\n")
    else:
        text = ranking.table()
    show(ranking, options, text)
