"""The writes that place pods, in flight and waiting: how many there may be, and what they hold back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from concerto.controllers.runtime.fair_places import FairPlaces


@dataclass(frozen=True)
class PipelineSettings:
    """How decisions are carried out.

    Attributes:
        max_concurrent_bindings: writes in flight that place pods: bindings, PodCPUBindings, and claims and volumes that
            are bound. Half of them are of one namespace; see `FairPlaces`.
        max_preemptions_beside_events: while more than so many go on, events wait, and cycles are farther apart.
        min_cycle_interval_seconds: no two cycles start closer together, so that a burst of pods becomes one placement
            record.
        min_cycle_interval_beside_preemptions_seconds: the same while many preemptions go on. Their victims end one at a
            time. A cycle after each of them would write a placement record for one pod, and look again at all others.
        max_waiting_bindings: such writes in flight and waiting, of all namespaces that have any, each of which has an
            equal part. While a namespace has more, none of its pods is decided on.
        min_waiting_bindings: such a part at least.
        stalled_seconds: others do not wait for the writes of a namespace of which none has ended quickly for so long.
            One ends quickly that takes less.
        binding_timeout_seconds: for one POST of a binding; see `BinderSettings`.
        shutdown_grace_seconds: how long bindings in flight get at the end.
        avoid_refused_seconds: for how long nothing is placed on a node after the API server refused a placement on it.
        avoid_unprepared_factor: for how long no pinned pod is sent to a node whose agent did not get ready for one, as
            a multiple of the time that it had for that.
    """

    max_concurrent_bindings: int = 96
    max_preemptions_beside_events: int = 16
    min_cycle_interval_seconds: float = 0.05
    min_cycle_interval_beside_preemptions_seconds: float = 0.25
    max_waiting_bindings: int = 250
    min_waiting_bindings: int = 16
    stalled_seconds: float = 2.0
    binding_timeout_seconds: float = 4.0
    shutdown_grace_seconds: float = 2.0
    avoid_refused_seconds: float = 30.0
    avoid_unprepared_factor: float = 3.0


@dataclass(slots=True)
class _Writes:
    """Of one namespace.

    Attributes:
        number: in flight and waiting.
        moved_at: when one has ended quickly last, or the first one came, in seconds.
    """

    moved_at: float
    number: int = 0


class BindingLoad:
    """The writes that place pods, and preemptions, in flight and waiting: what they hold back.

    Writes of one namespace may hang for long, as an admission webhook keeps them. Then they hold back the decisions on
    pods of that namespace, and nothing else.

    Attributes:
        on_let_go: called when the pods of a namespace may have been held back until now, and are not any more.
        preemptions: for how many pods or gangs room is being made: nominations and evictions are being written.
    """

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is written yet; ``clock`` shows seconds."""
        self.on_let_go: Callable[[], None] = lambda: None
        self.preemptions = 0
        self._settings = settings
        self._clock = clock
        self._places = FairPlaces(settings.max_concurrent_bindings)
        self._writes: dict[str, _Writes] = {}  # by namespace

    def begin(self, namespace: str) -> None:
        """A write that places a pod of the namespace is to be made."""
        self._writes.setdefault(namespace, _Writes(self._clock())).number += 1

    def end(self, namespace: str) -> None:
        """A write that has begun was made, or is not made after all."""
        max_waiting, was_held_back = self._max_waiting, self.holds_back(namespace)
        writes = self._writes[namespace]
        writes.number -= 1
        if not writes.number:
            del self._writes[namespace]
        if self._max_waiting > max_waiting or (was_held_back and not self.holds_back(namespace)):
            self.on_let_go()

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a place for a write that has begun, and hold it while the context is open."""
        async with self._places.place(namespace):
            began = self._clock()
            yield
        if (now := self._clock()) - began < self._settings.stalled_seconds and namespace in self._writes:
            self._writes[namespace].moved_at = now

    @asynccontextmanager
    async def place_of_preparation(self, namespace: str) -> AsyncIterator[None]:
        """Begin a write that comes before a pod's binding, wait for its place, and hold it while the context is open.

        It counts only so long: what pods wait for beside writes, such as volumes, may take minutes.
        """
        self.begin(namespace)
        try:
            async with self.place(namespace):
                yield
        finally:
            self.end(namespace)

    def holds_back(self, namespace: str) -> bool:
        """Whether so many writes of the namespace wait that none of its pods is to be decided on (back-pressure)."""
        writes = self._writes.get(namespace)
        return writes is not None and writes.number > self._max_waiting

    @property
    def busy(self) -> bool:
        """Whether bindings or evictions wait for their turn, so that events should wait, too."""
        if self.many_preemptions:
            return True
        number, since = 0, self._clock() - self._settings.stalled_seconds
        for writes in self._writes.values():
            if writes.moved_at >= since:
                number += writes.number
                if number > self._settings.max_concurrent_bindings // 2:
                    return True
        return False

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

    # --- inside

    @property
    def _max_waiting(self) -> int:
        """Writes that a namespace may have."""
        settings = self._settings
        return max(settings.min_waiting_bindings, settings.max_waiting_bindings // max(len(self._writes), 1))
