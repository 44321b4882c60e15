"""Concerto's placement of random gangs beside the real kube-scheduler's, and beside the rules of the API."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from concerto.kube import Session
from concerto.kube.errors import Invalid
from e2e.testbed.placement import gang_rules, ours
from e2e.testbed.placement.gang_rules import Placed
from e2e.testbed.placement.gang_scenarios import RandomGang, gang_scenario
from e2e.testbed.placement.live import LiveScenario
from e2e.testbed.placement.live_gangs import Asked, KubeGangs
from e2e.testbed.placement.random_objects import Object
from e2e.testbed.placement.rules import World

ATTEMPTS = 4
"""kube-scheduler may be asked before it has seen all nodes and pods, and it chooses at random among equal nodes."""
_FOUND = {
    (True, True): "placed by both",
    (False, False): "placed by neither",
    (True, False): "placed by Concerto alone",
    (False, True): "placed by kube-scheduler alone",
}


@dataclass
class GangComparison:
    """What was found over all scenarios.

    Attributes:
        session: connection to the API server.
        kube: asks kube-scheduler.
        differences: one text for each gang that kube-scheduler alone places, and for each placement that breaks a rule.
        counts: gangs by what became of them.
        searches: whether to look for placements of gangs that neither places, which may take minutes.
        missed: gangs that neither places, although a placement exists.
    """

    session: Session
    kube: KubeGangs
    searches: bool = False
    differences: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    async def scenario(self, number: int) -> None:
        """Place the gangs of one scenario."""
        found = gang_scenario(number)
        there = LiveScenario(self.session, found.cluster)
        await there.create()
        for gang in found.gangs:
            await _delete(there, gang.gone)
            await self._gang(there, gang)
        await there.remove()
        await self.kube.remove()

    async def _gang(self, there: LiveScenario, gang: RandomGang) -> None:
        for attempt in range(ATTEMPTS):
            gang = gang.renamed(f"{gang.name}-anew") if attempt else gang
            try:
                asked = await self.kube.ask(gang)
            except Invalid:
                there.refused += 1
                return
            own = _own_placement(there.world, asked)
            same = bool(own) == bool(asked.placed)
            if same or attempt + 1 == ATTEMPTS:
                break
            self.counts["asked again"] += 1
            await self.kube.take_back(gang, asked.pods, there)
        self._judge(there.world, gang, asked, own)
        placed = {pod["metadata"]["name"] for pod, _ in asked.placed}
        there.world.pods += [{**pod, "spec": {**pod["spec"], "nodeName": node}} for pod, node in asked.placed]
        await self.kube.take_back(gang, [p for p in asked.pods if p["metadata"]["name"] not in placed], there)

    def _judge(self, world: World, gang: RandomGang, asked: Asked, own: Placed) -> None:
        found = _FOUND[bool(own), bool(asked.placed)]
        self.counts[found] += 1
        problems = [f"ours: {fault}" for fault in gang_rules.faults(world, gang.min_count, own)]
        problems += [f"kube-scheduler: {fault}" for fault in gang_rules.faults(world, gang.min_count, asked.placed)]
        if asked.placed_early:
            problems.append(f"kube-scheduler: {asked.placed_early} pods were placed before the gang was complete")
        if gang.early and _own_placement(world, asked, gang.early):
            problems.append("ours: pods are placed before the gang is complete")
        if asked.placed and not own:
            problems.append(f"{found}: {[(pod['metadata']['name'], node) for pod, node in asked.placed]}")
        if self.searches and not asked.placed and not own and gang_rules.placement(world, gang.min_count, asked.pods):
            self.missed.append(gang.name)
        if problems:
            self.differences.append("\n  ".join([f"{gang.name}:", *problems, _excerpt(gang)]))


def _own_placement(world: World, asked: Asked, count: int | None = None) -> Placed:
    """Where Concerto places the gang, if only so many of its pods are there."""
    pods = {pod["metadata"]["name"]: pod for pod in asked.pods[:count]}
    return [(pods[name], node) for name, node in ours.ask_gang(world, asked.group, [*pods.values()])]


async def _delete(there: LiveScenario, names: list[str]) -> None:
    gone = [pod for pod in there.world.pods if pod["metadata"]["name"] in names]
    there.world.pods = [pod for pod in there.world.pods if pod not in gone]
    for pod in gone:
        await there.take_back(pod)


def _excerpt(gang: RandomGang) -> str:
    specs = Counter(json.dumps(_without_group(pod)) for pod in gang.pods)
    return "\n  ".join([f"minCount {gang.min_count}", *(f"{count} pods {spec}" for spec, count in specs.items())])


def _without_group(pod: Object) -> Object:
    return {k: v for k, v in pod["spec"].items() if k in ("containers", "affinity", "nodeSelector", "tolerations")} | {
        "spread": pod["spec"].get("topologySpreadConstraints")
    }
