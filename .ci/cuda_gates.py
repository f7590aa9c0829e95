#!/usr/bin/env python3
"""Gates on the code that nvcc makes of the encoder's tensor-core kernels and of k-means, without a GPU.

    .ci/cuda_gates.py [--architectures 80 90 100 120] [--out FOLDER]

Every architecture must compile. No kernel may spill more bytes than SPILLS lists, and every kernel must contain the
instructions that make it fast: HMMA (products on tensor cores), LDSM (ldmatrix) and LDGSTS (cp.async). The kernels of
k-means must wait for clusters (UCGABAR_WAIT) from sm_90 on and read centroids four floats at a time. Counts need
cuobjdump and nvdisasm on PATH, from the CUDA toolkit or the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm;
without them they are not checked.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Sources, and how many kernels each has.
SOURCES = {"segment_encoder_tiles.cu": 12, "segment_encoder_tiles_backward.cu": 24}
KERNEL = re.compile(
    r"(closed|open|closed_backward|open_tape|open_block|open_attention)_kernelINS0_4(Tf32|Bf16)ELi(\d+)E"
)
# Bytes of spill stores by kernel, precision and width of heads, the most on any architecture (nvcc 13.0).
SPILLS = {
    ("closed", "Tf32", 32): 28,
    ("open", "Tf32", 32): 24,
    ("closed_backward", "Tf32", 8): 76,
    ("closed_backward", "Tf32", 16): 80,
    ("closed_backward", "Tf32", 32): 52,
    ("closed_backward", "Bf16", 8): 32,
    ("closed_backward", "Bf16", 16): 36,
    ("closed_backward", "Bf16", 32): 52,
    ("open_tape", "Tf32", 32): 4,
    ("open_attention", "Tf32", 8): 32,
    ("open_attention", "Tf32", 16): 16,
    ("open_attention", "Tf32", 32): 56,
}
# Least numbers of instructions of one kernel, in fp32 grade and bf16; a product of 16 x 16 x 8 is six HMMA or one.
# In fp32 grade, the backward pass reads transposed operands by plain loads. A chunk of weights takes two LDGSTS or one.
LEAST = {
    "closed": {"HMMA": (600, 150), "LDSM": (24, 24), "LDGSTS": (20, 10)},
    "open": {"HMMA": (600, 150), "LDSM": (24, 24), "LDGSTS": (21, 14)},
    "closed_backward": {"HMMA": (1490, 450), "LDSM": (80, 165), "LDGSTS": (26, 15)},
    "open_tape": {"HMMA": (600, 150), "LDSM": (24, 24), "LDGSTS": (21, 14)},
    "open_block": {"HMMA": (500, 130), "LDSM": (28, 90), "LDGSTS": (14, 7)},
    "open_attention": {"HMMA": (290, 155), "LDSM": (26, 50), "LDGSTS": (16, 15)},
}
# Sources of k-means: bytes of spill stores allowed, over all functions of a file, on any architecture (nvcc 13.0).
KMEANS = {"kmeans.cu": 584, "kmeans_assign.cu": 0, "kmeans_init.cu": 360}


def kernel_of(line: str) -> tuple[str, str, int] | None:
    match = KERNEL.search(line)
    return (match[1], match[2], int(match[3])) if match else None


def name(kernel: tuple[str, str, int]) -> str:
    return "{} kernel, {}, heads of {}".format(*kernel)


def spills(log: str) -> dict[tuple[str, str, int], int]:
    """Return bytes of spill stores by kernel from the output of ptxas -v."""
    found, kernel = {}, None
    for line in log.splitlines():
        if "Compiling entry function" in line:
            kernel = kernel_of(line)
        elif kernel and (match := re.search(r"(\d+) bytes spill stores", line)):
            found[kernel] = int(match[1])
    return found


def instructions(sass: str) -> dict[tuple[str, str, int], collections.Counter]:
    """Return counts of HMMA, LDSM and LDGSTS by kernel from a disassembly."""
    counts: dict[tuple[str, str, int], collections.Counter] = {}
    kernel = None
    for line in sass.splitlines():
        if "Function :" in line:
            kernel = kernel_of(line)
        elif kernel and (match := re.search(r"\b(HMMA|LDSM|LDGSTS)\b", line)):
            counts.setdefault(kernel, collections.Counter())[match[1]] += 1
    return counts


def compiled(source: Path, architecture: str, nvcc: str, out: Path) -> tuple[Path | None, str]:
    """Return the object file, None if the source does not compile, and the output of ptxas -v or the error."""
    target = out / f"{source.stem}_{architecture}.cubin"
    command = [nvcc, "-std=c++17", "-O3", f"-arch=sm_{architecture}", f"-I{ROOT / 'csrc'}", "-Xptxas", "-v", "-cubin"]
    built = subprocess.run([*command, source, "-o", target], capture_output=True, text=True)
    if built.returncode:
        return None, f"sm_{architecture}: {source.name} does not compile:\n{built.stderr}"
    return target, built.stderr


def check(source: Path, architecture: str, nvcc: str, cuobjdump: str | None, out: Path) -> tuple[list[str], list[str]]:
    """Compile for an architecture; return a table and what fails."""
    if source.name in KMEANS:
        return check_kmeans(source, architecture, nvcc, cuobjdump, out)
    target, log = compiled(source, architecture, nvcc, out)
    if target is None:
        return [], [log]
    spilled, counted, table, wrong = spills(log), {}, [], []
    if len(spilled) != SOURCES[source.name]:
        wrong.append(f"sm_{architecture}: ptxas reports {len(spilled)} kernels, not {SOURCES[source.name]}")
    if cuobjdump:
        sass = subprocess.run([cuobjdump, "-sass", target], capture_output=True, text=True, check=True).stdout
        counted = instructions(sass)
    for kernel, stores in sorted(spilled.items()):
        counts = counted.get(kernel, collections.Counter())
        table.append(f"sm_{architecture} {name(kernel)}: {stores} bytes spilled, {dict(sorted(counts.items()))}")
        allowed = SPILLS.get(kernel, 0)
        if stores > allowed:
            wrong.append(f"sm_{architecture} {name(kernel)}: {stores} bytes spilled, allowed {allowed}")
        for instruction, both in LEAST[kernel[0]].items():
            least = both[kernel[1] == "Bf16"]
            if cuobjdump and counts[instruction] < least:
                wrong.append(f"sm_{architecture} {name(kernel)}: {counts[instruction]} {instruction}, needs {least}")
    return table, wrong


def check_kmeans(
    source: Path, architecture: str, nvcc: str, cuobjdump: str | None, out: Path
) -> tuple[list[str], list[str]]:
    """Compile a source of k-means for an architecture; return a table and what fails."""
    target, log = compiled(source, architecture, nvcc, out)
    if target is None:
        return [], [log]
    wrong = []
    stores = sum(map(int, re.findall(r"(\d+) bytes spill stores", log)))
    if stores > KMEANS[source.name]:
        wrong.append(f"sm_{architecture} {source.name}: {stores} bytes spilled, allowed {KMEANS[source.name]}")
    counts: dict[str, int] = {}
    if cuobjdump:
        sass = subprocess.run([cuobjdump, "-sass", target], capture_output=True, text=True, check=True).stdout
        least = {"LDS.128": 8, "UCGABAR_WAIT": int(int(architecture) >= 90)}
        counts = {name: len(re.findall(rf"\b{re.escape(name)}\b", sass)) for name in least}
        for instruction, number in least.items():
            if counts[instruction] < number:
                wrong.append(f"sm_{architecture} {source.name}: {counts[instruction]} {instruction}, needs {number}")
    registers = ", ".join(re.findall(r"Used (\d+) registers", log))
    return [f"sm_{architecture} {source.name}: {registers} registers, {stores} bytes spilled, {counts}"], wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the code of the CUDA kernels.")
    parser.add_argument("--architectures", nargs="+", default=["80", "90", "100", "120"])
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "cuda_gates")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cuobjdump = shutil.which("cuobjdump")
    if not cuobjdump:
        print("no cuobjdump on PATH: instructions are not counted")
    sources = [ROOT / "csrc" / "cuda" / source for source in (*KMEANS, *SOURCES)]
    pairs = [(source, architecture) for source in reversed(sources) for architecture in options.architectures]
    wrong = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for table, faults in pool.map(lambda pair: check(*pair, options.nvcc, cuobjdump, options.out), pairs):
            print(*table, sep="\n", flush=True)
            wrong += faults
    print(*wrong, sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
