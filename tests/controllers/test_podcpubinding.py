"""The operator's part of a PodCPUBinding's status fits the CRD and never claims that a pod is pinned."""

from __future__ import annotations

import pytest

from concerto.controllers.podcpubinding import build_binding_status
from concerto.pinning.validation import Verdict
from crd_schemas import problems

NOW = "2026-03-01T12:00:00Z"
OBJECT = {
    "apiVersion": "concerto.dev/v1alpha1",
    "kind": "PodCPUBinding",
    "metadata": {"name": "b", "namespace": "default", "uid": "u", "generation": 3, "creationTimestamp": NOW},
    "spec": {"podName": "p", "cpuSet": [{"cpuID": 0}], "exclusivenessLevel": "Core"},
}
VALID = Verdict("Validated", "Validated", "CPU binding is validated: ...", "n", "pod-uid", "0", "0")

# verdict, conditions
STATUSES = {
    "valid, and not applied": (
        VALID,
        {"Ready": "False", "Validated": "True", "Applied": "Unknown", "Reconciling": "False", "Stalled": "True"},
    ),
    "lost to another": (
        Verdict("CPUSetAllocationFailed", "Conflict", "Held.", "n", "pod-uid", loses_to=("default", "other")),
        {"Ready": "False", "Validated": "False", "Reconciling": "True", "Stalled": "False"},
    ),
    "without a pod": (
        Verdict("PodNotFound", "PodNotFound", "No pod."),
        {"Ready": "False", "Validated": "False", "Reconciling": "True", "Stalled": "False"},
    ),
    "of CPUs that are not there": (
        Verdict("InvalidCPUSet", "CPUsNotFound", "No CPUs.", "n", "pod-uid"),
        {"Ready": "False", "Validated": "False", "Reconciling": "False", "Stalled": "True"},
    ),
}


@pytest.mark.parametrize(("verdict", "conditions"), STATUSES.values(), ids=STATUSES)
def test_a_status_fits_the_crd_and_says_what_is_so(verdict, conditions):
    status = build_binding_status(OBJECT, verdict, NOW)
    assert problems(OBJECT | {"status": status}) == []
    assert {c["type"]: c["status"] for c in status["conditions"]} == conditions
    assert status["observedGeneration"] == 3
    assert ("conflictsWith" in status) == (verdict.loses_to is not None)


def test_a_status_that_is_built_again_is_the_same_and_keeps_its_times():
    first = build_binding_status(OBJECT, VALID, NOW)
    assert build_binding_status(OBJECT | {"status": first}, VALID, "2026-03-01T13:00:00Z") == first
