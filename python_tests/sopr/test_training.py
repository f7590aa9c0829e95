import dataclasses
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.problems import TINY, TORCH_MODES, LinearPolicy, fit, ladder, log, training_gains, weights

import sopr_fast
from sopr_fast.results.metrics import spearman
from sopr_fast.runtime import checkpoints
from sopr_fast.sopr import update
from sopr_fast.sopr.subsets import Subsets
from sopr_fast.sopr.training import CollapsedTrainingWarning

VALIDATION = (ladder([0.3, 0.8]), [0.3, 0.8])
ENCODERS = [{}, {"encoder": "mlp"}]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder": "mlp", "steps": 120},
        {"precision": "bf16"},
        {"subsets": 40},
    ],
    ids=str,
)
def test_fit_orders_policies_it_has_not_seen(options):
    ranker = fit(dataclasses.replace(TINY, **options))
    unseen = np.array([0.9, 0.2, 1.3, 0.5])
    ranking = ranker.rank(ladder(unseen), log(seed=3))
    assert ranking.ranks.tolist() == [2, 4, 1, 3]


def scores_of_everything(path, options):
    """Return scores of a model trained with validation, saved and loaded again."""
    held_out = [0.33, 0.88]
    config = dataclasses.replace(TINY, steps=3, **options)
    fit(config, validation=(ladder(held_out), held_out)).save(path)
    return sopr_fast.load(path).rank(ladder([0.3, 1.2]), log(seed=3)).subset_scores


@pytest.mark.parametrize("options", ENCODERS, ids=str)
def test_the_defaults_and_contexts_of_the_caller_change_no_bit(options, tmp_path):
    expected = scores_of_everything(tmp_path / "model", options)
    for name, context in TORCH_MODES.items():
        with context():
            actual = scores_of_everything(tmp_path / "model", options)
        assert np.array_equal(actual, expected), name


def test_the_offset_of_a_column_does_not_matter():
    gains, unseen = training_gains(), np.linspace(0.15, 1.45, 9)
    states = log() + np.float32([0, 0, 0, 1e4])

    def blind(gain):  # to that column
        return lambda s: LinearPolicy(gain)(s * [1, 1, 1, 0])

    config = dataclasses.replace(TINY, learning_rate=3e-3)
    ranker = sopr_fast.fit({f"{gain}": blind(gain) for gain in gains}, states, gains, config=config)
    candidates = {f"{gain}": blind(gain) for gain in unseen}
    assert spearman(gains, ranker.training_policies.scores) > 0.98
    assert spearman(unseen, ranker.rank(candidates).scores) == 1.0


def test_preferences_train_as_the_returns_they_come_from_and_another_seed_otherwise():
    gains, config = training_gains(), dataclasses.replace(TINY, policy_share=1.0)
    by_preference = fit(config, returns=None, preferences=(gains[:, None] > gains[None]).astype(float))
    expected = weights(fit(config))
    assert torch.equal(weights(by_preference), expected)
    assert not torch.equal(weights(fit(config, seed=4)), expected)


@pytest.fixture
def updates(monkeypatch):
    """The learning rate and the gradients (flat) of every update."""
    seen, adamw = [], torch._fused_adamw_

    def watched(parameters, gradients, *state, lr, **options):
        seen.append((lr, torch.cat([gradient.flatten() for gradient in gradients])))
        adamw(parameters, gradients, *state, lr=lr, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", watched)
    return seen


@pytest.mark.parametrize(("warmup_steps", "rates"), [(0, [8, 8, 8, 8, 8]), (4, [2, 4, 6, 8, 8]), (8, [1, 2, 3, 4, 5])])
def test_the_learning_rate_rises_linearly_in_warm_up(updates, warmup_steps, rates):
    fit(dataclasses.replace(TINY, steps=5, learning_rate=8e-4, warmup_steps=warmup_steps))
    assert [rate for rate, _ in updates] == pytest.approx([1e-4 * rate for rate in rates])


@pytest.fixture
def taken(monkeypatch):
    seen, compute = [], update.Update._compute

    def watched(self):
        same = (self.subsets.rows == self._rows).all(1) & (self.subsets.offsets == self._offsets).all(1)
        seen.append((self._chosen.tolist(), same.nonzero().flatten().tolist()))
        compute(self)

    monkeypatch.setattr(update.Update, "_compute", watched)
    return seen


@pytest.mark.parametrize(("share", "count"), [(0.5, 16), (0.75, 24), (1.0, 30), (1e-9, 16)])
def test_a_step_takes_the_next_subset_and_a_share_of_the_policies_of_each_block(share, count, taken):
    gains = np.linspace(0.1, 1.5, 30)
    fit(dataclasses.replace(TINY, steps=12, subsets=3, policy_share=share), gains)
    chosen, subsets = zip(*taken, strict=True)
    assert list(subsets) == [[0], [1], [2]] * 4
    assert all(step == sorted(set(step)) and len(step) == count for step in chosen)
    assert {policy for step in chosen for policy in step} == {*range(30)}
    assert (len({tuple(step) for step in chosen}) == 1) == (share == 1)
    taken.clear()
    fit(dataclasses.replace(TINY, steps=1, policy_share=share), gains, returns=None, preferences=np.tri(30))
    assert taken[0][0] == [*range(30)]


def test_gradients_are_clipped_to_a_norm(updates):
    config = dataclasses.replace(TINY, steps=1, gradient_clip=0)
    fit(config)
    _, whole = updates.pop()
    norm = whole.norm().item()
    for clip, share in [(norm / 4, 1 / 4), (norm * 4, 1), (1e-3, 1e-3 / norm)]:
        fit(dataclasses.replace(config, gradient_clip=clip))
        torch.testing.assert_close(updates.pop()[1], whole * share, rtol=1e-4, atol=0)


@pytest.mark.usefixtures("undisturbed_draws")
def test_fits_side_by_side_leave_one_another_and_the_global_generators_alone(tmp_path):
    config = dataclasses.replace(TINY, steps=1, subsets=1)
    np.random.seed(0)  # noqa: NPY002
    fit(config).save(tmp_path / "model")
    alone = weights(sopr_fast.load(tmp_path / "model"))
    assert np.random.rand() == np.random.RandomState(0).rand()  # noqa: NPY002
    with ThreadPoolExecutor(6) as pool:
        actual = list(pool.map(lambda _: weights(fit(config)), range(30)))
    assert all(torch.equal(model, alone) for model in actual)


def test_fit_does_not_depend_on_the_number_of_threads(on_threads):
    first, *others = on_threads(lambda: weights(fit(validation=VALIDATION)), 1, 2, 3)
    assert all(torch.equal(first, other) for other in others)


def test_validation_keeps_the_latest_best_weights():
    validation = (ladder([0.3, 0.8, 0.6]), [0.3, 0.8, 0.6])
    ranker = fit(validation=validation)
    history = ranker.history
    values = np.array(history["validation_rank_correlation"])
    validated = np.array([*range(0, TINY.steps, 4), TINY.steps - 1])
    assert history["best_step"] == validated[values[validated] == values.max()][-1]
    assert all(values[step] == values[step // 4 * 4] for step in range(TINY.steps - 1))  # of the last validation
    short = dataclasses.replace(TINY, steps=history["best_step"] + 1)
    assert torch.equal(weights(ranker), weights(fit(short, validation=validation)))


def test_the_settings_of_the_paper():
    # Table of appendix A.1; 200 subsets (appendix A.2); 200 steps as in the released code.
    paper = {
        "width": 64, "low_layers": 2, "low_heads": 2, "low_feedforward": 128, "high_layers": 6, "high_heads": 8,
        "high_feedforward": 512, "dropout": 0.1, "learning_rate": 0.001, "subset_size": 16384, "clusters": 256,
        "subsets": 200, "steps": 200, "encoder": "transformer", "precision": "fp32",
    }  # fmt: skip
    assert paper.items() <= sopr_fast.Config.paper().to_dict().items()
    assert sopr_fast.Config.paper(encoder="mlp") == dataclasses.replace(sopr_fast.Config.paper(), encoder="mlp")


@pytest.mark.parametrize("validation", [None, VALIDATION], ids=["plain", "validated"])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_run_that_ends_early_resumes_to_the_same_model(error, validation, tmp_path, monkeypatch):
    """A killed run leaves the last step written, an interrupted one writes the last whole step."""
    path, run, taken = tmp_path / "checkpoint.safetensors", update.Update.run, []
    whole = fit(validation=validation)
    if error is ZeroDivisionError:
        monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)

    def ends_in_17(self, step):
        run(self, step)  # the weights have changed, the step does not count
        if step == 17:
            raise error

    monkeypatch.setattr(update.Update, "run", ends_in_17)
    for options, remedy in (
        ({"checkpoint": path}, f"run it again with checkpoint '{path}' to resume"),
        ({}, "name a checkpoint file to be able to resume"),
    ):
        message = re.escape(f"after 17 of 40 steps; {remedy}") if error is KeyboardInterrupt else ""
        with pytest.raises(error, match=message):
            fit(validation=validation, **options)
    monkeypatch.setattr(update.Update, "run", lambda self, step: (taken.append(step), run(self, step)))
    resumed = fit(validation=validation, checkpoint=path)
    assert taken == list(range(17, TINY.steps))
    assert torch.equal(weights(resumed), weights(whole)) and resumed.history == whole.history


def test_training_goes_on_without_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.safetensors"

    def full(*_):
        raise OSError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(checkpoints, "save_tensors", full)
    with pytest.warns(UserWarning, match="no checkpoint written: cannot write .*No space"):
        ranker = fit(checkpoint=path)
    assert torch.equal(weights(ranker), weights(fit())) and not path.exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch):
    gains, states = training_gains(), log(3000)
    config = dataclasses.replace(TINY, subset_size=2500, clusters=8, subsets=2, steps=2)
    options = {"config": config, "states": states, "checkpoint": tmp_path / "checkpoint.safetensors"}
    fit(**options)
    row = states[Subsets.draw(states, 2, size=2500, clusters=1).source[1]]

    def other_in_one_state(s):
        return LinearPolicy(gains[0])(s) + (s == row).all(1, keepdims=True)

    other = {"policies": [other_in_one_state, *ladder(gains[1:]).values()]}
    named = {"policies": dict(zip(ladder(gains), other["policies"], strict=True))}
    message = r"checkpoint\.safetensors is of a run with other policies, returns, states, options or seed"
    for change in ({"states": log(3000, seed=9)}, other, named):
        with pytest.raises(ValueError, match=message):
            fit(**options | change)
    monkeypatch.setattr("sopr_fast.sopr.fitting.probe", None)
    for change in ({"config": dataclasses.replace(config, steps=3)}, {"seed": 1}, {"returns": -gains}):
        with pytest.raises(ValueError, match=message):
            fit(**options | change)


def test_a_run_that_collapsed_warns():
    deep = sopr_fast.Config(subset_size=128, clusters=8, subsets=3, steps=30)
    flat = dataclasses.replace(deep, learning_rate=1.0, warmup_steps=0, gradient_clip=0)
    # After one step the product of two weights exceeds the largest float32.
    wild = dataclasses.replace(TINY, steps=3, learning_rate=1e30, gradient_clip=0, warmup_steps=0)
    different, same = ladder(training_gains()), dict.fromkeys("abcdefghijkl", LinearPolicy(0.5))
    for config, policies in ((flat, different), (wild, different), (TINY, same)):
        with pytest.warns(CollapsedTrainingWarning, match="means nothing.*Centre and scale columns") as caught:
            history = sopr_fast.fit(policies, log(), training_gains(), config=config).history
        assert [warning.category for warning in caught].count(CollapsedTrainingWarning) == 1
        assert caught[0].filename == __file__
        assert history["collapsed"] and len(history["loss"]) == config.steps


@pytest.mark.parametrize("options", [{}, {"steps": 1}, {"steps": 30}, {"steps": 1, "encoder": "mlp"}], ids=str)
def test_a_good_run_warns_of_no_collapse(options):
    with warnings.catch_warnings(action="error", category=CollapsedTrainingWarning):
        assert not fit(dataclasses.replace(TINY, **options)).history["collapsed"]
