"""How many of something are on some of the rows, for many somethings of which most are asked about again and again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from concerto.scheduling.state.columns import Ints

_FEW = 16
"""Rows of which no arrays are kept: they would take more memory than the numbers."""


class RowCounts(dict[int, int]):
    """Numbers by row, of those rows that have any. Only `add` changes them."""

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        super().__init__()
        self._arrays: tuple[Ints, Ints] | None = None

    def add(self, row: int, number: int) -> None:
        """Add to the number of the row."""
        self._arrays = None
        if total := self.get(row, 0) + number:
            self[row] = total
        else:
            self.pop(row, None)

    @property
    def arrays(self) -> tuple[Ints, Ints]:
        """The rows and their numbers, which are not to be changed."""
        arrays = self._arrays
        if arrays is None:
            size = len(self)
            arrays = np.fromiter(self.keys(), np.int64, size), np.fromiter(self.values(), np.int64, size)
            if size >= _FEW:
                self._arrays = arrays
        return arrays


def weighted_sum(counts: Iterable[tuple[RowCounts, int]]) -> tuple[Ints, Ints]:
    """Rows, several times if need be, and numbers times the weight that is beside them."""
    few: list[tuple[RowCounts, int]] = []
    many: list[tuple[RowCounts, int]] = []
    for each in counts:
        (few if len(each[0]) < _FEW else many).append(each)
    size = sum(len(rows) for rows, _ in few)
    rows = [np.fromiter(chain.from_iterable(rows for rows, _ in few), np.int64, size)]
    numbers = [np.fromiter((weight * n for rows, weight in few for n in rows.values()), np.int64, size)]
    for of_many, weight in many:
        rows.append(of_many.arrays[0])
        numbers.append(of_many.arrays[1] if weight == 1 else weight * of_many.arrays[1])
    return np.concatenate(rows), np.concatenate(numbers)
