"""`sopr-fast`: train and rank on files, run the embedded example, show what is installed."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import io
import json
import logging
import math
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ._version import __version__
from .cli_processes import is_first, shared_work, speaks_of
from .cli_selection import add_commands as add_selection_commands
from .runtime.options import flag
from .runtime.text import printable
from .sopr.config import Config
from .sopr.settling import UntilSettled

if TYPE_CHECKING:
    from .policies import Policy
    from .ranking import Ranking

ACTIVATIONS = (
    "relu",
    "tanh",
    "elu",
    "gelu",
    "silu",
    "mish",
    "selu",
    "leaky_relu",
    "sigmoid",
    "softplus",
    "identity",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Command and options; by default those of the process.

    Returns:
        Exit code: 0; 2 after wrong input, with one line on stderr; 130 after an interrupt.
    """
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: not every encoding has ±, or all names
    with warnings.catch_warnings(), _log_to_stderr():
        warnings.showwarning = _show_warning
        try:
            with shared_work():
                options.run(options)
            print(end="", flush=True)
        except BrokenPipeError:
            pass  # the reader, such as `head`, has closed the pipe
        except (ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError) as error:
            if speaks_of(error):
                _complain("error", error)
            return 2
        except KeyboardInterrupt as interrupt:
            if speaks_of(interrupt):
                _complain("interrupted", interrupt)
            return 130
        finally:
            _settle_stdout()
    return 0


def _complain(kind: str, message: object) -> None:
    text = printable(" ".join(str(message).split()))
    print(f"sopr-fast: {kind}{': ' if text else ''}{text}", file=sys.stderr)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _complain("warning", message)


@contextlib.contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Show the progress of long work where there is no terminal for a bar."""
    log, handler = logging.getLogger("sopr_fast"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("sopr-fast: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _settle_stdout() -> None:
    """Leave nothing in stdout that fails when Python closes it."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sopr-fast", description="Rank policies before any is deployed.")
    parser.add_argument("--version", action="version", version=f"sopr_fast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="demo | fit | rank | evaluate | select | estimate | info")

    demo = commands.add_parser("demo", help="train and rank on the embedded HalfCheetah policies")
    demo.add_argument("--quick", action="store_true", help="a quarter of the training")
    demo.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: out)")
    demo.set_defaults(run=_demo)

    fit = commands.add_parser("fit", help="train a scoring model on policies with known returns")
    _add_policies(fit)
    fit.add_argument(
        "--returns",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV with columns name (or a policy's position) and return, JSON, evaluations.npz, a TensorBoard event "
        "file, or a folder of runs with either of these; policies without a return are left out",
    )
    _add_states(fit, required=True)
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
    _add_device(fit)
    fit.add_argument("--checkpoint", type=Path, metavar="FILE", help="file to write, and to resume from if it exists")
    fit.add_argument("--action-count", type=int, metavar="N", help="number of discrete actions")
    fit.add_argument("--paper", action="store_true", help="the paper's settings in place of the defaults below")
    _add_config(fit.add_argument_group("options of sopr_fast.Config"))
    fit.set_defaults(run=_fit)

    ranking = commands.add_parser("rank", help="rank candidates with a trained model")
    ranking.add_argument("--model", type=Path, metavar="FILE", help="trained model (default: that in SOPR_FAST_MODEL)")
    _add_policies(ranking)
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
            default=field.default,
            metavar=field.metadata["check"].parse.__name__,
            help=f"with --subsets auto: {field.metadata['help']} (default: {field.default})",
        )
    ranking.add_argument(
        "--shrinkage",
        type=float,
        default=0.0,
        metavar="X",
        help="amount, 0 to 1, by which to move scores toward that of the nearest training policy (default: 0)",
    )
    ranking.add_argument("--seed", type=int, default=0, metavar="N", help="seed of drawing subsets (default: 0)")
    ranking.add_argument(
        "--precision", choices=("fp32", "bf16"), help="operands of matrix products (default: that of the model)"
    )
    _add_device(ranking)
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
    ranking.set_defaults(run=_rank)

    add_selection_commands(commands)

    info = commands.add_parser("info", help="describe the installation, a model or a log")
    info.add_argument("path", type=Path, nargs="?", help="model, or log of states or transitions, to describe")
    info.add_argument(
        "--columns", nargs="+", metavar="PART=NAME", help="names in the log, such as states=x,speed actions=u rewards=r"
    )
    info.set_defaults(run=_info)
    return parser


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the option of a report."""
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report, one HTML file")


def check_outputs(options: argparse.Namespace) -> None:
    """Check before long work that the plot and the report can be written.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: A file cannot be written.
        ValueError: The image has an unknown format.
    """
    if not is_first():
        return
    if options.plot is not None:
        _check_plot(options.plot)
    if options.report is not None:
        from .report import check_report

        check_report(options.report)


def write_report(result: Any, options: argparse.Namespace, **known: Any) -> None:
    """Write the report of a result, if the options ask for one."""
    if options.report is not None and is_first():
        result.report(options.report, command=shlex.join(["sopr-fast", *options.arguments]), **known)


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files of policies (.npz .npy .parquet .zip .d3 .onnx .pt .pth .safetensors .pkl .pt2) or folders with "
        "subfolders, named by their paths relative to the folder that contains all of them",
    )
    parser.add_argument(
        "--activation", choices=ACTIVATIONS, help="activation between the layers of state dicts and bare .npz files"
    )
    parser.add_argument(
        "--squash", choices=("tanh", "none"), help="function after the last layer of state dicts and bare .npz files"
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="act by the distributions in .npz, .zip, .d3 and .pkl files"
    )
    parser.add_argument("--trust", action="store_true", help="run code in the files where reading them needs it")
    parser.add_argument("--skip", action="store_true", help="leave out files that cannot be read, with a warning each")


def _add_states(parser: argparse.ArgumentParser, *, required: bool) -> None:
    text = (
        "logged states: .npy, .npz, .hdf5, .parquet or a local Minari dataset; or .safetensors that Subsets.save wrote"
    )
    text += "" if required else " (default: the subsets kept with the model)"
    parser.add_argument("--states", required=required, metavar="FILE", help=text)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", metavar="NAME", help="compute device, such as cuda (default: cpu)")


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


def _demo(options: argparse.Namespace) -> None:
    from .demo import demo

    demo(options.out, quick=options.quick)


def _fit(options: argparse.Namespace) -> None:
    from .returns import read_returns
    from .runtime.files import check_place
    from .sopr.fitting import fit

    changes = {field.name: vars(options)[field.name] for field in dataclasses.fields(Config) if field.name in options}
    config = Config.paper(**changes) if options.paper else Config(**changes)
    if is_first():
        check_place(options.out)
    policies = _read_policies(options)
    returns = read_returns(options.returns, list(policies))
    held_out: dict[str, float] = {}
    if options.validation_returns is not None:
        held_out = read_returns(options.validation_returns, list(policies))
        if both := [name for name in held_out if name in returns]:
            raise ValueError(f"policy {both[0]!r} is in both {options.returns} and {options.validation_returns}")
    for name in options.validation or []:
        if name not in returns:
            raise ValueError(f"--validation: no return of {name!r} in {options.returns}")
        held_out[name] = returns.pop(name)
    validation = {name: policies[name] for name in held_out if name in policies}
    ranker = fit(
        {name: policy for name, policy in policies.items() if name not in held_out},
        returns,
        options.states,
        validation=(validation, held_out) if held_out else None,
        action_count=options.action_count,
        config=config,
        seed=options.seed,
        checkpoint=options.checkpoint,
        device=options.device,
    )
    ranker.save(options.out)
    count = len(ranker.training_policies.names)
    print(f"{printable(str(options.out))}: trained on {count} policies, {ranker.steps} steps")


def _read_policies(options: argparse.Namespace) -> dict[str, Policy]:
    """Load the policies of all paths, named relative to the folder that contains them."""
    from .policies import load

    reading = {key: getattr(options, key) for key in ("activation", "squash", "stochastic", "trust", "skip")}
    return load(options.policies, action_count=getattr(options, "action_count", None), **reading)


def _rank(options: argparse.Namespace) -> None:
    from .sopr.loading import rank

    check_outputs(options)
    rule = UntilSettled(**{field.name: getattr(options, field.name) for field in dataclasses.fields(UntilSettled)})
    if options.log is not None and options.report is None:
        raise ValueError("--log is used by a report alone: add --report FILE, or leave --log out")
    policies, coverage = _read_policies(options), None
    if options.log is not None:
        from .estimators import covered_shares

        coverage = covered_shares(policies, options.log)
    ranking = rank(
        policies,
        options.states,
        model=options.model,
        subsets=rule if options.subsets == "auto" else options.subsets,
        shrinkage=options.shrinkage,
        seed=options.seed,
        precision=options.precision,
        device=options.device,
    )
    if options.json:
        print(json.dumps(_without_nan(ranking.to_dict(win_probability=options.win_probability)), indent=1))
    elif options.csv:
        _write_csv(ranking)
    else:
        print(ranking.table())
        if ranking.settled is not None and ranking.subset_scores is not None:
            places = "the best is" if rule.top == 1 else f"the first {rule.top} places are"
            print(f"{places} {'' if ranking.settled else 'not '}settled after {ranking.subset_scores.shape[1]} subsets")
    if options.plot is not None and is_first():
        cast(Any, ranking.plot().figure).savefig(options.plot, dpi=150)
    write_report(ranking, options, **({} if coverage is None else {"coverage": coverage}))


def _to_subsets(text: str) -> int | str | Path:
    if text == "auto":
        return text
    return Path(text) if text.endswith(".safetensors") else int(text)


def _check_plot(path: Path) -> None:
    from .ranking import figure_class
    from .runtime.files import check_place

    check_place(path)
    kinds = figure_class()().canvas.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in kinds:
        raise ValueError(f"cannot plot to {path}: expected a file of .{', .'.join(kinds)}")


def _info(options: argparse.Namespace) -> None:
    if options.path is None:
        from .__main__ import main as show_installation

        show_installation()
        return
    from .data import describe
    from .data.loading import is_log

    if is_log(options.path):
        columns = None
        if options.columns is not None:
            pairs = [item.partition("=") for item in options.columns]
            columns = {part: names.split(",") for part, _, names in pairs}
        print(describe(options.path, columns=columns))
        return
    from .sopr.loading import load

    ranker = load(options.path)
    kept = "none" if ranker.subsets is None else f"{len(ranker.subsets)}"
    print(f"trained on    {len(ranker.training_policies.names)} policies, seed {ranker.seed}")
    print(f"training      {'collapsed: a ranking means nothing' if ranker.collapsed else 'did not collapse'}")
    print(f"states        {ranker.state_dim} columns, {kept} subsets kept")
    print(f"policies      {ranker.layout.kind}, {ranker.layout.action_dim} columns")
    for name, value in ranker.config.to_dict().items():
        print(f"{name:<20} {value}")


def _write_csv(ranking: Ranking) -> None:
    cells: dict[str, list[Any]] = {
        key: ["" if math.isnan(value) else float(value) for value in column]
        for key, column in ranking.columns().items()
    }
    if ranking.foreign is not None:
        cells["foreign"] = ["" if foreign is None else json.dumps(foreign) for foreign in ranking.foreign]
    if ranking.in_training is not None:
        cells["in_training"] = [json.dumps(known) for known in ranking.in_training]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["rank", "policy", *cells])
    for place, name in enumerate(ranking.order, 1):
        i = ranking.names.index(name)
        writer.writerow([place, printable(name), *(column[i] for column in cells.values())])


def _without_nan(value: Any) -> Any:
    """Return the value with None in place of NaN, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
