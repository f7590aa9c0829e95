"""The parser of `sopr-fast`: short usage, groups of options, an example, and the nearest name to a mistyped one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from ..runtime.text import suggest

EXAMPLE = "example, with files that `sopr-fast demo` writes:\n  sopr-fast "


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; a mistyped option ends the process with the nearest one."""
        if self._subparsers is None:
            for word in args or []:
                option = word.partition("=")[0]
                if word.startswith("--") and not any(known.startswith(option) for known in self._option_string_actions):
                    self.error(f"no option {option}{suggest(option, self._option_string_actions)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the process with a line on stderr."""
        self.exit(2, f"sopr-fast: error: {message}; see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"no {value!r}{suggest(str(value), names)}: choose {', '.join(names)}")


def add_command(
    commands: Any, name: str, about: str, usage: str, example: str, run: Callable[[argparse.Namespace], None]
) -> Parser:
    """Add a command to the subparsers and return its parser.

    Args:
        commands: Subparsers of the command line.
        name: Name of the command.
        about: What it does.
        usage: Its required options.
        example: Options of an example, with files that the demo writes.
        run: Function that runs it.
    """
    parser: Parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        usage=" ".join(f"%(prog)s {usage} [options]".split()),
        epilog=f"{EXAMPLE}{name} {example}".rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser
