"""Named arrays of files: .npy, .npz, parquet and HDF5, read when they are needed; and pickles of replay buffers."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.containers import check_chunks, check_size, open_archive, open_hdf5, open_parquet
from ...runtime.extras import library
from ...runtime.files import check_regular, reading
from ...runtime.pickles import SB3_RECORDS, SPACE_RECORDS, RefusedError, read_pickle
from ...runtime.rows import FileRows, Read, StoredRows
from ..named_arrays import LONGEST_NAME, Lazy, shape_of

_GROUPED = re.compile(r"(?:.*/)?(?P<label>(?:episode|demo|traj)_(?P<number>\d+))/(?P<key>.+)")  # Minari, robomimic
_NUMBERED = re.compile(r"(?P<key>observations|actions|rewards|terminated)_(?P<label>(?P<number>\d+))")  # d3rlpy
_PLAIN = "a plain array (of Python objects, if you trust the file, pass numpy.load(path, allow_pickle=True))"
_RECORDS = (*SB3_RECORDS, *SPACE_RECORDS, "torch.device")
_COPIES = 3  # of the file's bytes while it is read
_DEEPEST = 100  # group within groups
_SIZES = ("_size", "size")  # names of the number of filled rows of a buffer
_PLACES = ("ptr", "_insertion_idx")  # of the row that is overwritten next
_OF_SEVERAL = ("_offset", "_lengths")  # of several buffers in one


def open_npy(path: Path) -> FileRows:
    """Open an `.npy` file, of which rows are read on demand."""
    check_regular(path)
    with reading(path, _PLAIN):
        return FileRows(path)


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an archive by name, decompressed when they are needed."""

    def member(name: str) -> np.ndarray:
        with reading(f"{path}: {name.removesuffix('.npy')!r}", _PLAIN), open_archive(path, is_log=True) as archive:
            return archive.array(name)

    with reading(path, "an .npz file"), open_archive(path, is_log=True) as archive:
        names = {name.removesuffix(".npy"): name for name in archive.names}
        return {key: Lazy(*archive.header(name), functools.partial(member, name)) for key, name in names.items()}


def read_parquet(path: Path) -> dict[str, Any]:
    """Return the columns of a file by name, of numbers or of lists of one length, read when they are needed."""
    with reading(path, "a parquet file"), open_parquet(path) as file:
        count, names = file.metadata.num_rows, file.schema_arrow.names
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        parts = [group.column(i) for group in groups for i in range(group.num_columns)]
        head = next(file.iter_batches(batch_size=1), None)

    def column(name: str, width: tuple[int, ...]) -> np.ndarray:
        where, values, start = f"{path}: {name!r}", np.empty(0), 0
        check_size(where, 8 * sum(x.num_values for x in parts if f"{x.path_in_schema}.".startswith(f"{name}.")))
        with reading(path, "a parquet file"), open_parquet(path) as file:
            for batch in file.iter_batches(columns=[name], use_threads=False):
                part = _numbers_of(batch.column(0), width, where, start)
                if not start:  # a number that a list of a later batch lacks is NaN
                    values = np.empty((count, *width), np.result_type(part, np.float32) if width else part.dtype)
                values[start : start + len(part)] = part
                start += len(part)
        return values

    arrays = {}
    for name in names:
        first = np.asarray(None if head is None else head.column(name)[0].as_py())
        arrays[name] = Lazy((count, *first.shape), first.dtype, functools.partial(column, name, first.shape))
    return arrays


def _numbers_of(column: Any, width: tuple[int, ...], where: str, start: int) -> np.ndarray:
    """Return the numbers (N,), or lists of `width` numbers (N, width), of rows from `start` on of a column of arrow."""
    compute = library("pyarrow.compute", "parquet")
    if column.null_count:
        raise ValueError(f"{where} has no value at row {start + compute.index(column.is_null(), True).as_py()}")
    if not width:
        return column.to_numpy(zero_copy_only=False)
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    if (wrong := lengths != width[0]).any():
        found = f"{width[0]} and {lengths[wrong][0]} at row {start + int(np.argmax(wrong))}"
        raise ValueError(f"{where}: lists of equal length expected, got {found}")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


class Hdf5Array(StoredRows):
    """A dataset of a file, which is opened when values are read; its type is that of the numbers as they are read."""

    def __init__(self, path: Path, key: str, dataset: Any, status: os.stat_result) -> None:
        super().__init__(f"{path}: {key!r}", status)
        self.shape, self.dtype, self._path, self._key = dataset.shape, dataset.dtype, path, key
        self._cache = 0  # bytes; without, only the needed rows of plain chunks are read
        if dataset.chunks and dataset.id.get_create_plist().get_nfilters():  # which unpack all chunks of a row
            widths = [-(-n // chunk) * chunk for n, chunk in zip(self.shape[1:], dataset.chunks[1:], strict=True)]
            self._cache = dataset.chunks[0] * math.prod(widths) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self._open() as dataset, reading(self.name, "an array"):
            check_size(self.name, math.prod(self.shape) * self.dtype.itemsize)
            return np.asarray(dataset[()], dtype)

    @contextmanager
    def reader(self) -> Iterator[Read]:
        with self._open(rdcc_nbytes=self._cache) as dataset:

            def read(start: int, stop: int) -> np.ndarray:
                with reading(self.name, f"an array with rows {start} to {stop - 1}"):
                    return np.asarray(dataset[start:stop])

            yield read

    @contextmanager
    def _open(self, **options: Any) -> Iterator[Any]:
        with reading(self._path, "an HDF5 file"), open_hdf5(self._path, **options) as file:
            self.check_version(os.stat(self._path))
            dataset = file[self._key]
            if dataset.external is not None or dataset.is_virtual:
                raise ValueError(f"{self.name} refers to other files; copy its values into this file")
            if self.dtype.kind not in "fiub":
                raise TypeError(f"{self.name} must be numbers, got dtype {self.dtype}")
            check_chunks(dataset, self.name)
            yield dataset
            self.check_version(os.stat(self._path))


def read_hdf5(path: Path) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the arrays of a file by their path in it, and numbers among its attributes; arrays are read when needed.

    Arrays of each episode, as Minari (`episode_0/rewards`), robomimic (`data/demo_0/rewards`) and d3rlpy (`rewards_0`)
    write them, make a list. Soft and external links are not followed.
    """
    status, arrays = os.stat(path), dict[str, Any]()
    episodes: dict[tuple[int, str], dict[str, Any]] = {}

    def visit(name: str, item: Any) -> str | None:  # each object once, though groups may hold each other
        if getattr(item, "shape", None) is not None:
            arrays[name] = Hdf5Array(path, name, item, status)
        return name if name.count("/") >= _DEEPEST or len(name) > LONGEST_NAME else None  # which ends the visit

    with reading(path, "an HDF5 file"), open_hdf5(path) as file:
        if file.visititems(visit):
            fault = f"groups more than {_DEEPEST} deep, or a name of more than {LONGEST_NAME} characters"
            raise ValueError(f"{path}: {fault}")
        numbers = {key: np.asarray(file.attrs[key]) for key in file.attrs if file.attrs.get_id(key).shape == ()}
    pattern = _NUMBERED if {"columns", "num_episodes", "version"} <= arrays.keys() else _GROUPED
    for match in filter(None, map(pattern.fullmatch, arrays)):
        episodes.setdefault((int(match["number"]), match["label"]), {})[match["key"]] = arrays[match[0]]
    return [episodes[place] for place in sorted(episodes)] or numbers | arrays


def filled_rows(arrays: Mapping[str, Any], count: int) -> np.ndarray | None:
    """Return which rows of a buffer were filled, (count,) bool, by its number of rows; None without such a number.

    Of Tianshou's buffers of several environments, `_offset` are the first rows of each, `_lengths` how many count.
    ValueError is raised if rows were overwritten, since the oldest are then not the first.
    """
    fields = {name.rpartition("/")[2]: values for name, values in arrays.items()}
    if {*_OF_SEVERAL} <= fields.keys():
        offsets, lengths = (np.asarray(fields[name]) for name in _OF_SEVERAL)
        sizes = np.diff(offsets, append=count)
        if lengths.shape == sizes.shape and ((lengths >= 0) & (lengths <= sizes)).all() and sizes.sum() == count:
            return np.arange(count) - np.repeat(offsets, sizes) < np.repeat(lengths, sizes)

    def number(names: Sequence[str]) -> int:
        for name in names:
            if name in fields and shape_of(fields[name]) in ((), (1,)):
                with contextlib.suppress(OverflowError, TypeError, ValueError):  # no number
                    return int(np.ravel(fields[name])[0])
        return 0

    size, place = number(_SIZES), number(_PLACES)
    if size == count and 0 < place < count:
        raise ValueError(
            f"a full buffer, of which row {place} is the oldest: pass its arrays from there on, "
            f"{{name: numpy.roll(x, -{place}, 0) for name, x in arrays.items()}}"
        )
    return np.arange(count) < size if 0 < size < count else None


def read_pickled(path: Path) -> Any:
    """Return the content of a pickle, in which a replay buffer of Stable-Baselines3 is a record."""
    check_size(path, _COPIES * path.stat().st_size)
    try:
        return read_pickle(path, records=_RECORDS)
    except RefusedError as error:
        raise ValueError(f"{path}: {error}; load it yourself if you trust it, and pass the object") from error
    except Exception as error:
        raise ValueError(f"{path}: damaged ({type(error).__name__}: {str(error)[:1000]})") from error
