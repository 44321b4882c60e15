"""An independent recorder: its own watches through pykube-ng, none of Concerto's code.

It writes down every version of every pod, Node, namespace, NodeCapacity and in-flight PodReservation, in the order of
their resource versions, and afterwards judges each assignment (`recorder_verdict`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pykube
import requests

from e2e.testbed.recorder_leaders import Event
from e2e.testbed.recorder_lists import list_all
from e2e.testbed.recorder_verdict import IN_FLIGHT, Verdict, revision_of, verdict_of, writer_of
from e2e.testbed.waiting import PATIENCE_SECONDS

PATHS = {
    "pods": ("v1", "pods"),
    "nodes": ("v1", "nodes"),
    "namespaces": ("v1", "namespaces"),
    "nodecapacities": ("concerto.dev/v1alpha1", "nodecapacities"),
    "podreservations": ("concerto.dev/v1alpha1", "podreservations"),
}


class Recorder:
    """Watches from a background thread per kind; `stop()` before `verify()`."""

    def __init__(self, kubeconfig: str) -> None:
        self._config = pykube.KubeConfig.from_file(kubeconfig)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._pods: list[tuple[float, dict[str, Any]]] = []
        self._threads: list[threading.Thread] = []
        self.gaps: list[str] = []

    def start(self) -> Recorder:
        """Begin to watch; returns once every kind has been listed."""
        ready = [threading.Event() for _ in PATHS]
        for kind, event in zip(PATHS, ready):
            thread = threading.Thread(target=self._watch, args=(kind, event), daemon=True, name=f"recorder-{kind}")
            thread.start()
            self._threads.append(thread)
        for event in ready:
            if not event.wait(PATIENCE_SECONDS):
                raise TimeoutError(f"the recorder could not list its kinds within {PATIENCE_SECONDS:.0f} s")
        return self

    def stop(self) -> None:
        """Stop watching; what is recorded stays."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self, kind: str, ready: threading.Event) -> None:
        api = pykube.HTTPClient(self._config, timeout=60)
        version, resource = PATHS[kind]
        since: str | None = None
        while not self._stop.is_set():
            try:
                if since is None:
                    items, since = list_all(api, version, resource)
                    self._relisted(kind, items, since)
                    ready.set()
                for event in self._stream(api, version, resource, since):
                    obj = event["object"]
                    if event["type"] == "ERROR":
                        # Events between here and the relist are lost to us; the verdict must say so.
                        self.gaps.append(f"{kind}: {obj.get('message')}")
                        since = None
                        break
                    since = obj["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._note(event["type"], kind, obj)
            except (requests.RequestException, json.JSONDecodeError, pykube.exceptions.HTTPError):
                self._stop.wait(0.2)  # the API server is away: go on from the last revision seen

    def _stream(self, api: Any, version: str, resource: str, since: str) -> Iterator[dict[str, Any]]:
        params = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": since, "timeoutSeconds": 5}
        with contextlib.closing(api.get(version=version, url=resource, params=params, stream=True)) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if self._stop.is_set():
                    return
                if line:
                    yield json.loads(line)

    def _relisted(self, kind: str, items: list[dict[str, Any]], revision: str) -> None:
        """What a list shows; what it no longer shows has gone by now, at the latest."""
        present = {item["metadata"]["uid"] for item in items}
        with self._lock:
            last = {obj["metadata"]["uid"]: (change, obj) for _, k, change, obj in self._events if k == kind}
        for uid, (change, obj) in last.items():
            if uid not in present and change != "DELETED":
                gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": revision}}
                self._note("DELETED", kind, gone)
        for item in items:
            self._note("LISTED", kind, item)

    def _note(self, change: str, kind: str, obj: dict[str, Any]) -> None:
        with self._lock:
            self._events.append((revision_of(obj), kind, change, obj))
            if kind == "pods":
                self._pods.append((time.monotonic(), obj))

    def latest(self, kind: str) -> list[dict[str, Any]]:
        """The newest version seen of each object of a kind that has not been deleted."""
        with self._lock:
            events = sorted((e for e in self._events if e[1] == kind), key=lambda e: e[0])
        found = {obj["metadata"]["uid"]: (change, obj) for _, _, change, obj in events}
        return [obj for change, obj in found.values() if change != "DELETED"]

    def pod_versions(self) -> list[tuple[float, dict[str, Any]]]:
        """All versions of pods, in the order in which they came, and when each did: monotonic seconds."""
        with self._lock:
            return list(self._pods)

    def writers(self) -> set[str]:
        """The instances of the operator that have written placement records so far."""
        with self._lock:
            records = [obj["metadata"] for _, kind, _, obj in self._events if kind == "podreservations"]
        return {writer_of(m["name"]) for m in records if IN_FLIGHT in m.get("labels", {})}

    def verify(self) -> Verdict:
        """Judge what was recorded so far."""
        with self._lock:
            return verdict_of(list(self._events), bool(self.gaps))
