"""The kinds that a replica follows: when it begins to, and that a new leader reads all of them afresh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from concerto.controllers.runtime.supervision import Supervisor
from concerto.kube import Object, Reflector

OnChange = Callable[[Object | None, Object | None], None]

_LEAD_AT_ONCE_SECONDS = 1.0
"""A replica that leads within this time reads the cluster once, and not once before and once after its election."""


class WatchedKinds:
    """The reflectors of one replica."""

    def __init__(self, reflectors: Mapping[str, Reflector], supervisor: Supervisor) -> None:
        """Nothing is read yet."""
        self._reflectors = reflectors
        self._supervisor = supervisor
        self._following = False

    async def stand_by(self) -> None:
        """Follow the kinds although this replica does not lead yet, so that it can take over warm; never returns."""
        await asyncio.sleep(_LEAD_AT_ONCE_SECONDS)
        if not self._following:
            self._follow()
        await asyncio.Event().wait()

    async def read_afresh(self) -> None:
        """Return once every kind is known as of a list begun after this call.

        A new leader must know what its predecessor did to the last: only lists begun after the election count.
        """
        if self._following:
            await asyncio.gather(*(reflector.refresh() for reflector in self._reflectors.values()))
        else:
            self._follow()
            await asyncio.gather(*(reflector.synced.wait() for reflector in self._reflectors.values()))

    def _follow(self) -> None:
        self._following = True
        for name, reflector in self._reflectors.items():
            self._supervisor.spawn(f"reflector {name}", reflector.run)


class Handlers:
    """The functions that are given each change of one kind, in order."""

    def __init__(self, *handlers: OnChange) -> None:
        """These come first."""
        self._handlers = list(handlers)

    def add(self, handler: OnChange) -> None:
        """One more, after the others."""
        self._handlers.append(handler)

    def __call__(self, old: Object | None, new: Object | None) -> None:
        """An object appeared, changed or went."""
        for handler in self._handlers:
            handler(old, new)


def not_yet(reflector: Reflector) -> Callable[[], str | None]:
    """A readiness check: has this kind been listed?"""
    return lambda: None if reflector.synced.is_set() else "not listed yet"
