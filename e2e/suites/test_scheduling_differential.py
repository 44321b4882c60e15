"""Concerto's filters against the real kube-scheduler, and against the rules of the API, on random clusters.

Each scenario is a small cluster, and a few pods that kube-scheduler is asked for one after another. Concerto's cycle is
given the same objects, as the API server has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from concerto.kube import ClusterConfig, Session
from concerto.kube.errors import Invalid
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.placement import live, ours
from e2e.testbed.placement.answer import Answer
from e2e.testbed.placement.live import KubeScheduler, LiveScenario
from e2e.testbed.placement.rules import World
from e2e.testbed.placement.scenarios import Object, scenario
from e2e.testbed.requirements import require_binaries

SCENARIOS = int(os.environ.get("SCHEDULER_SCENARIOS", "300"))
FIRST = int(os.environ.get("SCHEDULER_FIRST_SCENARIO", "0"))
"""Number of the first scenario: SCHEDULER_FIRST_SCENARIO=17 SCHEDULER_SCENARIOS=1 looks at one alone."""
ATTEMPTS = 4
"""kube-scheduler sees nodes, pods and volumes through watches of their own: it may be asked before it has seen all."""


@pytest.fixture(scope="module")
def plane(say: Callable[[str], None]) -> Iterator[LocalControlPlane]:
    """A control plane with kube-scheduler, and without controllers that touch nodes and pods."""
    flags = {"apiserver_flags": live.APISERVER_FLAGS, "controller_manager_flags": live.CONTROLLER_MANAGER_FLAGS}
    with LocalControlPlane(require_binaries(say), scheduler=True, **flags) as started:
        yield started


class Comparison:
    """What was found over all scenarios.

    Attributes:
        differences: one text for each pod that the two do not agree on.
        counts: pods by what became of them.
    """

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.counts: Counter[str] = Counter()

    async def scenario(self, session: Session, kube: KubeScheduler, number: int) -> None:
        """Place the pods of one scenario."""
        found = scenario(number)
        there = LiveScenario(session, found)
        await there.create()
        for body in found.pods:
            await self._pod(kube, there, body)
        await there.remove()
        self.counts["refused by the API server"] += there.refused

    async def _pod(self, kube: KubeScheduler, there: LiveScenario, body: Object) -> None:
        for attempt in range(ATTEMPTS):
            try:
                pod, answer = await kube.ask(body)
            except Invalid:
                there.refused += 1
                return
            problems = compare(there.world, pod, answer)
            if not problems or attempt + 1 == ATTEMPTS:
                break
            self.counts["asked again"] += 1
            await there.take_back(pod)
        self.counts["placed" if answer.node else "gated" if answer.waits else "without a node"] += 1
        if problems:
            self.differences.append("\n  ".join([f"{pod['metadata']['name']}:", *problems, _excerpt(pod)]))
        await there.place(pod, answer)


def compare(world: World, pod: Object, kube: Answer) -> list[str]:
    """What is wrong with Concerto's answer, beside kube-scheduler's and the rules."""
    (own, feasible), broken = ours.ask(world, pod), world.broken(pod)
    allowed = {node for node, rules in broken.items() if not rules}
    found = []
    if (bool(own.node), own.waits) != (bool(kube.node), kube.waits):
        found.append(f"ours: {own}\n  kube-scheduler: {kube}")
    elif not is_same_message(own.message, kube.message):
        found.append(f"ours:           {own.message}\n  kube-scheduler: {kube.message}")
    if kube.node and kube.node not in feasible:
        found.append(f"kube-scheduler takes {kube.node}, which is not feasible: {sorted(feasible)}")
    if feasible != allowed:
        found.append(f"feasible {sorted(feasible)}, and the rules say { ({n: sorted(r) for n, r in broken.items()}) }")
    return found


def is_same_message(own: str, kube: str) -> bool:
    """Whether they say the same, but for what kube-scheduler writes where a pod's own objects refuse it everywhere.

    There its plugin DynamicResources fails, as it has no state, and "not found" stands in the place of preemption.
    """
    reasons, _, _ = own.partition(" preemption: ")
    return kube in (own, f"{reasons} not found")


def _excerpt(pod: Object) -> str:
    left_out = ("tolerations", "serviceAccount", "dnsPolicy", "schedulerName")
    return json.dumps({k: v for k, v in pod["spec"].items() if k not in left_out})


@pytest.mark.timeout(3600)
async def test_the_same_pods_find_a_node_and_the_others_none_for_the_same_reasons(
    plane: LocalControlPlane, say: Callable[[str], None]
):
    comparison = Comparison()
    async with await Session.open(ClusterConfig.from_kubeconfig(plane.kubeconfig)) as session:
        await live.prepare(plane, session)
        kube = KubeScheduler(session)
        following = asyncio.create_task(kube.run())
        try:
            for number in range(FIRST, FIRST + SCENARIOS):
                await comparison.scenario(session, kube, number)
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
    counts = ", ".join(f"{count} {what}" for what, count in comparison.counts.items())
    say(f"Concerto and kube-scheduler: {SCENARIOS} scenarios, {len(comparison.differences)} differences ({counts})")
    assert not comparison.differences, "\n".join(comparison.differences)
    assert comparison.counts["placed"] and comparison.counts["without a node"]
