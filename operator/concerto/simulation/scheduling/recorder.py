"""An independent recorder: every figure comes from the stream of pod events, none from the code under test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_model import Change, Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.workloads import JobSpec, SimPod

Floats = NDArray[np.float64]


def distribution(values: Floats | list[float]) -> dict[str, float]:
    """Mean, std (population), min, p25, p50, p75, p99 and max of some numbers; empty for none."""
    array = np.asarray(values, dtype=float)
    if not array.size:
        return {}
    p25, p50, p75, p99 = np.percentile(array, [25, 50, 75, 99])
    figures = (array.mean(), array.std(), array.min(), p25, p50, p75, p99, array.max())
    return {k: round(float(v), 4) for k, v in zip(("mean", "std", "min", "p25", "p50", "p75", "p99", "max"), figures)}


_MAX_SHARES = 2.0
"""Natural shares of a node's pods, in parts of its CPUs, beyond which another pod is one too many."""
_UNEVEN = 1.15
"""What those of a dozen alike pods add up to at most, in parts of what is expected: a decision knows only means."""


@dataclass
class Recorder:
    """What happened in one run.

    Attributes:
        node_count: N.
        jobs: of the scenario.
        trace_times: seconds of the once-a-second trace below.
        trace_pods: running pods of each node at those times.
        trace_utilisation: CPU utilisation of the cluster in the second before.
        load_factors: of nodes with endless pods (servers): runnable threads per core, ten times a second.
    """

    node_count: int
    jobs: tuple[JobSpec, ...]
    created_at: dict[str, float] = field(default_factory=dict)
    bound_to: dict[str, int] = field(default_factory=dict)
    bound_at: dict[str, float] = field(default_factory=dict)
    started: dict[str, tuple[float, int]] = field(default_factory=dict)
    completed: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    trace_times: list[float] = field(default_factory=list)
    trace_pods: list[Floats] = field(default_factory=list)
    trace_utilisation: list[float] = field(default_factory=list)
    load_factors: list[float] = field(default_factory=list)
    double_binds: int = 0
    deletions: int = 0
    oom_kills: int = 0
    overcommits: int = 0
    decisions: int = 0

    def __post_init__(self) -> None:
        self._running = np.zeros(self.node_count)
        self._by_job: dict[str, Floats] = {job.name: np.zeros(self.node_count) for job in self.jobs}
        self._most_by_job: dict[str, float] = defaultdict(float)
        self._pod_seconds = 0.0
        self._most = 0.0
        self._since = 0.0
        self._busy: list[float] = []
        self._server_nodes: set[int] = set()
        self._begun_at = self._finished_at = 0.0
        self._busy_at_begin = self._utilisation = 0.0
        self._capacity: dict[int, tuple[float, frozenset[str]]] = {}
        self._cores: dict[int, float] = {}
        self._decided: dict[int, dict[str, SimPod]] = {}

    # -- events

    def begin(self, now: float, fleet: NodeFleet) -> None:
        """The scenario's time zero: averages count from here."""
        self._begun_at = self._since = now
        self.trace_times = [at - now for at in self.trace_times]  # what was before is below zero
        self._busy_at_begin = float(fleet.busy_core_seconds(now).sum())

    def created(self, pod: SimPod, now: float) -> None:
        """A pod object was made."""
        self.created_at[pod.uid] = now

    def status(self, node: int, capacity: float, observed: Iterable[str]) -> None:
        """A node's published capacity and the pods counted in it reached the scheduler that uses them."""
        self._capacity[node] = (capacity, frozenset(observed))

    def measured(self, node: int, cores: float) -> None:
        """The node's pods are placed by what they cost: what is decided for it is checked against its CPUs."""
        self._cores[node] = cores

    def decided(self, pod: SimPod, node: int, now: float) -> None:
        """A policy decided to bind a pod; what the node then has to do is computed again to check the decision."""
        self.decisions += 1
        self._decided.setdefault(node, {})[pod.uid] = pod
        if node in self._cores:
            self._decided[node] = live = {u: p for u, p in self._decided[node].items() if not self._ended(p)}
            wanted = sum(p.load.natural_share for p in live.values())
            if len(live) > 1 and wanted > _UNEVEN * _MAX_SHARES * self._cores[node] + pod.load.natural_share:
                self.overcommits += 1
        if node in self._capacity:
            capacity, observed = self._capacity[node]
            live = self._decided[node]
            in_flight = sum(
                1 for uid, p in live.items() if uid not in observed and uid != pod.uid and not self._ended(p)
            )
            credited = sum(1 for uid in observed if uid in live and self._ended(live[uid]))
            if capacity - in_flight + credited < 1 - 1e-9:
                self.overcommits += 1
            self._decided[node] = {u: p for u, p in live.items() if u in observed or not self._ended(p)}

    def undecided(self, pod: SimPod) -> None:
        """A decision was not carried out."""
        for live in self._decided.values():
            live.pop(pod.uid, None)

    @staticmethod
    def _ended(pod: SimPod) -> bool:
        return pod.ended or pod.phase in ("Succeeded", "Failed", "Deleted")

    def bound(self, pod: SimPod, node: int, now: float) -> None:
        """A binding took effect."""
        if pod.uid in self.bound_to:
            self.double_binds += 1
        self.bound_to[pod.uid] = node
        self.bound_at[pod.uid] = now

    def deleted(self, pod: SimPod, now: float) -> None:
        """A pod object was deleted before it completed."""
        self.deletions += 1
        if pod.uid in self.started and pod.uid not in self.completed:
            self.started.pop(pod.uid)

    def node_lost(self, node: int, now: float) -> None:
        """A node stopped with all that ran on it."""
        self._tick(now)
        self._running[node] = 0
        for counts in self._by_job.values():
            counts[node] = 0

    def transition(self, pod: SimPod, change: Transition) -> None:
        """Something happened to a pod on its node."""
        name = pod.job.name
        if change.change is Change.RUNNING:
            self._tick(change.at)
            if pod.uid in self.started:
                self.double_binds += 1
            self.started[pod.uid] = (change.at, change.node)
            if pod.job.endless:
                self._server_nodes.add(change.node)
                return
            self._running[change.node] += 1
            self._by_job[name][change.node] += 1
            self._most = max(self._most, float(self._running[change.node]))
            self._most_by_job[name] = max(self._most_by_job[name], float(self._by_job[name][change.node]))
        elif change.change is Change.EXITED:
            self._tick(change.at)
            if change.reason == "OOMKilled":
                self.oom_kills += 1
            if pod.uid not in self.started or pod.job.endless:
                return
            at, node = self.started[pod.uid]
            self._running[node] -= 1
            self._by_job[name][node] -= 1
            if change.reason == "Completed":
                self.completed[pod.uid] = (name, at, change.at)

    def sample(self, now: float, readings: Readings, fleet: NodeFleet) -> None:
        """Ten times a second: traces."""
        self._busy.append(float(readings.utilisation.mean()))
        if len(self._busy) == 10:  # a second
            self.trace_times.append(now - self._begun_at)
            self.trace_pods.append(self._running.copy())
            self.trace_utilisation.append(float(np.mean(self._busy)))
            self._busy.clear()
        self.load_factors.extend(fleet.load_factor(node) for node in self._server_nodes)

    def finish(self, now: float, fleet: NodeFleet) -> None:
        """The run is over."""
        self._tick(now)
        self._finished_at = now
        busy = float(fleet.busy_core_seconds(now).sum()) - self._busy_at_begin
        self._utilisation = busy / float(fleet.cores.sum()) / max(now - self._begun_at, 1e-9)

    def _tick(self, now: float) -> None:
        self._pod_seconds += float(self._running.sum()) * (now - self._since)
        self._since = now

    # -- figures

    def completion_seconds(self, job: str | None = None) -> Floats:
        """Running to exited of each completed pod (Carico, section 5.4), of one job or of all."""
        return np.array([end - start for name, start, end in self.completed.values() if job in (None, name)])

    def start_seconds(self, job: str) -> Floats:
        """Creation to running of each completed pod of the job."""
        of_job = [(uid, begin) for uid, (name, begin, _) in self.completed.items() if name == job]
        return np.array([begin - self.created_at[uid] for uid, begin in of_job])

    def placed_seconds(self) -> Floats:
        """Binding to exit of each completed pod, as a cluster's own objects show it."""
        return np.array([end - self.bound_at[uid] for uid, (_, _, end) in self.completed.items()])

    def turnaround_seconds(self) -> Floats:
        """Creation to exit of each completed pod; one that was made again counts from its last creation."""
        return np.array([end - self.created_at[uid] for uid, (_, _, end) in self.completed.items()])

    def lost_pods(self) -> int:
        """Pods that should have completed and neither did nor will, counted by their first name."""
        wanted = {f"{job.name}-{i}" for job in self.jobs if not job.endless for i in range(job.count)}
        return len(wanted - {uid.split("~", 1)[0] for uid in self.completed})

    def summary(self) -> dict[str, Any]:
        """All figures of the run, ready for JSON. Times in seconds; a job that never completed has jct_s null."""
        ends: dict[str, list[float]] = defaultdict(list)
        for name, _, end in self.completed.values():
            ends[name].append(end)
        per_job: dict[str, Any] = {}
        for job in self.jobs:
            if job.endless:
                continue
            done = len(ends[job.name]) >= job.count
            per_job[job.name] = {
                "jct_s": round(max(ends[job.name]) - self._begun_at - job.arrivals.start_seconds, 3) if done else None,
                "pct_s": distribution(self.completion_seconds(job.name)),
                "start_s": distribution(self.start_seconds(job.name)),
                "pods_per_node_max": self._most_by_job[job.name],
            }
        finite = [job for job in self.jobs if not job.endless]
        begin = min((job.arrivals.start_seconds for job in finite), default=0.0)
        complete = all(j["jct_s"] is not None for j in per_job.values())
        last = max((end for all_ends in ends.values() for end in all_ends), default=0.0)
        span = max(self._finished_at - self._begun_at, 1e-9)
        return {
            "jct_s": round(last - self._begun_at - begin, 3) if complete else None,
            "pct_s": distribution(self.completion_seconds()),
            "jobs": per_job,
            "utilisation": round(self._utilisation, 4),
            "pods_per_node": {"mean": round(self._pod_seconds / span / self.node_count, 3), "max": self._most},
            "oom_kills": self.oom_kills,
            "double_binds": self.double_binds,
            "lost_pods": self.lost_pods(),
            "overcommits": self.overcommits,
            "decisions": self.decisions,
        }
