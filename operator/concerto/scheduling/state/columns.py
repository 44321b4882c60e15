"""Arrays with one entry per row, a row being a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]
"""By row, 0 where a filter lets the node pass, else the number of its refusal, counted from 1."""
Rows = slice | Ints
"""Rows that something is asked about: a slice for all, an array for some."""
NO_ROWS: Ints = np.zeros(0, dtype=np.int64)

FEW_ROWS = 32
"""So many are looked at one by one: arrays of all rows take longer."""
_Entry = TypeVar("_Entry", bound=np.generic)


def compact(rows: Rows) -> Rows:
    """The same rows; a single one as a slice, of which numpy reads an entry in a fraction of the time."""
    return rows if isinstance(rows, slice) or len(rows) != 1 else slice(int(rows[0]), int(rows[0]) + 1)


def numbered(rows: Rows, size: int) -> Sequence[int]:
    """The numbers of these rows, of so many."""
    numbers: list[int] | range = range(size)[rows] if isinstance(rows, slice) else rows.tolist()
    return numbers


def union(one: Ints, other: Ints) -> Ints:
    """Rows that are in either, each once and in order."""
    if not len(other):
        return one
    if not len(one):
        return other
    rows: Ints = np.concatenate((one, other))
    rows.sort(kind="stable")  # merges two runs that are in order; np.union1d takes ten times as long
    merged: Ints = rows[np.append(True, rows[1:] != rows[:-1])]
    return merged


def widened(column: NDArray[_Entry], width: int, fill: float = 0) -> NDArray[_Entry]:
    """A copy with that many entries along the last axis, new ones filled."""
    wider = np.full((*column.shape[:-1], width), fill, dtype=column.dtype)
    wider[..., : column.shape[-1]] = column
    return wider


class Columns:
    """Base of what holds arrays by row.

    Attributes:
        FILLS: name of each array attribute, and what a new row has in it.
    """

    FILLS: ClassVar[Mapping[str, float]] = {}

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        for name, fill in self.FILLS.items():
            setattr(self, name, widened(getattr(self, name), width, fill))
