"""What demand was: finely over an hour, coarsely over days, by half hours over two weeks; small enough for a status.

All are rings on an even grid, so that samples that come early, late, twice or never need no further thought. Values
are thousandths of a replica; `NOTHING` stands for a bucket without a sample (an API server refuses null in a list).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NOTHING = -1
_WEEKLY_STEP, _WEEKLY_LENGTH = 1800, 720
"""Fifteen days by half hours: two seasons of a week, and what changes within the horizon on top."""


@dataclass(frozen=True)
class Ring:
    """The last ``length`` buckets of a grid.

    Attributes:
        step: seconds of a bucket.
        length: maximal number of buckets.
        last: index of the newest bucket (its start is ``last * step``).
        values: means of the buckets' samples, the newest last; `NOTHING` where there was no sample.
        count: samples in the newest bucket, for its mean.
        loaded_before: index of the first bucket of the object's own; what is before it was loaded from elsewhere.
    """

    step: int
    length: int
    last: int = 0
    values: tuple[int, ...] = ()
    count: int = 0
    loaded_before: int = 0

    @property
    def loaded(self) -> int:
        """Number of the buckets at the front that were loaded from elsewhere."""
        return min(max(self.loaded_before - (self.last - len(self.values) + 1), 0), len(self.values))

    def own(self) -> Ring:
        """From the first sample that was not loaded from elsewhere."""
        values = self.values[self.loaded :]
        while values and values[0] == NOTHING:
            values = values[1:]
        if not values:
            return Ring(self.step, self.length)
        return replace(self, values=values, loaded_before=0)

    def add(self, at: float, demand: float) -> Ring:
        """With one more sample; one from before the newest bucket is too late to matter, and is dropped.

        Args:
            at: seconds.
            demand: replicas; NaN or infinite is not a sample, nor is one from before 1970.
        """
        if not np.isfinite(demand) or demand < 0 or at < 0:
            return self
        bucket, value = int(at // self.step), round(demand * 1000)
        if not self.values:
            return replace(self, last=bucket, values=(value,), count=1)
        if bucket < self.last:
            return self
        if bucket == self.last:
            mean = round((self.values[-1] * self.count + value) / (self.count + 1))
            return replace(self, values=(*self.values[:-1], mean), count=self.count + 1)
        gap = (NOTHING,) * min(bucket - self.last - 1, self.length)
        return replace(self, last=bucket, values=(*self.values, *gap, value)[-self.length :], count=1)

    def with_earlier(self, points: Sequence[tuple[float, float]]) -> Ring:
        """With samples from before the first own bucket: time in seconds and demand, the oldest first.

        They replace what was loaded before. Points within or after the own buckets are dropped. As in `add`, so are
        values that are not demand.
        """
        own, earlier = self.own(), Ring(self.step, self.length)
        first = own.last - len(own.values) + 1
        for at, demand in points:
            if not own.values or int(at // self.step) < first:
                earlier = earlier.add(at, demand)
        if not earlier.values:
            return own
        if not own.values:
            return replace(earlier, loaded_before=earlier.last + 1)
        gap = (NOTHING,) * min(first - earlier.last - 1, self.length)
        return replace(own, values=(*earlier.values, *gap, *own.values)[-self.length :], loaded_before=first)

    def not_after(self, at: float) -> Ring:
        """Without buckets that begin after ``at``: they are of a clock that has since been set back.

        Else every sample would come too late to matter until the clock is there again.
        """
        values = self.values[: max(len(self.values) + min(int(at // self.step) - self.last, 0), 0)]
        if len(values) == len(self.values):
            return self
        while values and values[-1] == NOTHING:
            values = values[:-1]
        first = self.last - len(self.values) + 1
        return replace(self, last=max(first + len(values) - 1, 0), values=values, count=1)

    def until(self, at: float, width: int) -> Floats:
        """``width`` buckets of which the last holds ``at``, in replicas; NaN where there is nothing."""
        found = np.full(width, np.nan)
        behind = int(at // self.step) - self.last
        kept = np.array(self.values[-width:], dtype=float)
        kept[kept == NOTHING] = np.nan
        if behind < 0:  # a clock that went back: what it calls the future is not known
            kept, behind = kept[:behind], 0
        end = width - behind
        kept = kept[max(0, len(kept) - end) :] if end > 0 else kept[:0]
        if len(kept):
            found[end - len(kept) : end] = kept / 1000.0
        return found

    def highest(self) -> float:
        """The highest value, in replicas; 0 for an empty ring."""
        return max((v for v in self.values if v != NOTHING), default=0) / 1000.0


def as_matrix(rings: Sequence[Ring], at: float, width: int) -> Floats:
    """Rings of one step side by side, one a row."""
    return np.stack([ring.until(at, width) for ring in rings]) if rings else np.empty((0, width))


def coarse_ring(history_seconds: float) -> Ring:
    """An empty ring for that much history."""
    step = season_step(history_seconds)
    return Ring(step, max(int(history_seconds // step), 1))


def weekly_ring(history_seconds: float) -> Ring | None:
    """An empty ring for two weeks, where the coarse one is shorter; None where it is not."""
    return None if history_seconds >= _WEEKLY_STEP * _WEEKLY_LENGTH else Ring(_WEEKLY_STEP, _WEEKLY_LENGTH)


def season_step(history_seconds: float, *, max_buckets: int = 1024, min_seconds: int = 300) -> int:
    """Seconds of a bucket so that a history of that length needs at most ``max_buckets`` of them; whole minutes."""
    minutes = -(-history_seconds // (60 * max_buckets))
    return max(int(minutes) * 60, min_seconds)
