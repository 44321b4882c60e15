"""The use of nodes from metrics.k8s.io, as metrics-server serves it, and windows of what was polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

from concerto.api.quantities import parse_duration, parse_quantity
from concerto.api.timestamps import parse_timestamp
from concerto.controllers.runtime.page_decoding import decode_foreign_list
from concerto.controllers.scheduling.load_providers.poll_windows import PollWindows
from concerto.controllers.scheduling.load_providers.source import Answer, SourceError
from concerto.kube import Forbidden, KubeError, NotFound, Resource, Session
from concerto.kube.reflector import in_turns
from concerto.scheduling.state.provided_load import RESOURCES, Series

NODE_METRICS = Resource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", False)
MAX_BYTES = 64 * 2**20
"""Of an answer: 5,000 nodes of 12 KiB. NodeMetrics have all labels of their nodes, of which there may be hundreds."""
_ITEMS_A_TURN = 100
_READ = ("timestamp", "window", "usage")
_UNITS = {"cpu": 1000.0, "memory": 1.0}  # to millicores and bytes


class MetricsServerSource:
    """Lists NodeMetrics, and keeps what it has listed over the last window."""

    def __init__(
        self, session: Session, timeout_seconds: float, window_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Nothing is asked yet.

        Args:
            session: the way to the API server.
            timeout_seconds: for each answer.
            window_seconds: over which means and deviations are.
            clock: seconds, never jumping.
        """
        self._session = session
        self._timeout = timeout_seconds
        self._windows = PollWindows(window_seconds)
        self._clock = clock

    async def fetch(self) -> Answer:
        """One list; see `Source`."""
        try:
            listed = await self._session.get_foreign(
                NODE_METRICS.path(), timeout_seconds=self._timeout, max_bytes=MAX_BYTES, decode=decode_foreign_list
            )
            items = [_reading(item) async for item in in_turns(listed.get("items") or (), _ITEMS_A_TURN)]
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceError("BadAnswer", f"metrics.k8s.io: cannot be read: {error!r}") from error
        except NotFound as error:
            raise SourceError("NotServed", "the API server serves no metrics.k8s.io: install metrics-server") from error
        except Forbidden as error:
            raise SourceError("Unauthorized", str(error)) from error
        except KubeError as error:
            timed_out = isinstance(error.__cause__, TimeoutError)
            raise SourceError("Timeout" if timed_out else "Unreachable", str(error)) from error
        try:
            series = await asyncio.to_thread(read_node_metrics, {"items": items})
            return Answer(self._windows.add(series, self._clock()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError("BadAnswer", f"metrics.k8s.io: cannot be read: {error!r}") from error

    async def close(self) -> None:
        """The session is not ours."""


def _reading(item: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a NodeMetrics that is read: decoded, its labels take several times as much memory as their text."""
    return {"metadata": {"name": item["metadata"]["name"]}} | {name: item[name] for name in _READ if name in item}


def read_node_metrics(listed: Mapping[str, Any]) -> tuple[Series, ...]:
    """A NodeMetricsList; what is no quantity is not a number, nor is the time of what has none.

    Raises:
        ValueError: a duration is not valid.
        KeyError: a part is missing.
    """
    items = listed.get("items") or ()
    covered = max((parse_duration(item["window"]) for item in items if "window" in item), default=0.0)
    return tuple(
        Series(
            resource,
            "latest",
            {
                item["metadata"]["name"]: (
                    _UNITS[resource] * _number(parse_quantity, item["usage"][resource]),
                    _number(parse_timestamp, item.get("timestamp")),
                )
                for item in items
                if resource in (item.get("usage") or {})
            },
            covered,
            amounts=True,
        )
        for resource in RESOURCES
    )


def _number(parse: Callable[[str], SupportsFloat], value: Any) -> float:
    """NaN if it is missing: one node's fault does not affect the others."""
    try:
        return float(parse(value))
    except (ValueError, TypeError):
        return float("nan")
