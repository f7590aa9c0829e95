"""The verdict: who may be best, whom to measure next, and one imperative with its reason."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..estimators.gaussian_process_posterior import Posterior
from ..runtime.text import NAME_WIDTH, printable
from .compared import FEWEST_KNOWN

DEPLOY, KEEP, MEASURE = "deploy", "keep", "measure"
SURE = 0.9  # probability of a higher return from which a policy replaces another
NEGLIGIBLE = 0.05  # return that may be missed, as a share of the spread of all predictions
_CLEARLY = 0.05  # more probable, beyond the noise of draws
UNDECIDED = 0.2  # probability of a higher return from which a policy is as good as another
EPISODES, SHORT_EPISODES = 20, 1000  # to measure by; the latter if each is one step
_DRAWS = 4096
_EQUAL = 1e-4  # returns that differ by less, in units of their spread, are equal
_UNTESTED = "the known returns do not predict each other"
_NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


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


@dataclass(frozen=True, eq=False)
class Standing:
    """What a verdict about P policies is drawn from, see `Selection`."""

    names: list[str]
    posterior: Posterior
    returns: np.ndarray
    errors: np.ndarray
    predicted: np.ndarray
    intervals: np.ndarray
    rankable: np.ndarray
    incumbent: int | None
    seed: int
    episodes: int
    tested: bool
    are_costs: bool = False

    @property
    def known(self) -> np.ndarray:
        """(P,) whether a policy has a return."""
        return np.isfinite(self.returns)

    @property
    def rival(self) -> int | None:
        """Index of the policy to beat: the incumbent, else the best known one, None if no return is known."""
        if self.incumbent is not None:
            return self.incumbent
        return int(np.nanargmax(np.where(self.known, self.returns, np.nan))) if self.known.any() else None

    @property
    def leader(self) -> int | None:
        """Index of the policy to deploy if it surely beats the rival: the best known or rankable one."""
        choices = self.known | (self.rankable & self.tested)
        return int(np.where(choices, self.predicted, -np.inf).argmax()) if choices.any() else None

    @property
    def replaces(self) -> bool:
        """Whether the leader surely beats the rival."""
        rival, leader = self.rival, self.leader
        if rival is None or leader is None or leader == rival:
            return False
        return bool(probability_beats(self.posterior, rival)[leader] >= SURE)

    @cached_property
    def draws(self) -> np.ndarray:
        """(draws, P) possible joint returns."""
        return draw_returns(self.posterior, self.seed)

    @cached_property
    def loss(self) -> np.ndarray:
        """(P,) how much of the highest return each policy is expected to miss."""
        return self.draws.max(1).mean() - self.draws.mean(0)

    @cached_property
    def probability_best(self) -> np.ndarray:
        """(P,) probability of having the highest return of all policies."""
        return probability_best(self.posterior, self.draws)

    @property
    def settled(self) -> int | None:
        """Index of the policy to deploy or to keep; None if a measurement should decide.

        It is the leader if that surely beats the rival, or the rival if hardly anything is expected to be missed.
        """
        if self.replaces or self.rival is None:
            return self.leader
        if self.loss[self.rival] <= NEGLIGIBLE * _spread(self.predicted) or not len(self.contenders()):
            return self.rival
        return None

    def contenders(self) -> np.ndarray:
        """Return the policies (Q,) whose measurement may change the choice.

        They are the candidates that may beat rival and leader; without such, a known leader that does not surely beat
        the incumbent, and the incumbent. Without known returns they are the policies that
        are as good as the first.
        """
        candidates = np.flatnonzero(~self.known)
        if not self.known.any():
            first = int(self.predicted.argmax())
            return np.flatnonzero(probability_beats(self.posterior, first) >= UNDECIDED)
        for other in {self.rival, self.leader} - {None}:
            beats = probability_beats(self.posterior, int(other))  # type: ignore[arg-type]
            candidates = candidates[(beats[candidates] >= 1 - SURE) | (candidates == other)]
        if not len(candidates) and self.leader != self.rival and not self.replaces:
            return np.array([self.leader, self.rival])
        return candidates

    def measure_next(self, k: int) -> list[int]:
        """Return the candidates to measure, the first to measure first; none if the rival is the choice."""
        rival, leader, settled = self.rival, self.leader, self.settled
        if settled is not None and settled == rival:
            return []
        floor = -np.inf if rival is None else float(self.posterior.mean[rival])
        among, mean = self.contenders(), self.posterior.mean
        chosen = [int(among[i]) for i in best_to_measure(self.draws[:, among], mean[among], floor, k)]
        if settled is not None and leader is not None and not self.known[leader]:
            chosen = [leader, *(i for i in chosen if i != leader)]
        return chosen[:k]

    def as_good(self, i: int) -> np.ndarray:
        """Return the policies (Q,) that may well be as good as policy i, with i."""
        beats = probability_beats(self.posterior, i)
        return np.flatnonzero((beats >= UNDECIDED) & (self.rankable | (np.arange(len(beats)) == i)))

    def value(self, i: int) -> str:
        """Return what a policy returns, in words."""
        what, sign = ("cost ", -1) if self.are_costs else ("", 1)
        if not self.known[i]:
            ends = sorted(sign * self.intervals[i])
            predicted, low, high = map(number, numbers(np.array([sign * self.predicted[i], *ends])))
            return f"predicted {what}{predicted} ({low} to {high})"
        error = f" ± {number(self.errors[i])}" if self.errors[i] > 0 else ""
        return f"measured {what}{number(sign * self.returns[i])}{error}"

    def risk(self, i: int) -> str:
        """Return the end of the interval of policy i that is worst, in words."""
        low = numbers(np.array([self.predicted[i], *self.intervals[i]]))[1]
        return number(-low if self.are_costs else low)


def judge(standing: Standing) -> Verdict:
    """Return what to do."""
    rival, settled = standing.rival, standing.settled
    if rival is None:
        return _measure(standing, "No return is known, so nothing checks the predictions", 2)
    names, known = standing.names, standing.known
    beats = probability_beats(standing.posterior, rival)
    if settled is None:
        first = next(i for i in standing.measure_next(2) if i != rival)
        chance, who = _percent(beats[first]), _short(names[first])
        if not standing.rankable[first]:
            return _measure(standing, f"This log says nothing of {who}: it may be better ({chance})", 2)
        doubt = _doubt(standing, beats[first])
        return _measure(standing, f"{who} beats {_short(names[rival])} with a probability of {chance}{doubt}", 2)
    if settled != rival:
        reason = f"It beats {_short(names[rival])} with a probability of {_percent(beats[settled])}"
        return _settle(standing, DEPLOY, settled, reason + _likelier(standing, settled))
    kind = DEPLOY if standing.incumbent is None else KEEP
    if known.all() and kind == DEPLOY:
        return _settle(standing, kind, rival, "All policies are measured, and none returned more")
    reason = f"No {'policy' if known.all() else 'candidate'} is likely to be much better"
    return _settle(standing, kind, rival, reason + _likelier(standing, rival))


def _spread(returns: np.ndarray) -> float:
    """Return the standard deviation of returns, or less if that is of a few outliers."""
    usual = 1.4826 * float(np.median(np.abs(returns - np.median(returns))))  # of normal returns, the deviation
    return min(usual or np.inf, float(returns.std()))


def _likelier(standing: Standing, chosen: int) -> str:
    """Return why a policy that is likelier to be the best is not chosen; "" if there is none."""
    best = standing.probability_best
    first = int(best.argmax())
    if best[first] - best[chosen] < _CLEARLY:
        return ""
    why = "this log says nothing of it"
    if standing.rankable[first]:
        is_lower = standing.posterior.mean[first] <= standing.posterior.mean[chosen]
        why = "its expected return is lower" if is_lower else "it would gain too little"
    return f". {_short(standing.names[first])} is likelier to be the best ({best[first]:.2f}), but {why}"


def _doubt(standing: Standing, beats: float) -> str:
    """Return why a candidate that may beat the rival is not deployed."""
    count = int(standing.known.sum())
    if beats < SURE or standing.tested:
        return ""
    return ", but " + (
        f"only {count} return{'s are' if count > 1 else ' is'} known" if count < FEWEST_KNOWN else _UNTESTED
    )


def _settle(standing: Standing, kind: str, i: int, reason: str) -> Verdict:
    tied = len(standing.as_good(i))
    among = f", one of {_NUMBERS[tied] if tied < len(_NUMBERS) else f'{tied:,}'} equally good" if tied > 1 else ""
    text = f"{kind.capitalize()} {_short(standing.names[i])}{among}; {standing.value(i)}"
    return Verdict(kind, (standing.names[i],), text, f"{reason}.")


def _measure(standing: Standing, reason: str, k: int) -> Verdict:
    places = standing.measure_next(k)
    chosen = [standing.names[i] for i in places]
    shown = _listed([_short(name) for name in chosen])
    text = f"Measure {shown}, {standing.episodes:,} episodes{' each' if len(chosen) > 1 else ''}"
    least = "cost as much" if standing.are_costs else "return as little"
    risk = f" {'It' if len(chosen) == 1 else 'They'} may {least} as {_listed([standing.risk(i) for i in places])}."
    return Verdict(MEASURE, tuple(chosen), text, f"{reason}.{'' if standing.known[places].all() else risk}")


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def draw_returns(posterior: Posterior, seed: int) -> np.ndarray:
    """Draw possible joint returns (draws, P), equal whatever the order of policies and the unit of returns."""
    from scipy.linalg.blas import dtrmm

    order = np.argsort(-posterior.mean, kind="stable")
    noise = np.random.default_rng([seed, 9]).standard_normal((_DRAWS, len(order)))
    draws = dtrmm(1.0, _root(posterior.covariance[np.ix_(order, order)]), noise.T, lower=1, overwrite_b=1).T
    draws += posterior.mean[order]
    return draws[:, np.argsort(order)].clip(*posterior.limits)


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return a lower factor of a covariance, to whose diagonal as little is added as it takes."""
    variances = np.diagonal(covariance).copy()
    added = 1e-10 * (float(variances.mean()) or 1.0)
    while True:
        covariance[np.diag_indices(len(variances))] = variances + added
        try:
            return np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            added *= 100


def probability_best(posterior: Posterior, draws: np.ndarray) -> np.ndarray:
    """Return each policy's probability (P,) of having the highest return, which equal policies share."""
    winners = draws >= draws.max(1, keepdims=True) - _EQUAL * posterior.unit
    return (winners / winners.sum(1, keepdims=True)).mean(0)


def probability_beats(posterior: Posterior, other: int) -> np.ndarray:
    """Return each policy's probability (P,) of a higher return than policy `other`; 0.5 for certainly equal returns."""
    from scipy.special import ndtr

    mean, covariance = posterior.mean, posterior.covariance
    variance = np.diagonal(covariance) + covariance[other, other] - 2 * covariance[other]
    gap = mean - mean[other]
    certain = variance <= 1e-12 * np.abs(covariance).max()
    return np.where(certain, 0.5 * (1 + np.sign(gap)), ndtr(gap / np.sqrt(np.where(certain, 1, variance))))


def best_to_measure(draws: np.ndarray, mean: np.ndarray, floor: float, k: int) -> list[int]:
    """Choose the k of Q policies whose measurement is expected to gain most over a return that is there, the floor.

    Policies join one by one: each raises the expected maximum of `floor` and the chosen ones most (parallel expected
    improvement), so that several whose returns are strongly correlated are not chosen together.

    Args:
        draws: (draws, Q) possible joint returns.
        mean: (Q,) expected returns, which decide between equal gains.
        floor: Return that is there.
        k: How many.
    """
    best = np.full(len(draws), floor)
    chosen: list[int] = []
    for _ in range(min(k, len(mean))):
        value = np.maximum(draws, best[:, None]).mean(0)
        value[chosen] = -np.inf
        chosen.append(int(np.lexsort((mean, value))[-1]))
        best = np.maximum(best, draws[:, chosen[-1]])
    return chosen


def number(value: float) -> str:
    """Return a number with four digits at most."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def numbers(values: np.ndarray) -> np.ndarray:
    """Return values without digits below a thousandth of their range, such as the -0.00116 next to -155 and -720."""
    finite = values[np.isfinite(values)]
    step = 10.0 ** np.floor(np.log10(np.ptp(finite))) / 1000 if len(finite) and np.ptp(finite) > 0 else 0.0
    return np.round(values / step) * step + 0.0 if step else values


def _percent(share: float) -> str:
    return "over 99 %" if share > 0.99 else f"{max(int(100 * share), 1)} %"  # never rounded up to 90 %


def _short(name: str) -> str:
    return printable(name, NAME_WIDTH)
