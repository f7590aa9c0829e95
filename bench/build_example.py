"""Build the embedded example from the folder of the whole run: `python bench/build_example.py FOLDER`.

sopr_fast/example/README.md describes its files.
"""

import shutil
import sys
from pathlib import Path

import h5py
import numpy as np

source = Path(sys.argv[1])
target = Path(__file__).parents[1] / "sopr_fast" / "example"

with np.load(source / "policies.npz") as actors:
    layers = {key: actors[key].astype(np.float16) for key in actors.files if not key.startswith("log_std")}
np.savez_compressed(target / "halfcheetah.npz", **layers)

with h5py.File(source / "replay.hdf5") as replay:
    observations = replay["observations"][:]
rows = np.sort(np.random.default_rng(0).choice(len(observations), 65_536, replace=False))
np.savez_compressed(target / "states.npz", observations=observations[rows].astype(np.float16))

shutil.copyfile(source / "returns.csv", target / "returns.csv")
