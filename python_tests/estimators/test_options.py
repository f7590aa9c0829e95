"""Options, seeds and discounts that estimators accept and refuse."""

import math

import pytest
from support.estimators import each_method, gains, unwarned

from sopr_fast.estimators import FQE, SOPR, BehaviourQ, DualDICE, ImportanceWeighting, Simulator

pytestmark = unwarned


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {name: 0}) for method in (FQE, BehaviourQ) for name in ("updates", "batch_size")),
        *((FQE, {"hidden": hidden}) for hidden in (8, "8", (8, 0), (8.0,), None)),
        *((FQE, {name: value}) for name in ("learning_rate", "target_rate") for value in (0, -1e-3, math.nan, "1")),
        *((FQE, {"discount": value}) for value in (1.5, -0.1)),
        (FQE, {"updates": 10.0}),
        (FQE, {"target_rate": 1.5}),
        (BehaviourQ, {"learning_rate": math.inf}),
        *((DualDICE, {name: 0}) for name in ("updates", "batch_size", "nu_rate", "zeta_rate")),
        *((ImportanceWeighting, {name: 0}) for name in ("updates", "noise")),
        *((ImportanceWeighting, {"clip": clip}) for clip in ((1, 0), 2.0, (1, 2, 3), ("a", "b"), (None, 2))),
        *((Simulator, {name: 0}) for name in ("updates", "members", "horizon")),
        (Simulator, {"hidden": (0,)}),
        (SOPR, {"config": {"steps": 3}}),
    ],
)
def test_message_names_the_invalid_option(method, options):
    with pytest.raises(ValueError, match=rf"^{next(iter(options))}\b"):
        method(**options)


@each_method
@pytest.mark.parametrize("seed", [-1, 1.5])
def test_message_names_an_invalid_seed(method, seed, log):
    with pytest.raises(ValueError, match="^seed must be"):
        method.estimate(gains(), log, seed=seed)
