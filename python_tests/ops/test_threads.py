"""Results do not depend on the number of threads, other callers or forks."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.operators import CALLS, run

from sopr_fast import native, ops


def results(name: str) -> list[torch.Tensor]:
    return run(CALLS[name].operator, CALLS[name])


def assert_same(actual, expected) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_the_number_of_threads_changes_no_bit(name, on_threads):
    expected, *others = on_threads(lambda: results(name), *range(1, 9))
    for actual in others:
        assert_same(actual, expected)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="torch cannot flush denormal numbers here")
def test_kernels_count_denormal_numbers_whatever_the_caller_does(on_threads):
    points = 1e-39 * torch.randn(1, 4000, 3, generator=torch.Generator().manual_seed(0))
    offsets = torch.arange(0, 4001, 500, dtype=torch.int32)

    def call_all() -> list[torch.Tensor]:
        values = points.view(4000, 1, 3)
        clusters = ops.kmeans(points, 4, init=points[:, :4])
        attended = ops.segment_attention(values, values, values, offsets)
        return [*clusters, attended]

    expected = call_all()
    assert (expected[-1] != 0).all()
    torch.set_flush_denormal(True)
    try:
        actual = on_threads(call_all, 1, 4)
        flushes = bool((points[:, :9] * 1 == 0).all())
    finally:
        torch.set_flush_denormal(False)
    assert flushes  # still
    for tensors in actual:
        assert_same(tensors, expected)


def test_several_python_threads_call_at_once(set_threads):
    set_threads(4)
    expected = {name: results(name) for name in CALLS}
    together = threading.Barrier(4)

    def call_all(shift: int) -> None:
        torch.set_num_threads(4)
        names = [*CALLS][shift:] + [*CALLS][:shift]
        together.wait()
        for name in names:
            assert_same(results(name), expected[name])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call_all, [0, 0, 3, 6]))


def test_a_kernel_runs_on_the_threads_that_its_workspace_was_made_for(monkeypatch):
    changing, seen = itertools.cycle([8, 1]), []  # as where another Python thread sets the number

    def note_threads(name: str) -> None:
        function = getattr(native._cpu, name)

        def note(*arguments):
            seen.append((name, arguments[1 if name.endswith("workspace") else 0]))
            return function(*arguments)

        monkeypatch.setattr(native._cpu, name, note)

    for name in ("segment_encoder_workspace", "segment_encoder", "segment_encoder_backward"):
        note_threads(name)
    monkeypatch.setattr(native, "threads", lambda: next(changing))
    results("segment_encoder")
    names = ["segment_encoder_workspace", "segment_encoder", "segment_encoder_workspace", "segment_encoder_backward"]
    assert seen == list(zip(names, [8, 8, 1, 1], strict=True))


def test_overlapping_torch_on_one_thread_restores_all_threads(set_threads):
    set_threads(3)
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> list[int]:
        with native.torch_on_one_thread():
            first_in.set()
            assert second_in.wait(60)
        counts = [torch.get_num_threads()]
        first_out.set()
        return counts

    def second() -> list[int]:
        assert first_in.wait(60)
        with native.torch_on_one_thread():
            with native.torch_on_one_thread():
                counts = [torch.get_num_threads(), native.threads()]
            second_in.set()
            assert first_out.wait(60)
            with ThreadPoolExecutor(1) as new:
                counts += [torch.get_num_threads(), new.submit(torch.get_num_threads).result(), native.threads()]
                counts += [new.submit(native.threads).result()]
        return [*counts, torch.get_num_threads()]

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(work) for work in (first, second)]
        assert [result.result() for result in results] == [[3], [1, 3, 1, 1, 3, 3, 3]]
    with ThreadPoolExecutor(1) as new:
        assert new.submit(torch.get_num_threads).result() == 3
