"""Commands `sopr-fast fit` and `sopr-fast rank`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.options import flag
from ..runtime.text import printable, to_cell
from ..sopr.config import Config
from ..sopr.settling import UntilSettled
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
    without_nan,
    write_plot,
    write_report,
)
from .processes import is_first

if TYPE_CHECKING:
    from ..ranking.ranking import Ranking
    from ..sopr.ranker import Ranker


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
    held_out = fit.add_mutually_exclusive_group()
    held_out.add_argument(
        "--validation-returns",
        type=Path,
        metavar="FILE",
        help="returns of the policies that choose the weights to keep",
    )
    held_out.add_argument(
        "--validation", nargs="+", metavar="NAME", help="policies of --returns that choose the weights to keep"
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
        "--subsets",
        type=_to_subsets,
        metavar="N|auto|FILE",
        help="subsets to score on; or auto: as many as settle the top of the order; or a .safetensors file "
        "that Subsets.save wrote (default: 5, or all kept)",
    )
    for field in dataclasses.fields(UntilSettled):
        ranking.add_argument(
            f"--{field.name}",
            type=field.metadata["check"].parse,
            default=argparse.SUPPRESS,  # those set without `--subsets auto` are refused
            metavar=field.metadata["check"].parse.__name__,
            help=f"with --subsets auto: {field.metadata['help']} (default: {field.default})",
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
    ranking.add_argument(
        "--win-probability", action="store_true", help="with --json: add the win probability of every pair"
    )
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


_OF_SUBSETS = ("subset_size", "clusters", "subsets", "kmeans_iterations", "kmeans_restarts")


def _to_subsets(text: str) -> int | str | Path:
    if text == "auto":
        return text
    if text.endswith(".safetensors"):
        return Path(text)
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, auto, or .safetensors file") from None


def _fit(options: argparse.Namespace) -> None:
    from ..inputs.logs.keys import list_names
    from ..inputs.returns import load_returns, suggest
    from ..runtime.files import check_place
    from ..sopr.fitting import fit

    changes = {field.name: vars(options)[field.name] for field in dataclasses.fields(Config) if field.name in options}
    config = Config.paper(**changes) if options.paper else Config(**changes)
    if config.encoder == "mlp" and (heads := [name for name in changes if name.endswith("_heads")]):
        raise ValueError(f"SOPR-MLP has no attention heads: leave --{heads[0].replace('_', '-')} or --encoder mlp out")
    if options.states.endswith(".safetensors") and (unused := [name for name in changes if name in _OF_SUBSETS]):
        raise ValueError(
            f"--states {options.states} holds clustered subsets: leave --{unused[0].replace('_', '-')} out"
        )
    check_apart(options)
    if is_first():
        check_place(options.out)
    policies = read_policies(options)
    returns, held_out = load_returns(options.returns, list(policies)), None
    if options.validation_returns is not None:
        held_out = load_returns(options.validation_returns, list(policies))
        if both := [name for name in held_out.index if name in returns.index]:
            raise ValueError(f"policy {both[0]!r} is in both {options.returns} and {options.validation_returns}")
        if not any(name in policies for name in held_out.index):
            raise ValueError(
                f"no policy has a return in {options.validation_returns}: it names {list_names([*held_out.index])}, "
                f"the policies are named {list_names([*policies])}"
            )
    elif options.validation:
        chosen = list(dict.fromkeys(options.validation))
        for name in chosen:
            if name not in returns.index:
                raise ValueError(f"--validation: no return of {name!r} in {options.returns}")
            if name not in policies:
                raise ValueError(f"--validation: no policy {name!r}{suggest(name, policies)}")
        held_out, returns = returns.loc[chosen], returns.drop(chosen)
    validation = [] if held_out is None else [name for name in held_out.index if name in policies]
    ranker = fit(
        policies.take(name for name in policies if name not in validation),
        returns,
        read_states(options.states, options),
        validation=(policies.take(validation), held_out) if validation else None,
        config=config,
        seed=options.seed,
        checkpoint=options.checkpoint,
    )
    _save(ranker, options.out)
    count = len(ranker.training_policies.names)
    print(f"{printable(str(options.out))}: trained on {count} policies, {ranker.steps} steps")


def _save(ranker: Ranker, path: Path) -> None:
    """Save a trained model at `path`; where that fails, as on a full disk, save it in another folder and raise."""
    try:
        ranker.save(path)
    except OSError as error:
        for folder in (tempfile.gettempdir(), Path.home()):
            kept = Path(folder, f"{secrets.token_hex(4)}-{path.name}")
            try:
                ranker.save(kept)
            except OSError:
                continue
            raise OSError(f"{error}; the trained model is in {kept} instead") from error
        raise


def _rank(options: argparse.Namespace) -> None:
    from ..sopr.loading import open_model, rank

    check_outputs(options)
    limits = {f.name: vars(options)[f.name] for f in dataclasses.fields(UntilSettled) if f.name in options}
    rule = UntilSettled(**limits)
    if limits and options.subsets != "auto":
        name = next(iter(limits))
        raise ValueError(f"--{name} is used only by --subsets auto: add --subsets auto, or leave --{name} out")
    is_drawn = options.states is not None and not options.states.endswith(".safetensors")
    if options.seed is not None and (not is_drawn or isinstance(options.subsets, Path)):
        raise ValueError("--seed draws subsets of logged states: add --states FILE of a log, or leave --seed out")
    if options.win_probability and not options.json:
        raise ValueError("--win-probability is printed only in JSON: add --json, or leave --win-probability out")
    for name in ("max_episode_steps", "rows"):
        if options.log is None and getattr(options, name) is not None:
            name = name.replace("_", "-")
            raise ValueError(f"--{name} is an option of transitions: add --log FILE, or leave --{name} out")
    if options.log is not None and options.report is None:
        raise ValueError("--log is used only by a report: add --report FILE, or leave --log out")
    model = open_model(options.model)  # before long work
    policies, coverage = read_policies(options), None
    if options.log is not None:
        from ..estimators import covered_shares

        coverage = covered_shares(policies, read_log(options.log, options))
    ranking = rank(
        policies,
        read_states(options.states, options),
        model=model,
        subsets=rule if options.subsets == "auto" else options.subsets,
        seed=options.seed or 0,
    )
    try:
        _show(ranking, rule, options)
    finally:  # also where the reader of stdout, such as `head`, has closed it
        write_plot(ranking, options)
        write_report(ranking, options, **({} if coverage is None else {"coverage": coverage}))


def _show(ranking: Ranking, rule: UntilSettled, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(without_nan(ranking.to_dict(win_probability=options.win_probability)), indent=1))
    elif options.csv:
        _write_csv(ranking)
    else:
        print(ranking.table())
        if ranking.settled is not None and ranking.subset_scores is not None:
            places = "the best is" if rule.top == 1 else f"the first {rule.top} places are"
            print(f"{places} {'' if ranking.settled else 'not '}settled after {ranking.subset_scores.shape[1]} subsets")


def _write_csv(ranking: Ranking) -> None:
    frame = ranking.to_pandas().reset_index()
    frame["policy"] = frame["policy"].map(to_cell)
    print(frame.to_csv(index=False, lineterminator="\n"), end="")
