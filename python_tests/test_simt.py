"""The emulator of CUDA: tensor-core instructions beside plain products, and races that it must report."""

import ctypes

import pytest
import torch
from emulator import SIMT, compile_for_cpu

pytestmark = pytest.mark.emulated

NO_FAULT, NO_WAIT = 0, 4


@pytest.fixture(scope="module")
def probes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probes")
    library = ctypes.CDLL(str(compile_for_cpu(folder / "probes.so", [SIMT / "probes.cpp"], [], [], [])))

    def call(name, *arguments):
        function = getattr(library, name)
        function.restype = ctypes.c_char_p
        message = function(*(ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else x for x in arguments))
        return message and message.decode()

    return call


def operands(generator):
    return torch.randn(16, 16, generator=generator), torch.randn(8, 16, generator=generator), torch.zeros(16, 8)


def registers(matrix, place, count):
    """Return (32, count) registers: element i of lane l is matrix[place(l / 4, l % 4, i)]."""
    return torch.stack(
        [torch.stack([matrix[place(lane // 4, lane % 4, i)] for i in range(count)]) for lane in range(32)]
    )


def test_mma_reads_and_writes_the_fragments_of_the_ptx_manual(probes, generator):
    """Tables of PTX ISA 9.2, sections 9.7.14.5.7 (m16n8k8, .tf32) and 9.7.14.5.8 (m16n8k16, .bf16)."""

    def sums_at(g, t, i):
        return g if i < 2 else g + 8, t * 2 + (i & 1)

    def check(a, b, words_a, words_b, bf16):
        out = torch.zeros(32, 4)
        assert probes("fragments", words_a.contiguous(), words_b.contiguous(), out, bf16) is None
        assert torch.equal(out, registers(a @ b, sums_at, 4))

    def integers(*shape):
        return torch.randint(-60, 60, shape, generator=generator).float()

    a, b = integers(16, 8), integers(8, 8)
    words_a = registers(a, lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4), 4).view(torch.int32)
    words_b = registers(b, lambda g, t, i: (t if i == 0 else t + 4, g), 2).view(torch.int32)
    ignored = torch.randint(1 << 13, words_a.shape, generator=generator, dtype=torch.int32)
    check(a, b, words_a | ignored, words_b, 0)

    a, b = integers(16, 16), integers(16, 8)
    halves_a = registers(
        a, lambda g, t, i: (g if i in (0, 1, 4, 5) else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)), 8
    )
    halves_b = registers(b, lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g), 4)
    check(a, b, halves_a.bfloat16(), halves_b.bfloat16(), 1)


def test_mma_of_small_integers_is_exact(probes):
    """An element in a wrong place of a fragment would show."""
    a, b, out = (
        torch.arange(256.0).view(16, 16) % 31 - 15,
        torch.arange(128.0).view(8, 16) % 23 - 11,
        torch.zeros(16, 8),
    )
    for name, *options in [("tf32", 0), ("tf32", 1), ("bf16",)]:
        assert probes(name, a, b, out, *options) is None
        assert torch.equal(out, a @ b.T)


def test_mma_rounds_its_operands(probes, generator):
    a, b, out = operands(generator)
    probes("bf16", a, b, out)
    exact = a.bfloat16().double() @ b.bfloat16().double().T
    assert (out - exact).norm() <= 1e-6 * exact.norm()

    def tf32(x):
        return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32).double()

    probes("tf32", a, b, out, 0)
    exact = tf32(a) @ tf32(b).T
    assert (out - exact).norm() <= 1e-6 * exact.norm()
    assert (out - a.double() @ b.double().T).norm() > 1e-5 * exact.norm()


def test_three_products_in_tf32_have_the_grade_of_fp32(probes, generator):
    a, b, out = operands(generator)
    probes("tf32", a, b, out, 1)
    exact = a.double() @ b.double().T
    assert (out - exact).norm() <= 3 * (a @ b.T - exact).norm() + 1e-8 * exact.norm()


def test_a_kernel_without_fault_has_no_race(probes):
    x, out = torch.arange(64.0), torch.zeros(64)
    assert probes("neighbour", x, out, NO_FAULT, 1) is None
    assert torch.equal(out, x.roll(-32) + x.flip(0))


@pytest.mark.parametrize(
    ("fault", "blocks", "memory"),
    [(1, 1, "shared"), (2, 1, "shared"), (3, 1, "shared"), (5, 1, "global"), (6, 2, "global")],
    ids=["no block barrier", "no warp barrier", "overwritten while read", "in global memory", "two blocks"],
)
def test_a_planted_race_is_reported(fault, blocks, memory, probes):
    message = probes("neighbour", torch.arange(64.0), torch.zeros(64), fault, blocks)
    assert message.startswith("neighbour: race: threads ")
    assert f"touch one place of {memory} memory without a barrier between" in message


def test_a_copy_that_nobody_waits_for_has_not_arrived(probes):
    out = torch.zeros(64)
    probes("neighbour", torch.arange(64.0), out, NO_WAIT, 1)
    assert out.isnan().all()  # shared memory starts as NaN


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_a_cluster_reads_the_memory_of_its_blocks(cluster, probes):
    x, out = torch.arange(512.0), torch.zeros(512)
    assert probes("next_block", x, out, NO_FAULT, 8, cluster) is None
    assert torch.equal(out, x.view(-1, cluster, 64).roll(-1, 1).flatten())


@pytest.mark.parametrize(
    ("fault", "memory"),
    [(1, "shared"), (2, "shared"), (3, "shared"), (4, "global"), (5, "shared")],
    ids=["no barrier", "block barrier only", "overwritten while read", "in global memory", "static shared memory"],
)
def test_a_planted_race_of_two_blocks_is_reported(fault, memory, probes):
    message = probes("next_block", torch.arange(256.0), torch.zeros(256), fault, 4, 2)
    assert message.startswith("next_block: race: threads ")
    assert f"of two blocks of a cluster touch one place of {memory} memory without a barrier between" in message
