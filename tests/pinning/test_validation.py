from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import CPUPools, CPUTopology, NodeCPUTopology
from concerto.api.podcpubinding import PodCPUBinding
from concerto.pinning.conflicts import Claim, conflict
from concerto.pinning.topology import TopologyIndex, bits, to_mask
from concerto.pinning.validation import BoundPod, Verdict, judge_node, judge_unplaced
from support.topologies import machine, topologies

SEED = machine(2, 5, 2)  # CPU n and n+10 share a core; 0-4 and 10-14 are socket 0
LEVELS = ["None", "CPU", "Core", "Socket", "NUMA"]


def binding(name: str, cpus: str, level: str = "None", created: int = 0, pod: str = "") -> PodCPUBinding:
    time = f"2026-03-01T12:00:{created:02}Z"
    return PodCPUBinding("default", name, f"uid-{name}", time, pod or f"pod-{name}", parse_cpu_list(cpus), level)


def judged(*bindings: PodCPUBinding, topology: CPUTopology | None = SEED, **pools: str) -> dict[str, Verdict]:
    held = CPUPools(**{name: parse_cpu_list(cpus) for name, cpus in pools.items()})
    node = NodeCPUTopology("node-4", topology, held)
    found = judge_node("node-4", node, [(each, BoundPod(f"uid-{each.pod_name}", "node-4")) for each in bindings])
    return {name: verdict for (_, name), verdict in found.items()}


def test_a_binding_that_can_be_had_says_its_sets_as_listing_6_3_does():
    verdict = judged(binding("a", "0,2,4,6", "Core"))["a"]
    assert verdict == Verdict(
        "Validated", "Validated", "CPU binding is validated: CPUSet [0 2 4 6], MemSet [0 1]", "node-4", "uid-pod-a",
        "0,2,4,6", "0-1",
    )  # fmt: skip


# the binding, pools, (status, reason), words of the message
REFUSED = {
    "a CPU that is not there": (binding("a", "0,26"), {}, ("InvalidCPUSet", "CPUsNotFound"), "CPUs [26] are not in NodeCPUTopology node-4"),  # noqa: E501
    "a reserved CPU": (binding("a", "0-2"), {"reserved": "0"}, ("InvalidCPUSet", "CPUsReserved"), "CPUs [0]"),
    "a core, a thread of which is reserved": (
        binding("a", "10", "Core"), {"reserved": "0"}, ("InvalidCPUSet", "CPUsReserved"), "CPUs [0] of node node-4 are reserved and never assigned to a pod, nor is a core",  # noqa: E501
    ),
    "a memory node, a CPU of which is reserved": (
        binding("a", "1", "NUMA"), {"reserved": "4"}, ("InvalidCPUSet", "CPUsReserved"), "nor is a memory node that",
    ),
    "very many CPUs that are not there": (
        binding("a", "1-999"), {}, ("InvalidCPUSet", "CPUsNotFound"),
        "CPUs [20-999] are not in NodeCPUTopology node-4: bind the pod to CPUs that are.",
    ),
    "a CPU of kubelet's": (
        binding("a", "3"), {"kubelet_exclusive": "3"}, ("CPUSetAllocationFailed", "KubeletExclusive"), "CPUs [3]",
    ),
    "an exclusive core, a thread of which is kubelet's": (
        binding("a", "3", "Core"), {"kubelet_exclusive": "13"}, ("CPUSetAllocationFailed", "KubeletExclusive"), "[13]",
    ),
    "all there is": (
        binding("a", "0-19", "CPU"), {}, ("CPUSetAllocationFailed", "SharedPoolEmpty"), "pods without a binding",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "pools", "expected", "words"), REFUSED.values(), ids=REFUSED)
def test_a_binding_that_can_not_be_had_says_which_cpus_are_in_the_way(asked, pools, expected, words):
    verdict = judged(asked, **pools)["a"]
    assert (verdict.status, verdict.reason) == expected
    assert words in verdict.message
    assert verdict.cpus == verdict.mems == ""


def test_a_static_pod_can_not_be_bound_and_holds_nothing():
    there = [(binding(name, "0"), BoundPod(name, "n", static=name == "a")) for name in "ab"]
    verdicts = judge_node("n", NodeCPUTopology("n", SEED, CPUPools()), there)
    assert {name: (v.status, v.reason, v.cpus) for (_, name), v in verdicts.items()} == {
        "a": ("Failed", "StaticPod", ""),
        "b": ("Validated", "Validated", "0"),
    }


def test_cpus_that_are_switched_off_are_distinguished_from_those_that_never_were():
    topology = CPUTopology(SEED.cores, SEED.numa_nodes, offline=frozenset({20}))
    message = judged(binding("a", "20,26"), topology=topology)["a"].message
    text = "CPUs [20 26] are not in NodeCPUTopology node-4 (switched off: 20): bind the pod to CPUs that are."
    assert message == text


def test_the_older_wins_and_the_younger_says_to_whom_it_lost_and_which_cpus():
    old, young = binding("z", "0", "Core", created=1), binding("a", "10,11", created=2)
    for order in ((old, young), (young, old)):
        verdicts = judged(*order)
        assert verdicts["z"].status == "Validated"
        assert (verdicts["a"].status, verdicts["a"].loses_to) == ("CPUSetAllocationFailed", ("default", "z"))
        assert (
            "CPUs [10] of node node-4 are held by the older PodCPUBinding default/z (exclusiveness Core)"
            in verdicts["a"].message
        )
    assert judged(young)["a"].status == "Validated", "once the older one is gone"


def test_of_two_of_the_same_second_the_first_by_name_wins():
    verdicts = judged(binding("b", "0", "CPU"), binding("a", "0", "CPU"))
    assert {name: v.status for name, v in verdicts.items()} == {"a": "Validated", "b": "CPUSetAllocationFailed"}


def test_a_loser_is_in_nobodys_way():
    verdicts = judged(
        binding("a", "0", "CPU", created=1), binding("b", "0-1", "CPU", created=2), binding("c", "1", "CPU", created=3)
    )
    assert [verdicts[name].status for name in "abc"] == ["Validated", "CPUSetAllocationFailed", "Validated"]


def test_a_pod_has_one_binding():
    verdicts = judged(binding("a", "0", pod="p", created=1), binding("b", "1", pod="p", created=2))
    assert (verdicts["b"].status, verdicts["b"].loses_to) == ("Failed", ("default", "a"))


def test_without_a_topology_nothing_is_validated():
    assert judged(binding("a", "0"), topology=None)["a"].status == "NodeTopologyNotFound"
    pod = BoundPod("u", "node-4")
    assert judge_node("node-4", None, [(binding("a", "0"), pod)])["default", "a"].status == "NodeTopologyNotFound"


def test_a_binding_waits_for_its_pod():
    assert judge_unplaced(binding("a", "0"), None).status == "PodNotFound"
    waiting = judge_unplaced(binding("a", "0"), BoundPod("u", ""))
    assert (waiting.status, waiting.reason, waiting.pod_uid) == ("Pending", "PodNotScheduled", "u")


@given(topologies(), st.data())
def test_those_validated_never_meet_whatever_is_asked_in_whatever_order(topology, data):
    cpus = st.sets(st.sampled_from(sorted(topology.cpus)), min_size=1, max_size=4)
    asked = data.draw(st.lists(st.tuples(cpus, st.sampled_from(LEVELS), st.integers(0, 3)), max_size=8))
    bindings = [
        PodCPUBinding("d", f"b{i}", "u", f"2026-03-01T12:00:0{created}Z", f"p{i}", frozenset(c), level)
        for i, (c, level, created) in enumerate(asked)
    ]
    node = NodeCPUTopology("n", topology, CPUPools())
    pairs = [(each, BoundPod("u", "n")) for each in bindings]
    verdicts = judge_node("n", node, pairs)
    assert judge_node("n", node, data.draw(st.permutations(pairs))) == verdicts
    index = TopologyIndex.build(topology)
    held = [Claim(to_mask(b.cpus), b.level) for b in bindings if verdicts[b.key].status == "Validated"]
    assert not any(conflict(index, a, b) for a, b in itertools.combinations(held, 2))
    for each in bindings:
        if (winner := verdicts[each.key].loses_to) is not None:
            assert verdicts[winner].status == "Validated", "nobody loses to one that holds nothing"


GI = 2**30
SIZED = replace(SEED, memory_bytes={0: 32 * GI, 1: 32 * GI})
# spec.memory, CPUs, memory of the pod, status, memory nodes, what the message names
MEMORY = {
    "bound where it fits": ("Prefer", {0, 1}, 20 * GI, "Validated", "0", "MemSet [0]"),
    "not bound where it does not": ("Prefer", {0, 1}, 50 * GI, "Validated", "", "50.0 GiB do not fit memory nodes [0]"),
    "bound to both, which are enough": ("Prefer", {0, 5}, 50 * GI, "Validated", "0-1", "MemSet [0 1]"),
    "refused where it must fit": ("Bind", {0, 1}, 50 * GI, "CPUSetAllocationFailed", "", "32.0 GiB are free"),
    "bound where it must": ("Bind", {0, 1}, 20 * GI, "Validated", "0", "MemSet [0]"),
    "never bound": ("None", {0, 1}, 1 * GI, "Validated", "", "MemSet []"),
}


@pytest.mark.parametrize(("memory", "cpus", "size", "status", "mems", "message"), MEMORY.values(), ids=MEMORY)
def test_memory_is_bound_where_it_fits(memory, cpus, size, status, mems, message):
    pcb = PodCPUBinding("ns", "b", "u", "2026-03-01T12:00:00Z", "p", frozenset(cpus), "CPU", memory)
    node = NodeCPUTopology("n", SIZED, CPUPools())
    (verdict,) = judge_node("n", node, [(pcb, BoundPod("uid", "n", memory_bytes=size))]).values()
    assert (verdict.status, verdict.mems) == (status, mems)
    assert message in verdict.message


HUGE = replace(SIZED, hugepage_bytes={0: {"hugepages-2Mi": 24 * GI}, 1: {"hugepages-2Mi": 0}})
# CPUs, memory and huge pages of the pod, memory nodes, what the message names
HUGEPAGES = {
    "huge pages are part of a node's memory": ({0}, 10 * GI, {}, "", "10.0 GiB do not fit memory nodes [0]"),
    "and do not limit the other's": ({5}, 10 * GI, {}, "1", "MemSet [1]"),
    "bound where they are": ({0}, GI, {"hugepages-2Mi": 20 * GI}, "0", "MemSet [0]"),
    "not bound where they are not": ({5}, GI, {"hugepages-2Mi": GI}, "", "1.0 GiB of hugepages-2Mi do not fit"),
    "of a size that is not reported": ({5}, GI, {"hugepages-1Gi": GI}, "1", "MemSet [1]"),
}


@pytest.mark.parametrize(("cpus", "size", "hugepages", "mems", "message"), HUGEPAGES.values(), ids=HUGEPAGES)
def test_huge_pages_count_by_memory_node(cpus, size, hugepages, mems, message):
    pcb = PodCPUBinding("ns", "b", "u", "2026-03-01T12:00:00Z", "p", frozenset(cpus), "CPU")
    pod = BoundPod("uid", "n", memory_bytes=size, hugepages=hugepages)
    (verdict,) = judge_node("n", NodeCPUTopology("n", HUGE, CPUPools()), [(pcb, pod)]).values()
    assert (verdict.status, verdict.mems) == ("Validated", mems)
    assert message in verdict.message


def test_a_binding_of_containers_that_the_pod_has_not_is_refused_with_those_that_it_has():
    made = PodCPUBinding(
        "ns", "b", "u", "2026-03-01T12:00:00Z", "p", frozenset({0}), "CPU", containers=frozenset({"main", "lgo"})
    )
    pod = BoundPod("uid", "n", containers=frozenset({"main", "log"}))
    node = NodeCPUTopology("n", SEED, CPUPools())
    (verdict,) = judge_node("n", node, [(made, pod)]).values()
    assert (verdict.status, verdict.reason) == ("Failed", "ContainersNotFound")
    assert verdict.message == "spec.containers names lgo, and pod ns/p has containers log, main."
    (verdict,) = judge_node("n", node, [(made, BoundPod("uid", "n"))]).values()
    assert verdict.status == "Validated", "the pod's containers are not known"


def test_memory_nodes_are_not_promised_twice():
    pods = [
        (PodCPUBinding("ns", f"b{n}", f"u{n}", f"2026-03-01T12:00:0{n}Z", f"p{n}", frozenset({n}), "CPU"), 20 * GI)
        for n in range(2)
    ]
    there = [(pcb, BoundPod(pcb.uid, "n", memory_bytes=size)) for pcb, size in pods]
    verdicts = judge_node("n", NodeCPUTopology("n", SIZED, CPUPools()), there)
    assert [verdict.mems for verdict in verdicts.values()] == ["0", ""], "two pods of 20 GiB do not share 32 GiB"
    unknown = judge_node("n", NodeCPUTopology("n", SEED, CPUPools()), there)
    assert [verdict.mems for verdict in unknown.values()] == ["0", "0"], "an agent that reports no sizes"


def seconds_to_judge(cpus: frozenset[int]) -> float:
    """CPU time for bindings of these CPUs, which the node does not have; the least of several."""
    made = [PodCPUBinding("default", f"b{n}", "u", "2026-03-01T12:00:00Z", "p", cpus) for n in range(20)]
    node = NodeCPUTopology("node-4", SEED, CPUPools())
    found = []
    for _ in range(5):
        began = time.process_time()
        verdicts = judge_node("node-4", node, [(each, BoundPod("u", "node-4")) for each in made])
        found.append(time.process_time() - began)
        assert {verdict.reason for verdict in verdicts.values()} == {"CPUsNotFound"}
    return min(found)


def test_bindings_with_the_highest_numbers_of_cpus_take_no_longer_to_judge_than_others():
    """Each has as many CPUs as the CRD lets it have: with masks of 8 KiB, fifteen hundred of them took ten seconds."""
    low, high = (frozenset(range(first, first + 2048, 2)) for first in (20, 63_488))
    assert seconds_to_judge(high) < 3 * seconds_to_judge(low)


@given(st.sets(st.integers(0, 65_535), max_size=50))
def test_a_mask_has_the_bits_of_its_numbers(numbers):
    assert to_mask(numbers) == sum(1 << number for number in numbers)
    assert list(bits(to_mask(numbers))) == sorted(numbers)
