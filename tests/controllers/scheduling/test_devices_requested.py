"""A pod that requests devices as an extended resource is told why it waits, once the DeviceClasses are known."""

from __future__ import annotations

import asyncio

from support.faulty_server import faulty, says
from support.scheduler_builders import Scheduling, scheduling
from support.scheduling_builders import node, raw_pod
from support.waiting import eventually

GPU = "example.com/gpu"
DEVICE_CLASS = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": GPU}}


async def test_device_classes_are_followed_once_a_pod_requests_such_a_resource_and_then_say_why_it_waits():
    async with faulty([says(200, {})]) as server:
        made = scheduling(server.session)
        made.parts.cluster.set_node(node("n"))
        demanded: list[bool] = []
        made.informers.on_extended_resource = lambda: demanded.append(True)
        made.informers.pods.on_change(None, raw_pod("plain", requests={"cpu": "100"}))
        made.informers.pods.on_change(None, raw_pod("runs", nodeName="n", requests={GPU: "1"}))
        assert not demanded
        made.informers.pods.on_change(None, raw_pod("waits", requests={GPU: "1"}))
        assert demanded
        running = asyncio.create_task(made.scheduler.run())
        queue = made.parts.pending.queue
        await eventually(lambda: next(queue.heads(1000.0), None) is None)
        assert "Insufficient example.com/gpu" in message(made)
        made.informers.device_classes.on_change(None, DEVICE_CLASS)
        assert next(queue.heads(1000.0), None) is not None, "it is looked at again"
        await eventually(lambda: "of DeviceClass gpu, which Concerto does not evaluate" in message(made))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def message(made: Scheduling) -> str:
    """Why the pod has no node, as its condition will say."""
    text: str = made.parts.reporter._waiting["uid-waits"].message
    return text
