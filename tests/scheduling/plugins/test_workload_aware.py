"""WorkloadAware: which nodes have CPUs for a pod, how good they are, and that what is assumed is not given twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import CPUPools, CPUTopology, NodeCPUTopology
from concerto.api.schedulingprofile import WorkloadAwareSettings
from concerto.api.score_arguments import ScoreSettings
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.pinning.allocator import allocate
from concerto.pinning.conflicts import Claim, conflict, shared_pool
from concerto.pinning.occupancy import Occupancy
from concerto.pinning.topology import TopologyIndex, to_mask
from concerto.scheduling.cycle import schedule
from concerto.scheduling.explanation import explain
from concerto.scheduling.plugins.workload_aware.filter import WorkloadAware
from concerto.scheduling.plugins.workload_aware.score import WorkloadAware as Score
from concerto.scheduling.queries import query_for
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cpus import MAX_WORKLOADS, workload_of
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile, reasons, scores
from support.topologies import machine, topologies

SEED = machine(2, 5, 2)  # CPU n and n+10 share a core; 0-4 and 10-14 are socket 0
TYPE, EXCLUSIVENESS = "concerto.dev/workload-type", "concerto.dev/exclusiveness"


def cluster(*names: str, **machines):
    """Nodes of the seed's shape, and others of theirs; each can take 50 pods."""
    shapes = dict.fromkeys(names, SEED) | machines
    made = cluster_state(
        [node(n, allocatable={"cpu": 20_000}) for n in shapes], (), [capacity(n, 50.0) for n in shapes]
    )
    for name, shape in shapes.items():
        made.set_topology(NodeCPUTopology(name, shape, CPUPools()))
    return made


def pinned(name: str, kind: str = "cpu-bound", cpu: str | None = "2", **over):
    labels = {TYPE: kind} | over.pop("labels", {})
    return pod(name, labels=labels, requests={"cpu": cpu} if cpu else None, **over)


def binding(name: str, on: str, cpus: str, level: str = "CPU", **metadata):
    return {
        "metadata": {"namespace": "default", "name": name} | metadata,
        "spec": {"podName": name, "exclusivenessLevel": level},
        "status": {"nodeName": on, "cpus": cpus, "resourceStatus": "Validated"},
    }


def by(policy: str = "Balanced", *features: str, **more):
    return profile(workload_aware=WorkloadAwareSettings(policy, frozenset(features)), **more)


def decide(made, pods, using=None):
    return schedule(made, pods, {"concerto": using or by()}, now=NOW, generator=np.random.default_rng(0))


def given_cpus(result):
    return {d.pod.name: (d.assignment.node, d.assignment.pin.cpus) for d in result.decisions}


def reported(result):
    return {u.pod.name: u.diagnosis.message for u in result.unschedulable}


# pod, profile, cpus, mems, level
KINDS = {
    "cpu-bound": (pinned("p", cpu="3"), by(), ("0-2", "0", "CPU")),
    "cpu-bound, a part of a CPU more": (pinned("p", cpu="2100m"), by(), ("0-2", "0", "CPU")),
    "cpu-bound on physical cores": (pinned("p", cpu="3"), by("Balanced", "PhysicalCores"), ("0-2", "0", "Core")),
    "memory-bound": (pinned("p", "memory-bound"), by(), ("0,5", "0-1", "CPU")),
    "memory-bound with sockets of its own": (
        pinned("p", "memory-bound", "1"), by("Balanced", "MemoryBoundExclusiveSockets"), ("0", "0", "Socket"),
    ),
    "io-bound": (pinned("p", "io-bound"), by(), ("0,10", "0", "CPU")),
    "best-effort": (pinned("p", "best-effort", "8"), by(), ("0", "0", "None")),
    "best-effort without a request": (pinned("p", "best-effort", None), by(), ("0", "0", "None")),
    "best-effort, shared": (pinned("p", "best-effort"), by("Balanced", "BestEffortSharedCPUs"), ("0", "0", "None")),
    "an exclusiveness of its own": (pinned("p", labels={EXCLUSIVENESS: "NUMA"}), by(), ("0-1", "0", "NUMA")),
}  # fmt: skip


@pytest.mark.parametrize(("asking", "using", "expected"), KINDS.values(), ids=KINDS)
def test_a_pod_gets_cpus_as_its_type_and_the_profile_say(asking, using, expected):
    (decision,) = decide(cluster("a"), [asking], using).decisions
    pin = decision.assignment.pin
    assert (pin.cpus, pin.mems, pin.level, pin.binding) == (*expected, "p")


def test_pods_of_one_cycle_see_what_those_before_them_hold_and_those_after_it_what_was_held():
    made = cluster("a")
    first = decide(made, [pinned("p0", cpu="4"), pinned("p1", cpu="4"), pinned("q", "io-bound")])
    assert given_cpus(first) == {"p0": ("a", "0-3"), "p1": ("a", "5-8"), "q": ("a", "4,14")}
    assert given_cpus(decide(made, [pinned("p2", cpu="4")])) == {"p2": ("a", "9-11,19")}
    assert reported(decide(made, [pinned("p3", cpu="6")])) == {
        "p3": "0/1 nodes are available: 1 node(s) had too few free CPUs for 6 cpu-bound threads."
    }


def test_a_pod_without_a_type_shares_what_is_left_and_is_asked_nothing():
    result = decide(cluster("a"), [pod("p"), pinned("q")])
    assert [d.assignment.pin is None for d in result.decisions] == [True, False]
    assert WorkloadAware().prepare(query_for(cluster("a"), pod("p"), by(), NOW)) is None
    assert WorkloadAware().prepare(query_for(cluster("a"), pinned("q"), by(), NOW)) is not None


def test_where_the_profile_does_not_list_the_filter_labels_mean_nothing():
    using = profile(filters=("UnsupportedConstraints",))
    assert [d.assignment.pin for d in decide(cluster("a"), [pinned("p")], using).decisions] == [None]


WRONG = {
    "an unknown type": (
        pinned("p", "gpu-bound"),
        "node(s) don't know the value of label concerto.dev/workload-type=gpu-bound (known: cpu-bound, memory-bound, "
        "io-bound, best-effort)",
    ),
    "an unknown exclusiveness": (
        pinned("p", labels={EXCLUSIVENESS: "Rack"}),
        "node(s) don't know the value of label concerto.dev/exclusiveness=Rack (known: None, CPU, Core, Socket, NUMA)",
    ),
    "no request": (
        pinned("p", "io-bound", None),
        "node(s) can't derive the number of CPUs: workload type io-bound needs a cpu request",
    ),
}


@pytest.mark.parametrize(("asking", "problem"), WRONG.values(), ids=WRONG)
def test_what_can_not_be_meant_is_said_and_the_pod_waits(asking, problem):
    assert reported(decide(cluster("a", "b"), [asking])) == {"p": f"0/2 nodes are available: 2 {problem}."}


def test_why_nodes_are_refused_and_what_helps():
    made = cluster("full", "slow", "free")
    made.set_node(node("blind"))
    made.set_cpu_binding(binding("other", "full", "0-19"))
    made.cpus.avoid("slow", NOW + 30)
    query = query_for(made, pinned("p"), by(), NOW)
    assert reasons(WorkloadAware(), query) == {
        "node(s) had too few free CPUs for 2 cpu-bound threads": 1,
        "node(s) had an agent that did not prepare a pod's CPUs in time": 1,
        "node(s) had no NodeCPUTopology": 1,
    }
    assert [v.node for v in explain(made, pinned("p"), by(), NOW) if v.total is not None] == ["free"]
    assert made.end_avoidance(NOW + 29) == Change.NOTHING
    assert made.end_avoidance(NOW + 30) == Change.CPUS == WorkloadAware.requeue_on & ~Change.NODE
    assert made.remove_cpu_binding(("default", "other")) & Change.CPUS
    assert [v.node for v in explain(made, pinned("p"), by(), NOW) if v.total is not None] == ["free", "full", "slow"]


def test_a_node_whose_agent_does_not_pin_is_not_tried():
    made = cluster("a", "b")
    assert made.set_topology(NodeCPUTopology("a", SEED, CPUPools(), "None")) == Change.CPUS
    assert given_cpus(decide(made, [pinned("p")])) == {"p": ("b", "0-1")}
    made.set_topology(NodeCPUTopology("b", SEED, CPUPools(), "None"))
    assert "2 node(s) had an agent that runs without --pinning" in reported(decide(made, [pinned("q")]))["q"]
    made.set_topology(NodeCPUTopology("a", SEED, CPUPools(), "Files"))
    assert given_cpus(decide(made, [pinned("q")])) == {"q": ("a", "0-1")}


def test_an_operator_without_the_pinning_component_says_so():
    made = cluster("a")
    made.remove_topology("a")
    made.cpus.followed = False
    (message,) = reported(decide(made, [pinned("p")])).values()
    assert "without --controllers=pinning (install manifests/components/pinning, or" in message
    assert "NodeCPUTopology" not in message


def test_nodes_score_by_the_room_for_the_type_and_the_policy_turns_it_round():
    made = cluster("empty", "half")
    made.set_cpu_binding(binding("other", "half", "0-4", "Core"))
    assert scores(Score(), query_for(made, pinned("p"), by(), NOW)) == {"empty": 100, "half": pytest.approx(50)}
    filled = by("MaximumUtilization", scores=(ScoreSettings("WorkloadAware"),))
    assert scores(Score(), query_for(made, pinned("p"), filled, NOW)) == {"empty": 0, "half": pytest.approx(50)}
    assert scores(Score(), query_for(made, pod("p"), by(), NOW)) == {}
    for policy, node_ in (("Balanced", "empty"), ("MaximumUtilization", "half")):
        using = by(policy, scores=(ScoreSettings("WorkloadAware"),))
        assert given_cpus(decide(cluster_like(made), [pinned("p")], using))["p"][0] == node_


def cluster_like(made):
    """The same nodes anew: deciding changes a cluster."""
    again = cluster(*made.row_of)
    again.set_cpu_binding(binding("other", "half", "0-4", "Core"))
    return again


def test_cpus_are_held_from_the_decision_on_until_the_pod_is_gone_whatever_comes_first():
    made = cluster("a", a=machine(1, 3, 1))
    waiting = pinned("p")
    (decision,) = decide(made, [waiting]).decisions
    free = workload_of(pinned("q", cpu="1"), WorkloadAwareSettings())

    def is_free():
        return made.cpus.place("a", free) is not None

    assert not is_free()
    # The binding of an attempt before this one goes late: what is assumed now is not touched by it
    made.set_cpu_binding(binding("p", "a", "0-1"))
    made.remove_cpu_binding(("default", "p"))
    assert not is_free()
    made.set_cpu_binding(binding("p", "a", "0-1"))
    made.confirm(waiting.uid)
    made.set_pod(replace(waiting, node_name="a"), NOW)
    assert not is_free()
    made.remove_pod(waiting.uid)
    assert not is_free(), "its binding holds them as long as it is there"
    assert made.set_cpu_binding(binding("p", "a", "0-1", deletionTimestamp="2026-03-01T12:00:00Z")) & Change.CPUS
    assert is_free()
    assert decision.assignment.pin.cpus == "0-1"


def test_a_decision_that_is_taken_back_gives_its_cpus_back():
    made = cluster("a", a=machine(1, 3, 1))
    waiting = pinned("p")
    decide(made, [waiting])
    assert made.forget(waiting.uid) & Change.CPUS
    assert given_cpus(decide(made, [pinned("q")])) == {"q": ("a", "0-1")}


def test_a_binding_that_holds_nothing_or_moves_is_followed():
    made = cluster("a", "b")
    small = workload_of(pinned("q", "io-bound", "2"), WorkloadAwareSettings())
    made.set_cpu_binding(binding("x", "a", "0,10"))
    assert made.cpus.place("a", small).cpus == to_mask({1, 11})
    assert made.set_cpu_binding(binding("x", "b", "0,10")) & Change.CPUS
    assert (made.cpus.place("a", small).cpus, made.cpus.place("b", small).cpus) == (to_mask({0, 10}), to_mask({1, 11}))
    lost = binding("x", "b", "0,10")
    del lost["status"]["cpus"]
    assert made.set_cpu_binding(lost) & Change.CPUS
    assert made.cpus.place("b", small).cpus == to_mask({0, 10})


def test_a_topology_that_changes_or_goes_is_followed():
    made = cluster("a")
    asking = workload_of(pinned("p", cpu="1"), WorkloadAwareSettings())
    reserved = NodeCPUTopology("a", SEED, CPUPools(reserved=frozenset({0}), kubelet_exclusive=frozenset({1})))
    assert made.set_topology(reserved) == Change.CPUS
    assert made.set_topology(reserved) == Change.NOTHING
    assert made.cpus.place("a", asking).cpus == to_mask({5}), "the socket with most idle cores"
    made.set_topology(NodeCPUTopology("a", None, CPUPools()))
    assert made.cpus.place("a", asking) is None
    assert made.set_topology(NodeCPUTopology("a", SEED, CPUPools())) == Change.CPUS
    made.remove_topology("a")
    assert not made.cpus.is_known("a")


@st.composite
def asking(draw: st.DrawFn) -> tuple[str, str, dict[str, str]]:
    kind = draw(st.sampled_from(["cpu-bound", "memory-bound", "io-bound", "best-effort"]))
    level = draw(st.sampled_from([None, None, None, "CPU", "Core", "Socket", "NUMA"]))
    return kind, str(draw(st.integers(1, 6))), {EXCLUSIVENESS: level} if level else {}


FEATURES = st.sets(st.sampled_from(["PhysicalCores", "MemoryBoundExclusiveSockets", "BestEffortSharedCPUs"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(topologies(), min_size=1, max_size=3), st.lists(st.lists(asking(), max_size=5), max_size=4), FEATURES)
def test_over_any_nodes_and_cycles_no_exclusive_cpu_is_given_twice_and_the_shared_pool_is_never_empty(
    shapes, cycles, features
):
    def run():
        made = cluster(**{f"n{i}": shape for i, shape in enumerate(shapes)})
        using = by("Balanced", *features, scores=(ScoreSettings("WorkloadAware"),))
        indices = {f"n{i}": TopologyIndex.build(shape) for i, shape in enumerate(shapes)}
        live, held = {}, {name: {} for name in indices}
        for number, wanted in enumerate(cycles):
            pods = [pinned(f"p{number}-{i}", k, cpu, labels=labels) for i, (k, cpu, labels) in enumerate(wanted)]
            for decision in decide(made, pods, using).decisions:
                a, index = decision.assignment, indices[decision.assignment.node]
                asked, beside = workload_of(decision.pod, using.settings.workload_aware), held[a.node]
                # Whatever was cached: what the allocator, whose quality is tested elsewhere, says of the node as it is
                now = Occupancy(index, claims=tuple(beside.values()))
                placement = allocate(now, asked.kind, asked.threads, asked.features, asked.level)
                cpus = to_mask(parse_cpu_list(a.pin.cpus))
                assert (cpus, a.pin.level) == (placement.cpus, placement.level)
                claim = Claim(cpus, a.pin.level, a.pin.level == "None" and asked.kind == "best-effort")
                assert not any(conflict(index, claim, other) for other in beside.values())
                beside[a.name], live[a.name] = claim, decision
                assert shared_pool(index, 0, beside.values())
            if live:  # one is taken back, the others' bindings hold their CPUs from now on
                name, first = next(iter(live.items()))
                if made.forget(first.pod.uid):
                    del live[name], held[first.assignment.node][name]
            for decision in list(live.values())[::2]:
                a = decision.assignment
                best = {"labels": dict(decision.pod.labels)}
                made.set_cpu_binding(binding(a.name, a.node, a.pin.cpus, a.pin.level, **best))
                made.confirm(a.uid)
        return {name: d.assignment for name, d in live.items()}

    assert run() == run()


def test_exclusive_cpus_count_even_where_they_are_more_than_the_request():
    made = cluster("a")
    physical = by("Balanced", "PhysicalCores")
    nine = decide(made, [pinned(f"x{n}", cpu="1") for n in range(9)], physical)
    assert len(nine.decisions) == 9, "nine cores of two CPUs each"
    eleven = decide(made, [pod(f"y{n}", requests={"cpu": "1"}) for n in range(11)])
    assert len(eleven.decisions) == 2
    assert set(reported(eleven).values()) == {
        "0/1 nodes are available: 1 Insufficient cpu beside exclusive CPUs of pinned pods."
    }
    assert made.forget("uid-x0") & Change.CPUS
    again = decide(made, [pod(f"z{n}", requests={"cpu": "1"}) for n in range(3)])
    assert len(again.decisions) == 2


def test_eleven_requests_beside_nine_exclusive_pods_go_elsewhere():
    made = cluster("a")
    decide(made, [pinned(f"x{n}", cpu="1") for n in range(9)], by("Balanced", "PhysicalCores"))
    made.set_node(node("b", allocatable={"cpu": 20_000}))
    made.set_capacity(capacity("b", 50.0), NOW)
    placed = decide(made, [pod(f"y{n}", requests={"cpu": "1"}) for n in range(11)])
    by_node = Counter(d.assignment.node for d in placed.decisions)
    assert by_node["b"] >= 9 and by_node.total() == 11


def test_a_pinned_pod_takes_no_cpus_exclusively_that_others_have_requested():
    made = cluster("a")
    decide(made, [pod(f"y{n}", requests={"cpu": "1"}) for n in range(18)])
    physical = by("Balanced", "PhysicalCores")
    assert len(decide(made, [pinned("x0", cpu="1")], physical).decisions) == 1
    assert reported(decide(made, [pinned("x1", cpu="1")], physical)) == {
        "x1": "0/1 nodes are available: 1 Insufficient cpu beside exclusive CPUs of pinned pods."
    }


def test_idle_exclusive_cpus_are_no_room_for_pods_without_requests():
    made = cluster("a")
    decide(made, [pinned(f"x{n}", cpu="1") for n in range(9)], by("Balanced", "PhysicalCores"))
    assert made.measured.available[made.row_of["a"]] == pytest.approx((50 - 9) * 2 / 20)


def test_a_best_effort_pod_without_a_request_takes_no_cpu_from_anybody():
    made = cluster("a")
    decide(made, [pinned(f"b{n}", "best-effort", None) for n in range(5)])
    placed = decide(made, [pod(f"y{n}", requests={"cpu": "1"}) for n in range(20)])
    assert len(placed.decisions) == 20


CPUS = st.sets(st.integers(0, 11), max_size=6).map(sorted)
SOCKETS = st.dictionaries(st.integers(0, 3).map(str), st.fixed_dictionaries({"cpus": CPUS}), max_size=4)
# What the CRD takes of an agent's token; cores, sockets and memory nodes need not agree
CONTRADICTORY = st.fixed_dictionaries(
    {
        "cpus": CPUS,
        "sockets": st.dictionaries(
            st.integers(0, 2).map(str), st.fixed_dictionaries({"cpus": CPUS, "cores": SOCKETS}), max_size=3
        ),
        "numaNodes": SOCKETS,
    },
    optional={"caches": st.lists(st.fixed_dictionaries({"level": st.just(3), "cpus": st.just("0-3")}), max_size=1)},
)
POOLS = st.fixed_dictionaries(
    {"reserved": st.sampled_from(["", "0", "0-3"]), "kubeletExclusive": st.sampled_from(["", "1", "2-7"])}
)
LEVELS = st.sampled_from([None, "None", "CPU", "Core", "Socket", "NUMA"])


@given(CONTRADICTORY, POOLS, st.sampled_from(["cpu-bound", "memory-bound", "io-bound", "best-effort"]), LEVELS)
@settings(max_examples=100)
def test_a_topology_that_contradicts_itself_stops_no_pod_from_finding_another_node(topology, pools, kind, level):
    raw = {"metadata": {"name": "evil"}, "status": {"topology": topology, "pools": pools}}
    pods = [pinned(f"p{n}", kind, "1", labels={} if level is None else {EXCLUSIVENESS: level}) for n in range(3)]
    for using in (by(), by(scores=(ScoreSettings("WorkloadAware"),))):
        made = cluster("good", evil=SEED)
        made.set_topology(NodeCPUTopology.from_raw(raw))
        assert given_cpus(decide(made, pods, using)), "a node as it should be has CPUs for one at least"


EMPTY = CPUTopology((), {})


@pytest.mark.parametrize("kind", ["cpu-bound", "memory-bound", "io-bound", "best-effort"])
def test_a_topology_without_cpus_stops_no_pod_from_finding_another_node(kind):
    # An agent's token can write it; the score divided by the number of CPUs
    made = cluster("good", evil=EMPTY)
    found = decide(made, [pinned("p", kind)], by(scores=(ScoreSettings("WorkloadAware"),)))
    assert given_cpus(found)["p"][0] == "good"
    made.set_topology(NodeCPUTopology("good", EMPTY, CPUPools()))
    assert "no NodeCPUTopology" in reported(decide(made, [pinned("q", kind)]))["q"]


def test_a_policy_without_its_score_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="no effect without the score WorkloadAware: add it"):
        by("MaximumUtilization")


@pytest.mark.parametrize("uses", [0.1, 1.5])
def test_exclusive_cpus_are_no_room_for_pods_that_are_placed_by_what_they_cost(uses):
    made = cluster("a")
    table = NodeKinds()
    for each, share in ((pinned("x0", cpu="1"), uses), (pod("y0"), 0.5)):
        table.pod_ended(each.kind, PodMeasurement(share * 10.0, 10.0, 10.0, 2.0**20, True), 0.0)
    made.kinds.set_table(table.table((), 0.0))
    made.kinds.loads.settings = replace(made.kinds.loads.settings, min_burst_seconds=1e6, last_pods=0.0)
    nine = decide(made, [pinned(f"x{n}", cpu="1") for n in range(9)], by("Balanced", "PhysicalCores"))
    assert len(nine.decisions) == 9
    share, other = (made.kinds.cost_of(each).share for each in (pinned("x0", cpu="1"), pod("y0")))
    left = made.kinds.left(made.row_of["a"])[0]
    assert left == pytest.approx(1.15 * 2.0 + 0.15 * 9 * share), "two CPUs are shared"
    assert len(decide(made, [pod(f"y{n}") for n in range(40)]).decisions) == pytest.approx(left / other, abs=1)
    before = made.kinds.left(made.row_of["a"])[0]
    made.forget("uid-x0")
    assert made.kinds.left(made.row_of["a"])[0] == pytest.approx(before + 1.15 * 2.0 - 0.15 * share)


def test_who_has_to_say_how_many_cpus_a_pod_gets_is_told_what_such_pods_use():
    made = cluster("a")
    asked = pod("x", labels={TYPE: "cpu-bound"})
    table = NodeKinds()
    table.pod_ended(asked.kind, PodMeasurement(34.0, 10.0, 10.0, 2.0**20, True), 0.0)
    made.kinds.set_table(table.table((), 0.0))
    (said,) = reported(decide(made, [asked], by("Balanced"))).values()
    assert "workload type cpu-bound needs a cpu request (pods of its kind use 3.4 on average)" in said


@pytest.mark.parametrize("uses", [0.1, 1.5])
def test_what_pinned_pods_keep_from_others_follows_what_is_measured_of_them_later(uses):
    made = cluster("a")
    made.kinds.loads.settings = replace(made.kinds.loads.settings, last_pods=0.0)
    four = [pinned(f"x{n}", cpu="1") for n in range(4)]
    assert len(decide(made, four, by("Balanced", "PhysicalCores")).decisions) == 4
    kind, table = pinned("x0", cpu="1").kind, NodeKinds()
    table.pod_ended(kind, PodMeasurement(uses * 10.0, 10.0, 10.0, 2.0**20, True), 0.0)
    made.kinds.set_table(table.table((), 0.0))
    share = made.kinds.cost_of_kind(kind).share
    assert made.kinds.left(made.row_of["a"])[0] == pytest.approx(1.15 * 12.0 + 0.15 * 4 * share), "12 CPUs are shared"


def test_what_is_remembered_of_a_node_is_bounded_whatever_pods_ask_for():
    made = cluster("a", "b")
    for cpus in range(1, 2 * MAX_WORKLOADS):
        asked = workload_of(pinned("p", cpu=str(cpus)), WorkloadAwareSettings())
        assert (made.cpus.place("a", asked) is not None) == (cpus < 20)
        made.cpus.room("a", asked)
    state = made.cpus._state("a")
    assert state is made.cpus._state("b")
    assert max(len(state._places), len(state._rooms)) <= MAX_WORKLOADS
