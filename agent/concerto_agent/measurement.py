"""The agent's state without its loop: sampler, census and pipeline of one node. Time is passed in; no API.

It goes on whatever happens to the API: what was learned lives here, and a publication is only a look at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.node_status import Problem
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.report import WARMUP_BATCHES, CapacityReport
from concerto.capacity.subspace import Subspace
from concerto.capacity.windows import WindowStatistics
from concerto_agent.metrics import Counters
from concerto_agent.node_files import NodeFiles
from concerto_agent.pod_census import Object, PodCensus
from concerto_agent.pod_costs import PodCosts
from concerto_agent.pod_reader import PodReading
from concerto_agent.pods_wanting import PodsWanting
from concerto_agent.sampler import Sample, Sampler

Floats = NDArray[np.float64]

_NODE = 0  # the one row of the pipeline
_NUMBERS = ("usage", "non_pod", "utilisation")  # of a reading, for each resource


@dataclass(frozen=True)
class Measured:
    """What one batch gave.

    Attributes:
        report: the pipeline's, of one node.
        windows: statistics by window, arrays (1, m).
        settings: the spec it was measured with.
        generation: that spec's generation; 0 if it is not from the API.
        pod_uids: the pods counted in n at that instant.
        problems: what was missing throughout the batch.
        at: monotonic time of the last valid sample, seconds; None if there was never one.
        wall: the same instant, seconds since the epoch.
        silent_seconds: time since the last valid sample, or since the start.
    """

    report: CapacityReport
    windows: dict[str, WindowStatistics]
    settings: CapacitySettings
    generation: int
    pod_uids: tuple[str, ...]
    problems: tuple[Problem, ...]
    at: float | None
    wall: float | None
    silent_seconds: float

    @property
    def fresh(self) -> bool:
        """Whether the batch holds a valid sample."""
        return bool(self.report.fresh[_NODE])


class Measurement:
    """One node, measured.

    Attributes:
        census: which pods count; it needs cgroups and pods reported to it.
        costs: what they cost, by kind.
        counters: what has happened.
        settings: the spec in use.
        generation: its generation.
        pods_changed: pods have come or gone since the last fold.
    """

    def __init__(self, where: NodeFiles, now: float, *, allocatable_pods: int = 110) -> None:
        """Measure with the spec's defaults until ``apply`` gives it.

        Args:
            where: the node's files.
            now: monotonic time, seconds.
            allocatable_pods: pods that the kubelet takes, until the Node has said it.
        """
        self.settings = CapacitySettings()
        self.generation = 0
        self.counters = Counters()
        self.pods_changed = False
        self.costs = PodCosts()
        self.census = PodCensus(self, max_pods=self.settings.max_pods)
        self._where = where
        self._allocatable_pods = allocatable_pods
        self._sampler = Sampler(where, self.settings)
        self._pipeline = self._new_pipeline()
        self._begun = now
        self._walls: list[float] = []  # of the samples that are not learned yet
        self._valid_at: float | None = None
        self._valid_wall: float | None = None
        self._problems: dict[tuple[str, str], tuple[Problem, int]] = {}  # with how many samples had it
        self._batch = 0  # samples in it by the present sampler
        self._folds = 0
        self._wanting = PodsWanting(self.costs.is_limited)
        self._waited: dict[str, float] = {}  # time that each pod's tasks have waited for a CPU, when last read
        self._pods_read_at: float | None = None
        self._tasks_per_cpu = 0.0  # that ran or waited for a CPU in the last batch
        self._cpus = 0  # of the node, when pods' CPU time was last read

    # Pods (PodListener)

    def pod_started(self, at: float) -> None:
        """See ``PodListener``."""
        self._learn_samples()
        self._pipeline.pod_started(_NODE, at)
        self.costs.start_cost.started_or_ended()
        self.counters.pods["started"] += 1
        self.pods_changed = True

    def pod_ended(self, uid: str, started_at: float, at: float) -> None:
        """See ``PodListener``."""
        self._learn_samples()
        self._pipeline.pod_ended(_NODE, started_at, at, uid)
        self.costs.start_cost.started_or_ended()
        self.costs.ended(uid, started_at, at)
        self.counters.pods["ended"] += 1
        self.pods_changed = True

    # What others decide

    def apply(self, settings: CapacitySettings, generation: int, now: float) -> None:
        """Measure as the spec says from now on; what was learned is kept unless the resources are others."""
        before, self.settings, self.generation = self.settings, settings, generation
        if settings == before:
            return
        self._learn_samples()
        self._sampler.close()
        self._sampler = Sampler(self._where, settings)
        self._problems.clear()
        self._batch = 0
        if settings.resources == before.resources:
            self._pipeline.apply(settings)
        else:
            self._pipeline = self._new_pipeline()
            for start in self.census.counted.values():
                self._pipeline.pod_started(_NODE, start)
        self.census.limit(settings.max_pods, now)

    def allow(self, pods: int) -> None:
        """The kubelet takes that many pods (Node ``status.allocatable.pods``)."""
        self._allocatable_pods = pods
        self._pipeline.allocatable_pods[:] = pods

    def _new_pipeline(self) -> NodePipeline:
        return NodePipeline(self.settings, 1, allocatable_pods=self._allocatable_pods)

    # Samples

    @property
    def warm(self) -> bool:
        """Whether enough batches were folded for the numbers to mean something."""
        return self._folds >= WARMUP_BATCHES

    def sample(self, now: float, wall: float, uncounted: Iterable[str] = ()) -> bool:
        """Take one sample. What it says is learned with the next `fold`, or before a pod starts or ends.

        Args:
            now: monotonic time, seconds.
            wall: the same instant, seconds since the epoch.
            uncounted: paths of the cgroups of the pods that do not count.

        Returns:
            Whether the batch is full: ``fold``.
        """
        self._sampler.take(now, uncounted)
        self._walls.append(wall)
        self.counters.samples += 1
        return self._sampler.taken >= self._pipeline.samples_missing

    def _learn_samples(self) -> None:
        """Give the pipeline the samples taken, in order."""
        walls, self._walls = self._walls, []
        samples = self._sampler.samples()
        if not samples:
            return
        # (samples, what of each reading, one node, resources)
        numbers = np.array(
            [
                [[[getattr(reading, what) for reading in sample.readings.values()]] for what in _NUMBERS]
                for sample in samples
            ]
        )
        for sample, wall, arrays in zip(samples, walls, numbers, strict=True):
            self._learn(sample, wall, arrays)

    def _learn(self, sample: Sample, wall: float, arrays: Floats) -> None:
        for problem in sample.problems:
            key = (problem.reason, problem.resource)
            self._problems[key] = (problem, self._problems.get(key, (problem, 0))[1] + 1)
        self._batch += 1
        usage, non_pod, utilisation = arrays
        if any(math.isfinite(reading.usage) for reading in sample.readings.values()):
            self._valid_at, self._valid_wall = sample.at, wall
        self._note_invalid(sample)
        self._pipeline.sample(
            sample.at,
            usage,
            non_pod=non_pod,
            utilisation=utilisation,
            runnable=np.array([cpu.runnable]) if (cpu := sample.readings.get("cpu")) else None,
            stolen=np.array([cpu.stolen]) if cpu else None,
        )

    def _note_invalid(self, sample: Sample) -> None:
        for name, reading in sample.readings.items():
            if reading.usage != reading.usage:  # NaN
                self.counters.invalid[name] += 1

    def pods_read(self, readings: Mapping[str, PodReading], now: float) -> None:
        """What counted pods have used since they began, by UID; before ``fold``.

        Args:
            readings: of those pods that can be read.
            now: monotonic time, seconds.
        """
        self.costs.read(readings, self._tasks_per_cpu)
        cpu_seconds = {uid: reading.cpu_seconds for uid, reading in readings.items()}
        elapsed = 0.0 if self._pods_read_at is None else now - self._pods_read_at
        waited = {u: r.waited_seconds for u, r in readings.items() if r.waited_seconds is not None}
        if elapsed > 0.0 and self._sampler.cpus and waited:
            grown = sum(max(0.0, s - self._waited[uid]) for uid, s in waited.items() if uid in self._waited)
            self._pipeline.pods_waited(_NODE, grown / elapsed / self._sampler.cpus)
        wanting = self._wanting.read(readings, self.census.counted, now)
        if self._sampler.cpus and wanting is not None:
            self._pipeline.pods_wanted(_NODE, wanting / self._sampler.cpus)
        self._waited, self._pods_read_at = waited, now
        before, self._cpus = self._cpus, self._sampler.cpus
        if cpus := self._cpus:
            # In fractions of another number of CPUs, what pods have had so far is not what they had before
            comparable = cpu_seconds if cpus == before else {}
            self._pipeline.pods_used(_NODE, {uid: seconds / cpus for uid, seconds in comparable.items()})

    def last_reading(self, uid: str, reading: PodReading) -> None:
        """What a pod whose containers have ended has used in all."""
        self.costs.read({uid: reading}, self._tasks_per_cpu)
        self._wanting.ended(uid, reading, self.census.counted.get(uid, self._begun))

    def pod_changed(self, old: Object | None, new: Object | None, now: float, wall: float) -> None:
        """The API server shows, or no longer shows, a pod (trimmed); see `PodCensus.on_pod_change`."""
        self.costs.on_pod(old, new, now, wall)
        self.census.on_pod_change(old, new, now, wall)

    def kinds(self, now: float) -> tuple[KindEntry, ...]:
        """What was measured of each kind of pods."""
        return self.costs.entries(self.census.counted, now)

    def fold(self, now: float, cluster: Subspace | None) -> Measured:
        """Learn from the batch so far, full or not, and say what the node can take.

        Args:
            now: monotonic time, seconds.
            cluster: the model merged from all nodes; None before the first one.
        """
        self._learn_samples()
        report = self._pipeline.fold(now, cluster and align(cluster, self.settings.resources))
        # A problem that some samples of a batch did not have has passed, or has just come and will be in the next
        problems = [problem for problem, times in self._problems.values() if times == self._batch]
        reported = {problem.resource for problem in problems}
        for i in np.flatnonzero(report.samples[_NODE] == 0):
            name = self.settings.resources[i]
            if self._batch and name not in reported:
                problems.append(Problem("Unreadable", f"{name} gave no valid sample in {self._batch}.", name))
        self._problems.clear()
        self._batch = 0
        self._folds = int(report.batches[_NODE])
        self._tasks_per_cpu = float(report.demand[_NODE])
        self.costs.start_cost.spent(float(report.cpu_for_pods[_NODE]) * self._sampler.cpus)
        self.pods_changed = False
        since = self._begun if self._valid_at is None else self._valid_at
        return Measured(
            report=report,
            windows=self._pipeline.windows(now),
            settings=self.settings,
            generation=self.generation,
            pod_uids=tuple(self.census.counted),
            problems=tuple(problems),
            at=self._valid_at,
            wall=self._valid_wall,
            silent_seconds=now - since,
        )

    def close(self) -> None:
        """Give back every descriptor."""
        self._sampler.close()


def align(cluster: Subspace, resources: tuple[str, ...]) -> Subspace | None:
    """The cluster's model with its rows in the order of ``resources``; None if it lacks one of them.

    Rows of other resources are left out. What is left need not be orthonormal any more; its second moment, which is
    all that a merge uses, is the right one.
    """
    if not set(resources) <= set(cluster.resources):
        return None
    rows = [cluster.resources.index(name) for name in resources]
    return Subspace(cluster.directions[rows], cluster.sigma, cluster.nodes, resources)
