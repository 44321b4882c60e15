"""The cluster as scheduling sees it: nodes as columns, kept up to date event by event.

Each node name that anything speaks of (a Node, a NodeCapacity, a pod bound to it) has a row, so that events may come in
any order; only rows whose Node is there take part. Rows are used again, and columns grow by doubling. Plugins read
columns, whole or in part, and never write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto

import numpy as np
from numpy.typing import NDArray

from concerto.api.node import NodeView, Taint
from concerto.api.nodecapacity import NodeCapacity, NodeCapacityStatus
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.pod_constraints import AntiAffinityTerm, HostPort
from concerto.api.pod_shape import PodShape
from concerto.api.podcpubinding import BindingKey
from concerto.api.podreservation import Assignment, Reservation, ReservationKey
from concerto.api.schedulingprofile import MetricsPolicy
from concerto.api.selectors import NodeSelector, NodeSelectorTerm, Requirement
from concerto.pinning.classification import LABEL
from concerto.scheduling.state.cpus import CPUs
from concerto.scheduling.state.learned_sizes import LearnedSizes
from concerto.scheduling.state.ledger import Ledger
from concerto.scheduling.state.load import Load
from concerto.scheduling.state.provided_load import RESOURCES, Joined, Series

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = slice | Ints
"""Rows that something is asked about: a slice for all, an array for some."""

MEASURED, BY_REQUESTS, AVOIDED = np.int8(0), np.int8(1), np.int8(2)
"""Basis of a node: measured capacity; requests, as telemetry is missing or too old; or no pods at all."""

PODS = "pods"
"""The resource under which a node's number of pods is counted."""


_EMPTIED = 0.05
"""Share of a node's CPUs that must have come free for another look by large pods."""
_UNNAMED_SECONDS = 60.0
"""For so long an agent may count a pod before it is believed that it does not take what its kind takes."""
_MAX_LABELS = 256
"""Labels of which columns are kept; pods choose what they ask for."""
_MIN_VALUES_KEPT = 256
"""Values of one label, and lists of taints, that are kept whatever has become of them."""


class Change(Flag):
    """What an event may have made possible for pods that found no node."""

    NOTHING = 0
    NODE = auto()  # a node came, or its labels, taints, readiness or allocatable changed
    ENDED = auto()  # requests or ports of a pod are free
    CAPACITY = auto()  # a node can take more than it could
    CPUS = auto()  # CPUs came free, or more is known of them


@dataclass(slots=True)
class _Placed:
    """What a pod takes of its node, and whether it is bound to it or only assumed there."""

    row: int
    requests: Mapping[str, int]
    shape: PodShape
    namespace: str
    bound: bool


@dataclass(slots=True)
class _Claim:
    """CPU that is kept for a large pod until its node's agent says what it takes.

    Attributes:
        row: its node.
        share: of the node's CPUs.
        counted_at: when its agent was first heard to count it, seconds.
    """

    row: int
    share: float
    counted_at: float | None = None


class _Labels:
    """One label over all rows, as codes of its distinct values; -1 where a node lacks it."""

    def __init__(self, size: int) -> None:
        self.codes: Ints = np.full(size, -1, dtype=np.int64)
        self.code_of: dict[str, int] = {}

    def put(self, row: int, value: str | None) -> None:
        self.codes[row] = -1 if value is None else self.code_of.setdefault(value, len(self.code_of))

    def matching(self, requirement: Requirement, rows: Rows) -> Bools:
        codes = self.codes[rows]
        if requirement.operator in ("In", "NotIn"):
            found = np.zeros(len(codes), dtype=np.bool_)
            for value in requirement.values:
                if (code := self.code_of.get(value)) is not None:
                    found |= codes == code
            return found if requirement.operator == "In" else ~found
        # By distinct value; the last entry answers code -1, a label that is not there
        accepts = [requirement.accepts(value) for value in self.code_of] + [requirement.accepts(None)]
        answer: Bools = np.array(accepts)[codes]
        return answer


class ClusterState:
    """Nodes, what is on them, and what is promised of them.

    Public columns have one entry per row; ``exists`` says which rows are nodes. All is pure: time is passed in.

    Attributes:
        ledger: units in flight; change it through the cluster only.
        size: rows in use or used before; all columns are at least that long.
        names: node name by row.
        row_of: row by node name.
        exists: whether the row's Node is there.
        unschedulable: whether it is cordoned.
        ready: whether it is Ready.
        capacity: pods it can take by its last status, before what is in flight; NaN without a status.
        startable: ``capacity`` less what is in flight (algorithms section 4); NaN without a status.
        available: of it, what is not kept for standing reservations; NaN without a status.
        last_status_at: when its last status came, seconds; NaN without one.
        nonzero_used: cpu millicores and memory bytes requested on it, with kube-scheduler's defaults; shape (2, size).
        limits: cpu millicores and memory bytes that its pods are limited to, each at least its request; (2, size).
        machine: cpu millicores and memory bytes that it has, allocatable or not; shape (2, size).
        load: what is measured of it, and what cannot be measured yet.
        cpus: its CPUs, and who holds them; change it through the cluster only.
        kept: whether it is being emptied for a pod that has waited for long; only within a cycle.
        sizes: pods that are no unit of capacity; change it through the cluster only.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger if ledger is not None else Ledger()
        self.size = 0
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.exists: Bools = np.zeros(0, dtype=np.bool_)
        self.unschedulable: Bools = np.zeros(0, dtype=np.bool_)
        self.ready: Bools = np.zeros(0, dtype=np.bool_)
        self.capacity: Floats = np.zeros(0)
        self.startable: Floats = np.zeros(0)
        self.available: Floats = np.zeros(0)
        self.last_status_at: Floats = np.zeros(0)
        self.nonzero_used: Ints = np.zeros((2, 0), dtype=np.int64)
        self.limits: Ints = np.zeros((2, 0), dtype=np.int64)
        self.machine: Ints = np.zeros((2, 0), dtype=np.int64)
        self.load = Load()
        self.cpus = CPUs()
        self.sizes = LearnedSizes()
        self._live: Floats = np.zeros(0)  # pods on it that count
        self._units: Floats = np.zeros(0)  # of them, those that are units of capacity
        self._most_taken: Floats = np.zeros(0)  # since it was last said that more could be taken
        self._claimed: Floats = np.zeros(0)  # share of its CPUs for large pods that its agent has not named yet
        self._claimed_units: Floats = np.zeros(0)  # ordinary pods that have no room because of it
        self._pod_share: Floats = np.zeros(0)
        self._spare_share: Floats = np.zeros(0)
        self.draining: Bools = np.zeros(0, dtype=np.bool_)
        self._claims: dict[str, _Claim] = {}
        self._claims_on: dict[int, set[str]] = {}
        self._allocatable: Ints = np.zeros((0, 0), dtype=np.int64)
        self._used: Ints = np.zeros((0, 0), dtype=np.int64)
        self._resources: dict[str, int] = {}
        self._taints: Ints = np.zeros(0, dtype=np.int64)
        self._taint_sets: dict[tuple[Taint, ...], int] = {(): 0}
        self._labels: dict[str, _Labels] = {}
        self._nodes: dict[int, NodeView] = {}
        self._placed: dict[str, _Placed] = {}
        self._pods_on: list[int] = []
        self._free: list[int] = []
        self._ports: dict[tuple[str, int], dict[int, list[HostPort]]] = {}
        self._refusals: dict[tuple[str, AntiAffinityTerm], dict[int, int]] = {}
        self._ranks: Ints | None = None
        for resource in ("cpu", "memory", PODS):
            self._resource(resource)

    # --- what plugins ask

    def allocatable(self, resource: str, rows: Rows) -> Ints:
        """Allocatable amounts of a resource; 0 where a node has none of it."""
        return self._column(self._allocatable, resource, rows)

    def used(self, resource: str, rows: Rows) -> Ints:
        """Amounts of a resource that pods on the nodes request."""
        return self._column(self._used, resource, rows)

    def free(self, resources: Sequence[str], rows: Rows) -> Ints:
        """Allocatable less requested amounts, shape (resources, rows)."""
        if any(r not in self._resources for r in resources):
            # No node has it and no pod uses it: pods that merely ask for it must not make columns
            columns = [np.subtract(self.allocatable(r, rows), self.used(r, rows)) for r in resources]
            return np.array(columns, dtype=np.int64)
        indices = [self._resources[r] for r in resources]
        allocatable, used = self._allocatable[:, : self.size], self._used[:, : self.size]
        at = (indices, rows) if isinstance(rows, slice) else (np.array(indices)[:, None], rows)
        free: Ints = allocatable[at] - used[at]
        return free

    def selected(self, selector: NodeSelector, rows: Rows) -> Bools:
        """Which rows a pod's node selector and required affinity accept."""
        mask = self._everywhere(rows)
        for requirement in selector.labels:
            mask &= self._label(requirement.key).matching(requirement, rows)
        if selector.terms is not None:
            one: Bools = np.zeros_like(mask)
            for term in selector.terms:
                one |= self.in_term(term, rows)
            mask &= one
        return mask

    def in_term(self, term: NodeSelectorTerm, rows: Rows) -> Bools:
        """Which rows one term of a node affinity accepts; an empty term accepts none."""
        mask = self._everywhere(rows)
        if not term.labels and not term.names:
            return ~mask
        for requirement in term.labels:
            mask &= self._label(requirement.key).matching(requirement, rows)
        for requirement in term.names:
            named: Bools = np.zeros(self.size, dtype=np.bool_)
            for value in requirement.values:
                if (row := self.row_of.get(value)) is not None:
                    named[row] = True
            mask &= named[rows] if requirement.operator == "In" else ~named[rows]
        return mask

    def by_taints(self, accepts: Callable[[tuple[Taint, ...]], bool], rows: Rows) -> Bools:
        """Which rows' taints are accepted; asked once for each distinct list of taints in the cluster."""
        answer: Bools = np.array([accepts(taints) for taints in self._taint_sets])[self._taints[rows]]
        return answer

    def of_taints(self, count: Callable[[tuple[Taint, ...]], int], rows: Rows) -> Floats:
        """A number for each row's taints; asked once for each distinct list of taints in the cluster."""
        answer: Floats = np.array([float(count(taints)) for taints in self._taint_sets])[self._taints[rows]]
        return answer

    def taint_lists(self, rows: Ints) -> list[tuple[tuple[Taint, ...], int]]:
        """The distinct lists of taints among these rows, and how many rows have each."""
        lists = list(self._taint_sets)
        codes, counts = np.unique(self._taints[rows], return_counts=True)
        return [(lists[code], int(count)) for code, count in zip(codes, counts)]

    def port_conflicts(self, ports: tuple[HostPort, ...], rows: Rows) -> Bools:
        """Which rows have a pod that takes one of these host ports."""
        taken: Bools = np.zeros(self.size, dtype=np.bool_)
        for port in ports:
            for row, others in self._ports.get((port.protocol, port.port), {}).items():
                taken[row] |= any(port.conflicts(other) for other in others)
        return taken[rows]

    def leaves(self, millicores: float, rows: Rows) -> Bools:
        """Which rows have that much CPU left beside what their pods take while they live, or no pods at all.

        Of those whose agents do not say what that is, all have.
        """
        machine = np.maximum(self.machine[0, : self.size][rows], 1)
        lacks = millicores / machine + self.taken(rows) > 1.0
        left: Bools = ~lacks | (self._live[: self.size][rows] == 0)
        return left

    def holdable(self, row: int) -> float:
        """Units that can still be held for a person's reservation on the row; NaN without a status."""
        holdable = self.ledger.holdable(self.names[row])
        return np.nan if holdable is None else float(holdable - self._claimed_units[row])

    def taken(self, rows: Rows) -> Floats:
        """Share of the rows' CPUs that what is on them takes, or will have taken; NaN where nobody says."""
        units = self._units[: self.size][rows] * self._pod_share[: self.size][rows]
        taken: Floats = 1.0 - self._spare_share[: self.size][rows] + self._claimed[: self.size][rows] + units
        return taken

    @property
    def any_refusals(self) -> bool:
        """Whether a pod in the cluster has required anti-affinity, so that others' labels matter."""
        return bool(self._refusals)

    def refused(self, namespace: str, labels: Mapping[str, str], rows: Rows) -> Bools:
        """Which rows are in the same place as a pod whose required anti-affinity refuses such a pod beside it."""
        refused: Bools = np.zeros(self.size, dtype=np.bool_)
        for (own, term), counts in self._refusals.items():
            if term.refuses(own, namespace, labels):
                codes = self._label(term.topology_key).codes[: self.size]
                places = np.unique(codes[list(counts)])
                refused |= np.isin(codes, places[places >= 0])
        return refused[rows]

    def basis(self, now: float, *, stale_after_seconds: float, policy: MetricsPolicy) -> NDArray[np.int8]:
        """What each row takes part by, as of now: MEASURED, BY_REQUESTS or AVOIDED.

        A silent agent's last status, less what has been placed since, is used until it is ``stale_after_seconds`` old
        (algorithms section 4).
        """
        heard = self.last_status_at[: self.size]
        with np.errstate(invalid="ignore"):
            usable = now - heard <= stale_after_seconds
        otherwise = BY_REQUESTS if policy == "FallbackToRequests" else AVOIDED
        return np.where(usable, MEASURED, otherwise)

    def name_ranks(self) -> Ints:
        """Place of each row in the order of names."""
        if self._ranks is None:
            ranks = np.zeros(self.size, dtype=np.int64)
            for rank, row in enumerate(sorted(range(self.size), key=self.names.__getitem__)):
                ranks[row] = rank
            self._ranks = ranks
        return self._ranks

    def is_placed(self, uid: str) -> bool:
        """Whether the pod is on a node already, bound or assumed, or has ended."""
        return uid in self._placed or self.ledger.has_ended(uid)

    def is_bound(self, uid: str) -> bool:
        """Whether the pod is on a node and has not ended."""
        placed = self._placed.get(uid)
        return placed is not None and placed.bound

    # --- what is seen

    def set_node(self, node: NodeView) -> Change:
        """A Node as the API server has it now."""
        row = self._row(node.name)
        before = self._nodes.get(row)
        self._nodes[row] = node
        if before == node:
            return Change.NOTHING
        self.exists[row] = True
        self.unschedulable[row] = node.unschedulable
        self.ready[row] = node.ready
        self._taints[row] = self._taint_sets.setdefault(node.taints, len(self._taint_sets))
        for key, column in self._labels.items():
            column.put(row, node.labels.get(key))
        self._forget_values()
        self._allocatable[:, row] = 0
        for resource, amount in node.allocatable.items():
            index = self._resource(resource)  # may make new columns
            self._allocatable[index, row] = amount
        self.machine[:, row] = [node.capacity.get(r) or node.allocatable.get(r, 0) for r in RESOURCES]
        # Its agent may have been heard before it, and it tells shares
        self._told(row, self.ledger.status(node.name))
        return Change.NODE

    def remove_node(self, name: str) -> Change:
        """The Node is gone; pods bound to it and its NodeCapacity may linger."""
        row = self.row_of.get(name)
        if row is None or row not in self._nodes:
            return Change.NOTHING
        del self._nodes[row]
        self.exists[row] = self.unschedulable[row] = self.ready[row] = False
        self._allocatable[:, row] = 0
        self.machine[:, row] = 0
        self._taints[row] = 0
        for column in self._labels.values():
            column.put(row, None)
        self.load.vacate(row)
        self._tidy(row)
        return Change.NOTHING

    def set_pod(self, pod: PodView, now: float) -> Change:
        """A pod as the API server has it now: waiting, bound, or ended."""
        change = self._follow(lambda: self.ledger.set_pod(pod, now))
        if pod.terminal or self.ledger.has_ended(pod.uid):
            change |= self._lift(pod.uid)
        elif pod.node_name:
            self.cpus.settle(pod.uid)
            placed = self._placed.get(pod.uid)
            # A resize may leave requests as they are, and change the limits that load is predicted by
            as_before = placed is not None and (placed.requests, placed.shape) == (pod.requests, pod.shape)
            if placed is not None and as_before and self.names[placed.row] == pod.node_name:
                placed.bound = True
                self.load.begin(pod)
            else:
                change |= self._lift(pod.uid)
                self._drop(pod, pod.node_name, bound=True)
        return change

    def remove_pod(self, uid: str) -> Change:
        """The pod is gone from the API server."""
        return self._follow(lambda: self.ledger.remove_pod(uid)) | self._lift(uid)

    def set_capacity(self, capacity: NodeCapacity, now: float) -> Change:
        """A NodeCapacity as the API server has it now; see ``Ledger.set_capacity``."""
        row = self._row(capacity.name)
        before = self.ledger.status(capacity.name)
        change = self._follow(lambda: self.ledger.set_capacity(capacity, now))
        if (status := self.ledger.status(capacity.name)) is not before:
            change |= self._told(row, status)
            self.load.measure(row, status, self.ledger.last_status_at(capacity.name))
        return change

    def remove_capacity(self, node: str) -> Change:
        """The node's NodeCapacity is gone: it takes part by requests or not at all."""
        if node in self.row_of:
            self.load.measure(self.row_of[node], None, None)
        self.sizes.told(node, {})
        change = self._follow(lambda: self.ledger.remove_capacity(node))  # may free the row
        if node in self.row_of:
            change |= self._told(self.row_of[node], None)
            self._tidy(self.row_of[node])
        return change | Change.CAPACITY

    def provide(self, provider: str, answer: Sequence[Series], now: float) -> Joined:
        """A metric provider has answered (``load.Load.provide``); nodes go by name, or by internal address.

        By an address that several nodes say they have goes none of them: whose load it is, nobody can say.
        """
        owners = Counter(address for node in self._nodes.values() for address in {*node.addresses})
        row_of = {a: row for row, node in self._nodes.items() for a in node.addresses if owners[a] == 1}
        row_of |= {node.name: row for row, node in self._nodes.items()}
        return self.load.provide(provider, answer, row_of, self.machine, now)

    def set_reservation(self, view: Reservation) -> Change:
        """A person's reservation as the API server has it now."""
        return self._follow(lambda: self.ledger.set_reservation(view))

    def remove_reservation(self, key: ReservationKey) -> Change:
        """A person's reservation is gone."""
        return self._follow(lambda: self.ledger.remove_reservation(key))

    def hold(self, key: ReservationKey, placements: Mapping[str, int]) -> Change:
        """Hold a person's reservation's units on these nodes, and nowhere else."""
        return self._follow(lambda: self.ledger.hold(key, placements))

    def expire(self, now: float) -> Change:
        """Give up what is left of the reservations whose time is over."""
        return self._follow(lambda: self.ledger.expire(now))

    def set_topology(self, topology: NodeCPUTopology) -> Change:
        """A NodeCPUTopology as the API server has it now."""
        return Change.CPUS if self.cpus.set_topology(topology) else Change.NOTHING

    def remove_topology(self, node: str) -> Change:
        """The node's NodeCPUTopology is gone: no pod gets CPUs of its own there."""
        self.cpus.remove_topology(node)
        return Change.NOTHING

    def set_binding(self, obj: Mapping[str, object]) -> Change:
        """A PodCPUBinding as the API server has it now, raw."""
        return Change.CPUS if self.cpus.set_binding(obj) else Change.NOTHING

    def remove_binding(self, key: BindingKey) -> Change:
        """A PodCPUBinding is gone."""
        return Change.CPUS if self.cpus.remove_binding(key) else Change.NOTHING

    def avoid_cpus(self, node: str, until: float) -> None:
        """The node's agent did not get ready for a pod's CPUs: others are not sent there until then."""
        self.cpus.avoid(node, until)

    def forgive_cpus(self, now: float) -> Change:
        """Nodes that were avoided for long enough are tried again."""
        return Change.CPUS if self.cpus.forgive(now) else Change.NOTHING

    # --- what is decided

    def assume(self, pod: PodView, assignment: Assignment, now: float, millicores: float = 0.0) -> bool:
        """Count a decision as if it were carried out; False, with nothing done, if the pod is on a node or ended.

        Args:
            pod: the pod.
            assignment: where it goes.
            now: seconds since the epoch.
            millicores: CPU that is kept for it, if it is no unit, until its node's agent says what it takes, or has
                counted it for a minute and said nothing.
        """
        if self.is_placed(pod.uid) or (pod.counted and not self.ledger.assume(assignment, now)):
            return False
        self._refresh()
        self._drop(pod, assignment.node, bound=False)
        if millicores > 0.0:
            row = self.row_of[assignment.node]
            self._claims[pod.uid] = _Claim(row, min(1.0, float(millicores / max(self.machine[0, row], 1))))
            self._claims_on.setdefault(row, set()).add(pod.uid)
            self._update(assignment.node)
        self.cpus.assume(assignment, best_effort=pod.labels.get(LABEL) == "best-effort")
        return True

    def confirm(self, uid: str) -> None:
        """The API server has accepted the binding."""
        self.ledger.confirm(uid)
        self.cpus.settle(uid)
        if uid in self._placed:
            self._placed[uid].bound = True

    def forget(self, uid: str) -> Change:
        """Take back a decision whose pod is not bound; nothing happens if it is bound or has ended."""
        placed = self._placed.get(uid)
        if placed is None or placed.bound:
            return Change.NOTHING
        return self._follow(lambda: self.ledger.forget(uid)) | self._lift(uid)

    # --- inside

    def _everywhere(self, rows: Rows) -> Bools:
        return np.ones_like(self.exists[: self.size][rows])

    def _column(self, table: Ints, resource: str, rows: Rows) -> Ints:
        index = self._resources.get(resource)
        column: Ints = np.zeros(self.size, dtype=np.int64) if index is None else table[index, : self.size]
        return column[rows]

    def _resource(self, name: str) -> int:
        index = self._resources.get(name)
        if index is None:
            index = self._resources[name] = len(self._resources)
            width = len(self.exists)
            self._allocatable = np.vstack([self._allocatable.reshape(index, width), np.zeros((1, width), np.int64)])
            self._used = np.vstack([self._used.reshape(index, width), np.zeros((1, width), np.int64)])
        return index

    def _label(self, key: str) -> _Labels:
        column = self._labels.get(key)
        if column is None:
            if len(self._labels) >= _MAX_LABELS:
                del self._labels[next(iter(self._labels))]
            column = self._labels[key] = _Labels(len(self.exists))
            for row, node in self._nodes.items():
                column.put(row, node.labels.get(key))
        return column

    def _forget_values(self) -> None:
        """Values of labels and lists of taints that were, in a cluster whose nodes come and go (some hold the time)."""
        most = 2 * len(self._nodes) + _MIN_VALUES_KEPT
        for key in [key for key, column in self._labels.items() if len(column.code_of) > most]:
            del self._labels[key]  # made anew when it is asked for
        if len(self._taint_sets) > most:
            self._taint_sets = {(): 0}
            for row, node in self._nodes.items():
                self._taints[row] = self._taint_sets.setdefault(node.taints, len(self._taint_sets))

    def _row(self, name: str) -> int:
        row = self.row_of.get(name)
        if row is not None:
            return row
        self._ranks = None
        if self._free:
            row = self._free.pop()
            self.names[row] = name
        else:
            row = self.size
            if row == len(self.exists):
                self._grow(max(64, 2 * row))
            self.size += 1
            self.names.append(name)
            self._pods_on.append(0)
        self.row_of[name] = row
        self._update(name)
        return row

    def _grow(self, width: int) -> None:
        def wider(column: NDArray[np.generic], fill: float = 0) -> NDArray[np.generic]:
            shape = (*column.shape[:-1], width)
            new = np.full(shape, fill, dtype=column.dtype)
            new[..., : column.shape[-1]] = column
            return new

        for attribute in (
            "exists", "unschedulable", "ready", "capacity", "startable", "available", "last_status_at", "nonzero_used",
            "_allocatable", "limits", "machine", "_used", "_taints", "draining", "_live", "_units", "_claimed",
            "_pod_share", "_spare_share", "_most_taken", "_claimed_units",
        ):  # fmt: skip
            setattr(self, attribute, wider(getattr(self, attribute)))
        self.load.grow(width)
        for labels in self._labels.values():
            labels.codes = wider(labels.codes, -1).astype(np.int64)

    def _tidy(self, row: int) -> None:
        """Free the row once nothing speaks of its name."""
        name = self.names[row]
        if (
            row in self._nodes
            or self._pods_on[row]
            or self.ledger.resource_version(name)
            or self.ledger.is_committed(name)
        ):
            return
        del self.row_of[name]
        self._ranks = None
        self._free.append(row)

    def _follow(self, act: Callable[[], object]) -> Change:
        """Do something to the ledger and say whether a node can take more than before."""
        act()
        return self._refresh()

    def _refresh(self) -> Change:
        change = Change.NOTHING
        for name in self.ledger.take_changed():
            row = self.row_of.get(name)
            before = self.available[row] if row is not None else np.nan
            row = self._row(name) if row is None else row
            self._update(name)
            change |= self._gained(row, before)
            if row not in self._nodes:
                self._tidy(row)
        return change

    def _gained(self, row: int, before: float) -> Change:
        """Whether the node can take more than before, or so can its CPUs for a large pod."""
        emptied = bool(self.sizes) and self._most_taken[row] - self._taken_at(row) >= _EMPTIED
        if self.available[row] > 0 and (emptied or not self.available[row] <= before):
            self._most_taken[row] = np.nan
            return Change.CAPACITY
        return Change.NOTHING

    def _update(self, name: str) -> None:
        row = self.row_of[name]
        status = self.ledger.status(name)
        heard = self.ledger.last_status_at(name)
        self.capacity[row] = np.nan if status is None else status.capacity
        startable, available = self.ledger.startable(name), self.ledger.available(name)
        self.startable[row] = np.nan if startable is None else startable
        self.available[row] = np.nan if available is None else available
        self.last_status_at[row] = np.nan if heard is None else heard
        self._pod_share[row] = np.nan if status is None or status.pod_share is None else status.pod_share
        self._spare_share[row] = np.nan if status is None else status.spare_share
        self._size(row, status)

    def _size(self, row: int, status: NodeCapacityStatus | None) -> None:
        """What large pods on the node do to the room for others."""
        claims = self._claims_on.get(row, set())
        live = self.ledger.live(self.names[row])
        self._claimed[row] = sum(self._claims[uid].share for uid in claims)
        self._live[row] = self._units[row] = len(live)
        if claims or (status is not None and status.large_pods):
            # An agent may name one whose end has been seen already
            self._units[row] -= len(live & (claims | (set() if status is None else status.large_pods.keys())))
        if self.sizes:
            self._most_taken[row] = np.fmax(self._most_taken[row], self._taken_at(row))
        if claims and self._pod_share[row] > 0.0:
            units = self._claimed[row] / self._pod_share[row]
            self._claimed_units[row] = others = max(0.0, units - len(claims))
            self.startable[row] -= others
            self.available[row] -= others
        else:
            self._claimed_units[row] = 0.0

    def _taken_at(self, row: int) -> float:
        return float(self.taken(slice(row, row + 1))[0])

    def _told(self, row: int, status: NodeCapacityStatus | None) -> Change:
        """The node's agent has said which of its pods are large."""
        name, before = self.names[row], self.available[row]
        large: Mapping[str, float] = {} if status is None else status.large_pods
        counted: Sequence[str] = () if status is None else status.observed_pod_uids
        machine = self.machine[0, row]
        if machine or not large:  # shares of CPUs that nobody has spoken of yet wait for the Node
            self.sizes.told(name, {uid: share * machine for uid, share in large.items()}, counted)
        if claims := self._claims_on.get(row):
            heard = self.ledger.last_status_at(name) or 0.0
            for uid in claims & {*counted, *large}:
                claim = self._claims[uid]
                claim.counted_at = heard if claim.counted_at is None else min(heard, claim.counted_at)
                if uid in large or heard - claim.counted_at >= _UNNAMED_SECONDS:
                    self._disclaim(uid)
            self._update(name)
        return self._gained(row, before)

    def _disclaim(self, uid: str) -> None:
        row = self._claims.pop(uid).row
        self._claims_on[row].discard(uid)
        if not self._claims_on[row]:
            del self._claims_on[row]

    def _drop(self, pod: PodView, node: str, *, bound: bool) -> None:
        """Put a pod's requests, ports and refusals onto its node."""
        row = self._row(node)
        self._placed[pod.uid] = placed = _Placed(row, pod.requests, pod.shape, pod.namespace, bound)
        self._pods_on[row] += 1
        self.sizes.placed(pod, node)
        self._count(placed, 1)
        self.load.place(pod, row)
        for port in pod.shape.host_ports:
            self._ports.setdefault((port.protocol, port.port), {}).setdefault(row, []).append(port)
        for term in pod.shape.anti_affinity:
            counts = self._refusals.setdefault((pod.namespace, term), {})
            counts[row] = counts.get(row, 0) + 1

    def _lift(self, uid: str) -> Change:
        """Take them off again."""
        placed = self._placed.pop(uid, None)
        if placed is None:
            return Change.NOTHING
        row = placed.row
        self._pods_on[row] -= 1
        self.sizes.lifted(uid, ended=self.ledger.has_ended(uid))
        change = Change.ENDED
        if uid in self._claims:
            before = self.available[row]
            self._disclaim(uid)
            self._update(self.names[row])
            change |= self._gained(row, before)
        self._count(placed, -1)
        self.load.lift(uid)
        for port in placed.shape.host_ports:
            at = self._ports[port.protocol, port.port]
            at[row].remove(port)
            if not at[row]:
                del at[row]
        for term in placed.shape.anti_affinity:
            counts = self._refusals[placed.namespace, term]
            counts[row] -= 1
            if not counts[row]:
                del counts[row]
                if not counts:
                    del self._refusals[placed.namespace, term]
        self._tidy(row)
        return change | Change.CPUS if self.cpus.settle(uid) else change

    def _count(self, placed: _Placed, sign: int) -> None:
        row, shape = placed.row, placed.shape
        for resource, amount in placed.requests.items():
            index = self._resource(resource)  # may make new columns
            self._used[index, row] += sign * amount
        self._used[self._resources[PODS], row] += sign
        self.nonzero_used[0, row] += sign * shape.nonzero_cpu_millicores
        self.nonzero_used[1, row] += sign * shape.nonzero_memory_bytes
        for index, resource in enumerate(RESOURCES):
            limit = max(shape.limits.get(resource, 0), placed.requests.get(resource, 0))
            self.limits[index, row] += sign * limit
