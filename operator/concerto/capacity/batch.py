"""The samples of one batch, for N nodes at once: collected at 10 Hz, then handed over as one `Batch`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.capacity.pod_ages import PodAges

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """One sample of N nodes: rows of `Batch`, and ``runnable`` NaN where it is unknown."""

    raw: Floats
    smoothed: Floats
    ok: Bools
    cpu_used: Floats
    runnable: Floats


@dataclass(frozen=True)
class Batch:
    """b samples of N nodes and m resources. The arrays are views of the buffer, valid until it takes a new sample.

    Attributes:
        raw: (N, b, m) y; the smoothed value where y is not valid.
        smoothed: (N, b, m) smoothed y; 0 for a resource that was never measured.
        ok: (N, b, m) whether y is valid.
        measured: (N, b) whether any resource is valid.
        quiet: (N, b) whether the sample lies outside of churn windows.
        pods: (N, b) pods counted, n.
        younger: (b, K, N) pods younger than each of the K settle ages.
        cpu_used: (N, b) CPU utilisation; NaN where it is not known apart from y.
        runnable: (N, b) tasks that run or wait for a CPU, per CPU; NaN where nobody counts them.
        non_pod: (N, m) mean usage outside of pods; NaN where it is unknown.
        stolen: (N,) mean CPU utilisation by what is outside of the nodes.
    """

    raw: Floats
    smoothed: Floats
    ok: Bools
    measured: Bools
    quiet: Bools
    pods: Floats
    younger: Floats
    cpu_used: Floats
    runnable: Floats
    non_pod: Floats
    stolen: Floats

    @property
    def fresh(self) -> Bools:
        """(N,) whether the batch holds a valid sample of the node."""
        return np.any(self.measured, axis=1)  # type: ignore[no-any-return]

    @property
    def quiet_at_end(self) -> Bools:
        """(N,) whether the last sample lies outside of churn windows."""
        return self.quiet[:, -1]


class BatchBuffer:
    """Room for the samples of one batch; samples beyond a full batch overwrite its last one."""

    def __init__(self, n_nodes: int, n_resources: int, n_ages: int, samples: int) -> None:
        n, m = n_nodes, n_resources
        self._filled = 0
        # Batch first in memory: numpy sums over the batch ten times as fast that way.
        self._raw: Floats = np.zeros((samples, n, m))
        self._smoothed: Floats = np.zeros((samples, n, m))
        self._ok: Bools = np.zeros((samples, n, m), dtype=bool)
        self._quiet: Bools = np.zeros((samples, n), dtype=bool)
        self._pods: Floats = np.zeros((samples, n))
        self._cpu_used: Floats = np.full((samples, n), np.nan)
        self._runnable: Floats = np.full((samples, n), np.nan)
        self._younger: Floats = np.zeros((samples, n_ages, n))
        self._non_pod: Floats = np.zeros((n, m))
        self._non_pod_count: Floats = np.zeros((n, m))
        self._stolen: Floats = np.zeros(n)

    @property
    def missing(self) -> int:
        """Samples until the batch is full."""
        return len(self._ok) - self._filled

    def add(self, y: Sample, quiet: Bools, ages: PodAges) -> bool:
        """Take one sample of every node.

        Args:
            y: what was measured.
            quiet: (N,) whether the sample lies outside of churn windows.
            ages: the pods counted, by age.

        Returns:
            Whether the batch is full.
        """
        at = min(self._filled, len(self._ok) - 1)
        self._raw[at] = y.raw
        self._smoothed[at] = y.smoothed
        self._ok[at] = y.ok
        self._quiet[at] = quiet
        self._pods[at] = ages.pods
        self._younger[at] = ages.younger
        self._cpu_used[at] = y.cpu_used
        self._runnable[at] = y.runnable
        self._filled = at + 1
        return self._filled == len(self._ok)

    def add_non_pod(self, non_pod: Floats, ok: Bools) -> None:
        """Take the usage outside of pods, (N, m), that belongs to the last sample."""
        with np.errstate(invalid="ignore"):
            known = ok & (non_pod >= 0.0) & (non_pod <= 1.0)
        np.add(self._non_pod, non_pod, out=self._non_pod, where=known)
        self._non_pod_count += known

    def add_stolen(self, stolen: Floats) -> None:
        """Take the CPU utilisation by what is outside of the nodes, (N,), that belongs to the last sample."""
        with np.errstate(invalid="ignore"):
            self._stolen += np.where((stolen >= 0.0) & (stolen <= 1.0), stolen, 0.0)

    def take(self, ages: PodAges) -> Batch:
        """The batch so far. Without any sample it is one sample in which nothing is valid."""
        if self._filled == 0:
            self._filled = 1
            self._ok[0] = False
            self._quiet[0] = False
            self._runnable[0] = np.nan
            self._pods[0] = ages.pods
            self._younger[0] = ages.younger
        filled = self._filled
        ok = self._ok[:filled].swapaxes(0, 1)
        smoothed = or_zero(self._smoothed[:filled]).swapaxes(0, 1)
        non_pod = np.full_like(self._non_pod, np.nan)
        np.divide(self._non_pod, self._non_pod_count, out=non_pod, where=self._non_pod_count > 0)
        return Batch(
            raw=np.where(ok, self._raw[:filled].swapaxes(0, 1), smoothed),
            smoothed=smoothed,
            ok=ok,
            measured=np.any(ok, axis=2),
            quiet=self._quiet[:filled].T,
            pods=self._pods[:filled].T,
            younger=self._younger[:filled],
            cpu_used=self._cpu_used[:filled].T,
            runnable=self._runnable[:filled].T,
            non_pod=non_pod,
            stolen=self._stolen / filled,
        )

    def clear(self) -> None:
        """Begin a new batch."""
        self._filled = 0
        self._non_pod[:] = 0.0
        self._stolen[:] = 0.0
        self._non_pod_count[:] = 0.0


def or_zero(values: Floats) -> Floats:
    """The values, 0 where they are NaN (numpy's nan_to_num takes five times as long on a single node)."""
    return np.where(np.isnan(values), 0.0, values)
