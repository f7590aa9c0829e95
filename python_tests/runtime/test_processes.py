"""Forks, signals and the end of the process while kernels run."""

import subprocess

import pytest
from support.python import python

TIMEOUT = 120  # seconds, far more than any of these scripts needs


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return python("-c", script, *arguments, timeout=TIMEOUT)


FORK = """
import os, warnings, torch
import sopr_fast
from support.problems import TINY, ladder, log, training_gains
warnings.simplefilter("ignore")
torch.set_num_threads(2)
gains = training_gains()
ranker = sopr_fast.fit(ladder(gains), log(), gains, config=TINY)
candidates = ladder([0.2, 0.7])
expected = ranker.rank(candidates, log()).scores
children = []
for _ in range(5):
    child = os.fork()
    if not child:
        os._exit(int((ranker.rank(candidates, log()).scores != expected).any()))
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
assert codes == [0] * 5, codes
"""


def test_forked_children_can_rank():
    result = run(FORK)
    assert result.returncode == 0, result.stderr


INTERRUPT = """
import signal, sys, torch
from sopr_fast import ops

torch.set_num_threads(int(sys.argv[1]))
points = torch.randn(1, 400_000, 16, generator=torch.Generator().manual_seed(0))
several = points.view(8, 50_000, 16)
heads = points.view(200_000, 2, 16)
rows = torch.arange(200_000, dtype=torch.int32)[None]
offsets = torch.tensor([0, 200_000], dtype=torch.int32)
layers = {"width": 16, "layers": 2, "heads": 1, "feedforward": 16, "project": False}
shapes = map(torch.Size, ops.encoder_shapes(16, 16, 2, 16, False))
parameters = torch.zeros(sum(shape.numel() for shape in shapes))
columns = points[:, :200_000].contiguous()
endless = {"iterations": 10**6, "tolerance": 0}

CALLS = {  # each would run for minutes or longer
    "kmeans": lambda: ops.kmeans(points, 5000, init=points[:, :5000].contiguous(), **endless),
    "kmeans, several problems": lambda: ops.kmeans(several, 5000, init=several[:, :5000].contiguous(), **endless),
    "kmeans_init": lambda: ops.kmeans_init(points, 200_000),
    "segment_attention": lambda: ops.segment_attention(heads, heads, heads, offsets),
    "segment_encoder": lambda: ops.segment_encoder(
        torch.zeros(200_000, 0), columns, rows, offsets[None], parameters, **layers
    ),
    "segment_encoder_backward": lambda: torch.ops.sopr_fast.segment_encoder_backward(
        torch.zeros(1, 1, 1, 16), True, torch.zeros(200_000, 0), columns, rows, offsets[None], parameters, None,
        *ops.EncoderOptions(**layers),
    ),
}

def handler(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
for name, call in CALLS.items():
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        call()
    except KeyboardInterrupt:
        continue
    raise AssertionError(name)
assert ops.kmeans(torch.randn(2, 100, 3), 5).sizes.sum() == 200  # later calls work
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_handler_that_raises_cancels_a_kernel(threads):
    result = run(INTERRUPT, str(threads))
    assert result.returncode == 0, result.stderr


EXIT = """
import threading, torch
from sopr_fast import ops
from sopr_fast import native
torch.set_num_threads(2)
points = torch.randn(1, 200_000, 16)
start = points[:, :2000].contiguous()
running = threading.Event()

def cluster():
    with native.torch_on_one_thread():
        running.set()
        while True:
            ops.kmeans(points, 2000, init=start, iterations=10**6, tolerance=0)

for _ in range(2):
    threading.Thread(target=cluster, daemon=True).start()
running.wait()
"""


def test_the_process_ends_while_daemon_threads_run_kernels():
    result = run(EXIT)
    assert (result.returncode, result.stderr) == (0, "")
