"""What is known of all kinds: collected by each node, merged for the cluster by addition, bounded in size.

A pod counts for its kind and for each of its groups, so a kind that is left out for want of space is still known by its
groups. What a node says of the pods that run there now is replaced each time; what it says of ended ones accumulates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from concerto.api.pod_kind import CLUSTER, Kind
from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.kinds.sums import KindSums, PodMeasurement

Table = Mapping[str, KindSums]

MAX_ENTRIES = 400
"""Kinds and groups that a published table holds: with names of ordinary length below 100 KiB as JSON."""


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
            # A former version did not say on how many cores pods compute: on one, as far as anybody knows
            ended = sums.only_ended()._replace(peak_work=sums.peak_work or sums.work)
            self._sums[key], self._at[key] = known.plus(ended.after(age_seconds)), now

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
        by_kind: dict[Kind, KindSums] = {}  # a kind's pods first, and then each sum once for all its groups
        for kind, pod in running:
            if pod.plausible and pod.shown:
                by_kind[kind] = _added(by_kind.get(kind), KindSums.of_running(pod))
        for kind, sums in by_kind.items():
            for key in kind.keys:
                found[key] = _added(found.get(key), sums)
        return bounded(found, MAX_ENTRIES)


def _added(before: KindSums | None, more: KindSums) -> KindSums:
    return more if before is None else before.plus(more)


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
    found = _matter_most(table, max_entries, by_key) if by_key else table
    ranked = sorted(found, key=lambda key: (key != CLUSTER, -by_key.get(key, 0.0), -weight_of(table[key]), key))
    return {key: table[key] for key in ranked[:max_entries]}


def _matter_most(table: Table, max_entries: int, parts: Mapping[str, float]) -> list[str]:
    """Keys among which all those are that `bounded` leaves: hundreds of thousands take a second to be sorted."""
    keys = list(table)
    matters = np.fromiter((np.inf if key == CLUSTER else parts.get(key, 0.0) for key in keys), float, len(keys))
    least = np.partition(matters, -max_entries)[-max_entries]
    return [keys[index] for index in np.flatnonzero(matters >= least)]


def weight_of(sums: KindSums) -> float:
    """How much a kind matters: CPU time of its pods, core-seconds, and a little for each of them."""
    return sums.work + sums.running_work + 1e-3 * (sums.ended + sums.running)


def to_entries(table: Table) -> tuple[KindEntry, ...]:
    """As a SubspaceSnapshot's status holds it, ordered by key."""
    return tuple((key, tuple(sums.to_list())) for key, sums in sorted(table.items()))


def from_entries(entries: Iterable[KindEntry]) -> dict[str, KindSums]:
    """The reverse; an entry that cannot be read, or has no key, costs only itself."""
    table = {}
    for key, numbers in entries:
        if not key:  # it would stand for the groups that a kind is not in (``cost.without_groups``)
            continue
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
        sums.peak_work / max(sums.work, 1e-9),
        sums.memory / ended,
        sums.max_memory,
        *now,
    )
