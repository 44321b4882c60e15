"""The plugin stays registered: whatever runtime comes, goes, hangs or speaks nonsense on the socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from concerto_agent.nri.client import NriClient, NriSettings
from concerto_agent.nri.frames import RESPONSE, RUNTIME_CONNECTION, Message, encode
from concerto_agent.nri.messages import Failure, Runtime, build_failure
from concerto_agent.nri.session import CpusetChange
from support.nri_runtime import Peer, container, runtime
from support.waiting import eventually


@asynccontextmanager
async def plugin(socket: Path, **settings: float) -> AsyncIterator[NriClient]:
    client = NriClient(NriSettings(socket, **{"max_wait_seconds": 0.05} | settings), lambda *_: CpusetChange("1", "0"))
    running = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def register(peer: Peer) -> None:
    await peer.register()


async def test_it_registers_as_soon_as_there_is_a_runtime_and_answers(tmp_path):
    answers: asyncio.Queue[str] = asyncio.Queue()

    async def serve(peer: Peer) -> None:
        await peer.register()
        answers.put_nowait((await peer.call("CreateContainer", container("uid", "main"))).message(1, 6, 2, 2).text(6))

    async with plugin(tmp_path / "nri" / "nri.sock") as client:
        await asyncio.sleep(0)
        assert client.runtime is None
        (tmp_path / "nri").mkdir()
        async with runtime(tmp_path / "nri" / "nri.sock", serve):
            assert await answers.get() == "1"
            assert client.runtime == Runtime("containerd")
        await eventually(lambda: client.runtime is None)


async def test_it_registers_again_with_a_runtime_that_is_restarted(tmp_path):
    async with plugin(tmp_path / "nri.sock") as client:
        for start in (1, 2, 3):
            async with runtime(tmp_path / "nri.sock", register):
                await eventually(lambda start=start: client.connections == start)
            await eventually(lambda: client.runtime is None)


async def hang(peer: Peer) -> None:
    await peer.receive()


async def nonsense(peer: Peer) -> None:
    peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def refuse(peer: Peer) -> None:
    await peer.receive()
    refusal = build_failure(Failure(2, "invalid plugin name"))
    peer.writer.write(encode(RUNTIME_CONNECTION, Message(1, RESPONSE, refusal)))


async def leave(peer: Peer) -> None:
    peer.writer.close()


@pytest.mark.parametrize(
    ("serve", "said"),
    [(hang, "in time"), (nonsense, "longer"), (refuse, "invalid plugin name"), (leave, "ended the connection")],
    ids=["it hangs", "it is no NRI", "it refuses the plugin", "it hangs up"],
)
async def test_a_runtime_that_takes_no_plugin_is_tried_again_and_reported_once(tmp_path, caplog, serve, said):
    attempts = 0

    async def counted(peer: Peer) -> None:
        nonlocal attempts
        attempts += 1
        await serve(peer)

    with caplog.at_level(logging.WARNING):
        async with (
            runtime(tmp_path / "nri.sock", counted),
            plugin(tmp_path / "nri.sock", registration_seconds=0.05) as client,
        ):
            await eventually(lambda: attempts >= 3)
            assert client.runtime is None
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("concerto_agent.nri")]
    assert len(warnings) == 1 and said in warnings[0]


async def test_no_runtime_is_no_problem(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        async with plugin(tmp_path / "absent" / "nri.sock", max_wait_seconds=0.001):
            for _ in range(50):
                await asyncio.sleep(0.001)
    assert not caplog.records


async def test_of_two_agents_on_a_node_one_registers_and_the_other_follows_it(tmp_path, caplog):
    socket = tmp_path / "nri.sock"
    with caplog.at_level(logging.WARNING):
        async with runtime(socket, register), plugin(socket) as second:
            async with asyncio.timeout(20):
                await eventually(lambda: second.runtime)
            async with plugin(socket) as third:
                await eventually(lambda: any("another agent" in r.getMessage() for r in caplog.records))
                assert (second.runtime, third.runtime) == (Runtime("containerd"), None)
        async with runtime(socket, register), plugin(socket) as fourth:
            await eventually(lambda: fourth.runtime)
