"""What the commands of comparisons have in common: progress, stored runs, interruptions, where figures come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from e2e.bench.__main__ import machine
from e2e.compare.observation import Stored
from e2e.testbed.clusters.binaries import chosen_release

_Run = TypeVar("_Run", bound=Stored)


def say(text: str) -> None:
    """A line, now."""
    print(text, flush=True)


def save(results: Path, runs: Sequence[Stored]) -> None:
    """Write the runs, and what they were measured on."""
    kubernetes, _ = chosen_release()
    results.parent.mkdir(exist_ok=True)
    document = {"machine": machine(), "kubernetes": kubernetes, "runs": [run.to_raw() for run in runs]}
    results.write_text(json.dumps(document, indent=1))


def load(results: Path, kind: type[_Run]) -> list[_Run]:
    """The runs of a file; none if there is no such file."""
    if not results.exists():
        return []
    return [kind.from_raw(raw) for raw in json.loads(results.read_text())["runs"]]


def origin(command: str, results: Path) -> str:
    """Which command measured the results, on what machine, with which Kubernetes; for the docs."""
    release = json.loads(results.read_text())["kubernetes"]
    return f"`{command}`, {machine()['cpus']} CPUs, {machine()['cpu']}, Kubernetes {release}"


def measured(measure: Callable[[], list[str]]) -> list[str]:
    """What went wrong with the measurement; an interruption is one of those things, and not the end."""
    try:
        return measure()
    except KeyboardInterrupt:
        return ["interrupted: nodes and control plane have been stopped; what was measured is reported"]


def exit_status(wrong: list[str], *, has_runs: bool) -> int:
    """Print what went wrong; 0 if nothing did and there is something to report."""
    for sentence in wrong:
        say(f"wrong: {sentence}")
    return 1 if wrong or not has_runs else 0
