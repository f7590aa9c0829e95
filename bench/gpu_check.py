"""What `make gpu-check` runs on a machine with a GPU: build, tests, benchmarks; a stage that fails hides no other.

    python bench/gpu_check.py [build] [module] [test] [bench]        all stages by default

Builds with what is installed, for the GPUs that are there; needs no network. Prints a table, writes out/gpu_check.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
INSTALL = "-m pip install --no-build-isolation --no-deps -C cmake.define.SOPR_FAST_CUDA=ON -C build-dir=build/gpu ."
TESTS = [f"python_tests/test_{name}.py" for name in ("cuda", "operators", "dropout", "kmeans")] + [
    str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("python_tests/test_segment_*.py"))
]
STAGES = {
    "build": [*INSTALL.split()],
    "module": ["-c", "from sopr_fast import _native; assert _native._cuda, 'sopr_fast was built without CUDA'"],
    "test": ["-m", "pytest", "-q", *TESTS, "-k", "cuda"],
    "bench": ["-m", "pytest", "-q", "-s", "bench/bench_cuda.py", "--benchmark-json=out/gpu_bench.json"],
}
NOTHING_COLLECTED = 5  # pytest's exit status
STATUS = {0: "passed", NOTHING_COLLECTED: "has nothing to run"}


def gpus() -> dict[str, str]:
    """Names of the GPUs that torch sees, with their architectures."""
    import torch

    devices = range(torch.cuda.device_count())
    return {torch.cuda.get_device_name(i): "{}{}".format(*torch.cuda.get_device_capability(i)) for i in devices}


def main(chosen: list[str]) -> int:
    if unknown := set(chosen) - set(STAGES):
        print(f"unknown stage {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
        return 2
    found = gpus()
    if not found:
        print("gpu-check: torch sees no GPU on this machine, so there is nothing to check")
        return 1
    (ROOT / "out").mkdir(exist_ok=True)
    architectures = ";".join(sorted(set(found.values())))
    commands = STAGES | {"build": [*STAGES["build"], "-C", f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architectures}"]}
    stages = {}
    for name in chosen or STAGES:
        start = time.perf_counter()
        code = subprocess.run([PYTHON, *commands[name]], cwd=ROOT).returncode
        stages[name] = {"status": STATUS.get(code, "failed"), "code": code, "seconds": time.perf_counter() - start}
    (ROOT / "out" / "gpu_check.json").write_text(json.dumps({"gpus": list(found), "stages": stages}, indent=1))
    print(f"\n{', '.join(found)}")
    for name, stage in stages.items():
        print(f"  {name:<8}{stage['status']:<20}{stage['seconds']:>8.1f} s")
    return int(any(stage["status"] == "failed" for stage in stages.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
