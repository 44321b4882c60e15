"""Files and classes stay small enough to read, and `controllers/` is found by feature."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("operator/concerto", "agent/concerto_agent")
MAX_FILE_LINES = 400
MAX_CLASS_LINES = 300
MAX_CONTROLLER_ENTRIES = 6

LONGER_FILES: dict[str, str] = {}
"""Files that may be longer, and why. At most five at the end; one that has become short enough must leave the list."""

LONGER_CLASSES: dict[str, str] = {}
"""The same for classes, by ``path:Class``."""


def sources() -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((REPOSITORY / root).rglob("*.py"))


def lines_of_files() -> dict[str, int]:
    return {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in sources()}


def lines_of_classes() -> dict[str, int]:
    return {
        f"{path.relative_to(REPOSITORY)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize(
    ("lines", "maximum", "exceptions"),
    [(lines_of_files, MAX_FILE_LINES, LONGER_FILES), (lines_of_classes, MAX_CLASS_LINES, LONGER_CLASSES)],
    ids=["files", "classes"],
)
def test_what_is_too_long_is_on_the_list_and_nothing_else_is(lines, maximum, exceptions):
    too_long = {name: count for name, count in lines().items() if count > maximum}
    assert {n: c for n, c in too_long.items() if n not in exceptions} == {}, (
        "split it by job, or justify it in the list"
    )
    assert exceptions.keys() - too_long.keys() == set(), "short enough now: take it off the list"


def test_the_lists_of_exceptions_stay_short():
    assert len(LONGER_FILES) + len(LONGER_CLASSES) <= 5


def test_controllers_are_found_by_feature():
    entries = [p.name for p in (REPOSITORY / "operator/concerto/controllers").iterdir() if p.suffix == ".py"]
    assert len(entries) <= MAX_CONTROLLER_ENTRIES, entries
