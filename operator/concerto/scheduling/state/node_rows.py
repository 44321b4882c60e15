"""Which row stands for which node name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from concerto.scheduling.state.columns import Ints
from concerto.scheduling.state.pod_index import PodIndex

_MIN_WIDTH = 64


class NodeRows:
    """Rows by node name. A freed row is used again; the number of rows grows by doubling.

    Attributes:
        indexes: what has entries by row; set once, before the first row.
        size: rows in use or used before.
        names: node name by row.
        row_of: row by node name.
    """

    def __init__(self) -> None:
        self.indexes: Sequence[PodIndex] = ()
        self.size = 0
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self._width = 0
        self._free: list[int] = []
        self._ranks: Ints | None = None

    def row(self, name: str) -> int:
        """The name's row; a name that has none gets one.

        Raises:
            TypeError: it is not a string. With one such name, no names could be sorted.
        """
        row = self.row_of.get(name)
        return self._add(name) if row is None else row

    def free(self, row: int) -> None:
        """Nothing is known of the row's node any more."""
        del self.row_of[self.names[row]]
        self._ranks = None
        self._free.append(row)

    def name_ranks(self) -> Ints:
        """Place of each row in the order of names."""
        if self._ranks is None:
            ranks = np.zeros(self.size, dtype=np.int64)
            for rank, row in enumerate(sorted(range(self.size), key=self.names.__getitem__)):
                ranks[row] = rank
            self._ranks = ranks
        return self._ranks

    def _add(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not the name of a node")
        self._ranks = None
        if self._free:
            row = self._free.pop()
            self.names[row] = name
        else:
            row = self.size
            if row == self._width:
                self._width = max(_MIN_WIDTH, 2 * row)
                for index in self.indexes:
                    index.grow(self._width)
            self.size += 1
            self.names.append(name)
        self.row_of[name] = row
        for index in self.indexes:
            index.row_assigned(row)
        return row
