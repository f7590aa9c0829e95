"""Commands `sopr-fast evaluate`, `sopr-fast select` and `sopr-fast estimate`."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimators.methods import DEFAULT_METHODS, find_method, make_method
from ..runtime.text import printable
from .arguments import add_command, check_outputs, read_log, read_policies, read_returns, show
from .flags import MEASURE_CODE
from .kept import keeping

if TYPE_CHECKING:
    from ..estimators import Estimator
    from ..inputs.policies import Policies

_INPUT = "--policies out/pendulum/policies --log out/pendulum/log.npz"
_LOG_OPTIONS = "policies returns --columns --ends --sort --max-episode-steps --seed --device --set --json"


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers of `sopr-fast`."""
    add_command(
        commands,
        "evaluate",
        "measure how well each method ranks policies with known returns",
        f"{_INPUT} --returns out/pendulum/returns.csv --methods NearestPolicy GaussianProcess --cv 2",
        _evaluate,
        "--policies --log --returns",
        f"{_LOG_OPTIONS} --checkpoints --methods --cv --groups --report",
    )
    add_command(
        commands,
        "select",
        "say which policy to deploy, keep or measure",
        f"{_INPUT} --measure 2",
        _select,
        "--policies --log",
        f"{_LOG_OPTIONS} --checkpoints --incumbent --exclude --progress --groups --measured-log --measure --simulator "
        "--exit-code --report",
    )
    add_command(
        commands,
        "estimate",
        "value policies by one or several estimators",
        f"--method FQE {_INPUT} --set updates=1000",
        _estimate,
        "--policies --log --method",
        f"{_LOG_OPTIONS} --checkpoint",
    )


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
        if not separator or name not in fields or name in chosen:
            raise ValueError(f"--set {item}: expected OPTION=VALUE, each once, with an option of {', '.join(fields)}")
        try:
            chosen[name] = fields[name].metadata["check"].parse(text)
        except (KeyError, TypeError, ValueError):
            chosen[name] = text  # the check of the option says what it takes
    changed = dataclasses.replace(changed, **chosen)
    return dataclasses.replace(estimator, mean=changed) if estimator.mean else changed
