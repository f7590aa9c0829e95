"""Widths of states and actions, checked where a log and policies meet."""

from __future__ import annotations

from collections.abc import Sequence

from .policy import Policy

_NAMES_SHOWN = 5


def check_widths(policies: Sequence[Policy], width: int) -> None:
    """Check that every policy which tells it reads states of the log's width.

    Raises:
        ValueError: Some do not; the message says of which widths states and actions of which policies are.
    """
    by_layout: dict[tuple[int, int], list[str]] = {}
    for policy in policies:
        if policy.state_dim is not None:
            by_layout.setdefault((policy.state_dim, policy.action_dim or 0), []).append(policy.name)
    fits = [name for (reads, _), names in by_layout.items() if reads == width for name in names]
    needed = "; ".join(
        f"{reads} columns{f', and actions of {acts}' if acts else ''}: {list_few(names)}"
        for (reads, acts), names in sorted(by_layout.items())
        if reads != width
    )
    if not needed:
        return
    fitting = f" (only {list_few(fits)} can)" if fits else ""
    raise ValueError(
        f"the log's states have {width} columns, which these policies do not read{fitting}: {needed}; pass states of "
        "that width, such as sopr_fast.inputs.logs.load_states(…, columns=…), or leave those policies out"
    )


def list_few(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMES_SHOWN]))
    return f"{shown} and {len(names) - _NAMES_SHOWN} others" if len(names) > _NAMES_SHOWN else shown
