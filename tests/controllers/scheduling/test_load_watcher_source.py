"""A load watcher as a metric provider: both forms of its document, and each fault by its name."""

import pytest

from concerto.api.schedulingprofile import ProfileSettings
from concerto.controllers.scheduling.load_providers.poller import Wanted, build_source
from controllers.scheduling.test_load_providers import NOW, Providers, redirects, stalls
from support.faulty_server import faulty, hangs_up, says


def watched(nodes, end=900):
    window = {"duration": "15m", "start": end - 900, "end": end}
    return {"timestamp": end, "window": window, "source": "Prometheus", "data": {"NodeMetricsMap": nodes}}


def metric(kind, operator, value):
    return {"name": "x", "type": kind, "operator": operator, "rollup": "15m", "value": value}


A = {"metrics": [metric("CPU", "AVG", 25.0), metric("CPU", "STD", 5), metric("Memory", "Latest", 50)], "tags": {}}
NOT_ONE = "is not an answer of a load watcher"
TEXT = {"a": {"metrics": [metric("CPU", "AVG", "25")]}, "b": A}
TWICE = {"a": {"metrics": [metric("CPU", "AVG", 1), metric("CPU", "AVG", 2)]}}
WATCHERS = {
    "it answers": (says(200, watched({"a": A, "b": A})), "Answering", ""),
    "it has no metrics": (says(404, ""), "BadAnswer", "answered 404"),
    "it fails": (says(500, ""), "BadAnswer", "answered 500"),
    "it knows no node": (says(200, watched({})), "NoSeries", ""),
    "of other nodes": (says(200, watched({"x": A})), "NothingMatched", "'x'"),
    "sent elsewhere": (redirects, "BadAnswer", "answered 302"),
    "no answer in time": (stalls, "Timeout", "no answer within 0.2 s"),
    "the connection breaks": (hangs_up, "Unreachable", "disconnected"),
    "not JSON": (says(200, "<html>"), "BadAnswer", NOT_ONE),
    "a list": (says(200, [1]), "BadAnswer", NOT_ONE),
    "no window": (says(200, {"data": {}}), "BadAnswer", NOT_ONE),
    "metrics of another form": (says(200, watched({"a": {"metrics": "no"}})), "BadAnswer", NOT_ONE),
    "text for a number": (says(200, watched(TEXT)), "ValuesRejected", "1 NotANumber"),
    "above 110 %": (says(200, watched({"a": {"metrics": [metric("CPU", "AVG", 111)]}})), "ValuesRejected", "AboveOne"),
    "two of one node": (says(200, watched(TWICE)), "ValuesRejected", "1 Ambiguous"),
}


def by_watcher(server, timeout="30s"):
    provider = {"type": "LoadWatcher", "timeout": timeout, "loadWatcher": {"address": server.session.config.server}}
    return Wanted("packed", "uid", ProfileSettings.from_raw({"schedulerName": "packed", "metricProvider": provider}))


async def ask(server, wanted, providers):
    providers.use("packed", wanted)
    source = build_source(server.session, "concerto-system", wanted.settings, lambda: NOW)
    try:
        return await providers.ask("packed", wanted, source)
    finally:
        await source.close()


@pytest.mark.parametrize(("answer", "reason", "words"), WATCHERS.values(), ids=WATCHERS)
async def test_a_load_watcher_is_read_or_its_fault_has_a_name(answer, reason, words):
    async with faulty([answer]) as server:
        state = await ask(server, by_watcher(server, "200ms" if answer is stalls else "30s"), Providers(server))
        assert (state.condition.reason, set(server.seen)) == (reason, {"GET /watcher"})
        assert words in state.condition.message


KEP = {
    "timestamp": 1556987522,
    "window": {"duration": "15m", "start": 1556984522, "end": 1556985422},
    "source": "InfluxDB",
    "data": {
        "a": {"metrics": [{"name": "host.cpu.utilisation", "type": "cpu", "rollup": "AVG", "value": 25}]},
        "metadata": {"dataCenter": "data-center-2", "pool": "light-apps"},
        "tags": {},
    },
}


@pytest.mark.parametrize("document", [watched({"a": A}), KEP], ids=["upstream's form", "the proposal's form"])
async def test_both_forms_of_a_load_watcher_are_read(document):
    async with faulty([says(200, document)]) as server:
        wanted, providers = by_watcher(server), Providers(server)
        await ask(server, wanted, providers)
        asked = wanted.settings.load
        assert providers.seen.load.measured("cpu", "average", asked, slice(0, 1)).tolist() == [0.25]


async def test_a_load_watcher_that_repeats_itself_grows_old():
    async with faulty([says(200, watched({"a": A}))]) as server:
        wanted, providers = by_watcher(server), Providers(server)
        for _ in range(2):
            await ask(server, wanted, providers)
            providers.now += 60
        assert providers.seen.load.measured_at("packed", slice(0, 1)).tolist() == [NOW]
