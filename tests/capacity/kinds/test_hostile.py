"""What a node or an agent that lies, or a table that is broken, can do to decisions: no more than its share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds import cluster_kinds
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.cost import PRIOR_SHARE, estimate
from concerto.capacity.kinds.node_loads import NodeLoads
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import MAX_ENTRIES, NodeKinds, from_entries

JOB = kind_of("shop", "Job", "pi", (("main", "pi:1"),))
HONEST = PodMeasurement(2.0, 4.0, 4.0, 100e6, True)
CORES = 4.0


def honest(nodes, pods=10):
    found = {}
    for number in range(nodes):
        node = NodeKinds()
        for _ in range(pods):
            node.pod_ended(JOB, HONEST, 0.0)
        found[f"n{number}"] = node.table((), 0.0)
    return found


def cost_with(liar, nodes=9):
    cluster = ClusterKinds()
    for name, table in honest(nodes).items():
        cluster.set_node(name, table, CORES)
    cluster.set_node("liar", liar, CORES)
    return estimate(cluster.table(), JOB)


numbers = st.floats(0.0, 1e300, allow_nan=False, allow_infinity=False)
TRUE = 0.5
WEIGHT = 3 / 12  # of one liar among nine honest nodes: three times the median node's evidence
MEAN = 4  # in times of the median node's


@given(st.lists(numbers, min_size=len(KindSums._fields), max_size=len(KindSums._fields)))
def test_whatever_one_of_ten_nodes_publishes_costs_stay_within_its_part_of_the_evidence(sums):
    cost = cost_with(from_entries([(JOB.key, sums)]))
    assert cost.share >= TRUE * (1 - WEIGHT) / (1 - WEIGHT + MEAN * WEIGHT) - 1e-6
    assert cost.share <= TRUE * (1 + MEAN * 2 * WEIGHT / (1 - WEIGHT)) + 1e-6
    assert cost.memory <= MEAN * 100e6 + 1e-3
    assert cost.work <= MEAN * 2.0 + 1e-6


@given(work=st.floats(0.0, 1e30), pods=st.integers(1, 10**6))
def test_a_node_that_says_pods_are_huge_makes_them_dearer_by_no_more_than_its_weight(work, pods):
    liar = {JOB.key: KindSums(ended=pods, work=work, held=pods * 4.0, life=pods * 4.0)}
    assert cost_with(liar).share <= TRUE * (1 - WEIGHT + MEAN * WEIGHT) + 1e-6


BROKEN = {
    "not a number": [(JOB.key, [float("nan")] * 4)],
    "negative": [(JOB.key, [-1.0, 5.0])],
    "infinite": [(JOB.key, [1.0, float("inf")])],
    "too long": [(JOB.key, [1.0] * 99)],
    "of words": [(JOB.key, ["1", "x"])],
    "empty": [(JOB.key, [])],
}


def test_an_entry_without_a_key_says_nothing_of_kinds_that_nobody_knows():
    cluster = ClusterKinds()
    cluster.set_entries("liar", [("", (1e6, 0.0, 0.0, 1e6, 1e6)), ("x/Job/y@z", (1.0, 2.0, 0.0, 4.0, 4.0))], CORES)
    assert [*cluster.table()] == ["x/Job/y@z"]


@pytest.mark.parametrize("entries", BROKEN.values(), ids=BROKEN)
def test_a_broken_entry_changes_nothing(entries):
    cluster = ClusterKinds()
    for name, table in honest(3).items():
        cluster.set_node(name, table, CORES)
    before = estimate(cluster.table(), JOB)
    cluster.set_node("broken", from_entries(entries), CORES)
    assert estimate(cluster.table(), JOB) == before


def test_a_node_that_makes_up_kinds_does_not_crowd_out_the_others(monkeypatch):
    monkeypatch.setattr(cluster_kinds, "MAX_KNOWN", 2 * MAX_ENTRIES)
    cluster = ClusterKinds()
    for name, table in honest(3).items():
        cluster.set_node(name, table, CORES)
    made_up = {f"evil/Job/{i}@x": KindSums(ended=0.001, work=1e-3, held=1.0) for i in range(10 * MAX_ENTRIES)}
    cluster.set_node("liar", made_up, CORES)
    for table, most in ((cluster.table(), 2 * MAX_ENTRIES), (cluster.published(), MAX_ENTRIES)):
        assert estimate(table, JOB).share == pytest.approx(0.5)
        assert len(table) == most


@given(work=numbers, held=numbers, recent=numbers)
def test_what_a_node_says_of_running_pods_is_bounded_by_its_cpus(work, held, recent):
    liar = from_entries([(JOB.key, [0.0] * 8 + [1.0, work, held, 0.0, 0.0, work, held, recent])])
    cluster = ClusterKinds()
    cluster.set_node("liar", liar, CORES)
    assert estimate(cluster.table(), JOB).share <= 1.3 * CORES + 1e-6


def test_a_kind_that_only_a_liar_knows_is_known_by_its_word_and_bounded_by_its_cpus():
    cluster = ClusterKinds()
    cluster.set_node("liar", {JOB.key: KindSums(ended=5.0, work=1e9, held=20.0, life=20.0)}, CORES)
    assert estimate(cluster.table(), JOB).share <= CORES
    assert estimate({}, JOB).share == PRIOR_SHARE


MEMORY = 64 * 2.0**30
HUGE = KindSums(
    ended=6.0, work=60.0, held=600.0, life=600.0, memory=6e15, memory_squared=6e30, running=2.0, running_work=1.0,
    running_held=10.0, running_memory=2e15, max_memory=1e15,
)  # fmt: skip


@given(sums=st.lists(numbers, min_size=len(KindSums._fields), max_size=len(KindSums._fields)))
def test_a_pod_holds_no_more_memory_than_its_node_has(sums):
    cluster = ClusterKinds()
    cluster.set_node("liar", from_entries([(JOB.key, sums)]), CORES, MEMORY)
    known = cluster.table().get(JOB.key, KindSums())
    assert known.memory <= MEMORY * known.ended * (1 + 1e-9)
    assert known.memory_squared <= MEMORY**2 * known.ended * (1 + 1e-9)
    assert known.running_memory <= MEMORY * known.running * (1 + 1e-9)
    assert known.max_memory <= MEMORY
    assert (estimate(cluster.table(), JOB).memory or 0.0) <= MEMORY * (1 + 1e-9)


def test_what_a_node_says_of_memory_stays_as_it_is_within_what_it_has_or_where_that_is_unknown():
    for memory, table in ((MEMORY, honest(1)["n0"]), (math.inf, {JOB.key: HUGE})):
        cluster = ClusterKinds()
        cluster.set_node("n", table, CORES, memory)
        assert cluster.table()[JOB.key] == table[JOB.key]


@pytest.mark.parametrize("memory", [MEMORY, math.inf], ids=["its memory is known", "unknown"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_lie_about_memory_ends_with_five_pods_of_the_kind_on_other_nodes(memory, restarts):
    cluster = ClusterKinds()
    cluster.set_node("evil", {JOB.key: HUGE}, CORES, memory)
    cluster.table()
    cluster.remove_node("evil")
    for _ in range(restarts):
        before, cluster = cluster.table(), ClusterKinds()
        cluster.begin_with(before)
        cluster.all_read()
    loads = NodeLoads()
    loads.grow(1)
    loads.set_node(0, CORES, MEMORY)
    node = NodeKinds()
    rows = slice(None)
    for _ in range(5):
        lie = estimate(cluster.table(), JOB)
        assert lie.memory >= MEMORY
        assert loads.fits(lie, rows).all(), "an empty node takes it"
        loads.add_pod(0, lie)
        assert not loads.fits(lie, rows).any(), "and no second one"
        loads.remove_pod(0, lie)
        node.pod_ended(JOB, HONEST, 0.0)
        cluster.set_node("n", node.table((), 0.0), CORES, MEMORY)
    assert estimate(cluster.table(), JOB).memory == pytest.approx(HONEST.memory)


def test_work_and_what_starting_took_together_are_bounded_by_the_nodes_cpus():
    cluster = ClusterKinds()
    cluster.set_node("liar", {JOB.key: KindSums(ended=5.0, work=1e9, held=20.0, life=20.0, started=1e9)}, CORES)
    assert estimate(cluster.table(), JOB).share <= CORES * (1 + 1e-9)
