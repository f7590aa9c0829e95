#!/usr/bin/env python3
"""Gates on the code that nvcc makes of the encoder's tensor-core kernels and of k-means, without a GPU.

    .ci/cuda_gates.py BUILD ARCHITECTURE

BUILD is a folder in which Ninja has compiled the CUDA sources for one architecture with `-Xptxas -v`; `build.log` in it
is what Ninja printed. No kernel may spill more bytes than SPILLS lists, and every kernel must contain the instructions
that make it fast: HMMA (products on tensor cores), LDSM (ldmatrix) and LDGSTS (cp.async). The kernels of k-means must
wait for clusters (UCGABAR_WAIT) from sm_90 on and read centroids four floats at a time; Lloyd's take products on tensor
cores. Without cuobjdump and nvdisasm on PATH, instructions are not counted.
"""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Sources, and how many kernels each has.
SOURCES = {"segment_encoder_tiles.cu": 12, "segment_encoder_tiles_backward.cu": 24}
KERNEL = re.compile(
    r"(closed|open|closed_backward|open_tape|open_block|open_attention)_kernelINS0_4(Tf32|Bf16)ELi(\d+)E"
)
# Bytes of spill stores by kernel, precision and width of heads, the most on any architecture (nvcc 13.0).
SPILLS = {
    ("closed", "Tf32", 32): 28,
    ("open", "Tf32", 16): 4,
    ("open", "Tf32", 32): 28,
    ("closed_backward", "Tf32", 8): 76,
    ("closed_backward", "Tf32", 16): 80,
    ("closed_backward", "Tf32", 32): 52,
    ("closed_backward", "Bf16", 8): 32,
    ("closed_backward", "Bf16", 16): 36,
    ("closed_backward", "Bf16", 32): 52,
    ("open_tape", "Tf32", 8): 4,
    ("open_tape", "Tf32", 16): 4,
    ("open_tape", "Tf32", 32): 8,
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
KMEANS = {"kmeans.cu": 840, "kmeans_init.cu": 360}


def kernel_of(line: str) -> tuple[str, str, int] | None:
    match = KERNEL.search(line)
    return (match[1], match[2], int(match[3])) if match else None


def outputs(log: str) -> dict[str, str]:
    """Return what the compiler printed by source, of all its objects."""
    parts = re.split(r"^\[\d+/\d+\] Building CUDA object \S*/(\w+\.cu)\.o\n", log, flags=re.MULTILINE)
    printed: dict[str, str] = collections.defaultdict(str)
    for source, text in zip(parts[1::2], parts[2::2], strict=True):
        printed[source] += text
    return printed


def spills(printed: str) -> dict[tuple[str, str, int], int]:
    """Return bytes of spill stores by kernel from the output of ptxas -v."""
    found, kernel = {}, None
    for line in printed.splitlines():
        if "Compiling entry function" in line:
            kernel = kernel_of(line)
        elif kernel and (match := re.search(r"(\d+) bytes spill stores", line)):
            found[kernel] = int(match[1])
    return found


def instructions(sass: str) -> dict[tuple[str, str, int], collections.Counter]:
    """Return counts of HMMA, LDSM and LDGSTS by kernel from a disassembly."""
    counts: dict[tuple[str, str, int], collections.Counter] = collections.defaultdict(collections.Counter)
    kernel = None
    for line in sass.splitlines():
        if "Function :" in line:
            kernel = kernel_of(line)
        elif kernel and (match := re.search(r"\b(HMMA|LDSM|LDGSTS)\b", line)):
            counts[kernel][match[1]] += 1
    return counts


def check_encoder(source: str, printed: str, sass: str) -> list[str]:
    """Print a table of the kernels of the encoder; return what fails."""
    spilled, counted, wrong = spills(printed), instructions(sass), []
    if len(spilled) != SOURCES[source]:
        wrong.append(f"{source}: ptxas reports {len(spilled)} kernels, not {SOURCES[source]}")
    for kernel, stores in sorted(spilled.items()):
        name, counts = "{} kernel, {}, heads of {}".format(*kernel), counted[kernel]
        print(f"{name}: {stores} bytes spilled, {dict(sorted(counts.items()))}")
        if stores > SPILLS.get(kernel, 0):
            wrong.append(f"{name}: {stores} bytes spilled, allowed {SPILLS.get(kernel, 0)}")
        for instruction, both in LEAST[kernel[0]].items():
            least = both[kernel[1] == "Bf16"]
            if sass and counts[instruction] < least:
                wrong.append(f"{name}: {counts[instruction]} {instruction}, needs {least}")
    return wrong


def check_kmeans(source: str, printed: str, sass: str, architecture: int) -> list[str]:
    """Print a line about a source of k-means; return what fails."""
    stores = sum(map(int, re.findall(r"(\d+) bytes spill stores", printed)))
    wrong = [f"{source}: {stores} bytes spilled, allowed {KMEANS[source]}"] if stores > KMEANS[source] else []
    least = {"LDS.128": 8, "UCGABAR_WAIT": int(architecture >= 90), "HMMA": 150 if source == "kmeans.cu" else 0}
    counts = {name: len(re.findall(rf"\b{re.escape(name)}\b", sass)) for name in least}
    wrong += [f"{source}: {counts[i]} {i}, needs {n}" for i, n in least.items() if sass and counts[i] < n]
    registers = ", ".join(re.findall(r"Used (\d+) registers", printed))
    print(f"{source}: {registers} registers, {stores} bytes spilled, {counts}")
    return wrong


def main(build: str, architecture: str) -> int:
    """Check a build; return 1 if a gate fails."""
    printed, wrong = outputs(Path(build, "build.log").read_text()), []
    for source in (*KMEANS, *SOURCES):
        objects = Path(build).rglob(f"{source}.o") if shutil.which("cuobjdump") else []
        sass = "".join(subprocess.check_output(["cuobjdump", "-sass", built], text=True) for built in objects)
        if source in KMEANS:
            wrong += check_kmeans(source, printed[source], sass, int(architecture))
        else:
            wrong += check_encoder(source, printed[source], sass)
    print(*(f"sm_{architecture} {fault}" for fault in wrong), sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
