"""How long a real HTTP server takes to answer, alone and beside a Job: figures, ratios and their table. Pure.

The server is on one of the nodes. The Job is placed by Concerto, or by kube-scheduler at a request.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from e2e.compare.observation import Stored
from e2e.compare.workloads import CONCERTO

ALONE = "alone"
P99_LIMIT = 2.0
"""Times the server's P99 alone that its P99 beside Concerto's Job may be."""


@dataclass(frozen=True)
class ServerRun(Stored):
    """The server's answers during one run.

    Attributes:
        scheduler: ``alone``, ``concerto``, or the request of pods that kube-scheduler placed.
        round: 1, 2, ...
        server_request: CPU request of the server's pod; empty: none.
        pods: of the Job; 0 without one.
        job_seconds: of the Job; None without one, or if it was not complete in time.
        milliseconds: each answer took.
        failed: whether a request was not answered.
    """

    scheduler: str
    round: int
    server_request: str
    pods: int
    job_seconds: float | None
    milliseconds: Sequence[float]
    failed: bool = False

    def percentile(self, share: float) -> float:
        """Milliseconds within which that share of the answers came.

        Raises:
            ValueError: there is no answer.
        """
        if not self.milliseconds:
            raise ValueError(f"no answer of the server in the run of {self.scheduler}")
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def __str__(self) -> str:
        job = "" if self.job_seconds is None else f", job {self.job_seconds:.1f} s"
        return (
            f"{len(self.milliseconds)} answers: median {self.percentile(0.5):.1f} ms, "
            f"99th percentile {self.percentile(0.99):.1f} ms{job}"
        )


def answers_between(lines: Iterable[str], begin: float, end: float) -> list[float]:
    """Milliseconds of the requests that were due between two times, from the lines that http_load prints."""
    found = (tuple(map(float, line.split())) for line in lines if line.strip())
    return [milliseconds for at, milliseconds in found if begin <= at <= end]


def table(runs: Sequence[ServerRun]) -> list[str]:
    """A Markdown table: medians over rounds, and the P99 as a ratio to the server's alone."""
    lines = [
        "| beside the server | rounds | answers | median ms | P90 ms | P99 ms | P99 to alone | job s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for scheduler, of in _by_scheduler(runs).items():
        figures = [statistics.median(run.percentile(share) for run in of) for share in (0.5, 0.9, 0.99)]
        jobs = [run.job_seconds for run in of if run.job_seconds is not None]
        cells = [
            _name(scheduler, of[0].pods),
            str(len(of)),
            str(sum(len(run.milliseconds) for run in of)),
            *(f"{figure:.1f}" for figure in figures),
            f"**{ratio_to_alone(runs, scheduler):.2f}**",
            f"{statistics.median(jobs):.1f}" if jobs else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def goal(runs: Sequence[ServerRun]) -> tuple[str, bool]:
    """The goal in words with its figure, and whether it holds."""
    ratio = ratio_to_alone(runs, CONCERTO)
    sentence = f"the server's P99 beside Concerto's Job: {ratio:.2f} x alone (goal: at most {P99_LIMIT:.2f})"
    return sentence, ratio <= P99_LIMIT


def ratio_to_alone(runs: Sequence[ServerRun], scheduler: str) -> float:
    """The server's P99 beside a scheduler's Job to its P99 alone, medians over rounds."""
    of = _by_scheduler(runs)
    beside, alone = (statistics.median(run.percentile(0.99) for run in of[name]) for name in (scheduler, ALONE))
    return beside / alone


def _by_scheduler(runs: Sequence[ServerRun]) -> dict[str, list[ServerRun]]:
    found: dict[str, list[ServerRun]] = {}
    for run in runs:
        found.setdefault(run.scheduler, []).append(run)
    return found


def _name(scheduler: str, pods: int) -> str:
    if scheduler == ALONE:
        return "nothing"
    who = "Concerto" if scheduler == CONCERTO else f"kube-scheduler at {scheduler}"
    return f"{pods} pods by {who}"
