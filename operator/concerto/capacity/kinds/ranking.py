"""Which kinds matter most among hundreds of thousands: kept as columns, as sorting all of them takes a second. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from concerto.api.pod_kind import CLUSTER

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_NOT_RANKED = -1.0


class KindRanking:
    """By kind, the CPUs of nodes divided among what each knows, and what its pods take.

    The cluster's own entry comes first, then those that most CPUs stand for, of these the ones whose pods take most,
    and of equal ones any, the same in each process.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._parts: Floats = np.zeros(0)
        self._weights: Floats = np.zeros(0)  # negative: it is not ranked
        self._order: Floats = np.zeros(0)
        self._free: list[int] = []
        self._place_of_cluster = -1

    def take(self, name: str) -> int:
        """A place for a kind that is not ranked yet."""
        if not self._free:
            count = len(self._names)
            more = max(1024, count // 4)
            self._parts, self._weights, self._order = (
                np.concatenate([column, np.zeros(more)]) for column in (self._parts, self._weights, self._order)
            )
            self._names.extend([""] * more)
            self._free.extend(range(count + more - 1, count - 1, -1))
            self._weights[count:] = _NOT_RANKED
        place = self._free.pop()
        self._names[place], self._order[place] = name, crc32(name.encode(errors="replace"))
        if name == CLUSTER:
            self._place_of_cluster = place
        return place

    def free(self, place: int) -> None:
        """Nothing is known of the kind any more."""
        self._names[place] = ""
        if place == self._place_of_cluster:
            self._place_of_cluster = -1
        self._parts[place], self._weights[place] = 0.0, _NOT_RANKED
        self._free.append(place)

    def add(self, places: Ints | int, cpus: Floats | float) -> None:
        """So many more CPUs stand for these kinds, each of which is named once."""
        self._parts[places] += cpus

    def rank(self, place: int, weight: float) -> None:
        """The kind is ranked, and its pods take that."""
        self._weights[place] = weight

    def most(self, number: int, others: Mapping[str, float]) -> list[str]:
        """So many kinds that matter most.

        Args:
            number: how many.
            others: further kinds, for which no CPUs stand, and what their pods take.
        """
        found = np.flatnonzero(self._weights >= 0.0)
        names = [*others]
        parts = np.concatenate([self._parts[found], [np.inf if name == CLUSTER else 0.0 for name in names]])
        weights = np.concatenate([self._weights[found], [*others.values()]])
        order = np.concatenate([self._order[found], np.zeros(len(names))])
        parts[np.flatnonzero(found == self._place_of_cluster)] = np.inf
        chosen = _greatest(number, (parts, weights, order)).tolist()
        return [self._names[found[at]] if at < len(found) else names[at - len(found)] for at in chosen]


def _greatest(number: int, columns: tuple[Floats, ...]) -> Ints:
    """Places of so many of the greatest by the first column, of those that are equal there by the next, and so on."""
    left: Ints = np.arange(len(columns[0]))
    chosen: list[Ints] = []
    for column in columns:
        if len(left) <= number:
            break
        values = column[left]
        least = np.partition(values, -number)[-number] if number else np.inf
        chosen.append(left[values > least])
        number -= len(chosen[-1])
        left = left[values == least]
    return np.concatenate([*chosen, left[:number]])
