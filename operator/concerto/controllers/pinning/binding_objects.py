"""PodCPUBindings that the operator creates: what they hold, and how one is recognised again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.api.conditions import find_condition
from concerto.api.cpulist import parse_cpu_list
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Pin
from concerto.kube import Object
from concerto.kube.references import build_owner_reference
from concerto.kube.resources import POD_CPU_BINDINGS, PODS
from concerto.pinning.classification import LABEL
from concerto.pinning.containers import own_cpus

MANAGED_BY = ("app.kubernetes.io/managed-by", "concerto-operator")
"""Label of the bindings that the operator created, and may delete."""
RECORD_ANNOTATION = "concerto.dev/placement-record"
"""The placement record (a PodReservation) with the assignment that a binding was created for."""
SIZE_ANNOTATION = "concerto.dev/sized-for"
"""The number of threads and the containers that the CPUs of a binding were chosen for: see `size_of`."""


def build_pod_cpu_binding(pod: PodView, assignment: Assignment, record: str) -> Object:
    """The PodCPUBinding of a pinned pod; the pod owns it, so that it goes with the pod."""
    pin = pin_of(assignment)
    containers = containers_of(pod)
    return {
        "apiVersion": POD_CPU_BINDINGS.api_version,
        "kind": POD_CPU_BINDINGS.kind,
        "metadata": {
            "namespace": pod.namespace,
            "name": pin.binding,
            "labels": dict([MANAGED_BY]) | {LABEL: pod.labels[LABEL]},
            "annotations": {RECORD_ANNOTATION: record, SIZE_ANNOTATION: size_of(pod)},
            "ownerReferences": [build_owner_reference(PODS, pod.name, pod.uid)],
        },
        "spec": {
            "podName": pod.name,
            "cpuSet": [{"cpuID": cpu} for cpu in sorted(parse_cpu_list(pin.cpus))],
            "exclusivenessLevel": pin.level,
        }
        | ({"containers": list(containers)} if containers else {}),
    }


def containers_of(pod: PodView) -> tuple[str, ...]:
    """Names of the containers that a pod's CPUs are for; empty: for the whole pod."""
    return () if pod.labels[LABEL] == "best-effort" else own_cpus(pod.shape).containers


def size_of(pod: PodView) -> str:
    """Value of `SIZE_ANNOTATION` for a pod with a workload type: its number of threads, and its containers."""
    threads = 1 if pod.labels[LABEL] == "best-effort" else own_cpus(pod.shape).threads
    return " ".join([str(threads), *containers_of(pod)])


def pin_of(assignment: Assignment) -> Pin:
    """The CPUs of an assignment that has some."""
    assert assignment.pin is not None, "only pinned pods are prepared"
    return assignment.pin


def owner_of(obj: Mapping[str, Any]) -> str | None:
    """UID of the pod that the operator created this binding for; None for bindings of others."""
    metadata = obj["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY[0]) != MANAGED_BY[1]:
        return None
    return next((str(o["uid"]) for o in metadata.get("ownerReferences") or () if o["kind"] == "Pod"), None)


def record_of(obj: Mapping[str, Any]) -> str:
    """Name of the placement record that a binding was created for; empty without one."""
    return str((obj["metadata"].get("annotations") or {}).get(RECORD_ANNOTATION, ""))


def is_validated_for(obj: Mapping[str, Any], assignment: Assignment) -> bool:
    """Whether the binding is validated with the node, pod and CPUs of the assignment: then its agent has to act."""
    status, metadata = obj.get("status") or {}, obj["metadata"]
    validated = find_condition(status.get("conditions"), "Validated") or {}
    return (
        validated.get("status") == "True"
        and status.get("observedGeneration") == metadata.get("generation")
        and (status.get("nodeName"), status.get("podUID")) == (assignment.node, assignment.uid)
        and status.get("cpus") == pin_of(assignment).cpus
    )
