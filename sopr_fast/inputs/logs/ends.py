"""Where episodes end, and whether the environment ended there or a limit cut it: stated completely, or refused.

A statement is complete if it has

- terminals and truncations;
- numbers of episodes, first rows, last rows or dones, and what these ends are: terminals or truncations beside them, a
  time limit, or one word, `ends="terminal"` or `ends="cut"`;
- terminals and a time limit, a word, or next states that lead from row to row up to each terminal;
- truncations, or next states, and `ends="cut"`; or
- a time limit of one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from ...runtime.text import counted
from .parts import FLAGS, Parts
from .schema import ITEM, UNREAD, advise

WORDS = ("terminal", "cut")
_SAY = "pass ends='terminal' or ends='cut'"
_STACK = "pass {name: numpy.stack([x[name] for x in log]) for name in log[0]}, arrays of time and environment"


class Statement:
    """What the N rows of a log say about the ends of episodes, and the user, by a time limit and a word."""

    def __init__(self, rows: Mapping[str, np.ndarray], parts: Parts, limit: int | None, word: str | None) -> None:
        self.rows, self.parts, self.names, self.limit, self.word = rows, parts, parts.names, limit, word
        self.none = np.zeros(len(rows["states"]), bool)
        self.stops = np.append(self.none[1:], True)  # rows after which the recording stops
        self.terminals, self.truncations = (rows.get(part, self.none) for part in ("terminals", "truncations"))
        self.borders = {}  # part → (N,) bool, ends of either kind
        if "dones" in rows:
            self.borders["dones"] = rows["dones"]
        if "first" in rows:
            self.borders["first"] = np.append(rows["first"][1:], True)
        if "episodes" in rows:
            self.borders["episodes"] = np.append(np.diff(rows["episodes"]) != 0, True)
        elif "agents" in rows:
            self.stops[:-1] = np.diff(rows["agents"]) != 0
        self.linked = None  # (N,) bool: whether the next state is the state of the next row
        if "next_states" in rows:
            self.linked = np.append((rows["next_states"][:-1] == rows["states"][1:]).all(1), False)

    def find(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return after which rows, (N,) bool, the environment ended, after which episodes are cut, and what said so.

        ValueError names rows, arrays and what to pass, if the statement is incomplete or contradicts itself.
        """
        if self.limit == 1:
            self.ended, self.cuts, said = ~self.none, self.none, ["max_episode_steps=1"]
            longest = self.borders.get("episodes", self.ended)
        else:
            self._check_order()
            said = self._decide()
            longest = self.ended | self.cuts
            self._check_flags()
            self._check_next_states()
        self._check_counts()
        if self.limit is not None and (beyond := _steps(longest) >= self.limit).any():
            self._refuse(
                f"max_episode_steps={self.limit}, but an episode goes on at {self._some(beyond)}: pass the time limit "
                "of the environment, or correct the ends of episodes"
            )
        return self.ended, self.cuts, said

    def _decide(self) -> list[str]:
        """Find the ends by the rules of this module; return what said so."""
        said = [part for part in ("terminals", "truncations", *self.borders) if part in self.rows]
        said += ["agents"] * ("agents" in self.rows and "episodes" not in self.rows)
        said += [f"ends={self.word!r}"] * (self.word is not None)
        said += [f"max_episode_steps={self.limit}"] * (self.limit is not None)
        self._part_flags()
        terminals, truncations, limit = self.terminals, self.truncations, self.limit
        told = {"terminals", "truncations"} & self.rows.keys()
        if self.borders:
            last = self._agreed_borders()
        elif len(told) == 2:
            last = terminals | truncations
        elif "terminals" in told and limit is not None:
            last = terminals | (_steps(terminals | self.stops) % limit == limit - 1)
        elif "terminals" in told and (self.word == "terminal" or terminals.all()):
            last = terminals
        elif self.linked is not None and "truncations" not in told and (self.word == "cut" or told):
            last = ~self.linked if self.word == "cut" else terminals
            said.append("next_states")
        elif "truncations" in told and self.word == "cut":
            last = truncations
        else:
            self._refuse_incomplete()
        self.ended = self._ended(last, told)
        self.cuts = (last | self.stops) & ~self.ended
        return said

    def _part_flags(self) -> None:
        """Part terminals and truncations, of which no row may have both: the word decides on such rows."""
        both = self.terminals & self.truncations
        if both.any() and self.word is None:
            names = f"{self.names['terminals']!r} and {self.names['truncations']!r}"
            self._refuse(f"{names} both mark {self._some(both)}: {_SAY} for what they are")
        if self.word == "cut":
            self.terminals = self.terminals & ~both
        else:
            self.truncations = self.truncations & ~both

    def _agreed_borders(self) -> np.ndarray:
        """Return (N,) bool, the ends by numbers, first rows and dones, which must agree with each other and flags."""
        *others, part = self.borders
        ends, name = self.borders[part].copy(), self.names[part]
        if "first" in self.rows and not self.rows["first"][0]:
            first = self.names["first"]
            self._refuse(f"{first!r} does not mark row 0, where an episode begins: mark it, or pass 1 - x if 0 marks")
        for other in others:
            marks, own = self.borders[other], self.names[other]
            if (differs := (marks != ends) & ~self.stops).any():
                remedy = f"leave one out by {self._without(other)}, or {self._without(part)}"
                if (marks & ~ends).any():
                    remedy = f"leave out the rows of an episode after its first mark, or {remedy}"
                elif other == "dones" and "terminals" not in self.rows:
                    remedy = f"if they are terminals only, pass {advise('terminals', own)}; else {remedy}"
                self._refuse(f"{own!r} and {name!r} disagree on the ends at {self._some(differs)}: {remedy}")
            ends[-1] |= marks[-1]
        for flag, flags in (("terminals", self.terminals), ("truncations", self.truncations)):
            if (inside := flags & ~ends & ~self.stops).any():
                own = self.names[flag]
                self._refuse(
                    f"{own!r} marks {self._some(inside)} inside of episodes by {name!r}: leave out the rows of an "
                    f"episode after the first mark, or {own!r} by {self._without(flag)}"
                )
        return ends

    def _ended(self, last: np.ndarray, told: set[str]) -> np.ndarray:
        """Return (N,) bool: after which last rows (N,) of episodes the environment ended; `told` are the flags."""
        rest, is_terminal = last & ~self.terminals & ~self.truncations, self.word == "terminal"
        if not told and self.word is not None:
            return rest if is_terminal else self.none
        if not told:
            if self.limit is None:
                self._refuse_incomplete()
            return rest & (_steps(last | self.stops) % self.limit != self.limit - 1)
        if "terminals" not in told and "dones" in self.rows:
            return rest & self.rows["dones"]
        is_wrong = self.word is None if "truncations" in told else is_terminal
        if is_wrong and (unmarked := rest & ~self.stops).any():
            names = " and ".join(repr(self.names[part]) for part in sorted(told))
            remedy = _SAY if self.word is None else "leave ends='terminal' out"
            self._refuse(f"{self._some(unmarked, 'end')} without a mark by {names}: {remedy}")
        return self.terminals | rest if is_terminal and "truncations" in told else self.terminals

    def _check_order(self) -> None:
        """Raise if rows of an episode, or of an agent, do not lie together."""
        part = "episodes" if "episodes" in self.rows else "agents"
        if part not in self.rows:
            return
        labels, name = self.rows[part], self.names[part]
        own = name.split(", ")
        begins = np.append(0, np.flatnonzero(np.diff(labels)) + 1)
        back = self.none.copy()
        back[np.delete(begins, np.unique(labels[begins], return_index=True)[1])] = True
        if back.any():
            order = own + [self.names[part] for part in ("steps", "times") if part in self.names][:1]
            self._refuse(
                f"{name!r} goes back to an earlier one at {self._some(back)}: if rows are in another order, pass "
                f"sort={order}; if several runs have the same numbers, name all arrays that tell episodes apart, "
                f"{advise('episodes', *own, 'run')}; if {name!r} tells nothing of the order, leave it out by "
                f"{advise(UNREAD, *own)}{self.parts.not_read}"
            )

    def _check_flags(self) -> None:
        """Raise if flags mark two rows in a row, or one that leads to the next, unless episodes have numbers."""
        if {"episodes", "first"} & self.borders.keys():
            return
        part = next((part for part in (*FLAGS, "next_states") if part in self.rows), "")
        name = self.names.get(part, part)
        on = f"if steps go on there, leave {name!r} out by {self._without(part)}"
        marked = self.ended | (self.cuts & ~self.stops)
        twice = np.append(marked[1:] & marked[:-1], False)
        if twice.any() and not (self.ended | self.cuts).all():
            self._refuse(
                f"{name!r} marks the next row too at {self._some(twice)}, as where a flag stays set after the end: "
                f"leave out the rows after the first one; {on}; if these are episodes of one step, number episodes by "
                "an array 'episode', numpy.cumsum(x) - x of the marks x"
            )
        if self.linked is not None and (goes_on := self.ended & self.linked).any():
            self._refuse(
                f"{name!r} marks {self._some(goes_on)}, whose next state is the state of the next row: {on}; if the "
                f"environment was reset to that state, leave next states out by {self._without('next_states')}; if the "
                "next row only resets it, as of Gymnasium's vector environments, leave that row out"
            )

    def _check_next_states(self) -> None:
        """Raise if next states contradict the ends."""
        if self.linked is None:
            return
        states, following, name = self.rows["states"], self.rows["next_states"], self.names["next_states"]
        without = f"leave next states out by {self._without('next_states')}"
        if (broken := ~(self.linked | self.ended | self.cuts)).any():
            row = int(np.argmax(broken))
            what = "is not the state of the next row, and no end is marked there"
            remedy = (
                "mark these ends, leave out rows that are no steps by an array 'valid', 0 there, or number episodes; "
                "of n-step rows, keep every n-th row of an episode by a recipe (docs/files.md); "
                f"if environments take turns, name their numbers by {advise('agents')} and pass sort=…"
            )
            if self.word is None and self.limit is None and not self.borders and "truncations" not in self.rows:
                remedy = f"pass ends='cut' if episodes were cut there; or {remedy}"
            if np.isnan(following[row]).any():
                what, remedy = "is unknown, and no end is marked there", f"if it is an end, mark it; else {without}"
            elif (following[row] == states[row]).all():
                what, remedy = "is the state of its own row", without
            self._refuse(f"{name!r} of {self._some(broken)} {what}: {remedy}")
        cut = self.cuts & ~self.stops
        if cut.any() and self.linked[cut].all() and (following[cut] != states[cut]).any():
            self._refuse(
                f"{name!r} of each of {self._some(cut, 'cut')} is the first state of the next episode, as where "
                f"environments reset themselves: {without}, so that these steps are left out"
            )

    def _check_counts(self) -> None:
        """Raise if steps do not count up by one within episodes, or times do not increase."""
        inside = ~(self.ended | self.cuts)[:-1]
        for part, what in (("steps", "does not count up by one"), ("times", "does not increase")):
            if part not in self.rows:
                continue
            change, name = np.diff(self.rows[part]), self.names[part]
            wrong = inside & ((change != 1) if part == "steps" else (change <= 0))
            if wrong.any():
                order = [*self.names.get("episodes", "episode").split(", "), name]
                sort = f"if rows are in another order, pass sort={order}; "
                if (change[inside] < 0).all():
                    what, sort = "counts down", ""
                self._refuse(
                    f"{name!r} {what} within an episode after {self._some(wrong)}: if it is no order of the rows, "
                    f"leave it out by {advise(UNREAD, name)}; {sort}if an episode ends there, mark it"
                )

    def _refuse_incomplete(self) -> NoReturn:
        flags = ("terminals", "truncations", *self.borders)
        said = f"is said by {' and '.join(repr(self.names[part]) for part in flags if part in self.names)}, but not"
        if self.borders:
            what = f"where episodes end {said} whether the environment ended there or a limit cut it"
            remedy = f"{_SAY} for all, or max_episode_steps=…, or {advise('terminals')}"
        elif "terminals" in self.rows:
            what = f"where the environment ended {said} where a limit cut episodes"
            remedy = f"pass ends='terminal' if it cut none, or max_episode_steps=…, or {advise('truncations')}"
        elif "truncations" in self.rows:
            what = f"where a limit cut episodes {said} where the environment ended"
            remedy = f"pass ends='cut' if it never did, or {advise('terminals')}"
        else:
            what = "where episodes end is not said"
            if self.limit is not None:
                what += f": max_episode_steps={self.limit} says only how long they may be"
            remedy = f"pass {advise('dones')} or {advise('episodes')}, or of a bandit max_episode_steps=1"
            remedy += ", or add an array 'timeouts', 1 in the last row of each episode, and ends='cut' if all are cut"
            if self.linked is not None:
                remedy += ", or ends='cut' if rows that do not follow each other are cuts"
        self._refuse(f"{what}: {remedy}{self.parts.not_read}")

    def _refuse(self, what: str) -> NoReturn:
        if self.names.get("episodes", "").startswith(ITEM):
            what += f"; if items of the list are steps of several environments, {_STACK}"
        raise ValueError(what)

    def _some(self, marked: np.ndarray, noun: str = "row") -> str:
        """Return how many rows (N,) bool are marked, and which is the first of them in the user's data."""
        first = self.rows["source"][int(np.argmax(marked))]
        return f"{counted(int(marked.sum()), noun)} (such as row {first})"

    def _without(self, part: str) -> str:
        """Return how to leave an array out, and what is to be said then."""
        name = self.names.get(part, part)
        is_said = self.word or ({"terminals", "truncations"} <= self.rows.keys() - {part})
        return f"{advise(UNREAD, *name.split(', '))}{'' if is_said else f' and {_SAY}'}"


def _steps(ends: np.ndarray) -> np.ndarray:
    """Return (N,) how many rows lie between each row and the end (N,) bool before it."""
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    return np.arange(len(ends)) - np.repeat(starts, np.diff(starts, append=len(ends)))
