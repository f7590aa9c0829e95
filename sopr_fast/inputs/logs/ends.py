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

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from ...runtime.text import counted
from .parts import FLAGS, Parts
from .schema import UNREAD, advise

WORDS = ("terminal", "cut")
_KINDS = ("terminals", "truncations")  # flags that say why an episode ended
_SAY = "pass load_log(…, ends='terminal') or ends='cut'"


class Statement:
    """What the N rows of a log say about the ends of episodes, and the user, by a time limit and a word."""

    def __init__(self, rows: Mapping[str, np.ndarray], parts: Parts, limit: int | None, word: str | None) -> None:
        self.rows, self.parts, self.names, self.limit, self.word = rows, parts, parts.names, limit, word
        self.none = np.zeros(len(rows["states"]), bool)
        self.stops = _changes(rows.get("agents", self.none))  # rows after which the recording stops
        self.terminals, self.truncations = (rows.get(part, self.none) for part in _KINDS)
        self.told = [part for part in _KINDS if part in rows]
        self.borders = {}  # part → (N,) bool, ends of either kind
        if "dones" in rows:
            self.borders["dones"] = rows["dones"]
        if "first" in rows:
            self.borders["first"] = np.append(rows["first"][1:], True)
        if "episodes" in rows:
            self.borders["episodes"] = _changes(rows["episodes"])
        self.linked, self.has_next = self.none, "next_states" in rows  # whether the next state is that of the next row
        if self.has_next:
            self.linked = np.append((rows["next_states"][:-1] == rows["states"][1:]).all(1), False)

    def find(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return after which rows, (N,) bool, the environment ended, after which episodes are cut, and what said so.

        ValueError names rows, arrays and what to pass, if the statement is incomplete or contradicts itself.
        """
        limit, word = self.limit, self.word
        if limit == 1:
            said, self.ended, self.cuts = ["max_episode_steps=1"], ~self.none, self.none
            longest = self.borders.get("episodes", self.ended)
        else:
            said = [part for part in (*_KINDS, *self.borders, "agents") if part in self.rows]
            said += [f"ends={word!r}"] * (word is not None) + [f"max_episode_steps={limit}"] * (limit is not None)
            self._check_order()
            self._part_flags()
            last = self._last_rows(said)
            self.ended = self._ended(last)
            self.cuts = (last | self.stops) & ~self.ended
            longest = last | self.stops
            self._check_flags()
            self._check_next_states()
        self._check_counts()
        remedy = "pass the time limit of the environment, or correct the ends of episodes"
        beyond = self.none if limit is None else _steps(longest) >= limit
        self._refuse_if(beyond, f"max_episode_steps={limit}, but an episode goes on at", f": {remedy}")
        return self.ended, self.cuts, said

    def _check_order(self) -> None:
        """Raise if rows of an episode, or of an agent, do not lie together."""
        part = "episodes" if "episodes" in self.rows else "agents"
        labels, name = self.rows.get(part, self.none), self.names.get(part, part)
        own = name.split(", ")
        back = np.append(False, np.diff(labels.astype(np.int64)) < 0)  # labels count in the order of their first rows
        order = own + [self.names[part] for part in ("steps", "times") if part in self.names][:1]
        self._refuse_if(
            back,
            f"{name!r} goes back to an earlier one at",
            f": {_sorted(order)}; if several runs have the same numbers, name all arrays that tell episodes apart, "
            f"{advise('episodes', *own, 'run')}; if {name!r} tells nothing of the order, leave it out by "
            f"{advise(UNREAD, *own)}{self.parts.not_read}",
        )

    def _part_flags(self) -> None:
        """Part terminals and truncations, of which no row may have both: the word decides on such rows."""
        both = self.terminals & self.truncations
        if self.word is None:
            self._refuse_if(both, f"{self._quoted(self.told)} both mark", f": {_SAY} for what they are")
        self.terminals = self.terminals & ~(both & (self.word == "cut"))
        self.truncations = self.truncations & ~(both & (self.word == "terminal"))

    def _last_rows(self, said: list[str]) -> np.ndarray:
        """Return (N,) bool, the last rows of episodes by the rules of this module; add next states to what said so."""
        terminals, truncations, limit = self.terminals, self.truncations, self.limit
        if self.borders:
            return self._agreed_borders()
        if len(self.told) == 2:
            return terminals | truncations
        if "terminals" in self.told and limit is not None:
            return terminals | (_steps(terminals | self.stops) % limit == limit - 1)
        if "terminals" in self.told and (self.word == "terminal" or terminals.all()):
            return terminals
        if "truncations" in self.told and self.word == "cut":
            return truncations
        if self.has_next and "truncations" not in self.told and (self.told or self.word == "cut"):
            said.append("next_states")
            return ~self.linked if self.word == "cut" else terminals
        self._refuse_incomplete()

    def _agreed_borders(self) -> np.ndarray:
        """Return (N,) bool, the ends by numbers, first rows and dones, which must agree with each other and flags."""
        *others, part = self.borders
        ends = self.borders[part].copy()
        if "first" in self.rows and not self.rows["first"][0]:
            first = repr(self.names["first"])
            raise ValueError(f"{first} does not mark row 0, where an episode begins: mark it, or pass 1 - x if 0 marks")
        flags = {"terminals": self.terminals, "truncations": self.truncations}  # each marks some of the ends
        for other, marks in ({each: self.borders[each] for each in others} | flags).items():
            differs = (marks & ~ends if other in flags else marks != ends) & ~self.stops
            remedy = f"leave one out by {self._without(other)}, or {self._without(part)}"
            if other == "dones" and "terminals" not in self.rows:
                remedy += f"; of terminals alone, pass {advise('terminals', self.names[other])}"
            self._refuse_if(differs, f"{self._quoted([other, part])} disagree on the ends at", f": {remedy}")
            ends[-1] |= marks[-1]
        return ends

    def _ended(self, last: np.ndarray) -> np.ndarray:
        """Return (N,) bool: after which last rows (N,) of episodes the environment ended."""
        rest, is_terminal = last & ~self.terminals & ~self.truncations, self.word == "terminal"
        if not self.told and self.word is not None:
            return rest if is_terminal else self.none
        if not self.told and self.limit is not None:
            return rest & (_steps(last | self.stops) % self.limit != self.limit - 1)
        if not self.told:
            self._refuse_incomplete()
        if "terminals" not in self.told and "dones" in self.rows:
            return rest & self.rows["dones"]
        is_wrong = self.word is None if "truncations" in self.told else is_terminal
        remedy = "if a limit cut them, pass load_log(…, ends='cut'); else mark them as terminals"
        marks = f"no mark by {self._quoted(self.told)} at"
        self._refuse_if(rest & ~self.stops & is_wrong, marks, f": {remedy}", "end")
        return self.terminals | rest if is_terminal else self.terminals

    def _check_flags(self) -> None:
        """Raise if a flag marks two rows in a row, or one that leads to the next, unless episodes have numbers."""
        if {"episodes", "first"} & self.borders.keys():
            return
        marked, all_end = self.ended | (self.cuts & ~self.stops), (self.ended | self.cuts).all()
        flags = [part for part in FLAGS if part in self.rows]
        for part in flags or ["next_states"] * self.has_next:
            own = marked & self.rows[part] if flags else marked
            twice = self.none if all_end else np.append(own[1:] & own[:-1], False)
            self._refuse_if(
                twice | (own & self.ended & self.linked),
                f"{self.names[part]!r} marks",
                ", where the next row is marked too, or continues from the next state: leave out rows after the first "
                f"mark of an episode, or that only reset the environment; if steps go on there, leave marks out by "
                f"{self._without(part)}; if environments were reset to the next state, leave next states out by "
                f"{self._without('next_states')}; if episodes have one step, number them by an array 'episode', "
                "numpy.cumsum(x) - x of the marks x",
            )

    def _check_next_states(self) -> None:
        """Raise if next states contradict the ends."""
        if not self.has_next:
            return
        states, following, name = self.rows["states"], self.rows["next_states"], f"{self.names['next_states']!r} of"
        without = f"leave next states out by {self._without('next_states')}"
        cut = self.cuts & ~self.stops
        self._refuse_if(
            ~(self.linked | self.ended | self.cuts),
            name,
            f" is not the state of the next row, and no end is marked there: mark the ends, or pass ends='cut' if all "
            "others are marked; leave out rows that are no steps by an array 'valid', 0 there; of n-step rows, keep "
            "every n-th row of an episode by a recipe (docs/files.md); if environments take turns, sort the rows by "
            f"their numbers, in an array 'environment'; or {without}",
        )
        if self.linked[cut].all() and (following[cut] != states[cut]).any():
            what = "is the first state of the next episode, as where environments reset themselves"
            self._refuse_if(cut, f"{name} each of", f" {what}: {without}, so that these steps are left out", "cut")

    def _check_counts(self) -> None:
        """Raise if steps do not count up by one within episodes, or times do not increase."""
        inside = ~(self.ended | self.cuts)[:-1]
        for part, what in (("steps", "does not count up by one"), ("times", "does not increase")):
            if part in self.rows:
                change, name = np.diff(self.rows[part]), self.names[part]
                wrong = inside & ((change != 1) if part == "steps" else (change <= 0))
                order = [*self.names.get("episodes", "episode").split(", "), name]
                remedy = f"if it counts down, or tells nothing of the order, leave it out by {advise(UNREAD, name)}"
                remedy = f"{remedy}; {_sorted(order)}; if an episode ends there, mark it"
                self._refuse_if(wrong, f"{name!r} {what} within an episode after", f": {remedy}")

    def _refuse_incomplete(self) -> NoReturn:
        if told := [part for part in (*_KINDS, *self.borders) if part in self.rows]:
            what = f"by {self._quoted(told)} alone, nothing says where episodes ended and where a limit cut them"
            if self.borders:
                remedy = f"{_SAY} for all, or max_episode_steps=…, or {advise('terminals')}"
            elif "terminals" in told:
                remedy = "pass load_log(…, ends='terminal') if no limit cut any, or max_episode_steps=…, or "
                remedy += advise("truncations")
            else:
                remedy = f"pass load_log(…, ends='cut') if none ended, or {advise('terminals')}"
        else:
            what = "where episodes end is not said"
            if self.limit is not None:
                what += f": max_episode_steps={self.limit} says only how long they may be"
            remedy = (
                f"pass {advise('dones')} or {advise('episodes')}, or of a bandit max_episode_steps=1, or add an array "
                "'timeouts', 1 in the last row of each episode, and ends='cut' if all are cut"
            )
            if self.has_next:
                remedy += ", or ends='cut' if rows that do not follow each other are cuts"
        raise ValueError(f"{what}: {remedy}{self.parts.not_read}")

    def _quoted(self, parts: Iterable[str]) -> str:
        """Return the names of arrays of parts, quoted."""
        return " and ".join(repr(self.names.get(part, part)) for part in parts)

    def _refuse_if(self, marked: np.ndarray, before: str, after: str, noun: str = "row") -> None:
        """Raise if rows (N,) bool are marked; name how many, and the first of them in the user's data."""
        if marked.any():
            first = self.rows["source"][int(np.argmax(marked))]
            raise ValueError(f"{before} {counted(int(marked.sum()), noun)} (such as row {first}){after}")

    def _without(self, part: str) -> str:
        """Return how to leave an array out, and what is to be said then."""
        name = self.names.get(part, part)
        is_said = self.word or ({"terminals", "truncations"} <= self.rows.keys() - {part})
        return f"{advise(UNREAD, *name.split(', '))}{'' if is_said else f' and {_SAY}'}"


def _sorted(columns: Sequence[str]) -> str:
    return f"if rows are in another order, sort them first, table.sort_values({columns}, kind='stable')"


def _changes(labels: np.ndarray) -> np.ndarray:
    """Return (N,) bool, the last rows of runs of equal labels (N,)."""
    return np.append(labels[1:] != labels[:-1], True)


def _steps(ends: np.ndarray) -> np.ndarray:
    """Return (N,) how many rows lie between each row and the end (N,) bool before it."""
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    return np.arange(len(ends)) - np.repeat(starts, np.diff(starts, append=len(ends)))
