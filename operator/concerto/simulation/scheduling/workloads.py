"""Workloads of a scenario: jobs of pods, each with its load, what it asks for, and when it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from concerto.simulation.scheduling.node_model import MIB, PodLoad


@dataclass(frozen=True)
class Arrivals:
    """When the pods of a job are created.

    Attributes:
        process: Burst (all at `start_seconds`), Poisson (at `per_second` on average), Paced (evenly at `per_second`) or
            Daily (at random, at `per_second` on average, from almost none to twice as many and back in a period).
        start_seconds: when the first may come.
        per_second: pods a second, for Poisson, Paced and Daily.
        period_seconds: a day, for Daily.
        at: the time of each pod, as a trace has them; the others do not count then.
    """

    process: str = "Burst"
    start_seconds: float = 0.0
    per_second: float = 1.0
    period_seconds: float = 600.0
    at: tuple[float, ...] = ()

    def times(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """`count` ascending times in seconds."""
        if self.at:
            return np.array(self.at)
        if self.process == "Burst":
            return np.full(count, self.start_seconds)
        gaps = 1 / self.per_second if self.process == "Paced" else rng.exponential(1 / self.per_second, count)
        times = np.cumsum(np.broadcast_to(gaps, count))
        if self.process == "Daily":
            times = self._on_a_day(times)
        return self.start_seconds + times

    def _on_a_day(self, even: np.ndarray) -> np.ndarray:
        """Times at a rate of 1 - cos, from times at a rate of 1: where as many have come by then."""
        at = np.linspace(0.0, even[-1] + self.period_seconds, 20_000)
        angle = 2 * np.pi * at / self.period_seconds
        come = at - self.period_seconds / (2 * np.pi) * np.sin(angle)
        return np.asarray(np.interp(even, come, at))


@dataclass(frozen=True)
class JobSpec:
    """Pods of one kind.

    Attributes:
        name: of the job; figures are given per job as well. Its pods' image is named after it.
        workload: name of the workload that the pods belong to, where several jobs are releases of one; empty: ``name``.
        count: pods that have to complete; if `load.bursts` is 0 they run for ever and are no part of the job times.
        load: what a pod does.
        jitter: relative standard deviation of the wait and the work of single pods (log-normal, mean kept).
        cpu_request_millicores: what a pod asks for, for policies that look at requests; 0 asks for nothing.
        memory_request_bytes: the same for memory.
        arrivals: when the pods come.
        priority: of the pods.
        node: bind all pods to this node from outside (a server that is simply there), or None.
        gang: how many pods at a time work only together, and come together; 0 where each works by itself.
        lives: seconds that each pod runs alone on a node, as a trace has them: `load` is scaled to it, memory excepted.
            Empty: `load` and `jitter` say what a pod does.
    """

    name: str
    count: int
    load: PodLoad
    jitter: float = 0.1
    cpu_request_millicores: int = 0
    memory_request_bytes: float = 0.0
    arrivals: Arrivals = field(default_factory=Arrivals)
    priority: int = 0
    node: int | None = None
    workload: str = ""
    gang: int = 0
    lives: tuple[float, ...] = ()

    @property
    def gang_names(self) -> list[str]:
        """Names of its gangs; empty without any."""
        return [f"{self.name}-gang-{i}" for i in range(self.count // self.gang)] if self.gang else []

    @property
    def endless(self) -> bool:
        """Whether its pods never end."""
        return self.load.bursts == 0


@dataclass(slots=True)
class SimPod:
    """One pod object. A pod that has to be made again (OOM, lost node) is a new object with a new uid.

    Its status shows that its container has ended (``ended``) before its phase does, and ``deleting`` that its deletion
    has been requested.
    """

    uid: str
    job: JobSpec
    load: PodLoad
    created_at: float
    attempt: int = 0
    node: int | None = None
    phase: str = "Pending"
    bound_at: float | None = None
    gang: str = ""
    ended: bool = False
    deleting: bool = False

    @property
    def name(self) -> str:
        """Its name: unique, as its uid is."""
        return self.uid


PI_2000 = PodLoad(wait_seconds=2.0, core_seconds=4.1, threads=1, memory_bytes=20 * MIB)
"""A pod of Carico, section 5.2, that computes pi to 2,000 digits, calibrated from tables 5.1 and 5.3."""
SKLEARN = PodLoad(wait_seconds=3.0, core_seconds=96.0, threads=4, memory_bytes=700 * MIB, memory_ramp_seconds=3.0)
"""A pod of Carico, section 5.2, that trains a small classifier, calibrated from table 5.2."""


def make_pods(jobs: tuple[JobSpec, ...], rng: np.random.Generator) -> Iterator[SimPod]:
    """All pods of the jobs, by time of creation. The draws are the same for every policy under a seed."""
    pods: list[tuple[float, float, SimPod]] = []  # jobs created together have their pods created side by side
    for job in jobs:
        times = np.repeat(job.arrivals.times(job.count // (job.gang or 1), rng), job.gang or 1)
        gangs = job.gang_names
        sigma = np.sqrt(np.log1p(job.jitter**2))
        waits, works = (np.exp(rng.normal(-(sigma**2) / 2, sigma, job.count)) for _ in range(2))
        if job.lives:
            waits = works = np.array(job.lives) / job.load.life_seconds()
        for index, (at, wait, work) in enumerate(zip(times, waits, works)):
            load = PodLoad(
                wait_seconds=job.load.wait_seconds * float(wait),
                core_seconds=job.load.core_seconds * float(work),
                threads=job.load.threads,
                bursts=job.load.bursts,
                memory_bytes=job.load.memory_bytes,
                memory_ramp_seconds=job.load.memory_ramp_seconds,
                cpu_limit=job.load.cpu_limit,
            )
            gang = gangs[index // job.gang] if gangs else ""
            pods.append((float(at), index / job.count, SimPod(f"{job.name}-{index}", job, load, float(at), gang=gang)))
    pods.sort(key=lambda p: p[:2])
    return iter([pod for _, _, pod in pods])


def successor(pod: SimPod, now: float) -> SimPod:
    """The pod that its Job creates after one that did not complete."""
    return SimPod(f"{first_name(pod)}~{pod.attempt + 1}", pod.job, pod.load, now, pod.attempt + 1, gang=pod.gang)


def first_name(pod: SimPod) -> str:
    """The name of the first attempt: the same for the pod and its successors."""
    return pod.uid.split("~", 1)[0]
