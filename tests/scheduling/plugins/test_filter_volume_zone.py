import pytest

from concerto.scheduling.plugins.volume_zone.filter import VolumeZone
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons
from support.volume_builders import claim, mounts, storage_class, store, volume

ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
NODES = [
    node("a", labels={ZONE: "a", REGION: "eu"}),
    node("b", labels={ZONE: "b", REGION: "eu"}),
    node("old", labels={BETA_ZONE: "a"}),
    node("nowhere"),
]
CASES = {
    "a volume without labels": ({}, ["a", "b", "old", "nowhere"]),
    "one zone, and nodes without any label": ({ZONE: "a"}, ["a", "nowhere"]),
    "one of several zones": ({ZONE: "a__b"}, ["a", "b", "nowhere"]),
    "an old label is compared with a node's own, old or new": ({BETA_ZONE: "a"}, ["a", "old", "nowhere"]),
    "zone and region": ({ZONE: "a", REGION: "us"}, ["nowhere"]),
    "a label that names an empty zone is not read": ({ZONE: "a__"}, ["a", "b", "old", "nowhere"]),
}


@pytest.mark.parametrize(("labels", "names"), CASES.values(), ids=CASES)
def test_a_volume_with_these_labels_can_be_had_on(labels, names):
    cluster = store(cluster_state(NODES), claim(volume="disk"), volume(claim="data", labels=labels))
    assert passes(VolumeZone(), query(cluster, pod(**mounts("data")))) == names


def test_the_reason_is_kube_schedulers():
    cluster = store(cluster_state(NODES), claim(volume="disk"), volume(claim="data", labels={ZONE: "a"}))
    assert reasons(VolumeZone(), query(cluster, pod(**mounts("data")))) == {"node(s) had no available volume zone": 2}


def test_claims_without_a_volume_are_not_judged():
    cluster = store(cluster_state(NODES), claim(), storage_class())
    assert VolumeZone().prepare(query(cluster, pod(**mounts("data")))) is None


def test_a_volume_that_is_gone_is_named():
    cluster = store(cluster_state(NODES), claim(volume="disk"))
    asked = query(cluster, pod(**mounts("data")))
    assert VolumeZone().pod_refusal(VolumeZone().prepare(asked)) == 'persistentvolume "disk" not found'
    assert passes(VolumeZone(), asked) == []
