"""How often kernels ask whether they are cancelled, and how soon they return then: counts, not times.

A poll for every few million operations answers a signal within milliseconds on any processor.
"""

import pytest
import torch

from sopr_fast import ops
from sopr_fast.runtime import native

PANEL, KEYS = 64, 128  # largest numbers of queries and keys in a tile of attention
OPERATIONS = 1 << 22  # between two polls of k-means
SOON = 24  # polls after the one that cancels

N, K, D, HEADS, LAYERS = 3000, 400, 8, 2, 3
generator = torch.Generator().manual_seed(0)
points = torch.randn(4, N, D, generator=generator)
start = points[:, :K].contiguous()
offsets = torch.tensor([0, N], dtype=torch.int32)  # one segment
segments = torch.arange(0, N + 1, 10, dtype=torch.int32)
x = torch.randn(N, HEADS, D, generator=generator)
shapes = map(torch.Size, ops.encoder_shapes(D, D, LAYERS, D, False))
parameters = 0.1 * torch.randn(sum(shape.numel() for shape in shapes), generator=generator)
layers = {"width": D, "layers": LAYERS, "heads": HEADS, "feedforward": D, "project": False}
rows = torch.arange(N, dtype=torch.int32)[None]
tiles = HEADS * (N // PANEL) * (N // KEYS)


def attend(**options):
    return ops.segment_attention(*(x.clone().requires_grad_(bool(options)) for _ in range(3)), offsets)


def encode(gradient=False, precision="fp32"):
    own = parameters.clone().requires_grad_(gradient)
    return ops.segment_encoder(torch.zeros(N, 0), points[:1], rows, offsets[None], own, precision=precision, **layers)


def mean_of_segments():
    return ops.segment_mean(x.flatten(1).requires_grad_(), segments)


# A function that returns the call to count, and the least number of its polls.
CALLS = {
    "kmeans_assign": (lambda: lambda: ops.kmeans_assign(points, points), 4 * N * N * D // (2 * OPERATIONS)),
    "kmeans": (lambda: lambda: ops.kmeans(points, K, init=start, iterations=9, tolerance=0), 4 * 9 * N // 1024),
    "kmeans of one problem": (
        lambda: lambda: ops.kmeans(points[:1], K, init=start[:1], iterations=9, tolerance=0),
        9 * N // 1024,
    ),
    "kmeans_init": (lambda: lambda: ops.kmeans_init(points, K), 2 * 4 * K),
    "sort_by_cluster": (lambda: lambda: ops.sort_by_cluster(rows.expand(9, N) % K, K), 9),
    "segment_mean": (lambda: mean_of_segments, N // 10),
    "segment_mean, backward": (lambda: mean_of_segments().sum().backward, N // 10),
    "segment_dropout": (
        lambda: (
            lambda: ops.segment_dropout(
                x.flatten(1), segments, probability=0.5, rng=torch.tensor([1, 2]), level=0, layer=0
            )
        ),
        N // 10,
    ),
    "segment_attention": (lambda: attend, tiles),
    "segment_attention, backward": (lambda: attend(gradient=True).sum().backward, tiles),
    "segment_encoder": (lambda: encode, LAYERS * tiles),
    "segment_encoder in bf16": (lambda: lambda: encode(precision="bf16"), LAYERS * tiles),
    "segment_encoder, backward": (lambda: encode(gradient=True).sum().backward, 2 * LAYERS * tiles),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    native._cpu.count_polls()
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CALLS)
def test_kernels_poll_between_tiles_and_return_soon_after(name):
    prepare, least = CALLS[name]
    call = prepare()
    native._cpu.count_polls()
    call()
    count = native._cpu.polls()
    assert count >= least
    for poll in {1, count // 3, count - 1}:
        call = prepare()
        native._cpu.count_polls(poll)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert native._cpu.polls() <= poll + SOON
        native._cpu.count_polls()
