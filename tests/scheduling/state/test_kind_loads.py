"""What kinds of pods commit of nodes, and which events make room for pods that wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.nodecapacity import ResourceStatus
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.state import placed_kinds
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod


def table(*pods, ended=True):
    kinds = NodeKinds()
    if ended:
        for measured in pods:
            kinds.pod_ended(pod("any").kind, measured, 0.0)
        return kinds.table((), 0.0)
    return kinds.table([(pod("any").kind, measured) for measured in pods], 0.0)


HALF_A_CORE = table(PodMeasurement(2.0, 4.0, 4.0, 1e6, True))


def measured(name, units, *, cpu_base=0.0, version=1):
    made = capacity(name, units, version=version)
    resources = (ResourceStatus("cpu", cpu_base, cpu_base, 0.0, 0.9),)
    return replace(made, status=replace(made.status, resources=resources, system_cpu=cpu_base))


def crowded(pods):
    """A node of four cores that is over by units, with pods that take half a core each."""
    there = [pod(f"p{i}", nodeName="n", phase="Running") for i in range(pods)]
    cluster = cluster_state([node("n")], there, [measured("n", -20.0)])
    cluster.kinds.set_table(HALF_A_CORE)
    return cluster


def ended(name):
    return pod(name, nodeName="n", phase="Succeeded")


def test_a_pod_that_ends_makes_room_however_many_units_its_node_is_over_by():
    assert Change.CAPACITY in crowded(9).set_pod(ended("p0"), NOW)


def test_a_pod_that_is_deleted_makes_room_as_well():
    assert Change.CAPACITY in crowded(9).remove_pod("uid-p0")


def test_an_end_that_leaves_the_node_over_makes_no_room():
    assert Change.CAPACITY not in crowded(12).set_pod(ended("p0"), NOW)


def test_a_node_that_needs_less_for_itself_has_room():
    cluster = crowded(8)
    cluster.set_capacity(measured("n", -20.0, cpu_base=0.4, version=2), NOW + 1)
    assert Change.CAPACITY in cluster.set_capacity(measured("n", -20.0, version=3), NOW + 2)


def test_a_status_that_changes_nothing_makes_no_room():
    cluster = crowded(8)
    assert Change.CAPACITY not in cluster.set_capacity(measured("n", -20.0, version=2), NOW + 1)


@pytest.mark.parametrize(
    ("after", "makes_room"),
    [
        (table(PodMeasurement(1.0, 4.0, 4.0, 1e6, True)), True),
        (table(PodMeasurement(3.0, 4.0, 4.0, 1e6, True)), True),  # pods of that kind may wait for evidence alone
        (HALF_A_CORE, False),
    ],
)
def test_other_costs_are_worth_another_look(after, makes_room):
    assert (Change.CAPACITY in crowded(8).kinds.set_table(after)) == makes_room


def test_more_pods_that_show_their_load_let_more_of_their_kind_start():
    one = PodMeasurement(1.0, 4.0, 4.0, 1e6, False, recent=0.5)
    cluster = crowded(1)
    cluster.kinds.set_table(table(one, ended=False))
    assert Change.CAPACITY in cluster.kinds.set_table(table(one, one, ended=False))


def kind_table(shares):
    """What is known of pods by name: their share, by a pod of each that has ended."""
    kinds = NodeKinds()
    for name, share in shares.items():
        kinds.pod_ended(pod(name).kind, PodMeasurement(4.0 * share, 4.0, 4.0, 1e6 * (1.0 + share), True), 0.0)
    return kinds.table((), 0.0)


NAMES, NODES = ("a", "b", "c"), ("n0", "n1", "n2")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.sampled_from(NAMES), st.sampled_from(NODES)),
        st.tuples(st.just("end"), st.integers(0, 20), st.none()),
        st.tuples(st.just("learn"), st.dictionaries(st.sampled_from(NAMES), st.floats(0.1, 4.0)), st.none()),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_whatever_is_placed_ends_and_is_learned_nodes_are_committed_as_if_all_had_been_known_before(taken):
    def empty():
        return cluster_state([node(name) for name in NODES], [], [measured(name, 0.0) for name in NODES])

    cluster, placed, known = empty(), {}, {}
    for number, (what, first, second) in enumerate(taken):
        if what == "place":
            made = pod(f"{first}-{number}", nodeName=second)
            placed[made.uid] = made
            cluster.set_pod(made, NOW)
        elif what == "end" and placed:
            uid = sorted(placed)[first % len(placed)]
            cluster.set_pod(replace(placed.pop(uid), phase="Succeeded"), NOW)
        elif what == "learn":
            known = kind_table(first)
            cluster.kinds.set_table(known)
    afresh = empty()
    afresh.kinds.set_table(known)
    for made in placed.values():
        afresh.set_pod(made, NOW)
    one, other = cluster.kinds.loads, afresh.kinds.loads
    for name in NODES:
        row, again = cluster.row_of[name], afresh.row_of[name]
        assert one.cpu[row] == pytest.approx(other.cpu[again], abs=1e-6)
        assert one.memory[row] == pytest.approx(other.memory[again], abs=1.0)
        assert one.pods[row] == other.pods[again]


def test_a_kind_that_has_not_ended_a_pod_is_limited_alike_whether_all_nodes_are_asked_about_or_some():
    running = PodMeasurement(1.0, 4.0, 4.0, 1e6, False, recent=0.5)
    there = [pod(f"any-{i}", nodeName="n1") for i in range(5)]
    cluster = cluster_state([node(name) for name in NODES], there, [measured(name, 0.0) for name in NODES])
    cluster.kinds.set_table(NodeKinds().table([(pod("any").kind, running)], 0.0))
    waiting = pod("any-77")
    cost = cluster.kinds.cost_of(waiting)
    every = cluster.kinds.may_run(waiting, cost, slice(0, cluster.size))
    some = np.array([2, 0, 1])
    assert every.tolist() == [name != "n1" for name in cluster.names[: cluster.size]]
    assert cluster.kinds.may_run(waiting, cost, some).tolist() == every[some].tolist()


def test_pods_without_a_workload_in_common_cost_one_estimate_and_one_change(monkeypatch):
    there = [pod(f"p{i}", namespace=f"team-{i}", nodeName="n", phase="Running") for i in range(100)]
    cluster = cluster_state([node("n")], there)
    cluster.kinds.set_table(HALF_A_CORE)
    estimates, changes = [], []
    estimate, change = placed_kinds.estimate, cluster.kinds.loads.change_cost
    monkeypatch.setattr(placed_kinds, "estimate", lambda *given: estimates.append(given) or estimate(*given))
    monkeypatch.setattr(cluster.kinds.loads, "change_cost", lambda *given: changes.append(given) or change(*given))
    for work in (1.0, 2.0, 3.0):
        cluster.kinds.set_table(table(PodMeasurement(work, 4.0, 4.0, 1e6, True)))
    assert len(cluster.kinds._kinds) == 100
    assert (len(estimates), len(changes)) == (3, 3)
    share = cluster.kinds.cost_of_kind(pod("p0").kind).share
    assert cluster.kinds.loads.cpu[cluster.row_of["n"]] == pytest.approx(100 * share)
