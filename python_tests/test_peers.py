"""The torch peers compute the same scores and gradients as the released loop, which makes timings comparable."""

import pytest
import torch
from peers.bucketed import BucketedModel
from peers.kmeans import lloyd
from peers.loop import ReleasedModel

pytest.importorskip("torch.nn.attention.flex_attention", reason="this torch has no flex attention for the peers")
from peers.packed import PackedModel

from sopr_fast import ops
from sopr_fast.ops import reference


def trained_looking_model(generator):
    model = ReleasedModel(4, 2)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.fc[1].running_var.uniform_(0.5, 2, generator=generator)
    return model


def problem(generator):
    sizes = torch.tensor([1, 2, 15, 16, 17, 40, 0, 5])
    labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    states = torch.randn(len(labels), 4, generator=generator)
    return states, torch.randn(3, len(labels), 2, generator=generator), labels


PEERS = {
    "bucketed sdpa": lambda model: BucketedModel(model, tokens=64, policies=2),
    "bucketed matmul": lambda model: BucketedModel(model, attention="matmul", tokens=64, policies=3),
    "bucketed recompute": lambda model: BucketedModel(model, tokens=64, policies=2, recompute=True),
    "packed nested": lambda model: PackedModel(model, attention="nested"),
}


@pytest.mark.parametrize("name", PEERS)
def test_peer_matches_loop(name, generator):
    model = trained_looking_model(generator).eval()
    states, actions, labels = problem(generator)
    peer = PEERS[name](model)
    torch.testing.assert_close(peer(states, actions, peer.plan(labels)), model(states, actions, labels))


def test_peer_of_varlen_attention_matches_loop(generator, monkeypatch):
    """Uses attention in plain torch, since varlen attention needs a GPU."""
    monkeypatch.setattr(
        "peers.packed.varlen_attn", lambda q, k, v, bounds, *_: reference.segment_attention(q, k, v, bounds)
    )
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    model = trained_looking_model(generator).eval()
    states, actions, labels = problem(generator)
    peer = PackedModel(model, attention="varlen")
    torch.testing.assert_close(peer(states, actions, peer.plan(labels)), model(states, actions, labels))


def test_peer_kmeans_takes_our_steps(generator):
    points = torch.randn(3, 400, 5, generator=generator)
    start = points[:, :12].contiguous()
    centroids, labels = lloyd(points, start, 4, at_once=2)
    ours = ops.kmeans(points, 12, init=start, iterations=3, tolerance=0)
    assert torch.equal(labels, ours.labels)
    torch.testing.assert_close(centroids, ops.kmeans(points, 12, init=start, iterations=4, tolerance=0).centroids)


@pytest.mark.parametrize("name", PEERS)
def test_peer_gradients_match_loop(name, generator, monkeypatch):
    monkeypatch.setattr("peers.layers.DROPOUT", 0.0)
    model = trained_looking_model(generator).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    states, actions, labels = problem(generator)
    model, states, actions = model.double(), states.double(), actions.double()
    peer = PEERS[name](model)
    peer.dtype = torch.float64  # float32 gradients before a batch norm depend on the kernels of the BLAS
    gradients = []
    for run, clustering in ((model, labels), (peer, peer.plan(labels))):
        model.zero_grad()
        run(states, actions, clustering).square().sum().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    largest = max(g.norm() for g in gradients[0].values())
    for parameter, gradient in gradients[0].items():
        difference = (gradient - gradients[1][parameter]).norm()
        assert difference <= 1e-4 * gradient.norm() + 1e-6 * largest, parameter


def test_peer_hashed_dropout_drops_a_tenth(generator):
    from peers.layers import Dropout

    drop = Dropout(True, torch.tensor(7, dtype=torch.int32))
    masks = [drop(torch.ones(1000, 100)) for _ in range(2)]
    for mask in masks:
        assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}
        assert abs((mask == 0).float().mean() - 0.1) < 0.005
        assert (mask == 0).float().mean(0).std() < 0.015
    assert abs(((masks[0] == 0) & (masks[1] == 0)).float().mean() - 0.01) < 0.002
