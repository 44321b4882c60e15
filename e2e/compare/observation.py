"""What one run gave, read from the pods' objects alone: both schedulers are measured by the same clock. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from concerto.api.pod_end import TERMINAL
from concerto.api.timestamps import parse_timestamp

JOB_LABEL = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class PodTimes:
    """One pod that has succeeded, seconds since the epoch (kubelet writes whole ones).

    Attributes:
        node: where it ran.
        scheduled: when its condition PodScheduled became true.
        started: when its container started.
        ended: when its container ended.
    """

    node: str
    scheduled: float
    started: float
    ended: float


@dataclass(frozen=True)
class Stored:
    """Base of what is kept as JSON."""

    def to_raw(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """From what `to_raw` gave."""
        return cls(**raw)


@dataclass(frozen=True)
class Run(Stored):
    """One scheduler on one workload, once.

    Attributes:
        workload: its name.
        pods: how many there were.
        scheduler: ``concerto``, or the request of pods that kube-scheduler placed.
        round: 1, 2, ...
        job_seconds: from the creation of the Jobs to the end of the last container; None: not complete in time.
        pod_seconds: of each pod, from PodScheduled to the end of its container.
        max_on_node: containers that ran on one node at once, at most.
        core_seconds_per_pod: CPU time that the nodes' pods took, by their cgroups.
        other_cores: cores that everything but the pods used meanwhile: control plane, kubelets, agents, operator, and
            whatever else ran on the machine.
        wrong: what the independent recorder found in Concerto's placements.
        teardown_seconds: mean time from the report that a pod's container has ended to its terminal phase, as a watch
            shows both; None in runs that are older than this figure.
    """

    workload: str
    pods: int
    scheduler: str
    round: int
    job_seconds: float | None
    pod_seconds: Sequence[float]
    max_on_node: int
    core_seconds_per_pod: float
    other_cores: float
    wrong: Sequence[str] = field(default_factory=tuple)
    teardown_seconds: float | None = None

    @property
    def pod_mean(self) -> float:
        """Mean of the pods' times."""
        return statistics.fmean(self.pod_seconds) if self.pod_seconds else float("inf")

    @property
    def job(self) -> float:
        """The Job's time; infinite if it was not complete in time."""
        return float("inf") if self.job_seconds is None else self.job_seconds

    def __str__(self) -> str:
        if self.job_seconds is None:
            return f"not complete: {len(self.pod_seconds)} of {self.pods} pods succeeded"
        deviation = statistics.pstdev(self.pod_seconds)
        return (
            f"job {self.job_seconds:.1f} s, pods {self.pod_mean:.1f} ± {deviation:.1f} s "
            f"(max {max(self.pod_seconds):.0f}), at most {self.max_on_node} on a node; "
            f"{self.core_seconds_per_pod:.1f} core-seconds a pod, {self.other_cores:.1f} cores for everything else"
        )


def times_of(pods: Iterable[Mapping[str, Any]], jobs: Iterable[str]) -> list[PodTimes]:
    """Times of the pods of some Jobs that have succeeded."""
    names = set(jobs)
    return times_of_pods(p for p in pods if p["metadata"].get("labels", {}).get(JOB_LABEL) in names)


def times_of_pods(pods: Iterable[Mapping[str, Any]]) -> list[PodTimes]:
    """Times of those of the pods that have succeeded."""
    return [_times(pod) for pod in pods if pod["status"].get("phase") == "Succeeded"]


def _times(pod: Mapping[str, Any]) -> PodTimes:
    status = pod["status"]
    scheduled = next(c["lastTransitionTime"] for c in status["conditions"] if c["type"] == "PodScheduled")
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    at = [parse_timestamp(text) for text in (scheduled, terminated["startedAt"], terminated["finishedAt"])]
    return PodTimes(pod["spec"]["nodeName"], *at)


def max_on_node(pods: Iterable[PodTimes]) -> int:
    """Containers that ran on one node at once, at most. One that ends in the second in which another starts is gone."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for pod in pods:
        changes[pod.node] += [(pod.started, 1), (pod.ended, -1)]
    most = 0
    for of_node in changes.values():
        running = 0
        for _, change in sorted(of_node):  # ends come before starts of the same second
            running += change
            most = max(most, running)
    return most


def teardown_seconds(versions: Iterable[tuple[float, Mapping[str, Any]]], jobs: Iterable[str]) -> list[float]:
    """Of each pod of some Jobs, seconds from the report that its containers have ended to its terminal phase.

    Args:
        versions: of pods, in the order in which a watch showed them, and when each came, in seconds.
        jobs: names of the Jobs.
    """
    names, shown, found = set(jobs), dict[str, float](), dict[str, float]()
    for at, pod in versions:
        if pod["metadata"].get("labels", {}).get(JOB_LABEL) not in names:
            continue
        uid, status = pod["metadata"]["uid"], pod.get("status") or {}
        containers = status.get("containerStatuses") or ()
        if containers and all("terminated" in (each.get("state") or {}) for each in containers):
            shown.setdefault(uid, at)
        if status.get("phase") in TERMINAL and uid in shown:
            found.setdefault(uid, at - shown[uid])
    return [*found.values()]
