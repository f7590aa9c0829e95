"""Parser of pickles and torch files of any origin: a program of its own that imports only the standard library.

`pickles` starts it and sends one file after the other. Each is parsed in a forked process with limits of memory and
processor time. Nothing in a file is imported or called: names in it stand for the plain classes and functions below.

A request is two lengths, a JSON object and the file; an answer is two lengths, JSON and the bytes of its arrays. In the
JSON of an answer, lists begin with the name of what they describe; see `pickles._decode`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import re
import resource
import struct
import sys
import zipfile
from collections.abc import Iterable
from typing import Any, NamedTuple

FRAME = struct.Struct("<QQ")
_DTYPE = re.compile(r"([<>=|]?)([biufc]\d{1,2}|[SU]\d{1,9}|\?)")
_REFUSAL = "only arrays, numbers, text and containers of them are read"
_MAX_DEPTH = 64
_MAX_GROWTH = 16  # bytes of values for each byte of the file
_ALLOWANCE = 1_000_000  # more bytes of values
_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")  # of torch.save before 1.6
_STORAGES = {
    f"torch.{kind}Storage": dtype
    for kind, dtype in {
        "Float": ("float32", 4), "Double": ("float64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
        "Long": ("int64", 8), "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1),
        "Bool": ("bool", 1), "ComplexFloat": ("complex64", 8), "ComplexDouble": ("complex128", 16),
    }.items()
}  # fmt: skip


class RefusedError(ValueError):
    """Error for a file that asks for more than plain values."""


class Record:
    """Stand-in for an object of a library: its attributes, none of its code."""

    source = ""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class Dict(dict):
    """An `OrderedDict` or `Counter`, whose state, such as torch's versions of modules, is left out."""

    def __setstate__(self, state: Any) -> None:
        pass


class DType:
    def __init__(self, spec: Any, align: Any = False, copy: Any = False):
        if not isinstance(spec, str) or not (match := _DTYPE.fullmatch(spec)):
            raise RefusedError(f"its pickle has an array of dtype {spec!r}; {_REFUSAL}")
        self.order, self.kind = match.groups()

    def __setstate__(self, state: tuple) -> None:
        if state[1] in ("<", ">"):
            self.order = state[1]

    def __str__(self) -> str:
        return self.order + self.kind


class Array:
    """An array, or with the shape None a number."""

    def __init__(self, *arguments: Any):
        self.dtype, self.shape, self.order = "f8", (0,), "C"
        self.data: bytes | memoryview = b""

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: DType, shape: Any, order: Any) -> Array:
        if not isinstance(dtype, DType):
            raise RefusedError(f"its pickle has an array of another dtype; {_REFUSAL}")
        self.dtype, self.shape, self.order = str(dtype), shape, "F" if order == "F" else "C"
        self.data = data.encode("latin1") if isinstance(data, str) else memoryview(data)
        return self


class Storage(NamedTuple):
    dtype: str
    itemsize: int
    member: str


class Tensor(NamedTuple):
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


# What names in a file stand for. A file may set attributes of these, but only in the process that parses it.
_PLAIN: dict[str, Any] = {
    "builtins.bytes": lambda: b"",  # protocols without an opcode for bytes call bytes() for empty ones
    "__builtin__.bytes": lambda: b"",
    "collections.OrderedDict": Dict,
    "collections.Counter": Dict,
    "_codecs.encode": lambda text, encoding="latin1": text.encode("latin1"),  # how protocol 2 keeps bytes
    "numpy.dtype": DType,
    "numpy.ndarray": Array,
    "numpy._core.multiarray._reconstruct": lambda kind, shape, code: Array(),
    "numpy._core.multiarray.scalar": lambda dtype, data: Array().fill(data, dtype, None, "C"),
    "numpy._core.numeric._frombuffer": lambda *parts: Array().fill(*parts),
}
_TORCH: dict[str, Any] = {
    "torch._utils._rebuild_tensor": lambda *parts: Tensor(*parts[:4]),
    "torch._utils._rebuild_tensor_v2": lambda *parts: Tensor(*parts[:4]),
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch.Size": tuple,
    **_STORAGES,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, records: Iterable[str], storages: bool):
        super().__init__(stream, encoding="latin1")  # as numpy requires for Python 2's arrays
        self._globals = _PLAIN | _TORCH if storages else {**_PLAIN}
        self._exact = frozenset(records)
        self._prefixes = tuple(name for name in records if name.endswith("."))
        self._storages = storages
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full.startswith("numpy.core."):  # numpy 1's name
            full = full.replace("numpy.core.", "numpy._core.", 1)
        if full not in self._globals:
            if full not in self._exact and not full.startswith(self._prefixes):
                raise RefusedError(f"its pickle names {module}.{name}; {_REFUSAL}")
            self._globals[full] = type("Record", (Record,), {"source": full})
        return self._globals[full]

    def persistent_load(self, pid: Any) -> Storage:
        if not self._storages:
            raise RefusedError(f"its pickle refers to something outside it; {_REFUSAL}")
        _, storage, key, *_ = pid
        if storage not in _STORAGES.values():
            raise RefusedError(f"its pickle has a tensor of another kind; {_REFUSAL}")
        if len(pid) == 6 and pid[5] is not None:
            raise RefusedError("its pickle has a view of a storage, as torch wrote before 0.4")
        return self.storages.setdefault(str(key), Storage(storage[0], storage[1], str(key)))


class _Torch:
    """A file of `torch.save`: a zip archive of a pickle and the storages of its tensors."""

    def __init__(self, content: bytes):
        self._archive = zipfile.ZipFile(io.BytesIO(content))
        names = self._archive.namelist()
        if any("/code/" in name or name.endswith("constants.pkl") for name in names):
            raise RefusedError("a TorchScript program, which is code")
        pickles = [name for name in names if name.endswith("data.pkl")]
        if len(pickles) != 1 or len(names) != len({*names}):
            raise ValueError("an archive that torch did not write")
        self._root = pickles[0].removesuffix("data.pkl")
        if f"{self._root}byteorder" in names and self.read("byteorder") != sys.byteorder.encode():
            raise ValueError("written on a machine of another byte order; save it again on this one")

    def read(self, name: str) -> bytes:
        return self._archive.read(self._root + name)


class _OldTorch:
    """A file of `torch.save` before torch 1.6: five pickles, and the storages of the tensors one after the other."""

    def __init__(self, content: bytes, records: Iterable[str]):
        stream = io.BytesIO(content)
        pickles = [_Unpickler(stream, records, storages=True) for _ in range(5)]
        _magic, _version, system, self.value, keys = (unpickler.load() for unpickler in pickles)
        if system["little_endian"] != (sys.byteorder == "little"):
            raise ValueError("written on a machine of another byte order; save it again on this one")
        self._members = {}
        for key in keys:
            (count,) = struct.unpack("=q", stream.read(8))
            self._members[f"data/{key}"] = stream.read(max(count, 0) * pickles[3].storages[key].itemsize)

    def read(self, name: str) -> bytes:
        return self._members[name]


class _Encoder:
    """Values as JSON and one sequence of bytes; shared values count, and are written, as often as they occur."""

    def __init__(self, size: int, archive: _Torch | _OldTorch | None):
        self.parts: list[Any] = []
        self.length = 0
        self._left = _MAX_GROWTH * size + _ALLOWANCE
        self._archive = archive
        self._storages: dict[str, tuple[int, int]] = {}

    def encode(self, value: Any, depth: int = 0) -> Any:
        self._count(8)
        if depth > _MAX_DEPTH:
            raise RefusedError(f"its pickle nests values more than {_MAX_DEPTH} deep")
        kind, below = type(value), depth + 1
        if value is None or kind in (bool, int, float):
            return value
        if kind is str:
            self._count(len(value))
            return value
        if kind in (bytes, bytearray):
            return ["bytes", *self._add(value)]
        if kind in (list, tuple):
            return [kind.__name__, *(self.encode(item, below) for item in value)]
        if kind in (dict, Dict):
            return ["dict", *(part for key in value for part in (self.encode(key), self.encode(value[key], below)))]
        if kind is Array:
            shape = None if value.shape is None else [*value.shape]
            return ["array", value.dtype, shape, value.order, *self._add(value.data)]
        if kind is DType:
            return ["dtype", str(value)]
        if kind is Tensor:
            return self._tensor(*value)
        if isinstance(value, Record):
            return ["record", value.source, self.encode(vars(value), below)]
        if isinstance(value, type) and issubclass(value, Record):
            return ["class", value.source]
        raise RefusedError(f"its pickle holds {kind.__name__}; {_REFUSAL}")

    def _tensor(self, storage: Storage, offset: int, shape: tuple, strides: tuple) -> list[Any]:
        if not isinstance(storage, Storage):
            raise RefusedError(f"its pickle has a tensor of another kind; {_REFUSAL}")
        self._count(math.prod(shape) * storage.itemsize)
        if storage.member not in self._storages and self._archive is not None:
            self._storages[storage.member] = self._add(self._archive.read(f"data/{storage.member}"))
        place = self._storages[storage.member]
        return ["tensor", storage.dtype, [*shape], [*strides], offset, *place]

    def _add(self, data: bytes | memoryview) -> tuple[int, int]:
        """Return place and length of the data among the bytes; places are multiples of 64."""
        self._count(len(data))
        place, padding = self.length, -len(data) % 64
        self.parts += [data, bytes(padding)]
        self.length += len(data) + padding
        return place, len(data)

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise RefusedError("it repeats values until they are far larger than the file")


def parse(kind: str, content: bytes, records: Iterable[str]) -> tuple[Any, _Encoder]:
    """Return what a file holds: the JSON, and the encoder that has the bytes of its arrays."""
    if kind == "pickle":
        encoder, value = _Encoder(len(content), None), _Unpickler(io.BytesIO(content), records, storages=False).load()
    elif content[:4] == b"PK\x03\x04":  # torch, too, goes by the first bytes, not by a zip behind others
        archive = _Torch(content)
        encoder = _Encoder(len(content), archive)
        value = _Unpickler(io.BytesIO(archive.read("data.pkl")), records, storages=True).load()
    elif _MAGIC in content[:20]:
        old = _OldTorch(content, records)
        encoder, value = _Encoder(len(content), old), old.value
    else:
        raise ValueError("not a file that torch.save wrote")
    return encoder.encode(value), encoder


def _answer(header: dict[str, Any], content: bytes) -> tuple[bytes, list[bytes]]:
    try:
        value, encoder = parse(header["kind"], content, header["records"])
        return json.dumps({"value": value}).encode(), encoder.parts
    except RefusedError as error:
        answer = {"refused": str(error)[:1000]}
    except MemoryError:
        answer = {"memory": ""}
    except BaseException as error:  # a damaged file may raise nearly any type
        answer = {"damaged": f"{type(error).__name__}: {error}"[:1000]}
    return json.dumps(answer).encode(), []


def _limit(kind: int, most: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # a system that does not have this limit
        resource.setrlimit(kind, (most, most + 1))  # at the second limit, the signal would not say which it was


def _parse_one(header_length: int, length: int) -> None:
    with open(0, "rb", closefd=False) as request:  # it may read ahead, but nothing follows before the answer
        header = json.loads(request.read(header_length))
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_AS, header["memory"])
        _limit(resource.RLIMIT_CPU, header["seconds"])
        text, parts = _answer(header, request.read(length))
    for part in (FRAME.pack(len(text), sum(map(len, parts))), text, *parts):
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


def serve() -> None:
    """Answer requests from standard input until it ends, or until a parser does not end well."""
    while True:
        frame = os.read(0, FRAME.size)  # written at once, so read at once
        if not frame:
            return
        child = os.fork()
        if not child:
            try:
                _parse_one(*FRAME.unpack(frame))
            except BaseException:
                os._exit(1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            os._exit(os.WTERMSIG(status) or 1)


if __name__ == "__main__":
    serve()
