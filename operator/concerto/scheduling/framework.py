"""The extension points of the scheduler: filters and scores. Kubernetes' names for the same steps are in brackets.

A plugin answers for many nodes (rows) at once, from columns. It is prepared once for each signature of pods in a cycle
[PreFilter, PreScore], and is then asked about all rows, and later about the few rows that have changed. So it must give
a row the same answer whatever other rows it is asked about, except in ``Score.normalise``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, ReservationKey
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.score_arguments import MissingMetrics
from concerto.capacity.kinds.cost import Cost
from concerto.capacity.kinds.node_loads import NONE_HELD, Held
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Bools, Codes, Floats, Ints, Rows
from concerto.scheduling.state.measured_capacity import BY_REQUESTS, MEASURED
from concerto.scheduling.state.reserved_loads import held_for_others
from concerto.scheduling.state.resources import PODS


@dataclass(frozen=True)
class Query:
    """One pending pod, which stands for all pods of its signature, and the cluster in which a node is looked for.

    Attributes:
        pod: the pod.
        cluster: the cluster; plugins only read it.
        settings: the pod's profile.
        basis: by row, what it takes part by: MEASURED, BY_REQUESTS or AVOIDED.
        reserved: by row, units that a standing reservation holds for this pod.
        now: seconds since the epoch.
        reservation: the reservation that holds units for it; None without one.
        required_cpu: millicores that a node must have left for it, if it is a large pod; None for a regular pod.
        ignores_size: whether it has waited so long that it goes wherever there is room for one more pod.
        cost: what such a pod costs, by what was measured of its kind; None while nothing is measured of any kind.
        starts_together: whether it starts together with the other pods of its gang, so that nodes can't start them one
            after the other at their pace.
        large_enough: by row, whether the node has CPUs enough for it; None if it takes nodes of any size.
        found: what a filter has found out, for the score of the same name that is prepared next.
    """

    pod: PodView
    cluster: ClusterState
    settings: ProfileSettings
    basis: NDArray[np.int8]
    reserved: Floats
    now: float = 0.0
    reservation: ReservationKey | None = None
    required_cpu: int | float | None = None
    ignores_size: bool = False
    cost: Cost | None = None
    starts_together: bool = False
    large_enough: Bools | None = None
    found: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def any_measured(self) -> bool:
        """Whether some node takes part by measured capacity, so that others are unmeasured beside it."""
        return bool((self.basis[self.cluster.nodes.exists[: len(self.basis)]] == MEASURED).any())

    @cached_property
    def all_measured(self) -> bool:
        """Whether every node takes part by measured capacity, so that no row has to be checked for it."""
        return bool((self.basis == MEASURED).all())

    @cached_property
    def any_by_requests(self) -> bool:
        """Whether some node takes part by requests."""
        return bool((self.basis == BY_REQUESTS).any())

    def names(self, rows: Rows) -> list[str]:
        """The nodes' names."""
        names = self.cluster.names
        return names[rows] if isinstance(rows, slice) else [names[row] for row in rows]

    def available(self, rows: Rows) -> Floats:
        """Pods the nodes can still take, by measurement, units reserved for this pod included; NaN where unmeasured.

        For pods that start together, what counts is the room, and not how many pods the node can start at a time.
        """
        measured = self.cluster.measured
        available: Floats = measured.available[rows]
        if self.reservation is not None:
            available = np.minimum(available + self.reserved[rows], measured.startable[rows])
        if self.starts_together:
            available = np.fmax(available, measured.holdable[rows] + self.reserved[rows])
        return available

    def capacity(self, rows: Rows) -> Floats:
        """Pods like this one that the nodes can still take, by what it costs, or as units; NaN where unmeasured."""
        if self.cost is None:
            return self.available(rows)
        pods = self.cluster.kinds.loads.capacity(self.cost, rows, self.held_by_others(rows))
        return pods if self.all_measured else np.where(self.is_measured(rows), pods, np.nan)

    def held_by_others(self, rows: Rows) -> Held:
        """What reservations that are not this pod's hold room for, by what their pods cost; nothing for a unit."""
        return NONE_HELD if self.cost is None else held_for_others(self.cluster, self.cost, self.reservation, rows)

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


class Reach(Enum):
    """Which answers of a plugin for a pod change when another pod comes to a row, or leaves it."""

    NOWHERE = auto()  # none: it is not asked again
    ROW = auto()  # that of the row: it is asked again about it, and reads the cluster's columns anew
    DOMAIN = auto()  # those of other rows, too: its `add_pod` and `remove_pod` say which


class Plugin(Protocol):
    """What filters and scores have in common.

    Attributes:
        name: as in SchedulingProfile.
        reach: which of its answers a placement changes.
    """

    name: ClassVar[str]
    reach: ClassVar[Reach]

    def prepare(self, query: Query) -> Any:
        """What its answers for such pods are made from [PreFilter, PreScore]; None if it does not concern them.

        A filter that does not concern a pod lets all nodes pass, and a score that does not gives it no scores. Only
        the state may be changed later, and only by ``add_pod`` and ``remove_pod``.
        """
        ...

    def add_pod(self, state: Any, pod: PodView, row: int) -> Ints:
        """Count another pod on the row [AddPod]; returns the rows to ask again. Called only with reach DOMAIN.

        The columns of the cluster count the pod already, or never will (what-if). The row need not be among those that
        are returned if its own answer stays.
        """
        ...

    def remove_pod(self, state: Any, pod: PodView, row: int) -> Ints:
        """Take another pod off the row [RemovePod]; as ``add_pod``."""
        ...

    def ignores_alike(self, state: Any) -> bool:
        """Whether a pod like the one that the state is for changes at most the answer for its own row."""
        ...


class PluginDefaults:
    """What holds for most plugins: they read the cluster's columns, and a row's answer depends on that row alone."""

    reach: ClassVar[Reach] = Reach.ROW

    def prepare(self, query: Query) -> Any:
        """The query itself."""
        return query

    def add_pod(self, state: Any, pod: PodView, row: int) -> Ints:
        """The state knows no pods."""
        return NO_ROWS

    def remove_pod(self, state: Any, pod: PodView, row: int) -> Ints:
        """The state knows no pods."""
        return NO_ROWS

    def ignores_alike(self, state: Any) -> bool:
        """Only the answers of plugins with reach DOMAIN depend on other rows."""
        return self.reach is not Reach.DOMAIN


class CountsPods(ABC):
    """A plugin whose state holds numbers of pods, by domain: a pod that leaves is counted down as it was counted up."""

    reach: ClassVar[Reach] = Reach.DOMAIN

    def add_pod(self, state: Any, pod: PodView, row: int) -> Ints:
        """See Plugin."""
        return self.count_pod(state, pod, row, 1)

    def remove_pod(self, state: Any, pod: PodView, row: int) -> Ints:
        """See Plugin."""
        return self.count_pod(state, pod, row, -1)

    def ignores_alike(self, state: Any) -> bool:
        """See Plugin."""
        return False

    @abstractmethod
    def count_pod(self, state: Any, pod: PodView, row: int, sign: int) -> Ints:
        """Add what the pod on the row counts for, times the sign; returns the rows to ask again."""


class Filter(Plugin, Protocol):
    """Decides which nodes a pod may go to.

    Attributes:
        refusals: why it may refuse a node, in kube-scheduler's words where it has them. Code n is the n-th of them.
        resolvable: the codes that the eviction of pods from the node could mend [Unschedulable, and not
            UnschedulableAndUnresolvable].
        mended_by_draining: whether it may let a node pass once other pods have left the node's CPUs.
        requeue_on: changes after which a pod that it refused everywhere is worth another look [EventsToRegister].
        by_measurement: whether it decides by what agents measure of nodes, and not by what pods and nodes declare.
        by_amount: whether the resolvable codes say that an amount is missing, to which each pod that leaves adds.
    """

    refusals: ClassVar[tuple[str, ...]]
    resolvable: ClassVar[frozenset[int]]
    mended_by_draining: ClassVar[bool]
    requeue_on: ClassVar[Change]
    by_measurement: ClassVar[bool]
    by_amount: ClassVar[bool]

    def check(self, state: Any, rows: Rows) -> Codes:
        """By row, 0 where it lets the node pass, else the code of the refusal [Filter]."""
        ...

    def pod_refusal(self, state: Any) -> str:
        """Why the pod can go to no node whatever nodes there are [a failed PreFilter]; empty if nodes decide.

        Every row is refused then, and the sentence is given without a count of nodes.
        """
        ...

    def no_node_helps(self, state: Any) -> bool:
        """Whether it refuses the pod everywhere for a reason that cluster autoscalers don't know, and no node mends."""
        ...

    def named_nodes(self, state: Any) -> frozenset[str] | None:
        """The only nodes that the pod can go to [PreFilterResult]; None if it names none.

        All others count as refused by this filter, whatever other filters would say of them.
        """
        ...

    def reasons(self, state: Any, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """Sentences for refused rows and their codes, none of them 0, and how many rows each is true of."""
        ...

    def detail(self, state: Any, row: int) -> str:
        """What it is of a refused row, for a person who asks about one node; empty where the sentence says all."""
        ...

    def reserve(self, state: Any, assignment: Assignment) -> Assignment:
        """The assignment, with what the plugin gives the pod on its node [Reserve]."""
        ...

    def passes_soon(self, state: Any, rows: Rows) -> Bools | bool:
        """Of the rows that it refuses, which it will let pass in a moment, without the end of any pod."""
        ...


class FilterDefaults(PluginDefaults):
    """What holds for most filters: each code has one sentence, and evictions mend nothing."""

    refusals: ClassVar[tuple[str, ...]] = ()
    resolvable: ClassVar[frozenset[int]] = frozenset()
    mended_by_draining: ClassVar[bool] = False
    by_measurement: ClassVar[bool] = False
    by_amount: ClassVar[bool] = False

    def pod_refusal(self, state: Any) -> str:
        """Nodes decide."""
        return ""

    def no_node_helps(self, state: Any) -> bool:
        """Another node may help."""
        return False

    def named_nodes(self, state: Any) -> frozenset[str] | None:
        """All nodes are looked at."""
        return None

    def reasons(self, state: Any, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """Each code's sentence."""
        counts = np.bincount(codes, minlength=len(self.refusals) + 1).tolist()
        return {sentence: count for sentence, count in zip(self.refusals, counts[1:]) if count}

    def detail(self, state: Any, row: int) -> str:
        """The sentence says all."""
        return ""

    def reserve(self, state: Any, assignment: Assignment) -> Assignment:
        """As it is."""
        return assignment

    def passes_soon(self, state: Any, rows: Rows) -> Bools | bool:
        """None of them: time alone changes nothing."""
        return False


def refused_unless(passes: Bools) -> Codes:
    """Code 1 where a filter with one refusal does not let the node pass."""
    return (~passes).view(np.int8)


class Score(Plugin, Protocol):
    """Decides how good a feasible node is, from 0 to 100.

    Attributes:
        needs_normalising: whether ``normalise`` is to be called, as a node's score depends on the other nodes.
        needs_telemetry: what must be measured of a node, without which it abstains there: capacity, load, deviation.
        by_requests: whether it compares nodes by requests, so that nothing need stand in for missing telemetry.
        missing_metrics: what is done about nodes whose telemetry is missing (`missing_metrics.settle`).
        packs: whether it prefers nodes that are in use to empty ones.
        ties_by_requests: whether requests decide among the nodes that are equally good beside it.
        resources: of which it reads the load.
    """

    needs_normalising: ClassVar[bool]
    needs_telemetry: ClassVar[frozenset[str]]
    by_requests: ClassVar[bool]
    packs: ClassVar[bool]
    ties_by_requests: ClassVar[bool]
    resources: ClassVar[tuple[str, ...]]

    @property
    def missing_metrics(self) -> MissingMetrics:
        """See the class."""
        ...

    def knows(self, query: Query, rows: Rows) -> Bools:
        """Rows whose telemetry it has."""
        ...

    def score(self, state: Any, rows: Rows) -> Floats:
        """By row: 0 to 100, or any scale that ``normalise`` takes; NaN where it abstains."""
        ...

    def normalise(self, state: Any, scores: Floats) -> Floats | None:
        """From the scores of all rows to 0 to 100; NaN, where it abstains or the pod can't go, stays NaN.

        None if it is the same for every node: it is left out of the weighted mean then.
        """
        ...

    def greatest(self, state: Any, scores: Floats) -> float | None:
        """The greatest score, if ``normalise`` gives each row its share of it (``shares``); None if more decides."""
        ...


class ScoreDefaults(PluginDefaults):
    """What holds for most scores: they are on the scale of 0 to 100 already, and need no telemetry."""

    needs_normalising: ClassVar[bool] = False
    needs_telemetry: ClassVar[frozenset[str]] = frozenset()
    by_requests: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    ties_by_requests: ClassVar[bool] = False
    resources: ClassVar[tuple[str, ...]] = ()

    @property
    def missing_metrics(self) -> MissingMetrics:
        """A score that reads no load abstains where it gives no number."""
        return "Abstain"

    def knows(self, query: Query, rows: Rows) -> Bools:
        """Every row: it needs no telemetry, or has another answer where telemetry is missing."""
        return np.ones_like(query.cluster.nodes.exists[rows])

    def normalise(self, state: Any, scores: Floats) -> Floats | None:
        """As they are."""
        return scores

    def greatest(self, state: Any, scores: Floats) -> float | None:
        """None: more than the greatest score may decide."""
        return None
