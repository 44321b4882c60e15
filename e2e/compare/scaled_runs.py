"""What a service answered while an autoscaler scaled it: figures and their table. Pure, but for the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from e2e.compare.observation import Stored

HPA, OURS = "HPA v2", "PredictiveHPA"
BUCKET_SECONDS = 15.0
_NO_ANSWER_MILLISECONDS = 10_000.0
"""Time limit of a request."""


@dataclass(frozen=True)
class ScaledRun(Stored):
    """One service under one autoscaler, during its own turn.

    Attributes:
        autoscaler: `HPA` or `OURS`.
        round: 1, 2, ...
        startup_seconds: delay of its pods' readiness.
        seconds: length of the turn.
        requests: of each request of the turn: seconds after its beginning, and milliseconds; -1: not answered.
        replicas: of each observation: seconds after the beginning of the turn, replicas, and those ready.
    """

    autoscaler: str
    round: int
    startup_seconds: float
    seconds: float
    requests: Sequence[tuple[float, float]]
    replicas: Sequence[tuple[float, int, int]]

    @property
    def success_percent(self) -> float:
        """Share of the requests that were answered within 10 s."""
        return 100.0 * sum(took >= 0 for _, took in self.requests) / len(self.requests)

    @property
    def rescales(self) -> int:
        """Changes of the number of replicas."""
        counts = [count for _, count, _ in self.replicas]
        return sum(a != b for a, b in pairwise(counts))

    @property
    def pod_minutes(self) -> float:
        """Replicas over time, ready or not."""
        ends = [at for at, _, _ in self.replicas[1:]] + [self.seconds]
        return sum(count * (end - at) for (at, count, _), end in zip(self.replicas, ends)) / 60.0

    def percentile(self, share: float, begin: float = 0.0, end: float = math.inf) -> float:
        """Milliseconds within which that share of the requests due between two times was answered.

        Infinite where too many were not answered.
        """
        took = sorted(math.inf if ms < 0 else ms for at, ms in self.requests if begin <= at < end)
        return took[min(len(took) - 1, int(share * len(took)))] if took else math.nan

    def buckets(self) -> list[tuple[float, float]]:
        """P95 in milliseconds of each quarter of a minute, by its begin."""
        begins = [BUCKET_SECONDS * i for i in range(math.ceil(self.seconds / BUCKET_SECONDS))]
        return [(at, self.percentile(0.95, at, at + BUCKET_SECONDS)) for at in begins]

    def slow_seconds(self, limit_milliseconds: float) -> float:
        """Time in which the P95 was above a limit."""
        return BUCKET_SECONDS * sum(p95 > limit_milliseconds for _, p95 in self.buckets())


def requests_of(lines: Iterable[str], begin: float, end: float) -> list[tuple[float, float]]:
    """Requests that were due between two times, from the lines of paced_load: seconds after ``begin``, milliseconds."""
    found = [line.split() for line in lines if line.strip()]
    return [(float(at) - begin, -1.0 if took == "-" else float(took)) for at, took in found if begin <= float(at) < end]


def table(runs: Sequence[ScaledRun]) -> list[str]:
    """A Markdown table, a line for each run; slow is a quarter of a minute whose P95 is over three unloaded ones."""
    limit = 3.0 * unloaded_p95(runs)
    lines = [
        "| autoscaler | round | requests | success % | median ms | P95 ms "
        f"| s with P95 > {limit:.0f} ms | pod-minutes | rescales |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        cells = [
            run.autoscaler,
            str(run.round),
            str(len(run.requests)),
            f"{run.success_percent:.2f}",
            _milliseconds(run.percentile(0.5)),
            _milliseconds(run.percentile(0.95)),
            f"{run.slow_seconds(limit):.0f}",
            f"{run.pod_minutes:.1f}",
            str(run.rescales),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "no answer"


def unloaded_p95(runs: Sequence[ScaledRun]) -> float:
    """The lowest P95 of any quarter of a minute, milliseconds: that of pods with little to do.

    If every quarter of a minute has requests without an answer, that of the fastest answer; infinite without any.
    """
    finite = [p95 for run in runs for _, p95 in run.buckets() if math.isfinite(p95)]
    return min(finite or [ms for run in runs for _, ms in run.requests if ms >= 0], default=math.inf)


def draw(runs: Sequence[ScaledRun], path: Path) -> None:
    """Draw replicas and P95 over time, both autoscalers in one picture.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    FigureCanvasAgg(figure)
    rate, replicas, latency = figure.subplots(3, 1, sharex=True)
    for run in runs:
        style = {"color": "tab:blue" if run.autoscaler == OURS else "tab:gray", "linewidth": 1}
        label = run.autoscaler if run.round == 1 else None
        begins = [b for b, _ in run.buckets()]
        counts = [sum(b <= due < b + BUCKET_SECONDS for due, _ in run.requests) / BUCKET_SECONDS for b in begins]
        # A step lasts until the next point
        at = [*begins, begins[-1] + BUCKET_SECONDS]
        rate.step(at, [*counts, counts[-1]], where="post", label=label, **style)
        replicas.step([r[0] for r in run.replicas], [r[1] for r in run.replicas], where="post", label=label, **style)
        slowest = [min(p95, _NO_ANSWER_MILLISECONDS) for _, p95 in run.buckets()]
        latency.step(at, [*slowest, slowest[-1]], where="post", label=label, **style)
    rate.set_ylabel("requests/s")
    replicas.set_ylabel("replicas")
    latency.set_ylabel("P95 (ms; 10,000: no answer)")
    latency.set_yscale("log")
    latency.set_xlabel("seconds of the turn")
    for panel in (rate, replicas, latency):
        panel.grid(alpha=0.3)
    rate.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
