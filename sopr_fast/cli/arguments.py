"""The parser of `sopr-fast`, and what several commands read and print."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .._version import __version__
from ..runtime.process import is_first
from ..runtime.text import suggest
from .flags import COMMANDS, FLAGS, Command

if TYPE_CHECKING:
    import pandas

    from ..inputs.policies import Policies


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; an option of another command, or a mistyped one, ends the process with what to do."""
        if self._subparsers is None:
            for word in args or []:
                option, equals, value = word.partition("=")
                if not word or (option.startswith("--") and equals and not value):
                    self.error("an empty argument, as of a variable that is not set: name the file or value")
                if word.startswith("--") and not any(known.startswith(option) for known in self._option_string_actions):
                    self.error(f"no option {option}{self._remedy(option)}")
        parsed, rest = super().parse_known_args(args, namespace)
        if rest and self._subparsers is None:
            self.error(f"unexpected {' '.join(rest)}: leave it out, or quote a value of several words")
        return parsed, rest

    def _remedy(self, option: str) -> str:
        own, inputs = self._option_string_actions, {"--log", "--states"}
        if similar := [flag for flag in own if option.startswith(flag) or {flag, option} == inputs]:
            return f": pass {similar[0]}"
        is_of_another = any(option in flags for flags in (*FLAGS.values(), *(each.own for each in COMMANDS.values())))
        return " here, but of other commands: leave it out" if is_of_another else suggest(option, own)

    def error(self, message: str) -> NoReturn:
        """End the process with a line on stderr."""
        self.exit(2, f"sopr-fast: error: {message}; see `{self.prog} --help`\n")


def make_parser() -> Parser:
    """Return the parser of `sopr-fast` with all `COMMANDS`."""
    parser = Parser(prog="sopr-fast", description="Rank policies before any is deployed.")
    parser.add_argument("--version", action="version", version=f"sopr_fast {__version__}")
    parsers = parser.add_subparsers(required=True, metavar=" | ".join(COMMANDS), dest="command")
    for name, command in COMMANDS.items():
        _add_command(parsers, name, command)
    return parser


def _add_command(parsers: Any, name: str, command: Command) -> None:
    needed, wanted = command.required.split(), {*command.required.split(), *command.others.split()}
    shown = {flag: options for group in FLAGS.values() for flag, options in group.items() if flag in needed}
    usage = [f"{flag} {options['metavar']}{' …' if 'nargs' in options else ''}" for flag, options in shown.items()]
    usage += [f"[{options['metavar']}]" for flag, options in command.own.items() if not flag.startswith("-")]
    parser = parsers.add_parser(
        name,
        help=command.about,
        description=f"{command.about[0].upper()}{command.about[1:]}.",
        usage=" ".join(["%(prog)s", *usage, "[options]"]),
        epilog=f"example{command.after}:\n  sopr-fast {name} {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups = {title: {flag: flags[flag] for flag in flags if {flag, title} & wanted} for title, flags in FLAGS.items()}
    for title, flags in {**groups, command.title: command.own}.items():
        group: Any = parser if title == "options" else parser.add_argument_group(title)
        for flag, options in flags.items():
            group.add_argument(flag, **options, **({"required": True} if flag in needed else {}))
    parser.set_defaults(report=None)


def read_policies(options: argparse.Namespace) -> Policies:
    """Load the policies of all paths, named relative to the folder that contains them, or of a named object."""
    from ..inputs.policies import load_policies

    source = options.policies
    if len(source) == 1 and ":" in source[0] and not os.path.exists(source[0]):
        source = _named_object("policies", source[0])
        source = source() if callable(source) else source
    module = None if options.module is None else _named_object("module", options.module)
    keys = ("key", "activation", "action_count", "trust")
    return load_policies(source, module=module, **{key: getattr(options, key) for key in keys})


def _named_object(option: str, text: str) -> Any:
    """Return the object that "package.file:name" or "package/file.py:name" names from the working folder."""
    place, _, name = text.rpartition(":")
    module = place.removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ValueError(f"--{option} {text}: expected package.file:name or file.py:name, from the working folder")
    sys.path.insert(0, os.getcwd())
    try:
        holder = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"--{option} {text}: {error}; run this where {place} is, with what it needs") from error
    if not hasattr(holder, name):
        raise ValueError(f"--{option} {text}: {place} has no {name!r}{suggest(name, vars(holder))}")
    return getattr(holder, name)


def read_returns(options: argparse.Namespace, names: Sequence[str]) -> pandas.DataFrame:
    """Load the returns in all paths; those of a later one replace earlier ones of the same name."""
    import pandas

    from ..inputs.returns import load_returns

    columns = None
    if options.return_columns is not None:
        columns = {part: str(name) for part, name in _columns("return-columns", options.return_columns).items()}
    tables = [load_returns(path, names, columns=columns) for path in options.returns]
    together = pandas.concat(tables)
    return together[~together.index.duplicated(keep="last")]


def read_log(path: str | Path, options: argparse.Namespace) -> Any:
    """Load the log at a path."""
    from ..inputs.logs import load_log

    keys = ("columns", "ends", "max_episode_steps")
    given = {key: getattr(options, key) for key in keys if getattr(options, key) is not None}
    return load_log(path, **given | ({"columns": _columns("columns", options.columns)} if "columns" in given else {}))


def read_states(path: str | Path | None, options: argparse.Namespace) -> Any:
    """Open the logged states at a path whose columns are named; another path, or None, is returned."""
    if options.columns is None:
        return path
    columns = _columns("columns", options.columns)
    if columns.keys() != {"states"} or path is None:
        raise ValueError(f"--columns {' '.join(options.columns)}: only states=NAME,… of a log in --states is read here")
    from ..inputs.logs import load_states

    return load_states(path, columns=columns["states"])


def _columns(option: str, given: Sequence[str]) -> dict[str, str | list[str]]:
    pairs = [item.partition("=") for item in given]
    if not all(map(all, pairs)) or len({part for part, *_ in pairs}) < len(pairs):
        example = "states=x,speed" if option == "columns" else "return=total"
        raise ValueError(f"--{option} {' '.join(given)}: expected PART=NAME, such as {example}, each part once")
    return {part: names.split(",") if "," in names else names for part, _, names in pairs}


def check_report(options: argparse.Namespace) -> None:
    """Check before long work that the report can be written."""
    if options.report is not None and is_first():
        from .. import reports

        reports.check_report(options.report)


def show(result: Any, options: argparse.Namespace, text: str = "", **more: Any) -> None:
    """Write the report of a result if the options ask for one; then print it, as JSON with `more` fields or as text."""
    if options.report is not None and is_first():  # first, as the reader of the text may close its pipe
        from ..reports import report

        log = next((str(path) for key in ("log", "states", "model") if (path := getattr(options, key, None))), "")
        command = shlex.join(["sopr-fast", *options.arguments])
        report(result, options.report, title=os.path.basename(log), command=command)
    print(result.to_json(**more) if options.json else text or result)
