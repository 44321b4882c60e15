"""Metric providers at their worst: what each fault is called, what is kept, and what is said of it."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from dataclasses import replace

import orjson
import pytest

from concerto.api.metric_provider import PrometheusQuery
from concerto.api.node import NodeView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.controllers.runtime.http_source import Response, prometheus_error
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.scheduling.load_providers import metrics_server
from concerto.controllers.scheduling.load_providers.load_watcher import LoadWatcherSource, read_watcher
from concerto.controllers.scheduling.load_providers.metrics_server import MetricsServerSource, read_node_metrics
from concerto.controllers.scheduling.load_providers.poller import LoadProviders, Wanted, build_source
from concerto.controllers.scheduling.load_providers.prometheus import read_vector, without_port
from concerto.controllers.scheduling.load_providers.source import Answer, SourceError
from concerto.controllers.scheduling.load_providers.state import ProviderState, answered_state
from concerto.kube.events import EventRecorder
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.provided_load import Joined, Series
from support.decoding_turns import decoding_turns
from support.faulty_server import Faulty, faulty, hangs_up, refuses, resets, says
from support.traced_memory import traced_memory

NOW = 1000.0
QUERIES = {"cpu": {"average": "cpu", "standardDeviation": "deviation"}, "memory": {"average": "memory"}}


def vector(*samples, label="node", at=500.0):
    """An answer: (node, value) each."""
    result = [{"metric": {label: n}, "value": [at, v]} for n, v in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


GOOD = vector(("a", "0.25"), ("b:9100", "0.5"))


def settings(server: Faulty, *, timeout="30s", queries=QUERIES, **more) -> ProfileSettings:
    """A profile whose Prometheus is that server."""
    prometheus = {"address": server.session.config.server, "queries": queries} | more
    provider = {"type": "Prometheus", "timeout": timeout, "prometheus": prometheus}
    return ProfileSettings.from_raw({"schedulerName": "packed", "metricProvider": provider})


def cluster() -> ClusterState:
    made = ClusterState()
    for name in ("a", "b"):
        made.set_node(NodeView(name, f"uid-{name}", {}, {"cpu": 4000}, capacity={"cpu": 4000, "memory": 2**33}))
    return made


class Providers(LoadProviders):
    """With its cluster, its metrics and a clock that is set."""

    def __init__(self, server: Faulty) -> None:
        self.now, self.seen, self.counted = NOW, cluster(), Metrics()
        self.recorder = EventRecorder(server.session, component="test", instance="test")
        super().__init__(server.session, "concerto-system", self.seen, self.recorder, self.counted, lambda: self.now)

    def value(self, name: str, **labels: str) -> float | None:
        return self.counted.registry.get_sample_value(name, labels)


def serve(answers):
    """By query: an answer to give."""

    async def answer(request):
        return await answers[request.query["query"]](request)

    return answer


def all_queries(answer):
    return {"cpu": answer, "deviation": answer, "memory": answer}


async def stalls(request):
    await asyncio.sleep(60)


async def redirects(request):
    return await says(302, "", {"Location": "http://elsewhere.invalid/"})(request)


async def ask(server: Faulty, wanted: Wanted, providers: Providers | None = None) -> ProviderState:
    providers = providers or Providers(server)
    providers.use("packed", wanted)
    source = build_source(server.session, "concerto-system", wanted.settings, lambda: NOW)
    try:
        return await providers.ask("packed", wanted, source)
    finally:
        await source.close()


BROKEN = {"status": "error", "errorType": "bad_data", "error": "1:5: parse error: unexpected end of input"}
JSON = {"Content-Type": "application/json"}
FAULTS = {
    "no answer in time": (stalls, "Timeout", "no answer within 0.2 s"),
    "the connection breaks before the answer": (hangs_up, "Unreachable", "disconnected"),
    "the connection breaks within the answer": (resets, "Unreachable", ""),
    "401": (says(401, "no"), "Unauthorized", "missing or wrong"),
    "403": (says(403, "no"), "Unauthorized", "missing or wrong"),
    "sent elsewhere, where the token must not go": (redirects, "BadAnswer", "a redirection"),
    "a query that is not PromQL": (says(400, BROKEN, JSON), "QueryFailed", "unexpected end of input"),
    "a proxy's error": (says(502, "<html>"), "BadAnswer", "answered 502"),
    "not JSON": (says(200, "<html>"), "BadAnswer", "not an answer of Prometheus"),
    "JSON of something else": (says(200, ["x"]), "BadAnswer", "not an answer of Prometheus"),
    "a value that is no text of a number": (says(200, vector(("a", "much"))), "BadAnswer", "much"),
    "lists without end": (says(200, "[" * 100_000), "BadAnswer", "not an answer of Prometheus"),
    "a time that is no time": (says(200, vector(("a", "1"), at=10**400)), "BadAnswer", "not an answer of Prometheus"),
    "a value without end": (says(200, vector(("a", "x" * 100_000))), "BadAnswer", "x…"),
    "words without end": (says(400, {"error": "no! " * 100_000}, JSON), "QueryFailed", "no! no!"),
    "words that a terminal obeys": (says(400, {"error": "\x1b[2Jgone\n"}, JSON), "QueryFailed", ": �[2Jgone�."),
    "an error that is nested without end": (says(400, "[" * 60_000, JSON), "BadAnswer", "answered 400, which is not"),
    "a name without end": (says(200, vector(("x" * 100_000, "1"))), "NothingMatched", "'xxx"),
    "a series for each core of each node": (
        says(200, {"data": {"resultType": "vector", "result": [0] * 50_001}}),
        "BadAnswer",
        "returns 50001 series: the query must return one for each node",
    ),
    "a part of the data": (says(200, GOOD | {"isPartial": True}), "BadAnswer", "lacks a part of the data (isPartial)"),
    "the rest of the data beside a remote read that fails": (
        says(200, GOOD | {"warnings": ["remote_read: server returned HTTP status 500"]}),
        "BadAnswer",
        "may lack a part of the data: remote_read: server returned HTTP status 500",
    ),
    "more than any cluster's": (says(200, " " * (17 * 2**20)), "BadAnswer", "more than 16 MiB"),
    "a scalar": (says(200, {"data": {"resultType": "scalar", "result": [1, "1"]}}), "BadAnswer", "returns a scalar"),
    "no series": (says(200, vector()), "NoSeries", "returned no series"),
    "another label": (says(200, vector(("a", "0.5"), label="host")), "NothingMatched", "nodeLabel"),
    "series of nobody we know": (says(200, vector(("x", "0.5"), ("y", "0.5"))), "NothingMatched", "'x', 'y'"),
    "not a number": (says(200, vector(("a", "NaN"), ("b", "0.5"))), "ValuesRejected", "3 NotANumber"),
    "infinite": (says(200, vector(("a", "+Inf"), ("b", "0.5"))), "ValuesRejected", "3 NotANumber"),
    "negative": (says(200, vector(("a", "-0.5"), ("b", "0.5"))), "ValuesRejected", "3 Negative"),
    "in percent": (says(200, vector(("a", "25"), ("b", "50"))), "ValuesRejected", "6 AboveOne"),
    "a series for each core": (says(200, vector(("a", "0.5"), ("a", "0.1"))), "ValuesRejected", "3 Ambiguous"),
}


@pytest.mark.parametrize(("answer", "reason", "words"), FAULTS.values(), ids=FAULTS)
async def test_a_fault_has_a_name_a_sentence_a_counter_and_leaves_the_last_answer(answer, reason, words):
    async with faulty([serve(all_queries(says(200, GOOD)))]) as server:
        # Only a provider that stalls must not be waited for: others take what they need on a busy machine
        wanted = Wanted("packed", "uid", settings(server, timeout="200ms" if answer is stalls else "30s"))
        providers = Providers(server)
        providers.use("packed", wanted)
        patient = build_source(server.session, "concerto-system", settings(server), lambda: NOW)
        assert (await providers.ask("packed", wanted, patient)).condition.reason == "Answering"
        await patient.close()
        server.script = [serve(all_queries(answer))]
        providers.now += 15
        state = await ask(server, wanted, providers)
        assert (state.condition.type, state.condition.status) == ("ProviderReady", "False")
        assert state.condition.reason == reason
        assert words in state.condition.message
        assert len(state.condition.message) < 1024
        measured = providers.seen.load.measured("cpu", "average", wanted.settings.load, slice(0, 2))
        rejected = reason == "ValuesRejected"
        assert measured[1] == 0.5 or (rejected and "AboveOne" in words)
        assert (measured[0] == 0.25) is not rejected
        counted = sum(
            providers.value("concerto_metric_provider_rejected_total", profile="packed", reason=r) or 0
            for r in ("NotANumber", "Negative", "AboveOne", "Ambiguous")
        )
        assert (counted > 0) is rejected


async def test_one_query_of_many_fails_and_the_others_are_used():
    async with faulty([serve(all_queries(says(200, GOOD)))]) as server:
        wanted, providers = Wanted("packed", "uid", settings(server)), Providers(server)
        await ask(server, wanted, providers)
        answers = all_queries(says(200, vector(("a", "0.75"), ("b", "0.75"), at=515.0)))
        server.script = [serve(answers | {"deviation": says(422, {"error": "query timed out"}, JSON)})]
        providers.now += 15
        state = await ask(server, wanted, providers)
        assert state.condition.reason == "QueriesFailed"
        assert "1 of 3 queries failed (cpu.standardDeviation: QueryFailed, query timed out)" in state.condition.message
        load, asked = providers.seen.load, wanted.settings.load
        assert load.measured("cpu", "average", asked, slice(0, 2), providers.now).tolist() == [0.75, 0.75]
        assert load.measured("cpu", "deviation", asked, slice(0, 2), NOW).tolist() == [0.25, 0.5]


async def test_queries_are_asked_at_once_with_the_headers_that_the_profile_names():
    received, all_asked = [], asyncio.Barrier(3)

    async def answer(request):
        received.append((request.path, request.query["query"], request.headers["X-Scope-OrgID"]))
        assert (request.query["partial_response"], request.query["deny_partial_response"]) == ("false", "1")
        await all_asked.wait()
        return await says(200, GOOD)(request)

    async with faulty([answer]) as server:
        headers = [{"name": "X-Scope-OrgID", "value": "nodes"}]
        state = await ask(server, Wanted("packed", "uid", settings(server, headers=headers)))
        assert state.condition.status == "True"
    assert sorted(received) == [("/api/v1/query", q, "nodes") for q in ("cpu", "deviation", "memory")]


def secret(**data: str):
    encoded = {k.replace("_", "."): base64.b64encode(v.encode()).decode() for k, v in data.items()}
    return says(200, {"kind": "Secret", "data": encoded})


BEARER, CA = {"authorization": {"key": "token"}}, {"tls": {"caKey": "ca.crt"}}
SECRETS = {
    "there is no Secret": (
        BEARER,
        refuses(404, "NotFound"),
        "SecretMissing",
        "there is no Secret concerto-system/other",
    ),
    "the key is not in it": (BEARER, secret(else_="x"), "SecretMissing", "has no key token"),
    "nothing is in it": (BEARER, secret(token=""), "SecretMissing", "has no key token"),
    "the Role does not allow it": (BEARER, refuses(403, "Forbidden"), "SecretForbidden", "Role"),
    "the API server does not answer": (BEARER, hangs_up, "SecretUnreadable", "Secret concerto-system/other"),
    "it is not base64": (BEARER, says(200, {"data": {"token": "?"}}), "SecretUnreadable", "other"),
    "a token that no header can hold": (BEARER, secret(token="two\nlines"), "SecretUnreadable", "token"),
    "a CA that is not PEM": (CA, secret(ca_crt="hello"), "InvalidCA", "no certificates in PEM"),
    "a CA that is broken": (
        CA,
        secret(ca_crt="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
        "InvalidCA",
        "no certificates in PEM",
    ),
}


@pytest.mark.parametrize(("uses", "answer", "reason", "words"), SECRETS.values(), ids=SECRETS)
async def test_a_secret_that_is_no_good_has_a_name_and_nothing_is_asked(uses, answer, reason, words):
    async with faulty([answer]) as server:
        state = await ask(server, Wanted("packed", "uid", settings(server, secretName="other", **uses)))
        assert state.condition.reason == reason
        assert words in state.condition.message
        assert {line.split("?")[0] for line in server.seen} == {"GET /api/v1/namespaces/concerto-system/secrets/other"}


@pytest.mark.parametrize(
    ("kind", "sent"), [("Bearer", "Bearer s3cret"), ("Basic", f"Basic {base64.b64encode(b's3cret').decode()}")]
)
async def test_what_the_secret_holds_is_sent_and_read_afresh_each_time(kind, sent):
    received = []

    async def answer(request):
        if request.path.endswith("concerto-prometheus"):
            return await secret(token="s3cret\n" if not received else "newer")(request)
        received.append(request.headers["Authorization"])
        return await says(200, GOOD)(request)

    async with faulty([answer]) as server:
        more = {"authorization": {"type": kind}, "queries": {"cpu": {"latest": "cpu"}}}
        wanted = Wanted("packed", "uid", settings(server, **more))
        for _ in range(2):
            await ask(server, wanted)
    assert received[0] == sent
    assert received[1] != sent


async def test_an_answer_is_reported_once_and_a_recovery_as_well():
    async with faulty([serve(all_queries(stalls))]) as server:
        wanted = Wanted("packed", "uid", settings(server, timeout="100ms"))
        wanted = replace(
            wanted,
            settings=replace(
                wanted.settings, metric_provider=replace(wanted.settings.metric_provider, interval_seconds=0.05)
            ),
        )
        providers = Providers(server)
        reported, changes = [], asyncio.Event()
        providers.recorder.record = lambda about, **said: reported.append((about["metadata"]["name"], said["reason"]))
        providers.on_change = changes.set
        providers.use("packed", wanted)
        assert providers.state("packed").condition.reason == "NotAsked"
        running = asyncio.create_task(providers.run())
        async with asyncio.timeout(20):
            await changes.wait()
            assert providers.state("packed").condition.reason == "Timeout"
            await server.asked(9)  # it goes on asking, and says no more
            assert reported == [("packed", "MetricProviderFailed")]
            server.script = [serve(all_queries(says(200, GOOD)))]
            while providers.state("packed").condition.status != "True":  # an answer under way may fail otherwise first
                changes.clear()
                await changes.wait()
        assert reported[-1] == ("packed", "MetricProviderRecovered")
        assert [reason for _, reason in reported].count("MetricProviderRecovered") == 1
        assert providers.value("concerto_metric_provider_polls_total", profile="packed", result="Timeout") >= 3
        providers.use("packed", None)
        assert providers.state("packed").condition.reason == "Agents"
        assert providers.value("concerto_metric_provider_polls_total", profile="packed", result="Timeout") is None
        running.cancel()


async def test_a_slow_provider_keeps_nobody_waiting_but_itself():
    async def of_packed_only(request):
        if request.query["query"] == "cpu":
            await stalls(request)
        return await says(200, GOOD)(request)

    async with faulty([of_packed_only]) as server:
        providers, changed = Providers(server), asyncio.Event()
        providers.on_change = changed.set
        providers.use("packed", Wanted("packed", "uid", settings(server, timeout="60s")))
        quick = settings(server, queries={"memory": {"latest": "memory"}})
        providers.use("quick", Wanted("quick", "uid", quick))
        running = asyncio.create_task(providers.run())
        async with asyncio.timeout(20):
            await changed.wait()
        assert providers.state("quick").condition.reason == "Answering"
        assert providers.state("packed").condition.reason == "NotAsked"
        running.cancel()


async def test_an_edit_of_what_is_asked_makes_void_what_was_said_and_any_other_does_not():
    async with faulty([serve(all_queries(says(200, GOOD)))]) as server:
        wanted, providers = Wanted("packed", "uid", settings(server)), Providers(server)
        await ask(server, wanted, providers)
        load, asked = providers.seen.load, wanted.settings.load
        providers.use("packed", replace(wanted, settings=replace(wanted.settings, admit_fraction=0.5)))
        assert load.measured("cpu", "average", asked, slice(0, 2)).tolist() == [0.25, 0.5]
        providers.use("packed", Wanted("packed", "uid", settings(server, nodeLabel="other")))
        assert str(load.measured("cpu", "average", asked, slice(0, 2)).tolist()) == "[nan, nan]"


async def test_what_was_asked_before_an_edit_is_no_answer_after_it():
    async with faulty([]) as server:
        wanted, providers = Wanted("packed", "uid", settings(server)), Providers(server)
        edited = Wanted("packed", "uid", settings(server, nodeLabel="instance"))

        async def answer(request):
            providers.use("packed", edited)
            return await says(200, GOOD)(request)

        server.script = [serve(all_queries(answer))]
        state = await ask(server, wanted, providers)
        measured = providers.seen.load.measured("cpu", "average", edited.settings.load, slice(0, 2))
        assert str(measured.tolist()) == "[nan, nan]"
        assert state.condition.reason == providers.state("packed").condition.reason == "NotAsked"


# --- metrics.k8s.io


def metrics(*items):
    return {
        "items": [
            {"metadata": {"name": n}, "timestamp": at, "window": "10.5s", "usage": {"cpu": cpu, "memory": "2Gi"}}
            for n, cpu, at in items
        ]
    }


AT = "2026-03-01T12:00:00Z"


def test_node_metrics_are_amounts_with_their_own_window():
    cpu, memory = read_node_metrics(metrics(("a", "1500123456n", AT), ("b", "NaN", AT)))
    assert (cpu.name, memory.name, cpu.covered_seconds, cpu.amounts) == ("cpu.latest", "memory.latest", 10.5, True)
    assert cpu.values["a"][0] == pytest.approx(1500.123456)
    assert str(cpu.values["b"][0]) == "nan"
    assert memory.values["a"][0] == 2**31


async def test_what_is_wrong_with_one_node_leaves_the_others():
    async with faulty([says(200, metrics(("a", "1", "noon"), ("b", "1", AT)))]) as server:
        raw = {"schedulerName": "packed", "metricProvider": {"type": "KubernetesMetricsServer"}}
        wanted, providers = Wanted("packed", "uid", ProfileSettings.from_raw(raw)), Providers(server)
        state = await ask(server, wanted, providers)
        assert state.condition.reason == "ValuesRejected"
        measured = providers.seen.load.measured("cpu", "latest", wanted.settings.load, slice(0, 2))
        assert str(measured.tolist()) == "[nan, 0.25]"


SERVERS = {
    "it answers": (says(200, metrics(("a", "1", AT))), "Answering"),
    "it has none yet": (says(200, metrics()), "NoSeries"),
    "it is not installed": (refuses(404, "NotFound"), "NotServed"),
    "it is down": (refuses(503, "ServiceUnavailable"), "Unreachable"),
    "the operator may not": (refuses(403, "Forbidden"), "Unauthorized"),
    "no answer in time": (stalls, "Timeout"),
    "without a time": (says(200, {"items": [{"metadata": {"name": "a"}, "usage": {"cpu": "1"}}]}), "ValuesRejected"),
    "with a time that is not valid": (says(200, metrics(("a", "1", "noon"))), "ValuesRejected"),
    "without a name": (says(200, {"items": [{"usage": {"cpu": "1"}, "timestamp": AT}]}), "BadAnswer"),
    "a list of something else": (says(200, {"items": ["a"]}), "BadAnswer"),
    "not a number": (says(200, metrics(("a", "NaN", AT))), "ValuesRejected"),
    "more than there is": (says(200, metrics(("a", "9", AT))), "ValuesRejected"),
}


@pytest.mark.parametrize(("answer", "reason"), SERVERS.values(), ids=SERVERS)
async def test_metrics_server_is_read_or_its_fault_has_a_name(answer, reason):
    async with faulty([answer]) as server:
        timeout = "200ms" if answer is stalls else "30s"
        raw = {"schedulerName": "packed", "metricProvider": {"type": "KubernetesMetricsServer", "timeout": timeout}}
        state = await ask(server, Wanted("packed", "uid", ProfileSettings.from_raw(raw)))
        assert state.condition.reason == reason
        assert server.seen == ["GET /apis/metrics.k8s.io/v1beta1/nodes"]


def test_a_profile_has_the_source_of_its_type():
    raw = {"schedulerName": "x", "metricProvider": {"type": "KubernetesMetricsServer"}}
    assert isinstance(build_source(None, "ns", ProfileSettings.from_raw(raw), lambda: NOW), MetricsServerSource)
    raw["metricProvider"] = {"type": "LoadWatcher", "loadWatcher": {"address": "http://watcher:2020/"}}
    assert isinstance(build_source(None, "ns", ProfileSettings.from_raw(raw), lambda: NOW), LoadWatcherSource)


# --- windows of what metrics-server was polled for


async def test_metrics_server_gives_means_and_deviations_of_what_was_polled():
    stamps = [f"2026-03-01T12:00:{second:02d}Z" for second in (0, 15, 15, 30)]
    answers = [says(200, metrics(("a", cpu, at))) for cpu, at in zip(("1", "2", "2", "3"), stamps)]
    async with faulty(answers) as server:
        raw = {"schedulerName": "packed", "metricProvider": {"type": "KubernetesMetricsServer"}}
        wanted, providers = Wanted("packed", "uid", ProfileSettings.from_raw(raw)), Providers(server)
        providers.use("packed", wanted)
        source = build_source(server.session, "ns", wanted.settings, lambda: providers.now)
        seen = []
        for _ in answers:
            await providers.ask("packed", wanted, source)
            providers.now += 15
            read = [
                providers.seen.load.measured("cpu", s, wanted.settings.load, slice(0, 1))[0]
                for s in ("average", "deviation", "latest")
            ]
            seen.append([None if value != value else round(float(value), 3) for value in read])
    # of 4 CPUs; the third poll returns the sample of the second
    assert seen == [[0.25, None, 0.25], [0.375, 0.125, 0.5], [0.375, 0.125, 0.5], [0.5, 0.204, 0.75]]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("node-1", "node-1"),
        ("node-1.example.com:9100", "node-1.example.com"),
        ("10.0.0.1:9100", "10.0.0.1"),
        ("[fd00::1]:9100", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("", ""),
    ],
)
def test_ports_are_no_part_of_a_name(label, name):
    assert without_port(label) == name


def test_what_is_no_node_of_ours_is_reported_but_no_fault():
    answer = Answer((Series("cpu", "average", {"a": (0.5, 1.0), "vm": (0.5, 1.0)}, 300.0),))
    state = answered_state(answer, Joined(("vm",), 1))
    assert (state.condition.status, state.unmatched) == ("True", ("vm",))
    assert "1 names in its answers match no node" in state.condition.message


def test_faults_are_reported_in_words_that_fit_an_object():
    failed = {f"cpu.{i}": SourceError("QueryFailed", "x" * 300) for i in range(6)}
    state = answered_state(Answer((Series("cpu", "latest", {}, 0.0),), failed), Joined())
    assert len(json.dumps(state.condition.message)) < 32768


def test_of_a_long_answer_of_prometheus_no_other_label_is_decoded():
    """16 MiB of series held the interpreter for 1.8 s, and the scheduler's loop with it."""
    labels = {f"label-{number}": "value" for number in range(40)}
    result = [{"metric": labels | {"node": f"n{number}"}, "value": [1.7e9, "0.5"]} for number in range(3000)]
    payload = orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    query = PrometheusQuery("cpu", "latest", "load")
    read_vector(payload, query, "node", 0.0)
    with traced_memory() as memory:
        series = read_vector(payload, query, "node", 0.0)
    assert len(series.values) == 3000 and series.values["n7"] == (0.5, 1.7e9)
    assert memory.peak < len(payload)


MANY = "[]," * 2**20 + "[]"
LONG = {
    "series": f'{{"data":{{"resultType":"vector","result":[{MANY}]}}}}',
    "warnings": f'{{"data":{{"resultType":"vector","result":[]}},"warnings":[{MANY}]}}',
    "what says whether it is whole": f'{{"data":{{"resultType":"vector","result":[]}},"isPartial":[{MANY}]}}',
    "nodes of a load watcher": f'{{"window":{{}},"data":{{"a":[{MANY}]}}}}',
    "a window of a load watcher": f'{{"window":{{"start":[{MANY}]}},"data":{{}}}}',
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_of_an_answer_of_many_values_few_are_decoded(text):
    """Decoded, 16 MiB of empty lists take 350 MiB, and hold the interpreter, and so the scheduler's loop."""
    payload = text.encode()
    for read in (
        lambda: read_vector(payload, PrometheusQuery("cpu", "latest", "load"), "node", 0.0),
        lambda: read_watcher(payload),
    ):
        with traced_memory() as memory, pytest.raises(SourceError, match="more than 1000000 values"):
            read()
        assert memory.peak < 2**20


async def test_an_error_of_any_length_is_not_decoded():
    """The scheduler's loop would be held meanwhile."""
    payload = MANY.encode()
    with traced_memory() as memory:
        error = prometheus_error(Response(400, "application/json", payload))
    assert error.reason == "BadAnswer"
    assert memory.peak < 2**20


async def test_of_an_answer_of_metrics_server_of_many_values_few_are_decoded():
    async with faulty([says(200, f'{{"items":[{"0," * 2**21}0]}}')]) as server:
        with pytest.raises(SourceError, match="more than 2000000 values"):
            await MetricsServerSource(server.session, 20.0, 60.0, lambda: 0.0).fetch()


def test_answers_of_prometheus_leave_no_garbage_in_cycles():
    """The operator looks for such garbage seldom, and holds its event loop meanwhile."""
    payload = orjson.dumps({"data": {"resultType": "vector", "result": []}})
    query = PrometheusQuery("cpu", "latest", "load")
    read_vector(payload, query, "node", 0.0)
    gc.collect()
    for _ in range(10):
        read_vector(payload, query, "node", 0.0)
    assert gc.collect() < 10


async def test_of_a_long_answer_of_metrics_server_few_nodes_are_read_without_a_pause(monkeypatch):
    node = {"timestamp": "2026-03-01T12:00:00Z", "window": "30s", "usage": {"cpu": "1", "memory": "1Gi"}}
    items = [node | {"metadata": {"name": f"n{number}"}} for number in range(1000)]
    async with faulty([says(200, {"metadata": {}, "items": items})]) as server:
        source = MetricsServerSource(server.session, 20.0, 60.0, lambda: 0.0)
        async with decoding_turns(monkeypatch) as decoded_in:
            await source.fetch()
    assert decoded_in.total() >= 1000
    assert max(decoded_in.values()) <= 110


async def test_the_labels_of_nodes_in_an_answer_of_metrics_server_are_not_held(monkeypatch):
    """As node-feature-discovery sets them, and metrics-server copies them."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.EXTENSION{number}": "true" for number in range(150)}
    node = {"timestamp": "2026-03-01T12:00:00Z", "window": "30s", "usage": {"cpu": "1", "memory": "1Gi"}}
    items = [node | {"metadata": {"name": f"n{number}", "labels": labels}} for number in range(3)]
    assert 5000 * len(orjson.dumps(items[0])) < metrics_server.MAX_BYTES
    held = []
    monkeypatch.setattr(metrics_server, "read_node_metrics", lambda listed: held.extend(listed["items"]) or ())
    async with faulty([says(200, {"items": items})]) as server:
        await MetricsServerSource(server.session, 20.0, 60.0, lambda: 0.0).fetch()
    assert held == [node | {"metadata": {"name": f"n{number}"}} for number in range(3)]


async def test_an_answer_of_metrics_server_without_end_is_not_taken_in(monkeypatch):
    monkeypatch.setattr(metrics_server, "MAX_BYTES", 10_000)
    async with faulty([says(200, {"items": [{"padding": "x" * 20_000}]})]) as server:
        with pytest.raises(SourceError, match="the answer is larger than 10000 bytes"):
            await MetricsServerSource(server.session, 20.0, 60.0, lambda: 0.0).fetch()
