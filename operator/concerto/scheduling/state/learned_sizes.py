"""How much CPU kinds of large pods use. Pure.

Agents name the pods that take half a node or more by themselves, far above what their node's other pods take
(``capacity.large_pods``). What is learned from one pod holds for all pods of its kind, waiting ones too: they go to a
node only where the CPU that they take is left, and not wherever there is room for one more pod. A kind is what its pods
have in common: namespace, labels but for those that number siblings, and shape.

A kind of which most pods were never named has units like all others: long ones among them are chance.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from concerto.api.counters import add_count
from concerto.api.pod import PodView

_ORDINALS = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
        "batch.kubernetes.io/job-completion-index",
    }
)
"""Labels that number siblings."""
_MAX_KINDS = 4096
_MAX_VOTES = 64.0
"""Pods of a kind that its size is learned from; older ones count for half of it, and so on."""
_TOWARDS_LATEST = 0.25


def _kind_of(pod: PodView) -> Hashable:
    """What a pod has in common with its siblings, however many there are of them."""
    labels = pod.labels
    if not _ORDINALS.isdisjoint(labels):
        labels = {key: value for key, value in labels.items() if key not in _ORDINALS}
    return (pod.namespace, pod.shape, frozenset(labels.items()))


@dataclass(slots=True)
class _Kind:
    """Votes on pods of one kind.

    Attributes:
        ordinary: for a regular pod.
        large: for a large one.
        millicores: what large ones take.
        witnesses: other nodes that had such a pod when the first was named, and have named none. Each is one vote for
            a regular pod, so that no single node's status makes pods on many nodes large.
    """

    ordinary: float
    large: float = 0.0
    millicores: float = 0.0
    witnesses: set[str] = field(default_factory=set)

    def vote(self, *, large: bool) -> None:
        if self.large + self.ordinary >= _MAX_VOTES:
            self.large, self.ordinary = self.large / 2.0, self.ordinary / 2.0
        if large:
            self.large += 1.0
        else:
            self.ordinary += 1.0


class _NodesByKind:
    """Nodes with pods of a kind. A hundred thousand kinds may have one pod each, for which a counter would be much."""

    def __init__(self) -> None:
        self._nodes: dict[int, str | Counter[str]] = {}

    def add(self, kind: int, node: str) -> None:
        """A pod of the kind is on the node."""
        known = self._nodes.get(kind)
        if isinstance(known, Counter):
            known[node] += 1
        else:
            self._nodes[kind] = node if known is None else Counter((known, node))

    def remove(self, kind: int, node: str) -> None:
        """A pod of the kind that was on the node is not there any more."""
        known = self._nodes[kind]
        if isinstance(known, Counter):
            add_count(known, node, -1)
            if known:
                return
        del self._nodes[kind]

    def of(self, kind: int) -> Collection[str]:
        """The nodes with pods of the kind."""
        known = self._nodes.get(kind, ())
        return (known,) if isinstance(known, str) else known


class LearnedSizes:
    """Kinds of pods, and what was seen of those that are placed.

    Attributes:
        version: grows whenever a kind becomes known.
    """

    def __init__(self) -> None:
        """Nothing seen."""
        self.version = 0
        # Kinds go by their hashes: there may be a hundred thousand pods, each with labels of its own
        self._kinds: OrderedDict[int, _Kind] = OrderedDict()  # of which a pod was named
        self._ended: OrderedDict[int, int] = OrderedDict()  # pods of the others that have ended
        self._placed: dict[str, tuple[int, str]] = {}  # kind and node
        self._nodes = _NodesByKind()
        self._reported: dict[str, dict[str, float]] = {}  # by node, its large pods' millicores
        self._max_millicores: dict[str, float] = {}  # the most that each pod that was named was seen to take

    def __bool__(self) -> bool:
        """Whether any kind may be large."""
        return bool(self._kinds)

    def kind_if_known(self, pod: PodView) -> Hashable:
        """The pod's kind, if a pod of that kind was named; None for all others."""
        if not self._kinds:
            return None
        kind = hash(_kind_of(pod))
        return kind if kind in self._kinds else None

    def millicores(self, pod: PodView) -> float:
        """CPU that such a pod takes; 0 for one that is a unit like others."""
        kind = self._kinds.get(hash(_kind_of(pod))) if self._kinds else None
        return kind.millicores if kind is not None and kind.large > kind.ordinary else 0.0

    def add_pod(self, pod: PodView, node: str) -> None:
        """The pod is on the node, or assumed there."""
        self._take_off(pod.uid)
        kind = hash(_kind_of(pod))
        self._placed[pod.uid] = kind, node
        self._nodes.add(kind, node)
        if (millicores := self._reported.get(node, {}).get(pod.uid)) is not None:
            self._name(pod.uid, node, millicores)

    def report(self, node: str, large: Mapping[str, float], counted: Iterable[str] = ()) -> None:
        """A node's agent has named its large pods, with the millicores that each takes.

        It reports on the pods of its node: an entry about any other pod changes nothing.

        Args:
            node: the node.
            large: by UID.
            counted: UIDs of all pods that it counts. Named once, counted still and not named any more, a pod was busy
                for a while, and is no measure of its kind.
        """
        before = self._reported.pop(node, None)
        if large:
            self._reported[node] = dict(large)
        if before:
            for uid in (before.keys() - large.keys()).intersection(counted):
                self._unname(uid, node)
        for uid, millicores in large.items():
            self._name(uid, node, millicores)

    def remove_pod(self, uid: str, *, ended: bool) -> None:
        """The pod is on no node any more; if it has ended, its kind has been seen once more."""
        name = self._take_off(uid)
        peak = self._max_millicores.pop(uid, None)
        if name is None or not ended:
            return
        kind = self._kinds.get(name)
        if kind is None:
            self._ended[name] = self._ended.get(name, 0) + 1
            self._ended.move_to_end(name)
            if len(self._ended) > _MAX_KINDS:
                self._ended.popitem(last=False)
        elif peak is None:
            kind.vote(large=False)
        else:
            kind.millicores += _TOWARDS_LATEST * (peak - kind.millicores)

    def _take_off(self, uid: str) -> int | None:
        """The pod is on no node; returns its kind if it was on one."""
        kind, node = self._placed.pop(uid, (None, ""))
        if kind is not None:
            self._nodes.remove(kind, node)
        return kind

    def _unname(self, uid: str, node: str) -> None:
        name, on = self._placed.get(uid, (None, ""))
        kind = self._kinds.get(name) if name is not None else None
        if on != node or self._max_millicores.pop(uid, None) is None or kind is None or name is None:
            return
        kind.large = max(0.0, kind.large - 1.0)
        if not kind.large:
            self._ended[name] = int(self._kinds.pop(name).ordinary)

    def _name(self, uid: str, node: str, millicores: float) -> None:
        name, on = self._placed.get(uid, (None, ""))
        if name is None or on != node:
            return
        kind = self._kinds.get(name)
        if kind is None:
            self.version += 1
            kind = self._kinds[name] = _Kind(float(self._ended.pop(name, 0)))
            kind.witnesses = {*self._nodes.of(name)} - {node}
            kind.ordinary += len(kind.witnesses)
            if len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(name)
        if node in kind.witnesses:
            kind.witnesses.discard(node)
            kind.ordinary = max(0.0, kind.ordinary - 1.0)
        if uid not in self._max_millicores:
            kind.vote(large=True)
        self._max_millicores[uid] = max(millicores, self._max_millicores.get(uid, 0.0))
        kind.millicores = max(kind.millicores, millicores)
