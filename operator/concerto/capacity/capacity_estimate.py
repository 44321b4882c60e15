"""What nodes can take, from batches of samples: the estimators and the control law, put together for N nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import CapacitySettings
from concerto.capacity import cpu_demand
from concerto.capacity.batch import Batch, or_zero
from concerto.capacity.capacity_rules import Demand, Estimate, first_signal_cost, signal_units
from concerto.capacity.estimator_per_resource import SETTLE_AGES, PerResourceEstimator, UsageBatch
from concerto.capacity.estimator_signal import SignalEstimator
from concerto.capacity.large_pods import LargePods
from concerto.capacity.pod_ages import PodAges
from concerto.capacity.slots import CPUBatch, FirstGuess, PodsByAge, SlotLaw

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


@dataclass(frozen=True)
class PodsSeen:
    """What a batch is given of the nodes' pods.

    Attributes:
        count: (N,) pods counted now.
        used: by node, CPU time that its pods have had, by UID (`NodePipeline.pods_used`).
        waiting: (N,) tasks of pods that waited for a CPU, per CPU; NaN where unknown.
        changing: (N,) whether pods have started or ended so recently that the node may still work for that.
    """

    count: Floats
    used: Mapping[int, Mapping[str, float]]
    waiting: Floats
    changing: Bools


class CapacityControl:
    """The estimators of N nodes.

    Attributes:
        settings: NodeCapacity.spec.
        allocatable_pods: (N,) pods that the kubelet takes; the caller may change it in place.
        large: the large pods of each node.
        slots: the control law.
        demand_mean: (N,) mean tasks that ran or waited for a CPU in the last batch, per CPU.
        demand_source: (N,) index into `cpu_demand.DEMAND_SOURCES`.
        system: the CPU time that the nodes take for themselves, and for their pods' starts and ends.
    """

    def __init__(
        self, settings: CapacitySettings, ages: PodAges, allocatable_pods: Floats, first_cost: Floats | None
    ) -> None:
        """The arguments are `NodePipeline`'s; ``ages`` counts the pods of each node by age."""
        n, m = len(allocatable_pods), len(settings.resources)
        if first_cost is None:
            first_cost = np.full(m, settings.estimator.initial_per_pod_cost)
        self.settings = settings
        self.allocatable_pods = allocatable_pods
        self.large = LargePods(n)
        self.slots = SlotLaw(n)
        self.demand_mean: Floats = np.zeros(n)
        self.demand_source: Ints = np.zeros(n, dtype=np.intp)
        self.system = cpu_demand.SystemCpu(n)
        self._has_pressure: Bools = np.zeros(n, dtype=np.bool_)
        self._ages = ages
        self._n_nodes = n
        self._per_resource = PerResourceEstimator(n, m, first_cost, settings.estimator)
        self._signal = SignalEstimator(n)
        self._cpu = settings.resources.index("cpu") if "cpu" in settings.resources else None

    def update(self, batch: Batch, seen: PodsSeen, elapsed: float, now: float) -> None:
        """Learn from one batch.

        Args:
            batch: the samples.
            seen: the nodes' pods.
            elapsed: seconds since the batch before.
            now: monotonic seconds.
        """
        self._per_resource.update(
            self.settings.estimator,
            UsageBatch(
                usage=batch.smoothed,
                measured=batch.ok,
                quiet=batch.quiet,
                pods=batch.pods,
                younger=batch.younger.transpose(2, 0, 1),
                non_pod=batch.non_pod,
            ),
            full_above=1.0 - self.settings.smoothing.delta,
            least_cost=1.0 / np.maximum(self.allocatable_pods, 1.0),
            elapsed_seconds=elapsed,
        )
        if self._cpu is not None:
            self._update_slots(self._cpu, batch, seen, elapsed, now)

    def _update_slots(self, cpu: int, batch: Batch, seen: PodsSeen, elapsed: float, now: float) -> None:
        pods = seen.count
        y = np.where(batch.ok[:, :, cpu], batch.raw[:, :, cpu], np.nan)
        demand, used, pressure = cpu_demand.from_pressure(y, batch.cpu_used)
        self._has_pressure |= pressure.any(axis=1)
        demand, source = cpu_demand.best(demand, used, batch.runnable, seen.waiting, self._has_pressure)
        known = ~np.isnan(y)
        samples = np.maximum(known.sum(axis=1), 1)
        fresh: Bools = np.any(known, axis=1)
        np.copyto(self.demand_mean, np.where(known, demand, 0.0).sum(axis=1) / samples, where=fresh)
        np.copyto(self.demand_source, source, where=fresh)
        mean = np.where(known, y, 0.0).sum(axis=1) / samples
        others = np.clip(or_zero(batch.non_pod[:, cpu]) / np.maximum(mean, 1e-9), 0.0, 1.0)
        work = np.where(known, used, 0.0).sum(axis=1) / samples
        own_share = 1.0 - self.system.share(others, work, fresh, seen.changing, now, batch.stolen)
        for node, used_by_pod in seen.used.items():
            taken = float(np.where(known, used, 0.0)[node].mean() * own_share[node] * elapsed)
            self.large.saw(node, used_by_pod, taken, float(self.slots.load_now[node]), now)
        age = self._age_index(self.slots.show_seconds())
        younger = np.take_along_axis(batch.younger, age[None, None], axis=1)[:, 0]
        next_age = np.minimum(age + 1, len(SETTLE_AGES) - 1)[None]
        by_age = PodsByAge(
            present=pods,
            settled=pods - self._ages.younger[-1],
            certain=pods - np.take_along_axis(self._ages.younger, next_age, axis=0)[0],
            shown=(batch.pods.T - younger).T,
            shown_age=np.asarray(SETTLE_AGES)[age],
        )
        of_cpus = CPUBatch(demand, used, own_share, batch.fresh & known.any(axis=1))
        guess = FirstGuess(self._per_resource.first_cost[:, cpu], self.settings.estimator.idle_cost_growth)
        self.slots.update(self.settings.slots, of_cpus, by_age, self.large, guess, elapsed)

    @staticmethod
    def _age_index(seconds: Floats) -> Ints:
        """(N,) index of the oldest settle age up to ``seconds``."""
        return np.searchsorted(SETTLE_AGES, seconds, side="right") - 1

    def settle_index(self) -> Ints:
        """(N,) index of the settle age in use: the learned one, at least the configured floor."""
        floor = int(np.searchsorted(SETTLE_AGES, self.settings.estimator.settle_time_seconds))
        return np.minimum(np.maximum(self._per_resource.choice, floor), len(SETTLE_AGES) - 1)

    def demand(self, usage: Floats, pods: Floats, settle: Ints) -> Demand:
        """Usage and costs as the estimators know them now."""
        law = self._per_resource
        base, cost = or_zero(law.base), law.cost
        if self._cpu is not None:
            # Cpu is shared out in time: its slots are the control law's; what is left is shared out in space.
            # Memory may grow for most of a pod's life.
            age = self._age_index(self.slots.mature_seconds())
            cost = np.maximum(cost, law.cost_at(np.maximum(age, settle), 1.0 / np.maximum(self.allocatable_pods, 1.0)))
            cost[:, self._cpu] = np.maximum(1.0 - base[:, self._cpu], 1e-6) / self.slots.window
        young = self._ages.younger[settle, np.arange(self._n_nodes)].astype(float)
        return Demand(usage, ~np.isnan(usage), base, cost, law.first_cost, pods, young).admit_first_pod()

    def _shared_in_space(self, demand: Demand) -> Bools:
        """(N, m) the measured resources but cpu."""
        others = demand.known
        if self._cpu is not None:
            others = demand.known.copy()
            others[:, self._cpu] = False
        return others

    def full(self, demand: Demand) -> Bools:
        """(N,) whether a resource other than cpu is used up."""
        return demand.full(self._shared_in_space(demand))

    def _limit(self, demand: Demand, reads_usage: Bools) -> Floats:
        """(N,) pods that fit by the resources shared in space; at most 0 where one of them is used up."""
        in_space = self._shared_in_space(demand)
        limit = np.where(reads_usage, demand.by_usage(in_space), demand.by_slots(in_space) - demand.pods)
        return np.where(self.full(demand), np.minimum(limit, 0.0), limit)

    def estimate(
        self, batch: Batch, demand: Demand, e: Floats, signal: Floats, binding: Ints, elapsed: float
    ) -> Estimate:
        """What the configured estimator makes of the demand.

        Args:
            batch: the samples.
            demand: usage and costs.
            e: (N, m) expected load of one unit of the signal.
            signal: (N,) the capacity signal.
            binding: (N,) index of the resource that binds it.
            elapsed: seconds since the batch before.
        """
        if self.settings.estimator.type == "Signal":
            e_binding = e[np.arange(self._n_nodes), binding]
            return self._estimate_by_signal(batch, demand, e_binding, signal, elapsed)
        return self._estimate_per_resource(batch, demand, e, signal)

    def _estimate_by_signal(
        self, batch: Batch, demand: Demand, e_binding: Floats, signal: Floats, elapsed: float
    ) -> Estimate:
        """Source: Carico, section 4.2.4 (docs/references.md)."""
        cfg = self.settings
        self._signal.update(
            cfg.estimator,
            signal=signal,
            pods=demand.pods,
            measured=batch.fresh,
            churn=~np.all(batch.quiet, axis=1),
            initial_cost=first_signal_cost(e_binding, cfg.estimator.initial_per_pod_cost, cfg.signal.maximum),
            elapsed_seconds=elapsed,
        )
        per_pod = np.maximum(self._signal.cost, 1e-9)
        by_slots = self._signal.baseline / per_pod - demand.pods
        capacity = np.where(batch.quiet_at_end & (signal > 0.0), signal / per_pod, by_slots)
        full = self.full(demand)
        # Memory is part of the signal already; the limit binds the allowance, and a node whose memory is used up
        limit = np.where(full, 0.0, np.maximum(capacity, self._limit(demand, batch.quiet_at_end & ~full)))
        return Estimate(np.minimum(capacity, limit), np.minimum(capacity, limit), limit, self._signal.baseline, per_pod)

    def _estimate_per_resource(self, batch: Batch, demand: Demand, e: Floats, signal: Floats) -> Estimate:
        maximum = self.settings.signal.maximum
        reads_usage = batch.quiet_at_end & ~self.full(demand)
        slots = demand.by_slots(demand.known)
        by_slots = slots - demand.pods
        per_pod = signal_units(by_slots, signal, demand.cost, e, maximum)
        limit = self._limit(demand, reads_usage)
        capacity = room = np.minimum(by_slots, limit)
        if self._cpu is not None:
            capacity = np.minimum(capacity, self.slots.tokens)
            room = np.minimum(limit, self.slots.room - demand.pods)
        return Estimate(capacity, room, limit, np.minimum(per_pod * slots, maximum), per_pod)
