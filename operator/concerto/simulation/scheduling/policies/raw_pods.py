"""Pods of a scenario as the API server would hold them, and what an earlier run would have taught of them."""

from __future__ import annotations

from typing import Any

from concerto.api.pod_kind import Kind, kind_of_pod
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, Table
from concerto.simulation.scheduling.setup import Setup
from concerto.simulation.scheduling.workloads import JobSpec

SCHEDULER_NAME = "concerto"
_EARLIER_PODS = 10


def kind_of_job(job: JobSpec) -> Kind:
    """The kind of the job's pods."""
    return kind_of_pod(raw_pod(job))


def earlier_run(setup: Setup) -> Table:
    """What the cluster would know of the jobs' pods had each run before, on nodes that had nothing else to do."""
    known = NodeKinds()
    plant = setup.plant
    for job in setup.jobs:
        load = job.load
        # A pod that runs on for ever has started once, long ago
        around, started = (0.0, 0.0) if job.endless else (plant.runtime_seconds, plant.runtime_core_seconds)
        pod = PodMeasurement(
            work=load.core_seconds,
            held=load.held_seconds(around),
            life=load.life_seconds(around),
            memory=load.memory_bytes,
            ended=True,
            started=started,
            peak_work=load.core_seconds * load.peak,
        )
        for _ in range(_EARLIER_PODS):
            known.pod_ended(kind_of_job(job), pod, 0.0)
    return known.table((), 0.0)


def in_one_column(table: Table, cores_per_byte: float) -> Table:
    """The table with kinds whose pods take CPU as if it were the part of a node that they take of any resource.

    Args:
        table: what is known of kinds whose pods have ended.
        cores_per_byte: cores that stand for a byte of memory.
    """

    def in_one(sums: KindSums) -> KindSums:
        by_memory = sums.memory / sums.ended * cores_per_byte * sums.held if sums.ended else 0.0
        return sums._replace(started=max(sums.started, by_memory - sums.work))

    return {key: in_one(sums) for key, sums in table.items()}


def raw_pod(job: JobSpec) -> dict[str, Any]:
    """A pod of the job as the API server would hold it."""
    workload = "StatefulSet" if job.endless else "Job"
    requests = {}
    if job.cpu_request_millicores:
        requests["cpu"] = f"{job.cpu_request_millicores}m"
    if job.memory_request_bytes:
        requests["memory"] = str(int(job.memory_request_bytes))
    return {
        "metadata": {
            "namespace": "default",
            "name": job.name,
            "uid": job.name,
            "labels": {"job": job.name},
            "ownerReferences": [{"kind": workload, "name": job.workload or job.name, "controller": True}],
        },
        "spec": {
            "restartPolicy": "Always" if job.endless else "Never",
            "schedulerName": SCHEDULER_NAME,
            "priority": job.priority,
            "containers": [{"name": "main", "image": job.name, "resources": {"requests": requests}}],
        },
        "status": {"phase": "Pending"},
    }


def raw_ended_pod(job: JobSpec, *, deleting: bool) -> dict[str, Any]:
    """The same once its container has ended, and its kubelet has still to take it down.

    Args:
        job: the job.
        deleting: whether its deletion was requested; else it has ended by itself.
    """
    raw = raw_pod(job)
    if deleting:
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    raw["spec"]["nodeName"] = "node"
    end = {"terminated": {"exitCode": 143 if deleting else 0}}
    raw["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": end}]}
    return raw
