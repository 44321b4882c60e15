"""The order of pods that were created in the same second: those that take most of a node come first. Pure.

Small pods find room beside large ones, but not the other way round: large pods that come last run on after all others
have ended. The queue's order says nothing about such pods, as creation times are whole seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from concerto.api.pod import PodView
from concerto.capacity.kinds.cost import UNKNOWN
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.reserved_loads import held_for_others, units_by_kind

_MAX_SORTED = 1024
"""Heads that are put in order; a cycle decides on a quarter as many at most."""
_MAX_OF_ONE_KIND = 250
"""Heads of one kind that a queue returns at most. If it returns as many, more of them may wait."""


def larger_first(cluster: ClusterState, heads: Iterable[PodView], parked: Iterable[PodView] = ()) -> Iterable[PodView]:
    """The same pods. Those of one namespace, priority and second of creation change places with each other alone.

    So namespaces keep their turns. While nothing is measured of any kind, the order stays. What all of them take
    together is noted for ``NodeLoads.set_waiting``.

    Args:
        cluster: says what pods cost, and how large its nodes are together.
        heads: in the queue's order.
        parked: others that wait for capacity: a pod that has just come is not the last one that waits.
    """
    kinds = cluster.kinds
    if not kinds:
        return heads
    iterator = iter(heads)
    some = list(islice(iterator, _MAX_SORTED))
    _note_waiting(cluster, [*some, *islice(parked, _MAX_SORTED - len(some))])
    if not kinds.loads.settings.larger_first:
        return chain(some, iterator)
    cores, memory_bytes = float(kinds.loads.cores.sum()), float(kinds.loads.memory_bytes.sum())
    sizes: dict[str, float] = {}

    def size(pod: PodView) -> float:
        """Part of the cluster that it takes of what it takes most of."""
        if (known := sizes.get(pod.kind.key)) is None:
            cost = kinds.cost_of(pod)
            known = max(cost.share / max(cores, 1.0), kinds.loads.memory_of(cost) / max(memory_bytes, 1.0))
            sizes[pod.kind.key] = known
        return known

    places: dict[tuple[str, int, int], list[int]] = {}
    for place, pod in enumerate(some):
        places.setdefault((pod.namespace, pod.priority, int(pod.created)), []).append(place)
    ordered = some[:]
    for alike in places.values():
        for place, pod in zip(alike, sorted((some[place] for place in alike), key=lambda pod: -size(pod))):
            ordered[place] = pod
    return chain(ordered, iterator)


def _note_waiting(cluster: ClusterState, pods: Sequence[PodView]) -> None:
    """Note what all pods that wait take beside the room that reservations hold (``NodeLoads.set_waiting``)."""
    loads, rows = cluster.kinds.loads, cluster.nodes.in_use()
    if len(pods) < _MAX_SORTED:
        cores = cluster.kinds.cores_of(pods, _MAX_OF_ONE_KIND, units_by_kind(cluster))
        loads.set_waiting(cores, rows, held_for_others(cluster, UNKNOWN, None, rows))
    else:
        loads.set_waiting(math.inf)
