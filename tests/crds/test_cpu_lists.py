"""No set of CPUs that a kind allows makes a list that its objects have no room for: it would be refused for ever."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from concerto.api.cpulist import HIGHEST, format_cpu_list, parse_cpu_list
from concerto.api.nodecputopology import Core, CPUPools, CPUTopology, NodeCPUTopology
from concerto.api.podcpubinding import PodCPUBinding
from concerto.controllers.pinning.status import build_binding_status
from concerto.linux.cpu_topology import KubeletCPUs, TopologyReading
from concerto.pinning.validation import BoundPod, judge_node
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.topology_publisher import build_topology_status
from support.crd_schemas import CRDS, problems, structural_schema

_CHARACTERS = 5
"""A number takes four at most, and a comma: see tests/api/test_cpulist.py."""
BOUND, ONLINE, NODES, LINUX_NODES = 1024, 4096, 256, 1024
"""CPUs of a binding (maxItems of cpuSet), of a topology (of cpus), its memory nodes (of numaNodes), and Linux' most."""

# The most numbers that each list can have
MOST = {
    "NodeCPUTopology.status.pools.allocated": ONLINE,
    "NodeCPUTopology.status.pools.kept": ONLINE,
    "NodeCPUTopology.status.pools.shared": ONLINE,
    "NodeCPUTopology.status.pools.reserved": ONLINE,
    "NodeCPUTopology.status.pools.kubeletExclusive": ONLINE,
    "NodeCPUTopology.status.topology.offlineCPUs": ONLINE,
    "NodeCPUTopology.status.topology.caches[].cpus": ONLINE,
    "NodeCPUTopology.status.topology.coreKinds[].cpus": ONLINE,
    "PodCPUBinding.status.cpus": BOUND,
    "PodCPUBinding.status.mems": NODES,
    "PodCPUBinding.status.applied.cpus": ONLINE,
    "PodCPUBinding.status.applied.mems": LINUX_NODES,
    "PodReservation.spec.assignments[].cpus": BOUND,
    "PodReservation.spec.assignments[].mems": NODES,
}


def lists(schema: dict[str, Any], path: str) -> Iterator[tuple[str, int]]:
    """The lists of CPUs below a schema, by their pattern, and how long they may be."""
    if str(schema.get("pattern", "")).lstrip("^(").startswith("[0-9]+(-[0-9]+)?"):
        yield path, schema["maxLength"]
    for name, member in schema.get("properties", {}).items():
        yield from lists(member, f"{path}.{name}")
    if "items" in schema:
        yield from lists(schema["items"], f"{path}[]")


ROOM = dict(found for kind in CRDS for found in lists(structural_schema(kind), kind))


def test_each_list_is_known_here():
    assert set(ROOM) == set(MOST)


@pytest.mark.parametrize("path", MOST)
def test_the_longest_list_has_room(path):
    assert ROOM[path] >= _CHARACTERS * MOST[path]


def numbers(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas below one that are of the number of a CPU."""
    for name, member in schema.get("properties", {}).items():
        if name == "cpuID":
            yield member
        elif name == "cpus" and member["type"] == "array":
            yield member["items"]
        yield from numbers(member)
    for member in ("items", "additionalProperties"):
        if isinstance(schema.get(member), dict):
            yield from numbers(schema[member])


@pytest.mark.parametrize(("kind", "count"), [("NodeCPUTopology", 4), ("PodCPUBinding", 1)])
def test_a_kind_takes_the_numbers_of_cpus_that_the_operator_takes_and_no_others(kind, count):
    """A topology with a CPU above the operator's limit was stored, and its node then had none that could be used."""
    found = list(numbers(structural_schema(kind)))
    assert [(each["minimum"], each["maximum"]) for each in found] == [(0, HIGHEST)] * count


RESERVED = structural_schema("NodeCPUTopology")["properties"]["spec"]["properties"]["reservedCPUs"]


@pytest.mark.parametrize("text", ["0", "0-1,8", "0-8191", "8189-8191", "7999,8000-8099,8100,8190", "0008"])
def test_reserved_cpus_that_agents_can_read_are_taken(text):
    assert re.search(RESERVED["pattern"], text)
    assert parse_cpu_list(text)


@pytest.mark.parametrize("text", ["8192", "0-8192", "8192-8193", "9999", "8200", "12000", "1,", "1-2-3"])
def test_reserved_cpus_that_agents_can_not_read_are_refused(text):
    assert not re.search(RESERVED["pattern"], text)
    assert RESERVED["pattern"] in RESERVED["x-kubernetes-validations"][1]["rule"]


def odd(count: int) -> list[int]:
    """A set whose list is the longest: high numbers, of which no two are neighbours."""
    return list(range(HIGHEST, HIGHEST - 2 * count, -2))


HUGE = CPUTopology(
    tuple(Core(n // 2048, n, frozenset({cpu})) for n, cpu in enumerate(odd(ONLINE))),
    {node: frozenset(odd(ONLINE)[i::NODES]) for i, node in enumerate(odd(NODES))},
)
METADATA = {"name": "b", "namespace": "ns", "uid": "u", "generation": 1, "creationTimestamp": "2026-03-01T12:00:00Z"}


def test_a_binding_of_as_many_odd_cpus_as_it_may_name_gets_a_status():
    spec = {"podName": "p", "cpuSet": [{"cpuID": cpu} for cpu in odd(BOUND)], "exclusivenessLevel": "CPU"}
    obj = {"apiVersion": "concerto.dev/v1alpha1", "kind": "PodCPUBinding", "metadata": METADATA, "spec": spec}
    view, pod = PodCPUBinding.from_raw(obj), BoundPod("p", "n")
    (verdict,) = judge_node("n", NodeCPUTopology("n", HUGE, CPUPools()), [(view, pod)]).values()
    assert verdict.cpus == format_cpu_list(odd(BOUND))
    status = build_binding_status(obj, verdict, METADATA["creationTimestamp"])
    assert problems(obj | {"status": status}) == []
    (verdict,) = judge_node("n", NodeCPUTopology("n", HUGE.only({0}), CPUPools()), [(view, pod)]).values()
    assert verdict.reason == "CPUsNotFound"
    assert problems(obj | {"status": build_binding_status(obj, verdict, METADATA["creationTimestamp"])}) == []


def test_the_topology_of_a_machine_of_odd_cpus_is_published():
    kubelet = KubeletCPUs(exclusive=HUGE.cpus, reserved=HUGE.cpus)
    status = build_topology_status({}, TopologyReading(HUGE), kubelet, 1e9, HeldCPUs(HUGE.cpus, HUGE.cpus))
    obj = {"apiVersion": "concerto.dev/v1alpha1", "kind": "NodeCPUTopology", "metadata": METADATA | {"name": "n"}}
    assert problems(obj | {"spec": {"nodeName": "n"}, "status": status}) == []
