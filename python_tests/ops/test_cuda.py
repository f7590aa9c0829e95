"""Behaviour that needs a GPU: streams, captured graphs, and the model on it."""

import dataclasses
import threading

import pytest
import torch
from support import operators
from support.problems import TINY, fit, ladder, weights
from torch import Tensor

import sopr_fast
from sopr_fast.runtime import graphs
from sopr_fast.sopr.update import Update

CAPTURED = ["segment_mean", "segment_dropout", "segment_attention", "segment_encoder", "segment_encoder of width 64"]


def run(name: str, device: str = "cuda") -> list[Tensor]:
    one = operators.CALLS[name]
    return operators.run(one.operator, one, device=device)


@pytest.mark.parametrize("name", operators.CALLS)
def test_cuda_operators_on_two_streams_at_once(name, cuda):
    expected = run(name)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results = []
    for stream in streams * 3:
        with torch.cuda.stream(stream):
            results.append(run(name))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for result in results for a, b in zip(result, expected, strict=True))


def capture(call):
    """Return a graph of `call` and its outputs, after the warm-up that torch requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph, out


@pytest.mark.parametrize("name", CAPTURED)
def test_cuda_graph_of_an_operator_follows_its_inputs(name, cuda):
    one = operators.CALLS[name]
    inputs = {k: v.to(cuda, copy=True) if isinstance(v, Tensor) else v for k, v in one.arguments.items()}
    with torch.no_grad():
        graph, out = capture(lambda: one.operator(**inputs))
        for _ in range(2):
            expected = one.operator(**inputs)
            graph.replay()
            assert torch.equal(out, expected)
            for value in inputs.values():
                if isinstance(value, Tensor) and value.is_floating_point():
                    value.mul_(0.5)
            if "rng" in inputs:
                inputs["rng"].add_(1)  # the next step's dropout


@pytest.mark.parametrize("options", [{}, {"encoder": "mlp"}], ids=str)
def test_cuda_graphs_of_training_have_the_bits_of_eager_steps_and_never_wait(options, cuda, monkeypatch, caplog):
    validation, run = [0.3, 0.8, 0.6], Update.run
    config = dataclasses.replace(TINY, steps=8, **options)

    def run_without_waiting(update, step, *arguments):
        torch.cuda.set_sync_debug_mode("error" if step > 3 else "default")  # warm-ups and the capture may wait
        try:
            run(update, step, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    @sopr_fast.options(device=cuda)
    def train():
        return fit(config, validation=(ladder(validation), validation))

    monkeypatch.setattr(Update, "run", run_without_waiting)
    replayed = train()
    assert "no CUDA graph" not in caplog.text
    monkeypatch.setenv("SOPR_FAST_CUDA_GRAPHS", "0")
    eager = train()
    assert torch.equal(weights(replayed), weights(eager)) and replayed.history == eager.history


def test_cuda_graphs_are_captured_beside_a_thread_that_allocates(cuda):
    x, stop = torch.ones(8, device=cuda), threading.Event()

    def allocate():
        kept = []
        while not stop.is_set() and len(kept) < 200:
            kept.append(torch.zeros(1 << 22, device=cuda))  # too large for what torch keeps at hand

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        for _ in range(20):
            graphs.capture(lambda: x.mul_(2), cuda).replay()
    finally:
        stop.set()
        thread.join()
    assert x.tolist() == [2.0**20] * 8
