"""The verdict: what the evidence allows to say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..runtime.text import NAME_WIDTH, printable
from .groups import FOREIGN
from .measure import leaders, measure_next, probability_beats, probability_best, regret_draws
from .predict import Prediction

DEPLOY, KEEP, UNDECIDED, MEASURE, CANNOT = "deploy", "keep", "undecided", "measure first", "cannot rank these"


@dataclass(frozen=True)
class Thresholds:
    """Limits between the verdicts.

    Attributes:
        regret: Normalised regret that is small enough to deploy.
        sure: Least probability of a small regret of a choice to deploy.
        trust: Least trust of a choice to deploy.
        hopeless: Trust below which candidates cannot be ranked.
        several: Candidates among which a verdict may leave the choice.
        exceeded: Least probability with which a candidate must exceed the incumbent and the best measured policy, or
            else these stand.
        unproven: Least probability of beating the leader at which a foreign candidate whose interval is not calibrated
            forbids a choice.
    """

    regret: float = 0.05
    sure: float = 0.9
    trust: float = 0.7
    hopeless: float = 0.25
    several: int = 3
    exceeded: float = 0.2
    unproven: float = 0.001


@dataclass(frozen=True)
class Verdict:
    """What to do, why, and the evidence.

    Attributes:
        kind: "deploy", "keep", "undecided", "measure first" or "cannot rank these".
        policies: The candidate to deploy, the incumbent to keep, candidates that are undecided, or those to measure.
        reason: One sentence.
        expected_regret: Expected normalised regret of the leading candidate, against the other candidates and what the
            incumbent or a measured policy returns; NaN without candidates.
        sure: Probability that the regret of the leading candidate is small; NaN without candidates.
        trust: Mean of success on policies that were left out and agreement of the columns, from 0 to 1.
        success: Success on policies that were left out: mean gap-weighted accuracy within left-out groups as far as
            the leading candidates are foreign, rank correlation over random folds as far as they are not; NaN if
            neither could be tried.
        agreement: Median correlation of a column with the weighted mean of the others on the candidates; NaN for fewer
            than five candidates, and for a single column.
        probability_best: The leading candidate's probability of being the best.
    """

    kind: str
    policies: tuple[str, ...]
    reason: str
    expected_regret: float
    sure: float
    trust: float
    success: float
    agreement: float
    probability_best: float

    def __str__(self) -> str:
        names = [printable(name, NAME_WIDTH) for name in self.policies]
        if self.kind == DEPLOY:
            head = f"deploy {names[0]}"
        elif self.kind == KEEP:
            head = f"keep {names[0]}"
        elif self.kind == UNDECIDED:
            head = f"{', '.join(names[:-1])} or {names[-1]}, undecided"
        elif self.kind == MEASURE and names:
            head = f"measure first: {', '.join(names)}"
        else:
            head = self.kind
        return f"{head}. {self.reason}"


def judge(prediction: Prediction, thresholds: Thresholds | None = None) -> Verdict:
    """Judge what the evidence allows to say of the candidates.

    Args:
        prediction: The prediction.
        thresholds: Limits between the verdicts; the defaults of `Thresholds` if None.
    """
    limits = thresholds or Thresholds()
    names, weights = prediction.panel.names, prediction.weights
    leading, rival = leaders(prediction), prediction.rival
    if not leading:
        return _stand(prediction, {}, limits) if rival else _verdict(CANNOT, (), "There are no candidates.", {})
    rows = [names.index(name) for name in leading]
    gate = float(prediction.placement.gate[rows].mean())
    success = _success(prediction, gate)
    agreement = float(np.nanmedian(weights.agreement)) if np.isfinite(weights.agreement).any() else float("nan")
    parts = [0.0 if np.isnan(success) else success] + ([] if np.isnan(agreement) else [agreement])
    trust = float(np.clip(np.mean(np.clip(parts, 0, 1)), 0, 1))
    draws = {name: regret_draws(prediction, name) for name in leading[: limits.several]}
    evidence = {
        "expected_regret": float(draws[leading[0]].mean()),
        "sure": float((draws[leading[0]] <= limits.regret).mean()),
        "trust": trust,
        "success": success,
        "agreement": agreement,
        "probability_best": float(probability_best(prediction)[rows[0]]),
    }
    hopeful = _hopeful(prediction, limits.exceeded)
    if rival in prediction.measured and not hopeful:
        return _stand(prediction, evidence, limits)
    if not weights.methods:
        return _verdict(CANNOT, (), "No estimator left a usable column.", evidence)
    if np.isnan(success):
        next_ones = tuple(measure_next(prediction, 3))
        reason = (
            f"The candidates act unlike the known policies, {_groups(prediction)}, so nothing shows how far to trust "
            "the estimates there."
            if gate > 0.5
            else "There are too few known policies to test the estimates."
        )
        return _verdict(MEASURE, next_ones, reason, evidence)
    tried = _tried(prediction, gate, success)
    unearned = gate > 0.5 and weights.outside.sum() == 0  # these weights matter to foreign candidates alone
    if trust < limits.hopeless or unearned:
        return _verdict(CANNOT, (), f"The estimates do not order policies with known returns: {tried}.", evidence)
    if trust >= limits.trust and not hopeful:
        return _stand(prediction, evidence, limits)
    if trust >= limits.trust and (unproven := _unproven(prediction, leading[0], limits.unproven)):
        count = f"{len(unproven)} candidates act" if len(unproven) > 1 else f"{unproven[0]} acts"
        reason = f"{leading[0]} leads, but {count} unlike every known policy, with too few known groups to calibrate "
        reason += f"such estimates; {tried}."
        return _verdict(MEASURE, (leading[0], *unproven[:2]), reason, evidence)
    if trust >= limits.trust and evidence["sure"] >= limits.sure:
        options = f"the range of the candidates and {rival}" if rival else "the candidates' range"
        reason = f"Its regret is at most {limits.regret:g} of {options} with probability {evidence['sure']:.2f}, "
        reason += f"and {tried}."
        if (~prediction.panel.known).sum() == 1 and rival is None:
            reason = f"It is the only candidate left, and {tried}; pass incumbent= to compare it with a known policy."
        return _verdict(DEPLOY, (leading[0],), reason, evidence)
    best_of = (np.min(list(draws.values()), axis=0) <= limits.regret).mean()
    if trust >= limits.trust and 1 < len(leading) <= limits.several and best_of >= limits.sure:
        reason = (
            f"Their returns cannot be told apart, but one of them is near the best with probability {best_of:.2f}, "
        )
        reason += f"and {tried}."
        return _verdict(UNDECIDED, tuple(leading), reason, evidence)
    suggested = measure_next(prediction, 3)
    if trust < limits.trust:
        reason = f"The evidence is weak: {tried}" + ("." if np.isnan(agreement) else f", agreement {agreement:.2f}.")
    elif rival and (beats := 1 - probability_beats(prediction, leading[0])[names.index(rival)]) < limits.sure:
        suggested = [name for name in suggested if name in hopeful] or [leading[0]]
        reason = f"{leading[0]} leads, but its return is higher than that of {rival} with probability {beats:.2f} only."
    else:
        reason = f"{len(leading)} candidates may be the best; the leader's expected regret is "
        reason += f"{evidence['expected_regret']:.2f} of their range"
        reason += f", and it is at most {limits.regret:g} with probability {evidence['sure']:.2f} only."
    return _verdict(MEASURE, tuple(suggested), reason, evidence)


def _hopeful(prediction: Prediction, least: float) -> list[str]:
    """List the candidates that are likely enough to exceed the rival; all of them where there is none."""
    names, candidates = prediction.panel.names, np.flatnonzero(~prediction.panel.known)
    if prediction.rival is not None:
        candidates = candidates[probability_beats(prediction, prediction.rival)[candidates] >= least]
    return [names[i] for i in candidates]


def _stand(prediction: Prediction, evidence: dict[str, float], limits: Thresholds) -> Verdict:
    """Choose the incumbent or a measured policy, because no candidate is likely to exceed it.

    Of several of these, more rollouts must decide where the errors of their returns leave it open.
    """
    rival, place = prediction.rival, {name: i for i, name in enumerate(prediction.panel.names)}
    assert rival is not None
    beats, errors = probability_beats(prediction, rival), prediction.panel.return_errors
    near = [
        name
        for name in sorted(prediction.rivals, key=lambda name: -beats[place[name]])
        if name != rival and errors[place[name]] + errors[place[rival]] > 0 and beats[place[name]] >= limits.exceeded
    ]
    if near:
        reason = f"{near[0]} returns more than {rival} with probability {beats[place[near[0]]]:.2f}, because of "
        reason += "the errors of their returns: measure them with more rollouts."
        return _verdict(MEASURE, (rival, *near[:2]), reason, evidence)
    value = prediction.panel.returns[place[rival]]
    others = f"candidate exceeds it with a probability of {limits.exceeded:g} or more."
    if rival in prediction.measured:
        return _verdict(DEPLOY, (rival,), f"It was measured at {value:,.6g}, and no other {others}", evidence)
    return _verdict(KEEP, (rival,), f"The incumbent returns {value:,.6g}, and no {others}", evidence)


def _groups(prediction: Prediction) -> str:
    """Say why no group of known policies was left out to test the estimates."""
    panel = prediction.panel
    groups = {group for group, known in zip(panel.groups, panel.known, strict=True) if known}
    alone = "of which no group of several leaves enough others to learn from"
    return "which form one group" if len(groups) == 1 else alone


def _success(prediction: Prediction, gate: float) -> float:
    """Mix success on left-out groups and on random folds by the gate; what is fully closed or open counts alone."""
    parts = [(gate, prediction.success), (1 - gate, prediction.inside)]
    if any(share > 0.5 and np.isnan(value) for share, value in parts):
        return float("nan")
    total = sum(share for share, value in parts if not np.isnan(value))
    return sum(share * value for share, value in parts if not np.isnan(value)) / total


def _unproven(prediction: Prediction, leader: str, least: float) -> list[str]:
    """List foreign candidates that may beat a leader who is not foreign, as far as uncalibrated intervals tell."""
    gate = prediction.placement.gate
    if prediction.calibration.calibrated_outside or gate[prediction.panel.names.index(leader)] >= FOREIGN:
        return []
    beats = probability_beats(prediction, leader)
    foreign = ~prediction.panel.known & (gate >= FOREIGN) & (beats >= least)
    return [prediction.panel.names[i] for i in np.argsort(-beats, kind="stable") if foreign[i]]


def _tried(prediction: Prediction, gate: float, success: float) -> str:
    if gate > 0.5:
        count = len(prediction.trials)
        return f"predictions for {count} known groups that were left out have a gap-weighted accuracy of {success:.2f}"
    return f"predictions for known policies that were left out at random have a rank correlation of {success:.2f}"


def _verdict(kind: str, policies: tuple[str, ...], reason: str, evidence: dict[str, float]) -> Verdict:
    numbers = ("expected_regret", "sure", "trust", "success", "agreement", "probability_best")
    return Verdict(kind, policies, reason, **{name: evidence.get(name, float("nan")) for name in numbers})
