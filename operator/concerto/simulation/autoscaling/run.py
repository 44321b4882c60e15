"""Runs one policy against one traffic pattern in virtual time, through the production replica rules.

Only the service (`autoscaling_plant`) is modelled. What a policy is asked, and how its answer is limited, is code of
`concerto.autoscaling`, the same that the controller calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from concerto.api.pod import PodView
from concerto.api.pod_shape import shape_of
from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import Combined, Failure, Floor, carried_out, combine, decide, needs_metrics
from concerto.autoscaling.pods import Gone, MetricError, Sample
from concerto.autoscaling.replicas import PodReadings, Proposal, resource_utilization_replicas
from concerto.autoscaling.settings import Bounds
from concerto.simulation.autoscaling.plant import Floats, Plant, PlantSettings
from concerto.simulation.autoscaling.traffic import Traffic


@dataclass(frozen=True)
class Experiment:
    """What is the same for every policy.

    Attributes:
        traffics: the load of each replicate; they run side by side, all from their own start, for equally long.
        plant: the service.
        target_percent: CPU utilisation target.
        bounds: replica bounds and behaviour.
        seed: of everything random.
    """

    traffics: tuple[Traffic, ...]
    plant: PlantSettings
    target_percent: int = 50
    bounds: Bounds = field(default_factory=lambda: Bounds(max_replicas=40))
    seed: int = 0

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.traffics[0].end - self.traffics[0].start

    def rates(self, at: Floats | float) -> Floats:
        """Requests per second of each replicate, ``at`` seconds after the start (several: replicates x times)."""
        return np.stack([t.rate(t.start + at) for t in self.traffics])

    def demand(self, at: Floats | float) -> Floats:
        """Replicas (fractional) that would carry the traffic of that moment exactly at the target; as `rates`."""
        return self.rates(at) / self.rate_per_replica

    @property
    def rate_per_replica(self) -> float:
        """Requests per second that keep one pod exactly at the target."""
        return self.plant.pod_cores * self.target_percent / 100 / self.plant.cpu_seconds_per_request


@dataclass(frozen=True)
class Sync:
    """What a policy sees at one sync: a row per replicate.

    Attributes:
        now: seconds.
        current: replicas asked for.
        demand: the load now, in replicas; NaN where the metrics do not show it.
        saturated: where it is only a lower bound.
        observed_at: the middle of the window of those readings.
        initialisation: learned time from creation to Ready, seconds.
    """

    now: float
    current: NDArray[np.int64]
    demand: Floats
    saturated: NDArray[np.bool_]
    observed_at: float
    initialisation: float


class Policy(Protocol):
    """Gives each replicate a floor for this sync (or None).

    Attributes:
        name: for tables.
        reactive: whether the metrics of now are asked, too.
        start_up_aware: whether CPU of starting pods is recognised however long they take.
        metrics_age_seconds: how old its metrics are; None: as old as metrics-server's, which the plant has.
    """

    name: str
    reactive: bool
    start_up_aware: bool
    metrics_age_seconds: float | None

    def start(self, experiment: Experiment) -> None:
        """Forget everything; the traffics may hold history from before the start."""

    def floors(self, sync: Sync) -> list[Floor | None]:
        """One for each replicate."""

    def bounds(self, bounds: Bounds, row: int) -> Bounds:
        """What applies to that replicate, after `floors` was asked."""


@dataclass(frozen=True)
class Result:
    """Figures of one run; arrays are replicates x minutes.

    Attributes:
        p95: 95th percentile of latency over the unloaded one.
        mean: mean latency, seconds.
        idle: share of the requested CPU that did no useful work (McNaughton's IdleCPU, 5.2.1).
        pods: mean number of existing pods.
        demand: replicas the traffic of that minute needs.
        p99: 99th percentile of latency over the whole run, seconds; a value per replicate.
        forecast: mean floor asked for, NaN without one.
        rescales: changes of the number of replicas; a value per replicate.
    """

    p95: Floats
    mean: Floats
    idle: Floats
    pods: Floats
    demand: Floats
    p99: Floats
    forecast: Floats
    rescales: Floats

    @property
    def violations(self) -> Floats:
        """Minutes whose p95 was above three times the unloaded one, of each replicate."""
        return np.asarray((self.p95 > 3.0).sum(axis=1), dtype=float)

    @property
    def pod_minutes(self) -> Floats:
        """Of each replicate."""
        return np.asarray(self.pods.sum(axis=1), dtype=float)


def run(experiment: Experiment, policy: Policy) -> Result:
    """Run all replicates side by side."""
    e = experiment
    if policy.metrics_age_seconds is not None:
        e = replace(e, plant=replace(e.plant, metrics_age_seconds=policy.metrics_age_seconds))
    s = e.plant
    rng = np.random.default_rng(e.seed)
    first = np.clip(np.ceil(e.demand(0.0)), e.bounds.min_replicas, e.bounds.max_replicas).astype(int)
    rows = len(first)
    plant = Plant(s, first, rng)
    memories = [Memory()] * rows
    rescales = np.zeros(rows)
    policy.start(e)
    ticks_per_minute, sync_every = round(60 / s.tick_seconds), round(e.bounds.controller.sync_seconds / s.tick_seconds)
    minutes: list[tuple[Floats, ...]] = []
    latencies: list[Floats] = []
    floors_seen: list[Floats] = []
    tick_latencies, useful, pods = [], np.zeros(rows), np.zeros(rows)
    ticks = round(e.seconds / s.tick_seconds)
    for tick in range(ticks):
        if tick % sync_every == sync_every - 1:
            before = plant.replicas()
            memories, floors = _sync(e, plant, policy, memories)
            rescales += plant.replicas() != before
            floors_seen.append(np.array([f.replicas if f else np.nan for f in floors]))
        took, used, existing = plant.tick(e.rates(plant.now + s.tick_seconds / 2))
        tick_latencies.append(took)
        useful, pods = useful + used, pods + existing
        if tick % ticks_per_minute == ticks_per_minute - 1:
            minute = np.concatenate(tick_latencies, axis=1)
            latencies.append(minute)
            p95 = np.nan_to_num(_quantile(minute, 0.95)) / s.unloaded_p95_seconds
            asked = pods * s.pod_cores * s.tick_seconds
            minutes.append(
                (
                    p95,
                    _mean(minute),
                    1 - useful / np.maximum(asked, 1e-9),
                    pods / ticks_per_minute,
                    e.demand(plant.now - 30),
                    np.mean(floors_seen, axis=0) if floors_seen else np.full(rows, np.nan),
                )
            )
            tick_latencies, useful, pods, floors_seen = [], np.zeros(rows), np.zeros(rows), []
    p95, mean, idle, existing_pods, demand, floor = (np.array(column) for column in zip(*minutes, strict=True))
    p99 = np.array([_quantile(np.concatenate([m[row] for m in latencies])[None], 0.99)[0] for row in range(rows)])
    return Result(p95.T, mean.T, idle.T, existing_pods.T, demand.T, np.nan_to_num(p99), floor.T, rescales)


def _mean(values: Floats) -> Floats:
    """Per row, over what is not NaN; 0 where nobody asked for anything."""
    known = np.isfinite(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def _quantile(values: Floats, q: float) -> Floats:
    """Per row, over what is not NaN (numpy's nanquantile is ten times slower on many rows)."""
    ordered = np.sort(values, axis=1)
    known = np.isfinite(values).sum(axis=1)
    index = np.clip(np.ceil(q * known).astype(int) - 1, 0, None)
    return np.where(known > 0, ordered[np.arange(len(values)), index], np.nan)


def _sync(
    e: Experiment, plant: Plant, policy: Policy, memories: list[Memory]
) -> tuple[list[Memory], list[Floor | None]]:
    now, s = plant.now, e.plant
    readings, current = plant.cpu_readings(), plant.replicas()
    taken_at = now - s.metrics_age_seconds
    outcomes: list[Proposal | Failure] = []
    for row in range(len(current)):
        pods, samples = observed_pods(plant, row, readings[row], taken_at)
        outcomes.append(_proposal(e, policy, int(current[row]), pods, samples, plant.gone[row], now))
    demand = np.array([o.demand if isinstance(o, Proposal) and o.demand is not None else np.nan for o in outcomes])
    sync = Sync(
        now,
        current,
        demand,
        np.array([isinstance(o, Proposal) and o.saturated for o in outcomes]),
        taken_at - s.metrics_window_seconds / 2,
        s.startup_seconds,
    )
    floors = policy.floors(sync)
    after = []
    for row, (outcome, floor, memory) in enumerate(zip(outcomes, floors, memories, strict=True)):
        before = int(current[row])
        combined = _reactive(outcome, before, policy)
        asked = combined if needs_metrics(e.bounds, before) else None
        bounds = policy.bounds(e.bounds, row)
        decision = decide(bounds, memory, current=before, metrics=asked, floor=floor, now=now)
        if decision.rescale:
            plant.scale(row, decision.replicas)
        after.append(carried_out(decision.memory, e.bounds, before=before, after=decision.replicas, now=now))
    return after, floors


def _reactive(outcome: Proposal | Failure, current: int, policy: Policy) -> Combined:
    if policy.reactive or isinstance(outcome, Failure):
        return combine([outcome], current)
    return combine([replace(outcome, replicas=current)], current)


def _proposal(
    e: Experiment,
    policy: Policy,
    current: int,
    pods: list[PodView],
    samples: dict[str, Sample],
    gone: list[Gone],
    now: float,
) -> Proposal | Failure:
    settings = e.bounds.controller
    if policy.start_up_aware:
        longest = max(settings.cpu_initialization_seconds, 2 * e.plant.startup_seconds)
        settings = replace(settings, cpu_initialization_seconds=longest)
    try:
        return resource_utilization_replicas(
            PodReadings(current, pods, samples, e.bounds.tolerances, settings, now, gone),
            resource="cpu",
            container=None,
            target_percent=e.target_percent,
        )
    except MetricError as error:
        return Failure("FailedGetResourceMetric", str(error))


def observed_pods(plant: Plant, row: int, readings: Floats, taken_at: float) -> tuple[list[PodView], dict[str, Sample]]:
    """A replicate's pods and CPU readings as the API server and the metrics API would show them."""
    cpu = {"cpu": f"{round(plant.settings.pod_cores * 1000)}m"}
    shape = shape_of({"containers": [{"name": "server", "resources": {"requests": cpu, "limits": cpu}}]})
    pods, samples = [], {}
    for column in np.flatnonzero(plant.alive[row]):
        ready_at, created = float(plant.ready_at[row, column]), float(plant.created[row, column])
        is_ready = ready_at <= plant.now
        name = f"p{column}"
        pods.append(
            PodView(
                namespace="default",
                name=name,
                uid=name,
                labels={},
                shape=shape,
                requests=shape.requests,
                node_name="node",
                scheduler_name="concerto",
                priority=0,
                created=created,
                phase="Running",
                deleting=False,
                counted=True,
                gates=(),
                started=created,
                ready="True" if is_ready else "False",
                ready_since=ready_at if is_ready else created,
            )
        )
        if np.isfinite(readings[column]):
            value = round(1000 * float(readings[column]))
            samples[name] = Sample(value, taken_at, plant.settings.metrics_window_seconds)
    return pods, samples
