from __future__ import annotations

import pytest

from concerto.kube.resources import LEASES, NODE_CAPACITIES, NODES, POD_RESERVATIONS, PODS, Resource

PATHS = {
    "all pods": (PODS.path(), "/api/v1/pods"),
    "the pods of a namespace": (PODS.path("a"), "/api/v1/namespaces/a/pods"),
    "a pod": (PODS.path("a", "b"), "/api/v1/namespaces/a/pods/b"),
    "a pod's binding": (PODS.path("a", "b", "binding"), "/api/v1/namespaces/a/pods/b/binding"),
    "a node": (NODES.path(name="n"), "/api/v1/nodes/n"),
    "a kind of a group": (LEASES.path("a", "b"), "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"),
    "a status of ours": (
        NODE_CAPACITIES.path(name="n", subresource="status"),
        "/apis/concerto.dev/v1alpha1/nodecapacities/n/status",
    ),
    "a name that is not plain": (
        POD_RESERVATIONS.path("a", "b/c?d"),
        "/apis/concerto.dev/v1alpha1/namespaces/a/podreservations/b%2Fc%3Fd",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS.keys())
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_parts_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match="needs its namespace"):
        PODS.path(name="b")
    with pytest.raises(ValueError, match="cluster scoped"):
        NODES.path("a", "n")
    with pytest.raises(ValueError, match="needs the object's name"):
        PODS.path("a", subresource="binding")


def test_api_versions() -> None:
    assert PODS.api_version == "v1"
    assert NODE_CAPACITIES.api_version == "concerto.dev/v1alpha1"


def test_kinds_of_the_same_plural_in_different_groups_have_different_names() -> None:
    coscheduling = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", True)
    kubernetes = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", True)
    assert kubernetes.group_resource == "podgroups.scheduling.k8s.io"
    assert coscheduling.group_resource == "podgroups.scheduling.x-k8s.io"
    assert PODS.group_resource == "pods"
