"""Files and classes stay small enough to read, and `controllers/` is found by feature."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("operator/concerto", "agent/concerto_agent")
MAX_FILE_LINES = 400
MAX_CLASS_LINES = 300
MAX_CONTROLLER_ENTRIES = 6
MAX_ARGUMENTS = 6

LONGER_FILES: dict[str, str] = {}
"""Files that may be longer, and why. At most five at the end; one that has become short enough must leave the list."""

LONGER_CLASSES: dict[str, str] = {}
"""The same for classes, by ``path:Class``."""


MORE_ARGUMENTS: dict[str, str] = {
    "operator/concerto/autoscaling/decision.py:decide": "everything that a decision depends on, and no clock",
    "operator/concerto/capacity/estimator_signal.py:update": "a rival that only the simulator runs",
    "operator/concerto/capacity/pipeline.py:_report": "the estimates of one batch, each made by another part",
    "operator/concerto/capacity/pipeline.py:sample": "the readings of one moment, some of which a caller may lack",
    "operator/concerto/cli/explain.py:build_snapshot": "one list for each kind of object",
    "operator/concerto/controllers/capacity/cluster_model.py:build_cluster_status": "the fields of a status",
    "operator/concerto/controllers/scheduling/placement_records.py:store": "what one write needs",
    "operator/concerto/controllers/scheduling/reservation_status.py:build_reservation_status": "the fields of a status",
    "operator/concerto/scheduling/cycle.py:schedule": "a cycle's limits have names and defaults",
    "operator/concerto/simulation/autoscaling/run.py:_proposal": "one step of an experiment",
}
"""Functions that may have more arguments, by ``path:function``, and why. Constructors are not counted."""


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


def arguments_of_functions() -> dict[str, int]:
    found = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                key = f"{path.relative_to(REPOSITORY)}:{node.name}"
                found[key] = max(found.get(key, 0), count)
    return found


def test_functions_have_few_arguments():
    many = {name for name, count in arguments_of_functions().items() if count > MAX_ARGUMENTS}
    assert many - MORE_ARGUMENTS.keys() == set(), "make one value of what belongs together, or justify it in the list"
    assert MORE_ARGUMENTS.keys() - many == set(), "few enough now: take it off the list"


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


def test_each_file_of_unit_tests_has_a_name_of_its_own():
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("*.py") if path.name != "__init__.py")
    assert [name for name, files in names.items() if files > 1] == [], "pytest collects none of them together"
