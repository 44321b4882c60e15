"""The model of two programs on one node: what it is made of, by hand."""

from __future__ import annotations

import pytest

from concerto.pinning.allocator import Features
from concerto.pinning.topology import TopologyIndex
from concerto.simulation.studies.colocation import (
    MIGRATION,
    SIBLING,
    Found,
    Group,
    Program,
    alone,
    kind_of,
    packed,
    placed,
    render,
    spread,
    times,
    unpinned,
)
from concerto.simulation.studies.machines import regular

COMPUTES, STREAMS, TALKS = Program(0.0, 0.0, 0.0), Program(1.0, 0.0, 0.0), Program(0.0, 0.0, 0.5)
FILLS = Program(0.5, 1.0, 0.0)

# programs with their CPUs (0-4 and 10-14 are socket 0; n and n+10 share a core), times
TIMES = {
    "nothing in the way": ([(COMPUTES, [0, 1])], [1.0]),
    "a busy sibling": ([(COMPUTES, [0]), (COMPUTES, [10])], [SIBLING, SIBLING]),
    "a program's own sibling": ([(COMPUTES, [0, 1, 10])], [SIBLING]),
    "memory time is not computing": ([(STREAMS, [0]), (COMPUTES, [10])], [1.0, SIBLING]),
    "three threads saturate a socket": ([(STREAMS, [0, 1, 2])], [1.0]),
    "six share its bandwidth": ([(STREAMS, [0, 1, 2]), (STREAMS, [3, 4, 14])], [2.0, 2.0]),
    "on two sockets they do not": ([(STREAMS, [0, 1, 2]), (STREAMS, [5, 6, 7])], [1.0, 1.0]),
    "half of two working sets does not fit": ([(FILLS, [0]), (FILLS, [1])], [0.5 + 0.5 * 1.5] * 2),
    "peers far away": ([(TALKS, [0, 5])], [1.5]),
    "the slowest thread counts": ([(TALKS, [0, 1, 5])], [1.5]),
}


@pytest.mark.parametrize(("running", "expected"), TIMES.values(), ids=TIMES)
def test_a_program_takes_as_long_as_what_is_in_its_way(running, expected):
    assert times(running) == pytest.approx(expected)


def test_unpinned_threads_take_cores_before_siblings_and_pay_for_moving():
    for one, other in unpinned([4, 8]):
        cores = [cpu % 10 for cpu in one + other]
        assert len(one) == 4 and len(other) == 8 and len(set(one + other)) == 12
        assert len(set(cores)) == 10, "twelve threads on ten cores: every core first"
    assert times([(STREAMS, [0])], pinned=False) == [1 + MIGRATION]


def test_packed_and_spread_are_the_seeds():
    assert (packed(2), packed(7), spread(3), spread(12)[-2:]) == ([0, 1], [0, 1, 2, 3, 4, 10, 11], [0, 5, 1], [10, 15])
    assert kind_of(alone(Program(0.4, 0.0, 0.4), 2)) == "PackedFriendly"
    assert kind_of(alone(Program(0.9, 0.0, 0.0), 8)) == "SpreadFriendly"


def test_programs_are_placed_by_the_production_allocator_one_after_the_other():
    index = TopologyIndex.build(regular(2, 5, 2))
    assert placed(index, ["cpu-bound", "memory-bound"], [2, 2], Features()) == [[0, 1], [2, 5]]
    assert placed(index, ["cpu-bound", "cpu-bound"], [8, 4], Features(physical_cores=True)) is None


def test_the_table_says_how_many_pairs_fit():
    group = Group("Agnostic + Agnostic", [1.0, 1.2])
    group.ratios |= {"both packed": [0.9, 0.9], "with PhysicalCores": [0.8]}
    (row,) = render(Found({}, 19, 20, 0.045, {"pairs": group})).splitlines()[5:]
    assert row == "| pairs | 2 | 1.10 | -10 % | none fits | none fits | -20 % (1 fit) | -3 % |"
