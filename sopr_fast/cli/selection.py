"""Commands `sopr-fast evaluate`, `sopr-fast select` and `sopr-fast estimate`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..methods import DEFAULT_METHODS, METHODS, find_method, method_class
from ..runtime.text import printable
from .options import (
    add_device,
    add_log,
    add_policies,
    add_report,
    check_outputs,
    read_log,
    read_policies,
    show,
    to_json,
)

if TYPE_CHECKING:
    import pandas

    from ..estimators import Estimator
    from ..inputs.policies import Policies

_UNTRAINED = ("Gaussian process", "nearest policy")  # estimators that write no checkpoint


def add_commands(commands: Any) -> None:
    """Add the commands to those of `sopr-fast`.

    Args:
        commands: Subparsers of the command line.
    """
    evaluate = commands.add_parser("evaluate", help="measure how well each method ranks policies with known returns")
    _add_input(evaluate, "returns of all policies; policies without one are left out")
    evaluate.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help=f"methods: {_listed(METHODS)} (default: the first {len(DEFAULT_METHODS)})",
    )
    evaluate.add_argument("--cv", type=int, default=5, metavar="N", help="random folds (default: 5)")
    evaluate.add_argument("--groups", type=Path, metavar="FILE", help="JSON object of policy and group")
    _add_selection(evaluate)
    evaluate.set_defaults(run=_evaluate)

    select = commands.add_parser("select", help="say which policy to deploy, keep or measure")
    _add_input(select, "returns of the known policies; policies without one are candidates", required=False)
    select.add_argument("--incumbent", metavar="NAME", help="policy in use (default: the best known one)")
    select.add_argument("--measure", type=int, default=0, metavar="N", help="name up to N candidates to measure next")
    _add_selection(select)
    select.set_defaults(run=_select)

    estimate = commands.add_parser("estimate", help="value policies by one estimator")
    learners = "returns of the known policies, which SOPR-T, nearest policy and Gaussian process learn from"
    _add_input(estimate, learners, required=False)
    estimate.add_argument("--method", required=True, metavar="NAME", help=f"method: {_listed(METHODS[1:])}")
    estimate.add_argument(
        "--set", nargs="+", default=[], metavar="OPTION=VALUE", help="options of the estimator, such as updates=5000"
    )
    estimate.add_argument("--checkpoint", type=Path, metavar="FILE", help="file to write, and to resume from")
    estimate.set_defaults(run=_estimate, report=None)


def _add_input(parser: argparse.ArgumentParser, returns: str, *, required: bool = True) -> None:
    add_policies(parser)
    parser.add_argument(
        "--returns", type=Path, required=required, metavar="FILE", help=f"file or folder, as for fit: {returns}"
    )
    parser.add_argument(
        "--log",
        required=True,
        metavar="FILE",
        help="logged transitions: .hdf5, .npz, .parquet or a Minari dataset; or only states, as for fit",
    )
    add_log(parser)
    parser.add_argument("--action-count", type=int, metavar="N", help="number of discrete actions")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot to an image")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="folder to keep training in, and to resume from"
    )
    add_report(parser)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" if " " in name else name for name in names)


def _evaluate(options: argparse.Namespace) -> None:
    from ..selection import evaluate

    groups = None
    if options.groups is not None:
        from ..inputs.returns import load_json

        groups = load_json(options.groups, "group")
    policies, returns = _read(options)
    evaluation = evaluate(
        read_log(options.log, options),
        policies,
        returns,
        methods=options.methods,
        cv=options.cv,
        groups=groups,
        checkpoints=options.checkpoints,
        seed=options.seed,
    )
    _show(evaluation, options)


def _select(options: argparse.Namespace) -> None:
    from ..selection import select

    if options.measure < 0:
        raise ValueError(f"--measure must be 0 or more, got {options.measure}")
    policies, returns = _read(options)
    log = read_log(options.log, options)
    selection = select(
        policies,
        log,
        returns=returns,
        incumbent=options.incumbent,
        checkpoints=options.checkpoints,
        seed=options.seed,
    )
    if options.json:
        more = {"measure_next": selection.measure_next(options.measure)} if options.measure else {}
        show(selection, to_json(selection, **more), options)
        return
    text = selection.table()
    if options.measure:
        names = map(printable, selection.measure_next(options.measure))
        text += f"\nmeasure next: {', '.join(names) or 'nothing'}"
    show(selection, text, options)


def _estimate(options: argparse.Namespace) -> None:
    options.method = find_method(options.method)
    estimator = _read_estimator(options)
    learns = estimator.supervised or estimator.uses_known
    if options.returns is not None and not learns:
        raise ValueError(f"--method {options.method} learns from no returns: leave --returns out")
    if options.checkpoint is not None and options.method in _UNTRAINED:
        raise ValueError(f"--method {options.method} has nothing to resume: leave --checkpoint out")
    policies, returns = _read(options)
    known = policies.take([] if returns is None else [name for name in policies if name in returns.index])
    if estimator.supervised:
        policies = policies.take(name for name in policies if name not in known)
        if not known or not policies:
            raise ValueError(
                f"--method {options.method} needs policies with a return in --returns, and others to value; "
                f"there are {len(known)} and {len(policies)}"
            )
    given = {"known": known, "returns": returns} if known else {}
    log = read_log(options.log, options)
    estimates = estimator.estimate(policies, log, seed=options.seed, checkpoint=options.checkpoint, **given)
    _show(estimates, options)


def _read(options: argparse.Namespace) -> tuple[Policies, pandas.DataFrame | None]:
    """Read policies and returns, and warn of returns of no policy: the policy that was meant becomes a candidate.

    Raises:
        ValueError: The file of returns has none of a policy.
    """
    from ..inputs.logs.keys import list_names
    from ..inputs.returns import load_returns
    from ..runtime.warn import warn

    check_outputs(options)
    policies = read_policies(options)
    if options.returns is None:
        return policies, None
    returns = load_returns(options.returns, list(policies))
    strangers = [name for name in returns.index if name not in policies]
    if len(strangers) == len(returns):
        raise ValueError(
            f"no policy has a return: {options.returns} names {list_names(strangers)}, the policies are named "
            f"{list_names([*policies])}; names are relative to the folder that contains all --policies"
        )
    if strangers:
        warn(
            f"{options.returns} has returns of {list_names(strangers)}, but no policies of these names were given; a "
            "policy without a return is a candidate"
        )
    return policies, returns


def _read_estimator(options: argparse.Namespace) -> Estimator:
    kind: Any = method_class(options.method)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    chosen = {}
    for item in options.set:
        name, separator, text = item.partition("=")
        if not separator or name not in fields:
            raise ValueError(f"--set {item}: expected OPTION=VALUE, with an option of {', '.join(fields)}")
        try:
            chosen[name] = fields[name].metadata["check"].parse(text)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"--set {item}: {text!r} is no value of {name}: {error}") from error
    return kind(**chosen)


def _show(result: Any, options: argparse.Namespace) -> None:
    show(result, to_json(result) if options.json else result.table(), options)
