"""`concerto top node`: kinds on a node, and the laws' numbers as tables and as a picture."""

from __future__ import annotations

import argparse
import json
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.capacity.trace import AGENT_COLUMNS, KIND_COLUMNS, Trace
from concerto.cli import top
from concerto.cli.node_traces import NodeTrace, TraceError, Where, read_traces
from concerto.cli.top_node import kinds_table, plot_traces, trace_tables
from support.scheduling_builders import GI, cluster_state, node, pod

MIDNIGHT = 1_800_000_000.0


def traced(columns, moments, node="n1", **numbers):
    """The answer of a /debug/trace with that many seconds; every other number is NaN."""
    trace = Trace(columns, kept=1000)
    for second in range(moments):
        trace.add(MIDNIGHT + second, {c.name: numbers.get(c.name, float("nan")) for c in columns})
    return trace.document(node, trace.rows(0))


def agent(moments=20, **numbers):
    return NodeTrace.from_raw(traced(AGENT_COLUMNS, moments, **numbers))


def operator(moments=20, **numbers):
    return NodeTrace.from_raw(traced(KIND_COLUMNS, moments, **numbers))


def test_both_laws_have_a_table_with_units_and_what_is_unknown(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    text = trace_tables(
        agent(1, pods=3, window=2.5, cpu=0.97, tokens=-0.25), operator(1, committed=0.5, memoryLeft=-1.5 * GI)
    )
    assert text.splitlines() == [
        "PODS AS UNITS, by the node's agent",
        "AT        PODS  WINDOW  DEMAND  CPU  TOKENS  CAPACITY  PUBLISHED  SHARE",
        "08:00:00  3     2.50    -       97%  -0.25   -         -          -",
        "",
        "BY KIND, by the operator",
        "AT        PODS  COMMITTED  LEFT  HEAD ROOM  TOKENS  SYSTEM  MEMORY LEFT",
        "08:00:00  -     0.50       -     -          -       -       -1.5Gi",
    ]


def test_a_line_stands_for_the_last_moment_of_each_stretch_of_time():
    trace = agent(25)
    assert [at - MIDNIGHT for at in trace.every(10.0, 0.0).times] == [9.0, 19.0, 24.0]
    assert [at - MIDNIGHT for at in trace.every(10.0, MIDNIGHT + 15).times] == [19.0, 24.0]


def test_nothing_kept_yet_is_said():
    assert trace_tables(agent(0), operator(0)).count("Nothing has been kept yet.") == 2


def test_kinds_on_a_node_are_listed_with_what_one_of_their_pods_costs():
    there = [pod("burn-1", nodeName="n1"), pod("burn-2", nodeName="n1"), pod("other-1", nodeName="n2")]
    cluster = cluster_state([node("n1"), node("n2")], there)
    kinds = NodeKinds()
    kinds.pod_ended(pod("burn-3").kind, PodMeasurement(2.0, 4.0, 4.0, 2.0 * GI, True), 0.0)
    cluster.kinds.set_table(kinds.table((), 0.0))
    lines = kinds_table(cluster, "n1").splitlines()
    assert len(lines) == 2
    assert lines[1].split()[0].startswith("default/Pod/burn@")
    assert lines[1].split()[1:4] == ["2", "500m", "2"]
    assert lines[1].endswith("1 pod that has ended")
    assert "node n3" in kinds_table(cluster, "n3")


def test_the_picture_is_written(tmp_path):
    path = tmp_path / "plots" / "n1.svg"
    plot_traces(path, "n1", agent(pods=3, window=2.5), operator(committed=0.5))
    assert path.read_text().lstrip().startswith("<?xml")
    plot_traces(tmp_path / "empty.png", "n1", agent(0), operator(0))


async def served(answer, read):
    """Have an endpoint answer with that text, and read both traces from it."""

    async def handler(request: web.Request) -> web.Response:
        assert request.query["node"] == "n1"
        return web.Response(text=answer, content_type="application/json")

    app = web.Application()
    app.router.add_get("/debug/trace", handler)
    async with TestServer(app) as server:
        return await read(str(server.make_url("")))


async def test_traces_are_read_from_addresses_as_well():
    answer = json.dumps(traced(AGENT_COLUMNS, 2, pods=3))
    both = await served(answer, lambda url: read_traces(None, "n1", Where("concerto-system", url, url)))
    assert [trace.column("pods") for trace in both] == [[3.0, 3.0]] * 2


UNUSABLE = {
    "no JSON": ("<html>", "Expecting value"),
    "something else": ('{"node": "n1"}', "does not answer /debug/trace with a trace"),
    "a short row": (
        json.dumps({**traced(AGENT_COLUMNS, 1), "rows": [[1.0, 2.0]]}),
        "does not answer /debug/trace with a trace",
    ),
    "another node": (json.dumps(traced(AGENT_COLUMNS, 1, node="n2")), "answers about node n2, not n1"),
}


@pytest.mark.parametrize(("answer", "message"), UNUSABLE.values(), ids=UNUSABLE)
async def test_an_answer_that_is_no_trace_of_the_node_is_refused_with_a_sentence(answer, message):
    with pytest.raises(TraceError, match=message):
        await served(answer, lambda url: read_traces(None, "n1", Where("concerto-system", url, url)))


async def test_an_address_that_is_none_and_one_where_nobody_listens_are_refused_with_a_sentence():
    for address, message in (("127.0.0.1:1", "is not an address such as"), ("http://127.0.0.1:1", "refused")):
        with pytest.raises(TraceError, match=message):
            await read_traces(None, "n1", Where("concerto-system", address, address))


ARGUMENTS = {
    "a node without its name": (["node"], "concerto top node NODE"),
    "a name without node": (["--trace"], "concerto top node NODE --trace"),
    "a plot of a node without its trace": (["node", "n1", "--plot", "a.png"], "node NODE --trace --plot FILE"),
    "a plot of what the terminal shows": (["cpus", "n1", "--plot", "a.png"], "cpus is drawn in the terminal"),
    "an agent's address without a trace": (["node", "n1", "--agent", "http://a"], "node NODE --trace"),
    "an operator's address without a node": (["--operator", "http://a"], "node NODE --trace"),
    "an earlier dump without a plot": (["--before", "a.json"], "concerto top --plot FILE --before DUMP"),
    "an earlier dump of a node": (["phpa", "a/b", "--plot", "a.png", "--before", "a.json"], "--before DUMP"),
}


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_do_not_go_together_are_refused(arguments, message, capsys):
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    assert top.run(parser.parse_args(arguments)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("duration", ["0s", "soon"])
def test_a_duration_that_is_none_is_refused(duration):
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["node", "n1", "--trace", "--every", duration])
