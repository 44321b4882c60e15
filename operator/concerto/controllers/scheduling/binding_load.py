"""The writes that place pods, in flight and waiting: how many there may be, and what they hold back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from concerto.kube.fair_places import FairPlaces

_LOOK_SECONDS = 0.1
_MAX_REMEMBERED = 1000
"""Namespaces of which it is remembered that they had stalled."""


@dataclass(frozen=True)
class PipelineSettings:
    """How decisions are carried out.

    Attributes:
        max_concurrent_bindings: writes in flight that place pods: bindings, PodCPUBindings, and claims and volumes that
            are bound, for known namespaces; see `FairPlaces`.
        max_preemptions_beside_events: while more than so many go on, events wait, and cycles are farther apart.
        min_cycle_interval_seconds: no two cycles start closer together, so that a burst of pods becomes one placement
            record.
        min_cycle_interval_beside_preemptions_seconds: the same while many preemptions go on. Their victims end one at a
            time. A cycle after each of them would write a placement record for one pod, and look again at all others.
        max_waiting_bindings: such writes in flight and waiting, beyond which no cycle starts. Those of namespaces that
            have stalled do not count. Of these, each has an equal part of as many, and while it has more, none of its
            pods is decided on.
        min_waiting_bindings: such a part at least, where so many namespaces have writes that fewer would be left.
        max_waiting_bindings_of_all: the equal parts of all namespaces together; each takes about 8 KiB of memory.
        stalled_seconds: a namespace has stalled if it has writes, and none has ended for so long that took less. Where
            the API server takes longer to answer everybody, each namespace waits for its own writes alone.
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
    max_waiting_bindings_of_all: int = 4000
    stalled_seconds: float = 1.0
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

    Writes of one namespace may hang for long, as an admission webhook keeps them. Once that is seen, they hold back the
    decisions on pods of that namespace, and nothing else. Others are held back together: if pods of one namespace were
    left out while its bindings take their time, pods of lower priority would take its room.

    Attributes:
        on_let_go: called when the pods of a namespace may have been held back until now, and are not any more.
        preemptions: for how many pods or gangs room is being made: nominations and evictions are being written. By the
            namespaces of these pods and of their victims.
        are_slow: whether nominations or evictions in these namespaces last for long, as a webhook keeps them. They
            are no load, and hold back nothing.
    """

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is written yet; ``clock`` shows seconds."""
        self.on_let_go: Callable[[], None] = lambda: None
        self.preemptions: Counter[frozenset[str]] = Counter()
        self.are_slow: Callable[[frozenset[str]], bool] = lambda namespaces: False
        self._settings = settings
        self._clock = clock
        self._places = FairPlaces(settings.max_concurrent_bindings)
        self._writes: dict[str, _Writes] = {}  # by namespace
        self._stalled: dict[str, float] = {}  # `moved_at` of namespaces that have no writes, and had stalled
        self._ended = asyncio.Event()

    def begin(self, namespace: str) -> None:
        """A write that places a pod of the namespace is to be made."""
        if namespace not in self._writes:
            # Those of a namespace that had stalled are likely to hang once more: others do not wait to see it again
            self._writes[namespace] = _Writes(self._stalled.pop(namespace, self._clock()))
        self._writes[namespace].number += 1

    def end(self, namespace: str) -> None:
        """A write that has begun was made, or is not made after all."""
        writes, max_waiting = self._writes[namespace], self._max_waiting
        might_be_held_back = writes.number > max_waiting
        writes.number -= 1
        self._ended.set()
        if not writes.number:
            del self._writes[namespace]
            if writes.moved_at < self._stalled_before:
                self._stalled[namespace] = writes.moved_at
                if len(self._stalled) > _MAX_REMEMBERED:
                    del self._stalled[next(iter(self._stalled))]
        if self._max_waiting > max_waiting or (might_be_held_back and not self.holds_back(namespace)):
            self.on_let_go()

    async def wait_for_room(self) -> None:
        """Return once a cycle may start: no more writes wait than are made before long (back-pressure)."""
        while self._not_stalled() > self._settings.max_waiting_bindings:
            self._ended.clear()
            with suppress(TimeoutError):  # by then a namespace may have stalled
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._ended.wait()

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a place for a write that has begun, and hold it while the context is open."""
        async with self._places.place(namespace):
            began, is_broken_off = self._clock(), False
            try:
                yield
            except asyncio.CancelledError:  # it might have lasted for long
                is_broken_off = True
                raise
            finally:
                now, writes = self._clock(), self._writes.get(namespace)
                if writes is not None and not is_broken_off and now - began < self._settings.stalled_seconds:
                    writes.moved_at = now

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
        """Whether the namespace has stalled, with so many writes that none of its pods is to be decided on."""
        writes = self._writes.get(namespace)
        return writes is not None and writes.number > self._max_waiting and writes.moved_at < self._stalled_before

    @property
    def busy(self) -> bool:
        """Whether bindings or evictions wait for their turn, so that events should wait, too."""
        return self.many_preemptions or self._not_stalled() > self._settings.max_concurrent_bindings // 2

    @property
    def many_preemptions(self) -> bool:
        """Whether room is being made for so many pods that the writes for it wait for their turn."""
        limit = self._settings.max_preemptions_beside_events
        if self.preemptions.total() <= limit:
            return False
        return sum(n for namespaces, n in self.preemptions.items() if not self.are_slow(namespaces)) > limit

    @property
    def min_cycle_interval_seconds(self) -> float:
        """Between the starts of two cycles, as things are now."""
        settings = self._settings
        if self.many_preemptions:
            return settings.min_cycle_interval_beside_preemptions_seconds
        return settings.min_cycle_interval_seconds

    # --- inside

    def _not_stalled(self) -> int:
        """Writes of namespaces that have not stalled."""
        since = self._stalled_before
        return sum(writes.number for writes in self._writes.values() if writes.moved_at >= since)

    @property
    def _stalled_before(self) -> float:
        """Namespaces whose writes have moved since then have not stalled."""
        return self._clock() - self._settings.stalled_seconds

    @property
    def _max_waiting(self) -> int:
        """Writes that a namespace may have once it has stalled."""
        settings, namespaces = self._settings, max(len(self._writes), 1)
        at_least = min(settings.min_waiting_bindings, settings.max_waiting_bindings_of_all // namespaces)
        return max(at_least, settings.max_waiting_bindings // namespaces)
