"""The writes that place pods, in flight and waiting: how many there may be, and what they hold back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSettings:
    """How decisions are carried out.

    Attributes:
        max_concurrent_bindings: bindings in flight.
        max_preemptions_beside_events: while more than so many go on, events wait, and cycles are farther apart.
        min_cycle_interval_seconds: no two cycles start closer together, so that a burst of pods becomes one placement
            record.
        min_cycle_interval_beside_preemptions_seconds: the same while many preemptions go on. Their victims end one at a
            time. A cycle after each of them would write a placement record for one pod, and look again at all others.
        max_waiting_bindings: stored decisions that wait for their binding; beyond that, no new cycle starts.
        binding_timeout_seconds: for one POST of a binding; see `BinderSettings`.
        shutdown_grace_seconds: how long bindings in flight get at the end.
        avoid_refused_seconds: for how long nothing is placed on a node after the API server refused a placement on it.
        avoid_unprepared_factor: for how long no pinned pod is sent to a node whose agent did not get ready for one, as
            a multiple of the time that it had for that.
    """

    max_concurrent_bindings: int = 48
    max_preemptions_beside_events: int = 16
    min_cycle_interval_seconds: float = 0.05
    min_cycle_interval_beside_preemptions_seconds: float = 0.25
    max_waiting_bindings: int = 250
    binding_timeout_seconds: float = 4.0
    shutdown_grace_seconds: float = 2.0
    avoid_refused_seconds: float = 30.0
    avoid_unprepared_factor: float = 3.0


class BindingLoad:
    """The bindings and preemptions in flight and waiting: what they hold back.

    Attributes:
        binding_limit: one binding in flight holds it once.
        below_limit: set while a new cycle may start (back-pressure).
        preemptions: for how many pods or gangs room is being made: nominations and evictions are being written.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        """Nothing is written yet."""
        self.binding_limit = asyncio.Semaphore(settings.max_concurrent_bindings)
        self.below_limit = asyncio.Event()
        self.below_limit.set()
        self.preemptions = 0
        self._settings = settings
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """Whether bindings or evictions wait for their turn, so that events should wait, too."""
        return self._waiting > self._settings.max_concurrent_bindings or self.many_preemptions

    @property
    def many_preemptions(self) -> bool:
        """Whether room is being made for so many pods that the writes for it wait for their turn."""
        return self.preemptions > self._settings.max_preemptions_beside_events

    @property
    def min_cycle_interval_seconds(self) -> float:
        """Between the starts of two cycles, as things are now."""
        settings = self._settings
        if self.many_preemptions:
            return settings.min_cycle_interval_beside_preemptions_seconds
        return settings.min_cycle_interval_seconds

    def update(self, waiting: int) -> None:
        """So many bindings are in flight or wait for their turn now."""
        self._waiting = waiting
        if waiting > self._settings.max_waiting_bindings:
            self.below_limit.clear()
        else:
            self.below_limit.set()
