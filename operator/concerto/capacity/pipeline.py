"""From samples to pod capacity, for N nodes at once: what an agent (N = 1), hollow nodes and the simulator all run.

At 10 Hz ``sample`` checks, smooths and keeps what was measured; once a batch ``fold`` learns from it: the local model,
the view merged with the cluster's, the signal, cost and base, and from these the capacity. ``sample`` does as little as
it can, ``fold`` is vectorised over the batch as well as over nodes. Time is passed in, in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import CapacitySettings
from concerto.capacity import subspace
from concerto.capacity.batch import Batch, BatchBuffer, Sample, or_zero
from concerto.capacity.capacity_estimate import CapacityControl, PodsSeen
from concerto.capacity.capacity_rules import Demand, Estimate, publishable
from concerto.capacity.cpu_demand import MAX_RUNNABLE, START_SECONDS, RecentMean, mean_of_known
from concerto.capacity.estimator_per_resource import SETTLE_AGES
from concerto.capacity.local_model import LocalModel
from concerto.capacity.overprovision import OverProvision
from concerto.capacity.pod_ages import PodAges
from concerto.capacity.reject import RejectSignal
from concerto.capacity.report import QUIET, SLOTS, WARMUP, WARMUP_BATCHES, CapacityReport
from concerto.capacity.signal import capacity_signal, expected_load
from concerto.capacity.smoothing import DynamicEma
from concerto.capacity.subspace import Subspace
from concerto.capacity.windows import Windows, WindowStatistics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


class NodePipeline:
    """The measured state of N nodes that share a clock, resources and settings.

    Pods are reported by their start and end; times may lie in the past (an agent that starts finds pods running).
    """

    def __init__(
        self,
        settings: CapacitySettings,
        n_nodes: int,
        *,
        allocatable_pods: int | NDArray[np.integer] = 110,
        first_cost: Floats | None = None,
    ) -> None:
        """Nothing measured yet.

        Args:
            settings: NodeCapacity.spec; ``settings.resources`` gives m and the order of every vector.
            n_nodes: N.
            allocatable_pods: (N,) or one number: pods that the kubelet takes.
            first_cost: (m,) or (N, m) what a pod is believed to cost before any was seen, as fractions of the node (the
                cluster's mean cost); None: ``estimator.initialPerPodCost`` along every resource.
        """
        n, m = n_nodes, len(settings.resources)
        self.settings = settings
        self.n_nodes = n
        self.ages = PodAges(n, SETTLE_AGES)
        allocatable = np.broadcast_to(np.asarray(allocatable_pods, dtype=float), (n,)).copy()
        self._control = CapacityControl(settings, self.ages, allocatable, first_cost)
        self._smooth = DynamicEma((n, m), settings.smoothing)
        self._windows = Windows(n, m)
        self._pods_used: dict[int, Mapping[str, float]] = {}
        self._waiting: Floats = np.full(n, np.nan)
        self._wanting: Floats = np.full(n, np.nan)
        self._mean_wanting, self._mean_used = RecentMean(n), RecentMean(n)
        self._changed_at: Floats = np.full(n, -np.inf)
        self._cpu = settings.resources.index("cpu") if "cpu" in settings.resources else None
        self._over = OverProvision(n, settings.over_provision)
        self._rejects = RejectSignal(n, m)
        self._model = LocalModel(n, settings.resources)
        self._batches: Ints = np.zeros(n, dtype=np.intp)
        self._churn_until: Floats = np.full(n, -np.inf)
        self._dropped: Ints = np.zeros((n, m), dtype=np.intp)
        self._folded_at: float | None = None
        self._unknown: Floats = np.full(n, np.nan)
        self._batch = self._new_batch()

    def _new_batch(self) -> BatchBuffer:
        resources, samples = len(self.settings.resources), self.settings.batch_samples
        return BatchBuffer(self.n_nodes, resources, len(SETTLE_AGES), samples)

    @property
    def allocatable_pods(self) -> Floats:
        """(N,) pods that the kubelet takes; may be changed in place."""
        return self._control.allocatable_pods

    @property
    def samples_missing(self) -> int:
        """Samples until the batch is full."""
        return self._batch.missing

    def apply(self, settings: CapacitySettings) -> None:
        """Go on under other settings; what was learned is kept, a batch in progress is dropped if its length changed.

        Raises:
            ValueError: the resources differ. They give every vector its meaning: begin anew with a new pipeline.
        """
        if settings.resources != self.settings.resources:
            raise ValueError(f"resources changed from {self.settings.resources} to {settings.resources}: "
                             "a new pipeline is needed")  # fmt: skip
        resized = settings.batch_samples != self.settings.batch_samples
        self.settings = self._control.settings = settings
        self._smooth.settings = settings.smoothing
        self._over.settings = settings.over_provision
        if resized:
            self._batch = self._new_batch()

    # Pods

    def pod_started(self, node: int, at: float) -> None:
        """A pod of the node started at ``at``; opens a churn window from then."""
        self.ages.started(node, at)
        self._control.slots.started(node, self.ages.now - at)
        self._open_churn(node, at)

    def pod_ended(self, node: int, started_at: float, at: float, uid: str = "") -> None:
        """The pod of the node that had started at ``started_at`` ended at ``at``; opens a churn window.

        Its UID is needed where ``pods_used`` is given.
        """
        self.ages.advance(at)
        self.ages.ended(node, started_at)
        self._open_churn(node, at)
        if self._control.large.ended(node, uid):
            return  # its life is no measure of the others'
        self._control.slots.ended(node, max(0.0, at - started_at))
        if self.settings.over_provision.enabled:
            self._over.completed(node, max(0.0, at - started_at))

    def _open_churn(self, node: int, at: float) -> None:
        until = at + self.settings.churn_window_seconds
        if until > self._churn_until[node]:
            self._churn_until[node] = until
        self._changed_at[node] = max(self._changed_at[node], at)

    def pods_used(self, node: int, used: Mapping[str, float]) -> None:
        """CPU time that the node's counted pods have had, by UID, fractions of the node times seconds; before ``fold``.

        Where nobody says so, every pod is taken for an ordinary one (``large_pods.LargePods``).
        """
        self._pods_used[node] = used

    def pods_waited(self, node: int, waiting: float) -> None:
        """Mean tasks of the node's pods that waited for a CPU since the last ``fold``, per CPU; called before ``fold``.

        It is used where no sample has ``runnable``.
        """
        self._waiting[node] = waiting

    def pods_wanted(self, node: int, pods: float) -> None:
        """Mean pods of the node that computed, or waited for a CPU altogether, since the last ``fold``, per CPU.

        Called before ``fold``. Where nobody says so, that is unknown.
        """
        self._wanting[node] = min(pods, MAX_RUNNABLE) if pods >= 0.0 else np.nan

    # Samples

    def sample(
        self,
        now: float,
        y: Floats,
        *,
        valid: Bools | None = None,
        non_pod: Floats | None = None,
        utilisation: Floats | None = None,
        runnable: Floats | None = None,
        stolen: Floats | None = None,
    ) -> bool:
        """Take one sample of every node.

        Args:
            now: monotonic seconds.
            y: (N, m) how full each resource is. What is not finite or outside [0, 1] is dropped, and counted.
            valid: (N, m) False where the caller could not measure; None: everywhere valid.
            non_pod: (N, m) the part of y that no pod causes; NaN where unknown; None: unknown.
            utilisation: (N, m) what the windows for load-aware scores are to average, where that differs from y (cpu
                without pressure); None: y.
            runnable: (N,) tasks that run or wait for a CPU now, per CPU; NaN where unknown; None: unknown.
            stolen: (N,) CPU utilisation by what is outside of the nodes, which share their machine; None: nothing.

        Returns:
            Whether the batch is full: call ``fold``. Samples beyond a full batch overwrite its last one.
        """
        with np.errstate(invalid="ignore"):
            ok = (y >= 0.0) & (y <= 1.0)
        if valid is not None:
            ok &= valid
        all_ok = bool(ok.all())
        if not all_ok:
            self._dropped += ~ok
        self.ages.advance(now)
        smoothed = self._smooth.update(y, None if all_ok else ok)
        cpu_used = self._unknown
        if utilisation is None:
            self._windows.add(now, y, None if all_ok else ok)
        else:
            with np.errstate(invalid="ignore"):
                usable = ok & (utilisation >= 0.0) & (utilisation <= 1.0)
            if self._cpu is not None:
                cpu_used = np.where(usable[:, self._cpu], utilisation[:, self._cpu], np.nan)
            self._windows.add(now, utilisation, None if usable.all() else usable)
        if non_pod is not None:
            self._batch.add_non_pod(non_pod, ok)
        if stolen is not None:
            self._batch.add_stolen(stolen)
        tasks = self._unknown if runnable is None else np.where(runnable >= 0.0, runnable, np.nan)
        sample = Sample(y, smoothed, ok, cpu_used, np.minimum(tasks, MAX_RUNNABLE))
        return self._batch.add(sample, self._churn_until <= now, self.ages)

    def windows(self, now: float, nodes: Ints | None = None) -> dict[str, WindowStatistics]:
        """Averages, deviations and latest values over 5, 10 and 15 minutes, arrays (N, m), by name of the window.

        Args:
            now: monotonic seconds.
            nodes: indices of the nodes, and the order of the result's rows; None: all of them.
        """
        return self._windows.statistics(now, nodes)

    # Batches

    def fold(self, now: float, cluster: Subspace | None = None) -> CapacityReport:
        """Learn from the batch, and say what the nodes can take.

        Args:
            now: monotonic seconds.
            cluster: the merged model as last published; None (or one of other resources): the node's own is the view.
        """
        cfg = self.settings
        batch = self._batch.take(self.ages)
        usage = self._smooth.value.copy()
        elapsed = 0.0 if self._folded_at is None else max(0.0, now - self._folded_at)
        self.ages.advance(now)
        pods = self.ages.pods.astype(float)

        self._model.update(batch, self._batches == 0, cfg.subspace_weight)
        directions, sigma = subspace.decompose(self._model.view(cluster))
        e = expected_load(directions, sigma, cfg.signal.form)
        signal, binding = capacity_signal(usage, e, cfg.signal.maximum)
        reject = self._rejects.update(batch.raw, batch.measured.astype(float), directions, sigma)

        seen = PodsSeen(pods, self._pods_used, self._waiting, now - self._changed_at < START_SECONDS)
        self._control.update(batch, seen, elapsed, now)
        self._pods_used = {}
        self._waiting[:] = np.nan
        self._mean_wanting.add(self._wanting, elapsed)
        self._wanting[:] = np.nan
        self._mean_used.add(mean_of_known(batch.cpu_used), elapsed)
        self._batches += batch.fresh
        settle = self._control.settle_index()
        demand = self._control.demand(usage, pods, settle)
        estimate = self._control.estimate(batch, demand, e, signal, binding, elapsed)
        report = self._report(now, batch, demand, estimate, settle, signal, reject)
        self._batch.clear()
        self._folded_at = now
        return report

    def _report(
        self,
        now: float,
        batch: Batch,
        demand: Demand,
        estimate: Estimate,
        settle: Ints,
        signal: Floats,
        reject: Bools,
    ) -> CapacityReport:
        pods, full = demand.pods, self._control.full(demand)
        over = self._over.allowance if self.settings.over_provision.enabled else np.zeros_like(pods)
        warm = self._batches < WARMUP_BATCHES
        capacity = np.minimum(estimate.capacity + over, estimate.limit)
        capacity = np.where(warm, np.minimum(demand.by_first_guess(), estimate.capacity), capacity)
        mode = np.where(warm, WARMUP, np.where(batch.quiet_at_end & ~full, QUIET, SLOTS))
        measured = demand.known.any(axis=1)
        capacity = np.where(measured, publishable(or_zero(capacity), pods, self.allocatable_pods), 0.0)
        room = publishable(or_zero(np.minimum(estimate.room + over, estimate.limit)), pods, self.allocatable_pods)
        room = np.where(measured & ~warm, np.maximum(room, capacity), capacity)
        return CapacityReport(
            now=now,
            fresh=batch.fresh,
            batches=self._batches.copy(),
            mode=mode,
            capacity=capacity,
            room=room,
            signal=signal,
            baseline=or_zero(estimate.baseline),
            per_pod_cost=or_zero(estimate.per_pod_cost),
            usage=demand.usage,
            non_pod=batch.non_pod,
            base=demand.base,
            cost=demand.cost,
            settle_time=np.asarray(SETTLE_AGES)[settle],
            pods=pods.astype(np.intp),
            young=demand.young.astype(np.intp),
            over_provision=np.array(over),
            large=tuple(dict(self._control.large.of(node)) for node in range(self.n_nodes)),
            demand=self._control.demand_mean.copy(),
            demand_source=self._control.demand_source.copy(),
            pods_wanting=self._mean_wanting.mean.copy(),
            cpu_used=self._mean_used.mean.copy(),
            pod_share=self._control.slots.share(),
            window=self._control.slots.window.copy(),
            tokens=self._control.slots.tokens.copy(),
            spare=self._control.slots.spare.copy(),
            system_cpu=self._control.system.own.copy(),
            cpu_for_pods=self._control.system.for_pods.copy(),
            reject=reject,
            local_moments=self._model.moments.copy(),
            samples=batch.ok.sum(axis=1),
            dropped=self._dropped.copy(),
        )
