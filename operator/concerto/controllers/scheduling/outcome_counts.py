"""What was done for the pods of each scheduler name since the start, for the statuses of profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from concerto.scheduling.cycle_result import CycleResult


@dataclass(frozen=True)
class ProfileCounts:
    """What was done for the pods of one scheduler name since the start.

    Attributes:
        decisions: pods placed.
        unschedulable: attempts that found no node.
        fallbacks: pods placed by requests, for want of a measurement.
        abstentions: by plugin, on how many nodes it had no opinion for want of a metric.
    """

    decisions: int = 0
    unschedulable: int = 0
    fallbacks: int = 0
    abstentions: Mapping[str, int] = field(default_factory=dict)

    def plus(self, decisions: int = 0, unschedulable: int = 0, fallbacks: int = 0) -> ProfileCounts:
        """The counts after some more."""
        return ProfileCounts(
            self.decisions + decisions,
            self.unschedulable + unschedulable,
            self.fallbacks + fallbacks,
            self.abstentions,
        )

    def plus_abstentions(self, plugin: str, count: int) -> ProfileCounts:
        """The counts after that many more nodes on which a plugin abstained."""
        return replace(self, abstentions={**self.abstentions, plugin: self.abstentions.get(plugin, 0) + count})


class OutcomeCounts:
    """Counts by scheduler name."""

    def __init__(self) -> None:
        """Nothing was done yet."""
        self._counts: dict[str, ProfileCounts] = {}

    def of(self, scheduler_name: str) -> ProfileCounts:
        """What was done for the pods of that scheduler name."""
        return self._counts.get(scheduler_name, ProfileCounts())

    def add(self, result: CycleResult) -> None:
        """Count what a cycle decided."""
        for decision in result.decisions:
            name = decision.pod.scheduler_name
            by_requests = decision.assignment.basis == "Requests" or decision.by_allocation
            self._counts[name] = self.of(name).plus(decisions=1, fallbacks=int(by_requests))
        for failure in result.unschedulable:
            name = failure.pod.scheduler_name
            self._counts[name] = self.of(name).plus(unschedulable=1)
        for (name, plugin), nodes in result.abstentions.items():
            self._counts[name] = self.of(name).plus_abstentions(plugin, nodes)
