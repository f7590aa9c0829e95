"""Commands `sopr-fast fit` and `sopr-fast rank`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ..runtime.checks import descriptions
from ..runtime.process import is_first
from ..runtime.text import counted, printable, suggest, to_cell
from ..sopr.config import Config
from .arguments import (
    add_command,
    add_log,
    add_output,
    add_policies,
    add_returns,
    add_run,
    check_apart,
    check_outputs,
    read_policies,
    read_returns,
    read_states,
    show,
)

_STATES = "logged states: .npy, .npz, .hdf5, .parquet or a Minari dataset; or .safetensors that Subsets.save wrote"
_INPUT = "--policies out/pendulum/policies"


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers of `sopr-fast`."""
    example = f"{_INPUT} --returns out/pendulum/returns.csv --states out/pendulum/log.npz --out out/model.safetensors"
    fit = add_command(
        commands,
        "fit",
        "train a scoring model on policies with known returns",
        "--policies PATH … --returns FILE … --states FILE --out FILE",
        f"{example} --steps 50",
        _fit,
    )
    add_policies(fit)
    add_returns(fit, "policies without a return are left out", required=True)
    add_log(fit, False, "--states", required=True, help=_STATES)
    run = add_run(fit)
    run.add_argument("--out", type=Path, required=True, metavar="FILE", help="model to write, .safetensors")
    run.add_argument("--checkpoint", type=Path, metavar="FILE", help="file to write, and to resume from")
    run.add_argument(
        "--validation",
        nargs="+",
        metavar="NAME",
        default=[],
        help="policies of --returns that choose the weights to keep",
    )
    run.add_argument("--paper", action="store_true", help="the paper's settings in place of the defaults below")
    _add_config(fit.add_argument_group("model and training, see sopr_fast.Config"))

    ranking = add_command(
        commands,
        "rank",
        "rank candidates with a trained model",
        "--policies PATH … --model FILE",
        f"{_INPUT} --model out/model.safetensors",
        _rank,
    )
    add_policies(ranking)
    add_log(ranking, False, "--states", help=f"{_STATES} (default: the subsets kept with the model)")
    run = add_run(ranking)
    run.add_argument("--model", type=Path, metavar="FILE", help="trained model (default: that in SOPR_FAST_MODEL)")
    run.add_argument(
        "--subsets", type=int, metavar="N", help="subsets to score on (default: 5 of a log, or all that are clustered)"
    )
    add_output(ranking, csv=True)


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
