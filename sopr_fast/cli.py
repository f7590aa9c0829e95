"""`sopr-fast`: the embedded example, training and ranking on files, what is installed."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __main__ as installation
from ._version import __version__
from .policies import Policy
from .policies import load as load_policies
from .policies.actor import ACTIVATIONS
from .ranking import Ranking, figure_class
from .returns import read_returns
from .runtime.files import check_place
from .sopr.config import Config
from .sopr.ranker import load, rank


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0, 2 with one line on stderr where the input is at fault, 130 after
    Ctrl-C."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: not every encoding has ±, or all names
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            options.run(options)
            print(end="", flush=True)
        except BrokenPipeError:
            pass  # the reader, `head` say, has had enough
        except (ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError) as error:
            print(f"sopr-fast: error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
        finally:
            _settle_stdout()
    return 0


def _settle_stdout() -> None:
    """Leaves nothing there that fails when Python closes it."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sopr-fast", description="Rank policies before any is deployed.")
    parser.add_argument("--version", action="version", version=f"sopr_fast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="demo | fit | rank | info")

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
        metavar="CSV",
        help="columns name (or a policy's position) and return; policies that it lacks are not used",
    )
    _add_states(fit, required=True)
    held_out = fit.add_mutually_exclusive_group()
    held_out.add_argument(
        "--validation-returns", type=Path, metavar="CSV", help="policies that choose the weights kept"
    )
    held_out.add_argument("--validation", nargs="+", metavar="NAME", help="those of --returns to use that way")
    fit.add_argument("--out", type=Path, required=True, metavar="FILE", help="the model, .safetensors")
    fit.add_argument("--seed", type=int, default=0)
    _add_device(fit)
    fit.add_argument("--checkpoint", type=Path, metavar="FILE", help="resume from it if it exists")
    _add_config(fit.add_argument_group("options of sopr_fast.Config"))
    fit.set_defaults(run=_fit)

    ranking = commands.add_parser("rank", help="rank candidates with a trained model")
    ranking.add_argument("--model", type=Path, metavar="FILE", help="default: that in SOPR_FAST_MODEL")
    _add_policies(ranking)
    _add_states(ranking, required=False)
    ranking.add_argument("--subsets", type=int, metavar="N", help="subsets to score on (default: 5, or all kept)")
    ranking.add_argument(
        "--shrinkage",
        type=float,
        default=0.0,
        metavar="X",
        help="share, 0 to 1, by which scores of unfamiliar candidates move toward the nearest training policy's "
        "(default: 0)",
    )
    ranking.add_argument("--seed", type=int, default=0, help="of drawing subsets from --states")
    ranking.add_argument("--precision", choices=("fp32", "bf16"), help="default: that of the model")
    _add_device(ranking)
    form = ranking.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    ranking.add_argument(
        "--win-probability", action="store_true", help="with --json: add the probability of each pair's order"
    )
    ranking.add_argument("--plot", type=Path, metavar="FILE", help="draw the scores to an image")
    ranking.set_defaults(run=_rank)

    info = commands.add_parser("info", help="what is installed, or what is in a model")
    info.add_argument("model", type=Path, nargs="?")
    info.set_defaults(run=_info)
    return parser


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files of policies (.npz .npy .zip .d3 .onnx .pt .pth .safetensors .pkl .pt2) or folders with subfolders, "
        "named by their paths relative to the folder that contains all of them",
    )
    parser.add_argument(
        "--activation", choices=ACTIVATIONS, metavar="NAME", help="between layers of state dicts and bare .npz"
    )
    parser.add_argument("--squash", choices=("tanh", "none"), help="behind the last layer of state dicts and bare .npz")
    parser.add_argument("--stochastic", action="store_true", help="act by the distributions in .npz .zip .d3 .pkl")
    parser.add_argument("--trust", action="store_true", help="run code that is in the files, where reading needs it")


def _read_policies(options: argparse.Namespace) -> list[Policy]:
    """Load the policies of all paths, named relative to the folder that contains them."""
    chosen = {key: getattr(options, key) for key in ("activation", "squash", "stochastic", "trust")}
    return list(load_policies(options.policies, **chosen).values())


def _add_states(parser: argparse.ArgumentParser, *, required: bool) -> None:
    text = "logged states: .npy, .npz, .hdf5, .parquet or a local Minari dataset" + (
        "" if required else "; default: those kept with the model"
    )
    parser.add_argument("--states", required=required, metavar="FILE", help=text)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", metavar="NAME", help="that computes, such as cuda (default: cpu)")


def _add_config(group: argparse._ArgumentGroup) -> None:
    for field in dataclasses.fields(Config):
        flag = "--" + field.name.replace("_", "-")
        if field.type == "bool":
            group.add_argument(flag, action="store_true")
        else:
            kind = {"str": str, "float": float}.get(field.type, int)
            group.add_argument(
                flag,
                type=kind,
                default=field.default,
                help=f"default: {field.default}",
                metavar=kind.__name__,
            )


def _demo(options: argparse.Namespace) -> None:
    from .demo import demo

    demo(options.out, quick=options.quick)


def _fit(options: argparse.Namespace) -> None:
    from .sopr.fitting import fit

    config = Config(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Config)})
    check_place(options.out)
    policies = {policy.name: policy for policy in _read_policies(options)}
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
    if unused := [name for name in policies if name not in returns and name not in held_out]:
        print(f"not used, without a return: {', '.join(unused)}", file=sys.stderr)
    ranker = fit(
        _chosen(policies, returns),
        returns,
        options.states,
        validation=(_chosen(policies, held_out), held_out) if held_out else None,
        config=config,
        seed=options.seed,
        checkpoint=options.checkpoint,
        device=options.device,
    )
    ranker.save(options.out)
    print(f"{options.out}: trained on {len(returns)} policies, {config.steps} steps")


def _chosen(policies: dict[str, Policy], returns: dict[str, float]) -> dict[str, Policy]:
    return {name: policies[name] for name in returns}


def _rank(options: argparse.Namespace) -> None:
    if options.plot is not None:
        _check_plot(options.plot)
    ranking = rank(
        _read_policies(options),
        options.states,
        model=options.model,
        subsets=options.subsets,
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
    if options.plot is not None:
        ranking.plot().figure.savefig(options.plot, dpi=150)


def _check_plot(path: Path) -> None:
    check_place(path)
    kinds = figure_class()().canvas.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in kinds:
        raise ValueError(f"cannot draw to {path}: expected a file of .{', .'.join(kinds)}")


def _info(options: argparse.Namespace) -> None:
    if options.model is None:
        installation.main()
        return
    ranker = load(options.model)
    kept = "none" if ranker.subsets is None else f"{len(ranker.subsets)}"
    print(f"trained on    {len(ranker.training_policies.names)} policies, seed {ranker.seed}")
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
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["rank", "policy", *cells])
    for place, name in enumerate(ranking.order, 1):
        i = ranking.names.index(name)
        writer.writerow([place, name, *(column[i] for column in cells.values())])


def _without_nan(value: Any) -> Any:
    """nan as null, since JSON has none."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"sopr-fast: warning: {message}", file=sys.stderr)
