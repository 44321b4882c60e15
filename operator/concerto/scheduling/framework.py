"""What filters and scores are.

A plugin answers for many nodes at once, from columns: for all of them when a template's first pod is looked at, and for
the few rows that have changed when its siblings are. So it must give a row the same answer whatever other rows it is
asked about, except in ``Score.normalise``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from concerto.api.metric_provider import Statistic
from concerto.api.pod import PodView
from concerto.api.podreservation import ReservationKey
from concerto.api.schedulingprofile import CPUPolicy, LoadSettings
from concerto.api.score_arguments import MissingMetrics
from concerto.capacity.kinds.cost import Cost
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Floats, Ints, Rows
from concerto.scheduling.state.cpus import InvalidPinningRequest, Workload
from concerto.scheduling.state.measured_capacity import BY_REQUESTS, MEASURED
from concerto.scheduling.state.provided_load import RESOURCES
from concerto.scheduling.state.resources import PODS

_MEANS: tuple[Statistic, ...] = ("average", "latest")


@dataclass(frozen=True)
class Query:
    """One pending pod (or any of its like siblings) that a node is looked for.

    Attributes:
        pod: the pod.
        cluster: the cluster; plugins only read it.
        basis: by row, what it takes part by: MEASURED, BY_REQUESTS or AVOIDED.
        reserved: by row, units that a standing reservation holds for this pod.
        admit_fraction: room that a node must have left to be given one more pod, in pods.
        load: how nodes' load is told.
        reservation: the reservation that holds units for it; None without one.
        oldest: when a provider's metric must have been measured at least, seconds.
        workload: what it asks of a node's CPUs; None for a pod without a workload type.
        cpu_policy: whether nodes with the most or with the least room for its kind are better.
        required_cpu: millicores that a node must have left for it, if it is a large pod; None for a regular pod.
        ignores_size: whether it has waited so long that it goes wherever there is room for one more pod.
        cost: what such a pod costs, by what was measured of its kind; None while nothing is measured of any kind.
        now: seconds since the epoch.
    """

    pod: PodView
    cluster: ClusterState
    basis: NDArray[np.int8]
    reserved: Floats
    admit_fraction: float
    load: LoadSettings
    reservation: ReservationKey | None = None
    oldest: float = -np.inf
    workload: Workload | InvalidPinningRequest | None = None
    cpu_policy: CPUPolicy = "Balanced"
    required_cpu: int | float | None = None
    ignores_size: bool = False
    cost: Cost | None = None
    now: float = 0.0

    @property
    def any_measured(self) -> bool:
        """Whether some node takes part by measured capacity, so that others are unmeasured beside it."""
        return bool((self.basis[self.cluster.nodes.exists[: len(self.basis)]] == MEASURED).any())

    def names(self, rows: Rows) -> list[str]:
        """The nodes' names."""
        names = self.cluster.names
        return names[rows] if isinstance(rows, slice) else [names[row] for row in rows]

    def available(self, rows: Rows) -> Floats:
        """Pods the nodes can still take, by measurement, units reserved for this pod included; NaN where unmeasured."""
        cluster = self.cluster
        with_reserved = cluster.measured.available[rows] + self.reserved[rows]
        startable: Floats = cluster.measured.startable[rows]
        return np.minimum(with_reserved, startable)

    def capacity(self, rows: Rows) -> Floats:
        """Pods like this one that the nodes can still take, by what it costs, or as units; NaN where unmeasured."""
        if self.cost is None:
            return self.available(rows)
        pods = self.cluster.kinds.loads.capacity(self.cost, rows) - self.held_by_others(rows)
        return np.where(self.is_measured(rows), pods, np.nan)

    def held_by_others(self, rows: Rows) -> Floats:
        """Pods that reservations which are not this pod's hold room for; 0 where unmeasured."""
        measured = self.cluster.measured
        held = measured.startable[rows] - measured.available[rows] - self.reserved[rows]
        return np.maximum(np.nan_to_num(held), 0.0)

    def pods_by_requests(self, rows: Rows) -> Floats:
        """How many such pods the nodes could still take by requests: least over cpu, memory and the number of pods.

        Both what the pod requests and what pods on the node do are counted with kube-scheduler's defaults for
        containers that request nothing (100m, 200Mi), or such pods would cost nothing.
        """
        resources, shape = self.cluster.resources, self.pod.shape
        pods = (resources.allocatable(PODS, rows) - resources.used(PODS, rows)).astype(np.float64)
        amounts = (("cpu", shape.nonzero_cpu_millicores), ("memory", shape.nonzero_memory_bytes))
        for (resource, amount), used in zip(amounts, self.cluster.usage.nonzero):
            if amount:
                pods = np.minimum(pods, (resources.allocatable(resource, rows) - used[rows]) / amount)
        return np.maximum(pods, 0.0)

    def is_measured(self, rows: Rows) -> Bools:
        """Which nodes take part by measured capacity."""
        measured: Bools = self.basis[rows] == MEASURED
        return measured

    def is_by_requests(self, rows: Rows) -> Bools:
        """Which nodes take part by requests, as their telemetry is missing or too old."""
        by_requests: Bools = self.basis[rows] == BY_REQUESTS
        return by_requests

    def mean_load(self, resource: str, rows: Rows) -> Floats:
        """The mean over the window (else the latest measurement) and what the window cannot contain yet, as fractions.

        0 or more, in parts of the machine; NaN where telemetry is missing, unusable or too old.
        """
        mean = self._measured(resource, "average", rows)
        mean = np.where(np.isnan(mean), self._measured(resource, "latest", rows), mean)
        return mean + self.part(resource, self.cluster.load.recent(resource, self.load, rows), rows)

    def deviation(self, resource: str, rows: Rows) -> Floats:
        """The standard deviation over the window, as a fraction of the machine; 0 where only the load is known.

        Source: Trimaran's plugins, which take a deviation that nobody measured as 0.
        """
        return np.nan_to_num(self._measured(resource, "deviation", rows))

    def knows_load(self, resource: str, rows: Rows) -> Bools:
        """Where `mean_load` is a number."""
        known = [self._measured(resource, statistic, rows) for statistic in _MEANS]
        return ~np.isnan(np.fmax(*known))

    def requested_load(self, resource: str, rows: Rows) -> Floats:
        """What pods on the nodes request, in parts of the machine, with kube-scheduler's defaults for the rest."""
        requested = self.cluster.usage.nonzero[RESOURCES.index(resource)][rows]
        return self.part(resource, requested.astype(np.float64), rows)

    def has(self, resource: str, rows: Rows) -> Bools:
        """Where the machine has some of the resource."""
        there: Bools = self.cluster.nodes.machine[RESOURCES.index(resource)][rows] > 0
        return there

    def _measured(self, resource: str, statistic: Statistic, rows: Rows) -> Floats:
        measured = self.cluster.load.measured(resource, statistic, self.load, rows, self.oldest)
        return measured if self.load.provider else np.where(self.is_measured(rows), measured, np.nan)

    def part(self, resource: str, amount: Floats | float, rows: Rows) -> Floats:
        """An amount (millicores, bytes) in parts of the machine; 1 where the machine has none of the resource."""
        machine = self.cluster.nodes.machine[RESOURCES.index(resource)][rows]
        parts: Floats = amount / np.maximum(machine, 1)
        return np.where(machine > 0, parts, np.minimum(parts, 1.0))


class Filter(Protocol):
    """Decides which nodes a pod may go to.

    Attributes:
        name: as in SchedulingProfile.
        unaffected_by_placements: whether a placement on a node leaves the answer for all nodes as it was.
        mended_by_draining: whether it may let a node pass once other pods have left the node's CPUs.
        for_pinned_pods: whether it concerns only pods with a workload type.
        spans_rows: whether a row's answer depends on pods on other rows. It is asked anew about all rows then, when its
            ``version`` for the pod has changed.
        requeue_on: changes after which a pod that it refused everywhere is worth another look.
    """

    name: ClassVar[str]
    spans_rows: ClassVar[bool]
    unaffected_by_placements: ClassVar[bool]
    mended_by_draining: ClassVar[bool]
    for_pinned_pods: ClassVar[bool]
    requeue_on: ClassVar[Change]

    def version(self, cluster: ClusterState, pod: PodView) -> Hashable:
        """What its answers for the pod depend on beyond the rows themselves; asked only if it spans rows."""
        ...

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """By row, whether it lets the node pass."""
        ...

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """Why it refuses these rows, each of which it does refuse, and how many of them for that reason."""
        ...


class FilterDefaults:
    """What holds for most filters."""

    unaffected_by_placements: ClassVar[bool] = False
    mended_by_draining: ClassVar[bool] = False
    for_pinned_pods: ClassVar[bool] = False
    spans_rows: ClassVar[bool] = False

    def version(self, cluster: ClusterState, pod: PodView) -> Hashable:
        """The rows tell everything."""
        return None


class Score(Protocol):
    """Decides how good a feasible node is, from 0 to 100.

    Attributes:
        name: as in SchedulingProfile.
        needs_normalising: whether ``normalise`` is to be called, as a node's score depends on the other nodes.
        needs_telemetry: what must be measured of a node, without which it abstains there: capacity, load, deviation.
        by_requests: whether it compares nodes by requests, so that nothing need stand in for missing telemetry.
        for_pinned_pods: whether it concerns only pods with a workload type.
        missing_metrics: what is done about nodes whose telemetry is missing (`missing_metrics.settle`).
        packs: whether it prefers nodes that are in use to empty ones.
        resources: of which it reads the load.
    """

    name: ClassVar[str]
    needs_normalising: ClassVar[bool]
    needs_telemetry: ClassVar[frozenset[str]]
    by_requests: ClassVar[bool]
    for_pinned_pods: ClassVar[bool]
    packs: ClassVar[bool]
    resources: ClassVar[tuple[str, ...]]

    @property
    def missing_metrics(self) -> MissingMetrics:
        """See the class."""
        ...

    def knows(self, query: Query, rows: Rows) -> Bools:
        """Rows whose telemetry it has."""
        ...

    def score(self, query: Query, rows: Rows) -> Floats:
        """By row: 0 to 100, or any scale that ``normalise`` takes; NaN where it abstains."""
        ...

    def normalise(self, query: Query, scores: Floats) -> Floats:
        """From the scores of all rows to 0 to 100; NaN, where it abstains or the pod can't go, stays NaN."""
        ...


class ScoreDefaults:
    """What holds for most scores: they are on the scale of 0 to 100 already, and need no telemetry."""

    needs_normalising: ClassVar[bool] = False
    needs_telemetry: ClassVar[frozenset[str]] = frozenset()
    by_requests: ClassVar[bool] = False
    for_pinned_pods: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    resources: ClassVar[tuple[str, ...]] = ()

    @property
    def missing_metrics(self) -> MissingMetrics:
        """A score that reads no load abstains where it gives no number."""
        return "Abstain"

    def knows(self, query: Query, rows: Rows) -> Bools:
        """Every row: it needs no telemetry, or has another answer where telemetry is missing."""
        return np.ones_like(query.cluster.nodes.exists[rows])

    def normalise(self, query: Query, scores: Floats) -> Floats:
        """As they are."""
        return scores


def rounded(scores: Floats) -> Floats:
    """To whole numbers, halves away from zero: as no score is negative, up (numpy's own rounding goes to even)."""
    whole: Floats = np.floor(scores + 0.5)
    return whole
