"""The one way to the API server: authentication, TLS, timeouts, retries and error translation live here alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from concerto.kube.config import ClusterConfig, TokenSource
from concerto.kube.errors import (
    ApiError,
    KubeError,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unreachable,
    api_error,
)

Object = dict[str, Any]
Lines = list[bytes]

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_JSON = "application/json"
_SAFE_TO_REPEAT = frozenset({"GET", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True)
class SessionSettings:
    """How patient a session is.

    Attributes:
        connect_timeout_seconds: for TCP and TLS together.
        request_timeout_seconds: for one attempt of one request, answer included, unless the caller says otherwise.
        attempts: how often a request that may be repeated is tried in all.
        first_backoff_seconds: mean wait before the second attempt; doubles each time.
        longest_backoff_seconds: no wait is longer, be it our own or what ``Retry-After`` asks for.
        page_size: objects asked for at a time when listing.
    """

    connect_timeout_seconds: float = 5.0
    request_timeout_seconds: float = 15.0
    attempts: int = 5
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 10.0
    page_size: int = 500


class Session:
    """One long-lived connection pool to one API server.

    What comes back are plain dictionaries as the server sent them. Paths come from ``Resource.path``. Refusals are
    ``ApiError`` and its subclasses.

    Repeating: an attempt that the server cannot have carried out (no connection, 401 with a newer token at hand, 429)
    is repeated whatever the verb. One that it may have carried out (connection lost, timeout, 5xx) is repeated for
    verbs that can be said twice: GET, PUT, PATCH (merge and apply) and DELETE. Of these, a DELETE or a PUT with a
    resourceVersion may then answer 404 or 409 though its first attempt did the work. A POST is never said twice:
    it raises ``OutcomeUnknown``.
    """

    def __init__(self, config: ClusterConfig, client: aiohttp.ClientSession, settings: SessionSettings) -> None:
        self.config = config
        self.settings = settings
        self._client = client
        self._tokens = TokenSource(config)

    @classmethod
    async def open(cls, config: ClusterConfig, settings: SessionSettings | None = None) -> Self:
        """A session ready for use; nothing is sent yet.

        Raises:
            ConfigError: the TLS material cannot be used.
        """
        settings = settings or SessionSettings()
        # No limit on connections: a request that waits for one inside the pool would use up its own timeout there,
        # and then look as if it had been sent. Callers bound their concurrency.
        connector = aiohttp.TCPConnector(ssl=config.ssl_context(), limit=0, keepalive_timeout=60)
        client = aiohttp.ClientSession(
            connector=connector,
            # Compression costs the API server more than a cluster's own network saves
            headers={"User-Agent": _user_agent(), "Accept": _JSON, "Accept-Encoding": "identity"},
            skip_auto_headers=("Content-Type",),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return cls(config, client, settings)

    async def close(self) -> None:
        """Give up all connections; watches in progress end with an error."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, timeout_seconds: float | None = None
    ) -> Object:
        """One object (or any other JSON document, such as ``/version``)."""
        return await self.request("GET", path, params=params, timeout_seconds=timeout_seconds)

    async def list(self, path: str, *, label_selector: str | None = None, field_selector: str | None = None) -> Object:
        """A whole collection as of one resourceVersion, fetched page by page, as one List object."""
        items: list[Object] = []
        whole: Object = {}
        async for page in self.pages(path, label_selector=label_selector, field_selector=field_selector):
            items.extend(page.get("items") or [])
            whole = page
        return {**whole, "items": items}

    async def pages(
        self, path: str, *, label_selector: str | None = None, field_selector: str | None = None
    ) -> AsyncIterator[Object]:
        """The pages of a consistent list, all of the same resourceVersion.

        No resourceVersion is asked for, so that the list is at least as new as anything written before the call. (A
        list with resourceVersion 0 may be arbitrarily old: a new leader must not decide on one.)

        Raises:
            Gone: the list changed so much while it was being read that its pages are no longer kept; what has been
                yielded is to be thrown away.
        """
        params = selectors(label_selector, field_selector)
        params["limit"] = str(self.settings.page_size)
        while True:
            page = await self.request("GET", path, params=params)
            yield page
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            params["continue"] = token

    async def create(
        self, path: str, body: Object, *, params: Mapping[str, str] | None = None, timeout_seconds: float | None = None
    ) -> Object:
        """POST: create an object, or a subresource such as a pod's ``binding`` or a service account's ``token``.

        Raises:
            OutcomeUnknown: it may exist now; read it back by name.
        """
        return await self.request("POST", path, body=body, params=params, timeout_seconds=timeout_seconds)

    async def replace(
        self, path: str, body: Object, *, timeout_seconds: float | None = None, attempts: int | None = None
    ) -> Object:
        """PUT: replace an object; with its resourceVersion in ``body`` only if nobody else has changed it."""
        return await self.request("PUT", path, body=body, timeout_seconds=timeout_seconds, attempts=attempts)

    async def patch(self, path: str, body: Object, *, timeout_seconds: float | None = None) -> Object:
        """JSON merge patch; a resourceVersion in ``body`` is a precondition."""
        return await self.request("PATCH", path, body=body, content_type=MERGE_PATCH, timeout_seconds=timeout_seconds)

    async def apply(
        self, path: str, body: Object, *, field_manager: str, force: bool = False, timeout_seconds: float | None = None
    ) -> Object:
        """Server-side apply: ``body`` is all that ``field_manager`` wants to own; ``force`` takes fields from others.

        Raises:
            Conflict: another manager owns one of the fields, and ``force`` is not set.
        """
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self.request(
            "PATCH", path, body=body, params=params, content_type=APPLY_PATCH, timeout_seconds=timeout_seconds
        )

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Object:
        """Delete one object, if it is still the one meant.

        Raises:
            Conflict: it is not (its UID or resourceVersion differs).
            NotFound: it is gone already.
        """
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if any(preconditions.values()):
            body["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if propagation:
            body["propagationPolicy"] = propagation
        return await self.request("DELETE", path, body=body, timeout_seconds=timeout_seconds)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        timeout_seconds: float | None = None,
        attempts: int | None = None,
        largest_bytes: int | None = None,
    ) -> Object:
        """One request, repeated where that is safe (see the class).

        Args:
            method: HTTP verb.
            path: from ``Resource.path``, or any other path of the API server.
            params: query parameters.
            body: the document to send.
            content_type: of the body.
            timeout_seconds: for each attempt.
            attempts: in all; 1 means that nothing is repeated but a 401 with a newer token.
            largest_bytes: of the answer, where it comes from a server that the API server only passes on; None: any.

        Raises:
            KubeError: the answer is larger.
            ApiError: the server refused.
            OutcomeUnknown: a POST may or may not have been carried out.
            Unreachable: no answer, after all attempts.
        """
        url = URL(self.config.server + path, encoded=True)
        data = json.dumps(body, separators=(",", ":")).encode() if body is not None else None
        limit = aiohttp.ClientTimeout(
            total=timeout_seconds or self.settings.request_timeout_seconds,
            sock_connect=self.settings.connect_timeout_seconds,
        )
        remaining = attempts or self.settings.attempts
        backoff = self.settings.first_backoff_seconds
        refused_tokens = 0
        while True:
            remaining -= 1
            token = self._tokens.token()
            try:
                async with self._client.request(
                    method,
                    url,
                    params=params,
                    data=data,
                    headers=_headers(token, content_type if data is not None else None),
                    timeout=limit,
                    server_hostname=self.config.tls_server_name,
                    allow_redirects=False,
                ) as response:
                    payload = await _payload(response, largest_bytes, f"{method} {path}")
                    status, retry_after = response.status, _retry_after(response)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                # never sent
                failure: Exception = Unreachable(f"{method} {path}: {_words(error)}")
                failure.__cause__ = error
                pause = None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if method not in _SAFE_TO_REPEAT:
                    raise OutcomeUnknown(f"{method} {path}: {_words(error)}") from error
                failure = Unreachable(f"{method} {path}: {_words(error)}")
                failure.__cause__ = error
                pause = None
            else:
                if status < 300:
                    return _document(payload, method, path)
                refusal = _refusal(status, payload, retry_after)
                if status == 401 and refused_tokens == 0 and self._tokens.refused(token):
                    refused_tokens += 1
                    remaining += 1
                    continue
                if isinstance(refusal, ServerError):
                    if method not in _SAFE_TO_REPEAT:
                        # A 500 or 504 may come after storage has taken the write
                        raise OutcomeUnknown(f"{method} {path}: {refusal}") from refusal
                elif not isinstance(refusal, TooManyRequests):
                    raise refusal
                failure, pause = refusal, refusal.retry_after
            if remaining <= 0:
                raise failure
            wait = pause if pause is not None else backoff
            # Full jitter upwards only: never sooner than the server asked for
            wait = min(wait, self.settings.longest_backoff_seconds) * random.uniform(1.0, 1.5)
            backoff *= 2
            await asyncio.sleep(wait)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], inactivity_seconds: float
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """An answer without end (a watch), as batches of whole lines, in the order they arrive.

        Lines may be of any length. A batch is what has arrived at once; between batches other tasks get their turn.

        Raises:
            ApiError: the server refused to begin.
            Unreachable: no connection, or it was lost, or nothing came for ``inactivity_seconds``. The iterator raises
                this, too; it ends quietly when the server ends the stream properly.
        """
        url = URL(self.config.server + path, encoded=True)
        limit = aiohttp.ClientTimeout(
            total=None, sock_connect=self.settings.connect_timeout_seconds, sock_read=inactivity_seconds
        )
        response = await self._begin_stream(url, params, limit)
        try:
            if response.status == 401 and self._tokens.refused(_bearer(response)):
                response.close()
                response = await self._begin_stream(url, params, limit)
            if response.status != 200:
                raise await self._refused_stream(response)
            yield _lines(response.content, path)
        finally:
            response.close()

    async def _begin_stream(
        self, url: URL, params: Mapping[str, str], limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        try:
            return await self._client.get(
                url,
                params=params,
                headers=_headers(self._tokens.token(), None),
                timeout=limit,
                server_hostname=self.config.tls_server_name,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"GET {url.path}: {_words(error)}") from error

    async def _refused_stream(self, response: aiohttp.ClientResponse) -> ApiError:
        try:
            async with asyncio.timeout(self.settings.request_timeout_seconds):
                payload = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            payload = b""  # the status says enough
        return _refusal(response.status, payload, _retry_after(response))


async def _lines(content: aiohttp.StreamReader, path: str) -> AsyncIterator[Lines]:
    begun: list[bytes] = []  # pieces of a line whose end has not come yet
    while True:
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"GET {path}: {_words(error)}") from error
        if not chunk:
            return  # a line without its end is a line cut short: nobody may act on it
        head, newline, rest = chunk.partition(b"\n")
        begun.append(head)
        if newline:
            lines = [b"".join(begun)]
            *more, last = rest.split(b"\n")
            begun = [last] if last else []
            yield [line for line in (*lines, *more) if line]
        # Reading from a full buffer does not suspend: without this a busy watch would starve all other tasks
        await asyncio.sleep(0)


def _user_agent() -> str:
    try:
        return f"concerto/{version('concerto-k8s')}"
    except PackageNotFoundError:
        return "concerto"


async def _payload(response: aiohttp.ClientResponse, largest: int | None, what: str) -> bytes:
    if largest is None:
        return await response.read()
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > largest:
            raise KubeError(f"{what}: the answer is larger than {largest} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _headers(token: str | None, content_type: str | None) -> dict[str, str]:
    headers = {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if content_type:
        headers["Content-Type"] = content_type
    return headers


def _bearer(response: aiohttp.ClientResponse) -> str | None:
    return response.request_info.headers.get("Authorization", "").removeprefix("Bearer ") or None


def selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    """The parameters of those that are given."""
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After")
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:  # the date form, which no API server sends
        return None


def _document(payload: bytes, method: str, path: str) -> Object:
    try:
        document = json.loads(payload) if payload else {}
    except ValueError as error:
        raise OutcomeUnknown(f"{method} {path}: the answer is not JSON ({payload[:80]!r})") from error
    return document if isinstance(document, dict) else {"value": document}


def _refusal(status: int, payload: bytes, retry_after: float | None) -> ApiError:
    try:
        body = json.loads(payload)
    except ValueError:
        body = None
    return api_error(status, body if isinstance(body, dict) else None, payload.decode(errors="replace"), retry_after)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
