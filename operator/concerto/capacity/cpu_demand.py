"""How many tasks want a CPU, from what the kernel reports, and what the node's own work for its pods takes. Pure.

The law needs D, the tasks that run or wait for a CPU, per CPU. PSI knows it up to 2 only: with R tasks on C CPUs,
``some`` is clip((R - C)/C, 0, 1). Beyond, an overloaded node could not distinguish 3 tasks per CPU from 10, and would
allow more pods the more it runs. The number of running and waiting tasks has no such limit, nor has the time that each
pod's tasks wait.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

DemandSource = Literal["RunnableTasks", "PodPressure", "Pressure", "Utilisation"]
DEMAND_SOURCES: tuple[DemandSource, ...] = ("RunnableTasks", "PodPressure", "Pressure", "Utilisation")
"""How D was measured, best first. RunnableTasks: procs_running of /proc/stat. PodPressure: utilisation and each pod's
own cpu.pressure. Pressure: the node's cpu.pressure, up to 2. Utilisation: the kernel reports no pressure."""
_RUNNABLE, _POD_PRESSURE, _PRESSURE, _UTILISATION = range(4)

MAX_RUNNABLE = 1000.0
"""Tasks per CPU that are believed; more are a fault of the reading."""
START_SECONDS = 5.0
"""Seconds after a pod's start or end in which kubelet and the container runtime may still work for it."""
_FULLY_USED = 0.95
"""CPU utilisation from which a node without pressure readings has to be taken for overloaded."""
_QUIET_SECONDS = 1.0
_MEMORY = 30
"""Seconds over which the least CPU use outside of pods is what the node takes for itself."""
_SMOOTHING_SECONDS = 5.0
_RECENT_SECONDS = 10.0
"""Of `RecentMean`: about a pod's life, so that starts and ends in between do not pass for a change."""
_MAX_GAP_SECONDS = 5.0
"""Time between two batches at most for which CPU time is added up: of a longer gap nothing is known."""


def from_pressure(y: Floats, utilisation: Floats) -> tuple[Floats, Floats, Bools]:
    """D up to 2, utilisation, and whether the kernel reports pressure, from the cpu entry of y.

    Both formulas of y make 2y the mean of clip(R/C, 0, 2), and discount pressure on a CPU that idles, as tasks held
    back by their own quota make it. Where y is the utilisation itself, the kernel reports no pressure: from 95 % of
    utilisation on the worst is believed.

    Args:
        y: (N, b) cpu entries; NaN where not measured.
        utilisation: (N, b) CPU utilisation; NaN where it is not known apart from y.
    """
    demand = 2.0 * y
    used = np.where(np.isnan(utilisation), np.minimum(demand, 1.0), utilisation)
    no_pressure = np.abs(y - used) < 1e-9
    demand = np.where(no_pressure, np.where(used >= _FULLY_USED, 2.0, used), demand)
    pressure = ~no_pressure & ~np.isnan(y)
    return demand, np.where(np.isnan(y), np.nan, used), pressure


def best(demand: Floats, used: Floats, runnable: Floats, waiting: Floats, tells_pressure: Bools) -> tuple[Floats, Ints]:
    """D by the best reading that there is, (N, b), and its source, (N,).

    Args:
        demand: (N, b) D up to 2; NaN where not measured.
        used: (N, b) CPU utilisation.
        runnable: (N, b) tasks that run or wait, per CPU, of the whole machine; NaN where unknown.
        waiting: (N,) tasks of pods that wait, per CPU; NaN where unknown. Those that wait for their own quota on a CPU
            that idles are discounted as they are in y.
        tells_pressure: (N,) whether the node's own pressure is known.
    """
    counts_tasks = np.any(~np.isnan(runnable), axis=1)
    by_pods = np.where(np.isnan(waiting), 0.0, waiting)[:, None]
    best_known = np.where(np.isnan(waiting)[:, None], demand, np.maximum(demand, used * (1.0 + by_pods)))
    best_known = np.where(counts_tasks[:, None] & ~np.isnan(runnable), runnable, best_known)
    source = np.where(tells_pressure, _PRESSURE, _UTILISATION)
    source = np.where(~np.isnan(waiting), _POD_PRESSURE, source)
    source = np.where(counts_tasks, _RUNNABLE, source)
    return np.where(np.isnan(demand), np.nan, best_known), source


class SystemCpu:
    """The CPU time that N nodes take for themselves, estimated from what they take for their pods' starts and ends.

    kubelet, the container runtime and runc take a large part of a small node's CPUs while pods start and end. That is a
    cost of the pods. What the node takes for itself is the least of the last 30 seconds; while pods come or go, what is
    above it counts as theirs.

    Attributes:
        own: (N,) what pods can't have of the nodes' CPUs, fraction of them, smoothed over some seconds: what the nodes
            take for themselves, and what is outside of them. NaN while unknown.
        for_pods: (N,) CPU time taken for pods' starts and ends so far, fraction of the node times seconds.
    """

    def __init__(self, n_nodes: int) -> None:
        """Nothing is known before the first `share`."""
        self._least = _Least(n_nodes)
        self._least_of_node = _Least(n_nodes)
        self._at: float | None = None
        self.own: Floats = np.full(n_nodes, np.nan)
        self.for_pods: Floats = np.zeros(n_nodes)

    def share(
        self, others: Floats, work: Floats, measured: Bools, changing: Bools, now: float, stolen: Floats | None = None
    ) -> Floats:
        """(N,) the share of the CPU time that the nodes take for themselves.

        Args:
            others: (N,) share of the CPU time outside of pods.
            work: (N,) CPU utilisation.
            measured: (N,) whether the batch has measured it.
            changing: (N,) whether pods have come or gone of late.
            now: monotonic seconds.
            stolen: (N,) the part of ``work`` that is outside of the nodes altogether; None: nothing is.
        """
        taken = others * work
        least = self._least.update(np.where(measured, taken, np.nan), now)
        own = np.where(np.isnan(least), 1.0, np.minimum(least / np.maximum(work, 1e-9), 1.0))
        self._add(taken, np.zeros_like(taken) if stolen is None else stolen, measured, changing, now)
        return np.where(changing, np.minimum(others, own), others)

    def _add(self, taken: Floats, stolen: Floats, measured: Bools, changing: Bools, now: float) -> None:
        """Add up what the nodes themselves have done for pods: what is outside of the nodes starts no pods."""
        of_node = np.maximum(taken - stolen, 0.0)
        least = self._least_of_node.update(np.where(measured, of_node, np.nan), now)
        own = np.where(changing & ~np.isnan(least), np.minimum(of_node, least), of_node)
        elapsed = 0.0 if self._at is None else min(max(0.0, now - self._at), _MAX_GAP_SECONDS)
        self._at = now
        self.for_pods += np.where(measured, (of_node - own) * elapsed, 0.0)
        known = ~np.isnan(self.own)
        gain = np.where(known, min(1.0, elapsed / _SMOOTHING_SECONDS), 1.0)
        before = np.where(known, self.own, 0.0)
        np.copyto(self.own, before + gain * (own + np.minimum(stolen, taken) - before), where=measured)


class RecentMean:
    """What was measured on N nodes, averaged over some ten seconds.

    Attributes:
        mean: (N,) NaN while unknown.
    """

    def __init__(self, n_nodes: int) -> None:
        """Nothing is known yet."""
        self.mean: Floats = np.full(n_nodes, np.nan)

    def add(self, values: Floats, elapsed: float) -> None:
        """Take the values of the last ``elapsed`` seconds, (N,). Where one is unknown, NaN, so is the mean."""
        gain = np.where(np.isnan(self.mean), 1.0, min(1.0, elapsed / _RECENT_SECONDS))
        self.mean = np.where(np.isnan(self.mean), 0.0, self.mean) * (1.0 - gain) + gain * values


def mean_of_known(values: Floats) -> Floats:
    """(N,) of (N, b) values; NaN is no value, and their mean where there is no other."""
    known = ~np.isnan(values)
    mean: Floats = np.where(known, values, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known.any(axis=1), mean, np.nan)


class _Least:
    """The least of N numbers over the last half minute."""

    def __init__(self, n_nodes: int) -> None:
        self._by_second: Floats = np.full((_MEMORY, n_nodes), np.nan)
        self._second = 0
        self._at: float | None = None

    def update(self, numbers: Floats, now: float) -> Floats:
        """(N,) the least, with these numbers; NaN is no number."""
        if self._at is None or now - self._at >= _QUIET_SECONDS:
            self._at = now
            self._second = (self._second + 1) % _MEMORY
            self._by_second[self._second] = numbers
        else:
            self._by_second[self._second] = np.fmin(self._by_second[self._second], numbers)
        least: Floats = np.fmin.reduce(self._by_second, axis=0)
        return least
