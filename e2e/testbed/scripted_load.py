"""A load of pods that follows a script."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from e2e.testbed.clusters import Cluster, ClusterError
from e2e.testbed.metrics_api import MetricsAPI, Readings
from e2e.testbed.metrics_api.readings import PodReading


class ScriptedLoad:
    """Says each second how much CPU each pod with a label uses; a context manager.

    Attributes:
        millicores: of each pod, from their number.
    """

    def __init__(self, cluster: Cluster, api: MetricsAPI, selector: str, millicores: Callable[[int], int]) -> None:
        """Nothing is said before it is entered.

        Args:
            cluster: where the pods are, in the namespace default.
            api: who says it.
            selector: their labels.
            millicores: see above.
        """
        self.millicores = millicores
        self._cluster, self._api, self._selector = cluster, api, selector
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(1.0):
            try:
                pods = self._cluster.get("pods", "-n", "default", "-l", self._selector)["items"]
            except (ClusterError, subprocess.TimeoutExpired):
                continue  # the API server is busy; what was said holds
            use = {"app": {"cpu": f"{self.millicores(max(len(pods), 1))}m", "memory": "16Mi"}}
            self._api.readings = Readings(
                # over a second, so that a pod's first minute is no matter
                pods={("default", p["metadata"]["name"]): PodReading(p["metadata"]["labels"], use, "1s") for p in pods}
            )
