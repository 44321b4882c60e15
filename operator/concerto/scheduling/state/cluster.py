"""The cluster as scheduling sees it: nodes as columns, kept up to date event by event.

Each node name that any object names (a Node, a NodeCapacity, a pod bound to it) has a row, so that events may come in
any order; only rows whose Node exists take part. Each part below answers for one thing. Those that depend on Nodes and
on pods alone are indexes (``PodIndex``), and follow both by the same few calls. Plugins read the parts and never write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacity, NodeCapacityStatus
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.podcpubinding import BindingKey
from concerto.api.podreservation import Assignment, Reservation, ReservationKey
from concerto.pinning.classification import LABEL
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cpus import CPUs
from concerto.scheduling.state.disruption_budgets import DisruptionBudgets
from concerto.scheduling.state.exclusive_cpus import ExclusiveCPUs
from concerto.scheduling.state.host_ports import HostPortIndex
from concerto.scheduling.state.images import ImageIndex
from concerto.scheduling.state.kind_loads import KindLoads
from concerto.scheduling.state.large_pods import LargePods
from concerto.scheduling.state.learned_sizes import LearnedSizes
from concerto.scheduling.state.ledger import Ledger
from concerto.scheduling.state.load import Load
from concerto.scheduling.state.measured_capacity import MeasuredCapacity
from concerto.scheduling.state.namespaces import Namespaces
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.nodes import Nodes
from concerto.scheduling.state.nominations import Nominations
from concerto.scheduling.state.placed_pods import PlacedPods, is_accounted_alike
from concerto.scheduling.state.pod_counts import PodCounts
from concerto.scheduling.state.pod_groups import PodGroups
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.pod_terms import TermsOnRows
from concerto.scheduling.state.pods_on_rows import PodsOnRows
from concerto.scheduling.state.provided_load import Joined, Series
from concerto.scheduling.state.resources import PODS, ResourceTable
from concerto.scheduling.state.signatures import PodSignatures
from concerto.scheduling.state.unstarted_pods import UnstartedPods
from concerto.scheduling.state.usage import PodUsage
from concerto.scheduling.state.volumes import VolumeIndex


class ClusterState:
    """Nodes, what is on them, and what is promised of them. Pure: time is passed in.

    Attributes:
        ledger: units in flight; change it through the cluster only.
        rows, names, row_of: names and rows; node name by row, and row by node name.
        nodes, namespaces: what the Node objects say; labels of namespaces.
        resources, usage, ports: allocatable and requests; sums over pods that scores read; host ports in use.
        terms, images: what the pods on nodes want of other pods; container images that are on nodes.
        measured, large_pods: measured capacity; pods that are no single unit of it.
        signatures: which pods are alike.
        pods_on, pod_counts: the pods on each row; those that match what pending pods ask about.
        kinds: what pods cost by kind, and what is committed because of it.
        load: what is measured of nodes, and what cannot be measured yet.
        cpus: CPUs of nodes, and which pods hold them; change it through the cluster only.
        exclusive: what exclusive CPUs take of nodes beyond requests.
        nominations, unstarted: pods that room is being made for; pods whose start fails.
        budgets, pod_groups: PodDisruptionBudgets; PodGroups and their pods.
        volumes: storage, what pods use of it, and what decisions have reserved; reflectors change it directly.
        filtered_by: the indexes that filters read; a pod that is removed and added again leaves them as they were.
    """

    def __init__(self) -> None:
        self.rows = NodeRows()
        self.names, self.row_of = self.rows.names, self.rows.row_of
        self.signatures = PodSignatures(sizes := LearnedSizes())
        self.ledger, self.nodes = Ledger(self.signatures), Nodes(self.rows)
        self.resources, self.usage, self.ports = ResourceTable(), PodUsage(), HostPortIndex(self.rows)
        self.terms, self.volumes = TermsOnRows(self.signatures), VolumeIndex(self.rows, self.nodes.labels)
        self.pod_counts, self.kinds, self.cpus, self.images = PodCounts(), KindLoads(), CPUs(), ImageIndex()
        self.load, self.namespaces, self.pods_on, self.unstarted = Load(), Namespaces(), PodsOnRows(), UnstartedPods()
        self.pod_groups = PodGroups(self.is_placed, lambda uid: self.is_bound(uid) or self.ledger.has_ended(uid))
        self.large_pods = LargePods(self.rows, self.nodes, sizes, self.ledger.has_ended)
        self.nominations, self.budgets = Nominations(self.is_placed, self.signatures), DisruptionBudgets()
        self.filtered_by: tuple[PodIndex, ...] = (self.resources, self.usage, self.ports, self.terms.refusing)
        self.filtered_by += (self.pod_counts, self.kinds, self.volumes)
        more = (self.terms.preferring, self.large_pods, self.images, self.load, self.pods_on, self.pod_groups)
        self._indexes: tuple[PodIndex, ...] = (self.nodes, *self.filtered_by, *more)
        self._placed = PlacedPods(self._indexes, self.volumes.reservations)
        self.exclusive = ExclusiveCPUs(self.rows, self.cpus, self._placed, self.kinds)
        self.measured = MeasuredCapacity(self.rows, self.ledger, self.large_pods, self.exclusive)
        self.rows.indexes = (*self._indexes, self.exclusive, self.measured)

    # --- what is asked

    @property
    def size(self) -> int:
        """Rows in use or used before; all columns are at least that long."""
        return self.rows.size

    def is_placed(self, uid: str) -> bool:
        """Whether the pod is on a node already, bound or assumed, or has ended."""
        return uid in self._placed or self.ledger.has_ended(uid)

    def is_bound(self, uid: str) -> bool:
        """Whether the pod is on a node and has not ended."""
        return (placed := self._placed.get(uid)) is not None and placed.bound

    def node_of(self, uid: str) -> str:
        """The node that the pod is on, bound or assumed; empty if it is on none, or has ended."""
        return "" if (placed := self._placed.get(uid)) is None else self.names[placed.row]

    # --- Nodes and pods

    def set_node(self, node: NodeView) -> Change:
        """A Node as the API server has it now."""
        row = self.rows.row(node.name)
        if self.nodes.views.get(row) == node:
            return Change.NOTHING
        for index in self._indexes:
            index.node_changed(row, node)
        self._follow(lambda: self.ledger.set_max_pods(node.name, node.allocatable.get(PODS, 0)))
        # Its agent may have reported before the Node came: shares of its CPUs can be amounts now
        self._report(row, self.ledger.nodes.status(node.name))
        return Change.NODE

    def remove_node(self, name: str) -> Change:
        """The Node is gone; pods bound to it and its NodeCapacity may linger, but its domains do not count any more."""
        if (row := self.row_of.get(name)) is None or row not in self.nodes.views:
            return Change.NOTHING
        for index in self._indexes:
            index.node_changed(row, None)
        self._follow(lambda: self.ledger.set_max_pods(name, None))  # may free the row
        if name in self.row_of:
            self._tidy(row)
        return Change.PLACED

    def set_pod(self, pod: PodView, now: float) -> Change:
        """A pod as the API server has it now: waiting, bound, or ended."""
        self.load.time_is(now)
        self.pod_groups.set_pod(pod := self.unstarted.accounted(pod, now))
        change = self._follow(lambda: self.ledger.set_pod(pod, now)) | self.nominations.set_pod(pod)
        if pod.terminal or self.ledger.has_ended(pod.uid):
            change |= self._remove_pod(pod.uid)
        elif pod.node_name:
            self.cpus.settle(pod.uid)
            return change | self._set_placed(pod)
        return change

    def remove_pod(self, uid: str) -> Change:
        """The pod is gone from the API server."""
        self.pod_groups.remove_pod(uid)
        self.unstarted.remove(uid)
        change = self._follow(lambda: self.ledger.remove_pod(uid)) | self.nominations.withdraw(uid)
        return change | self._remove_pod(uid)

    # --- measurements

    def set_capacity(self, capacity: NodeCapacity, now: float) -> Change:
        """A NodeCapacity as the API server has it now; see ``Ledger.set_capacity``."""
        row = self.rows.row(capacity.name)
        before = self.ledger.nodes.status(capacity.name)
        change = self._follow(lambda: self.ledger.set_capacity(capacity, now))
        if (status := self.ledger.nodes.status(capacity.name)) is not before:
            change |= self._report(row, status)
            change |= self.load.measure(row, status, self.ledger.nodes.last_status_at(capacity.name))
        return change

    def remove_capacity(self, node: str) -> Change:
        """The node's NodeCapacity is gone: it takes part by requests or not at all."""
        if node in self.row_of:
            self.load.measure(self.row_of[node], None, None)
        self.large_pods.sizes.report(node, {})
        change = self._follow(lambda: self.ledger.remove_capacity(node))  # may free the row
        if node in self.row_of:
            change |= self._report(self.row_of[node], None)
            self._tidy(self.row_of[node])
        return change | Change.CAPACITY

    def provide(self, provider: str, answer: Sequence[Series], now: float) -> Joined:
        """A metric provider has answered (``load.Load.provide``); it names nodes by name or by internal address."""
        return self.load.provide(provider, answer, self.nodes.row_by_address(), self.nodes.machine, now)

    # --- reservations and CPUs

    def set_reservation(self, view: Reservation) -> Change:
        """A person's reservation as the API server has it now."""
        return self._follow(lambda: self.ledger.reservations.set(view))

    def remove_reservation(self, key: ReservationKey) -> Change:
        """A person's reservation is gone."""
        return self._follow(lambda: self.ledger.reservations.remove(key))

    def hold(self, key: ReservationKey, placements: Mapping[str, int]) -> Change:
        """Hold a person's reservation's units on these nodes, and nowhere else."""
        return self._follow(lambda: self.ledger.reservations.hold(key, placements))

    def expire(self, now: float) -> Change:
        """Give up what is left of the reservations whose time is over."""
        return self._follow(lambda: self.ledger.reservations.expire(now))

    def set_topology(self, topology: NodeCPUTopology) -> Change:
        """A NodeCPUTopology as the API server has it now."""
        return self._follow_cpus(self.cpus.set_topology(topology), topology.name)

    def remove_topology(self, node: str) -> Change:
        """The node's NodeCPUTopology is gone: no pod gets CPUs of its own there."""
        self.cpus.remove_topology(node)
        return self._follow_cpus(False, node)

    def set_cpu_binding(self, obj: Mapping[str, Any]) -> Change:
        """A PodCPUBinding as the API server has it now, raw."""
        before = self.cpus.node_of(key := (obj["metadata"]["namespace"], obj["metadata"]["name"]))
        freed = self.cpus.set_cpu_binding(obj)
        return self._follow_cpus(freed, before, self.cpus.node_of(key))

    def remove_cpu_binding(self, key: BindingKey) -> Change:
        """A PodCPUBinding is gone."""
        node = self.cpus.node_of(key)
        return self._follow_cpus(self.cpus.remove_cpu_binding(key), node)

    def avoid_node(self, node: str, until: float) -> None:
        """Place nothing on the node until then: the API server refused a placement on it."""
        if (row := self.row_of.get(node)) is not None and self.nodes.exists[row]:
            self.nodes.avoid(row, until)

    def end_avoidance(self, now: float) -> Change:
        """Nodes that were avoided for long enough are tried again."""
        cpus = Change.CPUS if self.cpus.end_avoidance(now) else Change.NOTHING
        return cpus | (Change.NODE if self.nodes.end_avoidance(now) else Change.NOTHING)

    # --- decisions

    def assume(self, pod: PodView, assignment: Assignment, now: float, millicores: float = 0.0) -> bool:
        """Count a decision as if it were carried out; False, with nothing done, if the pod is on a node or ended.

        What the decision takes of its node's pace is not counted: ``KindLoads.give_work``, which can't be taken back.

        Args:
            pod: the pod.
            assignment: where it goes.
            now: seconds since the epoch.
            millicores: CPU that is claimed for a large pod until its node's agent reports what it takes, or has counted
                it for a minute without naming it.
        """
        if self.is_placed(pod.uid) or (pod.counted and not self.ledger.assume(assignment, now, pod.kind)):
            return False
        self._refresh()
        self._add_pod(pod, assignment.node, bound=False)
        self.volumes.reservations.reserve(pod.uid, assignment.volumes)
        row = self.row_of[assignment.node]
        if millicores > 0.0:
            self.large_pods.claim(pod.uid, row, millicores)
            self.measured.update(row)
        self.cpus.assume(assignment, best_effort=pod.labels.get(LABEL) == "best-effort")
        if assignment.pin is not None:
            self._count_exclusive(assignment.node)
        return True

    def confirm(self, uid: str) -> None:
        """The API server has accepted the binding."""
        self.ledger.confirm(uid)
        self.cpus.settle(uid)
        if (placed := self._placed.confirm(uid)) is not None:
            self._count_exclusive(self.names[placed.row])

    def forget(self, uid: str) -> Change:
        """Take back a decision whose pod is not bound; nothing happens if it is bound or has ended."""
        if (placed := self._placed.get(uid)) is None or placed.bound:
            return Change.NOTHING
        return self._follow(lambda: self.ledger.forget(uid)) | self._remove_pod(uid)

    # --- inside

    def _tidy(self, row: int) -> None:
        """Free the row once no object names its node."""
        name, accounts = self.names[row], self.ledger.nodes
        named = (row in self.nodes.views, self.usage.pods[row], accounts.resource_version(name))
        if not (any(named) or accounts.is_committed(name)):
            self.rows.free(row)

    def _follow(self, act: Callable[[], object]) -> Change:
        """Do something to the ledger; returns whether a node can take more than before."""
        act()
        return self._refresh()

    def _refresh(self) -> Change:
        change = Change.CAPACITY if self.ledger.reservations.take_freed() and self.kinds else Change.NOTHING
        for name in self.ledger.nodes.take_changed():
            row = self.rows.row(name)
            change |= self.measured.update(row)
            if row not in self.nodes.views:
                self._tidy(row)
        return change

    def _follow_cpus(self, freed: bool, *nodes: str) -> Change:
        """CPUs of these nodes are held, or free, since just now; returns what may be possible by that."""
        return reduce(or_, map(self._count_exclusive, {*nodes}), Change.CPUS if freed else Change.NOTHING)

    def _count_exclusive(self, node: str) -> Change:
        """Count the node's exclusive CPUs again; returns whether it can take more than before."""
        if (row := self.row_of.get(node)) is None:
            return Change.NOTHING
        beyond = self.exclusive.beyond_requests[row]
        if not self.exclusive.recount(row):
            return Change.NOTHING
        freed = self.exclusive.beyond_requests[row] < beyond
        return self.measured.update(row) | (Change.CPUS | Change.ENDED if freed else Change.NOTHING)

    def _report(self, row: int, status: NodeCapacityStatus | None) -> Change:
        """The node's agent has reported what its pods take."""
        reported_at = self.ledger.nodes.last_status_at(self.names[row]) or 0.0
        change = self.kinds.report(row, status, reported_at)
        is_news, before = self.large_pods.report(row, status, reported_at), self.measured.available[row]
        return change | (self.measured.update(row) if is_news else self.measured.gained(row, before))

    def _set_placed(self, pod: PodView) -> Change:
        placed = self._placed.get(pod.uid)
        if placed is None or self.names[placed.row] != pod.node_name or not is_accounted_alike(placed.pod, pod):
            node, change, others_may_care = self.node_of(pod.uid), self._remove_pod(pod.uid), True
            try:
                self._add_pod(pod, pod.node_name, bound=True)
            except Exception:
                if placed is not None:  # what was known of it goes on counting
                    self._add_pod(placed.pod, node, bound=placed.bound)
                raise
        elif (pod.counted, pod.kind) == (placed.pod.counted, placed.pod.kind):
            change, others_may_care = Change.NOTHING, self._placed.update(pod)
        else:
            left, others_may_care = self.kinds.left(placed.row), self._placed.update(pod)
            self.exclusive.follow_cost(placed.row)
            change = self.measured.update(placed.row) | self.kinds.gained(placed.row, left)
        return change | (Change.PLACED if others_may_care and self.pod_counts else Change.NOTHING)

    def _add_pod(self, pod: PodView, node: str, *, bound: bool) -> None:
        self._placed.add(pod, row := self.rows.row(node), bound=bound)
        if self.exclusive.shared_part[row] < 1.0:
            self._count_exclusive(node)

    def _remove_pod(self, uid: str) -> Change:
        if (placed := self._placed.get(uid)) is None:
            return Change.NOTHING
        row, left = placed.row, self.kinds.left(placed.row)
        claimed = self.large_pods.has_claim(uid)
        change = self._placed.remove(uid)
        change |= self.measured.update(row) if claimed else Change.NOTHING
        change |= Change.CPUS if self.cpus.settle(uid) else Change.NOTHING
        change |= self._count_exclusive(self.names[row]) | self.kinds.gained(row, left)
        self._tidy(row)
        return change
