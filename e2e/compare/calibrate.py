"""Fits the simulator's nodes to what kube-scheduler's runs on real nodes took, and predicts the others. Pure.

What a pod computes is known from the runs themselves. Four numbers of the nodes are not, and are fitted to the runs of
kube-scheduler alone: the delay until a container runs, the CPU time that kubelet and runtime take to start one and to
end one, and the share of the CPUs that the control plane and the rest of the machine take. Concerto's runs take no part
in the fit: those of the simulator are predictions. How long kubelet takes to take a pod down is measured in the runs
themselves.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling.experiments import Task
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.recorder import Recorder
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import JobSpec
from e2e.compare.observation import Run
from e2e.compare.workloads import CONCERTO, WORKLOADS, Part

NODES, CORES = 2, 1.0
WITHIN = 0.25
"""Part of the real figure by which a simulated one may be off."""
_FACTORS = (0.6, 0.8, 1.25, 1.6)
"""By which each number is changed in turn, while that lessens the error."""
_ROUNDS = 4
_SPREAD = 0.3
"""Half the width of the delay's bounds, in parts of its mean."""

Key = tuple[str, int, str]
"""Workload, number of pods and scheduler."""
RunAll = Callable[[Sequence[Task]], Iterable[Recorder]]


@dataclass(frozen=True)
class Plant:
    """The numbers that are fitted, and one that is measured.

    Attributes:
        start_seconds: mean time from a pod's binding until kubelet and runtime begin to compute for it.
        start_core_seconds: CPU time to start a pod.
        end_core_seconds: CPU time to end one.
        other_cpu: share of each node's CPU that others take.
        teardown_seconds: measured: time from the report that a container has ended to its pod's terminal phase.
    """

    start_seconds: float = 0.6
    start_core_seconds: float = 0.2
    end_core_seconds: float = 0.1
    other_cpu: float = 0.2
    teardown_seconds: float = NodeModelSettings.teardown_seconds

    def settings(self) -> NodeModelSettings:
        """The simulator's nodes."""
        bounds = (self.start_seconds * (1 - _SPREAD), self.start_seconds * (1 + _SPREAD))
        return NodeModelSettings(
            start_seconds=bounds,
            start_when_full_seconds=0.0,
            spike_threads=0,
            start_core_seconds=self.start_core_seconds,
            end_core_seconds=self.end_core_seconds,
            other_cpu=self.other_cpu,
            teardown_seconds=self.teardown_seconds,
        )

    def changed(self, name: str, factor: float) -> Plant:
        """The same with one number multiplied; a share stays below 1."""
        value = getattr(self, name) * factor
        return replace(self, **{name: min(value, 0.9) if name == "other_cpu" else value})


@dataclass(frozen=True)
class Figure:
    """One scheduler on one workload, real and simulated, seconds.

    Attributes:
        key: what was run.
        job: of the Job.
        pod: mean of a pod, from PodScheduled to the end of its container.
        simulated_job: the same in the simulator; infinite if it did not end.
        simulated_pod: the same.
    """

    key: Key
    job: float
    pod: float
    simulated_job: float
    simulated_pod: float

    @property
    def error(self) -> float:
        """Sum of the squared logarithms of both ratios."""
        return math.log(self.job_ratio) ** 2 + math.log(self.pod_ratio) ** 2

    @property
    def job_ratio(self) -> float:
        """Simulated to real."""
        return self.simulated_job / self.job

    @property
    def pod_ratio(self) -> float:
        """Simulated to real."""
        return self.simulated_pod / self.pod

    @property
    def within(self) -> bool:
        """Whether both simulated figures are close to the real ones."""
        return all(abs(ratio - 1.0) <= WITHIN for ratio in (self.job_ratio, self.pod_ratio))


@dataclass(frozen=True)
class Real:
    """What the runs of one key took, medians over rounds."""

    job: float
    pod: float
    core_seconds: float


def real_figures(runs: Iterable[Run]) -> dict[Key, Real]:
    """Medians by key; runs that were not complete are left out."""
    found: dict[Key, list[Run]] = {}
    for run in runs:
        if run.job_seconds is not None:
            found.setdefault((run.workload, run.pods, run.scheduler), []).append(run)
    return {
        key: Real(
            statistics.median(r.job for r in of),
            statistics.median(r.pod_mean for r in of),
            statistics.median(r.core_seconds_per_pod for r in of),
        )
        for key, of in found.items()
    }


def plant_of(runs: Iterable[Run]) -> Plant:
    """Where a fit begins: with what is measured, as far as the runs say it."""
    measured = [run.teardown_seconds for run in runs if run.teardown_seconds is not None]
    return Plant(teardown_seconds=statistics.median(measured)) if measured else Plant()


def work_of_parts(parts: Sequence[Part], counts: Sequence[int], core_seconds: float) -> list[float]:
    """Core-seconds of a pod of each part: shared out as their work is, with the mean that was measured."""
    mean = sum(p.core_seconds * n for p, n in zip(parts, counts)) / sum(counts)
    return [max(core_seconds * p.core_seconds / mean, 1e-3) for p in parts]


def task_of(key: Key, core_seconds: float, plant: Plant, seed: int = 1) -> Task:
    """The run of the simulator that stands for a real one."""
    name, pods, scheduler = key
    workload = WORKLOADS[name]
    counts = workload.sizes(pods)
    works = work_of_parts(workload.parts, counts, core_seconds)
    jobs = tuple(
        JobSpec(part.name, count, PodLoad(wait_seconds=part.wait_seconds, core_seconds=work), jitter=0.05)
        for part, count, work in zip(workload.parts, counts, works)
    )
    setup = Setup((NodeSpec(count=NODES, cores=CORES),), jobs, plant=plant.settings(), limit_seconds=1800.0)
    return Task(setup, policy_of(scheduler), seed, CapacitySettings())


def policy_of(scheduler: str) -> str:
    """The simulator's name of a scheduler. Pods of Concerto's real Jobs recur: their kinds are known."""
    return "concerto-known" if scheduler == CONCERTO else f"kube-scheduler@{scheduler}"


def compare(real: Mapping[Key, Real], plant: Plant, run_all: RunAll) -> list[Figure]:
    """Each real figure beside the simulator's."""
    tasks = [task_of(key, of.core_seconds, plant) for key, of in real.items()]
    found = []
    for (key, of), recorder in zip(real.items(), run_all(tasks)):
        seconds = recorder.summary()["jct_s"]
        placed = recorder.placed_seconds()
        found.append(
            Figure(key, of.job, of.pod, seconds or math.inf, float(placed.mean()) if placed.size else math.inf)
        )
    return found


def error_of(figures: Sequence[Figure]) -> float:
    """Root mean square of the logarithms of all ratios."""
    return math.sqrt(sum(f.error for f in figures) / max(2 * len(figures), 1))


def fit(real: Mapping[Key, Real], run_all: RunAll, begin: Plant | None = None) -> tuple[Plant, float]:
    """The plant with the least error over kube-scheduler's runs, number by number, and that error.

    Raises:
        ValueError: there is no run of kube-scheduler.
    """
    known = {key: of for key, of in real.items() if key[2] != CONCERTO}
    if not known:
        raise ValueError("build/compare.json has no complete run of kube-scheduler: nothing to calibrate by")
    plant = begin or Plant()
    least = error_of(compare(known, plant, run_all))
    for _ in range(_ROUNDS):
        before = least
        for name in ("other_cpu", "start_core_seconds", "start_seconds", "end_core_seconds"):
            for changed in (plant.changed(name, factor) for factor in _FACTORS):
                error = error_of(compare(known, changed, run_all))
                if error < least:
                    plant, least = changed, error
        if before - least < 1e-3:
            break
    return plant, least


def order_agreement(figures: Sequence[Figure]) -> tuple[int, int]:
    """Pairs of schedulers on one workload and number of pods that both order alike by the pods' mean, and all pairs.

    Pairs whose real figures differ by less than a tenth have no order.
    """
    alike = pairs = 0
    for one, other in itertools.combinations(figures, 2):
        if one.key[:2] != other.key[:2] or abs(math.log(one.pod / other.pod)) < math.log(1.1):
            continue
        pairs += 1
        alike += (one.pod < other.pod) == (one.simulated_pod < other.simulated_pod)
    return alike, pairs


def table(figures: Sequence[Figure]) -> list[str]:
    """A Markdown table of all figures: real / simulated."""
    lines = [
        "| workload | pods | scheduler | job s: real / simulated | ratio | pod s: real / simulated | ratio "
        "| within 25 % |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for f in figures:
        workload, pods, scheduler = f.key
        name = "Concerto" if scheduler == CONCERTO else scheduler
        lines.append(
            f"| {workload} | {pods} | {name} | {f.job:.1f} / {f.simulated_job:.1f} | {f.job_ratio:.2f} "
            f"| {f.pod:.1f} / {f.simulated_pod:.1f} | {f.pod_ratio:.2f} | {'yes' if f.within else '**no**'} |"
        )
    return lines


def summary(plant: Plant, figures: Sequence[Figure]) -> list[str]:
    """What was fitted, and how well it predicts."""
    alike, pairs = order_agreement(figures)
    ours = [f for f in figures if f.key[2] == CONCERTO]
    theirs = [f for f in figures if f.key[2] != CONCERTO]
    lines = [
        f"- fitted: {plant.start_seconds:.2f} s until a start begins, {plant.start_core_seconds:.2f} core-seconds a "
        f"start, {plant.end_core_seconds:.2f} an end, {plant.other_cpu:.0%} of the CPUs for others",
        f"- not fitted: {plant.teardown_seconds:.2f} s from the report of a container's end to its pod's terminal "
        "phase",
        f"- the simulator orders {alike} of {pairs} pairs of schedulers as the real nodes do, by the pods' mean",
    ]
    for name, of in (("kube-scheduler (fitted)", theirs), ("Concerto (predicted)", ours)):
        if of:
            lines.append(
                f"- {name}: {sum(f.within for f in of)} of {len(of)} cells within {WITHIN:.0%}; typical error "
                f"{math.expm1(error_of(of)):.0%}"
            )
    return lines
