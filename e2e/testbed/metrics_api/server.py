"""The server, in a thread of the test's own process, registered through APIServices of ExternalName Services."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from concerto.api.selector_text import parse_selector
from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.pki import Authority
from e2e.testbed.metrics_api.aggregation import register, unregister
from e2e.testbed.metrics_api.readings import PodReading, Readings
from e2e.testbed.waiting import PATIENCE_SECONDS

_APIS = {"metrics.k8s.io": "v1beta1", "custom.metrics.k8s.io": "v1beta2", "external.metrics.k8s.io": "v1beta1"}


class MetricsAPI:
    """Serves `readings`, which a test replaces whenever it wants.

    Attributes:
        readings: what is said from now on.
        requests: how often each API group was asked for readings.
    """

    def __init__(self, cluster: Cluster, work_dir: Path) -> None:
        """Nothing listens before it is entered."""
        self.readings = Readings()
        self.requests: Counter[str] = Counter()
        self._cluster = cluster
        self._work_dir = work_dir
        self._loop = asyncio.new_event_loop()
        self._port = 0

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE_SECONDS), "the metrics API did not start"
        register(self._cluster, "metrics-api", self._port, _APIS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unregister(self._cluster, _APIS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        started.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        certificate, key = Authority(self._work_dir / "metrics-api-pki").server("metrics-api")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        app = web.Application(middlewares=[self._trouble])
        for group, version in _APIS.items():
            app.router.add_get(f"/apis/{group}/{version}", _discovery(group, version))
        app.router.add_get("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods", self._pods)
        app.router.add_get(
            "/apis/custom.metrics.k8s.io/v1beta2/namespaces/{namespace}/{resource}/{name}/{metric}", self._custom
        )
        app.router.add_get("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}", self._external)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        await web.SockSite(runner, listener, ssl_context=context).start()

    @web.middleware
    async def _trouble(self, request: web.Request, handler: Any) -> web.StreamResponse:
        group = request.path.split("/")[2] if request.path.count("/") > 2 else ""
        if "/namespaces/" in request.path:
            self.requests[group] += 1
            if group in self.readings.broken:
                return web.json_response({"kind": "Status", "status": "Failure", "message": "broken"}, status=500)
            if group in self.readings.hanging:
                await asyncio.sleep(3600)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _pods(self, request: web.Request) -> web.Response:
        selector = parse_selector(request.query.get("labelSelector", ""))
        now = _now()
        return web.json_response(
            {
                "kind": "PodMetricsList",
                "apiVersion": "metrics.k8s.io/v1beta1",
                "metadata": {},
                "items": [
                    {
                        "metadata": {"name": name, "namespace": namespace, "labels": dict(reading.labels)},
                        "timestamp": now,
                        "window": reading.window,
                        "containers": [{"name": c, "usage": dict(u)} for c, u in reading.containers.items()],
                    }
                    for (namespace, name), reading in self.readings.pods.items()
                    if namespace == request.match_info["namespace"]
                    and reading.containers
                    and selector.matches(reading.labels)
                ],
            }
        )

    async def _custom(self, request: web.Request) -> web.Response:
        namespace, resource, name, metric = (request.match_info[k] for k in ("namespace", "resource", "name", "metric"))
        readings = self.readings
        found: list[tuple[str, str]] = []
        if resource == "pods" and name == "*":
            selector = parse_selector(request.query.get("labelSelector", ""))

            def chosen(reading: PodReading) -> bool:
                return metric in reading.custom and selector.matches(reading.labels)

            found = [(n, r.custom[metric]) for (ns, n), r in readings.pods.items() if ns == namespace and chosen(r)]
        elif (value := readings.objects.get((namespace, resource, name, metric))) is not None:
            found = [(name, value)]
        if not found:
            return web.json_response(_status(404, f"no metric {metric} of {resource} {name}"), status=404)
        now = _now()
        return web.json_response(
            {
                "kind": "MetricValueList",
                "apiVersion": "custom.metrics.k8s.io/v1beta2",
                "metadata": {},
                "items": [
                    {
                        "describedObject": {"kind": "Pod", "namespace": namespace, "name": n},
                        "metric": {"name": metric},
                        "timestamp": now,
                        "value": v,
                    }
                    for n, v in found
                ],
            }
        )

    async def _external(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        now = _now()
        return web.json_response(
            {
                "kind": "ExternalMetricValueList",
                "apiVersion": "external.metrics.k8s.io/v1beta1",
                "metadata": {},
                "items": [
                    {"metricName": metric, "metricLabels": {}, "timestamp": now, "value": value}
                    for value in self.readings.external.get((namespace, metric), ())
                ],
            }
        )


def _discovery(group: str, version: str) -> Any:
    body = {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}",
        "resources": [{"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["list"]}]
        if group == "metrics.k8s.io"
        else [],
    }

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
