"""Public traces as people have them: CSV files whose first column is a time and whose second is a load.

What can be understood in one way only is understood; anything else is an error that names the row. A trace that is
read wrongly gives figures that nobody can see to be wrong.
"""

from __future__ import annotations

import csv
import math
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_GAPS = frozenset({"", "-", "na", "n/a", "nan", "null", "none"})
_UNITS = {
    0.001: {"ms", "millis", "millisecond", "milliseconds"},
    1.0: {"s", "sec", "secs", "second", "seconds"},
    60.0: {"min", "mins", "minute", "minutes"},
    3600.0: {"h", "hour", "hours"},
}
"""Words in the header of the times, or in the file's name, by what they stand for in seconds."""
_EPOCH_FROM = 1e8
"""Seconds; a number from here on is a date (1973 and later), and counts from no other beginning."""
_COUNTED = 5.0
"""Numbers that are closer together than this may be seconds, or numbers of rows, or minutes."""
_PER_MINUTE = 60.0
"""Further apart they are seconds, even in a file whose name has minutes in it: each minute, that is."""
_MAX_VALUE = 1e300
_LONGEST_GAPS = 20
"""Times the rows that there would be without gaps."""


def read_trace(path: Path) -> tuple[float, NDArray[np.float64]]:
    """(seconds between samples, values) of a CSV file.

    Times are ISO 8601 (UTC unless they say otherwise), epochs in seconds, milli-, micro- or nanoseconds, or counts of
    the unit that the header of the column (or the file's name) has in it. Rows may come in any order; values of the
    same time are averaged; gaps (empty, NaN, or no row) are filled by their neighbours.

    Raises:
        ValueError: it is not such a file; the message names it, and the row.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = text.splitlines()
        delimiter = max(",;\t", key=(lines or [""])[0].count)
        found = list(csv.reader(lines, delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file: {error}") from error
    rows = [(number, [c.strip() for c in row]) for number, row in enumerate(found, start=1) if any(row)]
    header = ""
    if rows and not _is_time(rows[0][1][0]):
        header, rows = rows[0][1][0], rows[1:]
    times, values = [], []
    for number, row in rows:
        if len(row) < 2:
            raise ValueError(f"{path}: row {number} has no second column: a trace has a time and a value in each row")
        times.append(_time(path, number, row[0]))
        values.append(_value(path, number, row[1]))
    return _on_a_grid(path, _in_seconds(path, header, times), np.array(values))


def _is_time(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        try:
            datetime.fromisoformat(text)
        except ValueError:
            return False
    return True


def _time(path: Path, number: int, text: str) -> float | datetime:
    if not _is_time(text):
        examples = "2026-03-01T12:00:00Z, 1772366400"
        raise ValueError(f"{path}: row {number}: {text!r} is not a valid time (examples: {examples})")
    try:
        at = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not math.isfinite(at):
        raise ValueError(f"{path}: row {number}: {text!r} is not a valid time")
    return at


def _value(path: Path, number: int, text: str) -> float:
    if text.lower() in _GAPS:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{path}: row {number}: {text!r} is not a number") from None
    if not 0.0 <= value <= _MAX_VALUE:
        raise ValueError(f"{path}: row {number}: {text} is not a valid load: it has to be 0 or more, and finite")
    return value


def _in_seconds(path: Path, header: str, times: list[float | datetime]) -> NDArray[np.float64]:
    dates = [t for t in times if isinstance(t, datetime)]
    if dates:
        if len(dates) < len(times):
            raise ValueError(f"{path}: some times are dates, and others numbers")
        return np.array([t.timestamp() for t in dates])
    numbers = np.array(times, dtype=float)
    largest = np.abs(numbers).max(initial=0.0)
    if largest >= _EPOCH_FROM:
        power = sum(bool(largest >= _EPOCH_FROM * 1000.0**exponent) for exponent in (1, 2, 3))
        return numbers / 1000.0**power
    distinct = np.unique(numbers)
    apart = float(np.median(np.diff(distinct))) if len(distinct) > 1 else math.inf
    unit = _unit(header)
    if unit is None and apart < _PER_MINUTE:
        unit = _unit(path.stem)
    if unit is None and apart < _COUNTED:
        raise ValueError(
            f"{path}: its times are small numbers, and nothing says whether they are seconds, minutes or hours: "
            "write the unit into the header of that column"
        )
    return numbers * (1.0 if unit is None else unit)


def _unit(text: str) -> float | None:
    words = set(re.findall("[a-z]+", text.lower()))
    return next((seconds for seconds, names in _UNITS.items() if names & words), None)


def _on_a_grid(
    path: Path, times: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    known = np.isfinite(values)
    at, place, count = np.unique(times[known], return_inverse=True, return_counts=True)
    if len(at) < 2:
        raise ValueError(f"{path}: a trace needs values at two times at least, and has {len(at)}")
    means = np.bincount(place, weights=values[known]) / count
    all_times = np.unique(times)
    step = float(np.median(np.diff(all_times)))
    if (all_times[-1] - all_times[0]) / step > _LONGEST_GAPS * len(all_times):
        raise ValueError(
            f"{path}: {len(all_times)} rows, most of them {step:g} s apart, over "
            f"{(all_times[-1] - all_times[0]) / 3600:.0f} h: next to all of it is a gap; is a time wrong?"
        )
    grid = np.arange(all_times[0], all_times[-1] + step / 2, step)
    return step, np.interp(grid, at, means)
