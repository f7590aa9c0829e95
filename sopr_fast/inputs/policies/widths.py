"""Widths of states and actions, checked where a log and policies meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .policy import Policy

if TYPE_CHECKING:
    from .layout import Layout

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


def check_actions(policies: Sequence[Policy], layout: Layout, logged: int) -> None:
    """Check that the log's actions, of `logged` columns, are those of the policies' kind.

    Raises:
        ValueError: They have other columns; the message says which would fit.
    """
    wanted = layout.action_dim
    if logged == wanted or (layout.kind == "discrete" and logged == 1):
        return
    fitting = f"an index, or {wanted} columns of 0 and 1" if layout.kind == "discrete" else f"{wanted} columns"
    hint = ""
    if layout.kind != "discrete" and wanted == 2 * logged:
        hint = "; if the files' outputs are means and log standard deviations, pass head='mean_log_std' (--head …)"
    elif layout.kind != "discrete" and logged == 1:
        hint = f"; if the log's are indices, pass action_count={wanted}, and for files head='values' or 'logits'"
    raise ValueError(
        f"the log's actions have {logged} columns, but those of policy {policies[0].name!r} need {fitting}: name the "
        "right ones, such as sopr_fast.load_log(…, columns={'actions': […]}), or pass the states alone to methods "
        f"that need no logged actions{hint}"
    )
