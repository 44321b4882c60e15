"""Tests are dealt out so that what computes runs while suites with real parts wait, and everything runs once."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.testbed.spreading import Spread

SUITES = [f"e2e/suites/test_{name}.py::test_{n}" for name in "abcd" for n in range(4)]
COMPUTES = [f"tests/test_{name}.py::test_{n}" for name in "efgh" for n in range(4)]


class Node:
    """A process of `-n` that runs what it is sent: all but the last test, until it knows that nothing follows."""

    def __init__(self, number: int, tests: list[str]) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.tests = tests
        self.waiting: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_one(self) -> int | None:
        if len(self.waiting) < (1 if self.shutting_down else 2):
            return None
        index = self.waiting.pop(0)
        self.ran.append(self.tests[index])
        return index


def run(tests: list[str], nodes: int, pace: dict[int, int] | None = None) -> list[Node]:
    """Deal out, and run until nothing moves; ``pace`` has the tests that a process runs in a round, instead of one."""
    config: Any = SimpleNamespace(
        getvalue=lambda name: {"tx": ["popen"] * nodes, "rsyncdir": []}.get(name),
        option=SimpleNamespace(loadscopereorder=False),
    )
    spread = Spread(config)
    made: list[Any] = [Node(number, tests) for number in range(nodes)]
    for node in made:
        spread.add_node(node)
        spread.add_node_collection(node, tests)
    spread.schedule()
    moved = True
    while moved:
        moved = False
        for number, node in enumerate(made):
            for _ in range((pace or {}).get(number, 1)):
                if (index := node.run_one()) is not None:
                    moved = True
                    spread.mark_test_complete(node, index)
    assert all(node.shutting_down and not node.waiting for node in made)
    assert spread.tests_finished
    return made


def folders(node: Node) -> set[str]:
    return {test.partition("/")[0] for test in node.ran}


@pytest.mark.parametrize("pace", [{}, {2: 9}, {0: 9, 1: 9}])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("tests", [SUITES + COMPUTES, SUITES, COMPUTES, SUITES[:5], COMPUTES[:1]])
def test_every_test_runs_once_and_a_file_in_one_process(tests: list[str], nodes: int, pace: dict[int, int]) -> None:
    made = run(tests, nodes, pace)
    assert sorted(test for node in made for test in node.ran) == sorted(tests)
    where = defaultdict(set)
    for node in made:
        for test in node.ran:
            where[test.partition("::")[0]].add(node.gateway.id)
    assert all(len(ids) == 1 for ids in where.values())


def test_the_last_of_three_runs_what_computes_from_the_start_and_the_others_suites() -> None:
    *others, last = run(SUITES + COMPUTES, 3)
    assert last.ran[0] == COMPUTES[0]
    assert folders(last) == {"tests"}
    assert all(node.ran[0] in SUITES for node in others)


def test_it_takes_suites_when_nothing_else_is_left_but_not_the_last_few() -> None:
    more = [f"e2e/suites/test_more_{name}.py::test_{n}" for name in range(20) for n in range(4)]
    *_, last = run(SUITES + more + COMPUTES, 3, {2: 9})
    assert last.ran[: len(COMPUTES)] == COMPUTES
    assert folders(last) == {"tests", "e2e"}
    assert more[-1] not in last.ran


def test_it_runs_nothing_where_there_are_suites_alone() -> None:
    *_, last = run(SUITES, 3)
    assert last.ran == []


def test_the_others_take_what_computes_when_the_suites_are_dealt_out() -> None:
    *others, _ = run(SUITES + COMPUTES, 3, {0: 9, 1: 9})
    assert any("tests" in folders(node) for node in others)


def test_two_share_everything() -> None:
    assert all("e2e" in folders(node) for node in run(SUITES + COMPUTES, 2))
