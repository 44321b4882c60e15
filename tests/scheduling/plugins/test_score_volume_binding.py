import pytest

from concerto.scheduling.plugins.volume_binding.score import VolumeBinding
from support.scheduling_builders import cluster_state, node, pod, query, scores
from support.volume_builders import claim, csi_capacity, csi_driver, mounts, storage_class, store, volume

NODES = [node(name, labels={"rack": name}) for name in "abc"]
FAST = storage_class("fast", provisioner="csi.example.com")
DRIVER = csi_driver(storageCapacity=True)


def on(rack, size, **over):
    return csi_capacity(f"{rack}-{size}", size, {"rack": rack}, **over)


def made(name="data", **over):
    return claim(name, storageClassName="fast", **over)


CASES = {
    "the more room is left of existing volumes, the better": (
        [storage_class(), claim(), volume("x", on="a"), volume("y", on="b", size="4Gi")],
        {"a": 0, "b": 75, "c": 0},
    ),
    "by the capacity that the driver reports": (
        [FAST, DRIVER, made(size="3Gi"), on("a", "4Gi"), on("b", "30Gi")],
        {"a": 25, "b": 90, "c": 0},
    ),
    "all free room counts, though one volume may not have it": (
        [FAST, DRIVER, made(size="1Gi"), on("a", "10Gi", maximumVolumeSize="2Gi")],
        {"a": 90, "b": 0, "c": 0},
    ),
    "of several capacities, by that of the largest volume": (
        [FAST, DRIVER, made(size="1Gi"), on("a", "4Gi"), on("a", "100Gi", maximumVolumeSize="2Gi"), on("b", "1Gi")],
        {"a": 75, "b": 0, "c": 0},
    ),
    "more than there is": ([FAST, DRIVER, made(size="3Gi"), on("a", "2Gi")], {"a": 0, "b": 0, "c": 0}),
    "nothing is known of the room": ([FAST, csi_driver(), made(), on("a", "4Gi")], {}),
    "a claim that is bound takes nothing more": (
        [storage_class(), claim(volume="x"), volume("x", claim="data"), volume("y", on="b", size="4Gi")],
        {},
    ),
}


@pytest.mark.parametrize(("storage", "expected"), CASES.values(), ids=CASES)
def test_room_that_is_left(storage, expected):
    asked = query(store(cluster_state(NODES), *storage), pod("p", **mounts("data")))
    assert scores(VolumeBinding(), asked) == expected


def test_claims_of_one_class_share_its_room_and_classes_count_alike():
    storage = [FAST, DRIVER, made("x", size="2Gi"), made("y", size="3Gi"), on("a", "10Gi"), on("b", "20Gi")]
    cluster = store(cluster_state(NODES), *storage)
    assert scores(VolumeBinding(), query(cluster, pod("p", **mounts("x", "y")))) == {"a": 50, "b": 75, "c": 0}
    slow = storage_class("slow", provisioner="csi.example.com")
    store(cluster, slow, claim("z", storageClassName="slow"))
    store(cluster, on("a", "5Gi", storageClassName="slow", metadata={"namespace": "csi", "name": "slow"}))
    assert scores(VolumeBinding(), query(cluster, pod("p", **mounts("x", "z")))) == {"a": 80, "b": 90, "c": 0}


def test_an_existing_volume_on_the_node_counts_alone():
    storage = [FAST, DRIVER, made("x"), on("a", "10Gi"), storage_class(), claim("y"), volume("v", on="a", size="2Gi")]
    cluster = store(cluster_state(NODES), *storage)
    assert scores(VolumeBinding(), query(cluster, pod("p", **mounts("x", "y"))))["a"] == 50


@pytest.mark.parametrize("order", [1, -1])
def test_of_capacities_for_equally_large_volumes_that_with_the_most_room_counts_whichever_came_first(order):
    rooms = [on("a", size, maximumVolumeSize="2Gi") for size in ("10Gi", "2Gi")]
    cluster = store(cluster_state(NODES), FAST, DRIVER, made(size="1Gi"), *rooms[::order])
    assert scores(VolumeBinding(), query(cluster, pod("p", **mounts("data"))))["a"] == 90
