"""CPU and memory of an object's pods from the source that it asks for: node agents, metrics.k8s.io, or the fresher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from concerto.api.pod import PodView
from concerto.autoscaling.pods import MetricError
from concerto.controllers.autoscaling.sources.agents import AgentMetrics, Found
from concerto.controllers.autoscaling.sources.resource import PodUsage, ResourceMetrics

Wanted = Literal["Auto", "Agents", "MetricsAPI"]
Source = Literal["Agents", "MetricsAPI", "Mixed"]


@dataclass(frozen=True)
class Readings:
    """What was read.

    Attributes:
        usage: by pod; a pod without a reading is not in it.
        source: where the readings of the object's pods came from.
        trouble: why agents could not be asked or did not answer, as sentences; empty without errors.
    """

    usage: Mapping[str, PodUsage]
    source: Source
    trouble: str = ""


class PodReader:
    """Reads from both."""

    def __init__(self, api: ResourceMetrics, agents: AgentMetrics | None) -> None:
        """Args:
        api: metrics.k8s.io.
        agents: the node agents; None where this operator cannot ask them.
        """
        self._api = api
        self._agents = agents

    async def read(self, namespace: str, pods: Sequence[PodView], wanted: Wanted) -> Readings:
        """Readings of these pods, of one namespace.

        Raises:
            MetricError: no source has any.
        """
        if wanted == "MetricsAPI":
            return Readings(await self._api.usage(namespace), "MetricsAPI")
        found = Found() if self._agents is None else await self._agents.usage(namespace, pods)
        trouble = "; ".join(found.troubles)
        running = {pod.name for pod in pods if pod.phase == "Running" and not pod.deleting}
        if wanted == "Agents":
            if running and not found.usage:
                raise MetricError(f"no node agent has readings of these pods: {_why(self._agents, found)}")
            return Readings(found.usage, "Agents", trouble)
        if running and running <= found.usage.keys():
            return Readings(found.usage, "Agents", trouble)
        try:
            listed = await self._api.usage(namespace)
        except MetricError as error:
            if not found.usage:
                raise MetricError(f"{error}; {trouble}" if trouble else str(error)) from error
            # Some pods are missing then, and the rules count them against the direction that the others point in
            return Readings(found.usage, "Agents", trouble)
        fresher = {
            name: usage
            for name, usage in found.usage.items()
            if name not in listed or usage.timestamp >= listed[name].timestamp
        }
        others = {pod.name for pod in pods} & (listed.keys() - fresher.keys())
        return Readings({**listed, **fresher}, _source(bool(fresher), bool(others)), trouble)


def _source(agents: bool, api: bool) -> Source:
    return "Mixed" if agents and api else "Agents" if agents else "MetricsAPI"


def _why(agents: AgentMetrics | None, found: Found) -> str:
    if agents is None:
        return "this operator does not read metrics from agents (--autoscaling-ask-agents)"
    silent = [f"node {name}: no agent serves them there" for name in found.silent]
    return "; ".join([*found.troubles, *silent]) or "a rate needs two answers, and there is only one yet"
