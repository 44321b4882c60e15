"""What is known of all kinds: collected by each node, merged for the cluster by addition, bounded in size.

A pod counts for its kind and for each of its groups, so a kind that is left out for want of space is still known by its
groups. What a node says of the pods that run there now is replaced each time; what it says of ended ones accumulates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from concerto.api.pod_kind import CLUSTER, Kind
from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.kinds.sums import KindSums, PodMeasurement

Table = Mapping[str, KindSums]

MAX_ENTRIES = 400
"""Kinds and groups that a published table holds: with names of ordinary length below 100 KiB as JSON."""
_MAX_NODE_WEIGHT = 3.0
"""Evidence of one node that counts, in times of the median node's."""
_MAX_NODE_MEAN = 4.0
"""What one node may say that a pod takes or holds, in times of what the median node says."""
_MEANS = ("work", "started", "held", "life", "memory")
_MAX_CORES = 1024.0
"""CPUs of a node that count where nodes decide which kinds are left out."""
_ENOUGH = 4.5
"""Evidence of a kind on the nodes of now, in pods, from which what nodes measured that have gone counts no more.

Five pods have it, and four do not: each counts a little less once others have ended after it.
"""


class NodeKinds:
    """What one node has measured of its pods, by kind."""

    def __init__(self) -> None:
        self._sums: dict[str, KindSums] = {}
        self._at: dict[str, float] = {}  # when each was brought up to date

    def recall(self, table: Table, age_seconds: float, now: float) -> None:
        """What the node published before its agent was started again; what ran then is measured anew.

        Args:
            table: as published.
            age_seconds: how long ago.
            now: monotonic seconds.
        """
        for key, sums in bounded(table, MAX_ENTRIES).items():
            known = self._sums.get(key, KindSums()).after(now - self._at.get(key, now))
            self._sums[key], self._at[key] = known.plus(sums.only_ended().after(age_seconds)), now

    def pod_ended(self, kind: Kind, pod: PodMeasurement, now: float) -> None:
        """A pod of the kind has ended."""
        if not pod.plausible:
            return
        for key in kind.keys:
            known = self._sums.get(key, KindSums()).after(now - self._at.get(key, now))
            self._sums[key], self._at[key] = known.plus_ended(pod), now
        if len(self._sums) > 2 * MAX_ENTRIES:
            kept = bounded(self._sums, MAX_ENTRIES)
            self._sums = dict(kept)
            self._at = {key: self._at[key] for key in kept}

    def table(self, running: Iterable[tuple[Kind, PodMeasurement]], now: float) -> dict[str, KindSums]:
        """All of it as of now, together with the pods that run."""
        found = {key: sums.after(now - self._at[key]) for key, sums in self._sums.items()}
        for kind, pod in running:
            if not (pod.plausible and pod.shown):
                continue
            one = KindSums.of_running(pod)
            for key in kind.keys:
                found[key] = found.get(key, KindSums()).plus(one)
        return bounded(found, MAX_ENTRIES)


class ClusterKinds:
    """The tables of many nodes as one: the order in which nodes come makes no difference.

    What one node says is bounded. Where three nodes know a kind, a node counts for no more than three times the pods of
    the median node, and its pods take and hold no more than four times what the median node's do. A pod takes no more
    CPUs than its node has, and no more memory. Where there are more kinds than the table holds, each node decides by
    its part of the cluster's CPUs which are left out. Only kinds of which something changed are added up again.

    What nodes measured that have gone since still counts, as long as few pods of the kind have ended on other nodes: an
    autoscaler that takes all of a Job's nodes away must not make the cluster forget what the Job's pods cost.

    Attributes:
        version: greater after each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_key: dict[str, dict[str, KindSums]] = {}  # by node
        self._keys: dict[str, frozenset[str]] = {}  # of each node
        self._parts_by_node: dict[str, dict[str, float]] = {}  # its CPUs divided among its keys
        self._parts: dict[str, float] = {}  # by key, the sum over nodes
        self._merged: dict[str, KindSums] = {}
        self._changed: set[str] = set()
        self._earlier: dict[str, KindSums] = {}  # of nodes that have gone

    def begin_with(self, table: Table) -> None:
        """What an earlier process has merged, before any node's table is read: some of its nodes may have gone."""
        self._earlier = dict(bounded(table, MAX_ENTRIES))
        for key in self._earlier:
            self._change(key)

    def all_read(self) -> None:
        """Every node's table has been read: what they know was in what the earlier process merged."""
        for key in [key for key in self._earlier if any(s.ended for s in self._by_key.get(key, {}).values())]:
            del self._earlier[key]
            self._change(key)

    def set_node(self, node: str, table: Table, cores: float, memory_bytes: float = math.inf) -> None:
        """What a node knows now, in place of what it knew before.

        Args:
            node: its name.
            table: what it has measured.
            cores: CPUs that it has.
            memory_bytes: memory that it has; infinity where that is unknown.
        """
        self._withdraw(node)
        for key in self._keys.get(node, frozenset()) - table.keys():
            self._take_off(node, key)
        weights = {}
        for key, sums in table.items():
            possible = _possible(sums, cores, memory_bytes)
            weights[key] = _weight(possible)
            at = self._by_key.setdefault(key, {})
            if at.get(node) != possible:
                at[node] = possible
                self._change(key)
        self._keys[node] = frozenset(table)
        scale = min(cores, _MAX_CORES) / max(sum(weights.values()), 1e-300)
        self._parts_by_node[node] = parts = {key: scale * weight for key, weight in weights.items()}
        for key, part in parts.items():
            self._parts[key] = self._parts.get(key, 0.0) + part

    def _withdraw(self, node: str) -> None:
        """Take off what the node has added to its keys' parts."""
        for key, part in self._parts_by_node.pop(node, {}).items():
            self._parts[key] -= part

    def remove_node(self, node: str) -> None:
        """The node is gone, or has not reported for too long."""
        self._withdraw(node)
        for key in self._keys.pop(node, ()):
            self._take_off(node, key)

    def _take_off(self, node: str, key: str) -> None:
        at = self._by_key[key]
        last = at.pop(node)
        if not at:
            del self._by_key[key], self._parts[key]
            self._earlier[key] = self._merged.get(key, last)
        self._change(key)

    def _change(self, key: str) -> None:
        self._changed.add(key)
        self.version += 1

    def table(self) -> dict[str, KindSums]:
        """All of them together."""
        if len(self._earlier) > 2 * MAX_ENTRIES:
            kept = bounded(self._earlier, MAX_ENTRIES)
            self._changed |= self._earlier.keys() - kept.keys()
            self._earlier = kept
        for key in self._changed:
            if (sums := self._merge(key)) is not None:
                self._merged[key] = sums
            else:
                self._merged.pop(key, None)
        self._changed.clear()
        return bounded(self._merged, MAX_ENTRIES, self._parts)

    def _merge(self, key: str) -> KindSums | None:
        at, earlier = self._by_key.get(key), self._earlier.get(key)
        if not at:
            return earlier
        sums = _sum(_evened(list(at.values())))
        if earlier is None:
            return sums
        if sums.ended >= _ENOUGH:
            del self._earlier[key]
            return sums
        return earlier.only_ended().plus(sums)


def _possible(sums: KindSums, cores: float, memory: float) -> KindSums:
    """The sums with what the node can give: CPU time in the time that the pods held their places, and memory."""
    sums = sums._replace(
        memory=min(sums.memory, memory * sums.ended) if sums.ended else 0.0,
        memory_squared=min(sums.memory_squared, memory**2 * sums.ended) if sums.ended else 0.0,
        running_memory=min(sums.running_memory, memory * sums.running) if sums.running else 0.0,
        max_memory=min(sums.max_memory, memory),
        running_work=min(sums.running_work, cores * sums.running_held),
        max_running_work=min(sums.max_running_work, cores * sums.max_running_held),
        max_running_recent=min(sums.max_running_recent, cores),
    )
    over = max(1.0, sums.work / max(cores * sums.held, 1e-9))
    over_started = max(1.0, sums.started / max(cores * sums.held, 1e-9))
    if over == over_started == 1.0:
        return sums
    return sums._replace(
        work=sums.work / over, work_squared=sums.work_squared / over**2, started=sums.started / over_started
    )


def _evened(found: list[KindSums]) -> list[KindSums]:
    weights = [s.ended for s in found if s.ended > 0.0]
    if len(weights) < 3:
        return found
    most = _MAX_NODE_WEIGHT * median(weights)
    known = [s for s in found if s.ended > 0.0]
    limits = {name: _MAX_NODE_MEAN * median(getattr(s, name) / s.ended for s in known) for name in _MEANS}
    max_memory = _MAX_NODE_MEAN * median(s.max_memory for s in known)
    bounded = [_bounded(s, limits, max_memory) if s.ended > 0.0 else s for s in found]
    return [s if s.ended <= most else s.scaled(most / s.ended) for s in bounded]


def _bounded(sums: KindSums, limits: Mapping[str, float], max_memory: float) -> KindSums:
    over = {name: getattr(sums, name) / max(limit * sums.ended, 1e-300) for name, limit in limits.items()}
    if max(over.values()) <= 1.0 and sums.max_memory <= max_memory:
        return sums
    cut = {name: limits[name] * sums.ended for name in _MEANS if over[name] > 1.0}
    squares = {
        f"{name}_squared": min(getattr(sums, f"{name}_squared"), limits[name] ** 2 * sums.ended)
        for name in ("work", "memory")
        if over[name] > 1.0
    }
    return sums._replace(**cut, **squares, max_memory=min(sums.max_memory, max_memory))


def _sum(found: list[KindSums]) -> KindSums:
    # from the smallest up, so that rounding does not depend on the order in which nodes come
    ordered = sorted(found, key=lambda s: s.to_list(17))
    total = ordered[0]
    for sums in ordered[1:]:
        total = total.plus(sums)
    return total


def bounded(table: Table, max_entries: int, parts: Mapping[str, float] | None = None) -> dict[str, KindSums]:
    """The entries that matter most.

    Args:
        table: the entries.
        max_entries: how many are left.
        parts: how much an entry matters, by key. The cluster's own comes first, then those that matter most, then those
            whose pods take most.
    """
    if len(table) <= max_entries:
        return dict(table)
    by_key = parts or {}
    ranked = sorted(table, key=lambda key: (key != CLUSTER, -by_key.get(key, 0.0), -_weight(table[key]), key))
    return {key: table[key] for key in ranked[:max_entries]}


def _weight(sums: KindSums) -> float:
    return sums.work + sums.running_work + 1e-3 * (sums.ended + sums.running)


def to_entries(table: Table) -> tuple[KindEntry, ...]:
    """As a SubspaceSnapshot's status holds it, ordered by key."""
    return tuple((key, tuple(sums.to_list())) for key, sums in sorted(table.items()))


def from_entries(entries: Iterable[KindEntry]) -> dict[str, KindSums]:
    """The reverse; an entry that cannot be read costs only itself."""
    table = {}
    for key, numbers in entries:
        try:
            table[key] = KindSums.from_list(numbers)
        except (TypeError, ValueError):
            continue
    return table


def has_news(before: Table, after: Table) -> bool:
    """Whether a kind is known that was not, or the first pod of one has ended: others of it wait for that."""
    return any(key not in before or (sums.ended and not before[key].ended) for key, sums in after.items())


def has_changed(before: Table, after: Table, share: float = 0.05) -> bool:
    """Whether a decision may come out differently: a kind is new or gone, or costs another share than before."""
    if before.keys() != after.keys():
        return True
    return any(_differs(before[key], sums, share) for key, sums in after.items())


def _differs(before: KindSums, after: KindSums, share: float) -> bool:
    return any(abs(a - b) > share * max(abs(a), abs(b)) for a, b in zip(_costs(before), _costs(after)))


def _costs(sums: KindSums) -> tuple[float, ...]:
    ended, held, running = max(sums.ended, 1e-9), max(sums.held, 1e-9), max(sums.running_held, 1e-9)
    now = () if sums.ended else (sums.running_work / running, *sums[-3:])
    return (
        float(sums.ended > 0.0),
        (sums.work + sums.started) / held,
        sums.work / ended,
        sums.memory / ended,
        sums.max_memory,
        *now,
    )
