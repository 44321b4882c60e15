"""Pods that use more CPUs than some nodes have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

WIDE = 3.0
"""Cores that a wide pod takes."""


def sized(name, cores, **over):
    return node(name, allocatable={"cpu": 1000 * cores}, **over)


def cluster(*nodes, share=WIDE):
    """The nodes, empty and measured, where wide pods are known to take so much."""
    made = [capacity(n.name, 5.0) for n in nodes]
    measured = [replace(c, status=replace(c.status, system_cpu=0.0)) for c in made]
    found = cluster_state(list(nodes), [], measured)
    known = NodeKinds()
    for _ in range(10):
        known.pod_ended(pod("wide").kind, PodMeasurement(10 * share, 10.0, 10.0, 2**20, True), 0.0)
    found.kinds.set_table(known.table((), 0.0))
    return found


def places(found, *pods, now=NOW):
    generator = np.random.default_rng(1)
    result = schedule(found, pods, {"concerto": profile()}, now=now, generator=generator)
    messages = [u.diagnosis.message for u in result.unschedulable]
    return sorted(d.assignment.node for d in result.decisions), messages


def wide(count, **over):
    return [replace(pod(f"wide-{i}", **over), created=NOW) for i in range(count)]


SMALL = [sized(f"small-{i}", 1) for i in range(4)]
LARGE = sized("large", 16)


def test_wide_pods_wait_for_large_nodes_where_most_cpus_are_on_those():
    found = cluster(*SMALL, LARGE)
    nodes, messages = places(found, *wide(12))
    assert set(nodes) == {"large"}
    assert messages, "the others wait for it"
    assert "4 node(s) had less CPU left than the 3 that pods of this kind take" in messages[0]


def test_pods_that_fit_go_to_nodes_of_any_size():
    nodes, _ = places(cluster(*SMALL, LARGE, share=0.5), *wide(40))
    assert set(nodes) == {"large", "small-0", "small-1", "small-2", "small-3"}


ELSEWHERE = {
    "fewer CPUs are on large nodes": [sized("large", 4)],
    "there are no others": [],
    "the large one is cordoned": [sized("large", 16, unschedulable=True)],
    "the large one is not ready": [sized("large", 16, ready=False)],
    "most pods are kept from the large one": [sized("large", 16, taints=[("gpu", "", "NoSchedule")])],
}


@pytest.mark.parametrize("larger", ELSEWHERE.values(), ids=ELSEWHERE)
def test_they_go_to_small_nodes_where(larger):
    nodes, _ = places(cluster(*SMALL, *larger), *wide(12))
    assert {n.name for n in SMALL} <= set(nodes)


def test_a_pod_that_selects_nodes_or_has_waited_for_long_takes_a_small_one():
    chosen = {"nodeSelector": {"kubernetes.io/hostname": "small-0"}}
    assert places(cluster(*SMALL, LARGE), *wide(1, **chosen))[0] == ["small-0"]
    later = NOW + profile().settings.large_pod_wait_seconds
    found = cluster(*SMALL, LARGE)
    for n in (*SMALL, LARGE):
        fresh = capacity(n.name, 5.0, version=2, at=later)
        found.set_capacity(replace(fresh, status=replace(fresh.status, system_cpu=0.0)), later)
    assert set(places(found, *wide(12), now=later)[0]) == {"large", *(n.name for n in SMALL)}


def test_where_they_take_no_more_than_twice_as_long_they_take_smaller_nodes():
    found = cluster(*(sized(f"small-{i}", 2) for i in range(2)), sized("large", 16), share=WIDE)
    assert set(places(found, *wide(12))[0]) == {"large", "small-0", "small-1"}
