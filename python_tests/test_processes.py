"""Forks, signals and the end of the process while kernels run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sopr_fast.runtime import native
from sopr_fast.runtime.cgroup import cpu_limit

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")
TIMEOUT = 120  # seconds, far more than any of these scripts needs


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


FORK = """
import os, threading, torch
from sopr_fast.runtime import native
torch.set_num_threads(2)
inside, leave = threading.Event(), threading.Event()

def hold():
    with native.torch_on_one_thread(), native._lock:  # the lock stays locked in the child
        inside.set()
        leave.wait()

holder = threading.Thread(target=hold)
holder.start()
inside.wait()
child = os.fork()
if not child:
    with native.torch_on_one_thread():
        assert torch.get_num_threads() == 1 and native.threads() == min(2, native._CPU_LIMIT or 2)
    assert torch.get_num_threads() == 2 and native._inside == 0
    os._exit(0)
leave.set()
holder.join()
assert os.waitpid(child, 0)[1] == 0
assert torch.get_num_threads() == 2
"""


def test_a_forked_child_does_not_inherit_the_lock():
    result = run(FORK)
    assert result.returncode == 0, result.stderr


FORK_WHILE_RANKING = """
import os, sys, threading, warnings, torch
import sopr_fast
from problems import TINY, ladder, log, training_gains
warnings.simplefilter("ignore")
torch.set_num_threads(2)
gains = training_gains()
known = ladder(gains)
ranker = sopr_fast.fit(known, dict(zip(known, gains)), log(), config=TINY, progress=False)
candidates = ladder([0.2, 0.7])
expected = ranker.rank(candidates, log(), progress=False).scores
done = threading.Event()

def keep_ranking():
    while not done.is_set():
        ranker.rank(candidates, log(), progress=False)

other = threading.Thread(target=keep_ranking)
other.start()
children = []
for _ in range(5):
    child = os.fork()
    if not child:
        os._exit(int((ranker.rank(candidates, log(), progress=False).scores != expected).any()))
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
done.set()
other.join()
assert codes == [0] * 5, codes
"""


def test_children_forked_while_another_thread_ranks_can_rank():
    result = run(FORK_WHILE_RANKING)
    assert result.returncode == 0, result.stderr


INTERRUPT = """
import os, signal, sys, threading, torch
from sopr_fast import ops
from sopr_fast.runtime import native

name, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
_points = torch.randn(1, 400_000, 16)
_offsets = torch.tensor([0, 200_000], dtype=torch.int32)
_heads = torch.randn(200_000, 2, 16)
_layers = {"width": 16, "layers": 2, "heads": 1, "feedforward": 16, "project": False}
_parameters = torch.zeros(sum(s.numel() for s in map(torch.Size, ops.encoder_shapes(16, 16, 2, 16, False))))
_rows = torch.arange(200_000, dtype=torch.int32)[None]

def backward(out):
    out.sum().backward()

CALLS = {
    "kmeans": lambda: ops.kmeans(_points, 5000, init=_points[:, :5000].contiguous(), iterations=10**6, tolerance=0),
    "kmeans problems": lambda: ops.kmeans(
        _points.view(8, 50_000, 16), 5000, init=_points.view(8, 50_000, 16)[:, :5000].contiguous(), iterations=10**6),
    "kmeans_init": lambda: ops.kmeans_init(_points, 50_000),
    "kmeans_assign": lambda: ops.kmeans_assign(_points, _points),
    "segment_attention": lambda: ops.segment_attention(_heads, _heads, _heads, _offsets),
    "segment_encoder": lambda: ops.segment_encoder(
        torch.zeros(200_000, 0), _heads.view(1, 200_000, 32)[..., :16].contiguous(), _rows, _offsets[None],
        _parameters, **_layers),
}

# A thread can send the signal only once the main thread has released the GIL, which it first does inside the kernel.
sys.setswitchinterval(1000)
kernel = name.split()[0]
call_kernel = getattr(native._cpu, kernel)

def call_and_interrupt(**arguments):
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
    call_kernel(**arguments)

try:
    setattr(native._cpu, kernel, call_and_interrupt)
    CALLS[name]()
except KeyboardInterrupt:
    print("interrupted")
finally:
    setattr(native._cpu, kernel, call_kernel)
assert ops.kmeans(torch.randn(2, 100, 3), 5).sizes.sum() == 200  # the next call works
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "name", ["kmeans", "kmeans problems", "kmeans_init", "kmeans_assign", "segment_attention", "segment_encoder"]
)
def test_interrupts_cancel_a_kernel(name, threads):
    """Without cancellation each of these calls would run longer than the timeout."""
    result = run(INTERRUPT, name, str(threads))
    assert result.returncode == 0 and result.stdout == "interrupted\n", result.stderr


EXIT = """
import threading, torch
from sopr_fast import ops
from sopr_fast.runtime import native
torch.set_num_threads(2)
points = torch.randn(1, 200_000, 16)
start = points[:, :2000].contiguous()
running = threading.Event()

def cluster():
    with native.torch_on_one_thread():
        running.set()
        while True:
            ops.kmeans(points, 2000, init=start, iterations=10**6, tolerance=0)

for _ in range(3):
    threading.Thread(target=cluster, daemon=True).start()
running.wait()
"""


def test_the_process_ends_while_daemon_threads_run_kernels():
    result = run(EXIT)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ("0::/", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ("0::/", {}, None),
        (
            "0::/a/b",
            {
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            3,
        ),
        (
            "3:cpu,cpuacct:/box\n1:memory:/box",
            {
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ("garbage\n0::/", {"sys/fs/cgroup/cpu.max": "garbage"}, None),
    ],
)
def test_cpu_limit_is_the_tightest_quota(group, files, expected, tmp_path):
    for name, text in {"proc/self/cgroup": group, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_limit(tmp_path) == expected


def test_no_cgroup_means_no_limit(tmp_path):
    assert cpu_limit(tmp_path) is None


def test_kernels_respect_the_cpu_limit(monkeypatch):
    monkeypatch.setattr(native.torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(native, "_CPU_LIMIT", 3)
    assert native.threads() == 3
    monkeypatch.setattr(native, "_CPU_LIMIT", None)
    assert native.threads() == 64
