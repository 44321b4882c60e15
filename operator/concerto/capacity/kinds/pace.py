"""The pace at which nodes are given work: token buckets of core-seconds. Pods of a burst do not all compute at once.

A node has two buckets. Every pod takes its work from the first. Light pods, which hardly compute while they live, take
theirs from the second, too, and only that one holds them back: the work of one heavy pod lasts as long as many light
ones live, and they would else wait until it is done.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.capacity.kinds.cost import Cost
from concerto.capacity.kinds.settings import KindSettings

Floats = NDArray[np.float64]
Rows = slice | NDArray[np.int64]
Row = int | NDArray[np.int64]

_OF_ALL, _OF_LIGHT = 0, 1
_LEAST = 0.1
"""Part of the cores that pods may use for which tokens come in any case: pods that are not paced take the rest, and
what they take is a mean of what was measured.
"""


class Pace:
    """The buckets of N nodes, by row. Settings and ``cores``, those of each node that pods may use, are the caller's.

    Tokens come for the cores that paced pods find. If they came for all of a node's, where other programs or pods
    without end take part of them, pods would be placed faster than they end, until the node is filled to its head room.
    They would take longer for it, and none of them would end earlier.
    """

    def __init__(self) -> None:
        self._tokens: Floats = np.zeros((0, 2))  # core-seconds that might be given at _at
        self._at: Floats = np.zeros((0, 2))
        self._from: Floats = np.zeros((0, 2))  # when they may be given again
        self._unpaced: Floats = np.zeros(0)  # cores that pods take which are not paced
        self._rate: Floats = np.zeros(0)  # tokens a second
        self._wanting: Floats = np.zeros(0)  # pods that want a core, per core; 0 where unknown
        self._changed: set[int] = set()  # rows whose rate is that of before: _settle

    def grow(self, width: int) -> None:
        """Make room for that many nodes, whose buckets are full."""
        more = max(0, width - len(self._tokens))
        self._tokens = np.concatenate([self._tokens, np.full((more, 2), np.inf)])
        self._at, self._from = (np.concatenate([each, np.zeros((more, 2))]) for each in (self._at, self._from))
        self._unpaced, self._rate, self._wanting = (
            np.concatenate([each, np.zeros(more)]) for each in (self._unpaced, self._rate, self._wanting)
        )

    def clear(self, row: int) -> None:
        """The row stands for another node from now on; its pods have been removed."""
        self._tokens[row], self._at[row], self._unpaced[row], self._wanting[row] = np.inf, 0.0, 0.0, 0.0

    def note_cores(self, rows: NDArray[np.int64]) -> None:
        """The nodes' pods may use another number of cores."""
        self._changed.update(rows.tolist())

    def note_wanting(self, row: int, pods: float | None) -> None:
        """So many of the node's pods compute, or wait for a core altogether, per core; None: that is unknown."""
        self._wanting[row] = pods if pods is not None and pods > 0.0 else 0.0  # NaN is no number either
        self._changed.add(row)

    def add(self, rows: Row, cost: Cost, pods: Floats | float) -> None:
        """So many pods of that cost have come to each of the rows; less than 0: they have ended."""
        if cost.work is None:
            self._unpaced[rows] += pods * cost.share
            self._changed.update((rows,) if isinstance(rows, int) else rows.tolist())

    def give(self, row: int, cost: Cost, cores: Floats, settings: KindSettings, now: float) -> None:
        """The row's node is given the work of such a pod; one without end, or of an unknown kind, is not paced."""
        if cost.work is None:
            return
        self._settle(cores, settings, now)
        buckets, rate = slice(0, 1 + _bucket(cost, settings)), float(self._rate[row])
        waited = np.maximum(0.0, now - self._at[row, buckets])
        tokens = self._tokens[row, buckets] + rate * waited
        at_once = _max_tokens(cost, rate, settings)[buckets]
        tokens = np.minimum(tokens, at_once) - _paced_work(cost, rate, settings)
        self._tokens[row, buckets], self._at[row, buckets] = tokens, now
        self._update(row)

    def tokens(self, rows: Rows, cores: Floats, settings: KindSettings, now: float) -> Floats:
        """(R,) core-seconds in the first buckets of the rows; negative where overdrawn."""
        self._settle(cores, settings, now)
        waited = np.maximum(0.0, now - self._at[rows, _OF_ALL])
        tokens: Floats = self._tokens[rows, _OF_ALL] + self._rate[rows] * waited
        return tokens

    def free_from(self, cost: Cost, rows: Rows, cores: Floats, settings: KindSettings, now: float) -> Floats:
        """(R,) when the rows' nodes may be given such a pod."""
        self._settle(cores, settings, now)
        free_from: Floats = self._from[rows, _bucket(cost, settings)]
        return free_from

    def _settle(self, cores: Floats, settings: KindSettings, now: float) -> None:
        if not self._changed:
            return
        rows = np.fromiter(self._changed, np.int64, len(self._changed))
        self._changed.clear()
        # What came so far, came at the rate of before
        waited = np.maximum(0.0, now - self._at[rows])
        self._tokens[rows] += self._rate[rows, np.newaxis] * waited
        self._at[rows] = np.maximum(self._at[rows], now)
        usable = cores[rows]
        found = np.maximum(usable - np.maximum(self._unpaced[rows], 0.0), _LEAST * usable)
        self._rate[rows] = settings.pace * _slowed(self._wanting[rows], settings) * found
        self._update(rows)

    def _update(self, rows: Row) -> None:
        seconds_per_token = 1.0 / np.maximum(self._rate[rows], 1e-9)
        self._from[rows] = self._at[rows] - self._tokens[rows] * seconds_per_token[..., np.newaxis]


def _slowed(wanting: Floats, settings: KindSettings) -> Floats:
    """Part of the pace at which nodes are given work on which so many pods want a core, per core.

    A pace that equals what a node does leaves what waits there as it is: as much as was placed at once at the beginning
    of a Job. A slower one lets the node catch up, and is given up once it has.
    """
    slowed: Floats = 1.0 - settings.slower * np.maximum(wanting - settings.crowded, 0.0)
    return np.maximum(slowed, settings.slowest)


def _bucket(cost: Cost, settings: KindSettings) -> int:
    """Which bucket holds such a pod back."""
    return _OF_LIGHT if cost.share <= settings.light_share else _OF_ALL


def _max_tokens(cost: Cost, rate: float, settings: KindSettings) -> Floats:
    """By bucket, core-seconds of work that the node is given at once at most, before it takes such a pod."""
    life = min(cost.held or settings.default_life_seconds, settings.max_paced_seconds)
    bursts = np.array([settings.burst, settings.light_burst])
    at_once: Floats = rate * np.maximum(bursts * life, settings.min_burst_seconds)
    return at_once


def _paced_work(cost: Cost, rate: float, settings: KindSettings) -> float:
    """Core-seconds of the pod's work, its start and end included, that the node is to do before it is given more."""
    longest = settings.max_paced_seconds
    work = (cost.work or 0.0) + cost.started
    work = work * min(1.0, longest / cost.held) if cost.held else min(work, longest * cost.share)
    return min(work, longest * rate)
