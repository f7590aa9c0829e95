"""Estimators that know policies only by how differently they act."""

from __future__ import annotations

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


@dataclass(frozen=True)
class NearestPolicy(SupervisedEstimator):
    """Return of the nearest known policy by action distance (Eq. 3 of SOPR-T); of several at one distance, their mean.

    The simplest supervised estimator, and so the bar for SOPR-T. It needs no rewards, discount, seed or device.
    Policies are compared in at most 4,096 states, evenly spread. ValueError is raised for a policy that has the name of
    a known one and acts as it does: its value would reveal its return.

    Diagnostics:
        nearest: (P,) names of the nearest known policies, the first of several.
        distances: (P,) float64 action distances to them.
    """

    def prepare(self, request: Request, values: np.ndarray | None = None) -> Valuation:
        """Compare all policies; see `SupervisedEstimator.prepare`."""
        compared = _Compared(request)

        def value(tested: np.ndarray, known: np.ndarray, returns: np.ndarray, errors: np.ndarray) -> Estimates:
            compared.refuse_known(tested, known)
            distances = compared.distances[np.ix_(tested, known)]
            least, nearest = distances.min(1), compared.names[known[distances.argmin(1)]]
            return Estimates(
                compared.names[tested].tolist(),
                np.array([returns[row == own].mean() for row, own in zip(distances, least, strict=True)]),
                method=self.name,
                diagnostics={"nearest": nearest.tolist(), "distances": least},
            )

        return value


@dataclass(frozen=True)
class GaussianProcess(SupervisedEstimator):
    """Gaussian process of the return, with a Matérn 1/2 kernel of the root of the action distance (Eq. 3 of SOPR-T).

    Policies that act alike have like returns; far from all known policies the value is the mean of the process. With a
    mean such as `Simulator()`, it is the model of `sopr_fast.select`: values by that estimator count as measurements of
    the returns. Without one, it is the model of active offline policy selection (Konyushkova et al. 2021) without its
    estimates, and needs no rewards or seed. `gaussian_process_posterior` states the priors. Standard errors are those
    of the process. Known policies are refused as by `NearestPolicy`.

    Attributes:
        mean: Estimator whose values the process follows where returns do not tell otherwise; None for none.
    """

    mean: Estimator | None = option(None, optional(Check(_to_mean)))  # noqa: RUF009

    def prepare(self, request: Request, values: np.ndarray | None = None) -> Valuation:
        """Compare and value all policies; see `SupervisedEstimator.prepare`."""
        compared = _Compared(request)
        if self.mean is not None and values is None:
            values = self.mean._estimate(request).values

        def value(tested: np.ndarray, known: np.ndarray, returns: np.ndarray, errors: np.ndarray) -> Estimates:
            compared.refuse_known(tested, known)
            both, count = np.concatenate([tested, known]), len(tested)
            posterior = fit(
                compared.distances[np.ix_(both, both)],
                np.concatenate([np.full(count, np.nan), returns]),
                np.concatenate([np.zeros(count), errors]),
                None if values is None else values[both],
            )
            names = compared.names[tested].tolist()
            return Estimates(names, posterior.mean[:count], posterior.deviation[:count], method=self.name)

        return value


class _Compared:
    """Names (P,) and action distances (P, P) float64 of policies."""

    def __init__(self, request: Request):
        self.names = np.array(request.names, object)
        self.distances = mutual_distances(act_on_log(request.policies, request.log)[-1])

    def refuse_known(self, tested: np.ndarray, known: np.ndarray) -> None:
        """Raise ValueError if a policy to value (T,) is itself a known one (M,)."""
        own = (self.distances[np.ix_(tested, known)] == 0) & (self.names[tested][:, None] == self.names[known])
        if own.any():
            raise ValueError(
                f"policy {self.names[tested[own.any(1).argmax()]]!r} is itself known: leave it out, or let "
                "`sopr_fast.evaluate` value known policies by the others"
            )


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
