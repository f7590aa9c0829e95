"""One fact about the CUDA kernels, as a line of JSON: python bench/gpu_facts.py NAME [ARGUMENT]. See gpu_run.py."""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parent.parent / "python_tests")]
DEVICE = os.environ.get("SOPR_FAST_GPU_RUN", "cuda")  # "cpu" tries the script itself
LEVELS = (
    {"width": 64, "layers": 2, "heads": 2, "feedforward": 128},
    {"width": 64, "layers": 6, "heads": 8, "feedforward": 512, "project": False},
)
PROBLEMS = [(4, 16384, 17, 256), (200, 2048, 17, 64), (1, 65536, 11, 256), (3, 3000, 40, 30)]  # k-means


def environment() -> dict:
    """The machine, its tools, and the rates of a copy and of torch's matrix product."""
    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw"
    gpu = subprocess.getoutput(f"nvidia-smi --query-gpu={query} --format=csv,noheader")
    facts = {"gpu": gpu, "python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count()}
    tools = ("nvcc", "cmake", "ninja", "ncu", "compute-sanitizer", "c++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    facts["missing"] = [tool for tool in tools if not shutil.which(tool)] + ["Python.h"] * (not header.exists())
    side = 8192 if DEVICE == "cuda" else 256
    x = torch.empty(16 * side**2, dtype=torch.uint8, device=DEVICE)
    facts["copy TB/s"] = 2e-12 * x.numel() / median(x.clone)
    for name in ("bf16", "tf32", "fp32"):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = torch.randn(2, side, side, device=DEVICE).to(torch.bfloat16 if name == "bf16" else torch.float32)
        facts[f"{name} TFLOP/s"] = 2e-12 * side**3 / median(lambda a=a, b=b: a @ b)
    return facts


def module() -> dict:
    """The compiled module; fails without one."""
    compiled = importlib.import_module(f"sopr_fast._{DEVICE}")
    return {"file": compiled.__file__, "architectures": getattr(compiled, "architectures", None)}


def operator(name: str) -> dict:
    """Errors relative to float64 with poisoned outputs, gradients too; whether ten more runs have the same bits."""
    from support import operators

    call = operators.CALLS[name]
    expected = operators.run(call.reference, call, torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    runs = [[x.cpu() for x in operators.run(call.operator, call, device=DEVICE)] for _ in range(11)]
    errors = [error(*pair) for pair in zip(runs[0], expected, strict=True)]
    same = all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))
    return {"errors": errors, "allowed": call.tolerance, "repeats": same, "ok": max(errors) <= call.tolerance and same}


def error(actual: Tensor, exact: Tensor) -> float:
    if not exact.is_floating_point():
        return float((actual != exact).sum())
    return float((actual.double() - exact.double()).norm() / exact.double().norm())


def grid(policies: int, subsets: int, device: str) -> list[Tensor]:
    """Return states, columns, rows and offsets of real policies on real clusters of the paper's size."""
    import halfcheetah
    from workload import actions_on

    from sopr_fast.sopr.subsets import Subsets

    drawn = Subsets.draw(halfcheetah.states(), subsets, size=16384, clusters=256)
    columns = actions_on(drawn)[:policies].contiguous()
    return [x.to(device) for x in (drawn.states, columns, drawn.rows, drawn.offsets)]


def parameters_of(inputs: int, options: dict) -> Tensor:
    from sopr_fast import ops

    shapes = ops.encoder_shapes(
        inputs, *(options[k] for k in ("width", "layers", "feedforward")), options.get("project", True)
    )
    count = sum(math.prod(shape) for shape in shapes)
    return 0.1 * torch.randn(count, generator=torch.Generator().manual_seed(0))


def encoder(precision: str) -> dict:
    """Outputs and gradients of the paper's two levels with dropout, next to the CPU kernels with the same masks."""
    from sopr_fast import ops

    states, columns, rows, offsets = grid(2, 1, "cpu")
    vectors = torch.randn(2, 256, 64, generator=torch.Generator().manual_seed(1))  # of the clusters
    whole = [torch.empty(256, 0), vectors, torch.arange(256, dtype=torch.int32)[None], torch.tensor([[0, 256]]).int()]
    facts: dict = {}
    for level, (options, inputs) in enumerate(zip(LEVELS, ([states, columns, rows, offsets], whole), strict=True)):
        parameters, results = parameters_of(inputs[0].shape[1] + inputs[1].shape[2], options), []
        for device in ("cpu", DEVICE):
            tensors = [x.to(device, copy=True) for x in (*inputs, parameters)]
            leaves = [tensors[1].requires_grad_(), tensors[4].requires_grad_()]
            rng = torch.tensor([3, 14], device=device)
            out = ops.segment_encoder(*tensors, dropout=0.1, rng=rng, level=level, precision=precision, **options)
            weights = torch.linspace(-1, 1, out.numel()).cos().view(out.shape).to(device)
            results.append([x.cpu() for x in (out.detach(), *torch.autograd.grad((out * weights).sum(), leaves))])
        for what, exact, actual in zip(("output", "columns", "parameters"), *results, strict=True):
            facts[f"{('low', 'high')[level]} {what}"] = error(actual, exact)
    limit = 2e-5 if precision == "fp32" else 0.1  # bf16 gradients by columns are off by 0.06 on a CPU too
    return facts | {"allowed": limit, "ok": all(value <= limit for value in facts.values())}


def clusters() -> dict:
    """Whether k-means has the CPU's bits: problems of one to eight blocks, held in shared memory or not."""
    from sopr_fast import ops

    facts = {}
    for problems, count, width, k in PROBLEMS:
        points = torch.randn(problems, count, width, generator=torch.Generator().manual_seed(1)) * 3
        both = []
        for device in ("cpu", DEVICE):
            own = points.to(device)
            both.append([x.cpu() for x in (ops.kmeans_init(own, k), *ops.kmeans(own, k, iterations=10))])
        facts[f"{problems} x {count} x {width}"] = [torch.equal(a, b) for a, b in zip(*both, strict=True)]
    return facts | {"ok": all(map(all, facts.values()))}


def median(call, rounds: int = 20) -> float:
    """Return the median of seconds, of the GPU's clock if there is one."""
    if DEVICE == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def forward(precision: str) -> dict:
    """Ten policies on twenty subsets: the median, and milliseconds by kernel."""
    from peers.loop import ReleasedModel
    from peers.released import from_released

    torch.manual_seed(0)
    model = from_released(ReleasedModel(17, 6).eval().state_dict()).to(DEVICE)
    tensors = grid(10, 20, DEVICE)
    with torch.no_grad():
        facts = {"ms": 1e3 * median(lambda: model(*tensors, precision=precision))}
        with torch.profiler.profile() as profiler:
            model(*tensors, precision=precision)
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)[:8]
    return facts | {kernel_name(row.key): row.self_device_time_total / 1e3 for row in rows}


def kernel_name(signature: str) -> str:
    """Return a kernel's name with its template arguments, which tell the low level from the high one."""
    return re.sub(r"\(.*", "", re.sub(r"\(anonymous namespace\)|\w*::|::|void ", "", signature))


def profile() -> dict:
    """One call of each hot kernel, for a profiler."""
    from sopr_fast import ops

    states, columns, rows, offsets = grid(10, 20, DEVICE)
    parameters = parameters_of(states.shape[1] + columns.shape[2], LEVELS[0]).to(DEVICE)
    for precision in ("fp32", "bf16"):
        ops.segment_encoder(states, columns, rows[:1], offsets[:1], parameters, precision=precision, **LEVELS[0])
    rng = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    parameters.requires_grad_()
    ops.segment_encoder(
        states, columns, rows[:1], offsets[:1], parameters, dropout=0.1, rng=rng, **LEVELS[0]
    ).sum().backward()
    points = torch.randn(200, 16384, 17, device=DEVICE)
    ops.kmeans_init(points, 256)
    ops.kmeans(points, 256, init=points[:, :256].contiguous(), iterations=25, tolerance=0.0)
    return {}


FACTS = {f.__name__: f for f in (environment, module, operator, encoder, clusters, forward, profile)}

if __name__ == "__main__":
    values = FACTS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(values))
    sys.exit(values.get("ok") is False)
