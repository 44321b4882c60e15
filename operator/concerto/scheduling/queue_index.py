"""Groups of pods that wait, by what may help them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

from concerto.api.podgroup import GroupKey
from concerto.api.volumes import ClaimKey
from concerto.scheduling.queue_order import PodsAlike
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.counters import add_count, add_count_of

_K = TypeVar("_K")


class QueueIndex:
    """The groups that are unschedulable by change, and all groups by claim and by PodGroup."""

    def __init__(self) -> None:
        self._by_requeue_on: dict[Change, dict[PodsAlike, None]] = {}
        self._by_claim: dict[ClaimKey, Counter[PodsAlike]] = {}  # how many of their pods use it
        self._unschedulable_of: dict[GroupKey, dict[PodsAlike, None]] = {}
        self._active_of: dict[GroupKey, dict[PodsAlike, None]] = {}
        self._active_in: Counter[str] = Counter()  # groups that are not unschedulable, by namespace

    def __bool__(self) -> bool:
        """Whether it has any group."""
        tables = (self._by_requeue_on, self._by_claim, self._unschedulable_of, self._active_of, self._active_in)
        return any(tables)

    # --- what is asked

    def helped_by(self, change: Change) -> Iterator[PodsAlike]:
        """Unschedulable groups that the change could help."""
        return chain.from_iterable(self._by_requeue_on[each] for each in [*self._by_requeue_on] if each & change)

    def users(self, claim: ClaimKey) -> list[PodsAlike]:
        """Unschedulable groups with pods that use the claim, and that volumes could help."""
        users = self._by_claim.get(claim, ())
        return [each for each in users if each.unschedulable_since is not None and Change.VOLUMES in each.requeue_on]

    def unschedulable_of(self, key: GroupKey) -> Iterable[PodsAlike]:
        """Unschedulable groups of a PodGroup's pods."""
        return self._unschedulable_of.get(key, ())

    def all_of(self, key: GroupKey) -> Iterator[PodsAlike]:
        """Groups of a PodGroup's pods, first those that are not unschedulable."""
        return chain(self._active_of.get(key, ()), self.unschedulable_of(key))

    def active_namespaces(self) -> Iterable[str]:
        """Namespaces with groups that are not unschedulable."""
        return self._active_in

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

    def marked(self, group: PodsAlike) -> None:
        """The group is unschedulable."""
        self._by_requeue_on.setdefault(group.requeue_on, {})[group] = None
        add_count(self._active_in, group.namespace, -1)
        if group.pod_group is not None:
            _remove(self._active_of, group.pod_group, group)
            self._unschedulable_of.setdefault(group.pod_group, {})[group] = None

    def marked_again(self, group: PodsAlike, requeue_on: Change) -> None:
        """The group is unschedulable, and such a change could help it, too."""
        _remove(self._by_requeue_on, group.requeue_on, group)
        group.requeue_on |= requeue_on
        self._by_requeue_on.setdefault(group.requeue_on, {})[group] = None

    def activated(self, group: PodsAlike) -> None:
        """The group was unschedulable."""
        _remove(self._by_requeue_on, group.requeue_on, group)
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


def _remove(index: dict[_K, dict[PodsAlike, None]], key: _K, group: PodsAlike) -> None:
    del index[key][group]
    if not index[key]:
        del index[key]
