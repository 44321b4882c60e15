"""Which pods are looked at again when storage objects change."""

from concerto.controllers.volumes.informers import VolumeInformers
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty
from support.scheduler_builders import scheduling
from support.scheduling_builders import pod
from support.volume_builders import mounts, raw_claim, raw_volume

NOW = 1000.0


async def test_a_claim_of_others_requeues_nobody():
    async with faulty([]) as server:
        made = scheduling(server.session)
        parts, queue = made.parts, made.parts.pending.queue
        informers = VolumeInformers(parts.cluster.volumes, parts.volumes, made.context.metrics, parts.pending)
        waiting = pod("p", schedulerName="concerto", **mounts("data"))
        parts.pending.add_pod(waiting)

        def is_looked_at(act, *objects):
            queue.mark_unschedulable(waiting.uid, Change.VOLUMES, NOW)
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
