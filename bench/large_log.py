"""Memory and bytes read by drawing subsets from a log larger than memory.

    python bench/large_log.py [ROWS]    # 20 million rows of 17 columns by default, every layout, 5 and 200 subsets

Writes random states to an HDF5 file, drops it from the page cache, and draws in a child process. Bytes read are `rchar`
of /proc/self/io without the imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

LAYOUTS = {
    "contiguous": {},
    "chunked": {"chunks": (4096, 17)},
    "compressed": {"chunks": (64, 17), "compression": "lzf"},
    "d4rl": {"chunks": (9375, 1), "compression": "gzip", "compression_opts": 1},
}
CHILD = """
import json, sys, time
from sopr_fast.inputs.logs import load_states
from sopr_fast.sopr.subsets import Drawing
import h5py

def bytes_read():
    return int(dict(line.split(": ") for line in open("/proc/self/io"))["rchar"])

def peak():  # getrusage may give the peak of the parent
    return int(dict(line.split(":") for line in open("/proc/self/status"))["VmHWM"].split()[0]) * 1024

before, begin = bytes_read(), time.perf_counter()
drawing = Drawing.draw(load_states(sys.argv[1]), int(sys.argv[2]), size=16384, seed=0)
seconds, read = time.perf_counter() - begin, bytes_read() - before
print(json.dumps({"peak": peak(), "read": read, "seconds": seconds, "states": len(drawing.states)}))
"""


def write(path: Path, rows: int, layout: str) -> None:
    """Write random states (rows, 17) float32, rounded so that they compress."""
    import h5py

    generator = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        states = file.create_dataset("observations", (rows, 17), np.float32, **LAYOUTS[layout])
        block = 9375 * 16
        for start in tqdm(range(0, rows, block), desc=f"writing {layout}", leave=False, disable=None):
            values = generator.integers(-128, 128, (min(block, rows - start), 17), np.int16)
            states[start : start + block] = values.astype(np.float32) / 64
        file["rewards"] = np.zeros(rows, np.float32)


def measure(path: Path, subsets: int) -> dict:
    """Draw subsets in a child process; return its peak resident bytes, bytes read, seconds and distinct states."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(subsets)], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(child.stdout) | {"file": path.stat().st_size}


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000_000
    print("layout       subsets      states   peak MB   read MB   file MB   seconds")
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.hdf5"
            write(path, rows, layout)
            for subsets in (5, 200):
                drawing = measure(path, subsets)
                peak, read, size = (drawing[key] / 1e6 for key in ("peak", "read", "file"))
                print(
                    f"{layout:<12} {subsets:>7} {drawing['states']:>11,} {peak:>9,.0f} {read:>9,.0f} {size:>9,.0f} "
                    f"{drawing['seconds']:>9.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
