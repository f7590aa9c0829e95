"""Policies from files and folders of them."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from pathlib import Path

from .policy import Policy
from .readers import BY_SUFFIX, is_companion, reader_of
from .readers.options import Options


def load(
    path: str | PathLike,
    *,
    stochastic: bool = False,
    states_count: int | None = None,
    action_count: int | None = None,
    activation: str | None = None,
    squash: str | None = None,
    trust: bool = False,
) -> list[Policy]:
    """The policies in a file, or in all files of known suffixes of a folder in the order of their names.

    Weights and plain values are read into an `Actor`, and nothing in a file is executed, unless `trust`:

    - `.npz`: the layers of an actor, `hidden_0`, `hidden_1`, … and `mean`, each as `.weight` (out, in) and `.bias`
      (out,), any float type; with another dimension in front, a stack of actors. Optional are `log_std` (as
      `mean`; used if `stochastic`) and the strings `activation` and `squash` ("tanh" or "none"), else those given
      here, else "relu" and "tanh";
    - `.npy`: actions for every state of the data, memory-mapped;
    - `.zip` of Stable-Baselines3 and sb3-contrib (PPO, A2C, TRPO, SAC, TQC, TD3, DDPG, ARS, DQN with MLP policies),
      standardised by `<name>_vecnormalize.pkl` or `vecnormalize.pkl` beside it; in a folder, its replay buffers and
      `evaluations.npz` are passed over;
    - `.d3` of d3rlpy, or its `.pt` beside `params.json`;
    - `.pt`, `.pth`, `.safetensors`: the state dict of an `nn.Sequential` of linear layers, with `activation` and
      nothing else between each two and "tanh" or "none" as `squash` behind;
    - `.pkl` of D4RL and DOPE: a dict of arrays;
    - `.onnx`: one float input (states, width), actions as first output or by that name; needs onnxruntime;
    - with `trust`: TorchScript (`.pt`), exported programs (`.pt2`), pickled modules (`.pt`), and what of
      Stable-Baselines3 and d3rlpy is no plain MLP, opened by those libraries.

    Where the suffix leaves it open, the content tells. Policies are named after the file, in a folder with its suffix
    where two would be equal, those of a stack with "-000", "-001", … behind.

    Args:
        stochastic: act by the distribution, in `.npz`, `.zip`, `.d3`, d3rlpy's `.pt` and `.pkl`; an actor of theirs
            without one is refused. What a library opens, with `trust`, acts as that library does by default.
        states_count: rows of the user's data, checked against arrays of actions.
        action_count: discrete actions, for files that return indices.
        trust: run code that is in the file. Anyone who can write the file can then do what you can do.

    Raises:
        FileNotFoundError: no such file.
        ImportError: a library that opens it is not installed.
        ValueError: a file that is damaged, of another kind, needs trust, or whose layers do not fit each other.
    """
    if squash not in (None, "tanh", "none"):
        raise ValueError(f"squash is {squash!r}, expected 'tanh' or 'none'")
    path = Path(path)
    names = _files(path)
    policies: list[Policy] = []
    for file, name in names.items():
        options = Options(name, stochastic, states_count, action_count, activation, squash, trust)
        try:
            policies += reader_of(file)(file, options)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        except ImportError as error:
            raise ImportError(f"{file}: {error}") from error
        except OSError:  # not what the file holds, and the system names it
            raise
        except Exception as error:  # what a damaged file raises can be of nearly any type
            raise ValueError(f"{file}: damaged, or of a form not known ({type(error).__name__}: {error})") from error
    return policies


def _files(path: Path) -> dict[Path, str]:
    """The files meant by a path, and the names of their policies."""
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        return {path: path.stem}
    known = [p for p in path.iterdir() if p.suffix.lower() in BY_SUFFIX and p.is_file() and not p.name.startswith(".")]
    files = sorted(p for p in known if not is_companion(p))
    if not files:
        raise ValueError(f"{path}: no policies ({', '.join(BY_SUFFIX)}) in this folder")
    stems = Counter(file.stem for file in files)
    return {file: file.stem if stems[file.stem] == 1 else file.name for file in files}
