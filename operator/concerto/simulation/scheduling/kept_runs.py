"""Runs whose figures stay on disk, so that an evaluation of hours goes on where it was ended."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import concerto
from concerto.simulation.scheduling.experiments import Task, outcomes

Figures = dict[str, Any]
RunTasks = Callable[[Sequence[Task]], list[Figures]]
"""Runs tasks: the figures of each, in their order."""
_CODE = ("api", "capacity", "scheduling", "simulation")
"""Packages of ``concerto`` that may change what a run gives."""


def run_tasks(tasks: Sequence[Task], workers: int | None = None) -> list[Figures]:
    """Run all, and keep nothing."""
    return [outcome.figures for outcome in outcomes(tasks, workers)]


class KeptRuns:
    """Runs tasks that have not been run by this code before (a ``RunTasks``).

    Args:
        folder: where figures stay. Those of other code are removed.
        workers: processes; as many as there are CPUs by default.
    """

    def __init__(self, folder: Path, workers: int | None = None) -> None:
        self._folder = folder / _digest_of_code()
        self._workers = workers
        for other in folder.glob("*"):
            if other != self._folder:
                shutil.rmtree(other)
        self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, tasks: Sequence[Task]) -> list[Figures]:
        """The figures of each task, in their order; each is on disk as soon as it is known."""
        paths = [self._folder / f"{hashlib.sha256(repr(task).encode()).hexdigest()}.json" for task in tasks]
        missing = [(task, path) for task, path in zip(tasks, paths) if not path.exists()]
        for (_, path), outcome in zip(missing, outcomes([task for task, _ in missing], self._workers)):
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(outcome.figures))
            part.replace(path)
        return [json.loads(path.read_text()) for path in paths]


def _digest_of_code() -> str:
    root = Path(concerto.__file__).parent
    found = hashlib.sha256()
    for path in sorted(path for package in _CODE for path in (root / package).rglob("*.py")):
        found.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
