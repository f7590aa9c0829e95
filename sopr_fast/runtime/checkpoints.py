"""Checkpoints of training runs: when they are written and which run they belong to."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from . import distributed
from .distributed import LostProcessError
from .files import check_place
from .tensor_files import load_tensors, save_tensors
from .text import printable
from .warn import warn

_SECONDS_BETWEEN = 10.0

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and values that JSON can hold


class Checkpoint:
    """File from which a training run resumes, rewritten every ten seconds and when the run ends or is interrupted.

    If there are several processes, only process 0 reads and writes it. Without a path nothing is kept. `inputs` say
    what the fingerprints cover in addition to policies, options and seed. Raises OSError if the file cannot be written,
    ValueError if it is damaged or of another kind.
    """

    def __init__(self, path: str | os.PathLike | None, kind: str, inputs: str) -> None:
        path = path if distributed.current().rank == 0 else None
        self.path, self.kind, self.inputs = path, kind, inputs
        self.fingerprints: list[str] = []
        check_place(path)
        existing = self._read()
        self._written_by = None if existing is None else existing[1].get("fingerprint", [])
        self._snapshot: State | None = None
        self._progress = ""
        self._saved = time.monotonic()

    def identify(self, fingerprint: str) -> None:
        """Add a fingerprint of this run, or raise ValueError if the existing file belongs to another."""
        self.fingerprints.append(fingerprint)
        if self._written_by is not None:
            self._check_writer(self._written_by[: len(self.fingerprints)])

    def _read(self) -> State | None:
        if self.path is None or not Path(self.path).exists():
            return None
        return load_tensors(self.path, self.kind)

    def _check_writer(self, fingerprints: Any) -> None:
        if fingerprints != self.fingerprints:
            raise ValueError(
                f"checkpoint {printable(self.path)} is of a run with other policies, {self.inputs}, options or seed; "
                "delete it, or keep this run in another place"
            )

    def load(self) -> State | None:
        """Return the state to resume from, which process 0 reads; ValueError if another run has written it since."""
        if (state := self._read()) is not None:
            self._check_writer(state[1].get("fingerprint"))
        return distributed.current().gather_objects(state)[0]

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Write the last state kept if the block is interrupted; KeyboardInterrupt then says how to resume."""
        self._saved = time.monotonic()
        try:
            yield
        except KeyboardInterrupt as interrupt:
            done = f"training was interrupted after {self._progress}" if self._progress else "training was interrupted"
            if self.path is None:
                done += "; name a checkpoint file to be able to resume"
            elif self._write():
                done += f"; run it again with checkpoint {os.fspath(self.path)!r} to resume"
            raise KeyboardInterrupt(done) from interrupt
        except LostProcessError:
            self._write()
            raise

    def is_due(self) -> bool:
        """Return whether `keep` would write the file now."""
        return time.monotonic() - self._saved > _SECONDS_BETWEEN

    def keep(self, tensors: dict[str, Tensor], values: dict[str, Any], *, progress: str, last: bool = False) -> None:
        """Keep a copy of the state of a run, and write it if it is the last or if ten seconds have passed.

        `progress` says how far the run is, such as "17 of 200 steps". If the file cannot be written, a warning says so.
        """
        self._progress = progress
        if self.path is None:
            return
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._snapshot = copies, {"fingerprint": [*self.fingerprints], **copy.deepcopy(values)}
        if last or self.is_due():
            self._write()

    def _write(self) -> bool:
        """Write the snapshot; return whether that succeeded."""
        if self.path is None or self._snapshot is None:
            return False
        tensors, values = self._snapshot
        try:
            save_tensors(self.path, tensors, self.kind, values)
        except OSError as error:
            warn(f"no checkpoint written: {error}")
            return False
        finally:
            self._saved = time.monotonic()
        return True
