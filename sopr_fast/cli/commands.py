"""The commands of `sopr-fast`: functions of what the user typed, which return the exit code if it is not 0."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimators.methods import DEFAULT_METHODS, make_method
from ..runtime.checks import integer
from ..runtime.process import is_first
from ..runtime.text import counted, printable
from ..sopr.config import Config
from .arguments import check_report, read_log, read_policies, read_returns, read_states, show
from .flags import MEASURE_CODE

if TYPE_CHECKING:
    from ..estimators import Estimator
    from ..inputs.policies import Policies


def demo(options: argparse.Namespace) -> None:
    """Run the embedded example."""
    from .demo import show_example

    show_example(options.out)


def fit(options: argparse.Namespace) -> None:
    """Train a model and save it."""
    from ..runtime.files import check_place, read_regular
    from ..runtime.tensor_files import is_own
    from ..sopr import fitting

    changes = {field.name: vars(options)[field.name] for field in dataclasses.fields(Config) if field.name in options}
    config = Config.paper(**changes) if options.paper else Config(**changes)
    if is_first():
        check_place(options.out)
        if options.out.exists() and not is_own(read_regular(options.out)):
            raise ValueError(f"--out {options.out}: the file there is no model, and stays: choose another place")
    policies = read_policies(options)
    ranker = fitting.fit(
        policies,
        read_states(options.states, options),
        read_returns(options, list(policies)),
        config=config,
        seed=options.seed,
        checkpoint=options.checkpoint,
    )
    ranker.save(options.out)
    count = counted(len(ranker.training_policies.names), "policy")
    print(f"{printable(options.out)}: trained on {count}, {counted(ranker.config.steps, 'step')}")


def rank(options: argparse.Namespace) -> None:
    """Print the ranking of candidates by a model."""
    from ..sopr import ranker

    check_report(options)
    model = ranker.load(options.model)  # before long work
    states = read_states(options.states, options)
    ranking = ranker.rank(read_policies(options), states, model=model, subsets=options.subsets, seed=options.seed)
    show(ranking, options, ranking.table())


def evaluate(options: argparse.Namespace) -> None:
    """Print how well methods rank policies with known returns."""
    from .. import selection

    names = options.methods or DEFAULT_METHODS
    if options.set and not any("Simulator" in name for name in names):
        raise ValueError("--set sets options of the simulator, which is none of --methods: leave it out")
    methods = [_read_estimator(name, options.set if "Simulator" in name else []) for name in names]
    policies, log, returns = _read(options)
    evaluation = selection.evaluate(
        policies,
        log,
        returns,
        methods=methods,
        cv=options.cv,
        groups=_by_name(options.groups),
        checkpoints=options.checkpoints,
        seed=options.seed,
    )
    show(evaluation, options)


def select(options: argparse.Namespace) -> int:
    """Print the verdict, and return the exit code that it stands for if it is asked for."""
    from .. import selection

    is_set = options.simulator or options.set
    simulator = _read_estimator(options.simulator or "Simulator", options.set) if is_set else None
    if options.measure is not None:
        integer(1)("--measure", options.measure)
    policies, log, returns = _read(options)
    selected = selection.select(
        policies,
        log,
        returns,
        incumbent=options.incumbent,
        progress=_by_name(options.progress),
        groups=_by_name(options.groups),
        simulator=simulator,
        checkpoints=options.checkpoints,
        seed=options.seed,
    )
    text, more = str(selected), {}
    if options.measure is not None:
        more["measure_next"] = selected.measure_next(options.measure)
        text += f"\nmeasure next: {', '.join(map(printable, more['measure_next'])) or 'nothing'}"
    show(selected, options, text, **more)
    return MEASURE_CODE if options.exit_code and selected.verdict.kind == "measure" else 0


def estimate(options: argparse.Namespace) -> None:
    """Print values by an estimator that learns from no known returns."""
    estimator = _read_estimator(options.method, options.set)
    if estimator.supervised:
        raise ValueError(f"{estimator.name} learns from known returns: ask `select` or `evaluate`")
    policies, log = read_policies(options), read_log(options.log, options)
    show(estimator.estimate(policies, log, seed=options.seed, checkpoint=options.checkpoint), options)


def info(options: argparse.Namespace) -> None:
    """Print what is installed, or what a log holds."""
    if options.path is None:
        from ..native import build_info

        info = build_info()
        why_no_cuda, modules = info.pop("why_no_cuda"), info.pop("modules")
        for name, value in (info | {f"modules.{name}": path or why_no_cuda for name, path in modules.items()}).items():
            text = ", ".join(value) if isinstance(value, list) else value
            print(f"{name:<28} {text or 'none'}")
        return
    from ..inputs.logs import describe, load_transitions

    print(describe(log := read_log(options.path, options)))
    if options.policies is not None:
        from ..estimators.log import read

        policies, log = read_policies(options), load_transitions(log)
        with warnings.catch_warnings(action="ignore"):
            facts = read(policies.for_log(log.source_count), log)[1].facts
        print(*facts or [f"actions of {counted(len(policies), 'policy')} are on the scales of the log"], sep="\n")


def _read(options: argparse.Namespace) -> tuple[Policies, Any, Any]:
    """Return policies, log and returns."""
    check_report(options)
    policies = read_policies(options)
    returns = None if options.returns is None else read_returns(options, list(policies))
    return policies, read_log(options.log, options), returns


def _by_name(file: Path | None) -> Any:
    from ..inputs.named_arrays import load_json

    return None if file is None else load_json(file)


def _read_estimator(method: str, given: Sequence[str]) -> Estimator:
    """Return an estimator, options of it, or of its mean, set as OPTION=VALUE."""
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
