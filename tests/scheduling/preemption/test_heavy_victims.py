"""One node whose pods have hundreds of affinity terms, claims or ports is looked at in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.look import MAX_VICTIMS, NodeLook
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import cluster_state, node, pod, profile

AT = 1772366400.0
PODS, NUMBER = 60, 300


def terms(of: int) -> dict[str, Any]:
    """Anti-affinity to hundreds of labels that no pod has."""
    each = [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {f"k{number}-{of}": "v"}}}
        for number in range(NUMBER)
    ]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": each}}}


def claims(of: int) -> dict[str, Any]:
    each = range(2 * NUMBER)
    return {"volumes": [{"name": f"{n}", "persistentVolumeClaim": {"claimName": f"c{n}-{of}"}} for n in each]}


def ports(of: int) -> dict[str, Any]:
    return {"containers": [container("60m", [{"hostPort": 1 + NUMBER * of + n} for n in range(NUMBER)])]}


def container(cpu: str, host_ports: Any = ()) -> dict[str, Any]:
    return {"name": "c", "ports": host_ports, "resources": {"requests": {"cpu": cpu}}}


def state_of(cluster: ClusterState) -> tuple[object, ...]:
    return [*cluster.terms.refusing._rows], repr(cluster.ports._ports), repr(vars(cluster.volumes.use.users))


@pytest.mark.parametrize("fields", [terms, claims, ports])
def test_one_node_with_such_pods_is_looked_at_in_a_moment(fields: Callable[[int], dict[str, Any]]) -> None:
    victims = [
        pod(f"v{of}", nodeName="n", priority=-5, **{"containers": [container("60m")]} | fields(of))
        for of in range(PODS)
    ]
    cluster = cluster_state([node("n"), node("m")], victims)
    look, before = NodeLook(cluster, profile(), AT), state_of(cluster)
    began = time.process_time()
    found = look(pod("p", priority=5, containers=[container("2")]), "n")
    seconds = time.process_time() - began
    assert isinstance(found, Candidate)
    assert len(found.victims.pods) == 27  # of 60m each, beside the 400m that are left
    assert seconds < 0.2  # it took 1.3 s where they have terms
    assert state_of(cluster) == before


def test_a_port_is_free_without_the_victim() -> None:
    victims = [pod("v", nodeName="n", priority=-5, containers=[container("1", [{"hostPort": 80}])])]
    victims += [pod("w", nodeName="n", priority=-5, containers=[container("1")])]
    look = NodeLook(cluster_state([node("n")], victims), profile(), AT)
    found = look(pod("p", priority=5, containers=[container("1", [{"hostPort": 80}])]), "n")
    assert isinstance(found, Candidate)
    assert [each.name for each in found.victims.pods] == ["v"]


def test_a_victim_is_found_whose_terms_refuse_the_pod() -> None:
    refuses = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "p"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [refuses]}}
    victims = [pod("v", nodeName="n", priority=-5, affinity=affinity), pod("w", nodeName="n", priority=-5)]
    cluster = cluster_state([node("n")], victims)
    found = NodeLook(cluster, profile(), AT)(pod("p", priority=5, labels={"app": "p"}), "n")
    assert isinstance(found, Candidate)
    assert [each.name for each in found.victims.pods] == ["v"]


def test_of_very_many_pods_that_name_one_node_so_many_are_looked_at() -> None:
    """Whoever may create pods can name a node in any number of them; its kubelet refuses tens of them a second."""

    def removed(count: int) -> int:
        pods = [pod(f"v{n}", nodeName="n", labels={"a": "b"}) for n in range(count)]
        cluster = cluster_state([node("n", allocatable={"pods": 110})], pods)
        taken_off: set[str] = set()
        cluster.usage.pod_removed = lambda each, row: taken_off.add(each.uid)  # type: ignore[method-assign]
        NodeLook(cluster, profile(), AT)(pod("p", priority=5), "n")
        return len(taken_off)

    assert removed(300) == 300
    assert removed(MAX_VICTIMS + 500) == MAX_VICTIMS


def test_of_very_many_pods_those_that_came_last_may_be_evicted() -> None:
    pods = [pod(f"v{n}", nodeName="n", containers=[container("1m")]) for n in range(MAX_VICTIMS + 500)]
    cluster = cluster_state([node("n", allocatable={"pods": 2000, "cpu": MAX_VICTIMS + 500})], pods)
    found = NodeLook(cluster, profile(), AT)(pod("p", priority=5, containers=[container("300m")]), "n")
    assert isinstance(found, Candidate)
    names = {each.name for each in found.victims.pods}
    assert len(names) == 300
    assert names <= {f"v{n}" for n in range(500, MAX_VICTIMS + 500)}
