"""The model of two programs on one node: what it is made of, by hand."""

from __future__ import annotations

import pytest

from concerto.pinning.occupancy import Features
from concerto.pinning.topology import TopologyIndex
from concerto.simulation.studies.colocation import (
    Found,
    evaluate,
    kind_of,
    placed,
    render,
    render_classes,
    render_pairs,
)
from concerto.simulation.studies.interference import (
    MIGRATION,
    SIBLING,
    Program,
    alone,
    packed,
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


@pytest.fixture(scope="module")
def found() -> Found:
    return evaluate()


def test_knowing_the_class_is_at_least_as_good_as_any_policy_that_does_not(found):
    # Stefanakis' central claim (figure 8.2.13), for the default profile
    assert len(found.pairs) == 300
    groups = {pair.group for pair in found.pairs} | {pair.classes for pair in found.pairs}
    for group in groups:
        own = found.change("WorkloadAware", group)
        assert own <= min(0.0, found.change("both packed", group), found.change("both spread", group)) + 1e-9, group
    assert found.change("WorkloadAware") <= -0.085


def test_wrong_labels_cost_something_and_pinning_helps_even_so(found):
    assert found.change("WorkloadAware") < found.cost(1) < found.cost(2) < 0
    # Where 16 threads share 10 cores, two memory-bound programs on a socket each would do better than spread ones;
    # alone they would not, and the first cannot know of the second
    worse = {
        c for c in {p.classes for p in found.pairs} if found.change("WorkloadAware", c) > _one_label(found, c) + 1e-9
    }
    assert worse == {"SpreadFriendly + SpreadFriendly"}


def _one_label(found: Found, classes: str) -> float:
    return min(found.change(f"all labelled {label}", classes) for label in ("cpu-bound", "memory-bound"))


def test_the_table_has_every_group_and_how_many_pairs_fit(found):
    lines = render(found).splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + 11 + 1
    assert any("fit)" in line or "none fits" in line for line in lines)
    assert len(render_pairs(found).splitlines()) == 302
    classes = [line.split(" | ") for line in render_classes(found).splitlines()[2:]]
    assert len(classes) == 6 and sum(int(cells[1]) for cells in classes) == 300
    assert all(float(cells[6].split()[0]) <= float(cells[5].split()[0]) for cells in classes)
