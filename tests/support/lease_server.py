"""An API server that knows Leases alone, in a thread of its own: a test may block its event loop."""

from __future__ import annotations

import asyncio
import copy
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from concerto.kube import ClusterConfig, Session

Object = dict[str, Any]


class LeaseServer:
    """Stores one Lease, with optimistic concurrency.

    Attributes:
        lease: the Lease as stored; a test may take it away.
        silent: names of clients whose requests get no answer.
        writes: (client, holderIdentity) of each write that was taken, in order.
    """

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.silent: set[str] = set()
        self.writes: list[tuple[str, str]] = []
        self._version = 0
        self._port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def config(self, client: str) -> ClusterConfig:
        """The way of one client to this server."""
        return ClusterConfig(f"http://127.0.0.1:{self._port}/{client}")

    def session(self, client: str) -> Any:
        """A session of that client, to be entered."""
        return Session.open(self.config(client))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{client}/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        client = request.match_info["client"]
        if client in self.silent:
            await asyncio.sleep(3600)
        if request.method == "GET":
            return web.json_response(self.lease) if self.lease else self._refuse(404, "NotFound")
        body = await request.json()
        if request.method == "POST" and self.lease is not None:
            return self._refuse(409, "AlreadyExists")
        if request.method == "PUT" and self.lease is None:
            return self._refuse(404, "NotFound")
        if request.method == "PUT" and body["metadata"].get("resourceVersion") != str(self._version):
            return self._refuse(409, "Conflict")
        self._version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        self.writes.append((client, body["spec"]["holderIdentity"]))
        return web.json_response(self.lease)

    def _refuse(self, code: int, reason: str) -> web.Response:
        return web.json_response({"kind": "Status", "code": code, "reason": reason}, status=code)
