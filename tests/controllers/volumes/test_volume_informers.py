"""Which pods are looked at again when storage objects change, and which waits end."""

import asyncio

from concerto.api.volumes import ClaimKey, VolumeBindings
from concerto.controllers.volumes.informers import VolumeInformers
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty
from support.scheduler_builders import scheduling
from support.scheduling_builders import node, pod
from support.volume_builders import claim, mounts, raw_claim, raw_volume, store

NOW = 1000.0


async def test_a_claim_of_others_requeues_nobody():
    async with faulty([]) as server:
        made = scheduling(server.session)
        parts, queue = made.parts, made.parts.pending.queue
        informers = VolumeInformers(parts.cluster.volumes, parts.volumes, made.context.metrics, parts.pending)
        waiting = pod("p", schedulerName="concerto", **mounts("data"))
        parts.pending.add_pod(waiting)

        def is_looked_at(act, *objects):
            queue.mark_all([(waiting.uid, Change.VOLUMES, False)], NOW)
            act(*objects)
            found = [each.name for each in queue.heads(NOW)]
            queue.requeue_all()
            return found == ["p"]

        data, logs = raw_claim(), raw_claim("logs")
        assert not is_looked_at(informers.on_claim, None, logs)
        assert is_looked_at(informers.on_claim, None, data)
        assert is_looked_at(informers.on_claim, data, raw_claim(version="2"))
        assert is_looked_at(informers.on_claim, data, None)
        assert not is_looked_at(informers.on_claim, logs, None)
        assert not is_looked_at(informers.on_claim, None, raw_claim("bad", namespace="team-b", size="much"))
        assert is_looked_at(informers.on_claim, None, raw_claim(size="much")), "it counts as gone"
        assert is_looked_at(informers.on_volume, None, raw_volume())


async def test_the_wait_for_a_volume_ends_when_its_node_is_gone():
    async with faulty([]) as server:
        made = scheduling(server.session)
        parts, waiting = made.parts, pod("p", **mounts("data"))
        parts.pending.add_pod(waiting)
        parts.cluster.set_node(node("n1"))
        store(parts.cluster, claim(node="n1"))
        bindings = VolumeBindings("n1", (), (ClaimKey("default", "data"),))
        binding = asyncio.create_task(parts.volumes.bind(waiting, bindings, 20.0))
        await asyncio.sleep(0)
        assert not binding.done()
        made.informers.nodes.on_change({"metadata": {"name": "n1"}}, None)
        assert await binding == 'binding volumes: node "n1" not found'
