"""Concerto's filters against the real kube-scheduler, and against the rules of the API, on random clusters.

Each scenario is a small cluster, and a few pods that kube-scheduler is asked for one after another. Concerto's cycle is
given the same objects, as the API server has them. In the scenarios of preemption the nodes are full.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from concerto.kube import ClusterConfig, Session
from concerto.kube.errors import Invalid
from concerto.scheduling.state.cluster import ClusterState
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.placement import live, live_gangs, live_preemption, ours, profiles
from e2e.testbed.placement.answer import Answer
from e2e.testbed.placement.evictions import Eviction, Evictions
from e2e.testbed.placement.gang_comparison import GangComparison
from e2e.testbed.placement.live import KubeScheduler, LiveScenario
from e2e.testbed.placement.live_gangs import KubeGangs
from e2e.testbed.placement.live_preemption import LivePreemption
from e2e.testbed.placement.ours import Followed
from e2e.testbed.placement.preemption_scenarios import preemption_scenario
from e2e.testbed.placement.profiles import WEIGHTS
from e2e.testbed.placement.random_objects import Object
from e2e.testbed.placement.rules import World
from e2e.testbed.placement.scenarios import scenario
from e2e.testbed.requirements import require_binaries

SCENARIOS = int(os.environ.get("SCHEDULER_SCENARIOS", "100"))
FIRST = int(os.environ.get("SCHEDULER_FIRST_SCENARIO", "0"))
"""Number of the first scenario: SCHEDULER_FIRST_SCENARIO=17 SCHEDULER_SCENARIOS=1 looks at one alone."""
EVICTION_SCENARIOS = int(os.environ.get("PREEMPTION_SCENARIOS", "30"))
FIRST_EVICTION = int(os.environ.get("PREEMPTION_FIRST_SCENARIO", "0"))
"""The same for the scenarios of preemption."""
GANG_SCENARIOS = int(os.environ.get("GANG_SCENARIOS", "12"))
FIRST_GANG = int(os.environ.get("GANG_FIRST_SCENARIO", "0"))
"""The same for the scenarios of gangs."""
SEARCHES = os.environ.get("GANG_SEARCH") == "1"
"""Whether to try all placements of the gangs that neither scheduler places."""
ENOUGH = 100
"""With so many scenarios, each score makes a difference in some."""
ATTEMPTS = 4
"""kube-scheduler sees nodes, pods and volumes through watches of their own: it may be asked before it has seen all."""


@pytest.fixture(scope="module")
def plane(say: Callable[[str], None]) -> Iterator[LocalControlPlane]:
    """A control plane with kube-scheduler, and without controllers that touch nodes and pods."""
    binaries = require_binaries(say)
    gangs = live_gangs.FEATURE_FLAGS if binaries.kubernetes >= (1, 37) else ()
    plane = LocalControlPlane(
        binaries,
        scheduler=True,
        apiserver_flags=live.APISERVER_FLAGS,
        controller_manager_flags=live.CONTROLLER_MANAGER_FLAGS,
        scheduler_flags=[*live.SCHEDULER_FLAGS, *live_preemption.SCHEDULER_FLAGS, *gangs],
    )
    plane.scheduler_profiles = profiles.KUBE_SCHEDULER
    with plane as started:
        asyncio.run(_prepare(started))
        yield started


async def _prepare(plane: LocalControlPlane) -> None:
    async with await Session.open(ClusterConfig.from_kubeconfig(plane.kubeconfig)) as session:
        await live.prepare(plane, session)


class Comparison:
    """What was found over all scenarios.

    Attributes:
        differences: one text for each pod that the two do not agree on.
        counts: pods by what became of them.
        scored: by plugin, pods for which it gave nodes different scores.
    """

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.counts: Counter[str] = Counter()
        self.scored: Counter[str] = Counter()

    async def scenario(self, session: Session, kube: KubeScheduler, number: int) -> None:
        """Place the pods of one scenario."""
        found = scenario(number)
        there, followed = LiveScenario(session, found), Followed()
        await there.create()
        for body in found.pods:
            await there.change(body["metadata"]["name"])
            await self._pod(kube, there, followed, body)
        await there.remove()
        self.counts["refused by the API server"] += there.refused

    async def _pod(self, kube: KubeScheduler, there: LiveScenario, followed: Followed, body: Object) -> None:
        for attempt in range(ATTEMPTS):
            try:
                pod, answer = await there.ask(kube, body)
            except Invalid:
                there.refused += 1
                return
            problems = compare(there.world, followed.as_in(there.world), pod, answer)
            if not problems or attempt + 1 == ATTEMPTS:
                break
            self.counts["asked again"] += 1
            await there.take_back(pod)
        self.counts["placed" if answer.node else "gated" if answer.waits else "without a node"] += 1
        self.scored.update(plugin for plugin, scores in answer.scores.items() if len({*scores.values()}) > 1)
        if problems:
            self.differences.append("\n  ".join([f"{pod['metadata']['name']}:", *problems, _excerpt(pod)]))
        await there.place(pod, answer)


def compare(world: World, cluster: ClusterState, pod: Object, kube: Answer) -> list[str]:
    """What is wrong with Concerto's answer in the cluster's state, beside kube-scheduler's and the rules."""
    (own, feasible), broken = ours.ask(cluster, pod), world.broken(pod)
    allowed = {node for node, rules in broken.items() if not rules}
    spreads, nominated = "topologySpreadConstraints" in pod["spec"], pod["status"].get("nominatedNodeName")
    found = []
    if (bool(own.node), own.waits) != (bool(kube.node), kube.waits):
        found.append(f"ours: {own}\n  kube-scheduler: {kube}")
    # kube-scheduler looks at the node that a pod is nominated for even if the pod names others
    elif not (world.nominated or (nominated and "[NodeAffinity]" in own.message)) and not is_same_message(
        own.message, kube.message
    ):
        found.append(f"ours:           {own.message}\n  kube-scheduler: {kube.message}")
    if nominated and (own.node == nominated) != (kube.node == nominated):
        found.append(f"ours on {own.node}, and kube-scheduler's on {kube.node}, and it was nominated for {nominated}")
    if kube.node and kube.node not in feasible:
        found.append(f"kube-scheduler takes {kube.node}, which is not feasible: {sorted(feasible)}")
    if feasible != allowed:
        found.append(f"feasible {sorted(feasible)}, and the rules say { ({n: sorted(r) for n, r in broken.items()}) }")
    return found + [
        f"score {plugin}: {own.scores.get(plugin)}, and kube-scheduler's {scores}"
        for plugin, scores in kube.scores.items()
        if own.scores.get(plugin) != scores
        and not (plugin not in own.scores and len({*scores.values()}) == 1)
        # kube-scheduler leaves the pod-level requests of the pod out of this score alone
        and not (plugin == "NodeResourcesFit" and "resources" in pod["spec"])
        # kube-scheduler counts the nodes that have an image as of the last change of the node that it scores
        and not (plugin == "ImageLocality" and world.images_moved)
        # kube-scheduler takes nodes without a zone and those with an empty one as one zone where it spreads by default
        and not (plugin == "PodTopologySpread" and world.has_empty_zone and not spreads)
        # kube-scheduler takes any of several CSIStorageCapacities: asked again, it may say otherwise
        and not (plugin == "VolumeBinding" and world.differ_by_capacity(pod, own.scores.get(plugin, {}), scores))
    ]


def is_same_message(own: str, kube: str) -> bool:
    """Whether they say the same, but for what kube-scheduler writes where a pod's own objects refuse it everywhere.

    There its plugin DynamicResources fails, as it has no state, and "not found" stands in the place of preemption.
    """
    reasons, _, _ = own.partition(" preemption: ")
    return kube in (own, f"{reasons} not found")


def _excerpt(pod: Object) -> str:
    left_out = ("tolerations", "serviceAccount", "dnsPolicy")
    return json.dumps({k: v for k, v in pod["spec"].items() if k not in left_out})


class EvictionComparison:
    """What was found over all scenarios of preemption.

    Attributes:
        differences: one text for each pod that the two, or one of them and the rules, do not agree on.
        counts: pods by what became of them.
    """

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.counts: Counter[str] = Counter()

    async def scenario(self, session: Session, kube: KubeScheduler, log: Path, number: int) -> None:
        """Make room for the pods of one scenario; from the beginning where they differ, up to ``ATTEMPTS`` times."""
        for attempt in range(ATTEMPTS):
            live_one = LivePreemption(session, kube, log, preemption_scenario(number))
            counts, differences = await self._attempt(live_one, number)
            if not differences or attempt + 1 == ATTEMPTS:
                break
            self.counts["asked again"] += 1
        self.differences += differences
        self.counts += counts

    async def _attempt(self, live_one: LivePreemption, number: int) -> tuple[Counter[str], list[str]]:
        counts: Counter[str] = Counter()
        differences: list[str] = []
        await live_one.create()
        for body in preemption_scenario(number).pods:
            try:
                pod, answer = await live_one.ask(body)
            except Invalid:
                continue
            world = live_one.there.world
            if problems := compare_evictions(world, pod, answer):
                differences.append("\n  ".join([f"{pod['metadata']['name']}:", *problems, _excerpt(pod)]))
                break
            counts["pods were nominated" if answer.nominated else "placed" if answer.node else "waited"] += 1
            counts["victims"] += len(answer.victims)
            await live_one.follow(pod, answer)
        await live_one.remove()
        return counts, differences


def compare_evictions(world: World, pod: Object, kube: Answer) -> list[str]:
    """What is wrong with Concerto's choice of victims, beside kube-scheduler's and the rules."""
    (own, _), rules = ours.ask(ours.cluster_of(world), pod), Evictions(world, pod)
    if (bool(own.node), bool(own.nominated)) != (bool(kube.node), bool(kube.nominated)):
        return [f"ours: {own}", f"kube-scheduler: {kube}"]
    found = []
    if not says_the_same_of_preemption(world, own, kube):
        found += [f"ours: {own.message}", f"kube-scheduler: {kube.message}"]
    if not kube.nominated:
        return found
    best = rules.best()
    for name, answer in (("ours", own), ("kube-scheduler", kube)):
        eviction = Eviction(answer.nominated, answer.victims)
        faults = rules.faults(eviction)
        cost = None if faults else rules.cost(eviction)
        if faults or cost != best:
            found.append(f"{name}: {eviction}: {faults or f'costs {cost}, and the best {best}'}")
    if own.nominated == kube.nominated and own.victims != kube.victims:
        found.append(f"ours: {sorted(own.victims)}, and kube-scheduler: {sorted(kube.victims)}")
    return found


def says_the_same_of_preemption(world: World, own: Answer, kube: Answer) -> bool:
    """Whether both give the same reasons, before and after preemption was tried, whatever node they nominate.

    kube-scheduler says of a node for which pods are nominated what it lacks beside them. Concerto says what the node
    lacks without them, if it lacks anything. So nothing is compared where pods are nominated.
    """
    (before, _, after), (kube_before, _, kube_after) = (a.message.partition(" preemption: ") for a in (own, kube))
    return bool(world.nominated) or (before == kube_before and (bool(kube.nominated) or after == kube_after))


@pytest.mark.timeout(3600)
async def test_the_same_pods_find_a_node_and_the_others_none_for_the_same_reasons(
    plane: LocalControlPlane, say: Callable[[str], None]
):
    comparison = Comparison()
    async with await Session.open(ClusterConfig.from_kubeconfig(plane.kubeconfig)) as session:
        kube = KubeScheduler(session, plane.logs / "kube-scheduler.log")
        async with kube.following():
            for number in range(FIRST, FIRST + SCENARIOS):
                await comparison.scenario(session, kube, number)
    counts, scored = _in_words(comparison.counts), _in_words(comparison.scored)
    say(f"Concerto and kube-scheduler: {SCENARIOS} scenarios, {len(comparison.differences)} differences ({counts})")
    say(f"pods whose nodes had different scores: {scored}")
    assert not comparison.differences, "\n".join(comparison.differences)
    assert comparison.counts["placed"] and comparison.counts["without a node"]
    assert SCENARIOS < ENOUGH or comparison.scored.keys() == WEIGHTS.keys()


@pytest.mark.timeout(3600)
async def test_the_same_pods_are_evicted_or_less_important_ones(plane: LocalControlPlane, say: Callable[[str], None]):
    comparison = EvictionComparison()
    log = plane.logs / "kube-scheduler.log"
    async with await Session.open(ClusterConfig.from_kubeconfig(plane.kubeconfig)) as session:
        kube = KubeScheduler(session, plane.logs / "kube-scheduler.log")
        async with kube.following():
            for number in range(FIRST_EVICTION, FIRST_EVICTION + EVICTION_SCENARIOS):
                await comparison.scenario(session, kube, log, number)
    counts, differences = _in_words(comparison.counts), comparison.differences
    say(
        f"evictions, beside kube-scheduler's: {EVICTION_SCENARIOS} scenarios, {len(differences)} differences ({counts})"
    )
    assert not differences, "\n".join(differences)
    assert comparison.counts["victims"]


@pytest.mark.timeout(3600)
async def test_the_same_gangs_are_placed(plane: LocalControlPlane, say: Callable[[str], None]):
    if not plane.serves_pod_groups:
        pytest.skip("this release has no PodGroups: they came with Kubernetes 1.37 (scheduling.k8s.io/v1beta1)")
    async with await Session.open(ClusterConfig.from_kubeconfig(plane.kubeconfig)) as session:
        kube = KubeGangs(session)
        comparison = GangComparison(session, kube, SEARCHES)
        async with kube.following():
            for number in range(FIRST_GANG, FIRST_GANG + GANG_SCENARIOS):
                await comparison.scenario(number)
    counts, differences = _in_words(comparison.counts), comparison.differences
    missed = f"; {len(comparison.missed)} that neither places fit" if SEARCHES else ""
    say(
        f"gangs, beside kube-scheduler's: {GANG_SCENARIOS} scenarios, {len(differences)} differences ({counts}{missed})"
    )
    assert not differences, "\n".join(differences)
    assert comparison.counts["placed by both"] and comparison.counts["placed by neither"]


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())
