"""A request that could not be sent is not sent later: not after its timeout, nor after its process has ended.

The kernel keeps what a process has written, and goes on sending it when the network is back. A binding that arrives
then meets another leader's decisions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from e2e.testbed import REPOSITORY
from e2e.testbed.network import Network
from e2e.testbed.requirements import require_network

CLIENT = """
import asyncio, os, sys
from concerto.kube import ClusterConfig, KubeError, Session
server, end = sys.argv[1:]

async def main():
    session = await Session.open(ClusterConfig(server))
    await session.get("/version")  # a connection that is warm, as that of a busy scheduler
    print("warm", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        # stopped processes close nothing, and their timeouts do not fire
        await session.create("/binding", {}, timeout_seconds=1 if end != "stops" else 3600)
    except KubeError as error:
        print(type(error).__name__, flush=True)
    if end == "exits":
        os._exit(3)
    await asyncio.Event().wait()

asyncio.run(main())
"""
USER_TIMEOUT_SECONDS = 4


class Server(ThreadingHTTPServer):
    """Answers everything with {}, and writes down what it was asked."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        self.asked: list[str] = []
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = _answer

    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def network() -> Iterator[Network]:
    with require_network() as opened:
        yield opened


@pytest.fixture
def server(network: Network) -> Iterator[Server]:
    opened = Server((network.host, 0))
    Thread(target=opened.serve_forever, daemon=True).start()
    yield opened
    opened.shutdown()


@pytest.mark.parametrize("end", ["exits", "lives on", "stops"])
def test_what_was_not_sent_in_time_is_never_sent(network: Network, server: Server, end: str) -> None:
    command = [sys.executable, "-c", CLIENT, f"http://{network.host}:{server.server_port}", end]
    client = subprocess.Popen(
        network.wrap(command), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert client.stdin is not None and client.stdout is not None
    try:
        assert client.stdout.readline() == "warm\n"
        network.drop_outgoing()
        client.stdin.write("\n")
        client.stdin.flush()
        began = time.monotonic()
        if end == "stops":
            time.sleep(1)  # it has written by then
            client.send_signal(signal.SIGSTOP)
            time.sleep(USER_TIMEOUT_SECONDS + 3)
        else:
            assert client.stdout.readline() == "OutcomeUnknown\n"
            time.sleep(1)
        network.mend()
        # The kernel tries after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s: once more at least by then
        time.sleep(2 * (time.monotonic() - began) + 3)
        assert server.asked == ["GET /version"]
    finally:
        client.kill()
        client.wait()


def test_a_lossy_network_only_delays(network: Network, server: Server) -> None:
    """Sockets that give up after 4 s without an acknowledgement must not give up for a few lost packets."""
    script = """
import asyncio, sys
from concerto.kube import ClusterConfig, Session

async def main():
    async with await Session.open(ClusterConfig(sys.argv[1])) as session:
        for number in range(100):
            await session.get(f"/{number}")

asyncio.run(main())
"""
    network.lose(0.05)  # a connection gives up after three lost attempts: at a loss of 0.1, 1 of 150 did
    command = network.wrap([sys.executable, "-c", script, f"http://{network.host}:{server.server_port}"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert {f"GET /{number}" for number in range(100)} <= set(server.asked)
