"""The verdict: who may be best, whom to measure next, and one imperative with its reason."""

from __future__ import annotations

import html
from dataclasses import dataclass

import numpy as np

from ..results.numbers import Numbers, chance, in_words
from ..runtime.text import NAME_WIDTH, printable
from .compared import FEWEST_KNOWN
from .draws import best_to_measure, probability_beats
from .predictions import Predictions

DEPLOY, KEEP, MEASURE = "deploy", "keep", "measure"
SURE = 0.9  # probability of a higher return from which a policy replaces another
NEGLIGIBLE = 0.1  # gain of one more measurement, as a share of the spread of all predictions
UNDECIDED = 0.2  # probability of a higher return from which a policy may be as good as another
_CLEARLY = 0.05  # more probable, beyond the noise of draws
_TIED, _NEAR = 0.35, 0.25  # such a probability of equally good policies; their gap, as a share of that spread


@dataclass(frozen=True)
class Verdict:
    """What to do.

    Attributes:
        kind: "deploy", "keep" (the incumbent) or "measure".
        policies: The policy to deploy or to keep, or those to measure.
        text: One imperative.
        reason: One or two sentences.
    """

    kind: str
    policies: tuple[str, ...]
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text}. {self.reason}"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.text)}.</b> {html.escape(self.reason)}</p>"


def find_rival(told: Predictions) -> int | None:
    """Return the policy to beat: the incumbent, else the best known one, None if no return is known."""
    if told.incumbent is not None:
        return told.place(told.incumbent)
    return int(np.nanargmax(told.returns)) if told.known.any() else None


def _leader(told: Predictions) -> int | None:
    """Return the policy to deploy if it surely beats the rival: the best known or rankable one."""
    choices = told.known | (told.rankable & told.is_tested)
    return int(np.where(choices, told.predicted, -np.inf).argmax()) if choices.any() else None


def _replaces(told: Predictions) -> bool:
    """Return whether the leader surely beats the rival."""
    rival, leader = find_rival(told), _leader(told)
    if rival is None or leader is None or leader == rival:
        return False
    return bool(probability_beats(told.posterior, rival)[leader] >= SURE)


def _contenders(told: Predictions) -> np.ndarray:
    """Return the policies (Q,) whose measurement may change the choice.

    They are the candidates that may beat rival and leader; without such, a known leader that does not surely beat the
    incumbent, and the incumbent. Without known returns they are the policies that may be as good as the first.
    """
    if not told.known.any():
        first = int(told.predicted.argmax())
        return np.flatnonzero(probability_beats(told.posterior, first) >= UNDECIDED)
    candidates, rival, leader = np.flatnonzero(~told.known), find_rival(told), _leader(told)
    for other in {rival, leader} - {None}:
        beats = probability_beats(told.posterior, int(other))  # type: ignore[arg-type]
        candidates = candidates[(beats[candidates] >= 1 - SURE) | (candidates == other)]
    if not len(candidates) and leader != rival and not _replaces(told):
        return np.array([leader, rival])
    return candidates


def _to_measure(told: Predictions, k: int) -> tuple[list[int], float]:
    """Return k contenders at most, the first to measure first, and what the first is expected to gain."""
    among, rival = _contenders(told), find_rival(told)
    floor = np.full(len(told.draws), -np.inf) if rival is None else told.draws[:, rival]
    chosen, gain = best_to_measure(told.draws[:, among], told.posterior.mean[among], floor, k)
    return [int(among[i]) for i in chosen], gain


def _settled(told: Predictions) -> int | None:
    """Return the policy to deploy or to keep; None if a measurement should decide.

    It is the leader if that surely beats the rival, or the rival if one more measurement hardly gains anything.
    """
    rival = find_rival(told)
    if rival is None or _replaces(told):
        return _leader(told)
    return rival if _to_measure(told, 1)[1] <= NEGLIGIBLE * _spread(told.predicted) else None


def to_measure(told: Predictions, k: int) -> list[int]:
    """Return the policies to measure, the first to measure first; none if the rival is the choice.

    If the returns may be costs, the best known policy is no choice before it is measured again.
    """
    leader, settled, rival = _leader(told), _settled(told), find_rival(told)
    if rival is not None and settled == rival:
        return [rival] if told.is_reversed and told.incumbent is None else []
    chosen, _ = _to_measure(told, k)
    if settled is not None and leader is not None and not told.known[leader]:
        chosen = [leader, *(i for i in chosen if i != leader)]
    return chosen[:k]


def as_good(told: Predictions, i: int) -> np.ndarray:
    """Return the policies (Q,) that are as good as policy i as far as can be told, with i."""
    beats, gap = probability_beats(told.posterior, i), told.predicted[i] - told.predicted
    tied = (beats >= _TIED) & (gap <= _NEAR * told.predicted.std()) & told.rankable
    tied[i] = True
    return np.flatnonzero(tied)


def judge(told: Predictions) -> Verdict:
    """Return what to do."""
    rival, settled, names = find_rival(told), _settled(told), told.names
    if rival is None:
        return _measure(told, f"No {told.unit} is known, so nothing checks the predictions")
    beats = probability_beats(told.posterior, rival)
    if settled is None:
        first = next(i for i in to_measure(told, 2) if i != rival)
        probable, who = chance(beats[first]), _short(names[first])
        if not told.rankable[first]:
            return _measure(told, f"{who} may be better ({probable}), but cannot be ranked")
        doubt = _doubt(told, beats[first])
        return _measure(told, f"{who} beats {_short(names[rival])} with a probability of {probable}{doubt}")
    if settled != rival:
        kind, reason = DEPLOY, f"It beats {_short(names[rival])} with a probability of {chance(beats[settled])}"
    else:
        kind = DEPLOY if told.incumbent is None else KEEP
        reason = f"No {'policy' if told.known.all() else 'candidate'} is likely to be much better"
        if told.known.all() and kind == DEPLOY:
            reason = f"All policies are measured, and none {'cost less' if told.are_costs else 'returned more'}"
    if kind == DEPLOY and told.is_reversed:
        swapped = "costs were returns" if told.are_costs else "returns were costs"
        return _measure(told, f"Values by {told.method} order the known policies in reverse, as if {swapped}")
    return _settle(told, kind, settled, reason + likelier(told, settled))


def _spread(returns: np.ndarray) -> float:
    """Return the standard deviation of returns, or less if that is of a few outliers."""
    usual = 1.4826 * float(np.median(np.abs(returns - np.median(returns))))  # of normal returns, the deviation
    return min(usual or np.inf, float(returns.std()))


def likelier(told: Predictions, chosen: int) -> str:
    """Return why a policy that is likelier to be the best is not chosen; "" if there is none."""
    best = told.probability_best
    first = int(best.argmax())
    if best[first] - best[chosen] < _CLEARLY:
        return ""
    why = "it cannot be ranked"
    if told.rankable[first]:
        is_lower = told.posterior.mean[first] <= told.posterior.mean[chosen]
        worse = "cost is higher" if told.are_costs else "return is lower"
        why = f"its expected {worse}" if is_lower else "it would gain too little"
    return f". {_short(told.names[first])} is likelier to be the best ({chance(best[first])}), but {why}"


def _doubt(told: Predictions, beats: float) -> str:
    """Return why a candidate that may beat the rival is not deployed."""
    count = int(told.known.sum())
    if beats < SURE or told.is_tested:
        return ""
    if count >= FEWEST_KNOWN:
        return f", but the known {told.unit}s do not predict each other"
    return f", but only {count} {told.unit}{'s are' if count > 1 else ' is'} known"


def _settle(told: Predictions, kind: str, i: int, reason: str) -> Verdict:
    tied = len(as_good(told, i))
    among = f", one of {tied:,} equally good" if tied > 1 else ""
    text = f"{kind.capitalize()} {_short(told.names[i])}{among}; {_value(told, i)}"
    return Verdict(kind, (told.names[i],), text, f"{reason}.")


def _measure(told: Predictions, reason: str) -> Verdict:
    places = to_measure(told, 2)
    chosen, several = [told.names[i] for i in places], len(places) > 1
    text = f"Measure {in_words([_short(name) for name in chosen])}, {told.episodes:,} episodes{' each' * several}"
    if not told.known[places].all():
        least = "cost as much" if told.are_costs else "return as little"
        reason += f". {'They' if several else 'It'} may {least} as {in_words([_risk(told, i) for i in places])}"
    return Verdict(MEASURE, tuple(chosen), text, f"{reason}.")


def _value(told: Predictions, i: int) -> str:
    """Return what a policy returns, in words."""
    what = "cost " if told.are_costs else ""
    shown = Numbers(told.shown)
    predicted, low, high = map(shown, told.shown[:, i])
    if not told.known[i]:
        return f"predicted {what}{predicted} ({low} to {high})"
    error = f" ± {shown(told.return_errors[i])}" if told.return_errors[i] > 0 else ""
    return f"measured {what}{predicted}{error}"


def _risk(told: Predictions, i: int) -> str:
    """Return the end of the interval of policy i that is worst, in words."""
    return Numbers(told.shown)(told.shown[2 if told.are_costs else 1, i])


def _short(name: str) -> str:
    return printable(name, NAME_WIDTH)
