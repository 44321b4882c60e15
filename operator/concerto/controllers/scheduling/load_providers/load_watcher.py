"""The load of nodes from a load watcher, Trimaran's ``watcherAddress``: one document with all nodes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import orjson

from concerto.api.prometheus_queries import Statistic
from concerto.controllers.runtime.http_source import HttpClient, Limits, SourceError
from concerto.controllers.runtime.page_decoding import has_too_many_values
from concerto.controllers.scheduling.load_providers.prometheus import MAX_BYTES, MAX_VALUES
from concerto.controllers.scheduling.load_providers.source import Answer
from concerto.scheduling.state.provided_load import INDEX, RESOURCES, Series

_STATISTICS: dict[str, Statistic] = {"AVG": "average", "STD": "deviation", "LATEST": "latest"}


class LoadWatcherSource:
    """Reads ``/watcher``."""

    def __init__(self, address: str, timeout_seconds: float) -> None:
        """Nothing is asked yet; the address is a URL without ``/watcher``."""
        self._url = f"{address}/watcher"
        self._limits = Limits(timeout_seconds, MAX_BYTES)
        self._client: HttpClient | None = None

    async def fetch(self) -> Answer:
        """One document; see `Source`."""
        if self._client is None:
            self._client = HttpClient()
        response = await self._client.get(self._url, self._limits)
        if response.status != 200:
            message = f"{self._url} answered {response.status}: a load watcher answers 200 with metrics"
            raise SourceError("BadAnswer", message)
        return Answer(await asyncio.to_thread(read_watcher, response.body))

    async def close(self) -> None:
        """Give up connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None


class _Document(msgspec.Struct, gc=False):
    window: dict[str, Any]
    data: dict[str, msgspec.Raw]


_DOCUMENT: msgspec.json.Decoder[_Document] = msgspec.json.Decoder(_Document)
_NODES: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_watcher(payload: bytes) -> tuple[Series, ...]:
    """The cpu and memory metrics of a load watcher's document, in upstream's form or in that of Trimaran's proposal.

    A value that is not a number is NaN, and a node with two values of one statistic has none: both cost that node only.

    Raises:
        SourceError: it is not such a document.
    """
    if has_too_many_values(payload, MAX_VALUES):
        raise SourceError("BadAnswer", f"an answer of more than {MAX_VALUES} values")
    try:
        # To decode all at once would hold the interpreter, and so the loop of another thread, for a second
        document = _DOCUMENT.decode(payload)
        start, end = float(document.window["start"]), float(document.window["end"])
        nodes = document.data
        if "NodeMetricsMap" in nodes:
            nodes = _NODES.decode(nodes["NodeMetricsMap"])
        found: dict[tuple[str, Statistic], dict[str, tuple[float, float]]] = defaultdict(dict)
        counts: Counter[tuple[str, Statistic, str]] = Counter()
        for name, text in nodes.items():
            for resource, statistic, value in _metrics(orjson.loads(bytes(text))):
                found[resource, statistic][name] = (value, end)
                counts[resource, statistic, name] += 1
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SourceError("BadAnswer", f"is not an answer of a load watcher: {error!r}") from error
    return tuple(
        Series(
            resource,
            statistic,
            {name: value for name, value in values.items() if counts[resource, statistic, name] == 1},
            0.0 if statistic == "latest" else max(end - start, 0.0),
            ambiguous=frozenset(name for name in values if counts[resource, statistic, name] > 1),
        )
        for (resource, statistic), values in sorted(found.items(), key=lambda item: (item[0][0], INDEX[item[0][1]]))
    )


def _metrics(node: Any) -> Iterator[tuple[str, Statistic, float]]:
    """Resource, statistic and fraction of the machine of each metric of a node that is of cpu or memory."""
    if not isinstance(node, Mapping):  # the proposal's example has tags and metadata beside the nodes
        return
    for metric in node.get("metrics") or ():
        resource = str(metric.get("type", "")).lower()
        # Upstream's form has the operator here, and the proposal's has it in rollup
        operator = str(metric.get("operator") or metric.get("rollup") or "").upper()
        if resource in RESOURCES and operator in _STATISTICS:
            yield resource, _STATISTICS[operator], _fraction(metric.get("value"))


def _fraction(percent: Any) -> float:
    is_number = isinstance(percent, int | float) and not isinstance(percent, bool)
    return float(percent) / 100.0 if is_number else float("nan")
