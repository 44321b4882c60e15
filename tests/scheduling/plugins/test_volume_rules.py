"""The score VolumeBinding by the rules of the API alone, where several CSIStorageCapacities have room for a volume."""

from __future__ import annotations

import pytest
from e2e.testbed.placement.claims import Storage
from e2e.testbed.placement.random_storage import COUNTED, MADE, WAITS, csi_drivers, storage_classes
from e2e.testbed.placement.rules import World

from support.volume_builders import mounts, raw_claim, raw_volume

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


def world(*claims):
    storage = [*storage_classes(), *csi_drivers(), *ROOMS]
    storage += [{"kind": "PersistentVolumeClaim", **each} for each in claims]
    return World({"a": A, "b": B}, [], {}, storage=storage)


def made(name="data", **over):
    return raw_claim(name, **({"storageClassName": COUNTED} | over))


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
    assert world(made()).differ_by_capacity(asking("data"), own, kube) == expected


SCORES = {
    "two volumes of a class share its room": ([made(), made("logs")], {80, 0}),
    "by the capacities for the last, which is the larger one": ([made(size="3Gi"), made("logs")], {60}),
    "or the one without a node": ([made(size="3Gi", node="a"), made("logs")], {60, 0}),
    "of volumes whose driver publishes nothing, nothing is known": (
        [made(storageClassName=MADE), made("logs")],
        {90, 50},
    ),
    "a claim that is bound takes nothing more": ([made(), made("logs", volume="disk")], {90, 50}),
}


@pytest.mark.parametrize(("claims", "expected"), SCORES.values(), ids=SCORES)
def test_scores_by_each_capacity_that_has_room_for_all_volumes_that_are_made(claims, expected):
    disk = {"kind": "PersistentVolume", **raw_volume("disk", claim="logs")}
    storage = Storage([*world(*claims).storage, disk], [])
    assert storage.scores_of_room(asking("data", "logs"), A) == expected
