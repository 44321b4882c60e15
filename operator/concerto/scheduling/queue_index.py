"""Groups of pods that wait, by what may help them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from concerto.api.counters import add_count, add_count_of
from concerto.api.podgroup import GroupKey
from concerto.api.volumes import ClaimKey
from concerto.scheduling.queue_due import DueGroups, Lane, UsersOfClaims
from concerto.scheduling.queue_order import Parked, PodsAlike
from concerto.scheduling.state.changes import Change

_K = TypeVar("_K")

MAX_ACTIVATED = 2000
"""Unschedulable groups that are active again with one cycle, once something has changed: 7 ms."""


class QueueIndex:
    """The groups that are unschedulable by change, and all groups by claim and by PodGroup."""

    def __init__(self) -> None:
        self._by_requeue_on: dict[Change, dict[Lane, Parked]] = {}  # those that are not due
        self._due = DueGroups()
        self._users_due = UsersOfClaims()
        self._by_claim: dict[ClaimKey, Counter[PodsAlike]] = {}  # how many of their pods use it
        self._unschedulable_of: dict[GroupKey, dict[PodsAlike, None]] = {}
        self._active_of: dict[GroupKey, dict[PodsAlike, None]] = {}
        self._active_in: Counter[str] = Counter()  # groups that are not unschedulable, by namespace

    def __bool__(self) -> bool:
        """Whether it has any group."""
        tables = (self._by_requeue_on, self._by_claim, self._unschedulable_of, self._active_of, self._active_in)
        return self.has_due or any(tables)

    # --- what is asked

    def helped_by(self, change: Change) -> Iterator[PodsAlike]:
        """Unschedulable groups that the change could help, whether or not they are due."""
        lanes = (self._by_requeue_on[each].values() for each in [*self._by_requeue_on] if each & change)
        not_due = chain.from_iterable(parked.groups for parked in chain.from_iterable(lanes))
        return chain(not_due, (group for group in self._due if group.requeue_on & change))

    @property
    def has_due(self) -> bool:
        """Whether groups are to be active again that are not yet (`take_due`)."""
        return bool(self._due) or bool(self._users_due)

    def unschedulable_of(self, key: GroupKey) -> Iterable[PodsAlike]:
        """Unschedulable groups of a PodGroup's pods."""
        return self._unschedulable_of.get(key, ())

    def all_of(self, key: GroupKey) -> Iterator[PodsAlike]:
        """Groups of a PodGroup's pods, first those that are not unschedulable."""
        return chain(self._active_of.get(key, ()), self.unschedulable_of(key))

    def active_namespaces(self) -> Iterable[str]:
        """Namespaces with groups that are not unschedulable."""
        return self._active_in

    # --- what changes for unschedulable groups

    def requeue(self, change: Change) -> list[PodsAlike]:
        """There was such a change: the groups that it could help, if they are few. Otherwise they are due."""
        return self._requeue([each for each in self._by_requeue_on if each & change])

    def requeue_all(self) -> list[PodsAlike]:
        """Everything may have changed: all unschedulable groups that are not due yet, as `requeue` returns them."""
        return self._requeue([*self._by_requeue_on])

    def requeue_users(self, claim: ClaimKey) -> list[PodsAlike]:
        """The claim has changed: groups with pods that use it, if they are few. Otherwise they are due."""
        users = self._by_claim.get(claim, ())
        if len(users) <= MAX_ACTIVATED:
            return [*filter(_waits_for_volumes, users)]
        self._users_due.add(claim, users)
        return []

    def take_due(self) -> list[PodsAlike]:
        """Groups that are due, and not any more: some of them, if they are many."""
        taken = self._due.take(MAX_ACTIVATED)
        users, anew = self._users_due.take(MAX_ACTIVATED)
        for claim in anew:
            self._users_due.add(claim, self._by_claim.get(claim, ()))
        return [*dict.fromkeys(chain(taken, filter(_waits_for_volumes, users)))]

    # --- what happens to groups

    def joined(self, group: PodsAlike) -> None:
        """The group is new."""
        self._active_in[group.namespace] += 1
        if group.pod_group is not None:
            self._active_of.setdefault(group.pod_group, {})[group] = None

    def left(self, group: PodsAlike) -> None:
        """The group, which is not unschedulable, has no pods any more."""
        add_count(self._active_in, group.namespace, -1)
        if group.pod_group is not None:
            _remove(self._active_of, group.pod_group, group)

    def mark(self, group: PodsAlike, requeue_on: Change, now: float, always_considered: bool) -> bool:
        """The group is unschedulable until such a change; returns whether it was not before."""
        is_new = group.unschedulable_since is None
        if is_new:
            group.unschedulable_since, group.requeue_on = now, requeue_on
            group.always_considered = False
            self._park(group)
            add_count(self._active_in, group.namespace, -1)
            if group.pod_group is not None:
                _remove(self._active_of, group.pod_group, group)
                self._unschedulable_of.setdefault(group.pod_group, {})[group] = None
        elif group.always_considered and requeue_on not in group.requeue_on:
            self._take_out(group)
            group.requeue_on |= requeue_on
            self._park(group)
        group.always_considered |= always_considered
        return is_new

    def activated(self, group: PodsAlike) -> None:
        """The group is not unschedulable any more."""
        group.unschedulable_since = None
        self._take_out(group)
        self._active_in[group.namespace] += 1
        if group.pod_group is not None:
            _remove(self._unschedulable_of, group.pod_group, group)
            self._active_of.setdefault(group.pod_group, {})[group] = None

    def uses(self, group: PodsAlike, claims: Iterable[ClaimKey]) -> None:
        """A pod that uses these claims is one of the group."""
        for claim in claims:
            add_count_of(self._by_claim, claim, group, 1)

    def uses_no_more(self, group: PodsAlike, claims: Iterable[ClaimKey]) -> None:
        """The pod has left the group."""
        for claim in claims:
            add_count_of(self._by_claim, claim, group, -1)

    # --- inside

    def _requeue(self, changes: Sequence[Change]) -> list[PodsAlike]:
        """Groups that wait for exactly these changes."""
        lanes = [parked for each in changes for parked in self._by_requeue_on[each].values()]
        if sum(len(parked.groups) for parked in lanes) <= MAX_ACTIVATED:
            return [*chain.from_iterable(parked.groups for parked in lanes)]
        for each in changes:
            self._due.add(self._by_requeue_on.pop(each).items())
        return []

    def _park(self, group: PodsAlike) -> None:
        _, priority, namespace, _ = group.key
        group.parked = self._by_requeue_on.setdefault(group.requeue_on, {}).setdefault((priority, namespace), Parked())
        group.parked.groups[group] = None

    def _take_out(self, group: PodsAlike) -> None:
        """The group is parked nowhere; it may not have been before."""
        if (parked := group.parked) is None:
            return
        group.parked = None
        del parked.groups[group]
        if not (parked.groups or parked.is_due):
            lanes, (_, priority, namespace, _) = self._by_requeue_on[group.requeue_on], group.key
            del lanes[priority, namespace]
            if not lanes:
                del self._by_requeue_on[group.requeue_on]


def _waits_for_volumes(group: PodsAlike) -> bool:
    return group.unschedulable_since is not None and Change.VOLUMES in group.requeue_on


def _remove(index: dict[_K, dict[PodsAlike, None]], key: _K, group: PodsAlike) -> None:
    del index[key][group]
    if not index[key]:
        del index[key]
