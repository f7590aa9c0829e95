"""Plain values from pickles without running code, in bounded time and memory; tensors from torch's files."""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from .archives import check_stored, open_archive
from .forks import fork_safe_lock

_MODULES = {"numpy.core.": "numpy._core."}  # numpy 1's name to numpy 2's
_DTYPE = re.compile(r"[<>=|]?([biufc]\d{1,2}|[SU]\d{1,9}|\?)")
_REFUSAL = "only arrays, numbers, text and containers of them are read"

# Prefixes of full names, for `records` of `read_pickle`.
SB3_RECORDS = ("stable_baselines3.", "sb3_contrib.")
SPACE_RECORDS = ("gymnasium.spaces.", "gym.spaces.", "gym.utils.seeding.", "numpy.random.")

_RECORDS = ("tianshou.utils.statistics.RunningMeanStd",)  # classes beside the tensors of torch's files
_STAND_INS = fork_safe_lock()

_MAX_OPCODES = 200_000
_MAX_DEPTH = 64
_MAX_GROWTH = 16  # bytes of values, and of work, for each byte of the pickle,
_ALLOWANCE = 1_000_000  # and so many more
_MAX_KEY = 1 << 60  # larger integers could be chosen to have equal hashes


class RefusedError(ValueError):
    """Error for a file that asks for more than plain values; the message names what."""


class Record:
    """Stand-in for an object of a library: its attributes, none of its code.

    Attributes:
        source: Full name of the class.
    """

    source = ""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def read_pickle(file: BinaryIO, *, records: tuple[str, ...] = (), instructions: int = _MAX_OPCODES) -> Any:
    """Return the value of a pickle.

    Args:
        file: The pickle.
        records: Prefixes of full names. Instances of classes, and results of functions, whose name starts with one
            become `Record`s.
        instructions: Largest number of the pickle's instructions.

    Returns:
        The value; arrays in it are objects for `numpy.asarray`.

    Raises:
        RefusedError: The pickle names another global, or exceeds a bound.
        ValueError: The pickle is damaged.
    """
    return _read(file.read(), lambda data: _Unpickler(data, records), instructions)


def read_weights(file: BinaryIO) -> Any:
    """Return what `torch.save` wrote, if it is tensors, numbers, text and containers of them.

    Raises:
        RefusedError: The pickle names another global, exceeds a bound, or is of the form before torch 1.6.
        ValueError: The file is damaged.
    """
    # torch goes by the first bytes, so it would not open another archive with a zip behind it as a zip.
    if file.read(4) != b"PK\x03\x04":
        raise RefusedError("not a zip archive: it is damaged, or was saved in the form before torch 1.6")
    size = file.seek(0, io.SEEK_END)
    with open_archive(file) as archive:
        names = archive.namelist()
        if any("/code/" in name or name.endswith("constants.pkl") for name in names):
            raise RefusedError("a TorchScript program, which older torch would open without asking")
        check_stored(archive, size)
        for name in names:
            if name.endswith("data.pkl"):
                _read(archive.read(name), _Checker)
    try:
        return _load_weights(file)
    except RefusedError as error:
        if not str(error).startswith(("its pickle names numpy.", *(f"its pickle names {name}" for name in _RECORDS))):
            raise
        with _STAND_INS, _stand_ins():
            return _load_weights(file)


def _load_weights(file: BinaryIO) -> Any:
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise nearly any type
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is not None:
            raise RefusedError(f"its pickle names {refused[1]}; {_REFUSAL}") from error
        raise ValueError(f"damaged weights ({' '.join(str(error).split())[:200]})") from error


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Let torch read numpy's numbers and arrays beside tensors, as our own plain stand-ins, and some `Record`s.

    torch keeps the accepted globals for the whole process, so they are put back afterwards.
    """
    plain = {name: make for name, make in _plain_globals().items() if name.startswith("numpy.")}
    plain |= {name.replace("numpy._core.", "numpy.core."): make for name, make in plain.items()}
    plain |= {name: type("Record", (Record,), {"source": name}) for name in _RECORDS}
    before = torch.serialization.get_safe_globals()
    try:
        for name, make in plain.items():
            accepted = make if isinstance(make, type) else _copy_function(make)
            # torch 2.4 knows a global by these attributes.
            accepted.__module__, _, accepted.__qualname__ = name.rpartition(".")
            accepted.__name__ = accepted.__qualname__
            torch.serialization.add_safe_globals([accepted])
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _copy_function(function: Callable[..., Any]) -> Any:
    return lambda *arguments: function(*arguments)


def read_weights_in(data: bytes) -> Any:
    """Return what `torch.save` wrote into the bytes; see `read_weights`."""
    return read_weights(io.BytesIO(data))


def _read(data: bytes, unpickler: Callable[[bytes], _Unpickler], instructions: int = _MAX_OPCODES) -> Any:
    try:
        # This pass also finds lengths beyond the end of the file, for which the unpickler would reserve memory.
        for count, _ in enumerate(pickletools.genops(data)):
            if count >= instructions:
                raise RefusedError(f"its pickle has more than {instructions} instructions")
        value = unpickler(data).load()
        _measure(value, _growth(data), 0, {})
        return value
    except RefusedError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly any type
        raise ValueError(f"a damaged pickle ({type(error).__name__}: {error})") from error


def _growth(data: bytes) -> int:
    return _MAX_GROWTH * len(data) + _ALLOWANCE


def _measure(value: Any, limit: int, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the size and the height of a value as a tree, in which shared parts count as often as they occur.

    Raises:
        RefusedError: The tree is too large or too deep; a value that contains itself is.
    """
    if isinstance(value, dict):
        parts: Iterable[Any] = [*value.values(), *getattr(value, "__dict__", {}).values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, Record | _Anything):
        parts = vars(value).values()
    else:
        return 8 + _length(value), 0
    if id(value) in known:
        return known[id(value)]
    size, height = 8 + 8 * len(parts), 0  # type: ignore[arg-type]
    for part in parts:
        if depth > _MAX_DEPTH:
            raise RefusedError(f"its pickle nests values more than {_MAX_DEPTH} deep")
        part_size, part_height = _measure(part, limit, depth + 1, known)
        size, height = size + part_size, max(height, part_height + 1)
        if size > limit:
            raise RefusedError("its pickle repeats values until they are far larger than the file")
    if depth + height > _MAX_DEPTH:
        raise RefusedError(f"its pickle nests values more than {_MAX_DEPTH} deep")
    known[id(value)] = size, height
    return size, height


def _length(value: Any) -> int:
    """Return the length of a string or container, or the bytes of an array; 0 for other values."""
    if isinstance(value, str | bytes | bytearray | list | tuple | dict | set | frozenset):
        return len(value)
    return getattr(getattr(value, "value", None), "nbytes", 0)


def _check_keys(keys: Iterable[Any]) -> None:
    """Check the keys of a dict, or items of a set, before they are hashed: hashing nested tuples may take forever."""
    for key in keys:
        if not isinstance(key, str | bytes | None) and not (isinstance(key, int) and abs(key) < _MAX_KEY):
            raise RefusedError(f"its pickle has a key of type {type(key).__name__}; only text and integers are read")


def _check_work(unpickler: Any) -> None:
    """Check the work of a call, which one short instruction can repeat on a long argument."""
    arguments = unpickler.stack[-1]
    parts = arguments if isinstance(arguments, tuple) else ()
    unpickler.work_left -= _length(arguments) + sum(map(_length, parts))
    if unpickler.work_left < 0:
        raise RefusedError("its pickle repeats work on long values")


def _checked(opcode: bytes, check: Callable[[Any], None]) -> Callable[[Any], None]:
    execute = pickle._Unpickler.dispatch[opcode[0]]

    def checked(unpickler: Any) -> None:
        check(unpickler)
        execute(unpickler)

    return checked


# By instruction, what is checked on the unpickler's stack before it runs.
_CHECKS: dict[bytes, Callable[[Any], None]] = {
    pickle.REDUCE: _check_work,
    pickle.BUILD: _check_work,
    pickle.SETITEM: lambda unpickler: _check_keys(unpickler.stack[-2:-1]),
    pickle.SETITEMS: lambda unpickler: _check_keys(unpickler.stack[::2]),
    pickle.DICT: lambda unpickler: _check_keys(unpickler.stack[::2]),
    pickle.ADDITEMS: lambda unpickler: _check_keys(unpickler.stack),
    pickle.FROZENSET: lambda unpickler: _check_keys(unpickler.stack),
}


class _Unpickler(pickle._Unpickler):
    """The standard library's unpickler in Python, which lets other threads run, with checks before instructions."""

    dispatch: ClassVar = {
        **pickle._Unpickler.dispatch,
        **{opcode[0]: _checked(opcode, check) for opcode, check in _CHECKS.items()},
    }

    def __init__(self, data: bytes, records: tuple[str, ...]):
        super().__init__(io.BytesIO(data), encoding="latin1")  # as numpy requires for Python 2's arrays
        self._globals, self._records, self.work_left = _plain_globals(), records, _growth(data)

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        for old, new in _MODULES.items():
            full = full.replace(old, new)
        if full not in self._globals and self._records and full.startswith(self._records):
            self._globals[full] = type("Record", (Record,), {"source": full})
        if full not in self._globals:
            raise RefusedError(f"its pickle names {module}.{name}; {_REFUSAL}")
        return self._globals[full]

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedError(f"its pickle refers to something outside it; {_REFUSAL}")


class _Anything:
    """Stand-in for any object: it keeps what is put into it, so that it can be measured."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> _Anything:
        new = super().__new__(cls)
        new.parts = [*arguments, keywords]
        return new

    def __init__(self, *arguments: Any, **keywords: Any):
        self.parts: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append(value)

    def append(self, value: Any) -> None:
        self.parts.append(value)

    add = append


class _Checker(_Unpickler):
    """Unpickler that keeps to plain containers, to check the bounds of a pickle that torch then reads."""

    def __init__(self, data: bytes):
        super().__init__(data, ())
        self._globals = _containers() | {"collections.Counter": _containers()["builtins.set"]}

    def find_class(self, module: str, name: str) -> Any:
        return self._globals.get(f"{module}.{name}", _Anything)

    def persistent_load(self, pid: Any) -> Any:
        return _Anything(pid)


def _containers() -> dict[str, Any]:
    """Return the containers that pickles name, with checks of what is hashed."""

    class OrderedDict(dict):
        def __init__(self, items: Iterable[Any] = ()):
            pairs = [tuple(item) for item in items]
            _check_keys(pair[0] for pair in pairs)
            super().__init__(pairs)

        def __setstate__(self, state: Any) -> None:
            self.state = state  # torch keeps versions of modules there

    def make_set(items: Iterable[Any] = ()) -> set[Any]:
        _check_keys(items)
        return set(items)

    def make_frozenset(items: Iterable[Any] = ()) -> frozenset[Any]:
        _check_keys(items)
        return frozenset(items)

    sets: dict[str, Any] = {"set": make_set, "frozenset": make_frozenset}
    return {"collections.OrderedDict": OrderedDict} | {
        f"{module}.{name}": make for module in ("builtins", "__builtin__") for name, make in sets.items()
    }


def _plain_globals() -> dict[str, Any]:
    """Return the globals that a pickle of plain values names, rewritten to build nothing else.

    They are made anew for every file, since a pickle may set attributes of what it is handed.
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

    def build(data: Any, dtype: DType, shape: tuple[int, ...], order: Any = "C") -> np.ndarray:
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

    # Protocols without an opcode for bytes call bytes() for empty ones.
    plain = {"complex": complex, "bytes": no_bytes}
    plain_globals = {f"{module}.{name}": make for module in ("builtins", "__builtin__") for name, make in plain.items()}
    return {
        **_containers(),
        **plain_globals,
        "_codecs.encode": encode,
        "numpy.dtype": DType,
        "numpy.ndarray": Array,
        "numpy._core.multiarray._reconstruct": reconstruct,
        "numpy._core.multiarray.scalar": scalar,
        "numpy._core.numeric._frombuffer": build,
    }
