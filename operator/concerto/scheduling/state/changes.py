"""What an event may have made possible for pods that found no node."""

from __future__ import annotations

from enum import Flag, auto


class Change(Flag):
    """Kinds of events that queued pods are requeued on; several can come together."""

    NOTHING = 0
    NODE = auto()  # a node came, or its labels, taints, readiness or allocatable changed
    ENDED = auto()  # requests or ports of a pod are free
    CAPACITY = auto()  # a node can take more than it could
    PLACED = auto()  # a pod came to a node that others ask for, or a pod's labels changed, or a node went with its pods
    LOAD = auto()  # a metric provider has answered, or an agent measures what it did not before
    CPUS = auto()  # CPUs came free, or more is known of them
    VOLUMES = auto()  # a volume, a claim or storage changed

    def __or__(self, other: Change) -> Change:
        """Both; most are nothing, several for each event, and Flag takes ten times as long."""
        return self if self is other else super().__or__(other)
