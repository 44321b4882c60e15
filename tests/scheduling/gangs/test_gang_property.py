"""Whatever gangs there are, none is ever placed by a half, and a gang that is not placed leaves no trace."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.scheduling.cycle import schedule
from support.gang_builders import add, group, members
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

GANGS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.sampled_from(["1", "2", "3"]), st.integers(0, 2)), max_size=5
)
NODES = st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(0, 6)), min_size=1, max_size=4)


def build(nodes, gangs, singles):
    named = [(f"n{i}", cpus, units) for i, (cpus, units) in enumerate(nodes)]
    cluster = cluster_state(
        [node(name, allocatable={"cpu": 1000 * cpus}) for name, cpus, _ in named],
        (),
        [capacity(name, float(units)) for name, _, units in named if units is not None],
    )
    heads = [pod(f"single-{i}", requests={"cpu": "1"}) for i in range(singles)]
    for i, (min_count, count, cpu, priority) in enumerate(gangs):
        pods = members(count, f"g{i}", requests={"cpu": cpu}, priority=priority)
        add(cluster, group(f"g{i}", min_count), *pods)
        heads += pods
    return cluster, heads


@settings(max_examples=200, deadline=None)
@given(
    NODES, GANGS, st.integers(0, 4), st.randoms(use_true_random=False), st.sampled_from([3, 250]), st.integers(1, 30)
)
def test_no_gang_is_ever_placed_by_a_half(nodes, gangs, singles, random, limit, time):
    cluster, heads = build(nodes, gangs, singles)
    random.shuffle(heads)
    ticks = iter(range(10_000))
    result = schedule(
        cluster, heads, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0), limit=limit,
        spent=lambda: next(ticks), max_seconds=time,
    )  # fmt: skip
    by_gang = Counter(decision.pod.group for decision in result.decisions)
    for i, (min_count, _, _, _) in enumerate(gangs):
        assert by_gang[f"g{i}"] == 0 or by_gang[f"g{i}"] >= min_count
    assert all(cluster.is_placed(decision.pod.uid) for decision in result.decisions)
    assert sum(cluster.is_placed(each.uid) for each in heads) == len(result.decisions), "nothing is left assumed"
    used = Counter(dict.fromkeys(cluster.names, 0))
    for decision in result.decisions:
        used[decision.assignment.node] += decision.pod.requests.get("cpu", 0)
    for name, row in cluster.row_of.items():
        assert (
            cluster.resources.used("cpu", np.array([row]))[0]
            == used[name]
            <= cluster.nodes.views[row].allocatable["cpu"]
        )


@settings(max_examples=100, deadline=None)
@given(NODES, st.integers(2, 6), st.integers(1, 6))
def test_a_gang_is_placed_wherever_its_alike_pods_find_nodes_one_by_one(nodes, count, spare_nodes):
    cluster, pods = build(nodes, [(count, count, "1", 0)], 0)
    alone, singles = build(nodes, [], count)
    placed = len(_decide(alone, singles))
    assert len(_decide(cluster, pods)) == (count if placed == count else 0)


def _decide(cluster, heads):
    result = schedule(cluster, heads, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    return result.decisions
