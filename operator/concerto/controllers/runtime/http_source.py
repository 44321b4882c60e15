"""Get measurements from servers other than the API server: bounded in time and bytes, with errors in words."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from concerto.kube.connection_problems import connection_problem
from concerto.kube.transport import read_body

WHOLE_ANSWERS = {"partial_response": "false", "deny_partial_response": "1"}
"""Parameters of queries by which Thanos and VictoriaMetrics answer with an error where they miss a part of the data.

Else a sum would lack what is stored there, and load would seem to have fallen. Prometheus ignores them.
"""
_MAX_MESSAGE = 500
_MAX_ERROR_BYTES = 2**20
"""Of an answer that is an error: all of a longer one would hold the event loop while it is decoded."""


class SourceError(Exception):
    """A source gave no answer.

    Its message may quote whatever the source said, so it is cut, and holds nothing that a terminal would obey.

    Attributes:
        reason: why, in one CamelCase word that never changes its meaning.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(printable(message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 1]}…"))
        self.reason = reason


@dataclass(frozen=True)
class Response:
    """What a server answered.

    Attributes:
        status: of HTTP.
        content_type: without parameters.
        body: all of it.
    """

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Limits:
    """Bounds of one answer.

    Attributes:
        seconds: until it is complete.
        max_bytes: of its body.
    """

    seconds: float
    max_bytes: int


class HttpClient:
    """Connections to servers. It keeps no cookies and follows no redirection, as headers may hold credentials."""

    def __init__(self, context: ssl.SSLContext | bool = True) -> None:
        """Connects nowhere yet; ``context`` says which certificates are accepted."""
        # Callers limit their requests: one that waited here for a connection would use up its time
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        """Close connections."""
        await self._session.close()

    async def get(
        self,
        url: str,
        limits: Limits,
        *,
        named: str = "",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """One answer of any status.

        Args:
            url: without a query.
            limits: of the answer.
            named: how errors name the server; its URL if empty.
            params: the query.
            headers: of the request.

        Raises:
            SourceError: there is no complete answer within the limits.
        """
        named = named or url
        timeout = aiohttp.ClientTimeout(total=limits.seconds)
        try:
            async with self._session.get(
                url, params=params, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                body = await _read(response, limits.max_bytes)
                return Response(response.status, response.content_type, body)
        except TimeoutError as error:
            raise SourceError("Timeout", f"{named}: no answer within {limits.seconds:g} s") from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise SourceError("CertificateRefused", f"{named}: {connection_problem(error, url)}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceError("Unreachable", f"{named}: {connection_problem(error, url)}") from error


def printable(text: str) -> str:
    """The text without control characters, which a terminal would obey when somebody describes the object."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def prometheus_error(response: Response) -> SourceError:
    """Why Prometheus answered with another status than 200."""
    status = response.status
    if status in (401, 403):
        return SourceError("Unauthorized", f"answered {status}: the authorization is missing or wrong")
    if 300 <= status < 400:
        return SourceError("BadAnswer", f"answered {status}, a redirection: give the address that it leads to")
    words = ""
    if response.content_type == "application/json" and len(response.body) <= _MAX_ERROR_BYTES:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            words = str(json.loads(response.body).get("error", ""))
    if words:
        return SourceError("QueryFailed", words)
    return SourceError("BadAnswer", f"answered {status}, which is not an answer of Prometheus")


def missing_data(answer: Mapping[str, Any]) -> str:
    """What an answer to a query says of data that it lacks; empty if it has all.

    Where a remote read fails, Prometheus answers with the rest of the data, and with a warning: a sum seems to have
    fallen. Its warnings about the query itself begin with "PromQL", and concern no missing data.
    """
    if answer.get("isPartial"):
        return "lacks a part of the data (isPartial)"
    warnings = [str(each) for each in answer.get("warnings") or ()]
    of_data = (w for w in warnings if not w.startswith("PromQL ") and not w.endswith("annotations omitted"))
    first = next(of_data, "")
    return f"may lack a part of the data: {first}" if first else ""


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = await read_body(response.content, max_bytes)
    if body is None:
        most = f"{max_bytes >> 20} MiB" if max_bytes >= 2**20 else f"{max_bytes >> 10} KiB"
        raise SourceError("BadAnswer", f"an answer of more than {most}")
    return body
