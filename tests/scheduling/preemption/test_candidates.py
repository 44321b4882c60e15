import pytest

from concerto.scheduling.preemption.candidates import Candidate, best, number_of_candidates
from concerto.scheduling.preemption.victims import Victims
from support.scheduling_builders import pod

LOW, MID, HIGH = 0, 100, 1000


def candidate(node, *victims, violations=0):
    pods = [
        pod(f"{node}-{i}", priority=priority, status={"startTime": f"2026-03-01T12:00:{start:02d}Z"} if start else {})
        for i, (priority, start) in enumerate(v if isinstance(v, tuple) else (v, 1) for v in victims)
    ]
    return Candidate(node, Victims(tuple(pods), violations))


CHOICES = {
    "none": ([], None),
    "fewest violations of budgets, whatever else": (
        [candidate("a", LOW, violations=1), candidate("b", HIGH, HIGH)],
        "b",
    ),
    "then the lowest priority of the most important victim": (
        [candidate("a", MID), candidate("b", LOW, LOW, LOW), candidate("c", HIGH)],
        "b",
    ),
    "then the smallest sum of priorities": ([candidate("a", MID, MID), candidate("b", MID, LOW)], "b"),
    "a negative priority does not make many victims cheap": ([candidate("a", -10, -10), candidate("b", -10)], "b"),
    "then the fewest victims": (
        [candidate("a", MID, -(2**31), -(2**31)), candidate("b", MID, -(2**31))],
        "b",
    ),
    "then the latest start of the most important victims": (
        [candidate("a", (MID, 5), (MID, 3)), candidate("b", (MID, 4), (MID, 9)), candidate("c", (MID, 1), (MID, 20))],
        "b",
    ),
    "the start of less important victims does not count": (
        [candidate("a", (MID, 5), (LOW, 1)), candidate("b", (MID, 4), (LOW, 9))],
        "a",
    ),
    "one that has not started starts last of all": ([candidate("a", (LOW, 50)), candidate("b", (LOW, 0))], "b"),
    "else the first": ([candidate("b", LOW), candidate("a", LOW)], "b"),
}


@pytest.mark.parametrize(("candidates", "node"), CHOICES.values(), ids=CHOICES)
def test_the_candidate_that_costs_least(candidates, node):
    chosen = best(candidates)
    assert (None if chosen is None else chosen.node) == node


def test_a_preemption_that_was_begun_is_finished_where_it_was_begun():
    assert best([candidate("a", LOW), candidate("b", MID)], nominated_node="b").node == "b"
    assert best([candidate("a", LOW), candidate("b", MID, violations=1)], nominated_node="b").node == "a"
    assert best([candidate("a", LOW), candidate("b", MID)], nominated_node="gone").node == "a"


@pytest.mark.parametrize(
    ("nodes", "candidates"), [(0, 0), (1, 1), (99, 99), (100, 100), (999, 100), (1000, 100), (5000, 500)]
)
def test_so_many_candidates_are_enough(nodes, candidates):
    assert number_of_candidates(nodes) == candidates
