"""Run the attacks and print their counts.

    python -m bench.reliability kill --kills 1000
    python -m bench.reliability soak --seconds 3600

Each command adds its counts, with the date, to `out/reliability.json` and exits with 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import soak
from .kill import VICTIMS, kill

HARMLESS = {"kills", "finished", "seconds", "rounds"}
GROWTH_ALLOWED = {"rss_mb": 20.0, "descriptors": 0, "threads": 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.reliability", description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=("kill", "soak"))
    parser.add_argument(
        "--kills", type=int, default=1000, help="in all, over fit, estimator, evaluate, select and save"
    )
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--out", type=Path, default=Path("out/reliability.json"))
    options = parser.parse_args()
    attacks: dict[str, dict[str, Callable[[Path], dict[str, Any]]]] = {
        "kill": {
            f"kill {name}": lambda folder, name=name: kill(name, -(-options.kills // len(VICTIMS)), folder)
            for name in VICTIMS
        },
        "soak": {"soak": lambda folder: soak.soak(options.seconds, folder)},
    }
    if options.attack != "soak":
        torch.set_num_threads(1)  # torch's OpenMP threads do not survive a fork
    warnings.simplefilter("ignore")
    faults = 0
    for name, attack in attacks[options.attack].items():
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            counts = attack(Path(folder))
        print(f"{name}: {counts} in {time.monotonic() - begun:.0f} s", flush=True)
        _record(options.out, name, counts)
        faults += sum(value > GROWTH_ALLOWED.get(key, 0) for key, value in counts.items() if key not in HARMLESS)
    return int(faults > 0)


def _record(path: Path, name: str, counts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text()) if path.exists() else {}
    results[name] = {"date": datetime.date.today().isoformat(), **counts}
    path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
