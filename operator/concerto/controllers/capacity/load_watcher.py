"""The load-watcher API: what the agents measured, in the form in which Trimaran's plugins read it.

``GET /watcher``, ``/watcher/{host}`` and ``?host=`` answer as load-watcher does today (``data.NodeMetricsMap``), so
that a kube-scheduler with Trimaran can have Concerto as its ``watcherAddress``; ``?format=kep`` is Trimaran's form.
``?window=`` chooses 5m, 10m or 15m. Read-only. An answer about all nodes is made afresh at most every few seconds: a
scheduler asks for all of them at once, and 5,000 take some 50 ms to write down.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from concerto.api.nodecapacity import NodeCapacityStatus, Window
from concerto.capacity.windows import WINDOW_SECONDS
from concerto.scheduling.state.cluster import ClusterState

Form = Literal["today", "kep"]

_TYPES = {"cpu": "CPU", "memory": "Memory", "network": "Bandwidth", "io": "Storage"}
"""Upstream's types by resource."""
_DATA_CENTER = "topology.kubernetes.io/zone"
_POOLS = (
    "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
)  # fmt: skip
"""Labels with the name of a node's pool; the first that the node has counts."""
_TAGS = {
    "region": "topology.kubernetes.io/region",
    "instanceType": "node.kubernetes.io/instance-type",
    "architecture": "kubernetes.io/arch",
    "operatingSystem": "kubernetes.io/os",
}
_SOURCE = "Concerto"
_NODES_BETWEEN_BREATHS = 200
"""Nodes written down before whatever else waits on the event loop gets its turn."""


@dataclass(frozen=True)
class WatcherSettings:
    """How old what the API says may be.

    Attributes:
        stale_after_seconds: age of a status above which the node is left out (Trimaran: 5 minutes).
        keep_seconds: how long an answer about all nodes is given again.
    """

    stale_after_seconds: float = 300.0
    keep_seconds: float = 5.0


class Watcher:
    """The handlers; reads the scheduler's cluster state, in a standby, too.

    They may run in another thread than the one that changes the state: each looks single values up, and none iterates
    over what may change meanwhile.
    """

    def __init__(
        self,
        cluster: ClusterState,
        clock: Callable[[], float],
        settings: WatcherSettings | None = None,
    ) -> None:
        """Nothing is kept yet.

        Args:
            cluster: the cluster; only read.
            clock: seconds since the epoch, never jumping.
            settings: limits.
        """
        self._cluster = cluster
        self._clock = clock
        self._settings = settings or WatcherSettings()
        self._kept: dict[tuple[Form, str], tuple[float, asyncio.Task[bytes | None]]] = {}

    def routes(self) -> list[web.RouteDef]:
        """What to serve; aiohttp answers HEAD as well, and 405 to all else."""
        return [
            web.get("/watcher", self._all),
            web.get("/watcher/health", self._health),
            web.get("/watcher/{host}", self._one),
        ]

    async def _all(self, request: web.Request) -> web.Response:
        if "host" in request.query:
            return self._answer(request, request.query["host"])
        form, window = self._asked(request)
        now = self._clock()
        made_at, answer = self._kept.get((form, window)) or (-math.inf, None)
        if answer is None or now - made_at > self._settings.keep_seconds:
            answer = asyncio.create_task(self._render(form, window, now))
            answer.add_done_callback(functools.partial(self._forget_unless_made, (form, window)))
            self._kept[form, window] = now, answer
        # Requests that arrive meanwhile get the same answer, also if the first client disconnects
        body = await asyncio.shield(answer)
        if body is None:
            raise web.HTTPNotFound(text="no metrics of any node: no agent has reported recently")
        return _json(body)

    def _forget_unless_made(self, asked: tuple[Form, str], answer: asyncio.Task[bytes | None]) -> None:
        if answer.cancelled() or answer.exception() is not None or answer.result() is None:
            self._kept.pop(asked, None)

    async def _one(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["host"])

    async def _health(self, request: web.Request) -> web.Response:
        fresh = next(self._fresh(self._clock()), None) is not None
        text = "ok" if fresh else f"no agent has reported for {self._settings.stale_after_seconds:.0f} s"
        return web.Response(text=text, status=200 if fresh else 503)

    def _answer(self, request: web.Request, host: str) -> web.Response:
        form, window = self._asked(request)
        now = self._clock()
        status, reported_at = self._status(host, now) or (None, 0.0)
        metrics = build_metrics(status, form, window) if status is not None else []
        if not metrics:
            raise web.HTTPNotFound(text=f"no metrics of {host}: its agent has not reported recently")
        head = build_head(window, timestamp=now, end=reported_at)
        node = build_node(metrics, self._labels(host))
        return _json(_document(head, form, [f"{json.dumps(host)}:{json.dumps(node)}"]))

    @staticmethod
    def _asked(request: web.Request) -> tuple[Form, str]:
        window = request.query.get("window", "15m")
        if window not in WINDOW_SECONDS:
            raise web.HTTPBadRequest(text=f"window must be one of {', '.join(WINDOW_SECONDS)}")
        form = request.query.get("format", "today")
        if form not in ("today", "kep"):
            raise web.HTTPBadRequest(text="format must be kep, or left out")
        return ("kep" if form == "kep" else "today"), window

    async def _render(self, form: Form, window: str, now: float) -> bytes | None:
        nodes: list[str] = []
        end = 0.0
        for count, (name, status, reported_at) in enumerate(list(self._fresh(now)), 1):
            if metrics := build_metrics(status, form, window):
                nodes.append(f"{json.dumps(name)}:{json.dumps(build_node(metrics, self._labels(name)))}")
                end = max(end, reported_at)
            if count % _NODES_BETWEEN_BREATHS == 0:
                await asyncio.sleep(0)
        if not nodes:
            return None
        return _document(build_head(window, timestamp=now, end=end), form, nodes)

    def _fresh(self, now: float) -> Iterator[tuple[str, NodeCapacityStatus, float]]:
        for name in sorted(self._cluster.row_of):
            if (found := self._status(name, now)) is not None:
                yield name, *found

    def _labels(self, host: str) -> Mapping[str, str]:
        view = self._cluster.nodes.views.get(self._cluster.row_of.get(host, -1))
        return view.labels if view is not None else {}

    def _status(self, host: str, now: float) -> tuple[NodeCapacityStatus, float] | None:
        """With when it came, by our own clock: a node's that is ahead would have Trimaran forget what it has placed."""
        row = self._cluster.row_of.get(host)
        reported_at = self._cluster.ledger.nodes.last_status_at(host)
        if row is None or reported_at is None or not self._cluster.nodes.exists[row]:
            return None
        status = self._cluster.ledger.nodes.status(host)
        return (
            (status, reported_at)
            if status is not None and now - reported_at <= self._settings.stale_after_seconds
            else None
        )


def build_metrics(status: NodeCapacityStatus, form: Form, window: str) -> list[dict[str, Any]]:
    """A node's metrics in percent of the machine; what could not have been measured is left out."""
    found: list[dict[str, Any]] = []
    for measured in status.windows:
        if measured.window == window and measured.resource in _TYPES and measured.covered_seconds > 0:
            found += _metrics(measured, form)
    return found


def _metrics(measured: Window, form: Form) -> Iterator[dict[str, Any]]:
    # Of Latest and AVG, Trimaran's TargetLoadPacking takes whichever comes last
    values = {"Latest": measured.latest, "AVG": measured.average, "STD": measured.standard_deviation}
    for operator, value in values.items():
        if not 0.0 <= value <= 1.0:
            continue
        name = f"host.{measured.resource}.utilisation"
        if form == "today":
            yield {
                "name": name,
                "type": _TYPES[measured.resource],
                "operator": operator,
                "rollup": measured.window,
                "value": round(100.0 * value, 3),
            }
        elif operator != "Latest":
            # The KEP's schema has whole numbers, and the operator where today's form has the window
            yield {"name": name, "type": measured.resource, "rollup": operator, "value": round(100.0 * value)}


def build_node(metrics: list[dict[str, Any]], labels: Mapping[str, str]) -> dict[str, Any]:
    """One node's entry; metadata and tags are those of the node's labels that it has."""
    metadata = {"dataCenter": labels.get(_DATA_CENTER), "pool": next(filter(None, map(labels.get, _POOLS)), None)}
    tags = {name: labels.get(label) for name, label in _TAGS.items()}
    return {"metrics": metrics, "tags": _given(tags), "metadata": _given(metadata)}


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def build_head(window: str, *, timestamp: float, end: float) -> dict[str, Any]:
    """All but the data; the same in both forms.

    Args:
        window: 5m, 10m or 15m.
        timestamp: when this is said, seconds since the epoch.
        end: the latest measurement: what was placed after it is in no metric.
    """
    return {
        "timestamp": int(timestamp),
        "window": {"duration": window, "start": int(end) - WINDOW_SECONDS[window], "end": int(end)},
        "source": _SOURCE,
    }


def _document(head: dict[str, Any], form: Form, nodes: list[str]) -> bytes:
    data = "{" + ",".join(nodes) + "}"
    if form == "today":
        data = f'{{"NodeMetricsMap":{data}}}'
    return f'{json.dumps(head)[:-1]},"data":{data}}}'.encode()


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
