"""From samples to pod capacity, for N nodes at once: what an agent (N = 1), hollow nodes and the simulator all run.

At 10 Hz ``sample`` checks, smooths and keeps what was measured; once a batch ``fold`` learns from it: the local model,
the view merged with the cluster's, the signal, cost and base, and from these the capacity. ``sample`` does as little as
it can, ``fold`` is vectorised over the batch as well as over nodes. Time is passed in, in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.api.nodecapacity import CapacityMode, CapacitySettings
from concerto.capacity import subspace
from concerto.capacity.estimator_per_resource import SETTLE_AGES, PerResourceEstimator
from concerto.capacity.estimator_signal import SignalEstimator
from concerto.capacity.large import LargePods
from concerto.capacity.overprovision import OverProvision
from concerto.capacity.podages import PodAges
from concerto.capacity.reject import RejectSignal
from concerto.capacity.signal import capacity_signal, expected_load
from concerto.capacity.slots import SlotLaw, demand_per_cpu
from concerto.capacity.smoothing import DynamicEma
from concerto.capacity.subspace import Subspace
from concerto.capacity.windows import Windows, WindowStatistics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

MODES: tuple[CapacityMode, ...] = ("Warmup", "Quiet", "Slots")
"""What the codes in ``CapacityReport.mode`` mean."""
_WARMUP, _QUIET, _SLOTS = range(3)

WARMUP_BATCHES = 3
"""Batches to fold before a node's numbers mean anything (algorithms section 3, cold start)."""


@dataclass(frozen=True)
class CapacityReport:
    """What is known of N nodes after a batch. All arrays are the report's own.

    A node without a valid sample in the batch (``fresh`` False) keeps the numbers of the batch before.

    Attributes:
        now: the time passed to ``fold``, seconds.
        fresh: (N,) whether this batch holds a valid sample of the node: only then is there something new to publish.
        batches: (N,) batches folded so far.
        mode: (N,) index into MODES.
        capacity: (N,) pods it can take now on top of ``pods``, in [0, allocatable - pods].
        room: (N,) pods it could take one after the other, as far as is believed; at least ``capacity``.
        signal: (N,) capacity signal k.
        baseline: (N,) signal without pods, b.
        per_pod_cost: (N,) signal units one pod takes, c: before allowances capacity is k / c, or b / c - n.
        usage: (N, m) smoothed y; NaN for a resource that was never measured.
        non_pod: (N, m) usage outside of pods in this batch; NaN where it can't be told apart.
        base: (N, m) estimated usage without pods.
        cost: (N, m) estimated usage one pod adds.
        settle_time: (N,) seconds after which a new pod's load is believed to show.
        pods: (N,) n.
        young: (N,) pods younger than ``settle_time``.
        over_provision: (N,) allowance contained in ``capacity``.
        large: of each node, its large pods: UID to the share of the node's CPUs that it wants.
        pod_share: (N,) share of the node's CPUs that one of its other pods takes while it lives.
        spare: (N,) share of them that is left for those.
        reject: (N,) Pronto's reject-job signal.
        local_moments: (N, m, m) second moment of the local model: what is to be published, never the view.
        samples: (N, m) valid samples in this batch.
        dropped: (N, m) samples dropped since the start: not finite, or outside [0, 1].
    """

    now: float
    fresh: Bools
    batches: Ints
    mode: Ints
    capacity: Floats
    room: Floats
    signal: Floats
    baseline: Floats
    per_pod_cost: Floats
    usage: Floats
    non_pod: Floats
    base: Floats
    cost: Floats
    settle_time: Floats
    pods: Ints
    young: Ints
    over_provision: Floats
    large: tuple[Mapping[str, float], ...]
    pod_share: Floats
    spare: Floats
    reject: Bools
    local_moments: Floats
    samples: Ints
    dropped: Ints

    def local_models(self) -> tuple[Floats, Floats]:
        """Directions (N, m, m) and σ (N, m) of the local models."""
        return subspace.decompose(self.local_moments)


class NodePipeline:
    """The measured state of N nodes that share a clock, resources and settings.

    Pods are told by their start and end; times may lie in the past (an agent that starts finds pods running).
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
        n, m, b = n_nodes, len(settings.resources), settings.batch_samples
        self.settings = settings
        self.n_nodes = n
        self.allocatable_pods: Floats = np.broadcast_to(np.asarray(allocatable_pods, dtype=float), (n,)).copy()
        self.ages = PodAges(n, SETTLE_AGES)
        if first_cost is None:
            first_cost = np.full(m, settings.estimator.initial_per_pod_cost)
        self._smooth = DynamicEma((n, m), settings.smoothing)
        self._windows = Windows(n, m)
        self._per_resource = PerResourceEstimator(n, m, first_cost, settings.estimator)
        self._signal = SignalEstimator(n)
        self._slots = SlotLaw(n)
        self._large = LargePods(n)
        self._pods_used: dict[int, Mapping[str, float]] = {}
        self._cpu = settings.resources.index("cpu") if "cpu" in settings.resources else None
        self._over = OverProvision(n, settings.over_provision)
        self._rejects = RejectSignal(n, m)
        self._moments: Floats = np.zeros((n, m, m))
        self._batches: Ints = np.zeros(n, dtype=np.intp)
        self._churn_until: Floats = np.full(n, -np.inf)
        self._dropped: Ints = np.zeros((n, m), dtype=np.intp)
        self._folded_at: float | None = None
        self._allocate_batch(b)

    def _allocate_batch(self, samples: int) -> None:
        n, m, ages = self.n_nodes, len(self.settings.resources), len(SETTLE_AGES)
        self._filled = 0
        self._raw: Floats = np.zeros((samples, n, m))
        self._smoothed: Floats = np.zeros((samples, n, m))
        self._ok: Bools = np.zeros((samples, n, m), dtype=bool)
        self._quiet: Bools = np.zeros((samples, n), dtype=bool)
        self._pods: Floats = np.zeros((samples, n))
        self._cpu_used: Floats = np.full((samples, n), np.nan)
        self._younger: Floats = np.zeros((samples, ages, n))
        self._non_pod: Floats = np.zeros((n, m))
        self._non_pod_count: Floats = np.zeros((n, m))

    def apply(self, settings: CapacitySettings) -> None:
        """Go on under other settings; what was learned is kept, a batch in progress is dropped if its length changed.

        Raises:
            ValueError: the resources differ. They give every vector its meaning: begin anew with a new pipeline.
        """
        if settings.resources != self.settings.resources:
            raise ValueError(f"resources changed from {self.settings.resources} to {settings.resources}: "
                             "a new pipeline is needed")  # fmt: skip
        resized = settings.batch_samples != self.settings.batch_samples
        self.settings = settings
        self._smooth.settings = settings.smoothing
        self._over.settings = settings.over_provision
        if resized:
            self._allocate_batch(settings.batch_samples)

    # Pods

    def pod_started(self, node: int, at: float) -> None:
        """A pod of the node started at ``at``; opens a churn window from then."""
        self.ages.started(node, at)
        self._slots.started(node, self.ages.now - at)
        self._open_churn(node, at)

    def pod_ended(self, node: int, started_at: float, at: float, uid: str = "") -> None:
        """The pod of the node that had started at ``started_at`` ended at ``at``; opens a churn window.

        Its UID is asked for where ``pods_used`` is told.
        """
        self.ages.advance(at)
        self.ages.ended(node, started_at)
        self._open_churn(node, at)
        if self._large.ended(node, uid):
            return  # its life says nothing about the others'
        self._slots.ended(node, max(0.0, at - started_at))
        if self.settings.over_provision.enabled:
            self._over.completed(node, max(0.0, at - started_at))

    def _open_churn(self, node: int, at: float) -> None:
        until = at + self.settings.churn_window_seconds
        if until > self._churn_until[node]:
            self._churn_until[node] = until

    def pods_used(self, node: int, used: Mapping[str, float]) -> None:
        """CPU time that the node's counted pods have had, by UID, fractions of the node times seconds; before ``fold``.

        Where nobody says so, every pod is taken for an ordinary one (``large.LargePods``).
        """
        self._pods_used[node] = used

    # Samples

    def sample(
        self,
        now: float,
        y: Floats,
        *,
        valid: Bools | None = None,
        non_pod: Floats | None = None,
        utilisation: Floats | None = None,
    ) -> bool:
        """Take one sample of every node.

        Args:
            now: monotonic seconds.
            y: (N, m) how full each resource is. What is not finite or outside [0, 1] is dropped, and counted.
            valid: (N, m) False where the caller could not measure; None: everywhere valid.
            non_pod: (N, m) the part of y that no pod causes; NaN where unknown; None: unknown.
            utilisation: (N, m) what the windows for load-aware scores are to average, where that differs from y (cpu
                without pressure); None: y.

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
        at = min(self._filled, len(self._ok) - 1)
        smoothed = self._smooth.update(y, None if all_ok else ok)
        self._ok[at] = ok
        self._smoothed[at] = smoothed
        self._raw[at] = y
        self._quiet[at] = self._churn_until <= now
        self._pods[at] = self.ages.pods
        self._younger[at] = self.ages.younger
        if utilisation is None:
            self._cpu_used[at] = np.nan
            self._windows.add(now, y, None if all_ok else ok)
        else:
            with np.errstate(invalid="ignore"):
                usable = ok & (utilisation >= 0.0) & (utilisation <= 1.0)
            if self._cpu is not None:
                self._cpu_used[at] = np.where(usable[:, self._cpu], utilisation[:, self._cpu], np.nan)
            self._windows.add(now, utilisation, None if usable.all() else usable)
        if non_pod is not None:
            with np.errstate(invalid="ignore"):
                known = ok & (non_pod >= 0.0) & (non_pod <= 1.0)
            np.add(self._non_pod, non_pod, out=self._non_pod, where=known)
            self._non_pod_count += known
        self._filled = at + 1
        return self._filled == len(self._ok)

    def windows(self, now: float, nodes: Ints | None = None) -> dict[str, WindowStatistics]:
        """Averages, deviations and latest values over 5, 10 and 15 minutes, arrays (N, m), by name of the window.

        Args:
            now: monotonic seconds.
            nodes: indices of the nodes to tell of, and the order of the result's rows; None: all of them.
        """
        return self._windows.statistics(now, nodes)

    def local_models(self) -> tuple[Floats, Floats]:
        """Directions (N, m, m) and σ (N, m) of the nodes' own models, as of the last fold."""
        return subspace.decompose(self._moments)

    # Batches

    def fold(self, now: float, cluster: Subspace | None = None) -> CapacityReport:
        """Learn from the batch, and say what the nodes can take.

        Args:
            now: monotonic seconds.
            cluster: the merged model as last published; None (or one of other resources): the node's own is the view.
        """
        cfg = self.settings
        if self._filled == 0:
            self._note_no_sample()
        filled = self._filled
        # Views, nodes first, of memory that lies batch first: numpy sums over the batch ten times as fast that way.
        ok = self._ok[:filled].swapaxes(0, 1)  # (N, b, m)
        measured: Bools = np.any(ok, axis=2)
        fresh: Bools = np.any(measured, axis=1)
        smoothed = _or_zero(self._smoothed[:filled]).swapaxes(0, 1)
        usage = self._smooth.value.copy()
        elapsed = 0.0 if self._folded_at is None else max(0.0, now - self._folded_at)
        self.ages.advance(now)
        pods = self.ages.pods.astype(float)

        counted = measured.astype(float)
        self._update_local(smoothed, counted, fresh)
        view = self._view(cluster)
        directions, sigma = subspace.decompose(view)
        e = expected_load(directions, sigma, cfg.signal.form)
        signal, binding = capacity_signal(usage, e, cfg.signal.maximum)
        raw = np.where(ok, self._raw[:filled].swapaxes(0, 1), smoothed)
        reject = self._rejects.update(raw, counted, directions, sigma)

        non_pod = np.full_like(usage, np.nan)
        np.divide(self._non_pod, self._non_pod_count, out=non_pod, where=self._non_pod_count > 0)
        quiet = self._quiet[:filled].T
        self._per_resource.update(
            cfg.estimator,
            usage=smoothed,
            measured=ok,
            quiet=quiet,
            pods=self._pods[:filled].T,
            younger=self._younger[:filled].transpose(2, 0, 1),
            non_pod=non_pod,
            full_above=1.0 - cfg.smoothing.delta,
            least_cost=1.0 / np.maximum(self.allocatable_pods, 1.0),
            elapsed_seconds=elapsed,
        )
        if self._cpu is not None:
            self._update_slots(self._cpu, raw, ok, non_pod, pods, fresh, elapsed, now)

        self._batches += fresh
        report = self._report(now, fresh, quiet, usage, e, signal, binding, reject, non_pod, pods, elapsed, ok)
        self._filled = 0
        self._non_pod[:] = 0.0
        self._non_pod_count[:] = 0.0
        self._folded_at = now
        return report

    def _note_no_sample(self) -> None:
        """A batch that nothing was sampled for is one that holds nothing valid."""
        self._filled = 1
        self._ok[0] = False
        self._quiet[0] = False
        self._pods[0] = self.ages.pods
        self._younger[0] = self.ages.younger

    def _update_local(self, smoothed: Floats, counted: Floats, fresh: Bools) -> None:
        """Local update: SVD of [√(1-w) UΣ, √w A/√b] as second moments; the first batch is the model."""
        moment = subspace.batch_moment(smoothed, counted)
        weight = np.where(fresh, np.where(self._batches == 0, 1.0, self.settings.subspace_weight), 0.0)[:, None, None]
        self._moments += weight * (moment - self._moments)

    def _view(self, cluster: Subspace | None) -> Floats:
        """merge(cluster with (N-1)/N, local with 1/N); used for the signal only, never published."""
        if cluster is None or cluster.nodes < 1 or len(cluster.directions) != self._moments.shape[-1]:
            return self._moments
        if cluster.resources and cluster.resources != self.settings.resources:
            return self._moments
        own = 1.0 / cluster.nodes
        return own * self._moments + (1.0 - own) * subspace.second_moment(cluster.directions, cluster.sigma)

    def _update_slots(
        self, cpu: int, raw: Floats, ok: Bools, non_pod: Floats, pods: Floats, fresh: Bools, elapsed: float, now: float
    ) -> None:
        filled = raw.shape[1]
        y = np.where(ok[:, :, cpu], raw[:, :, cpu], np.nan)
        demand, used = demand_per_cpu(y, self._cpu_used[:filled].T)
        known = ~np.isnan(y)
        mean = np.where(known, y, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        others = _or_zero(non_pod[:, cpu]) / np.maximum(mean, 1e-9)
        own_share = np.clip(1.0 - others, 0.0, 1.0)
        for node, pods_used in self._pods_used.items():
            taken = float(np.where(known, used, 0.0)[node].mean() * own_share[node] * elapsed)
            self._large.saw(node, pods_used, taken, float(self._slots.load_now[node]), now)
        self._pods_used = {}
        age = np.searchsorted(SETTLE_AGES, self._slots.show_seconds(), side="right") - 1
        younger = np.take_along_axis(self._younger[:filled], age[None, None], axis=1)[:, 0]
        self._slots.update(
            self.settings.slots,
            demand=demand,
            used=used,
            own_share=own_share,
            shown=(self._pods[:filled] - younger).T,
            shown_age=np.asarray(SETTLE_AGES)[age],
            certain=pods
            - np.take_along_axis(self.ages.younger, np.minimum(age + 1, len(SETTLE_AGES) - 1)[None], axis=0)[0],
            settled=pods - self.ages.younger[-1],
            present=pods,
            measured=fresh & known.any(axis=1),
            initial_cost=self._per_resource.first_cost[:, cpu],
            idle_cost_growth=self.settings.estimator.idle_cost_growth,
            large=self._large,
            elapsed_seconds=elapsed,
        )

    def _report(
        self,
        now: float,
        fresh: Bools,
        quiet: Bools,
        usage: Floats,
        e: Floats,
        signal: Floats,
        binding: Ints,
        reject: Bools,
        non_pod: Floats,
        pods: Floats,
        elapsed: float,
        ok: Bools,
    ) -> CapacityReport:
        cfg = self.settings
        law = self._per_resource
        known = ~np.isnan(usage)
        floor_index = int(np.searchsorted(SETTLE_AGES, cfg.estimator.settle_time_seconds))
        settle = np.minimum(np.maximum(law.choice, floor_index), len(SETTLE_AGES) - 1)
        young = self.ages.younger[settle, np.arange(self.n_nodes)].astype(float)
        base = _or_zero(law.base)
        is_quiet = quiet[:, -1] if quiet.shape[1] else np.zeros(len(fresh), dtype=bool)

        cost, others = law.cost, known
        if self._cpu is not None:
            # Cpu is shared out in time: its slots are the control law's; what is left is shared out in space
            # Memory may grow for most of a pod's life
            age = np.searchsorted(SETTLE_AGES, self._slots.mature_seconds(), side="right") - 1
            cost = np.maximum(cost, law.cost_at(np.maximum(age, settle), 1.0 / np.maximum(self.allocatable_pods, 1.0)))
            cost[:, self._cpu] = np.maximum(1.0 - base[:, self._cpu], 1e-6) / self._slots.window
            others = known.copy()
            others[:, self._cpu] = False
        # An empty node takes one pod if a first guess of it fits: else one large pod could lock its node for good.
        empty = (pods == 0.0)[:, None] & known & (1.0 - usage >= law.first_cost)
        cost = np.where(empty, np.minimum(cost, 1.0 - usage), cost)
        base = np.where(empty, np.minimum(base, usage), base)
        # Young pods may not have all of their memory yet: the larger of guess and estimate is kept for them
        owed = young[:, None] * np.maximum(cost, law.first_cost)
        headroom = np.where(others, (1.0 - usage - owed) / cost, np.inf).min(axis=1)
        slots = np.where(known, np.maximum(1.0 - base, 0.0) / cost, np.inf).min(axis=1)
        full = (others & (usage >= 1.0 - cfg.smoothing.delta)).any(axis=1)

        if cfg.estimator.type == "Signal":
            e_binding = e[np.arange(self.n_nodes), binding]
            initial = np.minimum(cfg.estimator.initial_per_pod_cost / np.maximum(e_binding, 1e-9), cfg.signal.maximum)
            self._signal.update(
                cfg.estimator,
                signal=signal,
                pods=pods,
                measured=fresh,
                churn=~np.all(quiet, axis=1),
                initial_cost=initial,
                elapsed_seconds=elapsed,
            )
            per_pod = np.maximum(self._signal.cost, 1e-9)
            baseline = self._signal.baseline
            by_headroom = signal / per_pod
            by_slots = baseline / per_pod - pods
            capacity = np.where(is_quiet & (signal > 0.0), by_headroom, by_slots)
            room = capacity
        else:
            by_slots = slots - pods
            with np.errstate(divide="ignore", invalid="ignore"):
                per_pod = np.where((by_slots > 0.0) & np.isfinite(by_slots), signal / by_slots, 0.0)
            fallback = (cost / np.maximum(e, 1e-9)).max(axis=1)
            per_pod = np.clip(np.where(per_pod > 0.0, per_pod, fallback), 1e-9, cfg.signal.maximum)
            baseline = np.minimum(per_pod * slots, cfg.signal.maximum)
            capacity = np.where(is_quiet & ~full, np.minimum(headroom, by_slots), by_slots)
            room = capacity
            if self._cpu is not None:
                capacity = np.minimum(capacity, self._slots.tokens)
                in_space = np.where(others, np.maximum(1.0 - base, 0.0) / cost, np.inf).min(axis=1) - pods
                in_space = np.where(is_quiet & ~full, headroom, in_space)
                room = np.minimum(in_space, self._slots.room - pods)
            capacity = np.where(full, np.minimum(capacity, 0.0), capacity)
            room = np.where(full, np.minimum(room, 0.0), room)

        over = self._over.allowance if cfg.over_provision.enabled else np.zeros_like(pods)
        mode = np.where(is_quiet & ~full, _QUIET, _SLOTS)
        warm = self._batches < WARMUP_BATCHES
        first_guess = np.where(known, (1.0 - usage) / law.first_cost, np.inf).min(axis=1) - young
        capacity = np.where(warm, np.minimum(first_guess, capacity), capacity + over)
        mode = np.where(warm, _WARMUP, mode)
        room_for_pods = np.maximum(self.allocatable_pods - pods, 0.0)
        measured = known.any(axis=1)
        capacity = np.where(measured, np.clip(_or_zero(capacity), 0.0, room_for_pods), 0.0)
        room = np.where(measured & ~warm, np.clip(_or_zero(room + over), capacity, room_for_pods), capacity)

        return CapacityReport(
            now=now,
            fresh=fresh,
            batches=self._batches.copy(),
            mode=mode,
            capacity=capacity,
            room=room,
            signal=signal,
            baseline=_or_zero(baseline),
            per_pod_cost=_or_zero(per_pod),
            usage=usage,
            non_pod=non_pod,
            base=base,
            cost=cost,
            settle_time=np.asarray(SETTLE_AGES)[settle],
            pods=pods.astype(np.intp),
            young=young.astype(np.intp),
            over_provision=np.array(over),
            large=tuple(dict(self._large.of(node)) for node in range(self.n_nodes)),
            pod_share=self._slots.share(),
            spare=self._slots.spare.copy(),
            reject=reject,
            local_moments=self._moments.copy(),
            samples=ok.sum(axis=1),
            dropped=self._dropped.copy(),
        )


def _or_zero(values: Floats) -> Floats:
    """The values, 0 where they are NaN (numpy's nan_to_num takes five times as long on a single node)."""
    return np.where(np.isnan(values), 0.0, values)
