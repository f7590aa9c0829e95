"""Run the attacks and print their counts.

    python -m bench.reliability kill --kills 1000
    python -m bench.reliability soak --seconds 3600

Each command prints its counts, and exits with 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import torch

from .kill import VICTIMS, kill
from .soak import soak

HARMLESS = {"kills", "finished", "seconds", "rounds"}
GROWTH_ALLOWED = {"rss_mb": 20.0, "descriptors": 0, "threads": 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.reliability", description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=("kill", "soak"))
    parser.add_argument(
        "--kills", type=int, default=1000, help="in all, over fit, estimator, evaluate, select and save"
    )
    parser.add_argument("--seconds", type=float, default=3600)
    options = parser.parse_args()
    if options.attack == "kill":
        torch.set_num_threads(1)  # torch's OpenMP threads do not survive a fork
    warnings.simplefilter("ignore")
    faults = 0
    for name in VICTIMS if options.attack == "kill" else ["soak"]:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            if name == "soak":
                counts = soak(options.seconds, Path(folder))
            else:
                counts = kill(name, -(-options.kills // len(VICTIMS)), Path(folder))
        print(f"{name}: {counts} in {time.monotonic() - begun:.0f} s", flush=True)
        faults += sum(value > GROWTH_ALLOWED.get(key, 0) for key, value in counts.items() if key not in HARMLESS)
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main())
