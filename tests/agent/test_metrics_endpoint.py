"""What the agent's HTTP endpoint answers."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import numpy as np

from concerto.capacity.trace import AGENT_COLUMNS, Trace
from concerto.cli.node_traces import NodeTrace
from concerto_agent import metrics
from concerto_agent.metrics import Binds, Counters, Gauges


async def test_the_trace_is_served_as_it_is_at_the_time():
    trace = Trace(AGENT_COLUMNS, kept=10)
    answer = lambda: json.dumps(trace.document("n1", trace.rows(0)))  # noqa: E731
    (server,) = await metrics.serve(Binds("127.0.0.1:0"), Counters(), Gauges(), lambda: None, answer, None)
    try:
        url = f"http://127.0.0.1:{server.port}/debug/trace"
        read = lambda: json.loads(urllib.request.urlopen(url, timeout=10).read())  # noqa: E731
        assert NodeTrace.from_raw(await asyncio.to_thread(read)).times == ()
        trace.add(1.0, {column.name: np.array([2.0]) for column in AGENT_COLUMNS})
        assert NodeTrace.from_raw(await asyncio.to_thread(read)).column("window") == [2.0]
    finally:
        await server.cleanup()
