"""Metrics from Prometheus, or a server with the same HTTP API: one value by a query, or its history."""

from __future__ import annotations

import json
import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concerto.autoscaling.pods import MetricError
from concerto.controllers.autoscaling.sources.answers import NOT_OF_THIS_FORM
from concerto.controllers.runtime.http_source import (
    WHOLE_ANSWERS,
    HttpClient,
    Limits,
    SourceError,
    missing_data,
    prometheus_error,
)

_MAX_BYTES = {"query": 2**16, "query_range": 2**20}
"""Of an answer, by endpoint: a value takes some hundred bytes, and a series of 1,100 points 40 KiB. Values are read at
each sync, and 1 MiB of other series would take tens of milliseconds of the event loop each time."""
_MAX_MILLI = 2**63 - 1
_TYPES = ("matrix", "vector", "scalar", "string")


@dataclass(frozen=True)
class PrometheusServer:
    """The Prometheus that all PredictiveHPAs use. Only who runs the operator chooses the address.

    Attributes:
        address: URL below which it serves ``/api/v1``; empty: there is no server.
        token_file: file with a bearer token, which is read for each request; None: requests have none.
        ca_file: file with the trusted certificates, which is read for each request; None: those of the system.
    """

    address: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True)
class Span:
    """A stretch of time with a grid, in seconds: from ``begin`` to ``end``, both included, in steps of ``step``."""

    begin: float
    end: float
    step: float


class PrometheusMetrics:
    """Asks one server. Each request has the parameter ``namespace``, by which a proxy can confine what it reads."""

    def __init__(self, server: PrometheusServer, *, timeout_seconds: float) -> None:
        """No request is sent yet."""
        self._server = server
        self._timeout = timeout_seconds
        self._client: HttpClient | None = None
        self._trusted: str | None = None

    async def value(self, namespace: str, query: str) -> int:
        """The same as `number`, in thousandths, rounded up as quantities are."""
        return milli_of(await self.number(namespace, query))

    async def number(self, namespace: str, query: str) -> float:
        """The query's only value now, as it is.

        Raises:
            MetricError: there is no answer, or it is not one finite number.
        """
        data = await self._ask("query", {"query": query, "namespace": namespace})
        try:
            kind, result = data["resultType"], data["result"]
            if kind == "scalar":
                return _finite(float(result[1]))
            if kind != "vector":
                raise MetricError(f"the query returns {_named(kind)} instead of one value")
            return _finite(float(_only(result)["value"][1]))
        except (ValueError, *NOT_OF_THIS_FORM) as error:
            raise _not_of_prometheus(error) from error

    async def series(self, namespace: str, query: str, span: Span) -> list[tuple[float, float]]:
        """The query's only series: times in seconds and values, at least one.

        Values that are not finite, or negative, are left out, and so are times that were not asked for.

        Raises:
            MetricError: there is no answer, or it is not one series, or nothing of it is left.
        """
        times = {"start": f"{span.begin:.3f}", "end": f"{span.end:.3f}", "step": f"{span.step:.3f}"}
        data = await self._ask("query_range", {"query": query, "namespace": namespace} | times)
        try:
            if data["resultType"] != "matrix":
                raise MetricError(f"the query returns {_named(data['resultType'])} instead of a series")
            points = [(float(at), float(value)) for at, value in _only(data["result"])["values"]]
        except (ValueError, *NOT_OF_THIS_FORM) as error:
            raise _not_of_prometheus(error) from error
        first, last = span.begin - span.step, span.end + span.step
        return _loads([(at, value) for at, value in points if first <= at <= last])

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ask(self, endpoint: str, params: dict[str, str]) -> Any:
        address = self._server.address
        if not address:
            raise MetricError("the autoscaler has no Prometheus (concerto operator --autoscaling-prometheus-url)")
        try:
            client = await self._connected()
            url = f"{address.rstrip('/')}/api/v1/{endpoint}"
            # Prometheus itself ends a query that takes longer
            params = params | {"timeout": f"{self._timeout:g}s"} | WHOLE_ANSWERS
            limits = Limits(self._timeout, _MAX_BYTES[endpoint])
            response = await client.get(
                url, limits, named="Prometheus", params=params, headers=_headers(self._server.token_file)
            )
            if response.status != 200:
                raise prometheus_error(response)
        except SourceError as error:
            raise MetricError(f"unable to fetch metrics from Prometheus: {error}") from error
        try:
            answer = json.loads(response.body)
            data, lacks = answer["data"], missing_data(answer)
        except (ValueError, *NOT_OF_THIS_FORM) as error:
            raise _not_of_prometheus(error) from error
        if lacks:
            cut = SourceError("BadAnswer", f"its answer {lacks}")  # it quotes the server
            raise MetricError(f"unable to fetch metrics from Prometheus: {cut}")
        return data

    async def _connected(self) -> HttpClient:
        """A client that trusts whom it should; a new one when the certificates have changed."""
        client, trusted = self._client, self._authorities()
        if client is not None and trusted == self._trusted:
            return client
        made = self._client = HttpClient(_context(self._server.ca_file, trusted))
        self._trusted = trusted
        if client is not None:
            await client.close()
        return made

    def _authorities(self) -> str | None:
        """What the file with certificates has, PEM; None: the system's are trusted."""
        try:
            return _read_authorities(self._server.ca_file)
        except SourceError as error:
            if self._client is not None and error.__cause__ is not None:  # the file is being replaced
                return self._trusted
            raise


def check_files(server: PrometheusServer) -> None:
    """Read the files of a server once.

    Raises:
        SourceError: InvalidCA or TokenUnreadable: one of them can't be used.
    """
    _context(server.ca_file, _read_authorities(server.ca_file))
    _headers(server.token_file)


def _read_authorities(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise SourceError("InvalidCA", f"cannot read certificates in {path}: {error}") from error
    if not text.strip():
        raise SourceError("InvalidCA", f"{path} has no certificates in PEM: it is empty")
    return text


def _context(path: Path | None, authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        raise SourceError("InvalidCA", f"{path} has no certificates in PEM: {error}") from error


def _headers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise SourceError("TokenUnreadable", f"cannot read the token in {path}: {error}") from error
    if not token or not (token.isascii() and token.isprintable()):
        raise SourceError("TokenUnreadable", f"{path} does not contain a token")
    return {"Authorization": f"Bearer {token}"}


def _named(result_type: Any) -> str:
    return f"a {result_type}" if result_type in _TYPES else "what is no result of a query"


def _only(result: list[Any]) -> Any:
    if not result:
        raise MetricError("the query returned no series")
    if len(result) > 1:
        raise MetricError(f"the query returned {len(result)} series instead of one: write it like sum(...)")
    return result[0]


def _loads(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if not points:
        raise MetricError("the query returned no value of the time that was asked for")
    loads = [(at, value) for at, value in points if math.isfinite(value) and value >= 0]
    if not loads:
        last = f"NaN, infinite or negative, and the last {points[-1][1]:g}"
        raise MetricError(f"the query returned no load: each of its {len(points)} values is {last}")
    return loads


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise MetricError(f"the query returned {value}, which is not a load")
    return value


def milli_of(value: float) -> int:
    """A finite number in thousandths, rounded up as quantities are, within 64 bits."""
    bounded = max(-_MAX_MILLI, min(value * 1000, _MAX_MILLI))  # which may be infinite
    return max(-_MAX_MILLI, min(math.ceil(round(bounded, 6)), _MAX_MILLI))


def _not_of_prometheus(error: Exception) -> MetricError:
    return MetricError(f"this is not an answer of Prometheus: {type(error).__name__}: {str(error)[:200]}")
