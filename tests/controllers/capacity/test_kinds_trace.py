"""What the operator keeps of placement by kind, and what it answers."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.cli.node_traces import NodeTrace
from concerto.controllers.capacity.kinds_trace import KindsTrace, KindsTraceSettings
from support.scheduling_builders import GI, cluster_state, node, pod


def kept(cluster, moments=1):
    now = [100.0]
    trace = KindsTrace(cluster, lambda: now[0], KindsTraceSettings(kept=5))
    for _ in range(moments):
        trace.keep()
        now[0] += 2.0
    return trace, now


async def asked(trace, name):
    app = web.Application()
    app.router.add_routes(trace.routes())
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/debug/trace", params={"node": name})
        return (answer.status, await answer.json() if answer.status == 200 else await answer.text())


def of_kinds(cluster, share):
    """Pods like ``p`` are known to take that many cores."""
    kinds = NodeKinds()
    kinds.pod_ended(pod("p").kind, PodMeasurement(4.0 * share, 4.0, 4.0, 1.0 * GI, True), 0.0)
    cluster.kinds.set_table(kinds.table((), 0.0))


async def test_a_nodes_commitment_is_kept_over_time():
    cluster = cluster_state([node("n1"), node("n2")], [pod("p-1", nodeName="n2")])
    of_kinds(cluster, 0.5)
    trace, now = kept(cluster)
    cluster.set_pod(pod("p-2", nodeName="n2"), now[0])
    trace.keep()
    status, raw = await asked(trace, "n2")
    assert status == 200
    found = NodeTrace.from_raw(raw)
    assert found.times == (100.0, 102.0)
    assert found.column("pods") == [1.0, 2.0]
    assert found.column("committed") == [0.5, 1.0]
    settings = cluster.kinds.loads.settings
    assert found.column("left") == pytest.approx([4 * settings.head_room - 0.5, 4 * settings.head_room - 1.0])
    assert found.column("tokens") == [settings.burst * 4 * settings.max_paced_seconds] * 2, (
        "what it may be given at most"
    )


async def test_a_node_that_is_not_known_and_a_standby_say_so():
    cluster = cluster_state([node("n1")])
    trace, _ = kept(cluster)
    assert (await asked(trace, "other"))[0] == 404
    standby, _ = kept(cluster, moments=0)
    status, text = await asked(standby, "n1")
    assert status == 404
    assert "only the leading operator" in text


async def test_a_node_on_the_row_of_one_that_is_gone_has_none_of_its_numbers():
    cluster = cluster_state([node("gone")])
    trace, _ = kept(cluster, moments=2)
    cluster.remove_node("gone")
    cluster.set_node(node("new"))
    assert cluster.row_of == {"new": 0}
    assert (await asked(trace, "gone"))[0] == 404
    assert (await asked(trace, "new"))[0] == 404, "nothing has been kept of it yet"
    trace.keep()
    assert [row[0] for row in (await asked(trace, "new"))[1]["rows"]] == [104.0]
