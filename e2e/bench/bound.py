"""When pods are bound, as a watch of their namespace shows it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from concerto.kube import Session
from concerto.kube.resources import PODS


class BoundTimes:
    """Follows the pods of one namespace.

    Attributes:
        at: when each pod was first seen with a node, monotonic seconds, by name.
    """

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self._changed = asyncio.Event()

    async def wait(self, names: set[str], seconds: float) -> set[str]:
        """The pods that are not bound when all are, or when the time is over."""
        deadline = time.monotonic() + seconds
        while (left := names - self.at.keys()) and time.monotonic() < deadline:
            self._changed.clear()
            try:
                async with asyncio.timeout(min(1.0, max(0.01, deadline - time.monotonic()))):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return left

    async def wait_one(self, name: str, seconds: float) -> None:
        """Return once the pod is bound.

        Raises:
            TimeoutError: it is not bound in time.
        """
        async with asyncio.timeout(seconds):
            while name not in self.at:
                self._changed.clear()
                await self._changed.wait()

    def _take(self, line: bytes) -> str | None:
        event = json.loads(line)
        found = event["object"]
        if event["type"] == "ERROR":
            raise RuntimeError(f"the watch of the pods ended: {found.get('message')}")
        if found.get("spec", {}).get("nodeName") and event["type"] != "DELETED":
            self.at.setdefault(found["metadata"]["name"], time.monotonic())
        version: str | None = found["metadata"].get("resourceVersion")
        return version

    async def follow(self, session: Session, namespace: str, version: str) -> None:
        """Watch from this resourceVersion on, until cancelled."""
        while True:
            params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with session.stream(PODS.path(namespace), params=params, inactivity_seconds=600) as batches:
                async for lines in batches:
                    for line in lines:
                        version = self._take(line) or version
                    self._changed.set()


@asynccontextmanager
async def bound_times(session: Session, namespace: str) -> AsyncIterator[BoundTimes]:
    """Follows the pods of a namespace from now on, until the context is left; an error of the watch is raised there."""
    times = BoundTimes()
    listed = await session.get(PODS.path(namespace), params={"limit": "1"})
    watch = asyncio.create_task(times.follow(session, namespace, listed["metadata"]["resourceVersion"]))
    try:
        yield times
        if watch.done():
            watch.result()
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
