"""The score VolumeBinding by the rules of the API alone, where several CSIStorageCapacities have room for a volume."""

from __future__ import annotations

import pytest
from e2e.testbed.placement.random_storage import COUNTED, WAITS, csi_drivers, storage_classes
from e2e.testbed.placement.rules import World

from support.volume_builders import mounts, raw_claim

A, B = ({"metadata": {"name": name, "labels": {"rack": name}}, "status": {}} for name in "ab")


def room(name, capacity, rack, **over):
    topology = {"nodeTopology": {"matchLabels": {"rack": rack}}} if rack else {}
    amounts = {"capacity": capacity} if capacity else {}
    body = {"kind": "CSIStorageCapacity", "metadata": {"name": name}, "storageClassName": COUNTED}
    return body | topology | amounts | over


ROOMS = [
    room("small", "2Gi", "a"), room("large", "10Gi", "a"), room("for less", "100Gi", "a", maximumVolumeSize="1M"),
    room("full", "1M", "a"), room("of another class", "4Gi", "a", storageClassName=WAITS), room("unknown", "", "a"),
    room("nowhere", "5Gi", ""), room("of b", "4Gi", "b"),
]  # fmt: skip


def world(*claims, rooms=ROOMS):
    storage = [*storage_classes(), *csi_drivers(), *rooms]
    storage += [{"kind": "PersistentVolumeClaim", **raw_claim(name, storageClassName=COUNTED)} for name in claims]
    return World({"a": A, "b": B}, [], {}, storage=storage)


def asking(*claims):
    return {"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": mounts(*claims)}


CASES = {
    "the same": ({"a": 90, "b": 75}, {"a": 90, "b": 75}, True),
    "one by one capacity, one by the other": ({"a": 90, "b": 75}, {"a": 50, "b": 75}, True),
    "a score by none of them": ({"a": 90, "b": 75}, {"a": 99, "b": 75}, False),
    "ours by none of them": ({"a": 80, "b": 75}, {"a": 50, "b": 75}, False),
    "by a capacity that the node does not reach": ({"a": 90, "b": 75}, {"a": 90, "b": 50}, False),
    "no score of a node": ({"a": 90}, {"a": 90, "b": 75}, False),
}


@pytest.mark.parametrize(("own", "kube", "expected"), CASES.values(), ids=CASES)
def test_scores_may_differ_by_the_capacity_that_counts_and_by_nothing_else(own, kube, expected):
    assert world("data").differ_by_capacity(asking("data"), own, kube) == expected


def test_nothing_is_excused_of_a_pod_that_needs_two_volumes_made():
    assert not world("data", "logs").differ_by_capacity(asking("data", "logs"), {"a": 90}, {"a": 50})
