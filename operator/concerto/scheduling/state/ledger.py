"""Who has been promised what: the units in flight on every node.

The identity that all of Concerto uses, for a node n with published status S (docs/references.md, "Capacity signal")::

    available = S.capacity
              - units of pods assigned or bound to n, not in S.observedPodUIDs and not ended      (in flight)
              + units of pods in S.observedPodUIDs whose end, or that of whose containers, the
                operator has seen                                                                 (credited)
              - units that reservations hold on n

Pods of every scheduler count; static pods and those of DaemonSets do not (the agent counts them as the node's own).
One pod is one unit; what a large pod takes beyond it is taken off by ``LargePods``. Nothing is inferred from age alone:
a pod that pulls its image for ten minutes stays in flight. One whose start fails, as its image can't be pulled, takes
nothing after a while (``UnstartedPods``), and a unit again when it has started. One whose containers have ended takes
nothing although its kubelet has still to take it down (``pod_end``).

Events may come late, twice, or in any order between kinds; per object they come in order. Whatever is not known is
taken the way that promises less: an observed UID that no pod is known for is not credited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from concerto.api.nodecapacity import NodeCapacity
from concerto.api.pod import PodView
from concerto.api.pod_kind import Kind
from concerto.api.podreservation import Assignment, ReservationKey
from concerto.api.resource_version import not_newer
from concerto.scheduling.state.node_account import NodeAccount
from concerto.scheduling.state.node_accounts import NodeAccounts
from concerto.scheduling.state.placement_records import PlacementRecords
from concerto.scheduling.state.reservation_ledger import Reservations
from concerto.scheduling.state.signatures import PodSignatures

UNITS_PER_POD = 1
"""What an ordinary pod takes of a node's capacity."""


@dataclass(slots=True)
class _Entry:
    """One live pod that is assigned or bound."""

    node: str
    units: int
    bound: bool
    since: float
    reservation: ReservationKey | None = None
    awaits_agent: bool = True  # its record waits until the agent has counted it, and not only until it is bound


@dataclass(frozen=True)
class Overdue:
    """An assignment that has been in flight for longer than the unbound TTL.

    Attributes:
        uid: the pod.
        node: the node it is assigned to.
        bound: whether it is known to be bound: then it goes on counting; an unbound one is to be given up.
        since: when it was assumed, or first seen bound.
    """

    uid: str
    node: str
    bound: bool
    since: float


class Ledger:
    """Units in flight by node, and the assignments and reservations they belong to. Pure: `now` is passed in.

    Args:
        signatures: given the labels of pods that the reservations select by.
        max_ended_remembered: how many ended pods to remember, for agents that report one as observed after its end
            has been seen. Forgetting one costs capacity until the agent's next status, and promises nothing twice.

    Attributes:
        nodes: the account of each node.
        reservations: people's reservations; the units that they hold are taken off what is available.
    """

    def __init__(self, signatures: PodSignatures | None = None, max_ended_remembered: int = 65_536) -> None:
        self.reservations = Reservations(self._on_held, signatures if signatures is not None else PodSignatures())
        self._max_ended_remembered = max_ended_remembered
        self.nodes = NodeAccounts()
        self._entries: dict[str, _Entry] = {}
        self._pending: set[str] = set()
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._over: set[str] = set()  # bound pods that have not ended, and of which all containers have
        self._records = PlacementRecords()

    # --- what is asked

    def has_ended(self, uid: str) -> bool:
        """Whether the pod's end has been seen (and is still remembered)."""
        return uid in self._ended

    def overdue(self, now: float, ttl_seconds: float) -> list[Overdue]:
        """Assignments of open records that have been in flight for longer than that, oldest first."""
        late = [
            Overdue(uid, entry.node, entry.bound, entry.since)
            for uid in self._records.outstanding()
            if (entry := self._entries.get(uid)) is not None and now - entry.since > ttl_seconds
        ]
        return sorted(late, key=lambda o: (o.since, o.uid))

    # --- what is seen

    def set_max_pods(self, node: str, pods: int | None) -> None:
        """The Node allows so many pods; None: there is no Node any more."""
        self.nodes.change(node).max_pods = pods
        self.nodes.tidy(node)

    def set_pod(self, pod: PodView, now: float) -> None:
        """A pod as the API server has it now: waiting, bound, or ended."""
        if pod.uid in self._ended:
            return
        if pod.uses_nothing:
            self._release(pod.uid)
        if pod.uses_nothing and not pod.start_fails:
            self._over.add(pod.uid)
        else:
            self._over.discard(pod.uid)
        if not pod.counted:
            return
        if pod.terminal:
            self._end(pod.uid, pod.node_name)
        elif pod.node_name:
            self._add_pod(pod.uid, pod.node_name, now)
        elif pod.uid not in self._entries:
            self._pending.add(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """The pod is gone from the API server."""
        self._pending.discard(uid)
        if uid in self._entries or uid in self._over:
            self._end(uid, "")

    def set_capacity(self, capacity: NodeCapacity, now: float) -> bool:
        """A NodeCapacity as the API server has it now.

        A version that is not newer than the one known changes nothing. What counts is the order of versions, not the
        agent's clock: an ``observedAt`` that goes back is a clock that was set, or another agent.

        Args:
            capacity: the object.
            now: when it came. An unchanged ``observedAt`` leaves the age of the telemetry as it was; the first status
                seen of a node is as old as it says, since it may have lain there for long.

        Returns:
            Whether it was taken.
        """
        known = self.nodes.get(capacity.name)
        if known is not None and not_newer(capacity.resource_version, known.resource_version):
            return False
        account = self.nodes.change(capacity.name)
        before, status = account.status, capacity.status
        account.resource_version = capacity.resource_version
        account.heartbeat_seconds = capacity.settings.heartbeat_seconds
        if status is None:
            self._forget_status(account)
        else:
            if before is None:
                account.last_status_at = min(now, status.observed_at)
            elif before.observed_at != status.observed_at or before.agent.instance != status.agent.instance:
                account.last_status_at = now
            account.status = status
            self._observe(account, frozenset(status.observed_pod_uids))
        return True

    def remove_capacity(self, node: str) -> None:
        """The node's NodeCapacity is gone: nothing is known of its capacity any more."""
        if self.nodes.get(node) is None:
            return
        account = self.nodes.change(node)
        account.resource_version = ""
        self._forget_status(account)
        self.nodes.tidy(node)

    # --- what is decided

    def assume(self, assignment: Assignment, now: float, kind: Kind | None = None) -> bool:
        """Promise the units of a decision, before it is stored and carried out.

        Args:
            assignment: the decision.
            now: seconds since the epoch.
            kind: of the pod; the reservation that it uses holds room for others of it.

        Returns:
            False, with nothing promised, if the pod has ended, is bound, or is promised already.
        """
        uid = assignment.uid
        if uid in self._entries or uid in self._ended:
            return False
        self._add_pod(uid, assignment.node, now, assignment.units, bound=False)
        self._entries[uid].awaits_agent = assignment.basis == "Capacity"
        if assignment.reservation is not None:
            self._entries[uid].reservation = assignment.reservation
            self.reservations.consume(assignment.reservation, uid, assignment.node)
            if kind is not None:
                self.reservations.set_kind(assignment.reservation, kind)
        return True

    def confirm(self, uid: str) -> None:
        """The API server has accepted the pod's binding; the pod itself will be seen bound later."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.bound = True
            if not entry.awaits_agent:
                self._records.resolve(uid)

    def forget(self, uid: str) -> bool:
        """Take back a promise whose pod is not bound: it is to be decided afresh.

        Returns:
            False, and the promise is kept, if the pod is bound, has ended, or was not promised.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.bound:
            return False
        del self._entries[uid]
        self._remove_pod(uid, entry)
        self._give_back(uid, entry)
        self._pending.add(uid)
        self._records.resolve(uid)
        return True

    def open_record(self, name: str, assignments: Sequence[Assignment]) -> None:
        """The decisions are stored under this name; those that are over already are not waited for."""
        for assignment in assignments:
            if assignment.uid in self._entries:
                self._entries[assignment.uid].awaits_agent = assignment.basis == "Capacity"
        outstanding = {a.uid for a in assignments if self._is_outstanding(a.uid)}
        self._records.open(name, outstanding, {a.uid: a.reservation for a in assignments if a.reservation is not None})

    def adopt_record(self, name: str, assignments: Sequence[Assignment]) -> None:
        """A stored record found after a restart. Pods and reservations must have been set before.

        An assignment whose pod is not bound promises nothing: that pod is decided afresh, never bound from the record.
        One whose pod is bound there, or is gone (it may have been bound and have ended), has used its unit of the
        reservation.
        """
        for assignment in assignments:
            uid = assignment.uid
            if assignment.reservation is None or uid in self._pending:
                continue
            entry = self._entries.get(uid)
            if entry is not None:
                if entry.node != assignment.node:
                    continue
                entry.reservation = assignment.reservation
            self.reservations.consume(assignment.reservation, uid, assignment.node)
        self.open_record(name, assignments)

    def closable_records(self) -> list[str]:
        """Placement records that can be deleted.

        Each of their assignments has been observed, has ended, or was taken back (one decided by requests, on a node
        whose agent may never report, is over once it is bound: the pod itself shows all then); and the status of every
        reservation that one of them used shows it.
        """
        return self._records.closable(self.reservations.lacks_in_status)

    def close_record(self, name: str) -> None:
        """The record has been deleted."""
        self._records.close(name)

    # --- inside

    def _on_held(self, node: str, units: int) -> None:
        self.nodes.change(node).held += units
        self.nodes.tidy(node)

    def _add_pod(self, uid: str, node: str, now: float, units: int = UNITS_PER_POD, *, bound: bool = True) -> None:
        entry = self._entries.get(uid)
        if entry is not None:
            entry.bound = entry.bound or bound
            if entry.bound and not entry.awaits_agent:
                self._records.resolve(uid)
            if entry.node == node:
                return
            # Another scheduler bound it elsewhere: the promise on our node is void
            self._remove_pod(uid, entry)
            self._give_back(uid, entry)
            entry.node = node
        else:
            entry = self._entries[uid] = _Entry(node, units, bound, now)
        self._pending.discard(uid)
        if self.nodes.change(node).add_pod(uid, entry.units):
            self._records.resolve(uid)

    def _remove_pod(self, uid: str, entry: _Entry) -> None:
        self.nodes.change(entry.node).remove_pod(uid)
        self.nodes.tidy(entry.node)

    def _release(self, uid: str) -> None:
        """The pod, which is bound, takes nothing unless it starts again. What it used of a reservation stays used."""
        entry = self._entries.pop(uid, None)
        self._pending.discard(uid)
        if entry is not None:
            self._remove_pod(uid, entry)
            self._credit(uid, entry.node, entry.units)
            self._records.resolve(uid)

    def _end(self, uid: str, node: str) -> None:
        entry = self._entries.pop(uid, None)
        units = entry.units if entry is not None else UNITS_PER_POD
        if entry is not None:
            node = entry.node
            self._remove_pod(uid, entry)
            if not entry.bound:
                self._give_back(uid, entry)
        self._pending.discard(uid)
        self._over.discard(uid)
        self._ended[uid] = units
        if len(self._ended) > self._max_ended_remembered:
            self._ended.popitem(last=False)
        self._credit(uid, node, units)
        self._records.resolve(uid)

    def _credit(self, uid: str, node: str, units: int) -> None:
        account = self.nodes.get(node)
        if account is not None and account.credit(uid, units):
            self.nodes.change(node)

    def _observe(self, account: NodeAccount, observed: frozenset[str]) -> None:
        for uid in account.observe(observed, self._units_of_ended):
            self._records.resolve(uid)

    def _units_of_ended(self, uid: str) -> int | None:
        return UNITS_PER_POD if uid in self._over else self._ended.get(uid)

    def _forget_status(self, account: NodeAccount) -> None:
        account.status = None
        account.last_status_at = 0.0
        self._observe(account, frozenset())

    def _is_outstanding(self, uid: str) -> bool:
        entry = self._entries.get(uid)
        if entry is None or (entry.bound and not entry.awaits_agent):
            return False
        account = self.nodes.get(entry.node)
        return account is None or uid not in account.observed

    def _give_back(self, uid: str, entry: _Entry) -> None:
        key, entry.reservation = entry.reservation, None
        if key is not None:
            self.reservations.give_back(key, uid, entry.node)
