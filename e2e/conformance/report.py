"""Outcomes of tests, from the reports that Ginkgo writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

GROUP = "[sig-scheduling] "
LEFT_OUT: dict[str, str] = {}
"""Tests that are not run with Concerto, by how their names begin, and why."""

_FAILED = {"failed", "panicked", "timedout", "interrupted", "aborted"}


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Attributes:
        name: of the test.
        state: ``passed``, ``failed``, ``skipped`` (by the test itself) or ``left out``.
        seconds: how long it ran.
        why: it has not passed; empty if it has.
    """

    name: str
    state: str
    seconds: float = 0.0
    why: str = ""

    def to_raw(self) -> dict[str, Any]:
        """Its fields, for JSON."""
        return asdict(self)


def names_of(report: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tests that a dry run would have run, sorted."""
    return sorted(_name(spec) for spec in _specs(report) if spec["LeafNodeType"] == "It" and spec["State"] == "passed")


def outcome_of(report: Sequence[Mapping[str, Any]], name: str) -> Outcome:
    """What became of a test that was run alone; a failure of what comes before or after all tests is its own."""
    specs = list(_specs(report))
    found = next((s for s in specs if s["LeafNodeType"] == "It" and _name(s) == name), None)
    seconds = sum(s.get("RunTime", 0) for s in specs) / 1e9
    for spec in specs:
        if spec["State"] in _FAILED:
            return Outcome(name, "failed", seconds, _message(spec) or spec["State"])
    if found is None:
        return Outcome(name, "failed", seconds, "the report does not name the test")
    if found["State"] == "passed":
        return Outcome(name, "passed", seconds)
    return Outcome(name, "skipped", seconds, _message(found) or "without a reason")


def reason_to_leave_out(name: str, reasons: Mapping[str, str] = LEFT_OUT) -> str:
    """Why a test is not run with Concerto; empty if it is."""
    short = name.removeprefix(GROUP)
    return next((reason for beginning, reason in reasons.items() if short.startswith(beginning)), "")


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for each test; below a test that has not passed, why."""
    lines = []
    for outcome in outcomes:
        took = f"{outcome.seconds:6.1f} s" if outcome.seconds else " " * 8
        lines.append(f"{outcome.state:<8} {took}  {outcome.name.removeprefix(GROUP)}")
        if outcome.why:
            lines.append(" " * 19 + outcome.why.splitlines()[0])
    return lines


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """How many tests have ended in each way, and the time of the run."""
    counts = [f"{sum(o.state == s for o in outcomes)} {s}" for s in ("passed", "failed", "skipped", "left out")]
    return f"{len(outcomes)} tests: {', '.join(counts)}; {seconds / 60:.1f} min"


def _specs(report: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for suite in report:
        yield from suite.get("SpecReports") or ()


def _name(spec: Mapping[str, Any]) -> str:
    return " ".join([*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]])


def _message(spec: Mapping[str, Any]) -> str:
    return str((spec.get("Failure") or {}).get("Message", "")).strip()
