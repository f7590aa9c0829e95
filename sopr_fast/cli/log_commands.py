"""Commands `sopr-fast evaluate`, `sopr-fast select` and `sopr-fast estimate`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimators.methods import DEFAULT_METHODS, METHODS, find_method, make_method
from ..runtime.text import printable
from .arguments import (
    Parser,
    add_command,
    add_log,
    add_output,
    add_policies,
    add_returns,
    add_run,
    check_outputs,
    read_log,
    read_policies,
    read_returns,
    show,
)
from .kept import keeping

if TYPE_CHECKING:
    from ..estimators import Estimator
    from ..inputs.policies import Policies

MEASURE_CODE = 3  # of `--exit-code`
_INPUT = "--policies out/pendulum/policies --log out/pendulum/log.npz"
_RETURNS = "--returns out/pendulum/returns.csv"
_LOG = "logged transitions: .hdf5, .npz, .parquet or a Minari dataset; or only states, as for fit"


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers of `sopr-fast`."""
    evaluate = add_command(
        commands,
        "evaluate",
        "measure how well each method ranks policies with known returns",
        "--policies PATH … --log FILE --returns FILE …",
        f"{_INPUT} {_RETURNS} --methods NearestPolicy GaussianProcess --cv 2",
        _evaluate,
    )
    run = _add_inputs(evaluate, "policies without one are left out", required=True)
    _add_checkpoints(run)
    _add_set(run, "the simulator, also in select")
    run.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help=f"methods: {_listed(METHODS)} (default: the first {len(DEFAULT_METHODS)})",
    )
    run.add_argument("--cv", type=int, default=5, metavar="N", help="random folds (default: 5)")
    run.add_argument("--groups", type=Path, metavar="FILE", help="JSON object of policy and group")
    add_output(evaluate)

    select = add_command(
        commands,
        "select",
        "say which policy to deploy, keep or measure",
        "--policies PATH … --log FILE",
        f"{_INPUT} --measure 2",
        _select,
    )
    run = _add_inputs(select, "policies without one are candidates", required=False)
    _add_checkpoints(run)
    run.add_argument("--incumbent", metavar="NAME", help="policy in use (default: the best known one)")
    run.add_argument(
        "--exclude", nargs="+", default=[], metavar="NAME", help="policies to leave out, as too risky to run"
    )
    run.add_argument(
        "--progress",
        type=Path,
        metavar="FILE",
        help="JSON object of policy and training step: the later of a run count as better",
    )
    run.add_argument(
        "--groups", type=Path, metavar="FILE", help="with --progress, JSON object of policy and run (default: by names)"
    )
    run.add_argument(
        "--measured-log",
        type=Path,
        metavar="FILE",
        help="log of measured episodes, from which the simulator learns too; it is read as --log is",
    )
    run.add_argument("--measure", type=int, default=0, metavar="N", help="name up to N candidates to measure next")
    run.add_argument(
        "--simulator",
        metavar="NAME",
        help="method that values policies (default: Simulator; ImportanceWeighting for bandits with probabilities)",
    )
    _add_set(run, "this method")
    add_output(select)
    run.add_argument(
        "--exit-code",
        action="store_true",
        help=f"end with {MEASURE_CODE} if the verdict is to measure, 0 if it is to deploy or keep, 2 after an error",
    )

    estimate = add_command(
        commands,
        "estimate",
        "value policies by one or several estimators",
        "--method NAME --policies PATH … --log FILE",
        f"--method FQE {_INPUT} --set updates=1000",
        _estimate,
    )
    run = _add_inputs(estimate, "SOPR, NearestPolicy and GaussianProcess learn from them", required=False)
    run.add_argument("--checkpoint", type=Path, metavar="FILE", help="file to write, and to resume from")
    run.add_argument(
        "--method", nargs="+", required=True, metavar="NAME", help=f"one method, or several: {_listed(METHODS)}"
    )
    _add_set(run, "the estimator")
    add_output(estimate, report=False)


def _add_inputs(parser: Parser, returns: str, *, required: bool) -> argparse._ArgumentGroup:
    """Add policies, log, returns and the run, and return the group of the run."""
    add_policies(parser)
    add_log(parser, option="--log", required=True, help=_LOG)
    add_returns(parser, returns, required=required)
    return add_run(parser)


def _add_checkpoints(run: argparse._ArgumentGroup) -> None:
    run.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="folder to keep training in, and to resume from (default: a folder of ~/.cache/sopr_fast)",
    )


def _add_set(run: argparse._ArgumentGroup, what: str) -> None:
    run.add_argument(
        "--set", nargs="+", default=[], metavar="OPTION=VALUE", help=f"options of {what}, such as updates=20000"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" if "(" in name else name for name in names)


def _evaluate(options: argparse.Namespace) -> None:
    from ..selection import evaluate

    methods = [find_method(name) for name in options.methods or DEFAULT_METHODS]
    if options.set and not any("Simulator" in name for name in methods):
        raise ValueError("--set sets options of the simulator, which is none of --methods: leave it out")
    policies, returns = _read(options)
    log = read_log(options.log, options)
    with keeping(options, by_policies=options.methods is not None) as folder:
        evaluation = evaluate(
            policies,
            log,
            returns,
            methods=[_read_estimator(name, options.set if "Simulator" in name else []) for name in methods],
            cv=options.cv,
            groups=_by_name(options.groups),
            checkpoints=folder,
            seed=options.seed,
        )
    show(evaluation, options)


def _select(options: argparse.Namespace) -> int:
    from ..selection import select

    if options.measure < 0:
        raise ValueError(f"--measure must be 0 or more, got {options.measure}")
    simulator = None
    if options.simulator or options.set:
        simulator = _read_estimator(options.simulator or "Simulator", options.set)
    policies, returns = _read(options)
    log = read_log(options.log, options)
    episodes = None if options.measured_log is None else read_log(options.measured_log, options)
    with keeping(options) as folder:
        selection = select(
            policies,
            log,
            returns=returns,
            incumbent=options.incumbent,
            progress=_by_name(options.progress),
            groups=_by_name(options.groups),
            exclude=options.exclude,
            simulator=simulator,
            checkpoints=folder,
            seed=options.seed,
        )
    if episodes is not None:
        selection = selection.update(log=episodes)
    text, more = str(selection), {}
    if options.measure:
        more["measure_next"] = selection.measure_next(options.measure)
        text += f"\nmeasure next: {', '.join(map(printable, more['measure_next'])) or 'nothing'}"
    show(selection, options, text, **more)
    return MEASURE_CODE if options.exit_code and selection.verdict.kind == "measure" else 0


def _estimate(options: argparse.Namespace) -> None:
    methods = [find_method(method) for method in options.method]
    if len(methods) > 1:
        _compare(methods, options)
        return
    options.method = methods[0]
    estimator = _read_estimator(options.method, options.set)
    if options.returns is not None and not estimator.supervised:
        raise ValueError(f"--method {options.method} learns from no returns: leave --returns out")
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
    show(estimates, options)


def _compare(methods: list[str], options: argparse.Namespace) -> None:
    """Print the values of several estimators with intervals, side by side."""
    from ..results.numbers import Numbers
    from ..results.tables import to_text
    from ..selection import compare

    for option in ("set", "checkpoint", "returns"):
        if getattr(options, option):
            raise ValueError(f"--{option} belongs to one --method: leave it out, or name one method")
    frame = compare(read_policies(options), read_log(options.log, options), methods, seed=options.seed)
    frame = frame.sort_values((methods[0], "value"), ascending=False, kind="stable")
    if options.json:
        plain = frame.astype(object).where(frame.notna(), None)
        columns = {method: plain[method].to_dict("list") for method in methods}
        print(json.dumps({"policies": [*frame.index], **columns}, indent=1))
        return
    cells = {"policy": [*frame.index]}
    for method in methods:
        values, halves = frame[method]["value"], frame[method]["value"] - frame[method]["low"]
        show = Numbers(values, halves)
        cells[method] = [show(a) + (f" ± {show(b)}" if b >= 0 else "") for a, b in zip(values, halves, strict=True)]
    print(to_text(cells, left=("policy",)))
    print("±: half of a 95 % interval, where the estimator knows its error")


def _read(options: argparse.Namespace) -> tuple[Policies, Any]:
    check_outputs(options)
    policies = read_policies(options)
    return policies, None if options.returns is None else read_returns(options, list(policies))


def _by_name(file: Path | None) -> Any:
    from ..inputs.table_files import load_json

    return None if file is None else load_json(file)


def _read_estimator(method: str, given: Sequence[str]) -> Estimator:
    estimator: Any = make_method(method)
    changed = estimator.mean or estimator
    fields = {field.name: field for field in dataclasses.fields(changed)}
    chosen: dict[str, Any] = {}
    for item in given:
        name, separator, text = item.partition("=")
        if not separator or name not in fields:
            raise ValueError(f"--set {item}: expected OPTION=VALUE, with an option of {', '.join(fields)}")
        try:
            chosen[name] = fields[name].metadata["check"].parse(text)
        except (KeyError, TypeError, ValueError):
            chosen[name] = text  # the check of the option says what it takes
    changed = dataclasses.replace(changed, **chosen)
    return dataclasses.replace(estimator, mean=changed) if estimator.mean else changed
