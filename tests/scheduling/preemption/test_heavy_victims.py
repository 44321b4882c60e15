"""One node whose pods have hundreds of affinity terms, claims or ports is looked at in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.look import NodeLook
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
