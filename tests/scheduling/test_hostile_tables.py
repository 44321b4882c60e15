"""What a node that lies about its pods' costs, or a table that is broken, does to decisions: no more than its share."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, from_entries
from support.kinds_placed import CORES, NODES, placed_on_nodes, pods_of

HONEST_NODES = 9
TRUE = 0.5
WEIGHT = 3 / (HONEST_NODES + 3)  # of one liar: three times the median node's evidence
MEAN = 4  # what a liar may say of a pod, in times of the median node's
LEAST = TRUE * (1 - WEIGHT) / (1 - WEIGHT + MEAN * WEIGHT)
MOST = TRUE * (1 + MEAN * 2 * WEIGHT / (1 - WEIGHT))
FIELDS = len(KindSums._fields)


WEB = kind_of("shop", "Deployment", "web", (("main", "web:1"),))


def placed(liar):
    """Pods on each of some empty nodes after one cycle, where one node of ten publishes such a table."""
    known = ClusterKinds()
    for number in range(HONEST_NODES):
        honest = NodeKinds()
        for _ in range(10):
            honest.pod_ended(WEB, PodMeasurement(2.0, 4.0, 4.0, 50e6, True), 0.0)
        known.set_node(f"n{number}", honest.table((), 0.0), CORES)
    known.set_node("liar", liar(WEB.key), CORES)
    return placed_on_nodes(WEB, known.table())


numbers = st.floats(0.0, 1e300, allow_nan=False, allow_infinity=False)


@settings(max_examples=40, deadline=None)
@given(st.lists(numbers, min_size=FIELDS, max_size=FIELDS))
@example([0.0] * FIELDS)
@example([1e6, 1e30, 1e30, 1.0, 1.0, 1e30])
@example([1e6, 0.0, 0.0, 1e30, 1e30])
@example([1e-6, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30])
def test_whatever_one_of_ten_nodes_publishes_nodes_are_filled_as_before_within_its_part_of_the_evidence(sums):
    counts = placed(lambda key: from_entries([(key, sums)]))
    assert min(counts) >= pods_of(MOST)
    assert max(counts) <= pods_of(LEAST)


BROKEN = {
    "not a number": [float("nan")] * 4,
    "negative": [-1.0, 5.0],
    "infinite": [1.0, float("inf")],
    "too long": [1.0] * 99,
    "empty": [],
}


@pytest.mark.parametrize("sums", BROKEN.values(), ids=BROKEN)
def test_a_broken_table_changes_no_decision(sums):
    assert placed(lambda key: from_entries([(key, sums)])) == placed(lambda key: {}) == [pods_of(TRUE)] * NODES


def test_a_node_that_makes_up_kinds_changes_no_decision_on_others():
    made_up = {f"evil/Job/{i}@x": KindSums(ended=1e3, work=1e9, held=1e9, memory=1e15) for i in range(4000)}
    assert placed(lambda key: made_up) == [pods_of(TRUE)] * NODES
