"""Pods of several kinds: Concerto beside the best requests that somebody who had measured each kind could set.

Two columns say how good Concerto is: job and pod completion over those of the better of two references that know what
pods cost, the best static request per kind and the VerticalPodAutoscaler's recommendation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concerto.simulation.scheduling import scenario
from concerto.simulation.scheduling.experiments import medians, tasks_of
from concerto.simulation.scheduling.kept_runs import RunTasks, run_tasks
from concerto.simulation.scheduling.setup import Setup

SCENARIOS = tuple(name for name in scenario.built_in_names() if name.startswith("kinds-"))
ABLATION_SCENARIOS = (
    "mixed",
    *(f"kinds-{n}" for n in ("functions", "memory", "heavy-after-light", "uneven", "tiny", "complementary")),
)
ABLATIONS = {
    "as it is": "",
    "every pod is one unit": "-without-kinds",
    "nodes share nothing, and never saw the kind": "-without-federation",
    "work is given without a pace": "-without-pace",
    "light pods wait for the work of heavier ones": "-without-light-pods",
    "stalls count as time in which the place is held": "-without-stall-correction",
    "the last pods wait for ends as others do": "-without-last-pods",
    "pods of one second keep their order": "-without-larger-first",
    "the whole share has to fit": "-without-overhang",
    "head room does not grow": "-without-wider-head-room",
}
"""What is left out, and how the policy's name ends."""
WITHIN = 1.10
"""Requests whose job completion is within so many times the best are traded for shorter pods."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class KindsResult:
    """One job of a scenario, or all jobs of one together, in seconds.

    Attributes:
        scenario: its name.
        job: the job; ``all`` for all of them.
        completion: by policy, job completion and mean pod completion; None where it never completed.
        best: the job completion of the best static request per kind, and the pod mean of its best trade.
    """

    scenario: str
    job: str
    completion: Mapping[str, tuple[float | None, float]]
    best: tuple[float, float]

    def ratio(self, policy: str) -> tuple[float, float]:
        """Job and pod completion over the best's; infinity where it never completed."""
        job, pod = self.completion[policy]
        return (job or float("inf")) / self.best[0], pod / self.best[1]


def run_kinds(
    names: Sequence[str] = SCENARIOS, seeds: int = 5, policies: Sequence[str] = (), run: RunTasks = run_tasks
) -> list[KindsResult]:
    """Scenarios under these policies (by default each scenario's own), medians over seeds."""
    found: list[KindsResult] = []
    for name in names:
        chosen = scenario.load(name)
        by_policy: dict[str, list[Figures]] = {}
        tasks = tasks_of(chosen, policies, seeds)
        for task, figures in zip(tasks, run(tasks)):
            by_policy.setdefault(task.policy, []).append(figures)
        middle = {policy: medians(runs) for policy, runs in by_policy.items()}
        found += [_result(name, job, middle) for job in _jobs_of(chosen.setup)]
    return found


def _jobs_of(setup: Setup) -> list[str]:
    """Jobs to print one by one, if few, and all together: requests that are best for one are not for all."""
    names = [job.name for job in setup.jobs if not job.endless]
    return names if len(names) == 1 else ["all"] if len(names) > 3 else [*names, "all"]


def _result(name: str, job: str, middle: Mapping[str, Figures]) -> KindsResult:
    completion = {}
    for policy, figures in middle.items():
        of_job = figures if job == "all" else figures["jobs"][job]
        completion[policy] = (of_job["jct_s"], of_job["pct_s"]["mean"])
    by_cost = {p: c for p, c in completion.items() if p.startswith("kube-costs@")}
    complete = {p: (jct, pct) for p, (jct, pct) in by_cost.items() if jct is not None}
    best_job = min(jct for jct, _ in complete.values())
    traded = min(pct for jct, pct in complete.values() if jct <= WITHIN * best_job)
    ours = {p: c for p, c in completion.items() if not p.startswith("kube-costs@")}
    return KindsResult(name, job, ours, (best_job, traded))


def kinds_table(results: Sequence[KindsResult]) -> list[str]:
    """Seconds, and in how far Concerto's first and later runs fall short of the best request per kind."""
    lines = [
        "| scenario | job | best request per kind | VPA | pods as units | first run | later run | first to best "
        "| later to best |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in results:
        cells = [r.scenario.removeprefix("kinds-"), r.job, f"{r.best[0]:.1f} / {r.best[1]:.1f}"]
        for policy in ("kube-vpa", "concerto-without-kinds", "concerto", "concerto-known"):
            job, pod = r.completion[policy]
            cells.append(f"{'never' if job is None else f'{job:.1f}'} / {pod:.1f}")
        cells += ["{:.2f} / {:.2f}".format(*r.ratio(policy)) for policy in ("concerto", "concerto-known")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def ablation_lines(seeds: int, names: Sequence[str] = ABLATION_SCENARIOS, run: RunTasks = run_tasks) -> list[str]:
    """A row for placement by kind without each of its parts: seconds of first and later runs of some scenarios."""
    lines = [
        "Job completion / mean pod completion over all jobs, in seconds: first run → later run.",
        "",
        f"| law | {' | '.join(name.removeprefix('kinds-') for name in names)} |",
        "| --- |" + " ---: |" * len(names),
    ]
    policies = {ending: _policies_of(ending) for ending in ABLATIONS.values()}
    every = [policy for of_one in policies.values() for policy in of_one]
    tasks = [(name, task) for name in names for task in tasks_of(scenario.load(name), every, seeds)]
    found: dict[tuple[str, str], list[Figures]] = {}
    for (name, task), figures in zip(tasks, run([task for _, task in tasks])):
        found.setdefault((name, task.policy), []).append(figures)
    for label, ending in ABLATIONS.items():
        cells = [" → ".join(_seconds(medians(found[name, policy])) for policy in policies[ending]) for name in names]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _policies_of(ending: str) -> list[str]:
    """A first and a later run; pods that are units have but one."""
    return [f"concerto{ending}"] if ending == "-without-kinds" else [f"concerto{ending}", f"concerto-known{ending}"]


def _seconds(figures: Figures) -> str:
    job = figures["jct_s"]
    return f"{'never' if job is None else f'{job:.1f}'} / {figures['pct_s']['mean']:.1f}"
