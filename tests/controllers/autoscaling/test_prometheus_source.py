"""Prometheus as a source of metrics: what counts as one value or one series, and what an error says."""

from __future__ import annotations

import json
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web

from concerto.autoscaling.pods import MetricError
from concerto.controllers.autoscaling.sources.prometheus import PrometheusMetrics, PrometheusServer, Span
from concerto.serving.http_server import HttpServer
from support.faulty_server import Answer, faulty, says

SPAN = Span(1000.0, 1600.0, 300.0)


def data(kind: str, result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def vector(*values: str) -> dict[str, Any]:
    return data("vector", [{"metric": {}, "value": [1.5, v]} for v in values])


def matrix(*series: list[list[Any]]) -> dict[str, Any]:
    return data("matrix", [{"metric": {}, "values": values} for values in series])


async def value(answer: Answer, **server: Any) -> int:
    async with faulty([answer]) as found:
        source = PrometheusMetrics(PrometheusServer(found.session.config.server, **server), timeout_seconds=20)
        try:
            return await source.value("shop", 'sum(rate(requests{namespace="shop"}[1m]))')
        finally:
            await source.close()


async def series(answer: Answer) -> list[tuple[float, float]]:
    async with faulty([answer]) as found:
        source = PrometheusMetrics(PrometheusServer(found.session.config.server), timeout_seconds=20)
        try:
            return await source.series("shop", "queue", SPAN)
        finally:
            await source.close()


VALUES = {
    "a vector of one sample": (vector("2.5"), 2500),
    "a scalar": (data("scalar", [1.5, "3"]), 3000),
    "less than a thousandth is rounded up, as quantities are": (vector("0.0001"), 1),
    "a number that floats cannot hold exactly": (vector("0.007"), 7),
    "more than the largest quantity": (vector("1e300"), 2**63 - 1),
    "warnings about the query itself": (
        vector("1")
        | {"warnings": ["PromQL warning: quantile value must be small", "2 more warning annotations omitted"]},
        1000,
    ),
    "what servers of before Prometheus 3 say about the query": (
        vector("1") | {"warnings": ["PromQL info: metric might not be a counter"]},
        1000,
    ),
}


@pytest.mark.parametrize(("body", "milli"), VALUES.values(), ids=VALUES)
async def test_a_value_is_in_thousandths(body, milli):
    assert await value(says(200, body)) == milli


JSON = {"Content-Type": "application/json"}
FAULTS = {
    "no series": (says(200, vector()), "the query returned no series"),
    "more than one series": (says(200, vector("1", "2")), r"returned 2 series instead of one: write it like sum\("),
    "a value that is not a number": (says(200, vector("NaN")), "returned nan, which is not a load"),
    "an infinite value": (says(200, vector("+Inf")), "returned inf, which is not a load"),
    "a range": (says(200, matrix([[1, "2"]])), "returns a matrix instead of one value"),
    "a text": (says(200, data("string", [1, "x"])), "returns a string instead of one value"),
    "a type without end": (says(200, data("\x1b[2J" * 5_000, [])), "returns what is no result of a query instead of"),
    "an error that is nested without end": (says(400, "[" * 60_000, JSON), "answered 400, which is not an answer of"),
    "not PromQL": (
        says(400, {"error": "1:5: parse error"}, JSON),
        "unable to fetch metrics from Prometheus: 1:5: parse",
    ),
    "a wrong token": (says(401, "no"), "the authorization is missing or wrong"),
    "a redirection, where the token must not go": (says(302, "", {"Location": "http://x.invalid"}), "a redirection"),
    "a proxy's error": (says(502, "<html>"), "answered 502"),
    "not JSON": (says(200, "<html>"), "this is not an answer of Prometheus"),
    "a list": (says(200, "[1]"), "this is not an answer of Prometheus"),
    "nested without end": (says(200, "[" * 60_000), "this is not an answer of Prometheus"),
    "a sample without a value": (says(200, data("vector", [{}])), "this is not an answer of Prometheus"),
    "a part of the data": (says(200, vector("1") | {"isPartial": True}), "lacks a part of the data"),
    "the rest of the data beside a remote read that fails": (
        says(200, vector("1") | {"warnings": ["PromQL warning: x", "remote_read: server returned HTTP status 500"]}),
        "may lack a part of the data: remote_read: server returned HTTP status 500",
    ),
    "warnings of another form": (says(200, vector("1") | {"warnings": 7}), "not an answer of Prometheus"),
    "more than a value takes": (says(200, vector(*["1"] * 4000)), "an answer of more than 64 KiB"),
}


@pytest.mark.parametrize(("answer", "words"), FAULTS.values(), ids=FAULTS)
async def test_a_fault_of_a_value_is_an_error_in_words(answer, words):
    with pytest.raises(MetricError, match=words) as raised:
        await value(answer)
    assert len(str(raised.value)) < 700


async def test_a_series_has_the_points_of_the_grid_whose_values_are_finite():
    points = [[1000, "1"], [1300, "NaN"], [1600, "2.5"]]
    assert await series(says(200, matrix(points))) == [(1000.0, 1.0), (1600.0, 2.5)]


async def test_a_series_has_no_points_at_times_that_were_not_asked_for():
    points = [[at, "1"] for at in (-1e300, 0, "NaN", "Infinity", 1300, 10_000, 1e300)]
    assert await series(says(200, matrix(points))) == [(1300.0, 1.0)]


SERIES_FAULTS = {
    "no series": (matrix(), "the query returned no series"),
    "two series": (matrix([], []), "returned 2 series"),
    "a type that is a list": (data([[]] * 1000, []), "returns what is no result of a query instead of a series"),
    "a vector": (vector("1"), "returns a vector instead of a series"),
    "more than a series takes": (" " * (2 * 2**20), "an answer of more than 1 MiB"),
    "values that are not pairs": (matrix([[1]]), "not an answer of Prometheus"),
}


@pytest.mark.parametrize(("body", "words"), SERIES_FAULTS.values(), ids=SERIES_FAULTS)
async def test_a_fault_of_a_series_is_an_error_in_words(body, words):
    with pytest.raises(MetricError, match=words):
        await series(says(200, body))


async def test_a_request_names_the_namespace_for_a_proxy_that_confines_it_the_time_limit_and_that_all_data_is_wanted():
    async with faulty([says(200, vector("1")), says(200, matrix([[1000, "1"]]))]) as found:
        source = PrometheusMetrics(PrometheusServer(f"{found.session.config.server}/"), timeout_seconds=20)
        await source.value("shop", "queue")
        await source.series("shop", "queue", SPAN)
        await source.close()
    instant, span = (urlsplit(line.removeprefix("GET ")) for line in found.seen)
    whole = {"partial_response": ["false"], "deny_partial_response": ["1"]}
    asked = {"query": ["queue"], "namespace": ["shop"], "timeout": ["20s"]} | whole
    assert (instant.path, parse_qs(instant.query)) == ("/api/v1/query", asked)
    times = {"start": ["1000.000"], "end": ["1600.000"], "step": ["300.000"]}
    assert (span.path, parse_qs(span.query)) == ("/api/v1/query_range", asked | times)


async def test_the_token_is_read_for_each_request(tmp_path: Path):
    shown = []

    async def answer(request: web.Request) -> web.StreamResponse:
        shown.append(request.headers.get("Authorization"))
        return web.Response(text=json.dumps(vector("1")))

    token = tmp_path / "token"
    token.write_text("first\n")
    assert await value(answer, token_file=token) == 1000
    token.write_text("second")
    assert await value(answer, token_file=token) == 1000
    assert await value(answer) == 1000
    assert shown == ["Bearer first", "Bearer second", None]


async def test_what_cannot_be_read_is_named(tmp_path: Path):
    missing, empty, words = tmp_path / "missing", tmp_path / "empty", tmp_path / "words"
    empty.touch()
    words.write_text("no certificate")
    good = says(200, vector("1"))
    with pytest.raises(MetricError, match=f"cannot read the token in {missing}"):
        await value(good, token_file=missing)
    with pytest.raises(MetricError, match=f"{empty} does not contain a token"):
        await value(good, token_file=empty)
    with pytest.raises(MetricError, match=f"cannot read certificates in {missing}"):
        await value(good, ca_file=missing)
    for path in (empty, words):  # with an empty one, ssl would trust the system's
        with pytest.raises(MetricError, match=f"{path} has no certificates in PEM"):
            await value(good, ca_file=path)


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is signed with its own key; and the key."""
    path, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return path, key


async def test_rotated_certificates_are_read_again(tmp_path: Path):
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=json.dumps(vector("1")))

    old, _ = certificate(tmp_path, "old")
    new, key = certificate(tmp_path, "new")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(new, key)
    server = HttpServer("127.0.0.1:0", [web.get("/api/v1/query", answer)], tls=context)
    await server.start()
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(old.read_bytes())
    address = PrometheusServer(f"https://127.0.0.1:{server.port}", ca_file=trusted)
    source = PrometheusMetrics(address, timeout_seconds=20)
    with pytest.raises(MetricError, match="certificate verify failed"):
        await source.value("shop", "queue")
    trusted.write_bytes(new.read_bytes())
    assert await source.value("shop", "queue") == 1000
    trusted.unlink()  # being replaced
    assert await source.value("shop", "queue") == 1000
    await source.close()
    await server.cleanup()


async def test_without_a_server_the_error_names_the_flag():
    with pytest.raises(MetricError, match="--autoscaling-prometheus-url"):
        await PrometheusMetrics(PrometheusServer(), timeout_seconds=20).value("shop", "queue")
