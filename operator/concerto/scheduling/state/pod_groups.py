"""PodGroups and their pods, whatever order they come in."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from concerto.api.counters import add_count
from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey, PodGroup
from concerto.scheduling.state.group_members import NO_MEMBERS, GroupMembers
from concerto.scheduling.state.held_room import HeldRoom
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.slow_gangs import SlowGangs


class PodGroups(PodIndex):
    """The PodGroups of all namespaces, and the pods that name them and have not ended.

    Args:
        is_placed: whether a pod is on a node, bound or assumed, or has ended.
        is_bound: whether a pod is bound, or has ended.

    Attributes:
        unfinished: where a placement record has the pods of gangs of which others are bound already: node by UID. They
            go before all others, or the gang would stay in halves.
        in_vain: unfinished gangs for which the last look found no nodes, the longest ago first.
        unfinished_took_cycle: whether the last cycle had no time for pods of others.
        being_bound: gangs whose bindings are being prepared or sent.
        held_room: which gang may hold room.
        slow: which namespaces wait because looking for nodes for one of their gangs took too long.
    """

    def __init__(
        self,
        is_placed: Callable[[str], bool] = lambda uid: False,
        is_bound: Callable[[str], bool] = lambda uid: False,
    ) -> None:
        self._is_placed = is_placed
        self._is_bound = is_bound
        self.unfinished: dict[GroupKey, dict[str, str]] = {}
        self.in_vain: OrderedDict[GroupKey, None] = OrderedDict()
        self.unfinished_took_cycle = False
        self.being_bound: Counter[GroupKey] = Counter()
        self.held_room = HeldRoom()
        self.slow = SlowGangs()
        self._groups: dict[GroupKey, PodGroup] = {}
        self._members: dict[GroupKey, GroupMembers] = {}
        self._group_of: dict[str, GroupKey] = {}
        self._changed: set[GroupKey] = set()

    # --- what is asked

    def get(self, key: GroupKey) -> PodGroup | None:
        """The PodGroup; None as long as none of that name is known."""
        return self._groups.get(key)

    def members(self, key: GroupKey) -> Mapping[str, PodView]:
        """Pods that name the group, by UID: those that wait, and those on nodes."""
        return self.of(key).pods

    def of(self, key: GroupKey) -> GroupMembers:
        """The same pods with their counts; not to be changed."""
        return self._members.get(key, NO_MEMBERS)

    def take_changed(self) -> set[GroupKey]:
        """Groups for whose pods another look is worth while since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # --- what is seen

    def set_group(self, group: PodGroup) -> None:
        """A PodGroup as the API server has it now."""
        before = self._groups.get(group.key)
        self._groups[group.key] = group
        if before is None or _decides(before) != _decides(group):
            self._changed.add(group.key)

    def remove_group(self, key: GroupKey) -> None:
        """The PodGroup is gone; its pods may linger."""
        if self._groups.pop(key, None) is not None:
            self._changed.add(key)

    def set_pod(self, pod: PodView) -> None:
        """A pod as the API server has it now; one that ends before it is bound is no member any more."""
        if not pod.group:
            return
        if pod.terminal or (pod.deleting and not pod.node_name):
            self.remove_pod(pod.uid)
            return
        key = (pod.namespace, pod.group)
        if (members := self._members.get(key)) is None:
            members = self._members[key] = GroupMembers()
        before = members.pods.get(pod.uid)
        members.set_pod(pod, placed=self._is_placed(pod.uid), bound=self._is_bound(pod.uid))
        self._group_of[pod.uid] = key
        if before is None or (before.waiting, before.node_name) != (pod.waiting, pod.node_name):
            self._changed.add(key)
        if pod.node_name:
            self.finished(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """The pod has ended or is gone."""
        self.finished(uid)
        key = self._group_of.pop(uid, None)
        if key is None:
            return
        members = self._members[key]
        members.remove_pod(uid)
        if not members.pods:
            del self._members[key]
            self.held_room.gone(key)
        self._changed.add(key)

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on a node."""
        self._recount(pod.uid)

    def pod_bound(self, pod: PodView, row: int) -> None:
        """The API server has accepted the pod's binding."""
        self._recount(pod.uid)

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """The pod is bound."""
        self._recount(after.uid)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is on no node any more."""
        self._recount(pod.uid)

    def _recount(self, uid: str) -> None:
        if (key := self._group_of.get(uid)) is not None:
            self._members[key].set_place(uid, placed=self._is_placed(uid), bound=self._is_bound(uid))

    # --- what is decided

    def must_finish(self, key: GroupKey, uid: str, node: str) -> None:
        """Other pods of its gang are bound already, and a placement record has this one on that node."""
        if uid in self.members(key):
            self.unfinished.setdefault(key, {})[uid] = node
            self.in_vain.pop(key, None)
            self._changed.add(key)

    def looked_at(self, key: GroupKey, *, in_vain: bool) -> None:
        """A cycle has decided on the gang; in vain: none of its pods is placed."""
        self.in_vain.pop(key, None)
        if in_vain and key in self.unfinished:
            self.in_vain[key] = None

    @contextmanager
    def binding(self, key: GroupKey) -> Iterator[None]:
        """Pods of the gang are bound meanwhile."""
        self.being_bound[key] += 1
        try:
            yield
        finally:
            add_count(self.being_bound, key, -1)

    def finished(self, uid: str) -> None:
        """The pod is bound, or gone."""
        key = self._group_of.get(uid)
        if key is None or key not in self.unfinished:
            return
        self.unfinished[key].pop(uid, None)
        if not self.unfinished[key]:
            del self.unfinished[key]
            self.in_vain.pop(key, None)


def _decides(group: PodGroup) -> tuple[object, ...]:
    return group.uid, group.min_count, group.priority, group.unsupported
