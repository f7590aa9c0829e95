"""Captured steps and tiles, on the CPU: nothing waits for the device, and replays repeat what eager runs do."""

import dataclasses

import numpy as np
import pytest
import torch
from support.problems import TINY, fit, ladder, log, weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sopr_fast import Config, ops
from sopr_fast.ops import composed
from sopr_fast.results.metrics import spearman
from sopr_fast.runtime import checkpoints, devices, distributed, graphs
from sopr_fast.runtime.distributed import Group
from sopr_fast.sopr import scoring, update
from sopr_fast.sopr.model import ScoringModel
from sopr_fast.sopr.subsets import Subsets
from sopr_fast.sopr.update import Examples, Update

aten = torch.ops.aten
WAITING = {  # of a GPU: what they return, or its shape, depends on values; or they copy from the host
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.lift_fresh.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
}


def tensors_of(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Operators in the order of their calls; an operator for which a GPU's host would wait raises."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        keywords = keywords or {}
        if operator in WAITING:
            raise RuntimeError(f"the host waits in {operator}")
        indexes = operator.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
        if indexes and any(index.dtype == torch.bool for index in tensors_of(arguments[1])):
            raise RuntimeError(f"the host waits in {operator} for the number of true elements")
        results = operator(*arguments, **keywords)
        if operator.namespace != "profiler":
            self.calls.append((operator, arguments, keywords, results))
        return results

    @torch.no_grad()
    def replay(self):
        for operator, arguments, keywords, results in self.calls:
            for old, new in zip(tensors_of(results), tensors_of(operator(*arguments, **keywords)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Graph:
    """Takes the place of torch.cuda.CUDAGraph; what capture did counts as the first replay."""

    def __init__(self, function):
        self.tape, self.replays = Tape(), 0
        with self.tape:
            function()

    def replay(self):
        self.replays += 1
        if self.replays > 1:
            self.tape.replay()


def stand_in(monkeypatch, *, captures=True):
    """Run what would run on a GPU on the CPU; return the list of graphs that will be captured."""
    made = []

    def capture(function, device):
        if not captures:
            raise RuntimeError("not here")
        made.append(Graph(function))
        return made[-1]

    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    monkeypatch.setattr(graphs, "can_capture", lambda device: True)
    monkeypatch.setattr(graphs, "capture", capture)
    return made


SHORT = dataclasses.replace(TINY, steps=7, warmup_steps=4, subsets=3)
VALIDATION = (ladder([0.3, 0.8, 0.6]), [0.3, 0.8, 0.6])


def assert_same(ranker, expected):
    assert torch.equal(weights(ranker), weights(expected)) and ranker.history == expected.history


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"validation": VALIDATION}),
        ({"encoder": "mlp", "gradient_clip": 0.0}, {}),
    ],
    ids=["transformer", "mlp"],
)
def test_replayed_steps_are_those_of_an_eager_run(changes, options, monkeypatch):
    config = dataclasses.replace(SHORT, **changes)
    with monkeypatch.context() as patch:
        stand_in(patch, captures=False)
        eager = fit(config, **options)
    made = stand_in(monkeypatch)
    assert_same(fit(config, **options), eager)
    assert len([graph for graph in made if graph.replays == 5]) == 1  # after two eager steps


def test_the_composed_encoder_never_waits(monkeypatch):
    """It takes the place of kernels for unusual shapes."""
    made = stand_in(monkeypatch)
    monkeypatch.setattr(ops, "segment_encoder", composed.segment_encoder)
    fit(SHORT)
    assert 5 in [graph.replays for graph in made]


def test_a_run_that_reads_rarely_is_that_of_the_cpu(monkeypatch):
    history = fit(SHORT, validation=VALIDATION).history
    stand_in(monkeypatch)
    ahead_history = fit(SHORT, validation=VALIDATION).history
    assert history.keys() == ahead_history.keys()
    assert history["best_step"] == ahead_history["best_step"]
    np.testing.assert_allclose(ahead_history["loss"], history["loss"], rtol=1e-4)  # Adam in one kernel rounds otherwise
    np.testing.assert_allclose(ahead_history["validation_loss"], history["validation_loss"], rtol=1e-3)
    assert len(ahead_history["loss"]) == SHORT.steps


@pytest.mark.parametrize("options", [{}, {"encoder": "mlp"}], ids=str)
def test_replayed_tiles_have_the_scores_of_an_eager_run(options, monkeypatch, generator):
    config = dataclasses.replace(TINY, **options)
    subsets = Subsets.draw(log(), 7, size=config.subset_size, clusters=config.clusters)
    model = ScoringModel(subsets.state_dim + 2, config).eval()
    columns = torch.randn(5, len(subsets.states), 2, generator=generator)
    cell = 4 * config.clusters * config.width
    monkeypatch.setattr(scoring, "_TILE_BYTES", 3 * cell)
    with monkeypatch.context() as patch:
        stand_in(patch, captures=False)
        expected = scoring.score_grid(model, subsets, columns)
    made = stand_in(monkeypatch)
    assert torch.equal(scoring.score_grid(model, subsets, columns), expected)
    assert [graph.replays for graph in made] == [5, 5]  # 3 and 2 policies, a subset at a time


def test_what_cannot_be_captured_runs_launch_by_launch(caplog, monkeypatch):
    stand_in(monkeypatch, captures=False)
    calls = []
    run = graphs.Replayed(lambda: calls.append(1), torch.device("cpu"))
    for _ in range(5):
        run()
    assert len(calls) == 5
    assert caplog.messages == ["no CUDA graph, every launch runs by itself: not here"]


@pytest.mark.parametrize(
    ("encoder", "processes", "blocks"), [("transformer", 1, 1), ("transformer", 2, 4), ("mlp", 1, 1)]
)
def test_a_process_on_a_gpu_takes_all_policies_at_once(encoder, processes, blocks, monkeypatch):
    subsets = Subsets.draw(log(), 2, size=40, clusters=4)  # processes of a group would share the work
    config = Config(subset_size=40, clusters=4, subsets=2, encoder=encoder)
    columns = torch.zeros(30, len(subsets.states), 3)
    examples = Examples(columns, slice(0, 30), torch.arange(30, dtype=torch.float64))
    assert Update(subsets, examples, None, config, 0).block_count == 4  # on a CPU
    stand_in(monkeypatch)
    monkeypatch.setattr(distributed, "current", lambda: Group(0, processes))
    made = Update(subsets, examples, None, config, 0)
    assert made.block_count == blocks and made._run._allowed == (processes == 1)


def test_the_host_reads_results_only_where_it_must(tmp_path, monkeypatch):
    """With a checkpoint, it waits for the device when the file is due, not in every step."""
    stand_in(monkeypatch)
    kept = []
    monkeypatch.setattr(checkpoints.Checkpoint, "keep", lambda self, tensors, values, **_: kept.append(values["done"]))
    fit(dataclasses.replace(SHORT, steps=9), checkpoint=tmp_path / "checkpoint.safetensors")
    assert kept == [9]
    monkeypatch.setattr(checkpoints.Checkpoint, "is_due", lambda self: True)
    fit(dataclasses.replace(SHORT, steps=9), checkpoint=tmp_path / "other.safetensors")
    assert kept[1:] == [*range(1, 10)]


@pytest.mark.parametrize("scores", [[0.1, 0.4, 0.4, -1.0, 2.0], [1.0] * 5, [0.0, 1.0, float("nan"), 2.0, 3.0]])
def test_spearman_on_the_device_has_the_bits_of_spearman(scores):
    returns = [3.0, 1.0, 3.0, 0.0, 8.0]
    actual = update._spearman(torch.tensor(returns, dtype=torch.float64), torch.tensor(scores))
    expected = spearman(returns, scores) if np.isfinite(scores).all() else float("nan")
    np.testing.assert_equal(actual.item(), expected)
