import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import settings
from support import operators
from support.emulator import cuda_module_for_cpu, emulated  # noqa: F401

from sopr_fast import native

# The same examples in every run: a change that breaks none of them cannot fail by chance.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.load_profile("repeatable")


def pytest_terminal_summary(terminalreporter):
    """Say which tests were skipped, and why."""
    reports = terminalreporter.stats.get("skipped", [])
    for reason, count in Counter(report.longrepr[2] for report in reports).most_common():
        terminalreporter.write_line(f"{count:>5} {reason}")


def _why_no_cuda() -> str | None:
    if native._cuda is None:
        return f"CUDA module {native.why_no_cuda}"
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def device(request) -> torch.device:
    if request.param == "cuda" and (reason := _why_no_cuda()):
        pytest.skip(reason)
    return torch.device(request.param)


@pytest.fixture(scope="session")
def ops(device) -> operators.OnDevice:
    return operators.OnDevice(device)


@pytest.fixture
def cuda() -> torch.device:
    """A CUDA device, for what only such a one can show."""
    if reason := _why_no_cuda():
        pytest.skip(reason)
    return torch.device("cuda")


@pytest.fixture
def poison():
    """New tensors hold what no result may: not a number, or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def on_threads(set_threads):

    def run(call, *counts):
        results = []
        for threads in counts:
            set_threads(threads)
            results.append(call())
            assert torch.get_num_threads() == threads
        return results

    return run


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def states(generator) -> torch.Tensor:
    """States of five columns, more than two blocks of rows."""
    return torch.randn(2500, 5, generator=generator) * 3


@pytest.fixture
def undisturbed_draws():
    """A thread that draws from torch's global generator all the while, and must get what it would get alone."""
    done, drawn = threading.Event(), []

    def draw():
        while not done.is_set():
            drawn.append(torch.rand(1))

    torch.manual_seed(0)
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(draw)
        yield
        done.set()
        drawing.result()
    generator = torch.Generator().manual_seed(0)
    assert all(torch.equal(torch.rand(1, generator=generator), number) for number in drawn)


@pytest.fixture(scope="session")
def log():
    from support.estimators import small_log

    return small_log()
