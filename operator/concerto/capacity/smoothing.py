"""Dynamic exponential moving average (docs/references.md, "Smoothing").

A container that starts or ends makes a spike of some 200 ms. The average is slow, so a spike hardly moves it; once a
change has lasted for ``patience`` samples it is believed, and followed fast.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import SmoothingSettings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class DynamicEma:
    """Smoothed values of any number of independent series that are sampled together.

    Attributes:
        value: (N, m) smoothed values; NaN until a series had its first sample.
    """

    def __init__(self, shape: tuple[int, ...], settings: SmoothingSettings) -> None:
        """Series of the given shape, none of them seen yet."""
        self.settings = settings
        self.value: Floats = np.full(shape, np.nan)
        # Length of the run outside the band that the last sample ended, on either side.
        self._above: Floats = np.zeros(shape)
        self._below: Floats = np.zeros(shape)
        self._all_seen = False

    def update(self, y: Floats, ok: Bools | None = None) -> Floats:
        """Take one sample of every series, s += α (y - s); where ``ok`` is False nothing of the series changes.

        Args:
            y: (N, m) samples, finite where ``ok``.
            ok: (N, m); None means all.

        Returns:
            ``value``, which is updated in place.
        """
        cfg = self.settings
        if not self._all_seen:
            self._meet(y, ok)
        distance = y - self.value
        above = (self._above + 1.0) * (distance > cfg.delta)
        below = (self._below + 1.0) * (distance < -cfg.delta)
        # A run longer than the patience: this sample is one of "the next ones" after it.
        believed = np.maximum(above, below) > cfg.patience_samples
        distance *= np.where(believed, cfg.fast, cfg.slow)
        if ok is None:
            self._above, self._below = above, below
            self.value += distance
        else:
            np.copyto(self._above, above, where=ok)
            np.copyto(self._below, below, where=ok)
            np.add(self.value, distance, out=self.value, where=ok)
        return self.value

    def _meet(self, y: Floats, ok: Bools | None) -> None:
        """A series' first sample is its first value."""
        new = np.isnan(self.value)
        if ok is not None:
            new &= ok
        np.copyto(self.value, y, where=new)
        self._all_seen = not np.isnan(self.value).any()
