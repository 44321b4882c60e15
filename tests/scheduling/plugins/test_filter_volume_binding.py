"""The filter VolumeBinding in cycles: what is reserved, and what later pods of a cycle see of it."""

import gc
import weakref

import numpy as np

from concerto.api.volumes import ClaimKey, VolumeBindings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.plugins.volume_binding.filter import VolumeBinding
from support.scheduling_builders import NOW, capacity, cluster_state, node, passes, pod, profile, query, reasons
from support.volume_builders import claim, mounts, storage_class, store, volume

NODES = [node("n1"), node("n2"), node("n3")]
FAST = storage_class("fast", provisioner="csi.example.com")


def cluster_with(*storage):
    return store(cluster_state(NODES, capacities=[capacity(n.name, 50.0) for n in NODES]), *storage)


def decide(cluster, *pods):
    result = schedule(cluster, pods, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    return {d.pod.name: d.assignment for d in result.decisions}, {
        u.pod.name: u.diagnosis.message for u in result.unschedulable
    }


def test_two_pods_of_a_cycle_do_not_take_the_same_volume():
    cluster = cluster_with(
        storage_class(), claim("c1"), claim("c2"), claim("c3"), volume("v1", on="n1"), volume("v2", on="n2")
    )
    placed, failed = decide(cluster, *(pod(f"p{i}", **mounts(f"c{i}")) for i in (1, 2, 3)))
    assert {name: (a.node, a.volumes.static) for name, a in placed.items()} == {
        "p1": ("n1", ((ClaimKey("default", "c1"), "v1"),)),
        "p2": ("n2", ((ClaimKey("default", "c2"), "v2"),)),
    }
    assert failed == {"p3": "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."}


def test_a_volume_is_free_again_when_its_decision_is_given_back():
    cluster = cluster_with(storage_class(), claim("c1"), claim("c2"), volume("v1", on="n1"))
    decide(cluster, pod("p1", **mounts("c1")))
    cluster.forget("uid-p1")
    placed, _ = decide(cluster, pod("p2", **mounts("c2")))
    assert placed["p2"].node == "n1"


def test_pods_that_share_a_claim_go_where_its_volume_is_made():
    cluster = cluster_with(FAST, claim(storageClassName="fast"))
    placed, failed = decide(cluster, *(pod(f"p{i}", **mounts("data")) for i in range(5)))
    assert not failed
    assert len({a.node for a in placed.values()}) == 1
    assert {a.volumes.provisioned for a in placed.values()} == {(ClaimKey("default", "data"),)}


def test_pods_without_claims_are_not_concerned_by_those_with():
    cluster = cluster_with(storage_class(), claim(), volume("v1", on="n1"))
    placed, _ = decide(cluster, pod("p1", **mounts("data")), *(pod(f"q{i}") for i in range(6)))
    assert VolumeBinding().prepare(query(cluster, pod("q"))) is None
    assert len(placed) == 7
    assert {bool(a.volumes) for name, a in placed.items() if name != "p1"} == {False}


def test_a_bound_claim_has_nothing_to_bind():
    cluster = cluster_with(claim(volume="disk"), volume(claim="data", on="n2"))
    placed, _ = decide(cluster, pod("p", **mounts("data")))
    assert (placed["p"].node, bool(placed["p"].volumes)) == ("n2", False)


def test_what_concerns_the_pod_and_no_node_is_said_without_a_count():
    _, failed = decide(cluster_with(), pod("p", **mounts("data")))
    assert failed == {"p": '0/3 nodes are available: persistentvolumeclaim "data" not found.'}


def test_an_immediate_claim_that_is_not_bound():
    cluster = cluster_with(claim(storageClassName="now"), storage_class("now", volumeBindingMode="Immediate"))
    _, failed = decide(cluster, pod("p", **mounts("data")))
    assert failed == {"p": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."}


def test_two_reasons_of_one_node_are_both_counted():
    cluster = cluster_with(storage_class(), claim(volume="disk"), claim("logs"), volume(claim="data", on="n1"))
    asked = query(cluster, pod("p", **mounts("data", "logs")))
    assert passes(VolumeBinding(), asked) == []
    assert reasons(VolumeBinding(), asked) == {
        "node(s) didn't match PersistentVolume's node affinity": 2,
        "node(s) didn't find available persistent volumes to bind": 3,
    }


def test_a_class_that_goes_while_pods_to_evict_are_searched_for_makes_no_volumes():
    cluster, plugin = cluster_with(FAST, claim(storageClassName="fast")), VolumeBinding()
    state = plugin.prepare(query(cluster, pod("p", **mounts("data"))))
    assert not plugin.check(state, slice(0, 3)).any()
    cluster.volumes.remove_class("fast")
    cluster.volumes.reservations.reserve("other", VolumeBindings("n1", (), (ClaimKey("default", "logs"),)))
    plugin.add_pod(state, pod("other"), 0)
    assert plugin.check(state, slice(0, 3)).all()


def test_what_is_found_for_a_pod_is_in_no_cycle_although_no_score_asks_for_it():
    """Of garbage in cycles, that which was in use during a search may stay for good: see `search_new_objects_only`."""
    cluster = cluster_with(storage_class(), claim(), volume("v1", on="n1"))
    gc.disable()
    try:
        gone = weakref.ref(VolumeBinding().prepare(query(cluster, pod("p", **mounts("data")))).match)
        assert gone() is None
    finally:
        gc.enable()
