"""Runs scenarios: each policy with each seed, on all cores, and what comes out as one document."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling import latency
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.policies import registry
from concerto.simulation.scheduling.recorder import Recorder
from concerto.simulation.scheduling.scenario import Scenario
from concerto.simulation.scheduling.setup import Setup

_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Task:
    """One run."""

    setup: Setup
    policy: str
    seed: int
    capacity: CapacitySettings


@dataclass(frozen=True)
class Outcome:
    """What one run gave.

    Attributes:
        policy: its name.
        seed: of the run.
        figures: the recorder's summary, and the server's latency where there is a server.
        recorder: traces and distributions, for plots.
    """

    policy: str
    seed: int
    figures: dict[str, Any]
    recorder: Recorder


def run_task(task: Task) -> Outcome:
    """Run it."""
    policy = registry.make(task.policy, task.capacity)
    world = World(task.setup, policy, task.seed)
    recorder = world.run()
    figures = recorder.summary()
    if world.gangs:
        figures["gangs"] = world.gangs.summary()
    if recorder.load_factors:
        answers = latency.latencies(np.array(recorder.load_factors), np.random.default_rng(task.seed))
        figures["latency_ms"] = latency.percentiles(answers)
    return Outcome(task.policy, task.seed, figures, recorder)


def run_all(tasks: Sequence[Task], workers: int | None = None) -> list[Outcome]:
    """Run many, on so many processes (as many as there are CPUs by default); the order stays.

    What takes long says on stderr how far it is.
    """
    return list(outcomes(tasks, workers))


def outcomes(tasks: Sequence[Task], workers: int | None = None) -> Iterator[Outcome]:
    """The same, one by one."""
    workers = workers or len(os.sched_getaffinity(0))
    if workers == 1 or len(tasks) < 2:
        yield from _with_progress(map(run_task, tasks), len(tasks))
        return
    with ProcessPoolExecutor(min(workers, len(tasks))) as pool:
        yield from _with_progress(pool.map(run_task, tasks), len(tasks))


def _with_progress(outcomes: Iterable[Outcome], count: int) -> Iterator[Outcome]:
    began = reported = time.monotonic()
    for done, outcome in enumerate(outcomes, start=1):
        yield outcome
        now = time.monotonic()
        if now - reported >= _PROGRESS_SECONDS and done < count:
            left = (now - began) / done * (count - done)
            print(f"  {done} of {count} runs, about {left:.0f} s to go", file=sys.stderr, flush=True)
            reported = now


def tasks_of(scenario: Scenario, policies: Iterable[str] = (), seeds: int | None = None) -> list[Task]:
    """The runs of a scenario; policies and number of seeds may be other than its own."""
    names = [run for name in policies for run in registry.expand(name)] or list(scenario.policies)
    count = seeds if seeds is not None else scenario.seeds
    return [Task(scenario.setup, name, seed, scenario.capacity) for name in names for seed in range(1, count + 1)]


def machine() -> dict[str, Any]:
    """What the runs ran on. Virtual time does not depend on it; the wall time does."""
    return {"python": platform.python_version(), "machine": platform.machine(), "cpus": len(os.sched_getaffinity(0))}


def document(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything that was found, for JSON."""
    policies: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        policies.setdefault(outcome.policy, []).append({"seed": outcome.seed, **outcome.figures})
    return {
        "scenario": scenario.name,
        "description": scenario.description,
        "machine": machine(),
        "policies": policies,
        "medians": {name: medians(runs) for name, runs in policies.items()},
    }


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over seeds of the numbers in runs of one policy; one that is missing in a run (no completion) is null."""
    first = runs[0]
    found: dict[str, Any] = {}
    for key, value in first.items():
        values = [run.get(key) for run in runs]
        if isinstance(value, dict):
            found[key] = medians([v if isinstance(v, dict) else {} for v in values]) if value else {}
        elif key != "seed" and (isinstance(value, int | float) or value is None):
            numbers = [v for v in values if v is not None]
            found[key] = round(statistics.median(numbers), 4) if len(numbers) == len(values) else None
    return found


@dataclass(frozen=True)
class Trade:
    """What requests can do (evaluation section 1).

    Attributes:
        best_jct_s: lowest median job completion in the request sweep.
        trade_pct_s: lowest median pod completion among requests whose job completion is within 1.10 of that.
    """

    best_jct_s: float
    trade_pct_s: float


def trade(by_policy: dict[str, dict[str, Any]]) -> Trade:
    """Best job completion and best trade from the medians of a sweep.

    Raises:
        ValueError: no run of the sweep completed.
    """
    rows = []
    for name, figures in by_policy.items():
        if name.startswith("kube-scheduler@") and figures["jct_s"] is not None:
            rows.append((figures["jct_s"], figures["pct_s"]["mean"]))
    if not rows:
        raise ValueError("no run of the request sweep completed")
    best = min(job for job, _ in rows)
    return Trade(best, min(pod for job, pod in rows if job <= 1.10 * best))
