"""The verdict: which policy to deploy or to keep, whom to measure next, and one imperative with its reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..results.numbers import Numbers, chance
from ..runtime.text import NAME_WIDTH, printable
from .compared import FEWEST_KNOWN
from .draws import best_to_measure, probability_beats
from .predictions import Predictions

DEPLOY, KEEP, MEASURE = "deploy", "keep", "measure"
SURE = 0.9  # probability of a higher return from which a policy replaces another
NEGLIGIBLE = 0.1  # gain of one more measurement, as a share of the spread of all predictions
FEW = 0.1  # error of a bandit's policy, as a share of the spread of rewards: that of a hundred episodes
UNDECIDED = 0.2  # probability of a higher return from which a policy may be as good as another


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


def find_rival(told: Predictions) -> int | None:
    """Return the policy to beat: the incumbent, else the known one expected to be the best, None if none is known."""
    if told.incumbent is not None:
        return told.place(told.incumbent)
    return int(np.where(told.known, told.expected, -np.inf).argmax()) if told.known.any() else None


def decide(told: Predictions, k: int) -> tuple[int | None, list[int]]:
    """Return the policy to deploy or to keep, None if a measurement should decide, and at most k to measure, in order.

    The leader is the best of the known policies and, if known returns support predictions, of the rankable ones. It is
    the choice if it surely beats the rival. Else the rival is, if one more measurement hardly gains anything.
    """
    rival, known = find_rival(told), told.known
    leader, is_sure = rival, False
    if rival is None or not known.any():  # whatever may be as good as the first may change the choice
        contenders = probability_beats(told.posterior, int(told.predicted.argmax())) >= UNDECIDED
    else:  # so may candidates that may beat rival and leader, or a known leader that may beat the incumbent
        leader = int(np.where(known | (told.rankable & told.is_tested), told.expected, -np.inf).argmax())
        is_sure = leader != rival and bool(probability_beats(told.posterior, rival)[leader] >= SURE)
        contenders = ~known
        for other in {rival, leader}:
            contenders &= (probability_beats(told.posterior, other) >= 1 - SURE) | (np.arange(len(known)) == other)
        if not contenders.any() and not is_sure:
            contenders[[leader, rival]] = leader != rival
    among = np.flatnonzero(contenders)
    floor = np.full(len(told.draws), -np.inf) if rival is None else told.draws[:, rival]
    order, gain = best_to_measure(told.draws[:, among], told.posterior.mean[among], floor, k)
    first = among[order].tolist()
    if not is_sure and (rival is None or gain > NEGLIGIBLE * _spread(told.predicted)):
        return None, first
    settled, first = (leader, first) if is_sure else (rival, [])
    assert settled is not None
    if is_sure and not known[settled]:
        first = [settled, *(i for i in first if i != settled)][:k]
    if _suspicion(told, settled):
        first = [settled] if told.impossible[settled] else first or [settled]
    return settled, first


def _spread(returns: np.ndarray) -> float:
    """Return the standard deviation of returns, or less if that is of a few outliers."""
    usual = 1.4826 * float(np.median(np.abs(returns - np.median(returns))))  # of normal returns, the deviation
    return min(usual or np.inf, float(returns.std()))


def judge(told: Predictions) -> Verdict:
    """Return what to do."""
    rival, (settled, first) = find_rival(told), decide(told, 2)
    names = [printable(name, NAME_WIDTH) for name in told.names]
    if rival is None:
        return _measure(told, first, f"No {told.unit} is known, so nothing checks the predictions")
    beats = probability_beats(told.posterior, rival)
    if settled is None:
        better = next(i for i in first if i != rival)
        probable = chance(beats[better])
        if not told.rankable[better]:
            return _measure(told, first, f"{names[better]} may be better ({probable}), but cannot be ranked")
        doubt = _doubt(told, beats[better])
        return _measure(told, first, f"{names[better]} beats {names[rival]} with a probability of {probable}{doubt}")
    kind = KEEP if settled == rival and told.incumbent is not None else DEPLOY
    if reason := _suspicion(told, settled):
        return _measure(told, first, reason)
    more = "cost less" if told.are_costs else "returned more"
    luckiest = int(np.where(told.known, told.returns, -np.inf).argmax())
    if settled != rival:
        reason = f"It beats {names[rival]} with a probability of {chance(beats[settled])}"
    elif kind == DEPLOY and told.returns[luckiest] > told.returns[settled]:
        reason = f"{names[luckiest]} {more}, but probably by chance"
    else:
        reason = "No other policy is likely to be much better"
    text = f"{kind.capitalize()} {names[settled]}; {_value(told, settled)}"
    return Verdict(kind, (told.names[settled],), text, f"{reason}.")


def _suspicion(told: Predictions, i: int) -> str:
    """Return why policy i is not deployed before it is measured again; "" if there is no reason, or it is in use."""
    if told.names[i] == told.incumbent:
        return ""
    if told.is_reversed:
        swapped = "costs were returns" if told.are_costs else "returns were costs"
        return f"Values by {told.method} order the known policies in reverse, as if {swapped}"
    show, error = Numbers(told.shown[0]), told.return_errors[i]
    if told.covariance is not None and error > FEW * told.logged_spread:
        return f"Its {told.unit} is known to ± {show(error)} only"
    value = show(told.shown[0, i])
    reason = f"The log does not allow its {told.unit}, {value}: check both, or add its episodes to the log"
    return reason if told.impossible[i] else ""


def _doubt(told: Predictions, beats: float) -> str:
    """Return why a candidate that may beat the rival is not deployed."""
    count = int(told.known.sum())
    if beats < SURE or told.is_tested:
        return ""
    if count >= FEWEST_KNOWN:
        return f", but the known {told.unit}s do not predict each other"
    return f", but only {count} {told.unit}{'s are' if count > 1 else ' is'} known"


def _measure(told: Predictions, places: list[int], reason: str) -> Verdict:
    chosen, several = [printable(told.names[i], NAME_WIDTH) for i in places], len(places) > 1
    text = f"Measure {' and '.join(chosen)}, {told.episodes:,} episodes{' each' * several}"
    if not told.known[places].all():
        least, end = ("cost as much", 2) if told.are_costs else ("return as little", 1)
        worst = " and ".join(Numbers(told.shown[0])(told.shown[end, i]) for i in places)
        reason += f". {'They' if several else 'It'} may {least} as {worst}"
    return Verdict(MEASURE, tuple(told.names[i] for i in places), text, f"{reason}.")


def _value(told: Predictions, i: int) -> str:
    """Return what a policy returns, in words."""
    what, show = "cost " if told.are_costs else "", Numbers(told.shown[0])
    predicted, low, high = map(show, told.shown[:, i])
    if not told.known[i]:
        return f"predicted {what}{predicted} ({low} to {high})"
    error = f" ± {show(told.return_errors[i])}" if told.return_errors[i] > 0 else ""
    return f"measured {what}{predicted}{error}"
