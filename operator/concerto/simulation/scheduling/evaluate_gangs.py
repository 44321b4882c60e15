"""Gangs and priorities: Concerto beside kube-scheduler's ways to place gangs, at several requests.

What is asked is compared with the best of all requests. That no trivial policy meets it shows in a column of its own:
pods that are placed one by one, at the request that is the true cost of a gang's pods.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concerto.simulation.scheduling import scenario
from concerto.simulation.scheduling.experiments import medians, tasks_of
from concerto.simulation.scheduling.kept_runs import RunTasks, run_tasks

Figures = dict[str, Any]
Results = Mapping[str, Mapping[str, Figures]]
"""By scenario and policy, medians over seeds."""
SCENARIOS = ("gangs-stream", "gangs-halves", "gangs-critical")
FIRST_RUN, LATER_RUN = "concerto", "concerto-known"
WITHIN = 1.10
"""Ways whose batch job takes at most so many times the shortest are compared by what they do for critical pods."""
ONE_BY_ONE = "kube-one-by-one@1000m"
COLUMNS = {"first run": FIRST_RUN, "later run": LATER_RUN, "pods one by one": ONE_BY_ONE}
"""Policies that the claims are checked for, by what the table calls them."""


@dataclass(frozen=True)
class Claim:
    """One thing that is asked.

    Attributes:
        scenario: its name.
        asked: in words.
        limit: what a policy may need at most.
        found: by column, what it needs; infinity where it does not complete, or not what else is asked.
        unit: of both.
    """

    scenario: str
    asked: str
    limit: float
    found: Mapping[str, float]
    unit: str

    def holds(self, column: str) -> bool:
        """Whether the policy of that column does what is asked."""
        return self.found[column] <= self.limit


def run_gangs(seeds: int, names: Sequence[str] = SCENARIOS, run: RunTasks = run_tasks) -> dict[str, dict[str, Figures]]:
    """The scenarios under all their policies."""
    found = {}
    for name in names:
        runs: dict[str, list[Figures]] = {}
        tasks = tasks_of(scenario.load(name), (), seeds)
        for task, figures in zip(tasks, run(tasks)):
            runs.setdefault(task.policy, []).append(figures)
        found[name] = {policy: medians(each) for policy, each in runs.items()}
    return found


def claims(results: Results) -> list[Claim]:
    """What is asked of all scenarios."""
    return [_claim(results[ask.scenario], ask) for ask in _ASKED]


@dataclass(frozen=True)
class _Ask:
    """What is asked, as a multiple of what kube-scheduler needs at its best request.

    Attributes:
        scenario: its name.
        text: in words.
        factor: the multiple.
        value: what counts, by figures of a policy.
        of: part of the names of the policies that it is compared with.
        median: whether it is compared with the median of those, not with the best.
        unit: of the value.
        with_batch: whether only policies count whose batch job takes at most ``WITHIN`` times the shortest. Where batch
            gets less of the nodes, nobody has to be evicted.
    """

    scenario: str
    text: str
    factor: float
    value: Callable[[Figures], float]
    of: str = ""
    median: bool = False
    unit: str = "s"
    with_batch: bool = False


def _claim(by_policy: Mapping[str, Figures], ask: _Ask) -> Claim:
    kube = {policy: f for policy, f in by_policy.items() if policy.startswith("kube-") and ask.of in policy}
    limit = WITHIN * min(map(_job("batch"), kube.values())) if ask.with_batch else math.inf

    def value(figures: Figures) -> float:
        return math.inf if ask.with_batch and _job("batch")(figures) > limit else ask.value(figures)

    others = list(filter(math.isfinite, map(value, kube.values())))
    base = statistics.median(others) if ask.median else min(others)
    found = {column: value(by_policy[policy]) for column, policy in COLUMNS.items()}
    return Claim(ask.scenario, ask.text, ask.factor * base, found, ask.unit)


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _worst_gang(figures: Figures) -> float:
    return _number(figures["gangs"]["worst_s"])


def _waiting(figures: Figures) -> float:
    return float(figures["gangs"]["waiting_core_s"])


def _lost(figures: Figures) -> float:
    return float(figures["gangs"]["lost_core_s"])


def _start(figures: Figures) -> float:
    return _number(figures["jobs"]["critical"]["start_s"].get("max"))


def _job(name: str) -> Callable[[Figures], float]:
    return lambda figures: _number(figures["jobs"][name]["jct_s"])


_STREAM, _HALVES, _CRITICAL = SCENARIOS
_ASKED = (
    _Ask(_STREAM, "slowest gang ≤ 1.10 × the best request's", 1.10, _worst_gang),
    _Ask(_STREAM, "single pods' job ≤ 1.10 × the best request's", 1.10, _job("single")),
    _Ask(_HALVES, "slowest gang ≤ 1.25 × the best request's", 1.25, _worst_gang),
    _Ask(_HALVES, "waiting ≤ half of the least one by one", 0.5, _waiting, of="one-by-one@", unit="core-s"),
    _Ask(_CRITICAL, "batch job ≤ 1.10 × the best request's", WITHIN, _job("batch")),
    _Ask(_CRITICAL, "and slowest critical pod starts ≤ 1.5 × the best such request's", 1.5, _start, with_batch=True),
    _Ask(_CRITICAL, "and gang ≤ 1.5 × the best such request's", 1.5, _worst_gang, with_batch=True),
    _Ask(_CRITICAL, "and lost work ≤ the median of these", 1.0, _lost, median=True, unit="core-s", with_batch=True),
)


def gang_lines(results: Results) -> list[str]:
    """What is asked, and the figures of all policies."""
    lines = [
        f"| scenario | asked | limit | {' | '.join(COLUMNS)} |",
        "| --- | --- | ---: |" + " ---: |" * len(COLUMNS),
    ]
    for claim in claims(results):
        cells = [_cell(claim, column) for column in COLUMNS]
        lines.append(f"| {claim.scenario} | {claim.asked} | {claim.limit:.0f} {claim.unit} | {' | '.join(cells)} |")
    for name, by_policy in results.items():
        lines += ["", *_table(name, by_policy)]
    return lines


def _cell(claim: Claim, column: str) -> str:
    text = "-" if math.isinf(claim.found[column]) else f"{claim.found[column]:.0f}"
    return text if claim.holds(column) else f"**{text}**"


def _table(name: str, by_policy: Mapping[str, Figures]) -> list[str]:
    others = [job for job in next(iter(by_policy.values()))["jobs"] if job != "training"]
    lines = [
        f"| {name.removeprefix('gangs-')} | gangs done | gang s, median / worst | waiting core-s | lost core-s "
        f"| evictions |{''.join(f' {job}: start s, p50 / most, job s |' for job in others)}",
        "| --- | ---: | ---: | ---: | ---: | ---: |" + " ---: |" * len(others),
    ]
    for policy, figures in by_policy.items():
        gangs = figures["gangs"]
        cells = [policy, f"{gangs['complete']:g} of {gangs['count']:g}"]
        cells.append("never" if gangs["worst_s"] is None else f"{gangs['median_s']:.0f} / {gangs['worst_s']:.0f}")
        cells += [f"{gangs[key]:.0f}" for key in ("waiting_core_s", "lost_core_s", "evictions")]
        for job in others:
            cells.append(_of_job(figures["jobs"][job]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _of_job(job: Figures) -> str:
    start, seconds = job["start_s"], job["jct_s"]
    starts = f"{start['p50']:.1f} / {start['max']:.1f}" if start else "-"
    return f"{starts}, {'never' if seconds is None else f'{seconds:.0f}'}"
