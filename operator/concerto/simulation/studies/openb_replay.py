"""Pods of a production cluster in the simulator: arrivals, requests and lives of the public trace openb.

Run ``python -m concerto.simulation.studies.openb_replay --pods OPENB_PODS``. A seed chooses pods that came one after
the other. Their order, gaps and lives are the trace's at a reduced scale: lives are shorter, and gaps by so much that
nodes have the load that is asked for. GPUs are left out. The trace does not say what pods use: pods of one shape (the
same requests) are of one kind, and each kind uses a part of its requests that is drawn once.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import GIB, MIB, PodLoad
from concerto.simulation.scheduling.policies import registry
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec

Floats = NDArray[np.float64]

WITH_REQUESTS = "+requests"
POLICIES = (
    *("concerto", "concerto-known", f"concerto-known{WITH_REQUESTS}", "concerto-without-kinds"),
    *("kube-scheduler", "kube-vpa", "kube-costs@1"),
)
"""Nothing known at the start; costs known; the same where pods keep their requests, which bound what a node takes;
pods as units; requests of the trace; recommended ones; requests that are what pods cost. Concerto's other pods have no
requests."""
SKIPPED = "The replay of openb is left out: --openb-pods names no file of the trace (openb-pods.csv)."


@dataclass(frozen=True)
class ReplaySettings:
    """The scale.

    Attributes:
        pods: that are replayed.
        nodes: of ``cores`` and ``memory_gib`` each.
        cores: CPUs of a node. Pods that request more are left out.
        memory_gib: of a node.
        load: CPU that all pods use on the average, in parts of all nodes.
        faster: seconds of the trace for each second of a pod's life.
        max_life_seconds: of a pod, at that speed.
        max_gap: gaps between two pods are at most so many times their mean.
        min_used: part of its requests that a kind uses, at least.
        max_used: the same, at most.
        burst_seconds: a pod computes once in so many seconds.
    """

    pods: int = 400
    nodes: int = 8
    cores: int = 96
    memory_gib: int = 384
    load: float = 0.7
    faster: float = 30.0
    max_life_seconds: float = 120.0
    max_gap: float = 20.0
    min_used: float = 0.15
    max_used: float = 0.9
    burst_seconds: float = 5.0


@dataclass(frozen=True)
class TracePod:
    """A line of the trace.

    Attributes:
        shape: what pods of one kind have in common.
        millicores: CPU that it requests.
        memory_bytes: memory that it requests.
        created: seconds.
        life: seconds from its creation to its deletion.
    """

    shape: str
    millicores: int
    memory_bytes: float
    created: float
    life: float


@dataclass(frozen=True)
class ReplayFigures:
    """What came of one policy, medians over seeds, in seconds.

    Attributes:
        job: from the first creation to the last end.
        turnaround: from a pod's creation to its end, mean.
        turnaround_p99: the same, 99th percentile.
        runs: from a container's start to its end, mean.
        oom_kills: pods that were killed for memory.
    """

    job: float
    turnaround: float
    turnaround_p99: float
    runs: float
    oom_kills: float


def read_pods(path: Path) -> list[TracePod]:
    """Pods of the trace that were scheduled and deleted, by time of creation.

    Raises:
        KeyError, ValueError: the file is no such trace.
    """
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["scheduled_time"] and row["deletion_time"]]
    pods = [
        TracePod(
            "-".join(row[part] for part in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos")).lower(),
            int(row["cpu_milli"]),
            float(row["memory_mib"]) * MIB,
            float(row["creation_time"]),
            float(row["deletion_time"]) - float(row["creation_time"]),
        )
        for row in rows
    ]
    return sorted((pod for pod in pods if pod.millicores > 0 and pod.life > 0), key=lambda pod: pod.created)


def replay(pods: Sequence[TracePod], settings: ReplaySettings, seed: int) -> Setup:
    """A part of the trace as a run of the simulator; the same for each policy under a seed.

    Raises:
        ValueError: the trace has fewer pods of that size than are asked for.
    """
    generator = np.random.default_rng(seed)
    memory_bytes = settings.memory_gib * GIB
    fit = [pod for pod in pods if pod.millicores <= 1000 * settings.cores and pod.memory_bytes <= 0.9 * memory_bytes]
    if len(fit) < settings.pods:
        raise ValueError(f"the trace has {len(fit)} pods that fit a node, and --count asks for {settings.pods}")
    first = int(generator.integers(len(fit) - settings.pods + 1))
    chosen = fit[first : first + settings.pods]
    used = {shape: generator.uniform(settings.min_used, settings.max_used) for shape in sorted({p.shape for p in fit})}
    lives = np.array([min(max(1.0, pod.life / settings.faster), settings.max_life_seconds) for pod in chosen])
    work = sum(pod.millicores / 1000 * used[pod.shape] * life for pod, life in zip(chosen, lives))
    times = _times([pod.created for pod in chosen], work / (settings.load * settings.nodes * settings.cores), settings)
    by_shape: dict[str, list[int]] = {}
    for index, pod in enumerate(chosen):
        by_shape.setdefault(pod.shape, []).append(index)
    jobs = tuple(
        _job(shape, [chosen[i] for i in indices], times[indices], lives[indices], used[shape], settings)
        for shape, indices in by_shape.items()
    )
    return Setup(nodes=(NodeSpec(settings.nodes, settings.cores, memory_bytes, 250),), jobs=jobs)


def _times(created: Sequence[float], seconds: float, settings: ReplaySettings) -> Floats:
    """Times of creation, with the gaps of the trace, that take so many seconds in all."""
    gaps = np.diff(np.array(created), prepend=created[0])
    gaps = np.minimum(gaps, settings.max_gap * gaps.mean())
    times: Floats = np.cumsum(gaps) * seconds / max(float(gaps.sum()), 1e-9)
    return times


def _job(
    shape: str, pods: Sequence[TracePod], times: Floats, lives: Floats, used: float, settings: ReplaySettings
) -> JobSpec:
    """Pods of one kind."""
    cores = pods[0].millicores / 1000
    life = float(lives.mean())
    threads = max(1, math.ceil(cores))
    load = PodLoad(
        wait_seconds=life * (1.0 - used * cores / threads),
        core_seconds=life * used * cores,
        threads=threads,
        bursts=max(1, round(life / settings.burst_seconds)),
        memory_bytes=used * pods[0].memory_bytes,
        memory_ramp_seconds=2.0,
    )
    return JobSpec(
        name=shape,
        count=len(pods),
        load=load,
        cpu_request_millicores=pods[0].millicores,
        memory_request_bytes=pods[0].memory_bytes,
        arrivals=Arrivals(at=tuple(times.tolist())),
        lives=tuple(lives.tolist()),
    )


def study(
    pods: Sequence[TracePod], settings: ReplaySettings, seeds: int, policies: Sequence[str] = POLICIES
) -> dict[str, ReplayFigures]:
    """Medians over seeds, by policy."""
    found = {}
    for policy in policies:
        runs = [_run(replay(pods, settings, seed), policy, seed) for seed in range(1, seeds + 1)]
        found[policy] = ReplayFigures(*np.median(np.array(runs), axis=0).tolist())
    return found


def _run(setup: Setup, policy: str, seed: int) -> tuple[float, ...]:
    name = policy.removesuffix(WITH_REQUESTS)
    if policy.startswith("concerto") and name == policy:
        jobs = tuple(replace(job, cpu_request_millicores=0, memory_request_bytes=0.0) for job in setup.jobs)
        setup = replace(setup, jobs=jobs)
    recorder = World(setup, registry.make(name), seed).run()
    summary, turnaround = recorder.summary(), recorder.turnaround_seconds()
    job = math.inf if summary["jct_s"] is None else summary["jct_s"]
    p99 = float(np.percentile(turnaround, 99))
    return job, float(turnaround.mean()), p99, summary["pct_s"]["mean"], summary["oom_kills"]


def table(figures: Mapping[str, ReplayFigures]) -> list[str]:
    """A row for each policy."""
    words = {WITH_REQUESTS: " with requests", "kube-scheduler": "kube-scheduler, requests of the trace"}
    lines = [
        "| scheduler | job s | creation to end s: mean | p99 | start to end s: mean | OOM kills |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, f in figures.items():
        for part, said in words.items():
            name = name.replace(part, said)
        numbers = f"{f.job:.0f} | {f.turnaround:.1f} | {f.turnaround_p99:.0f} | {f.runs:.1f} | {f.oom_kills:.0f}"
        lines.append(f"| {name} | {numbers} |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    defaults = ReplaySettings()
    parser = argparse.ArgumentParser(prog="python -m concerto.simulation.studies.openb_replay", description=__doc__)
    parser.add_argument("--pods", type=Path, help="the trace: openb-pods.csv")
    parser.add_argument("--count", type=int, default=defaults.pods, help="pods (default: %(default)s)")
    parser.add_argument("--load", type=float, default=defaults.load, help="part of all CPUs (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", action="append", default=[], help="may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    if args.pods is None or not args.pods.exists():
        print(SKIPPED.replace("--openb-pods", "--pods"))
        return 0
    settings = ReplaySettings(pods=args.count, load=args.load)
    try:
        figures = study(read_pods(args.pods), settings, args.seeds, args.policy or POLICIES)
    except (KeyError, ValueError) as error:
        parser.error(f"{args.pods}: {error}")
    print("\n".join(table(figures)))
    if args.json:
        args.json.write_text(json.dumps({name: asdict(f) for name, f in figures.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
