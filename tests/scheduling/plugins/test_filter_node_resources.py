import pytest

from concerto.api.deviceclass import DeviceClass
from concerto.scheduling.plugins.node_resources.filter import NodeResources
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons


def cluster(allocatable=None, pods=()):
    return cluster_state([node("n", allocatable=allocatable or {})], pods)


def bound(name, **over):
    return pod(name, nodeName="n", **over)


# allocatable beside 4 cores, 8Gi and 110 pods; what runs; what the pod wants; reasons, none if it fits
CASES = {
    "an empty node": ({}, [], {"cpu": "4", "memory": "8Gi"}, {}),
    "a millicore too much": ({}, [bound("a", requests={"cpu": "1m"})], {"cpu": "4"}, {"Insufficient cpu": 1}),
    "two things lacking": ({}, [], {"cpu": "5", "memory": "9Gi"}, {"Insufficient cpu": 1, "Insufficient memory": 1}),
    "nothing wanted fits on a full node": ({}, [bound("a", requests={"cpu": "4"})], None, {}),
    "the number of pods": ({"pods": 1}, [bound("a")], None, {"Too many pods": 1}),
    "a device": ({"example.com/gpu": 1}, [], {"example.com/gpu": "1"}, {}),
    "a device that is taken": (
        {"example.com/gpu": 1},
        [bound("a", requests={"example.com/gpu": "1"})],
        {"example.com/gpu": "1"},
        {"Insufficient example.com/gpu": 1},
    ),
    "a device that no node has": ({}, [], {"example.com/fpga": "1"}, {"Insufficient example.com/fpga": 1}),
    "pods that have ended take nothing": ({}, [bound("a", requests={"cpu": "4"}, phase="Failed")], {"cpu": "4"}, {}),
    "pods of DaemonSets and static pods take what they request": (
        {},
        [bound("a", requests={"cpu": "1"}, owner="DaemonSet")],
        {"cpu": "4"},
        {"Insufficient cpu": 1},
    ),
    "pods of others": (
        {},
        [bound("a", requests={"cpu": "1"}, schedulerName="default-scheduler")],
        {"cpu": "4"},
        {"Insufficient cpu": 1},
    ),
}


@pytest.mark.parametrize(("allocatable", "pods", "requests", "why"), CASES.values(), ids=CASES)
def test_what_is_requested_must_be_left(allocatable, pods, requests, why):
    asked = query(cluster(allocatable, pods), pod("p", requests=requests))
    assert passes(NodeResources(), asked) == ([] if why else ["n"])
    assert reasons(NodeResources(), asked) == why


def test_a_resize_counts_at_once():
    there = bound("a", requests={"cpu": "1"})
    shared = cluster({}, [there])
    asked = query(shared, pod("p", requests={"cpu": "3"}))
    assert passes(NodeResources(), asked) == ["n"]
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    shared.set_pod(bound("a", requests={"cpu": "1"}, status=status), 1000.0)
    assert passes(NodeResources(), asked) == []


DEVICES = "deviceclass.resource.kubernetes.io/fast"
NAMED = "pod has {} of DeviceClass fast, which Concerto does not evaluate"


@pytest.mark.parametrize("resource", ["example.com/gpu", DEVICES])
def test_devices_that_are_not_allocated_are_named_on_nodes_that_do_not_offer_them_themselves(resource):
    offering = node("full", allocatable={resource: 1})
    shared = cluster_state([node("none"), offering], [pod("a", nodeName="full", requests={resource: "1"})])
    shared.resources.device_classes.set(DeviceClass("fast", "example.com/gpu"))
    asked = query(shared, pod("p", requests={resource: "1"}))
    assert passes(NodeResources(), asked) == []
    assert reasons(NodeResources(), asked) == {NAMED.format(resource): 1, f"Insufficient {resource}": 1}
    assert not NodeResources().no_node_helps(asked), "another node with a device plugin does"
    shared.set_node(node("full"))
    assert reasons(NodeResources(), asked) == {NAMED.format(resource): 2}
    assert NodeResources().no_node_helps(asked) == (resource == DEVICES), "a new node may have the device plugin"
    shared.resources.device_classes.remove("fast")
    assert reasons(NodeResources(), asked) == {f"Insufficient {resource}": 2}
    assert NodeResources().no_node_helps(asked) == (resource == DEVICES)
