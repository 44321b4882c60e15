"""`concerto top cpus`: who sits where."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.cli.top_cpus import Threads, count_threads, draw, seats
from support.topologies import machine


def binding(pod, cpus, level, status="Applied"):
    return {
        "metadata": {
            "namespace": "team",
            "name": pod,
            "uid": f"uid-{pod}",
            "creationTimestamp": "2026-03-01T12:00:00Z",
        },
        "spec": {"podName": pod, "cpuSet": [{"cpuID": 0}], "exclusivenessLevel": level},
        "status": {"nodeName": "n", "cpus": cpus, "mems": "0", "resourceStatus": status} if cpus else {},
    }


POOLS = CPUPools(reserved=frozenset({4}), kubelet_exclusive=frozenset({3}))
NODE = NodeCPUTopology("n", machine(2, 3, 2), POOLS)  # CPU n and n+6 share a core
BINDINGS = [binding("web", "0", "Core"), *(binding(p, "1", "None") for p in "ab"), binding("lost", "", "CPU")]


def test_each_cpu_is_a_pods_or_kept_or_kubelets_or_everybodys():
    who = {cpu: seat.who for cpu, seat in seats(NODE, BINDINGS).items()}
    assert who == {
        0: "web", 6: "kept for web", 1: "a, b", 3: "kubelet's", 4: "shared, reserved",
        2: "shared", 5: "shared", 7: "shared", 8: "shared", 9: "shared", 10: "shared", 11: "shared",
    }  # fmt: skip


THREADS = {
    "exclusive, a core": ([binding("web", "0", "Core")], Threads(1, 1, 1, 12)),
    "not exclusive: still everybody's": ([binding("a", "1-2", "None")], Threads(2, 0, 0, 12)),
    "shared with another one's exclusive core": (
        [binding("web", "0,6", "CPU"), binding("big", "3-5,9-11", "Socket")], Threads(8, 8, 0, 12),
    ),
    "a binding that holds nothing": ([binding("lost", "", "NUMA")], Threads(0, 0, 0, 12)),
}  # fmt: skip


@pytest.mark.parametrize(("bindings", "expected"), THREADS.values(), ids=THREADS)
def test_utilisation_is_counted_by_threads(bindings, expected):
    assert count_threads(NODE.topology, bindings) == expected


def test_an_edit_that_was_not_validated_changes_nothing():
    edited = binding("web", "0", "NUMA")
    edited["status"]["exclusivenessLevel"] = "Core"
    assert {cpu for cpu, seat in seats(NODE, [edited]).items() if "web" in seat.who} == {0, 6}
    assert count_threads(NODE.topology, [edited]) == Threads(1, 1, 1, 12)


def drawn(node, bindings):
    out = io.StringIO()
    Console(file=out, width=100).print(draw(node, bindings))
    return out.getvalue()


def test_the_machine_is_drawn_with_sockets_memory_nodes_cores_and_siblings():
    text = drawn(NODE, BINDINGS)
    assert text.startswith("n: 2 sockets, 6 cores, 12 CPUs, 2 memory nodes\n")
    for part in ("socket 1", "memory node 1: CPUs 3-5,9-11", "core 2", "0 web", "6 kept for web", "1 a, b"):
        assert part in text
    assert "3 threads of bound pods; 1 exclusive CPUs, 1 kept free: 2 of 12 CPUs (17 %) are taken" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["team/lost", "lost", "-", "-", "CPU", "-", "-"] in lines
    odd = binding("odd", "2", "CPU")
    odd["status"]["conditions"] = [{"type": "WorkloadTypeFits", "status": "False", "reason": "MostlyIdle"}]
    assert "no: MostlyIdle" in drawn(NODE, [odd])


def test_a_node_without_bindings_or_without_a_topology_says_so():
    assert "No PodCPUBinding is on the node." in drawn(NODE, [])
    assert "is the agent of the node running?" in drawn(NodeCPUTopology("n", None, CPUPools()), [])
