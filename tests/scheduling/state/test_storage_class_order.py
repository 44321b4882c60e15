"""StorageClasses that come after thousands of pods with claims, as they may when the operator starts."""

from support.scheduling_builders import cluster_state, node, pod
from support.step_counts import steps_of
from support.volume_builders import claim, mounts, storage_class, store


def cluster_with_pods(number):
    cluster = cluster_state([node("n1")])
    store(cluster, *(claim(f"c{n}", storageClassName="other", volume=f"v{n}") for n in range(number)))
    for n in range(number):
        cluster.set_pod(pod(f"p{n}", nodeName="n1", **mounts(f"c{n}")), 0.0)
    return cluster


def test_a_class_is_no_reason_to_look_at_volumes_of_claims_of_other_classes():
    cluster, made = cluster_with_pods(300), storage_class("fast", provisioner="csi.example.com")
    assert steps_of(lambda: cluster.volumes.set_class(made)) < 30 * 300
    assert steps_of(lambda: cluster.volumes.set_class(made)) < 100, "it has the same provisioner"
