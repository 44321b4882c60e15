"""The bindings in flight and waiting: how many there may be, and what they hold back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSettings:
    """How decisions are carried out.

    Attributes:
        max_concurrent_bindings: bindings in flight.
        max_waiting_bindings: stored decisions that wait for their binding; beyond that, no new cycle starts.
        binding_timeout_seconds: for one POST of a binding; see `BinderSettings`.
        shutdown_grace_seconds: how long bindings in flight get at the end.
        avoid_refused_seconds: for how long nothing is placed on a node after the API server refused a placement on it.
        avoid_unprepared_factor: for how long no pinned pod is sent to a node whose agent did not get ready for one, as
            a multiple of the time that it had for that.
    """

    max_concurrent_bindings: int = 48
    max_waiting_bindings: int = 250
    binding_timeout_seconds: float = 4.0
    shutdown_grace_seconds: float = 2.0
    avoid_refused_seconds: float = 30.0
    avoid_unprepared_factor: float = 3.0


class BindingLoad:
    """The bindings in flight and waiting: what they hold back.

    Attributes:
        binding_limit: one binding in flight holds it once.
        below_limit: set while a new cycle may start (back-pressure).
    """

    def __init__(self, settings: PipelineSettings) -> None:
        """No binding yet."""
        self.binding_limit = asyncio.Semaphore(settings.max_concurrent_bindings)
        self.below_limit = asyncio.Event()
        self.below_limit.set()
        self._settings = settings
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """Whether bindings wait for their turn, so that events should wait, too."""
        return self._waiting > self._settings.max_concurrent_bindings

    def update(self, waiting: int) -> None:
        """So many bindings are in flight or wait for their turn now."""
        self._waiting = waiting
        if waiting > self._settings.max_waiting_bindings:
            self.below_limit.clear()
        else:
            self.below_limit.set()
