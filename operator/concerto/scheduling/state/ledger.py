"""Who has been promised what: the units in flight on every node (algorithms section 4).

The identity that all of Concerto uses, for a node n with published status S::

    available = S.capacity
              - units of pods assigned or bound to n, not in S.observedPodUIDs and not ended      (in flight)
              + units of pods in S.observedPodUIDs whose end the operator has seen                (credited)
              - units that standing reservations hold on n

Pods of every scheduler count; static pods and those of DaemonSets do not (the agent counts them as the node's own).
One pod is one unit; what a large one takes beyond it is taken off by the cluster (``sizes``). Nothing is inferred from
age: a pod that pulls its image for ten minutes stays in flight.

Events may come late, twice, or in any order between kinds; per object they come in order. Whatever is not known is
taken the way that promises less: an observed UID that no pod is known for is not credited.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Self

from concerto.api.nodecapacity import NodeCapacity, NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Reservation, ReservationKey
from concerto.api.resource_version import not_newer

UNITS_PER_POD = 1
"""What an ordinary pod takes of a node's capacity."""


@dataclass(slots=True)
class _Account:
    """One node: who is on it, whom its agent has seen, and the sums over them."""

    live: dict[str, int] = field(default_factory=dict)
    observed: frozenset[str] = frozenset()
    credited: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    held: int = 0
    resource_version: str = ""
    status: NodeCapacityStatus | None = None
    heartbeat_seconds: float = 0.0
    last_status_at: float = 0.0

    @property
    def placed(self) -> int:
        """Units in flight, less those that the agent counts though their pods have ended."""
        return self.in_flight - sum(self.credited.values())

    @property
    def empty(self) -> bool:
        return not self.live and self.status is None and not self.held and not self.resource_version


@dataclass(slots=True)
class _Entry:
    """One live pod that is assigned or bound."""

    node: str
    units: int
    bound: bool
    since: float
    reservation: ReservationKey | None = None
    awaits: bool = True  # its batch waits until the agent has seen it, and not only until it is bound


@dataclass(slots=True, eq=False)
class _Standing:
    """A person's reservation: what it still holds where, and who has used it."""

    view: Reservation
    held: dict[str, int]
    consumed: dict[str, str]
    expired: bool = False

    @property
    def remaining(self) -> int:
        return max(self.view.count - len(self.consumed), 0)


@dataclass(slots=True)
class _Batch:
    """A stored PodReservation of the operator: whom it still speaks for."""

    outstanding: set[str]
    claims: dict[str, ReservationKey]


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


@dataclass(frozen=True)
class ReservationState:
    """How a person's reservation stands.

    Attributes:
        held: units still held, by node.
        consumed: pods that have used a unit, UID to node.
        remaining: units not used yet, held or not; 0 once it has expired.
        expired: whether its time is over.
    """

    held: Mapping[str, int]
    consumed: Mapping[str, str]
    remaining: int
    expired: bool


class Ledger:
    """Units in flight by node, and the assignments and reservations they belong to. Pure: `now` is passed in.

    Args:
        remember_ended: how many ended pods to remember at most, for agents that report one as observed after its end
            has been seen. Forgetting one costs capacity until the agent's next status, and promises nothing twice.
    """

    def __init__(self, remember_ended: int = 65_536) -> None:
        self._remember_ended = remember_ended
        self._accounts: dict[str, _Account] = {}
        self._entries: dict[str, _Entry] = {}
        self._pending: set[str] = set()
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._batches: dict[str, _Batch] = {}
        self._batch_of: dict[str, str] = {}
        self._standing: dict[ReservationKey, _Standing] = {}
        self._standing_in: dict[str, list[_Standing]] = {}  # by namespace, oldest first
        self._changed: set[str] = set()

    @classmethod
    def rebuild(
        cls,
        pods: Iterable[PodView],
        capacities: Iterable[NodeCapacity],
        batches: Mapping[str, Sequence[Assignment]],
        standing: Iterable[Reservation] = (),
        *,
        now: float,
    ) -> Self:
        """The ledger after a restart, from what the API server holds and nothing else."""
        ledger = cls()
        for capacity in capacities:
            ledger.set_capacity(capacity, now)
        for pod in pods:
            ledger.set_pod(pod, now)
        for reservation in standing:
            ledger.set_reservation(reservation)
        for name, assignments in batches.items():
            ledger.adopt_record(name, assignments)
        return ledger

    # --- what is asked

    def available(self, node: str) -> float | None:
        """Pods for which nothing is held that the node can still take, possibly negative; None without a status."""
        startable, holdable = self.startable(node), self.holdable(node)
        return None if startable is None or holdable is None else min(startable, holdable)

    def startable(self, node: str) -> float | None:
        """Pods that may still start on the node by its last status, whoever they are; None without a status."""
        account = self._accounts.get(node)
        if account is None or account.status is None:
            return None
        return account.status.capacity - account.placed

    def holdable(self, node: str) -> float | None:
        """Units that can still be held on the node: its room, less what is placed and held; None without a status.

        Held units wait for their pods. They keep room from others, but not the few starts that a node allows at a time:
        a node that takes its pods one by one would take none any more for a single unit that is held.
        """
        account = self._accounts.get(node)
        if account is None or account.status is None:
            return None
        room = account.status.capacity if account.status.room is None else account.status.room
        return max(room, account.status.capacity) - account.placed - account.held

    def is_committed(self, node: str) -> bool:
        """Whether anything is promised on the node."""
        account = self._accounts.get(node)
        return account is not None and (account.placed != 0 or account.held != 0)

    def live(self, node: str) -> Set[str]:
        """UIDs of the pods assigned or bound to the node that have not ended."""
        account = self._accounts.get(node)
        return account.live.keys() if account is not None else frozenset()

    def in_flight(self, node: str) -> int:
        """Units assigned or bound to the node that its agent has not observed."""
        account = self._accounts.get(node)
        return account.in_flight if account is not None else 0

    def status(self, node: str) -> NodeCapacityStatus | None:
        """The node's last status."""
        account = self._accounts.get(node)
        return account.status if account is not None else None

    def last_status_at(self, node: str) -> float | None:
        """When the node's last status came, by the operator's clock; None without one."""
        account = self._accounts.get(node)
        return account.last_status_at if account is not None and account.status is not None else None

    def resource_version(self, node: str) -> str:
        """Version of the NodeCapacity that the node's numbers are from; empty without one."""
        account = self._accounts.get(node)
        return account.resource_version if account is not None else ""

    def has_ended(self, uid: str) -> bool:
        """Whether the pod's end has been seen (and is still remembered)."""
        return uid in self._ended

    def nodes_with_stale_agent(self, now: float, heartbeats_missed: int) -> list[str]:
        """Nodes with a status whose agent has been silent for that many of its heartbeats."""
        return [
            name
            for name, a in self._accounts.items()
            if a.status is not None and now - a.last_status_at > heartbeats_missed * a.heartbeat_seconds
        ]

    def overdue(self, now: float, ttl_seconds: float) -> list[Overdue]:
        """Assignments of open batches that have been in flight for longer than that, oldest first."""
        late = [
            Overdue(uid, entry.node, entry.bound, entry.since)
            for uid in self._batch_of
            if (entry := self._entries.get(uid)) is not None and now - entry.since > ttl_seconds
        ]
        return sorted(late, key=lambda o: (o.since, o.uid))

    def take_changed(self) -> set[str]:
        """Nodes whose numbers have changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    # --- what is seen

    def set_pod(self, pod: PodView, now: float) -> None:
        """A pod as the API server has it now: waiting, bound, or ended."""
        if not pod.counted or pod.uid in self._ended:
            return
        if pod.terminal:
            self._end(pod.uid, pod.node_name)
        elif pod.node_name:
            self._place(pod.uid, pod.node_name, now)
        elif pod.uid not in self._entries:
            self._pending.add(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """The pod is gone from the API server."""
        self._pending.discard(uid)
        if uid in self._entries:
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
        account = self._account(capacity.name)
        if not_newer(capacity.resource_version, account.resource_version):
            return False
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
        self._changed.add(capacity.name)
        return True

    def remove_capacity(self, node: str) -> None:
        """The node's NodeCapacity is gone: nothing is known of its capacity any more."""
        account = self._accounts.get(node)
        if account is None:
            return
        account.resource_version = ""
        self._forget_status(account)
        self._changed.add(node)
        self._tidy(node)

    # --- what is decided

    def assume(self, assignment: Assignment, now: float) -> bool:
        """Promise the units of a decision, before it is stored and carried out.

        Returns:
            False, with nothing promised, if the pod has ended, is bound, or is promised already.
        """
        uid = assignment.uid
        if uid in self._entries or uid in self._ended:
            return False
        self._place(uid, assignment.node, now, assignment.units, bound=False)
        self._entries[uid].awaits = assignment.basis == "Capacity"
        if assignment.reservation is not None:
            self._entries[uid].reservation = assignment.reservation
            self._consume(assignment.reservation, uid, assignment.node)
        return True

    def confirm(self, uid: str) -> None:
        """The API server has accepted the pod's binding; the pod itself will be seen bound later."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.bound = True
            if not entry.awaits:
                self._resolve(uid)

    def forget(self, uid: str) -> bool:
        """Take back a promise whose pod is not bound: it is to be decided afresh.

        Returns:
            False, with the promise standing, if the pod is bound, has ended, or was not promised.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.bound:
            return False
        del self._entries[uid]
        self._leave(uid, entry)
        self._unconsume(uid, entry)
        self._pending.add(uid)
        self._resolve(uid)
        return True

    def open_record(self, name: str, assignments: Sequence[Assignment]) -> None:
        """The decisions are stored under this name; those that are over already are not waited for."""
        for assignment in assignments:
            if assignment.uid in self._entries:
                self._entries[assignment.uid].awaits = assignment.basis == "Capacity"
        waiting = {a.uid for a in assignments if self._is_outstanding(a.uid)}
        claims = {a.uid: a.reservation for a in assignments if a.reservation is not None}
        self._batches[name] = _Batch(waiting, claims)
        for uid in waiting:
            # Whoever is decided again is over for the batch before; after a restart both are found
            self._resolve(uid)
            self._batch_of[uid] = name

    def adopt_record(self, name: str, assignments: Sequence[Assignment]) -> None:
        """A stored batch found after a restart. Pods and reservations must have been set before.

        An assignment whose pod is not bound promises nothing: that pod is decided afresh, never bound from the record.
        One whose pod is bound there, or is gone (it may have been bound and have ended), has used its standing unit.
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
            self._consume(assignment.reservation, uid, assignment.node)
        self.open_record(name, assignments)

    def closable_records(self) -> list[str]:
        """Batches that can be deleted.

        Each of their assignments has been observed, has ended, or was taken back (one decided by requests, on a node
        whose agent may never speak, is over once it is bound: the pod itself says all then); and the status of every
        standing reservation that one of them used says so.
        """
        return [name for name, batch in self._batches.items() if not batch.outstanding and self._recorded(batch)]

    def close_record(self, name: str) -> None:
        """The batch has been deleted."""
        batch = self._batches.pop(name, None)
        for uid in batch.outstanding if batch is not None else ():
            self._batch_of.pop(uid, None)

    # --- standing reservations

    def set_reservation(self, view: Reservation) -> None:
        """A person's reservation as the API server has it now.

        Where its units are held and who has used them is taken from its status only when it is first seen; from then on
        the ledger knows better than a status that it wrote itself.
        """
        known = self._standing.get(view.key)
        if known is not None and known.view.uid != view.uid:
            self.remove_reservation(view.key)
            known = None
        if known is None:
            self._standing[view.key] = known = _Standing(view, {}, dict(view.consumed))
            insort(self._standing_in.setdefault(view.namespace, []), known, key=_age)
            for node, units in view.placements.items():
                self._hold(known, node, units)
        # An edit may have moved the end; whether the new one is over, too, is for `expire` to say
        known.expired = known.expired and known.view.expires_at == view.expires_at
        known.view = view
        self._trim(known)

    def remove_reservation(self, key: ReservationKey) -> None:
        """The reservation is gone; its units are free."""
        known = self._standing.pop(key, None)
        if known is not None:
            self._release(known)
            self._standing_in[key[0]].remove(known)

    def hold(self, key: ReservationKey, placements: Mapping[str, int]) -> None:
        """Hold the reservation's units on these nodes, and nowhere else."""
        known = self._standing[key]
        self._release(known)
        for node, units in placements.items():
            self._hold(known, node, units)
        self._trim(known)

    def expire(self, now: float) -> list[ReservationKey]:
        """Give up what is left of the reservations whose time is over; returns those for which it is over just now."""
        over = [
            key
            for key, s in self._standing.items()
            if not s.expired and s.view.expires_at is not None and s.view.expires_at <= now
        ]
        for key in over:
            self._standing[key].expired = True
            self._release(self._standing[key])
        return over

    def reservation_state(self, key: ReservationKey) -> ReservationState:
        """How a reservation stands.

        Raises:
            KeyError: there is none of that name.
        """
        s = self._standing[key]
        return ReservationState(dict(s.held), dict(s.consumed), 0 if s.expired else s.remaining, s.expired)

    def reservations(self) -> list[Reservation]:
        """Every person's reservation, oldest first."""
        return [s.view for s in sorted(self._standing.values(), key=_age)]

    def reservation_for(self, pod: PodView) -> ReservationKey | None:
        """The oldest reservation that holds units for the pod; None for one that takes no units."""
        for standing in self._standing_in.get(pod.namespace, ()) if pod.counted else ():
            if standing.held and standing.view.selector.matches(pod.labels):
                return standing.view.key
        return None

    def held_for(self, key: ReservationKey) -> Mapping[str, int]:
        """Units that the reservation holds, by node."""
        return self._standing[key].held

    # --- inside

    def _account(self, node: str) -> _Account:
        account = self._accounts.get(node)
        if account is None:
            account = self._accounts[node] = _Account()
        return account

    def _tidy(self, node: str) -> None:
        if self._accounts[node].empty:
            del self._accounts[node]

    def _place(self, uid: str, node: str, now: float, units: int = UNITS_PER_POD, *, bound: bool = True) -> None:
        entry = self._entries.get(uid)
        if entry is not None:
            entry.bound = entry.bound or bound
            if entry.bound and not entry.awaits:
                self._resolve(uid)
            if entry.node == node:
                return
            # Somebody else bound it, elsewhere: the promise on our node is void
            self._leave(uid, entry)
            self._unconsume(uid, entry)
            entry.node = node
        else:
            entry = self._entries[uid] = _Entry(node, units, bound, now)
        self._pending.discard(uid)
        account = self._account(node)
        account.live[uid] = entry.units
        if uid in account.observed:
            self._resolve(uid)
        else:
            account.in_flight += entry.units
        self._changed.add(node)

    def _leave(self, uid: str, entry: _Entry) -> None:
        account = self._accounts[entry.node]
        del account.live[uid]
        if uid not in account.observed:
            account.in_flight -= entry.units
        self._changed.add(entry.node)
        self._tidy(entry.node)

    def _end(self, uid: str, node: str) -> None:
        entry = self._entries.pop(uid, None)
        units = entry.units if entry is not None else UNITS_PER_POD
        if entry is not None:
            node = entry.node
            self._leave(uid, entry)
            if not entry.bound:
                self._unconsume(uid, entry)
        self._pending.discard(uid)
        self._ended[uid] = units
        if len(self._ended) > self._remember_ended:
            self._ended.popitem(last=False)
        account = self._accounts.get(node)
        if account is not None and uid in account.observed:
            account.credited[uid] = units
            self._changed.add(node)
        self._resolve(uid)

    def _observe(self, account: _Account, observed: frozenset[str]) -> None:
        account.credited = {
            uid: units for uid in observed if (units := self._ended.get(uid) or account.credited.get(uid)) is not None
        }
        account.observed = observed
        account.in_flight = 0
        for uid, units in account.live.items():
            if uid in observed:
                self._resolve(uid)
            else:
                account.in_flight += units

    def _forget_status(self, account: _Account) -> None:
        account.status = None
        account.last_status_at = 0.0
        self._observe(account, frozenset())

    def _is_outstanding(self, uid: str) -> bool:
        entry = self._entries.get(uid)
        if entry is None or (entry.bound and not entry.awaits):
            return False
        return uid not in self._accounts[entry.node].observed

    def _resolve(self, uid: str) -> None:
        name = self._batch_of.pop(uid, None)
        if name is not None:
            self._batches[name].outstanding.discard(uid)

    def _recorded(self, batch: _Batch) -> bool:
        for uid, key in batch.claims.items():
            standing = self._standing.get(key)
            if standing is not None and uid in standing.consumed and uid not in standing.view.consumed:
                return False
        return True

    def _hold(self, standing: _Standing, node: str, units: int) -> None:
        if units > 0:
            standing.held[node] = standing.held.get(node, 0) + units
            self._account(node).held += units
            self._changed.add(node)

    def _unhold(self, standing: _Standing, node: str, units: int) -> None:
        left = standing.held[node] - units
        if left:
            standing.held[node] = left
        else:
            del standing.held[node]
        self._accounts[node].held -= units
        self._changed.add(node)
        self._tidy(node)

    def _release(self, standing: _Standing) -> None:
        for node, units in list(standing.held.items()):
            self._unhold(standing, node, units)

    def _trim(self, standing: _Standing) -> None:
        """Hold no more than what is left of the count."""
        surplus = sum(standing.held.values()) - (0 if standing.expired else standing.remaining)
        for node in sorted(standing.held):
            if surplus <= 0:
                return
            units = min(surplus, standing.held[node])
            self._unhold(standing, node, units)
            surplus -= units

    def _consume(self, key: ReservationKey, uid: str, node: str) -> None:
        standing = self._standing.get(key)
        if standing is None or uid in standing.consumed:
            return
        standing.consumed[uid] = node
        if node in standing.held:
            self._unhold(standing, node, 1)
        self._trim(standing)

    def _unconsume(self, uid: str, entry: _Entry) -> None:
        standing = self._standing.get(entry.reservation) if entry.reservation is not None else None
        entry.reservation = None
        if standing is not None and standing.consumed.pop(uid, None) is not None and not standing.expired:
            self._hold(standing, entry.node, 1)
            self._trim(standing)


def _age(standing: _Standing) -> tuple[float, ReservationKey]:
    return (standing.view.created, standing.view.key)
