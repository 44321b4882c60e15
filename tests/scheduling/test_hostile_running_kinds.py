"""What a node that lies about kinds whose pods run on others, and have ended on few or none, does to decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.cost import PRIOR_SHARE
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, from_entries
from support.kinds_placed import CORES, NODES, placed_on_nodes, pods_of
from support.scheduling_builders import pod

LIARS_CORES = 64.0
HONEST_NODES = 9
MEMORY = 64e6
MEAN = 4  # what a liar may say of a pod, in times of the median node's
WEB = kind_of("shop", "Deployment", "web", (("main", "web:1"),))
JOB = kind_of("shop", "Job", "pi", (("main", "pi:1"),))
OTHER = kind_of("shop", "Deployment", "other", (("main", "other:1"),))
FIELDS = KindSums._fields


def known(kind, share, liar):
    """What nine nodes that run two such pods each, of that share, and a liar know together."""
    found = ClusterKinds()
    for number in range(HONEST_NODES):
        running = PodMeasurement(share * 100.0, 100.0, 100.0, MEMORY, False, share)
        found.set_node(f"n{number}", NodeKinds().table([(kind, running)] * 2, 0.0), CORES, 8.0 * 2**30)
    found.set_node("liar", from_entries([(key, liar) for key in kind.keys]), LIARS_CORES, 256.0 * 2**30)
    return found.table()


def sums(**values):
    return [values.get(name, 0.0) for name in FIELDS]


LIES = {
    "they took all of its memory": sums(running=1.0, running_work=10.0, running_held=100.0, max_memory=2e11),
    "they ended and took all CPUs": sums(ended=5.0, work=1e9, started=1e9, held=100.0, life=100.0, memory=5e8),
    "they ended and took nothing": sums(ended=1e6, held=1e9, life=1e9),
    "they run on all CPUs": sums(
        running=1e6, running_work=1e20, running_held=1e12, max_running_work=1e20, max_running_held=1e12,
        max_running_recent=1e9,
    ),
    "they run and take nothing": sums(running=1e6, running_held=1e12),
}  # fmt: skip
numbers = st.floats(0.0, 1e300, allow_nan=False, allow_infinity=False)
hostile = st.lists(numbers, min_size=len(FIELDS), max_size=len(FIELDS)) | st.sampled_from(list(LIES.values()))


@settings(max_examples=40, deadline=None)
@given(hostile, st.sampled_from([0.25, 0.5, 0.7]))
@example(LIES["they took all of its memory"], 0.5)
@example(LIES["they ended and took nothing"], 0.5)
@example(LIES["they ended and took all CPUs"], 0.5)
def test_whatever_one_of_ten_nodes_says_of_services_nodes_are_filled_within_its_bounds(liar, share):
    counts = placed_on_nodes(WEB, known(WEB, share, liar))
    assert min(counts) >= pods_of(max(MEAN * share, PRIOR_SHARE))
    assert max(counts) <= pods_of(share / MEAN)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("kind", [WEB, JOB], ids=["a service", "a Job"])
def test_nodes_with_pods_of_a_kind_that_one_node_lies_about_take_others_as_before(kind, lie):
    there = [
        replace(pod(f"there-{name}-{i}", nodeName=f"node-{name}"), kind=kind) for name in range(NODES) for i in range(2)
    ]
    others = NodeKinds()
    for _ in range(10):
        others.pod_ended(OTHER, PodMeasurement(50.0, 100.0, 100.0, MEMORY, True), 0.0)
    counts = placed_on_nodes(OTHER, {**others.table((), 0.0), **known(kind, 0.1, lie)}, there)
    assert min(counts) >= pods_of(0.5) - 2 * PRIOR_SHARE * 1.3 / 0.5


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_the_order_of_nodes_makes_no_difference_with_a_liar_among_them(lie):
    first, second = ClusterKinds(), ClusterKinds()
    running = [PodMeasurement(i, 100.0, 100.0, 1e6 * i, False, 0.1) for i in range(1, 6)]
    tables = [(f"n{i}", NodeKinds().table([(WEB, each)], 0.0)) for i, each in enumerate(running)]
    tables.append(("liar", from_entries([(WEB.key, lie)])))
    for merged, order in ((first, tables), (second, tables[::-1])):
        for name, table in order:
            merged.set_node(name, table, CORES)
    assert first.table() == second.table()


def test_what_honest_nodes_differ_in_is_left_as_it_is():
    found = ClusterKinds()
    for number, share in enumerate((0.02, 0.03, 0.02, 0.9)):
        running = PodMeasurement(share * 100.0, 100.0, 100.0, MEMORY * (1 + number), False, share)
        found.set_node(f"n{number}", NodeKinds().table([(WEB, running)], 0.0), CORES)
    merged = found.table()[WEB.key]
    assert merged.running_work == pytest.approx(97.0)
    assert (merged.max_running_recent, merged.max_memory) == (0.9, 4 * MEMORY)
