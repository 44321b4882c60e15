"""What many nodes know, merged a part at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds.cluster_kinds import KEYS_A_TURN, ClusterKinds
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, bounded, from_entries, to_entries

JOBS = [kind_of("shop", "Job", name, (("main", f"{name}:1"),)) for name in ("pi", "sort", "tar")]
GI = 2.0**30

amounts = st.floats(0.0, 100.0)
pods = st.builds(
    lambda kind, work, held, memory, ended: (kind, PodMeasurement(work, held, held, memory, ended)),
    st.sampled_from(JOBS), amounts, st.floats(5.0, 100.0), st.floats(0.0, 1e10), st.booleans(),
)  # fmt: skip


@st.composite
def tables(draw):
    node, found = NodeKinds(), draw(st.lists(pods, max_size=6))
    for kind, pod in found:
        if pod.ended:
            node.pod_ended(kind, pod, 0.0)
    return node.table([each for each in found if not each[1].ended], 0.0)


def merge(nodes):
    cluster = ClusterKinds()
    for name, table in nodes.items():
        cluster.set_node(name, table, 4.0, 8.0 * GI)
    return cluster.table()


@settings(max_examples=30)
@given(st.lists(tables(), min_size=1, max_size=6), st.integers(1, 9))
def test_what_is_added_up_by_and_by_comes_to_the_same(found, max_rows):
    nodes = {f"n{number}": table for number, table in enumerate(found)}
    cluster, by_and_by = ClusterKinds(), {}
    for name, table in nodes.items():
        cluster.set_node(name, table, 4.0, 8.0 * GI)
    while cluster.has_changes:
        by_and_by = cluster.table(max_rows)
    assert by_and_by == merge(nodes)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), tables()), max_size=12))
def test_nodes_whose_kinds_come_and_go_leave_nothing_behind(steps):
    cluster, nodes = ClusterKinds(), {}
    for number, table in steps:
        nodes[f"n{number}"] = table
        cluster.set_node(f"n{number}", table, 4.0, 8.0 * GI)
        assert sum(len(key.rows) for key in cluster._keys.values()) == sum(map(len, nodes.values()))
        assert {*cluster._keys} == {key for each in nodes.values() for key in each}
    for name in nodes:
        cluster.remove_node(name)
    assert not cluster._keys
    assert len(cluster._rows._free) == len(cluster._rows.sums)


def test_kinds_that_are_new_are_added_up_before_those_that_have_changed():
    pi, sort = JOBS[0].key, JOBS[1].key
    cluster = ClusterKinds()
    cluster.set_node("a", {pi: KindSums(ended=1.0)}, 4.0)
    cluster.table()
    cluster.set_node("a", {pi: KindSums(ended=2.0)}, 4.0)
    cluster.set_node("b", {sort: KindSums(ended=3.0)}, 4.0)
    assert {key: sums.ended for key, sums in cluster.table(1).items()} == {pi: 1.0, sort: 3.0}
    assert cluster.table(1)[pi].ended == 2.0
    assert not cluster.has_changes


@settings(max_examples=30)
@given(tables())
def test_a_published_table_is_read_at_once_as_it_is_entry_by_entry(table):
    at_once, one_by_one = ClusterKinds(), ClusterKinds()
    at_once.set_entries("n", to_entries(table), 4.0, 8.0 * GI)
    one_by_one.set_node("n", from_entries(to_entries(table)), 4.0, 8.0 * GI)
    assert at_once.table() == one_by_one.table()


ODD = [
    ("x", ("?",)),
    ("x", (1.0,) * 99),
    ("x", (1e300,)),
    ("x", (-1.0,)),
    ("x", (math.nan,)),
    ("x", (None,)),
    ("x", None),
]


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_entry_of_a_published_table_costs_only_itself(odd):
    cluster = ClusterKinds()
    cluster.set_entries("n", [("good", (1.0, 2.0)), odd], 4.0)
    assert list(cluster.table()) == ["good"]


def test_of_a_key_that_a_table_has_twice_one_entry_counts():
    cluster = ClusterKinds()
    cluster.set_entries("n", [("good", (1.0,)), ("good", (2.0,))], 4.0)
    assert cluster.table()["good"].ended == 2.0


def test_a_thousand_nodes_are_held_in_little_memory():
    cluster, entries = ClusterKinds(), [(f"kind-{number}", (1.0,) * 16) for number in range(100)]
    for number in range(1000):
        cluster.set_entries(f"n{number}", entries, 4.0)
    assert cluster._rows.sums.nbytes / 100_000 < 200  # bytes for what a node knows of a kind
    assert cluster._rows.sums.dtype == np.float64


def test_keys_that_one_node_each_knows_are_added_up_a_part_at_a_time_the_first_ones_first():
    merged = ClusterKinds()
    for number in range(500):
        merged.set_node(f"n{number}", {f"k{number}": KindSums(ended=1.0, work=1.0)}, 8.0)
    merged.table(1100)
    assert sorted(merged._merged, key=lambda key: int(key[1:])) == [f"k{number}" for number in range(100)]
    assert merged.add_up(10**6, 50) == 50 * 11
    assert len(merged.table(10**6)) == 150 + KEYS_A_TURN
    assert merged.add_up() == 150 * 11
    assert merged.add_up() == 0


def test_what_is_left_out_of_many_kinds_is_what_sorting_all_of_them_leaves_out():
    generator = np.random.default_rng(0)
    for _ in range(100):
        keys = ["*", *(f"k{number}" for number in range(generator.integers(1, 40)))]
        table = {key: KindSums(work=float(generator.integers(3))) for key in generator.permutation(keys).tolist()}
        parts = {key: float(generator.integers(-1, 3)) for key in keys if generator.random() < 0.7}
        order = sorted(table, key=lambda key: (key != "*", -parts.get(key, 0.0), -table[key].work, key))
        most = int(generator.integers(1, 20))
        assert [*bounded(table, most, parts)] == (order[:most] if len(table) > most else [*table])
