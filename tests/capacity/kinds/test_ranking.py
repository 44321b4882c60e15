"""Which kinds are left where a table can't hold all: as sorting all of them would leave."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.pod_kind import CLUSTER
from concerto.capacity.kinds import cluster_kinds
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.ranking import KindRanking
from concerto.capacity.kinds.sums import KindSums
from concerto.capacity.kinds.table import weight_of
from support.step_counts import steps_of

NAMES = [CLUSTER, *"abcdef"]
amounts = st.sampled_from([0.0, 1.0, 2.0])
changes = st.lists(
    st.tuples(st.just("add"), st.sampled_from(NAMES), amounts)
    | st.tuples(st.just("rank"), st.sampled_from(NAMES), amounts)
    | st.tuples(st.just("free"), st.sampled_from(NAMES), st.none()),
    max_size=30,
)


@given(changes, st.dictionaries(st.sampled_from(["x", "y"]), amounts), st.integers(0, 9))
def test_those_that_matter_most_are_found_by_cpus_and_then_by_what_pods_take(taken, others, number):
    ranking, places, parts, weights = KindRanking(), {}, {}, {}
    for what, name, amount in taken:
        if what == "free":
            if name in places:
                ranking.free(places.pop(name))
            parts.pop(name, None), weights.pop(name, None)
            continue
        if name not in places:
            places[name] = ranking.take(name)
        if what == "add":
            ranking.add(places[name], amount)
            parts[name] = parts.get(name, 0.0) + amount
        else:
            ranking.rank(places[name], amount)
            weights[name] = amount

    def rank(name):
        return name == CLUSTER, parts.get(name, 0.0), (weights | others)[name]

    found = ranking.most(number, others)
    assert len({*found}) == len(found)
    assert sorted(map(rank, found), reverse=True) == sorted(map(rank, weights | others), reverse=True)[:number]


nodes = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3"]), st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1.0, 2.0, 5.0]))
)


@pytest.mark.parametrize("most", [1, 3])
@settings(max_examples=60, deadline=None)
@given(st.lists(nodes, min_size=1, max_size=4))
def test_nodes_decide_by_their_cpus_which_kinds_a_table_holds(most, looks):
    cluster, before = ClusterKinds(), cluster_kinds.MAX_ENTRIES
    cluster_kinds.MAX_ENTRIES = most
    try:
        known = {}
        for look in looks:
            for node, works in look.items():
                known[node] = {key: KindSums(ended=9.0, work=work, held=9.0) for key, work in works.items()}
                cluster.set_node(node, known[node], 4.0)
            found, parts = cluster.published(), {}
            for table in known.values():
                total = sum(map(weight_of, table.values()))
                for key, sums in table.items():
                    parts[key] = parts.get(key, 0.0) + 4.0 * weight_of(sums) / total

            def rank(key, parts=parts):
                return key == CLUSTER, round(parts.get(key, 0.0), 6)

            everything = {key: cluster._merged[key] for key in cluster._merged}
            assert len(found) == min(most, len(everything))
            assert all(found[key] is everything[key] for key in found)
            expected = sorted(map(rank, everything), reverse=True)[:most]
            assert sorted(map(rank, found), reverse=True) == expected
    finally:
        cluster_kinds.MAX_ENTRIES = before


def test_of_very_many_kinds_those_that_matter_most_are_found_without_a_look_at_each():
    def steps(kinds: int) -> int:
        ranking = KindRanking()
        for number in range(kinds):
            ranking.rank(ranking.take(f"k{number}"), float(number % 7))
        return steps_of(lambda: ranking.most(10, {}))

    assert steps(4000) == steps(1000)
