"""Requests to the API server: verbs, timeouts, retries and the translation of errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import orjson

from concerto.api.doubling import doubling_waits
from concerto.kube.config import ClusterConfig
from concerto.kube.errors import ApiError, OutcomeUnknown, ServerError, TooManyRequests, Unreachable
from concerto.kube.listing import read_pages
from concerto.kube.request_bodies import (
    APPLY_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
    Patch,
    build_delete_options,
    encode,
)
from concerto.kube.response_documents import Decode, document_of, refusal_of
from concerto.kube.transport import JSON, ConnectionLost, NotSent, Outgoing, Transport, read_lines, read_refusal

Lines = list[bytes]

_SAFE_TO_REPEAT = frozenset({"GET", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True)
class SessionSettings:
    """How a session waits and retries.

    Attributes:
        connect_timeout_seconds: for TCP and TLS together.
        request_timeout_seconds: for one attempt of one request, answer included, unless the caller states another.
        attempts: how often a request that may be repeated is tried in all.
        first_backoff_seconds: shortest wait before the second attempt; doubles each time.
        max_backoff_seconds: no wait of our own is longer; ``Retry-After`` may ask for more.
        page_size: objects asked for at a time when listing.
        max_page_bytes: of a page; where objects are so large that it would be larger, fewer are asked for at a time.
        max_requests: in flight at a time, watches not counted; others wait, and are not sent if their time runs out.
            It is more than all controllers of a process have in flight by limits of their own: requests of one that
            hang, as a webhook keeps them, must leave some to all others. Where as many hang as can, that is 217 for
            bindings and their records, 288 for nominations and evictions, 36 for each of three sorts of reports and
            events, 36 for each of three kinds that are reconciled, and less than 75 for all else.
    """

    connect_timeout_seconds: float = 5.0
    request_timeout_seconds: float = 15.0
    attempts: int = 5
    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 10.0
    page_size: int = 500
    max_page_bytes: int = 32 * 2**20
    max_requests: int = 800


class Session:
    """One long-lived connection pool to one API server.

    What comes back are plain dictionaries as the server sent them. Paths come from ``Resource.path``. Refusals are
    ``ApiError`` and its subclasses.

    Repeating: an attempt that the server cannot have carried out (no connection, 401 with a newer token at hand, 429)
    is repeated whatever the verb. One that it may have carried out (connection lost, timeout, 5xx) is repeated for
    verbs that may be sent twice: GET, PUT, PATCH (merge and apply) and DELETE. Of these, a DELETE or a PUT with a
    resourceVersion may then answer 404 or 409 though its first attempt did the work. A POST is never sent twice:
    it raises ``OutcomeUnknown``.

    Attributes:
        config: which API server.
        settings: timeouts and retries.
        field_manager: sent as ``fieldManager`` with each POST, and with each strategic merge patch: these write the
            statuses of pods and PodGroups. Admission policies can read it.
    """

    def __init__(self, config: ClusterConfig, settings: SessionSettings, transport: Transport) -> None:
        self.config = config
        self.settings = settings
        self._transport = transport
        self.field_manager: Callable[[], str] | None = None
        self._decode: Decode = orjson.loads

    @classmethod
    async def open(cls, config: ClusterConfig, settings: SessionSettings | None = None) -> Self:
        """A session ready for use; nothing is sent yet.

        Raises:
            ConfigError: the TLS material cannot be used.
        """
        settings = settings or SessionSettings()
        transport = Transport(config, settings.connect_timeout_seconds, settings.max_requests)
        try:
            await transport.check()
        except BaseException:
            await transport.close()
            raise
        return cls(config, settings, transport)

    def decoding(self, decode: Decode) -> Session:
        """This session for requests whose answers are decoded so; it may leave out what the caller does not need."""
        found = Session(self.config, self.settings, self._transport)
        found.field_manager, found._decode = self.field_manager, decode
        return found

    async def close(self) -> None:
        """Close all connections; watches in progress end with an error."""
        await self._transport.close()

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

    async def get_foreign(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout_seconds: float,
        max_bytes: int,
        decode: Decode = orjson.loads,
        attempts: int = 1,
    ) -> Object:
        """What a server answers that the API server only passes on, such as a metrics API.

        Raises:
            TooLarge: the answer is larger than ``max_bytes``.
            ApiError, Unreachable: as of `request`.
        """
        return await self._send(Outgoing("GET", path, params), timeout_seconds, attempts, max_bytes, decode)

    async def list(self, path: str, *, label_selector: str | None = None, field_selector: str | None = None) -> Object:
        """A whole collection as of one resourceVersion, fetched page by page, as one List object."""
        items: list[Object] = []
        whole: Object = {}
        async for page in self.pages(path, label_selector=label_selector, field_selector=field_selector):
            items.extend(page.get("items") or [])
            whole = page
        return {**whole, "items": items}

    def pages(
        self,
        path: str,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        first_attempts: int | None = None,
        page_size: int | None = None,
        decode: Decode = orjson.loads,
    ) -> AsyncIterator[Object]:
        """The pages of a consistent list, all of the same resourceVersion.

        No resourceVersion is asked for, so that the list is at least as new as anything written before the call. (A
        list with resourceVersion 0 may be arbitrarily old: a new leader must not decide on one.)

        Args:
            path: of the collection.
            label_selector: only these.
            field_selector: only these.
            first_attempts: for the first page, by a caller that has a back-off of its own. Further pages are tried as
                often as any request: to begin again costs more.
            page_size: objects asked for at a time; None: as the settings have it.
            decode: of a page; it may leave out what the caller does not need.

        Raises:
            Gone: the list changed so much while it was being read that its pages are no longer kept; what has been
                yielded is to be thrown away.
        """

        def send(asked: Outgoing, attempts: int | None, max_bytes: int | None) -> Awaitable[Object]:
            return self._send(asked, None, attempts, max_bytes, decode)

        selected, limit = selectors(label_selector, field_selector), page_size or self.settings.page_size
        return read_pages(send, path, selected, limit, self.settings.max_page_bytes, first_attempts)

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

    async def patch(
        self, path: str, body: Object, *, timeout_seconds: float | None = None, attempts: int | None = None
    ) -> Object:
        """JSON merge patch; a resourceVersion in ``body`` is a precondition."""
        patch = Patch(MERGE_PATCH, body)
        return await self.request("PATCH", path, body=patch, timeout_seconds=timeout_seconds, attempts=attempts)

    async def apply(
        self,
        path: str,
        body: Object,
        *,
        field_manager: str,
        force: bool = False,
        timeout_seconds: float | None = None,
        attempts: int | None = None,
    ) -> Object:
        """Server-side apply: ``body`` is all that ``field_manager`` wants to own; ``force`` takes fields from others.

        Raises:
            Conflict: another manager owns one of the fields, and ``force`` is not set.
        """
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self.request(
            "PATCH",
            path,
            body=Patch(APPLY_PATCH, body),
            params=params,
            timeout_seconds=timeout_seconds,
            attempts=attempts,
        )

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        timeout_seconds: float | None = None,
        attempts: int | None = None,
    ) -> Object:
        """Delete one object, if it is still the one meant.

        Raises:
            Conflict: it is not (its UID or resourceVersion differs).
            NotFound: it is gone already.
        """
        body = build_delete_options(uid, resource_version, propagation)
        return await self.request("DELETE", path, body=body, timeout_seconds=timeout_seconds, attempts=attempts)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | Patch | None = None,
        timeout_seconds: float | None = None,
        attempts: int | None = None,
    ) -> Object:
        """One request, repeated where that is safe (see the class).

        Args:
            method: HTTP verb.
            path: from ``Resource.path``, or any other path of the API server.
            params: query parameters.
            body: the document to send.
            timeout_seconds: for each attempt.
            attempts: in all; 1 means that nothing is repeated but a 401 with newer credentials at hand.

        Raises:
            ApiError: the server refused.
            OutcomeUnknown: a POST may or may not have been carried out.
            Unreachable: no answer, after all attempts; its ``__cause__`` is a TimeoutError where time ran out.
        """
        is_named = method == "POST" or (isinstance(body, Patch) and body.content_type == STRATEGIC_PATCH)
        if is_named and self.field_manager is not None:
            params = {"fieldManager": self.field_manager(), **(params or {})}
        content_type, document = (body.content_type, body.document) if isinstance(body, Patch) else (JSON, body)
        data = None if document is None else encode(document)
        outgoing = Outgoing(method, path, params, data, content_type)
        return await self._send(outgoing, timeout_seconds, attempts, decode=self._decode)

    async def _send(
        self,
        outgoing: Outgoing,
        timeout_seconds: float | None,
        attempts: int | None,
        max_bytes: int | None = None,
        decode: Decode = orjson.loads,
    ) -> Object:
        timeout_seconds = timeout_seconds or self.settings.request_timeout_seconds
        may_repeat = outgoing.method in _SAFE_TO_REPEAT
        left = attempts or self.settings.attempts
        waits = doubling_waits(self.settings.first_backoff_seconds, self.settings.max_backoff_seconds)
        while True:
            left -= 1
            try:
                answer = await self._transport.send(outgoing, timeout_seconds=timeout_seconds, max_bytes=max_bytes)
                return document_of(answer, outgoing, decode)
            except NotSent as error:
                failure: Unreachable | ApiError = Unreachable(f"{outgoing}: {error}")
                failure.__cause__ = error.__cause__
            except ConnectionLost as error:
                if not may_repeat:
                    raise OutcomeUnknown(f"{outgoing}: {error}") from error.__cause__
                failure = Unreachable(f"{outgoing}: {error}")
                failure.__cause__ = error.__cause__
            except ServerError as error:
                if not may_repeat:
                    # A 500 or 504 may come after storage has taken the write
                    raise OutcomeUnknown(f"{outgoing}: {error}") from error
                failure = error
            except TooManyRequests as error:
                failure = error
            if left <= 0:
                raise failure
            await asyncio.sleep(wait_seconds(failure, next(waits)))

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], inactivity_seconds: float
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """An answer without end (a watch), as batches of whole lines, in the order they arrive.

        A line that is too long ends the connection. A batch is what has arrived at once; between batches other tasks
        get their turn.
        A line that is taken out of its batch is held by nobody else.

        Raises:
            ApiError: the server refused to begin.
            Unreachable: no connection, or it was lost, or nothing came for ``inactivity_seconds``. The iterator raises
                this, too; it ends quietly when the server ends the stream properly.
        """
        try:
            response = await self._transport.open_stream(path, params=params, inactivity_seconds=inactivity_seconds)
        except ConnectionLost as error:
            raise Unreachable(f"GET {path}: {error}") from error

        async def batches() -> AsyncIterator[Lines]:
            try:
                async for lines in read_lines(response.content, self.config.server + path):
                    yield lines
            except ConnectionLost as error:
                raise Unreachable(f"GET {path}: {error}") from error

        try:
            if response.status != 200:
                raise refusal_of(await read_refusal(response, self.settings.request_timeout_seconds))
            yield batches()
        finally:
            response.close()


def selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    """The parameters of those that are given."""
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def wait_seconds(failure: Unreachable | ApiError, backoff_seconds: float) -> float:
    """Before the next attempt: never sooner than the server asked for; longer by chance, so that clients part."""
    asked = failure.retry_after if isinstance(failure, ApiError) else None
    wait = backoff_seconds if asked is None else asked
    return wait * random.uniform(1.0, 1.5)
