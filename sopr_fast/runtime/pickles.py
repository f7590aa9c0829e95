"""Plain values from pickles of any origin, without importing or calling what they name.

Names in a file stand for the plain classes and functions below, and everything that it makes is counted before it is
made.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from .files import opened, size_of

SB3_RECORDS = ("stable_baselines3.", "sb3_contrib.")
SPACE_RECORDS = ("gymnasium.spaces.", "gym.spaces.", "gym.utils.seeding.", "numpy.random.")

_DTYPE = re.compile(r"([<>=|]?)([biufc]\d{1,2}|[SU]\d{1,9}|\?)")
REFUSAL = "only arrays, numbers, text and containers of them are read"
_MOST_STEPS = 10_000_000  # instructions of a pickle, most of which make one small value
MOST_DEPTH = 64
_MOST_ARGUMENTS = 100  # of a call, which copies them
_MOST_KEYS = 4_000  # of a file's dictionaries that are not text, whose hashes a file may choose to be equal
_GROWTH, _ALLOWANCE = 32, 1_000_000  # bytes of values for each byte of the file, and more of them


class RefusedError(ValueError):
    """Error for a file that asks for more than plain values."""


class Record:
    """Stand-in for an object of a library: its attributes, none of its code."""

    source = ""
    _state: ClassVar[Any] = {}  # not yet attributes, which the unpickler or numpy might call

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self)["_state"] = state


class _Dict(dict):
    """A dictionary, also an `OrderedDict` or `Counter`, whose keys are hashed in no time and without recursion."""

    def __init__(self, count_key: Callable[[], None]) -> None:
        super().__init__()
        self._count_key = count_key

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is not str:
            if type(key) not in (int, float, bool, type(None)) or (type(key) is int and key.bit_length() > 60):
                raise RefusedError("its pickle has a key that is neither text nor a number, or too large")
            self._count_key()
        super().__setitem__(key, value)

    def __setstate__(self, state: Any) -> None:
        pass


class _Memo(dict):
    """Values by numbers that follow each other, as picklers write them: others could have equal hashes."""

    def __setitem__(self, place: int, value: Any) -> None:
        if place > len(self) + 1000:
            raise ValueError("its pickle leaves out places of its memo")
        super().__setitem__(place, value)


class _DType:
    def __init__(self, spec: Any, align: Any = False, copy: Any = False):
        if not isinstance(spec, str) or not (match := _DTYPE.fullmatch(spec)):
            shown = repr(spec[:80]) if isinstance(spec, str) else type(spec).__name__
            raise RefusedError(f"its pickle has an array of dtype {shown}; {REFUSAL}")
        self.order, self.kind = match.groups()

    def __setstate__(self, state: tuple) -> None:
        if state[1] in ("<", ">"):
            self.order = state[1]

    def numpy(self) -> np.dtype:
        return np.dtype(self.order + self.kind)


class _Array:
    """An array, or with the shape None a number."""

    def __init__(self, data: Any = b"", dtype: Any = None, shape: Any = (0,), order: Any = "C") -> None:
        self.data, self.dtype, self.shape, self.order = data, dtype or _DType("f8"), shape, order

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        vars(self).update(data=data, dtype=dtype, shape=shape, order="F" if fortran else "C")


NAMES: dict[str, Any] = {
    "builtins.bytes": lambda: b"",  # protocols without an opcode for bytes call bytes() for empty ones
    "__builtin__.bytes": lambda: b"",
    "numpy.dtype": _DType,
    "numpy.ndarray": _Array,
    "numpy._core.multiarray._reconstruct": lambda kind, shape, code: _Array(),
    "numpy._core.multiarray.scalar": lambda dtype, data: _Array(data, dtype, None),
    "numpy._core.numeric._frombuffer": _Array,
}


def _counted(step: Any, size: int = 0) -> Callable[[Any], None]:
    """Return a step of the unpickler that counts itself, and the bytes of the container that it makes."""

    def counted(unpickler: Any) -> None:
        unpickler.steps += 1
        if unpickler.steps > _MOST_STEPS:
            raise RefusedError(f"its pickle holds more than {_MOST_STEPS:,} values; {REFUSAL}: use arrays")
        unpickler.count(size)
        step(unpickler)

    return counted


class PlainUnpickler(pickle._Unpickler):
    """Python's own unpickler, whose memo grows by what a file of `size` bytes holds, not by the numbers in it."""

    def __init__(self, stream: Any, size: int, records: Iterable[str], names: Mapping[str, Any] = NAMES) -> None:
        super().__init__(stream, encoding="latin1")  # as numpy requires for Python 2's arrays
        self.steps, self._keys, self._left = 0, 0, _GROWTH * size + _ALLOWANCE
        own = {"collections.OrderedDict": self._dict, "collections.Counter": self._dict, "_codecs.encode": self._encode}
        self._names = {**names, **own}
        self._records = frozenset(records)
        self._prefixes = tuple(name for name in records if name.endswith("."))

    def count(self, size: int) -> None:
        """Take bytes from those that the values of the file may have."""
        self._left -= size
        if self._left < 0:
            raise RefusedError("it repeats values until they are far larger than the file")

    def _count_key(self) -> None:
        self._keys += 1
        if self._keys > _MOST_KEYS:
            raise RefusedError(f"its pickle has dictionaries with too many keys that are not text, over {_MOST_KEYS:,}")

    def load(self) -> Any:
        """Return the value of the next pickle in the stream, as stand-ins; see `plain`."""
        self.memo: dict[int, Any] = _Memo()
        return super().load()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        self.count(len(full))
        if full.startswith("numpy.core."):  # numpy 1's name
            full = full.replace("numpy.core.", "numpy._core.", 1)
        if full not in self._names:
            if full not in self._records and not full.startswith(self._prefixes):
                raise RefusedError(f"its pickle names {module}.{name}; {REFUSAL}")
            self.count(2000)  # bytes of a class
            self._names[full] = type("Record", (Record,), {"source": full})
        return self._names[full]

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedError(f"its pickle refers to something outside it; {REFUSAL}")

    def _dict(self, items: Any = ()) -> _Dict:
        self.count(256)
        result = _Dict(self._count_key)
        for key, value in items.items() if isinstance(items, dict) else items:
            self.count(16)
            result[key] = value
        return result

    def _encode(self, text: str, encoding: str = "latin1") -> bytes:
        self.count(len(text))
        return text.encode("latin1")  # how protocol 2 keeps bytes

    def _build(self) -> None:
        """Set the state of a stand-in; that of a class or function would change how other files are read."""
        state = self.stack.pop()  # type: ignore[attr-defined]
        target = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(target, Record | _Dict | _DType | _Array):
            raise RefusedError(f"its pickle holds {type(target).__name__}; {REFUSAL}")
        target.__setstate__(state)

    def _reduce(self) -> None:
        """Call a stand-in; Python's error of other calls would show the whole of their values."""
        arguments = self.stack.pop()  # type: ignore[attr-defined]
        function = self.stack[-1]  # type: ignore[attr-defined]
        if type(arguments) is not tuple or len(arguments) > _MOST_ARGUMENTS or not callable(function):
            raise ValueError(f"a call of {type(function).__name__} with {type(arguments).__name__}")
        self.stack[-1] = function(*arguments)  # type: ignore[attr-defined]

    def _newobj(self) -> None:
        self.stack[-1] = ()  # type: ignore[attr-defined]  # no stand-in uses arguments of __new__
        self.load_newobj()  # type: ignore[attr-defined]

    def _load_dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self.append(self._dict(zip(items[::2], items[1::2], strict=True)))  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        raise RefusedError(f"its pickle has sets, or classes of the process; {REFUSAL}")

    dispatch: ClassVar[Any] = {
        code: _counted(step, 64 if code == pickle.EMPTY_LIST[0] else 0)
        for code, step in {
            **pickle._Unpickler.dispatch,
            pickle.EMPTY_DICT[0]: lambda self: self.append(self._dict()),
            pickle.DICT[0]: _load_dict,
            pickle.REDUCE[0]: _reduce,
            pickle.BUILD[0]: _build,
            pickle.NEWOBJ[0]: _newobj,
            pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],  # takes no memory before it reads
            **dict.fromkeys((pickle.NEWOBJ_EX[0], pickle.EMPTY_SET[0], pickle.FROZENSET[0]), _refuse),
            **dict.fromkeys((pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]), _refuse),
        }.items()
    }

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return a value of stand-ins as what they stand for; what occurs several times counts each time."""
        self.count(64 if isinstance(value, list | tuple | dict | Record) else 8)
        if depth > MOST_DEPTH:
            raise RefusedError(f"its pickle nests values more than {MOST_DEPTH} deep")
        kind, below = type(value), depth + 1
        if value is None or kind in (bool, int, float, str, bytes):
            return value
        if kind in (list, tuple):
            return kind(self.plain(item, below) for item in value)
        if kind in (dict, _Dict):  # the former as the attributes of a record without state
            return {key: self.plain(item, below) for key, item in value.items()}
        if kind is _Array:
            return self._array(value)
        if kind is _DType:
            return value.numpy()
        if isinstance(value, Record):
            record, attributes = kind(), self.plain(value._state, below)
            if any(type(name) is not str or name.startswith("__") for name in attributes):  # __array_interface__
                raise RefusedError(f"its pickle has attributes of Python's own; {REFUSAL}")
            vars(record).update(attributes)
            return record
        if isinstance(value, type) and issubclass(value, Record):
            return value
        raise RefusedError(f"its pickle holds {kind.__name__}; {REFUSAL}")

    def _array(self, array: _Array) -> Any:
        if not isinstance(array.dtype, _DType):
            raise RefusedError(f"its pickle has an array of another dtype; {REFUSAL}")
        self.count(len(array.data))
        data = array.data.encode("latin1") if isinstance(array.data, str) else array.data
        values = np.frombuffer(data, array.dtype.numpy())
        if values.dtype.kind == "U" and (np.frombuffer(data, f"{array.dtype.order}u4") > sys.maxunicode).any():
            raise ValueError("text that is not of characters")
        if array.shape is None:
            return values.reshape(())[()]
        return values.reshape(array.shape, order="F" if array.order == "F" else "C").copy("K")


def read_pickle(source: Path | BinaryIO | bytes, *, records: tuple[str, ...] = ()) -> Any:
    """Return the value of a pickle: numbers, text, arrays, and lists, tuples and dicts of them.

    Records are full names, or prefixes of them that end with a dot. Instances of such classes, and results of such
    functions, become `Record`s. RefusedError if the pickle names another global, or is far smaller than its values; a
    damaged one may raise nearly any error.
    """
    with opened(source) as stream:
        unpickler = PlainUnpickler(stream, size_of(stream), records)
        return unpickler.plain(unpickler.load())
