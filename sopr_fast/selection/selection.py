"""The result of `select`: predicted returns of all policies, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..estimators.log_support import agreement_in_words, is_unsupported, missed_in_words, unsupported_in_words
from ..estimators.simulator import guessed
from ..inputs.accepted import LogLike, ReturnsLike
from ..inputs.logs import load_transitions
from ..inputs.returns import is_ordered
from ..results.numbers import Numbers, chance
from ..results.result import Result
from ..results.tables import Column, column, to_text, wrapped
from ..runtime.checks import integer
from ..runtime.text import list_names
from .doubts import doubts
from .predictions import Predictions
from .verdict import Verdict, decide, find_rival, judge

_LISTED = 5  # policies


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Predictions, Result):
    """Known policies and candidates, their predicted returns, and what to do.

    Attributes are those of `Predictions`.
    """

    index: ClassVar[str | None] = "policy"

    def __post_init__(self) -> None:
        """Refuse costs that are given as returns where the log tells them apart."""
        above = np.flatnonzero(self.returns > self.bounds[1] + 1e-3 * abs(self.bounds[1]))
        if self.are_costs and len(above):
            name, value = self.names[above[0]], self.returns[above[0]]
            shown = Numbers([value, self.bounds[1]])
            raise ValueError(
                f"the return of policy {name!r} is {shown(value)}, but returns are the negative of the log's costs, at "
                f"most {shown(self.bounds[1])}: if it is a cost, say so, {{{name!r}: {{'cost': {value:g}}}}}"
            )

    @property
    def headline(self) -> str:
        """The verdict and its reason."""
        return str(self.verdict)

    @property
    def rival(self) -> str | None:
        """Name of the policy to beat: the incumbent, else the best known policy; None if no return is known."""
        place = find_rival(self)
        return None if place is None else self.names[place]

    @cached_property
    def verdict(self) -> Verdict:
        """What to do: "deploy", "keep" or "measure", as one imperative with its reason."""
        return judge(self)

    def measure_next(self, k: int = 1) -> list[str]:
        """Return the policies whose measurement is expected to gain most, the first to measure first.

        Args:
            k: How many, 1 or more; fewer if fewer may be better than what is known.

        Raises:
            ValueError: `k` is not a whole number of 1 or more.
        """
        return [self.names[i] for i in decide(self, integer(1)("k", k))[1]]

    def update(self, returns: ReturnsLike | None = None, *, log: LogLike | None = None) -> Selection:
        """Return the selection after policies were measured, as `select` with all returns does.

        Without a log nothing is trained. With one, the networks of the simulator also learn from its episodes, in an
        eighth of their updates, and all policies are rolled out again.

        Args:
            returns: Returns by name, as for `select`. They replace earlier ones of the same name. None with a log that
                holds episodes of policies whose returns are known already.
            log: Measured episodes, of any policies, see `sopr_fast.load_log`. Those of several calls count together.

        Raises:
            TypeError: Returns have no names.
            ValueError: No policy has a return, or one is not finite; or the log has other columns than the first one,
                or no simulator learns from it. See also `load_log`.

        Warns:
            UserWarning: A name is of no policy.
        """
        told: dict[str, Any] = {}
        if log is not None:
            if self.tune is None:
                raise ValueError(
                    "values are not by a simulator, which could learn from further episodes: call select again, with a "
                    "log that holds them too"
                )
            told = self.tune(load_transitions(log))
        if is_ordered(returns):
            raise TypeError(f"returns must be by name, or a file or data frame, got {type(returns).__name__}")
        if returns is not None or log is None:
            told["measured"] = self.measured.update(returns)
        return replace(self, **told)

    @property
    def doubts(self) -> list[str]:
        """What the known returns leave open."""
        return doubts(self)

    @property
    def flags(self) -> list[str]:
        """P remarks: "incumbent", "measured", "cannot be ranked", "not in the log", "3 copies", several, or ""."""
        unsupported = np.where(is_unsupported(self.unsupported, self.known), "not in the log", "")
        flags = np.where(self.known, "measured", np.where(self.rankable, unsupported, "cannot be ranked")).tolist()
        flags = ["incumbent" if name == self.incumbent else flag for name, flag in zip(self.names, flags, strict=True)]
        counts = [f"{len(own)} copies" if len(own) > 1 else "" for own in self.measured.copies]
        return [", ".join(filter(None, pair)) for pair in zip(flags, counts, strict=True)]

    @property
    def notes(self) -> list[str]:
        """What to bear in mind, one sentence for each kind, without full stops."""
        unshown = unsupported_in_words(self.names, self.unsupported, self.known) + missed_in_words(self.state_error)
        outside = [] if self.outside is None else guessed(self.names, np.where(self.known, 0, self.outside))
        agreed, known = agreement_in_words(self.agreement), self.measured.note()
        return [*agreed, *self.unrankable(), *unshown, *outside, *self.doubts, *self.facts, *known]

    def columns(self) -> dict[str, list[Any]]:
        """Return one list for each column of the table, the highest return or lowest cost first; values in `unit`."""
        shown, low, high = self.shown
        table = {
            "policy": self.names,
            self.unit: shown.tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
            "best": self.probability_best.tolist(),
            "known": self.known.tolist(),
            "note": self.flags,
            "nearest": ["" if i < 0 else self.names[i] for i in self.nearest_known[1]],
            "distance": self.distance_ratio.tolist(),
            "copies": self.measured.copies,
        }
        for name, shares in (("outside", self.outside), ("unsupported", self.unsupported)):
            if shares is not None:
                table[name] = shares.tolist()
        if self.values is not None:
            table[self.method] = (-self.values if self.are_costs else self.values).tolist()
        return {name: [column[i] for i in self.order] for name, column in table.items()}

    def cells(self) -> list[Column]:
        """Return the columns of text and report, the highest return or lowest cost first."""
        columns, show = self.columns(), Numbers(self.shown)
        cells = [Column("policy", columns["policy"])]
        cells += [column(head, columns[head], show) for head in (self.unit, "low", "high")]
        cells.append(column("best", columns["best"], chance))
        if self.outside is not None:
            cells.append(column("outside", columns["outside"], lambda share: "" if np.isnan(share) else f"{share:.0%}"))
        return [*cells, Column("", columns["note"])]

    @property
    def legend(self) -> str:
        """What the headings of `cells` mean."""
        outside = "; outside: simulated steps that leave the log" if self.outside is not None else ""
        return f"low, high: 80 % interval; best: probability of being the best policy{outside}"

    def table(self, rows: int | None = None) -> str:
        """Return verdict, policies and notes as text of 80 columns, see `Ranking.table`."""
        agreed = agreement_in_words(self.agreement)
        verdict = [*map(wrapped, (f"{self.verdict.text}.", self.verdict.reason, *agreed))]
        shortened = "; all rows: JSON, to_pandas()" if rows is not None and len(self.names) > rows else ""
        below = map(wrapped, [self.legend + shortened, *self.notes[len(agreed) :]])
        return "\n".join([*verdict, "", to_text(self.cells(), rows), "", *below])

    def unrankable(self) -> list[str]:
        """Return a note on candidates that cannot be ranked; none if there are none."""
        names = [self.names[i] for i in self.order if not self.rankable[i]]
        if not names:
            return []
        listed = list_names(names, _LISTED)
        if self.covariance is not None:
            return [f"This log says nothing of {listed}: it hardly takes their actions"]
        act = "it acts" if len(names) == 1 else "they act"
        return [f"The known {self.unit}s say nothing of {listed}: {act} unlike every known policy"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON (NaN where a number is undefined)."""
        verdict = self.verdict
        return {
            "verdict": verdict.kind,
            "policies": list(verdict.policies),
            "text": verdict.text,
            "reason": verdict.reason,
            "table": self.columns(),
            "evidence": self.evidence,
            "incumbent": self.incumbent,
            "notes": self.notes,
        }
