"""Estimators that know policies only by how differently they act."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import Layout, Policy, collect_shared, probe
from ..native import torch_on_one_thread
from ..results.estimates import Estimates
from ..runtime.checks import Check, option, optional
from .estimator import Estimator, LoggedData, Request, SupervisedEstimator, Valuation, read_rows, spread
from .gaussian_process_posterior import fit

_ROWS = 4096  # states that policies are compared in
_COLUMNS = 4096  # multiplied at once
_ROUNDING = 1e-12


def _to_mean(name: str, value: Any) -> Estimator:
    if not isinstance(value, Estimator) or value.supervised:
        raise ValueError(f"{name} must be an estimator that learns from no returns, such as Simulator(), got {value!r}")
    return value


_mean = optional(Check(_to_mean))


@dataclass(frozen=True, eq=False)
class Comparison:
    """T policies to value, compared with M known ones, which follow them."""

    names: list[str]  # T + M
    distances: np.ndarray  # (T + M, T + M) float64 action distances
    own: np.ndarray  # (T, M) whether a policy is itself the known one
    returns: np.ndarray  # (M,) float64 known returns
    errors: np.ndarray  # (M,) float64 their standard errors
    values: np.ndarray | None  # (T + M,) values by the mean, if there is one


@dataclass(frozen=True)
class ActionDistanceEstimator(SupervisedEstimator):
    """Base of estimators that know policies only by their action distances (Eq. 3 of SOPR-T).

    A policy that is itself known is valued by the other known policies, so that its value does not reveal its return. A
    policy is itself known if it has the name of a known policy and acts equally in all compared states, of which there
    are at most 4,096, evenly spread. ValueError is raised if it is the only known policy.
    """

    def prepare(self, request: Request, values: np.ndarray | None = None) -> Valuation:
        """Compare all policies; see `SupervisedEstimator.prepare`."""
        *_, columns = act_on_log(request.policies, request.log)
        distances = mutual_distances(columns)
        names = np.array(request.names, object)
        if self.mean is not None and values is None:
            values = self.mean._estimate(request).values

        def value(tested: np.ndarray, known: np.ndarray, returns: np.ndarray, errors: np.ndarray) -> Estimates:
            own = (distances[np.ix_(tested, known)] == 0) & (names[tested][:, None] == names[known])
            if own.all(1).any():
                raise ValueError(
                    f"policy {names[known[0]]!r} is the only known policy, so it has no other to be compared with; "
                    "pass more known policies"
                )
            both = np.concatenate([tested, known])
            apart, own_values = distances[np.ix_(both, both)], None if values is None else values[both]
            return self._value(Comparison(names[both].tolist(), apart, own, returns, errors, own_values))

        return value

    @abstractmethod
    def _value(self, compared: Comparison) -> Estimates:
        """Return the estimates of the T policies."""


@dataclass(frozen=True)
class NearestPolicy(ActionDistanceEstimator):
    """Return of the nearest known policy by action distance (Eq. 3 of SOPR-T); of several at one distance, their mean.

    The simplest supervised estimator, and so the bar for SOPR-T. It needs no rewards, discount, seed or device. A known
    policy gets the return of the nearest other known policy.

    Diagnostics:
        nearest: (P,) names of the nearest known policies, the first of several.
        distances: (P,) float64 action distances to them.
    """

    def _value(self, compared: Comparison) -> Estimates:
        count = len(compared.own)
        distances = np.where(compared.own, np.inf, compared.distances[:count, count:])
        least = distances.min(1)
        return Estimates(
            compared.names[:count],
            np.array([compared.returns[row == own].mean() for row, own in zip(distances, least, strict=True)]),
            method=self.name,
            diagnostics={"nearest": [compared.names[count + i] for i in distances.argmin(1)], "distances": least},
        )


@dataclass(frozen=True)
class GaussianProcess(ActionDistanceEstimator):
    """Gaussian process of the return, with a Matérn 1/2 kernel of the root of the action distance (Eq. 3 of SOPR-T).

    Policies that act alike have like returns; far from all known policies the value is the mean of the process. With a
    mean such as `Simulator()`, it is the model of `sopr_fast.select`: values by that estimator count as measurements of
    the returns. Without one, it is the model of active offline policy selection (Konyushkova et al. 2021) without its
    estimates, and needs no rewards or seed. `gaussian_process_posterior` states the priors. A known policy gets its
    value from the other known policies.

    Attributes:
        mean: Estimator whose values the process follows where returns do not tell otherwise; None for none.

    Standard errors are those of the process.
    """

    mean: Estimator | None = option(None, _mean)  # noqa: RUF009

    def _value(self, compared: Comparison) -> Estimates:
        count, own = len(compared.own), compared.own
        returns = np.concatenate([np.full(count, np.nan), compared.returns])
        errors = np.concatenate([np.zeros(count), compared.errors])
        posterior = fit(compared.distances, returns, errors, compared.values)
        values, deviations = posterior.mean[:count].copy(), posterior.deviation[:count].copy()
        for i in np.flatnonzero(own.any(1)):
            values[i], deviations[i] = posterior.left_out[:, count + own[i].argmax()]
        return Estimates(compared.names[:count], values, deviations, method=self.name)


def act_on_log(policies: list[Policy], log: LoggedData) -> tuple[np.ndarray, Tensor, Tensor, Layout, np.ndarray]:
    """Let P policies act in at most 4,096 states, evenly spread; processes share the work.

    Return the states' indices (N,), the states (N, dim_s), their rows in the user's data (N,), the layout of columns,
    and the columns (P, N, dim_c).
    """
    rows = spread(log, _ROWS)
    states, source = read_rows(log, rows)
    layout = probe(policies, states, source, logged=getattr(log, "actions", None))
    return rows, states, source, layout, collect_shared(policies, states, source, layout).numpy()


def mutual_distances(columns: np.ndarray) -> np.ndarray:
    """Return `policy_distances` (P, P) of policies to each other, from their columns (P, N, d).

    Scalar products take a tenth of the time of differences. Their rounding errors are below 1e-12 of the spread of the
    columns; distances that are not larger are 0.
    """
    flat = torch.from_numpy(columns).flatten(1)
    products = torch.zeros(len(flat), len(flat), dtype=torch.float64, device="cpu")
    with torch_on_one_thread():  # which gives the same bits in all processes
        for part in flat.split(_COLUMNS, 1):
            part = part.double()
            part -= part.mean(0)
            products.addmm_(part, part.T)
    squares = products.diagonal().clone()
    sums = squares[:, None] + squares
    distances = sums - (products + products.T)  # in this order symmetric to the bit
    distances[distances <= _ROUNDING * sums] = 0
    return distances.numpy() / columns.shape[1]
