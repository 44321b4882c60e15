"""What pods of a kind take, where one of them is no unit of a node's capacity. Pure.

Agents name the pods that take half a node or more by themselves, far above what their node's other pods take
(``capacity.large``). What comes of one pod holds for the others of its kind, those that still wait among them: they go
to a node only where the CPU that they take is left, and not wherever there is room for one more pod. A kind is what its
pods have in common: namespace, labels but for those that number siblings, and shape.

A kind of which most pods were never named has units like all others: long ones among them are chance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from concerto.api.pod import PodView

_ORDINALS = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
        "batch.kubernetes.io/job-completion-index",
    }
)
"""Labels that number siblings."""
_MOST_KINDS = 4096
_MOST_VOTES = 64.0
"""Pods of a kind that its size is told from; older ones count for half of it, and so on."""
_TOWARDS_LATEST = 0.25


def kind_of(pod: PodView) -> Hashable:
    """What a pod has in common with its siblings, however many there are of them."""
    labels = frozenset(item for item in pod.labels.items() if item[0] not in _ORDINALS)
    return (pod.namespace, pod.shape, labels)


@dataclass(slots=True)
class _Kind:
    large: float = 0.0
    ordinary: float = 0.0
    millicores: float = 0.0

    def vote(self, *, large: bool) -> None:
        if self.large + self.ordinary >= _MOST_VOTES:
            self.large, self.ordinary = self.large / 2.0, self.ordinary / 2.0
        if large:
            self.large += 1.0
        else:
            self.ordinary += 1.0


class Sizes:
    """Kinds of pods, and what was seen of those that are placed."""

    def __init__(self) -> None:
        """Nothing seen."""
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._kind_of: dict[str, Hashable] = {}  # of placed pods
        self._said: dict[str, dict[str, float]] = {}  # by node, its large pods' millicores
        self._large: dict[str, float] = {}  # the most that each of them was seen to take
        self._voted: set[str] = set()

    def __bool__(self) -> bool:
        """Whether there is any kind that is no unit."""
        return bool(self._large) or any(kind.large for kind in self._kinds.values())

    def millicores(self, pod: PodView) -> float:
        """CPU that such a pod takes; 0 for one that is a unit like others."""
        if not self:
            return 0.0
        kind = self._kinds.get(kind_of(pod))
        return kind.millicores if kind is not None and kind.large > kind.ordinary else 0.0

    def is_large(self, uid: str) -> bool:
        """Whether an agent says so of this pod."""
        return uid in self._large

    def placed(self, pod: PodView) -> None:
        """The pod is on a node, or assumed there."""
        self._kind_of[pod.uid] = kind_of(pod)
        if pod.uid in self._large:
            self._vote(pod.uid, self._large[pod.uid])

    def told(self, node: str, large: Mapping[str, float]) -> None:
        """A node's agent has named its large pods, with the millicores that each takes."""
        before = self._said.get(node, {})
        for uid in before.keys() - large.keys():
            self._large.pop(uid, None)
        if large:
            self._said[node] = dict(large)
        elif before:
            del self._said[node]
        for uid, millicores in large.items():
            self._large[uid] = max(millicores, self._large.get(uid, 0.0))
            self._vote(uid, self._large[uid])

    def lifted(self, uid: str, *, ended: bool) -> None:
        """The pod is on no node any more; if it has ended, its kind has been seen once more."""
        name = self._kind_of.pop(uid, None)
        voted = uid in self._voted
        self._voted.discard(uid)
        if name is None or not ended:
            return
        kind = self._kind(name)
        if not voted:
            kind.vote(large=False)
        elif uid in self._large:
            kind.millicores += _TOWARDS_LATEST * (self._large[uid] - kind.millicores)

    def _vote(self, uid: str, millicores: float) -> None:
        name = self._kind_of.get(uid)
        if name is None:
            return  # its pod has not been heard of yet
        kind = self._kind(name)
        if uid not in self._voted:
            self._voted.add(uid)
            kind.vote(large=True)
        kind.millicores = max(kind.millicores, millicores)

    def _kind(self, name: Hashable) -> _Kind:
        kind = self._kinds.setdefault(name, _Kind())
        self._kinds.move_to_end(name)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        return kind
