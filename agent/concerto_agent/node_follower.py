"""What the agent reads now and then of its Node and of kubelet: how many pods are allowed, and which CPUs reserved."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from concerto.api.quantities import whole
from concerto.kube import KubeError, Session
from concerto.kube.resources import NODES
from concerto.linux.reserved_cpus import reserved_count

if TYPE_CHECKING:  # it is part of what pins
    from concerto_agent.kubelet_configz import KubeletConfigz

log = logging.getLogger(__name__)

_SOON_SECONDS, _SOON_TIMES = 20.0, 15
"""After kubelet's file was changed: kubelet is started again sooner or later, and then has other settings."""


class NodeFollower:
    """Reads the Node at long intervals, as this seldom changes.

    Attributes:
        reserved_count: CPUs that the Node has and pods can't request; None: not known.
        looked_at: set once the Node and kubelet have been read, or could not be.
    """

    def __init__(
        self,
        session: Session,
        node_name: str,
        configz: KubeletConfigz | None,
        seconds: tuple[float, float],
        allow: Callable[[int], None],
        rng: random.Random,
    ) -> None:
        """Nothing is read before `run`.

        Args:
            session: the way to the API server.
            node_name: the node's name.
            configz: reads kubelet's settings; None: they are not read.
            seconds: mean time between two reads, and after one that failed.
            allow: called with the number of pods that kubelet allows.
            rng: for jitter.
        """
        self.reserved_count: int | None = None
        self.looked_at = asyncio.Event()
        self._session = session
        self._node_name = node_name
        self._configz = configz
        self._seconds, self._failed_seconds = seconds
        self._allow = allow
        self._rng = rng

    async def run(self) -> None:
        """Read until cancelled, also when kubelet's file has changed."""
        soon = 0  # further reads at short intervals
        while True:
            has_read = await self._look()
            self.looked_at.set()
            wait = self._seconds if has_read else self._failed_seconds
            if soon > 0 and has_read:
                wait, soon = min(wait, _SOON_SECONDS), soon - 1
            wait *= self._rng.uniform(0.5, 1.5)
            if self._configz is None or not has_read:
                await asyncio.sleep(wait)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._configz.file_changed.wait(), wait)
                soon = _SOON_TIMES

    async def _look(self) -> bool:
        """Read once; whether the Node could be read."""
        try:
            node = await self._session.get(NODES.path(name=self._node_name))
            if self._configz is not None:
                await self._configz.refresh(node)
            self.reserved_count = reserved_count(node)
            pods = ((node.get("status") or {}).get("allocatable") or {}).get("pods")
            if pods is not None:
                self._allow(whole(pods))  # a quantity: 1,000 pods are 1k
        except (KubeError, ValueError) as error:
            log.warning("Node %s: its capacity could not be read: %s", self._node_name, error)
            return False
        return True
