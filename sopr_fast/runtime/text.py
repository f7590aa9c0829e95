"""Untrusted text, such as names of policies, made safe to print."""

from __future__ import annotations

NAME_WIDTH = 48  # of names in tables and figures


def printable(text: object, width: int | None = None) -> str:
    r"""Return text in which control, bidi and other invisible characters are escaped, as in `\x1b` or `\u202e`.

    Args:
        text: Text of any origin, or an object to be shown as text, such as a path.
        width: Largest number of characters; longer text ends in an ellipsis. None for no limit.
    """
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text))
    if width is not None and len(escaped) > width:
        return escaped[: width - 1] + "…"
    return escaped


def tick_label(name: str) -> str:
    """Return a name for an axis of matplotlib, to which $ begins a formula: escaped and cut to 48 characters."""
    return printable(name, NAME_WIDTH).replace("$", r"\$")
