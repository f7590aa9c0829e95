"""Untrusted text, such as names of policies, made safe to print."""

from __future__ import annotations


def printable(text: str, width: int | None = None) -> str:
    r"""Return text in which control, bidi and other invisible characters are escaped, as in `\x1b` or `\u202e`.

    Args:
        text: Text of any origin.
        width: Largest number of characters; longer text ends in an ellipsis. None for no limit.
    """
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    if width is not None and len(escaped) > width:
        return escaped[: width - 1] + "…"
    return escaped
