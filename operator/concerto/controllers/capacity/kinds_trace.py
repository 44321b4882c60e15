"""What placement by kind has committed on each node over the last minutes: ``GET /debug/trace?node=NAME``.

Numbers of nodes only, as in /metrics: nothing about single pods or workloads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from concerto.capacity.trace import KIND_COLUMNS, Trace
from concerto.scheduling.state.cluster import ClusterState


@dataclass(frozen=True)
class KindsTraceSettings:
    """How much is kept.

    Attributes:
        interval_seconds: between two moments that are kept.
        kept: moments that are kept. Five minutes of 5,000 nodes take 21 MB.
    """

    interval_seconds: float = 2.0
    kept: int = 150


class KindsTrace:
    """Keeps the numbers of all nodes while this replica leads.

    The handler may run in another thread than `run`: it looks single values up, and what was kept is never changed.
    """

    def __init__(
        self, cluster: ClusterState, clock: Callable[[], float], settings: KindsTraceSettings | None = None
    ) -> None:
        """Nothing is kept before `run`.

        Args:
            cluster: the scheduler's; only read.
            clock: seconds since the epoch, never jumping.
            settings: how much is kept.
        """
        self._cluster = cluster
        self._clock = clock
        self._settings = settings or KindsTraceSettings()
        self._trace = Trace(KIND_COLUMNS, self._settings.kept)
        self._names: list[str] = []  # of the rows, when they were last looked at
        self._since: list[float] = []  # when each row began to stand for its node

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [web.get("/debug/trace", self._answer)]

    async def run(self) -> None:
        """Keep the numbers of every node until cancelled."""
        while True:
            self.keep()
            await asyncio.sleep(self._settings.interval_seconds)

    def keep(self) -> None:
        """Keep the numbers of this moment."""
        now, loads = self._clock(), self._cluster.kinds.loads
        rows = slice(0, self._cluster.size)
        self._follow_names(now)
        paid = loads.settings.burst * loads.cores[rows] * loads.settings.max_paced_seconds
        self._trace.add(
            now,
            {
                "pods": loads.pods[rows],
                "committed": loads.cpu[rows],
                "left": loads.cpu_left(rows),
                "headRoom": loads.head_room[rows],
                "tokens": np.minimum(loads.tokens(rows, now), paid),
                "system": loads.own_cpu[rows],
                "memoryLeft": loads.memory_left(rows),
            },
        )

    def _follow_names(self, now: float) -> None:
        """A row stands for another node once its own has gone: what was kept before is not that node's."""
        names = self._cluster.names[: self._cluster.size]
        if names == self._names:
            return
        kept = [since if was == name else now for was, since, name in zip(self._names, self._since, names)]
        self._names, self._since = list(names), kept + [now] * (len(names) - len(kept))

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.query.get("node", "")
        row, names, since = self._cluster.row_of.get(name), self._names, self._since
        if row is None or row >= min(len(names), len(since)) or names[row] != name:
            raise web.HTTPNotFound(text=f"node {name!r}: no numbers are kept; only the leading operator keeps any")
        rows = self._trace.rows(row, since[row])
        return web.json_response(self._trace.document(name, rows))
