"""What becomes of one of the agent's objects at the API server does not keep the other waiting."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from dataclasses import replace

import pytest
from test_measurement import WALL, Run

from concerto.api.nodecapacity import AgentInfo
from concerto.capacity.publish_rule import PublishSettings
from concerto.kube.errors import api_error
from concerto.kube.resources import NODE_CAPACITIES, SUBSPACE_SNAPSHOTS
from concerto_agent.metrics import Counters
from concerto_agent.status_publisher import PublisherSettings, Sources, StatusPublisher, Timing
from support.node_trees import Machine
from support.waiting import eventually

SETTINGS = PublisherSettings(
    PublishSettings(min_interval_seconds=0.0, steady_interval_seconds=0.0), first_backoff_seconds=60.0
)


class Api:
    """Takes the statuses of one kind; those of the other are refused, or have no answer."""

    def __init__(self, taken: str, hangs: bool) -> None:
        self.taken, self.hangs = taken, hangs
        self.asked: Counter[str] = Counter()

    def saw(self, resource, obj):
        pass

    async def read(self, resource):
        return None

    async def write_status(self, resource, status):
        self.asked[resource.kind] += 1
        if resource.kind != self.taken:
            if self.hangs:
                await asyncio.sleep(3600)
            raise api_error(403, {"reason": "Forbidden", "message": "a policy"})
        return {"metadata": {"uid": "u"}, "status": {"conditions": status["conditions"]}}


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "hangs"])
async def test_the_capacity_is_published_while_the_model_is_not(tmp_path, hangs):
    api, run = Api(NODE_CAPACITIES.kind, hangs), Run(Machine(tmp_path))
    publisher, running = started(api)
    measured = [run.second() for _ in range(5)]
    for number, each in enumerate(measured, 1):
        publisher.offer(replace(each, generation=number))
        await eventually(lambda number=number: api.asked[NODE_CAPACITIES.kind] >= number)
    assert api.asked[SUBSPACE_SNAPSHOTS.kind] == 1, "it is tried again after its pause"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "hangs"])
async def test_what_pods_cost_is_published_while_the_capacity_is_not(tmp_path, hangs):
    api, run = Api(SUBSPACE_SNAPSHOTS.kind, hangs), Run(Machine(tmp_path))
    publisher, running = started(api)
    publisher.offer(run.second())
    await eventually(lambda: api.asked[SUBSPACE_SNAPSHOTS.kind] == 1)
    assert api.asked[NODE_CAPACITIES.kind] == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_model_that_is_refused_is_tried_less_and_less_often(tmp_path, monkeypatch):
    """What is offered while it is not time for the next look is no success."""
    api, run, failures = Api(NODE_CAPACITIES.kind, hangs=False), Run(Machine(tmp_path)), []
    monkeypatch.setattr(StatusPublisher, "_backoff", lambda self, number, error: failures.append(number) or 0.0)
    publisher, running = started(api)
    measured = [run.second() for _ in range(3)]
    for number, each in enumerate(measured, 1):
        for due in (math.inf, -math.inf):
            publisher._subspace_due = due
            publisher.offer(each)
            await eventually(lambda: not publisher._subspace_offered.is_set())
        await eventually(lambda number=number: len(failures) == number)
    assert failures == [0, 1, 2]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def started(api: Api) -> tuple[StatusPublisher, asyncio.Task[None]]:
    sources = Sources(
        pods_known=lambda: True,
        pod_events=lambda: "Scan",
        kinds=lambda: (),
        kinds_news=lambda: False,
        recall_kinds=lambda kinds, age: None,
    )
    publisher = StatusPublisher(
        api, AgentInfo("v", "i", "Machine", "Scan"), SETTINGS, Counters(), sources,
        Timing(time.monotonic, lambda: WALL, random.Random(0)),
    )  # fmt: skip
    synced = asyncio.Event()
    synced.set()
    return publisher, asyncio.create_task(publisher.run(synced))
