"""Checks shared by states and transitions."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers, fill_masked, is_tensor
from ...runtime.text import NAME_WIDTH, printable
from ...runtime.warn import warn

_FEWEST_ROWS = 32
_FEWEST_LAST = 10  # equal rows at the end
_SAMPLED_ROWS = 4096
_ROUNDING = 1e-4  # of log-probabilities
_COARSE = 100  # distances between float32 numbers


class Lazy:
    """Array that is read when it is needed.

    Attributes:
        shape: Its shape.
        dtype: Type of its values.

    Args:
        shape: Its shape.
        dtype: Type of its values.
        read: Function that reads all values.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, read: Callable[[], np.ndarray]) -> None:
        self.shape, self.dtype, self._read = tuple(shape), np.dtype(dtype), read

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), dtype)


def opened_later(open_array: Callable[[], Any]) -> Any:
    """Return an array; if it cannot be opened, one that raises where it is needed."""
    try:
        return open_array()
    except (OSError, TypeError, ValueError):
        return Lazy((), object, lambda: np.asarray(open_array()))


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array, which need not be read, or of a nested sequence."""
    with contextlib.suppress(ValueError):  # sequences of unequal length
        return tuple(values.shape) if hasattr(values, "shape") else np.shape(values)
    return ()


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their paths, such as `observations/position`."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        leaves |= flatten(value, f"{name}/") if isinstance(value, Mapping) else {name: value}
    return leaves


def to_array(tensor: Any, where: str) -> np.ndarray:
    """Return the values of a tensor; half precision becomes float32."""
    if tensor.is_meta:
        raise ValueError(f"{where}a tensor on the meta device holds no values; load it on another device")
    tensor = tensor.detach().cpu()
    try:
        return (tensor.float() if tensor.is_floating_point() and tensor.itemsize <= 2 else tensor).numpy()
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"{where}not a plain tensor: {error}") from error


def table_shape(shape: Sequence[int], what: str) -> tuple[int, int]:
    """Return (rows, columns) of a shape that is this, or (rows, 1, columns), as of buffers of one environment."""
    if len(shape) == 3 and shape[1] == 1:
        return int(shape[0]), int(shape[2])
    if len(shape) != 2:
        hint = f"; pass values.reshape(-1, {shape[-1]})" if len(shape) == 3 else ""
        raise ValueError(f"{what}, got {tuple(shape)}{hint}")
    return int(shape[0]), int(shape[1])


def warn_of_equal_rows(states: np.ndarray, where: str) -> bool:
    """Warn and return true if more than half of the states (rows, dim_s) are the same row, judged by a sample."""
    if len(states) < _FEWEST_ROWS:
        return False
    sample = states[_spread_rows(len(states))]
    share = np.unique(sample, axis=0, return_counts=True)[1].max() / len(sample)
    if share > 0.5:
        warn(
            f"{where}{share:.0%} of the states are the same row, as in a replay buffer that is not full: "
            "pass only the rows that were filled"
        )
    return bool(share > 0.5)


def warn_of_padding(states: np.ndarray, actions: np.ndarray, rewards: np.ndarray, where: str) -> None:
    """Warn if rows that only pad the log seem to count.

    It ends in ten or more equal rows, and more than twice as many as elsewhere; or states are fractions, and as many
    rows are 0 in everything.
    """
    if len(states) < _FEWEST_LAST:
        return
    if not (states[-1] != states[-_FEWEST_LAST]).any():
        equal = (states[1:] == states[:-1]).all(1) & (actions[1:] == actions[:-1]).all(1)
        changes = np.concatenate([[-1], np.flatnonzero(~equal | (rewards[1:] != rewards[:-1])), [len(equal)]])
        *others, last = np.diff(changes).tolist()
        if others and last >= _FEWEST_LAST and last > 2 * max(others):
            warn(
                f"{where}the last {last:,} rows are the same row, as in a replay buffer that is not full: pass only "
                "the rows that were filled"
            )
            return
    zero = np.flatnonzero(rewards == 0)
    for values in (actions, states):
        zero = zero[(values[zero] == 0).all(1)]
    few = states[_spread_rows(len(states))]
    has_fractions = (few != np.round(few)).any(1).mean() > 0.5 * few.any(1).mean()  # in a grid, 0 may be a place
    if len(zero) >= _FEWEST_LAST and has_fractions:
        warn(
            f"{where}{len(zero):,} rows, such as row {zero[0]}, are 0 in everything, as where episodes are padded to "
            "one length: leave these rows out, or add an array 'valid' that is 0 there"
        )


def warn_of_rounding(states: np.ndarray, read: Callable[[np.ndarray], np.ndarray], dtype: np.dtype, where: str) -> None:
    """Warn if a column varies by so little around a large value that float32 rounds its differences away."""
    if np.can_cast(dtype, np.float32):
        return
    rows = _spread_rows(len(states))
    sample = states[rows]
    if (sample == sample[0]).all(0).any():
        sample = read(rows)  # a column may vary by less than float32 tells apart
    varies, spread = (sample != sample[0]).any(0), sample.std(0, dtype=np.float64)
    spacing = np.spacing(np.abs(sample).max(0).astype(np.float32))
    if (lost := np.flatnonzero(varies & (spread < _COARSE * spacing))).size:
        k = int(lost[0])
        warn(
            f"{where}column {k} of the states varies by {spread[k]:.3g} around {sample[0, k]:.6g}, where numbers of "
            f"float32 are {spacing[k]:.3g} apart, so policies see rounded states: shift it in the log and the policies"
        )


def _spread_rows(count: int) -> np.ndarray:
    """Return at most 4,096 of the rows, evenly spread."""
    return np.linspace(0, count - 1, min(count, _SAMPLED_ROWS)).astype(np.int64)


@dataclass(frozen=True)
class Checks:
    """Checks of the arrays of one source, which give them the form that `Transitions` have.

    Attributes:
        where: Beginning of error messages.
        names: Part of the log → name of its array.
    """

    where: str
    names: Mapping[str, str]

    def name(self, part: str) -> str:
        return repr(self.names.get(part, part))

    def table(self, part: str, values: Any, count: int | None = None, *, gaps: bool = False) -> np.ndarray:
        """Return (rows, columns) float32; one number for each row is one column; `gaps` allow rows of NaN."""
        values = self._numbers(part, values, count)
        if values.ndim == 1:
            values = values[:, None]
        what = f"{self.where}: {self.name(part)} must have shape (rows, columns)"
        if values.ndim == 3 and values.shape[1] > 1:
            raise ValueError(
                f"{what}, got {values.shape}; pass [{{name: x[i] for name, x in log.items()}} for i in "
                f"range({len(values)})], a dictionary for each episode, or x[:, i] for i in range({values.shape[1]}) "
                "if axis 1 is of environments"
            )
        shape = table_shape(values.shape, what)
        if 0 in shape:
            raise ValueError(f"{what}, got {values.shape}")
        return self._finite(part, values.reshape(shape), gaps=gaps)

    def column(self, part: str, values: Any, count: int) -> np.ndarray:
        """Return (rows,) float32."""
        return self._finite(part, self._one_column(part, self._numbers(part, values, count)))

    def flags(self, part: str, values: Any, count: int, *, inverted: bool = False) -> np.ndarray:
        """Return (rows,) bool; `inverted` arrays mark with 0 what others mark with 1."""
        values = self._one_column(part, self._numbers(part, values, count))
        wrong = (values != 0) & (values != 1)
        if "discount" not in self.names[part].lower():  # which may be 0.99
            self._refuse(part, values, wrong, "must be 0 or 1")
        return (values == 0) if inverted else values.astype(bool)

    def labels(self, part: str, values: Any, count: int) -> np.ndarray | None:
        """Return (rows,) numbers, or words for episodes; None without an array."""
        if values is None:
            return None
        if part == "steps":
            values = self._times(values)
            if getattr(values, "dtype", np.dtype(float)).kind in "mM":
                times = np.asarray(values)
                values = np.where(np.isnat(times), np.nan, times.astype(np.int64))
            return self._finite(part, self._one_column(part, self._numbers(part, values, count)), np.float64)
        labels = as_numbers(values)
        self._check_count(part, labels, count)
        empty = np.array([x is None for x in labels.flat]) if labels.dtype == object else False
        if np.any(empty := empty | (labels != labels)):
            raise ValueError(f"{self.where}: {self.name(part)} has no value at row {int(np.argmax(empty))}")
        return self._one_column(part, labels.astype(str) if labels.dtype == object else labels)

    def _times(self, values: Any) -> Any:
        """Return times of text or of objects as datetime64; other values as they are."""
        import pandas

        read = as_numbers(values)
        if read.dtype.kind not in "OU" or not len(read) or not isinstance(read.flat[0], str | datetime.date):
            return values
        name = self.name("steps")
        try:
            return pandas.to_datetime(read.reshape(-1), format="ISO8601", utc=True).tz_localize(None).to_numpy()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.where}: {name} holds words that are no ISO dates: pass the table with table[{name}] = "
                f"pandas.to_datetime(table[{name}], format=…), or without this column"
            ) from error

    def log_probs(self, arrays: Mapping[str, Any], actions: np.ndarray, count: int) -> np.ndarray | None:
        """Return (rows,) log-probabilities, from probabilities too; None if the log has neither.

        Raises:
            ValueError: They are no log-probabilities, or no probabilities.
        """
        indices, names = _are_indices(actions), {part: self.name(part) for part in ("probabilities", "log_probs")}
        values, logs = (self.column(part, arrays[part], count) if part in arrays else None for part in names)
        if values is not None:
            bound, remedy = "from above 0 to 1" if indices else "above 0", ""
            if (values <= 0).all():
                remedy = f"; if they are logarithms, pass columns={{'log_probs': {names['probabilities']}}}"
            wrong = (values <= 0) | ((values > 1) & indices)
            self._refuse("probabilities", values, wrong, f"must be {bound}", remedy)
        if logs is None:
            return None if values is None else np.log(values)
        remedy = f", as logarithms are; pass probabilities as columns={{'probabilities': {names['log_probs']}}}"
        self._refuse("log_probs", logs, (logs > _ROUNDING) & indices, "of discrete actions must be at most 0", remedy)
        if values is not None and not np.allclose(np.exp(logs), values, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"{self.where}: {names['probabilities']} and {names['log_probs']} disagree; choose one by "
                f"columns={{'log_probs': {names['log_probs']}}}"
            )
        return logs

    def _refuse(self, part: str, values: np.ndarray, wrong: np.ndarray, what: str, remedy: str = "") -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self.where}: {self.name(part)} {what}, got {values[row]:g} at row {row}{remedy}")

    def _check_count(self, part: str, values: np.ndarray, count: int | None) -> None:
        if count is not None and len(values) != count:
            hint = "; pass a list of dictionaries, one for each episode, if states hold the last ones of episodes too"
            raise ValueError(
                f"{self.where}: {self.name(part)} has {len(values)} rows, {self.name('states')} has {count}"
                f"{hint if len(values) < count else ''}"
            )

    def _numbers(self, part: str, values: Any, count: int | None) -> np.ndarray:
        if is_tensor(values):
            values = to_array(values, f"{self.where}: {self.name(part)}: ")
        try:
            values = np.asarray(fill_masked(values))
        except (OverflowError, TypeError, ValueError) as error:
            if str(error).startswith(self.where):
                raise
            raise ValueError(f"{self.where}: {self.name(part)} is no array: {error}") from error
        if values.dtype == object and not any(isinstance(value, str) for value in values.flat):
            with contextlib.suppress(OverflowError, TypeError, ValueError):  # numbers, or arrays of equal length
                values = np.array(values.tolist(), np.float64)
        if values.dtype.kind not in "fiub":
            word = next((value for value in values.flat if isinstance(value, str)), None)
            remedy = ""
            if word is None and values.size and np.ndim(values.flat[0]):
                remedy = ": it holds arrays; pass a list of dictionaries, one for each episode"
            elif word is not None:
                index = " as the policies do" if part == "actions" else ""
                shown, column = repr(printable(word, NAME_WIDTH)), f"table[{self.name(part)}]"
                remedy = (
                    f": it holds words such as {shown}; number them{index} and pass the table, such as {column} = "
                    f"{column}.map({{{shown}: 0, …}})"
                )
            raise TypeError(f"{self.where}: {self.name(part)} must be numbers, got dtype {values.dtype}{remedy}")
        if values.ndim == 0 or len(values) == 0:
            raise ValueError(f"{self.where}: {self.name(part)} is empty: shape {values.shape}")
        self._check_count(part, values, count)
        return values

    def _one_column(self, part: str, values: np.ndarray) -> np.ndarray:
        if values.shape not in ((len(values),), (len(values), 1)):
            hint = "; pass only that of the logged action" if part == "probabilities" else ""
            raise ValueError(f"{self.where}: {self.name(part)} must have shape (rows,), got {values.shape}{hint}")
        return values.reshape(-1)

    def _finite(self, part: str, exact: np.ndarray, dtype: Any = np.float32, gaps: bool = False) -> np.ndarray:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(exact, dtype)
        for start in range(0, len(values), _SAMPLED_ROWS):
            piece = values[start : start + _SAMPLED_ROWS]
            finite = np.isfinite(piece).reshape(len(piece), -1).all(1)
            if gaps:
                finite |= np.isnan(piece).all(1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                raise ValueError(f"{self.where}: {self.name(part)} is not finite (as float32) at row {row}")
        if part == "states":
            warn_of_rounding(values, lambda some: exact[some], exact.dtype, f"{self.where}: ")
        return values


def _are_indices(actions: np.ndarray) -> bool:
    """Return whether actions are discrete: one-hot, or one column of whole numbers, judged by a sample."""
    few = actions[_spread_rows(len(actions))]
    if few.shape[1] == 1:
        return bool((few == np.abs(np.round(few))).all() and few.any())
    return bool(((few == 0) | (few == 1)).all() and (few.sum(1) == 1).all())
