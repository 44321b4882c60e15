"""The reason Unschedulable has cluster autoscalers add nodes: only pods have it that a new node could help."""

import numpy as np
import pytest

from concerto.api.deviceclass import DeviceClass
from concerto.api.podreservation import Reservation
from concerto.api.selectors import LabelSelector
from concerto.scheduling.cycle import schedule
from concerto.scheduling.plugins.node_ready.filter import NodeReady
from concerto.scheduling.plugins.volume_binding import claims
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.volume_builders import claim, mounts, storage_class, store, volume

BOUND_TO_CPUS = {"labels": {"concerto.dev/workload-type": "cpu-bound"}, "requests": {"cpu": "1"}}
CASES = {
    "a node has too little CPU": ({"requests": {"cpu": "100"}}, "Unschedulable"),
    "labels of nodes do not match": ({"nodeSelector": {"disk": "ssd"}}, "Unschedulable"),
    "room is held by a PodReservation": ({}, "Unschedulable"),
    "a claim does not exist, which autoscalers know themselves": (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data-0"}}]},
        "Unschedulable",
    ),
    "CPUs of nodes are not known": (BOUND_TO_CPUS, "Unschedulable"),
    "a constraint is not evaluated": ({"resourceClaims": [{"name": "gpu"}]}, "SchedulerError"),
    "a label names no workload type": ({"labels": {"concerto.dev/workload-type": "gpu-bound"}}, "SchedulerError"),
}


def reason_of(cluster, waiting):
    profiles = {"concerto": profile()}
    (failure,) = schedule(cluster, [waiting], profiles, now=NOW, generator=np.random.default_rng(0)).unschedulable
    return failure.diagnosis.condition_reason


def one_node():
    cluster = cluster_state([node("n")], [], [capacity("n", 1.0)])
    held = Reservation("default", "held", "r", LabelSelector.from_raw({"matchLabels": {"app": "other"}}), 1)
    cluster.set_reservation(held)
    cluster.hold(held.key, {"n": 1})
    return cluster


@pytest.mark.parametrize(("over", "reason"), CASES.values(), ids=CASES)
def test_a_pod_that_no_node_takes(over, reason):
    assert reason_of(one_node(), pod("p", **over)) == reason


def test_a_resource_that_stands_for_devices_where_no_new_node_can_offer_it_itself():
    """Node groups that are scaled to zero may have a device plugin for a resource that a DeviceClass offers, too."""
    cluster = one_node()
    cluster.resources.device_classes.set(DeviceClass("gpu", "example.com/gpu"))
    assert reason_of(cluster, pod("p", requests={"example.com/gpu": "1"})) == "Unschedulable"
    assert reason_of(cluster, pod("p", requests={"deviceclass.resource.kubernetes.io/gpu": "1"})) == "SchedulerError"


def test_an_operator_that_pins_no_pods():
    cluster = one_node()
    cluster.cpus.followed = False
    assert reason_of(cluster, pod("p", **BOUND_TO_CPUS)) == "SchedulerError"


def test_claims_that_take_too_long_to_compare_with_the_volumes(monkeypatch):
    monkeypatch.setattr(claims, "MAX_COMPARISONS", 1)
    monkeypatch.setattr(claims, "VOLUMES_AT_ONCE", 1)
    cluster = store(one_node(), storage_class(), claim(), volume("v1"), volume("v2"))
    assert reason_of(cluster, pod("p", **mounts("data"))) == "SchedulerError"


def test_a_fault_of_a_plugin(monkeypatch):
    monkeypatch.setattr(NodeReady, "check", lambda *_: 1 / 0)
    assert reason_of(one_node(), pod("p")) == "SchedulerError"
