"""Untrusted text, such as names of policies, made safe to print, and names near to a mistyped one."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_MESSAGE_WIDTH = 1000
_LISTED_WIDTH = 100  # of names in messages, with remarks about them
NAME_WIDTH = 48  # of names in tables and figures


def printable(text: object, width: int | None = None) -> str:
    r"""Return text in which control, bidi and other invisible characters are escaped, as in `\x1b` or `\u202e`.

    Of text longer than `width`, the middle is cut out, since names of policies often begin alike.
    """
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text))
    if width is not None and len(escaped) > width:
        head = (width - 1) // 2
        return f"{escaped[:head]}…{escaped[head + 1 - width :]}"
    return escaped


def list_names(names: Sequence[str], most: int = 10) -> str:
    """Return the first few names, escaped and cut to 100 characters, and how many follow, for messages."""
    more = len(names) - most
    shown = ", ".join(printable(name, _LISTED_WIDTH) for name in names[:most]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown


def counted(count: int, noun: str) -> str:
    """Return how many there are of what a noun names, such as "1 row" or "2,000 policies"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def percent(share: float) -> str:
    """Return a share as whole percent."""
    return f"{100 * share:.0f} %"


def is_cost(name: object) -> bool:
    """Return whether a name says that less is better: cost, loss or penalty."""
    words = {"cost", "costs", "loss", "losses", "penalty", "penalties"}
    return not words.isdisjoint(re.split(r"[^a-z]+", str(name).lower()))


def one_line(message: object) -> str:
    """Return a message of foreign code on one line, escaped and cut to 1000 characters."""
    return printable(" ".join(str(message).split()), _MESSAGE_WIDTH)


@contextlib.contextmanager
def escaped_errors() -> Iterator[None]:
    """Escape the messages of errors that leave the block: they hold paths and parts of files."""
    try:
        yield
    except KeyError:
        raise  # its message is the repr of a key, which is escaped
    except Exception as error:
        error.args = tuple(printable(part) if isinstance(part, str) else part for part in error.args)
        for name in ("msg", "strerror"):  # which an ImportError and an OSError show in place of their args
            if isinstance(text := getattr(error, name, None), str):
                setattr(error, name, printable(text))
        raise


def suggest(name: str, names: Iterable[Any]) -> str:
    """Return " (did you mean …?)" with the nearest names, or "" if none is near."""
    by_case = {other.casefold(): other for other in names if isinstance(other, str)}
    nearest = [by_case[near] for near in difflib.get_close_matches(name.casefold(), by_case)]
    return f" (did you mean {' or '.join(map(repr, nearest))}?)" if nearest else ""
