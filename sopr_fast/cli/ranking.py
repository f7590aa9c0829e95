"""Commands `sopr-fast fit` and `sopr-fast rank`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ..runtime.fields import flag
from ..runtime.process import is_first
from ..runtime.text import printable, to_cell
from ..sopr.config import Config
from .options import (
    add_device,
    add_log,
    add_policies,
    add_report,
    check_apart,
    check_outputs,
    read_log,
    read_policies,
    read_states,
    show,
    to_json,
)


def add_commands(commands: Any) -> None:
    """Add the commands to those of `sopr-fast`.

    Args:
        commands: Subparsers of the command line.
    """
    fit = commands.add_parser("fit", help="train a scoring model on policies with known returns")
    add_policies(fit)
    fit.add_argument(
        "--returns",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or parquet file with columns name and return, JSON, evaluations.npz, or a folder of runs with such "
        "files; policies without a return are left out",
    )
    _add_states(fit, required=True)
    add_log(fit, transitions=False)
    fit.add_argument(
        "--validation",
        nargs="+",
        metavar="NAME",
        default=[],
        help="policies of --returns that choose the weights to keep",
    )
    fit.add_argument("--out", type=Path, required=True, metavar="FILE", help="model to write, .safetensors")
    fit.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)")
    add_device(fit)
    fit.add_argument("--checkpoint", type=Path, metavar="FILE", help="file to write, and to resume from if it exists")
    fit.add_argument("--action-count", type=int, metavar="N", help="number of discrete actions")
    fit.add_argument("--paper", action="store_true", help="the paper's settings in place of the defaults below")
    _add_config(fit.add_argument_group("options of sopr_fast.Config"))
    fit.set_defaults(run=_fit)

    ranking = commands.add_parser("rank", help="rank candidates with a trained model")
    ranking.add_argument("--model", type=Path, metavar="FILE", help="trained model (default: that in SOPR_FAST_MODEL)")
    add_policies(ranking)
    _add_states(ranking, required=False)
    ranking.add_argument(
        "--subsets", type=int, metavar="N", help="subsets to score on (default: 5 of a log, or all that are clustered)"
    )
    ranking.add_argument("--seed", type=int, metavar="N", help="seed of drawing subsets from --states (default: 0)")
    ranking.add_argument(
        "--precision",
        dest="run_precision",
        choices=("fp32", "bf16"),
        help="operands of matrix products (default: that of the model)",
    )
    add_device(ranking)
    form = ranking.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    ranking.add_argument("--plot", type=Path, metavar="FILE", help="plot the scores to an image")
    add_report(ranking)
    ranking.add_argument(
        "--log",
        metavar="FILE",
        help="with --report: logged transitions, so that the report says how much of the log each candidate acts like",
    )
    add_log(ranking)
    ranking.set_defaults(run=_rank)


def _add_states(parser: argparse.ArgumentParser, *, required: bool) -> None:
    text = (
        "logged states: .npy, .npz, .hdf5, .parquet or a local Minari dataset; or .safetensors that Subsets.save wrote"
    )
    text += "" if required else " (default: the subsets kept with the model)"
    parser.add_argument("--states", required=required, metavar="FILE", help=text)


def _add_config(group: argparse._ArgumentGroup) -> None:
    for field in dataclasses.fields(Config):
        name, check = "--" + field.name.replace("_", "-"), field.metadata["check"]
        if check is flag:
            group.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=field.metadata["help"])
            continue
        group.add_argument(
            name,
            type=check.parse,
            choices=check.choices or None,
            default=argparse.SUPPRESS,  # those set on the command line go before `--paper`
            metavar=None if check.choices else check.parse.__name__,
            help=f"{field.metadata['help']} (default: {field.default})",
        )


def _fit(options: argparse.Namespace) -> None:
    from ..inputs.returns import load_returns, suggest
    from ..runtime.files import check_place
    from ..sopr.fitting import fit

    changes = {field.name: vars(options)[field.name] for field in dataclasses.fields(Config) if field.name in options}
    config = Config.paper(**changes) if options.paper else Config(**changes)
    check_apart(options)
    if is_first():
        check_place(options.out)
    policies = read_policies(options)
    returns = load_returns(options.returns, list(policies))
    for name in options.validation:
        if name not in policies or name not in returns.index:
            missing = "policy" if name not in policies else f"return in {options.returns} of"
            raise ValueError(f"--validation: no {missing} {name!r}{suggest(name, policies)}")
    ranker = fit(
        policies.take(name for name in policies if name not in options.validation),
        returns,
        read_states(options.states, options),
        validation=(policies.take(options.validation), returns) if options.validation else None,
        config=config,
        seed=options.seed,
        checkpoint=options.checkpoint,
    )
    ranker.save(options.out)
    count = len(ranker.training_policies.names)
    print(f"{printable(options.out)}: trained on {count} policies, {ranker.steps} steps")


def _rank(options: argparse.Namespace) -> None:
    from ..sopr.ranker import open_model, rank

    check_outputs(options)
    draws = options.states is not None and not options.states.endswith(".safetensors")
    for option, given, used, needed in (
        ("seed", options.seed is not None, draws, "--states FILE of a log"),
        ("log", options.log, options.report, "--report FILE"),
        ("max-episode-steps", options.max_episode_steps is not None, options.log, "--log FILE"),
        ("rows", options.rows is not None, options.log, "--log FILE"),
    ):
        if given and not used:
            raise ValueError(f"--{option} changes nothing without {needed}: add it, or leave --{option} out")
    model = open_model(options.model)  # before long work
    policies, known = read_policies(options), {}
    if options.log is not None:
        from ..estimators import covered_shares

        known["coverage"] = covered_shares(policies, read_log(options.log, options))
    ranking = rank(
        policies,
        read_states(options.states, options),
        model=model,
        subsets=options.subsets,
        seed=options.seed or 0,
    )
    if options.csv:
        frame = ranking.to_pandas().reset_index()
        text = frame.assign(policy=frame["policy"].map(to_cell)).to_csv(index=False, lineterminator="\n").rstrip("\n")
    elif options.json:
        text = to_json(ranking)
    else:
        text = ranking.table()
    show(ranking, text, options, **known)
