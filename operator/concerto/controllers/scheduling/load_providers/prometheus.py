"""The load of nodes from Prometheus, or a server with the same HTTP API, by a profile's own queries."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from concerto.api.metric_provider import PrometheusQuery, PrometheusSettings
from concerto.api.schedulingprofile import LoadWindow
from concerto.capacity.windows import WINDOW_SECONDS
from concerto.controllers.runtime.http_source import (
    WHOLE_ANSWERS,
    HttpClient,
    Limits,
    SourceError,
    missing_data,
    prometheus_error,
)
from concerto.controllers.runtime.page_decoding import has_too_many_values
from concerto.controllers.scheduling.load_providers.source import Answer
from concerto.kube import Forbidden, KubeError, NotFound, Resource, Session
from concerto.scheduling.state.provided_load import Series

SECRETS = Resource("", "v1", "secrets", "Secret", True)
MAX_BYTES = 16 * 2**20
"""Of an answer; a series with long labels takes 1 KiB. Anybody may have series scraped with any labels."""
MAX_VALUES = 1_000_000
"""Of an answer, of any type: 16,000 series with 20 labels. In memory a value takes 50 bytes, however short its text."""
_MAX_SERIES = 50_000
"""Of an answer: several times the nodes of the largest clusters."""


class PrometheusSource:
    """Asks a profile's queries, all at once."""

    def __init__(
        self,
        session: Session,
        namespace: str,
        settings: PrometheusSettings,
        *,
        timeout_seconds: float,
        window: LoadWindow,
    ) -> None:
        """Nothing is asked yet.

        Args:
            session: the way to the API server, for the Secret.
            namespace: the operator's own, where the Secret is.
            settings: where Prometheus is, and what to ask.
            timeout_seconds: for each answer.
            window: over which queries of means and deviations are; takes the place of ``$window`` in them.
        """
        self._session = session
        self._namespace = namespace
        self._settings = settings
        self._timeout = timeout_seconds
        self._window = window
        self._client: HttpClient | None = None
        self._trusted: bytes | None = None
        self._reading = asyncio.Lock()  # one answer at a time: of threads, Python runs one, and memory is theirs all

    async def fetch(self) -> Answer:
        """An answer to each query that has one; see `Source`."""
        settings = self._settings
        secret = await self._secret() if settings.authorization or settings.ca_key else {}
        headers = dict(settings.headers) | self._authorization(secret)
        client = await self._connected(secret)
        asked = await asyncio.gather(*(self._ask(client, query, headers) for query in settings.queries))
        failed = {q.name: a for q, a in zip(settings.queries, asked) if isinstance(a, SourceError)}
        series = tuple(a for a in asked if isinstance(a, Series))
        if not series:
            raise next(iter(failed.values()))
        return Answer(series, failed)

    async def close(self) -> None:
        """Give up connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _secret(self) -> Mapping[str, bytes]:
        name = self._settings.secret_name
        where = f"Secret {self._namespace}/{name}"
        try:
            path = SECRETS.path(self._namespace, name)
            obj = await self._session.request("GET", path, timeout_seconds=self._timeout, attempts=1)
            return {k: base64.b64decode(v, validate=True) for k, v in (obj.get("data") or {}).items()}
        except NotFound as error:
            raise SourceError("SecretMissing", f"there is no {where}") from error
        except Forbidden as error:
            raise SourceError("SecretForbidden", f"the operator's Role does not let it get {where}") from error
        except (KubeError, binascii.Error) as error:
            raise SourceError("SecretUnreadable", f"{where}: {error}") from error

    def _key(self, secret: Mapping[str, bytes], key: str) -> bytes:
        if not secret.get(key):
            where = f"Secret {self._namespace}/{self._settings.secret_name}"
            raise SourceError("SecretMissing", f"{where} has no key {key}, or the key is empty")
        return secret[key]

    def _authorization(self, secret: Mapping[str, bytes]) -> dict[str, str]:
        if self._settings.authorization is None:
            return {}
        kind, key = self._settings.authorization
        value = self._key(secret, key).strip()
        text = base64.b64encode(value).decode() if kind == "Basic" else value.decode(errors="replace")
        if not (text.isascii() and text.isprintable()):
            raise SourceError(
                "SecretUnreadable", f"key {key} of the Secret holds characters that a header can't contain"
            )
        return {"Authorization": f"{kind} {text}"}

    async def _connected(self, secret: Mapping[str, bytes]) -> HttpClient:
        """A client that trusts whom it should; a new one when the Secret's certificates have changed."""
        settings = self._settings
        trusted = self._key(secret, settings.ca_key) if settings.ca_key else b""
        if self._client is None or trusted != self._trusted:
            await self.close()
            try:
                context = ssl.create_default_context(cadata=trusted.decode() if trusted else None)
            except (ssl.SSLError, ValueError) as error:
                message = f"key {settings.ca_key} of the Secret holds no certificates in PEM: {error}"
                raise SourceError("InvalidCA", message) from error
            if settings.insecure_skip_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._client = HttpClient(context)
            self._trusted = trusted
        return self._client

    async def _ask(
        self, client: HttpClient, query: PrometheusQuery, headers: Mapping[str, str]
    ) -> Series | SourceError:
        address = self._settings.address
        params = {"query": query.expression.replace("$window", self._window)} | WHOLE_ANSWERS
        limits = Limits(self._timeout, MAX_BYTES)
        try:
            url = f"{address}/api/v1/query"
            response = await client.get(url, limits, named=address, params=params, headers=headers)
            if response.status != 200:
                raise prometheus_error(response)
            covered = 0.0 if query.statistic == "latest" else float(WINDOW_SECONDS[self._window])
            # As much as thousands of nodes' is not read on the loop that schedules
            async with self._reading:
                label = self._settings.node_label
                return await asyncio.to_thread(read_vector, response.body, query, label, covered)
        except SourceError as error:
            return error


class _Data(msgspec.Struct, gc=False):
    resultType: str
    result: list[msgspec.Raw]


class _Answer(msgspec.Struct, gc=False):
    data: _Data
    isPartial: bool | None = None
    warnings: list[str] | None = None


_ANSWER: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(_Answer)


@lru_cache(maxsize=16)
def _samples_by(node_label: str) -> msgspec.json.Decoder[Any]:
    """Decodes a sample with no label but this one: others may be long, and of any number.

    Its types are kept: they are cycles of objects, which the collector of garbage would have to find at each answer.
    """
    labels = msgspec.defstruct("Labels", [("node", str, "")], rename={"node": node_label}, gc=False)
    sample = msgspec.defstruct("Sample", [("metric", labels), ("value", tuple[Any, Any])], gc=False)
    return msgspec.json.Decoder(sample)


def read_vector(payload: bytes, query: PrometheusQuery, node_label: str, covered_seconds: float) -> Series:
    """The answer to an instant query.

    Raises:
        SourceError: it is not valid.
    """
    if has_too_many_values(payload, MAX_VALUES):
        raise SourceError("BadAnswer", f"an answer of more than {MAX_VALUES} values")
    try:
        # To decode all at once would hold the interpreter, and so the loop of another thread, for a second
        answer = _ANSWER.decode(payload)
        data = answer.data
        if lacks := missing_data({"isPartial": answer.isPartial, "warnings": answer.warnings}):
            raise SourceError("BadAnswer", lacks)
        if data.resultType != "vector":
            raise SourceError("BadAnswer", f"returns a {data.resultType} instead of one value for each node")
        if len(data.result) > _MAX_SERIES:
            raise SourceError(
                "BadAnswer", f"returns {len(data.result)} series: the query must return one for each node"
            )
        values: dict[str, tuple[float, float]] = {}
        ambiguous: set[str] = set()
        decoder = _samples_by(node_label)
        for text in data.result:
            sample = decoder.decode(text)
            name = without_port(sample.metric.node)
            at, value = sample.value
            if name in values:
                ambiguous.add(name)
            values[name] = float(value), float(at)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SourceError("BadAnswer", f"is not an answer of Prometheus: {error!r}") from error
    unique = {name: value for name, value in values.items() if name not in ambiguous}
    return Series(query.resource, query.statistic, unique, covered_seconds, ambiguous=frozenset(ambiguous))


def without_port(name: str) -> str:
    """``10.0.0.1`` of ``10.0.0.1:9100``, ``fd00::1`` of ``[fd00::1]:9100``; names without a port as they are."""
    host, colon, port = name.rpartition(":")
    if colon and port.isdigit() and (":" not in host or host.startswith("[")):
        name = host
    return name.removeprefix("[").removesuffix("]")
