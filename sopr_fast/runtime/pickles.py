"""Plain values from pickles of any origin, without importing or calling what they name.

A pickle is read as a tree of plain values and of what it would make of names and arguments; nothing is called. Then one
table says what becomes of each name, and every value is counted before it is made, each time that it occurs.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from .files import opened, size_of

SB3_RECORDS = ("stable_baselines3.", "sb3_contrib.")
SPACE_RECORDS = ("gymnasium.spaces.", "gym.spaces.", "gym.utils.seeding.", "numpy.random.")
REFUSAL = "only arrays, numbers, text and containers of them are read"
MOST_DEPTH = 64

_DTYPE = re.compile(r"([<>=|]?)([biufc]\d{1,2}|[SU]\d{1,9}|\?)")
_DICTS = ("collections.OrderedDict", "collections.Counter")
_MOST_KEY = 1 << 20  # larger integers could be chosen to have equal hashes
_GROWTH, _ALLOWANCE = 32, 1_000_000  # bytes of values for each byte of the file, and more of them


class RefusedError(ValueError):
    """Error for a file that asks for more than plain values."""


class Record:
    """Stand-in for an object of a library, or for a class: its attributes and the full name `source`, no code."""

    def __init__(self, source: str, attributes: Any = None) -> None:
        vars(self).update(attributes or {})
        self.source = source


class _Name(str):
    """The full name of a class or function in a file."""


class Made:
    """What a file would make of a name and arguments, then of a state, or of items by key.

    A number or dtype is kept as `value` once it is made.
    """

    __slots__ = ("arguments", "items", "name", "state", "value")

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name, self.arguments, self.state, self.value = name, arguments, None, None
        self.items: list[tuple[Any, Any]] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class _Memo(dict):
    """Values by numbers that follow each other, as picklers write them: others could have equal hashes."""

    def __setitem__(self, place: int, value: Any) -> None:
        if place > len(self) + 1000:
            raise ValueError("its pickle leaves out places of its memo")
        super().__setitem__(place, value)


def _dtype(state: Any, spec: Any, *_: Any) -> np.dtype:
    if not isinstance(spec, str) or not _DTYPE.fullmatch(spec):
        shown = repr(spec[:80]) if isinstance(spec, str) else type(spec).__name__
        raise RefusedError(f"its pickle has an array of dtype {shown}; {REFUSAL}")
    return np.dtype(spec) if state is None else np.dtype(spec).newbyteorder(state[1])


def _array(data: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    if not isinstance(dtype, np.dtype):
        raise RefusedError(f"its pickle has an array of another dtype; {REFUSAL}")
    data = data.encode("latin1") if isinstance(data, str) else data
    values = np.frombuffer(data, dtype)
    if dtype.kind == "U" and (np.frombuffer(data, f"{dtype.byteorder}u4") > sys.maxunicode).any():
        raise ValueError("text that is not of characters")
    return values.reshape(shape, order="F" if order == "F" else "C").copy("K")


def _array_of_state(state: Any, *_: Any) -> np.ndarray:
    _, shape, dtype, is_fortran, data = state
    return _array(data, dtype, shape, "F" if is_fortran else "C")


NAMES: dict[str, Callable[..., Any]] = {  # name → function of the state, and of the arguments
    "builtins.bytes": lambda state: b"",  # protocols without an opcode for bytes call bytes() for empty ones
    "__builtin__.bytes": lambda state: b"",
    "_codecs.encode": lambda state, text, encoding="latin1": text.encode("latin1"),  # how protocol 2 keeps bytes
    "numpy.dtype": _dtype,
    "numpy.ndarray": _array_of_state,
    "numpy._core.multiarray._reconstruct": _array_of_state,
    "numpy._core.multiarray.scalar": lambda state, dtype, data: _array(data, dtype, (), "C")[()],
    "numpy._core.numeric._frombuffer": lambda state, *parts: _array(*parts),
}


class PlainUnpickler(pickle._Unpickler):
    """Python's own unpickler, which grows by what a file of `size` bytes holds, not by the numbers in it."""

    def __init__(self, stream: Any, size: int, records: Iterable[str]) -> None:
        super().__init__(stream, encoding="latin1")  # as numpy requires for Python 2's arrays
        self.memo: dict[int, Any] = _Memo()
        self.names = dict(NAMES)
        self._left = _GROWTH * size + _ALLOWANCE
        self._records = frozenset(records)
        self._prefixes = tuple(name for name in records if name.endswith("."))

    def count(self, size: int) -> None:
        """Take bytes from those that the values of the file may have."""
        self._left -= size
        if self._left < 0:
            raise RefusedError("it repeats values until they are far larger than the file")

    def load(self) -> Any:
        """Return the value in the stream."""
        return self._plain(super().load(), 0)

    def find_class(self, module: str, name: str) -> _Name:
        full = f"{module}.{name}"
        self.count(len(full))
        if full.startswith("numpy.core."):  # numpy 1's name
            full = full.replace("numpy.core.", "numpy._core.", 1)
        is_known = full in self.names or full in _DICTS or full in self._records
        if not is_known and not full.startswith(self._prefixes):
            raise RefusedError(f"its pickle names {module}.{name}; {REFUSAL}")
        return _Name(full)

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedError(f"its pickle refers to something outside it; {REFUSAL}")

    def _new(self, value: Any) -> None:
        self.count(64)
        self.append(value)  # type: ignore[attr-defined]

    def _new_dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._new(made := Made(_DICTS[0]))
        made.items += zip(items[::2], items[1::2], strict=True)

    def _call(self) -> None:
        arguments, name = (self.stack.pop() for _ in range(2))  # type: ignore[attr-defined]
        if type(name) is not _Name or type(arguments) is not tuple:
            raise ValueError(f"a call of {type(name).__name__} with {type(arguments).__name__}")
        self._new(Made(name, arguments))

    def _build(self) -> None:
        state = self.stack.pop()  # type: ignore[attr-defined]
        if type(made := self.stack[-1]) is not Made:  # type: ignore[attr-defined]
            raise RefusedError(f"its pickle changes what it has not made; {REFUSAL}")
        made.state = state

    def _refuse(self) -> None:
        raise RefusedError(f"its pickle has sets, or objects of unusual forms; {REFUSAL}")

    dispatch: ClassVar[Any] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_LIST[0]: lambda self: self._new([]),
        pickle.EMPTY_DICT[0]: lambda self: self._new(Made(_DICTS[0])),
        pickle.DICT[0]: _new_dict,
        **dict.fromkeys((pickle.REDUCE[0], pickle.NEWOBJ[0]), _call),
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],  # takes no memory before it reads
        **dict.fromkeys((pickle.EMPTY_SET[0], pickle.FROZENSET[0], pickle.NEWOBJ_EX[0]), _refuse),
        **dict.fromkeys((pickle.INST[0], pickle.OBJ[0], pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]), _refuse),
    }

    def _plain(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is Made and value.value is not None:
            value = value.value
        if value is None or kind in (bool, int, float, str, bytes) or isinstance(value, np.dtype | np.generic):
            self.count(8)
            return value
        self.count(64)
        if depth > MOST_DEPTH:
            raise RefusedError(f"its pickle nests values more than {MOST_DEPTH} deep")
        if kind in (list, tuple):
            return kind(self._plain(item, depth + 1) for item in value)
        if kind is _Name:
            return Record(str(value))
        if kind is not Made:
            raise RefusedError(f"its pickle holds {kind.__name__}; {REFUSAL}")
        made = self._make(value, depth + 1)
        if isinstance(made, np.dtype | np.generic):
            value.value = made
        return made

    def _make(self, made: Made, depth: int) -> Any:
        arguments, state = [self._plain(item, depth) for item in made.arguments], self._plain(made.state, depth)
        if made.name in _DICTS:
            return self._dict(arguments[0] if arguments else {}, made.items, depth)
        if made.name not in self.names:
            attributes = state if isinstance(state, dict) else {}
            if any(not isinstance(name, str) or name.startswith("__") for name in attributes):  # __array_interface__
                raise RefusedError(f"its pickle has attributes of Python's own; {REFUSAL}")
            return Record(str(made.name), attributes)
        parts = (*arguments, *state) if isinstance(state, tuple) else arguments
        self.count(sum(len(part) for part in parts if isinstance(part, str | bytes)))  # of which a copy is made
        return self.names[made.name](state, *arguments)

    def _dict(self, given: Any, items: list[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
        pairs = [*(given.items() if isinstance(given, dict) else given)]
        pairs += [(key, self._plain(value, depth)) for key, value in items]
        for key, _ in pairs:
            if not (type(key) is str or key is None or (type(key) in (int, bool) and abs(key) < _MOST_KEY)):
                raise RefusedError("its pickle has a key that is neither text nor a small integer")
        return dict(pairs)


def read_pickle(source: Path | BinaryIO | bytes, *, records: tuple[str, ...] = ()) -> Any:
    """Return the value of a pickle: numbers, text, arrays, and lists, tuples and dicts of them.

    Records are full names, or prefixes of them that end with a dot. Instances of such classes, results of such
    functions, and their names alone become `Record`s. RefusedError if the pickle names another global, or is far
    smaller than its values; a damaged one may raise nearly any error.
    """
    with opened(source) as stream:
        return PlainUnpickler(stream, size_of(stream), records).load()
