"""A client of the load-watcher API, written from its published JSON alone, as Trimaran's plugins read it.

It shares no code with the server: ``data.NodeMetricsMap[node].metrics[{name, type, operator, rollup, value}]``, where
type is CPU, Memory, Bandwidth or Storage, operator AVG, STD or Latest, and value a percentage.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What a plugin takes of a node: percent of the machine.

    Attributes:
        average: mean over the window.
        deviation: standard deviation over the window.
        latest: the last measurement.
    """

    average: float
    deviation: float
    latest: float


@dataclass(frozen=True)
class WatcherMetrics:
    """One answer.

    Attributes:
        source: who measured.
        duration: of the window.
        start: of the window, Unix seconds.
        end: of the window, Unix seconds.
        loads: by node and type.
    """

    source: str
    duration: str
    start: int
    end: int
    loads: dict[str, dict[str, Load]]


class WatcherClient:
    """Reads ``/watcher`` at an address."""

    def __init__(self, address: str) -> None:
        """The address is Trimaran's ``watcherAddress``: http://host:port."""
        self._address = address

    def all(self) -> WatcherMetrics:
        """Metrics of all nodes."""
        return self._get("/watcher")

    def host(self, name: str) -> WatcherMetrics | None:
        """Metrics of one node; None if the watcher does not know it."""
        try:
            return self._get(f"/watcher?host={name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _get(self, path: str) -> WatcherMetrics:
        with urllib.request.urlopen(self._address + path, timeout=10) as answer:
            body = json.load(answer)
        loads: dict[str, dict[str, Load]] = {}
        for node, entry in body["data"]["NodeMetricsMap"].items():
            values: dict[str, dict[str, float]] = {}
            for metric in entry["metrics"]:
                values.setdefault(metric["type"], {})[metric["operator"]] = float(metric["value"])
            loads[node] = {t: Load(v["AVG"], v["STD"], v["Latest"]) for t, v in values.items()}
        window = body["window"]
        return WatcherMetrics(body["source"], window["duration"], window["start"], window["end"], loads)
