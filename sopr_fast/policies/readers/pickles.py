"""Plain values from pickles, nothing executed: our own unpickler, and torch's for weights."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import torch

_MODULES = {"numpy.core.": "numpy._core."}  # numpy 1's name to numpy 2's
_DTYPE = re.compile(r"[<>=|]?([biufc]\d{1,2}|[SU]\d{1,9}|\?)")
_REFUSAL = "only arrays, numbers, text and containers of them are read"


class RefusedError(ValueError):
    """A file asks for more than plain values; the message names what."""


class Record:
    """Stands for an object of a library: its attributes, none of its code. `source` is the name of its class."""

    source = ""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def read_pickle(file: BinaryIO, *, records: tuple[str, ...] = ()) -> Any:
    """A pickle's value. Arrays are objects for `numpy.asarray`; instances of classes and results of functions whose
    full name starts with one of `records` are `Record`s.

    Raises:
        RefusedError: it names another global.
        ValueError: it is damaged.
    """
    try:
        data = file.read()
        # The unpickler would reserve what a place in its memo asks for; the walk also finds lengths beyond the file.
        if any("PUT" in code.name and place > len(data) for code, place, _ in pickletools.genops(data)):
            raise ValueError("a memo larger than the file")
        return _Unpickler(io.BytesIO(data), records).load()
    except RefusedError:
        raise
    except Exception as error:  # what a damaged pickle raises can be of nearly any type
        raise ValueError(f"a damaged pickle ({type(error).__name__}: {error})") from error


def read_weights(file: BinaryIO) -> Any:
    """What `torch.save` wrote, if it is tensors, numbers, text and containers.

    Raises:
        RefusedError: it names another global, or is of the form before torch 1.6.
        ValueError: it is damaged.
    """
    # torch goes by the first bytes: another archive with a zip behind it would be opened as that other.
    if file.read(4) != b"PK\x03\x04" or not zipfile.is_zipfile(file):
        raise RefusedError("no zip archive: it is damaged, or was saved in the form before torch 1.6")
    with zipfile.ZipFile(file) as archive:
        if any("/code/" in name or name.endswith("constants.pkl") for name in archive.namelist()):
            raise RefusedError("a TorchScript program, which older torch would open without asking")
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # likewise
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named is not None:
            raise RefusedError(f"its pickle names {named[1]}; {_REFUSAL}") from error
        raise ValueError(f"damaged weights ({' '.join(str(error).split())[:200]})") from error


def read_weights_in(data: bytes) -> Any:
    """`read_weights` of bytes."""
    return read_weights(io.BytesIO(data))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, records: tuple[str, ...]):
        super().__init__(file, encoding="latin1")  # as numpy asks for Python 2's arrays
        self._known, self._records = _plain_globals(), records

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        for old, new in _MODULES.items():
            full = full.replace(old, new)
        if full not in self._known and self._records and full.startswith(self._records):
            self._known[full] = type("Record", (Record,), {"source": full})
        if full not in self._known:
            raise RefusedError(f"its pickle names {module}.{name}; {_REFUSAL}")
        return self._known[full]

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedError(f"its pickle refers to something outside it; {_REFUSAL}")


def _plain_globals() -> Mapping[str, Any]:
    """The globals that a pickle of plain values names, rewritten to build nothing else.

    Made anew for every file: a pickle may set attributes of what it is handed.
    """

    class DType:
        def __init__(self, spec: str, align: bool = False, copy: bool = False):
            if not isinstance(spec, str) or not _DTYPE.fullmatch(spec):
                raise RefusedError(f"its pickle has an array of dtype {spec!r}; {_REFUSAL}")
            self.value = np.dtype(spec)

        def __setstate__(self, state: tuple) -> None:
            if state[1] in ("<", ">"):
                self.value = self.value.newbyteorder(state[1])

    class Array:
        def __init__(self, *arguments: Any):
            self.value = np.empty(0)

        def __setstate__(self, state: tuple) -> None:
            _, shape, dtype, fortran, data = state
            self.value = build(data, dtype, shape, "F" if fortran else "C")

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            return np.array(self.value, dtype=dtype)

    def build(data: Any, dtype: DType, shape: tuple[int, ...], order: str = "C") -> np.ndarray:
        if isinstance(data, str):
            data = data.encode("latin1")
        return np.frombuffer(data, dtype.value).reshape(shape, order=order)

    def reconstruct(kind: type, shape: tuple[int, ...], code: bytes) -> Array:
        return Array()

    def scalar(dtype: DType, data: Any) -> Any:
        return build(data, dtype, (1,))[0]

    def encode(text: str, encoding: str = "latin1") -> bytes:
        return str.encode(text, "latin1")  # how protocol 2 keeps bytes

    def no_bytes() -> bytes:
        return b""

    plain = {f"builtins.{kind.__name__}": kind for kind in (set, frozenset, complex)}
    plain["builtins.bytes"] = no_bytes  # of protocols that have no opcode for them
    plain |= {key.replace("builtins", "__builtin__"): kind for key, kind in plain.items()}
    return plain | {
        "collections.OrderedDict": dict,
        "_codecs.encode": encode,
        "numpy.dtype": DType,
        "numpy.ndarray": Array,
        "numpy._core.multiarray._reconstruct": reconstruct,
        "numpy._core.multiarray.scalar": scalar,
        "numpy._core.numeric._frombuffer": build,
    }
