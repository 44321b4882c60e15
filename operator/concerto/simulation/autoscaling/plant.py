"""The service that the autoscaling experiments scale: a load balancer over pods that take time to start.

Many replicates (seeds) run at once, each a row. Requests arrive as a Poisson process, go to a ready pod at random (as
kube-proxy's rules do) and wait there in one queue, first come first served; each needs an exponential amount of CPU.
So a settled pod is an M/M/1 queue whose 95th percentile of latency is 1/(1 - utilisation) times the unloaded one, which
crosses 3 at a utilisation of two thirds. Waiting times are exact (Lindley's recursion), not approximated per tick.

With one seed the requests are the same whatever is decided, and a replicate for which two policies decide the same has
the same latencies with both. So differences between policies come from what they decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.pods import Gone

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PlantSettings:
    """The modelled service.

    Attributes:
        startup_seconds: creation to Ready.
        startup_spread: standard deviation of that, as a share of it.
        pod_cores: a pod's CPU request and limit (0.1, as in McNaughton, 5.5.1).
        cpu_seconds_per_request: mean CPU a request needs.
        timeout_seconds: a request that would wait longer is turned away and counts as having taken this long.
        max_pods: room for pods, those being started included.
        metrics_window_seconds: a CPU reading is the mean over this long ...
        metrics_age_seconds: ... and is seen this long after.
        tick_seconds: pods appear and vanish on this grid.
    """

    startup_seconds: float = 135.0
    startup_spread: float = 0.05
    pod_cores: float = 0.1
    cpu_seconds_per_request: float = 0.025
    timeout_seconds: float = 10.0
    max_pods: int = 96
    metrics_window_seconds: float = 15.0
    metrics_age_seconds: float = 10.0
    tick_seconds: float = 5.0

    @property
    def service_seconds(self) -> float:
        """Mean latency of a request that finds its pod idle."""
        return self.cpu_seconds_per_request / self.pod_cores

    @property
    def unloaded_p95_seconds(self) -> float:
        """95th percentile of the same (exponential)."""
        return -math.log(0.05) * self.service_seconds


class Plant:
    """Replicates of one service; pods are columns that are used again."""

    def __init__(self, settings: PlantSettings, replicas: NDArray[np.int64], rng: np.random.Generator) -> None:
        shape = (len(replicas), settings.max_pods)
        self.settings, self.now = settings, 0.0
        self._rng, self._starts = rng, rng.spawn(len(replicas))
        self.alive = np.zeros(shape, dtype=bool)
        self.created: Floats = np.zeros(shape)
        self.ready_at: Floats = np.full(shape, np.inf)
        self.free_at: Floats = np.zeros(shape)
        """When a pod will have worked off what it has accepted."""
        ticks = (
            int(np.ceil((settings.metrics_window_seconds + settings.metrics_age_seconds) / settings.tick_seconds)) + 1
        )
        self._busy: Floats = np.full((ticks, *shape), np.nan)
        """CPU-seconds of each pod in each of the last ticks, the newest first; NaN before the pod existed."""
        self.gone: list[list[Gone]] = [[] for _ in replicas]
        """Pods of each replicate that took load until they were deleted, for as long as readings can be of then."""
        self._remembered_seconds = ticks * settings.tick_seconds
        self.alive[:] = np.arange(settings.max_pods) < replicas[:, None]
        self.created[self.alive] = self.ready_at[self.alive] = -3600.0

    @property
    def ready(self) -> NDArray[np.bool_]:
        """Which pods take requests."""
        return self.alive & (self.ready_at <= self.now)

    def replicas(self) -> NDArray[np.int64]:
        """Pods that exist, of each replicate."""
        return np.asarray(self.alive.sum(axis=1), dtype=np.int64)

    def scale(self, row: int, replicas: int) -> None:
        """Create pods, or delete some: those not ready first, then the youngest, as a ReplicaSet does."""
        have = np.flatnonzero(self.alive[row])
        if replicas > len(have):
            free = np.flatnonzero(~self.alive[row])[: replicas - len(have)]
            self.alive[row, free] = True
            self.created[row, free] = self.now
            spread = self._starts[row].normal(1.0, self.settings.startup_spread, len(free))
            self.ready_at[row, free] = self.now + self.settings.startup_seconds * np.clip(spread, 0.5, 2.0)
            self.free_at[row, free] = 0.0
            self._busy[:, row, free] = np.nan
        elif replicas < len(have):
            order = np.lexsort((-self.created[row, have], self.ready_at[row, have] <= self.now))
            gone = have[order[: len(have) - replicas]]
            had = self.ready_at[row, gone]
            self.gone[row] = [g for g in self.gone[row] if g.until > self.now - self._remembered_seconds]
            self.gone[row] += [Gone(float(since), self.now) for since in had if since <= self.now]
            self.alive[row, gone] = False
            self.ready_at[row, gone] = np.inf

    def tick(self, rates: Floats) -> tuple[Floats, Floats, Floats]:
        """Let one tick pass.

        Args:
            rates: requests per second, of the whole service, one per replicate.

        Returns:
            Latencies (replicates x requests, padded with NaN), useful CPU-seconds and existing pods of each replicate.
        """
        s, dt = self.settings, self.settings.tick_seconds
        number = self._rng.poisson(rates * dt)[:, None]
        shape, each, end = (len(number), int(number.max(initial=0))), np.arange(len(number)), self.now + dt
        exists = np.arange(shape[1]) < number
        at = self.now + np.sort(np.where(exists, self._rng.random(shape) * dt, dt), axis=1)
        service, choice = self._rng.exponential(s.service_seconds, shape), self._rng.random(shape)
        ready = self.ready
        count = ready.sum(axis=1)[:, None]
        pods = np.take_along_axis(np.argsort(~ready, axis=1, kind="stable"), (choice * count).astype(int), axis=1)
        given, latency = exists & (count > 0), np.full((shape[0], max(shape[1], 1)), np.nan)
        free = np.maximum(self.free_at, self.now)
        busy = np.minimum(free, end) - self.now
        for i in range(shape[1]):
            queue = each, pods[:, i]
            begin = np.maximum(free[queue], at[:, i])
            wait = begin - at[:, i]
            taken = given[:, i] & (wait <= s.timeout_seconds)
            done = begin + service[:, i]
            latency[:, i] = np.where(taken, wait + service[:, i], s.timeout_seconds)
            busy[queue] += np.where(taken, np.minimum(done, end) - np.minimum(begin, end), 0.0)
            free[queue] = np.where(taken, done, free[queue])
        latency[:, : shape[1]][~given] = np.nan
        self.free_at = free
        useful = np.where(ready, busy * s.pod_cores, 0.0)
        starting = self.alive & ~ready
        self._busy[1:] = self._busy[:-1].copy()
        self._busy[0] = np.where(ready, useful, np.where(starting, s.pod_cores * dt, np.nan))
        self.now += dt
        return latency, useful.sum(axis=1), self.alive.sum(axis=1).astype(float)

    def cpu_readings(self) -> Floats:
        """Mean cores of each pod over the metrics window, as the metrics API shows them now; NaN where it has none."""
        s = self.settings
        skip, take = (round(x / s.tick_seconds) for x in (s.metrics_age_seconds, s.metrics_window_seconds))
        seen = np.where(self.alive, self._busy[skip : skip + take], np.nan)
        return np.asarray(seen.sum(axis=0) / s.metrics_window_seconds, dtype=float)
