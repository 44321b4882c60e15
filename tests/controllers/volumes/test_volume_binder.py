"""Volumes of pods in flight: what the API server may answer, and what controllers and provisioners may do or not."""

from __future__ import annotations

import asyncio

import pytest

from concerto.api.volumes import SELECTED_NODE, ClaimKey, PersistentVolume, PersistentVolumeClaim, VolumeBindings
from concerto.controllers.volumes.binder import VolumeBinder
from concerto.controllers.volumes.claim_writes import (
    ClaimWrites,
    ClaimWriteSettings,
    NotBound,
    build_claim_ref,
    build_selected_node,
)
from concerto.kube.confirmed_writes import WriteSettings
from concerto.kube.fair_places import FairPlaces
from support.faulty_server import Faulty, faulty, hangs_up, refuses, resets, says
from support.scheduling_builders import cluster_state, node, pod
from support.volume_builders import claim, raw_claim, raw_volume, storage_class, volume

QUICK = ClaimWriteSettings(1.0, WriteSettings(0.001, 0.01, 5.0, repeats_conflicts=True))
DATA = ClaimKey("default", "data")
STATIC = VolumeBindings("n1", ((DATA, "disk"),))
DYNAMIC = VolumeBindings("n1", (), (DATA,))
POD = pod("p")
HELD = raw_volume(claim="data", on="n1", version="5", phase="Available")
SELECTED = raw_claim(node="n1", version="5")


class World:
    """A binder, and what it sees of the API server."""

    def __init__(self, server: Faulty, *, selected: str = "", waiting: bool = True) -> None:
        self.cluster = cluster_state([node("n1"), node("n2")])
        writes = ClaimWrites(server.session, lambda: True, QUICK, FairPlaces(96).place)
        self.binder = VolumeBinder(self.cluster, writes, lambda uid: waiting)
        self.cluster.volumes.set_class(storage_class())
        self.claim(raw_claim(node=selected))
        self.volume(raw_volume(on="n1"))

    def claim(self, raw) -> None:
        read = PersistentVolumeClaim.from_raw(raw)
        self.cluster.volumes.set_claim(read)
        self.binder.on_claim(read.key)

    def volume(self, raw) -> None:
        read = PersistentVolume.from_raw(raw)
        self.cluster.volumes.set_volume(read)
        self.binder.on_volume(read.name, read.claim and read.claim.key)

    def bound(self) -> None:
        """The controller has done its part."""
        self.volume(raw_volume(claim="data", on="n1", version="6"))
        self.claim(raw_claim(volume="disk", node="n1", version="7"))


def patches(server: Faulty) -> int:
    return sum(line.startswith("PATCH") for line in server.seen)


def test_a_volume_is_held_for_a_claim_at_the_version_that_was_decided_on():
    assert build_claim_ref(volume(version="3"), claim(version="4")) == {
        "metadata": {"resourceVersion": "3", "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
        "spec": {
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
                "uid": "claim-data", "resourceVersion": "4",
            }
        },
    }  # fmt: skip


def test_what_a_person_holds_for_the_claim_is_not_marked_as_bound_by_a_program():
    assert "annotations" not in build_claim_ref(volume(claim="data", claim_uid=""), claim())["metadata"]


def test_the_node_is_the_only_annotation_that_is_written():
    assert build_selected_node(claim(version="4"), "n1") == {
        "metadata": {"resourceVersion": "4", "annotations": {SELECTED_NODE: "n1"}}
    }


async def binding_ends(bindings, script, problem, writes):
    async with faulty(script) as server:
        world = World(server)
        binding = asyncio.create_task(world.binder.bind(POD, bindings, 20.0))
        if problem is None:
            await server.asked(len(script))
            world.bound()
        result = await binding
        assert (result is None) if problem is None else problem in result
        assert patches(server) == writes


STATIC_WRITES = {
    "done": ([says(200, HELD)], None, 1),
    "lost, and done": ([resets, says(200, HELD)], None, 1),
    "lost, and not done": ([hangs_up, says(200, raw_volume(on="n1")), says(200, HELD)], None, 2),
    "500, and done": ([refuses(500, "InternalError"), says(200, HELD)], None, 1),
    "429": ([refuses(429, "TooManyRequests"), says(200, HELD)], None, 2),
    "409, and ours": ([refuses(409, "Conflict"), says(200, HELD)], None, 1),
    "409, and something else has changed": (
        [refuses(409, "Conflict"), says(200, raw_volume(on="n1", version="4")), says(200, HELD)], None, 2,
    ),
    "409, and the read is of before": (
        [refuses(409, "Conflict"), says(200, raw_volume(on="n1")), says(200, HELD)], None, 2,
    ),
    "409, and another claim's": (
        [refuses(409, "Conflict"), says(200, raw_volume(claim="other", on="n1", version="4"))],
        'binding volumes: persistentvolume "disk" was bound to claim default/other meanwhile', 1,
    ),
    "410, as an API server says whose storage is gone": ([refuses(410, "Gone")], "refused to bind volumes: Gone!", 1),
    "409, and another volume of that name": (
        [refuses(409, "Conflict"), says(200, raw_volume(on="n1", uid="another", version="4"))],
        'persistentvolume "disk" was deleted and created again meanwhile', 1,
    ),
    "409, and it is being deleted": (
        [refuses(409, "Conflict"), says(200, raw_volume(on="n1", deleting=True, version="4"))],
        'persistentvolume "disk" is being deleted', 1,
    ),
    "taken, and undone by a webhook": (
        [says(200, raw_volume(on="n1", version="4"))], "does not keep spec.claimRef as written", 1,
    ),
    "404": ([refuses(404, "NotFound")], "NotFound!", 1),
    "lost, and gone": ([hangs_up, refuses(404, "NotFound")], "NotFound!", 1),
    "409, and gone": ([refuses(409, "Conflict"), refuses(404, "NotFound")], "NotFound!", 1),
    "403": ([refuses(403, "Forbidden")], "refused to bind volumes: Forbidden!", 1),
}  # fmt: skip


@pytest.mark.parametrize(("script", "problem", "writes"), STATIC_WRITES.values(), ids=STATIC_WRITES)
async def test_holding_a_volume_ends_as_the_volume_says(script, problem, writes):
    await binding_ends(STATIC, script, problem, writes)


DYNAMIC_WRITES = {
    "done": ([says(200, SELECTED)], None, 1),
    "lost, and done": ([resets, says(200, SELECTED)], None, 1),
    "409, and the same node": ([refuses(409, "Conflict"), says(200, SELECTED)], None, 1),
    "409, and another node": (
        [refuses(409, "Conflict"), says(200, raw_claim(node="n2", version="4"))],
        'persistentvolumeclaim "data" was changed meanwhile', 1,
    ),
    "409, and another claim of that name": (
        [refuses(409, "Conflict"), says(200, raw_claim(uid="new", version="4"))],
        'persistentvolumeclaim "data" was changed meanwhile', 1,
    ),
    "409, and bound": (
        [refuses(409, "Conflict"), says(200, raw_claim(volume="disk", version="4"))],
        'persistentvolumeclaim "data" was changed meanwhile', 1,
    ),
    "taken, and undone by a webhook": (
        [says(200, raw_claim(version="4"))],
        "does not keep annotation volume.kubernetes.io/selected-node as written", 1,
    ),
    "404": ([refuses(404, "NotFound")], "NotFound!", 1),
}  # fmt: skip


@pytest.mark.parametrize(("script", "problem", "writes"), DYNAMIC_WRITES.values(), ids=DYNAMIC_WRITES)
async def test_selecting_a_node_ends_as_the_claim_says(script, problem, writes):
    await binding_ends(DYNAMIC, script, problem, writes)


ENDS = {
    "the provisioner fails and takes its node back": (
        DYNAMIC, lambda w: w.claim(raw_claim(version="6")), 'provisioning failed for PVC "data"',
    ),
    "the volume was made for another node": (
        DYNAMIC,
        lambda w: (
            w.volume(raw_volume(claim="data", on="n2", version="6")),
            w.claim(raw_claim(volume="disk", node="n1", version="7")),
        ),
        'pv "disk" node affinity doesn\'t match node "n1"',
    ),
    "the claim is deleted": (
        DYNAMIC, lambda w: (w.cluster.volumes.remove_claim(DATA), w.binder.on_claim(DATA)),
        'persistentvolumeclaim "data" not found',
    ),
    "the volume is deleted": (
        STATIC, lambda w: (w.cluster.volumes.remove_volume("disk"), w.binder.on_volume("disk", DATA)),
        'persistentvolume "disk" not found',
    ),
    "the controller lets the volume go": (
        STATIC, lambda w: w.volume(raw_volume(on="n1", version="6")), 'ClaimRef got reset for pv "disk"',
    ),
    "a person binds the claim to another volume": (
        STATIC,
        lambda w: (
            w.volume(raw_volume(claim="data", on="n1", version="6")),
            w.claim(raw_claim(volume="other", version="7")),
        ),
        'persistentvolumeclaim "data" was bound to persistentvolume "other" meanwhile',
    ),
    "another claim of that name gets the volume": (
        STATIC, lambda w: w.volume(raw_volume(claim="data", claim_uid="another", on="n1", version="6")),
        'persistentvolume "disk" was bound to claim default/data meanwhile',
    ),
    "the claim is made again": (
        STATIC, lambda w: w.claim(raw_claim(uid="another", version="7")),
        'persistentvolumeclaim "data" was deleted and created again meanwhile',
    ),
    "the claim is made again, and bound on the same node": (
        DYNAMIC,
        lambda w: (
            w.volume(raw_volume(claim="data", claim_uid="another", on="n1", version="6")),
            w.claim(raw_claim(volume="disk", node="n1", uid="another", version="7")),
        ),
        'persistentvolumeclaim "data" was deleted and created again meanwhile',
    ),
    "the volume is made again": (
        STATIC, lambda w: w.volume(raw_volume(uid="another", on="n1", version="7")),
        'persistentvolume "disk" was deleted and created again meanwhile',
    ),
    "the node is deleted": (
        DYNAMIC, lambda w: (w.cluster.remove_node("n1"), w.binder.on_node_gone("n1")), 'node "n1" not found',
    ),
    "the pod is gone": (STATIC, lambda w: w.binder.on_pod("uid-p", ""), "The pod is gone."),
    "the pod was bound elsewhere": (
        DYNAMIC, lambda w: w.binder.on_pod("uid-p", "n2"), "The pod was bound to n2 by another scheduler.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bindings", "change", "problem"), ENDS.values(), ids=ENDS)
async def test_a_binding_that_will_not_come_about_ends_at_once(bindings, change, problem):
    async with faulty([says(200, HELD if bindings is STATIC else SELECTED)]) as server:
        world = World(server)
        binding = asyncio.create_task(world.binder.bind(POD, bindings, 20.0))
        await server.asked(1)
        await asyncio.sleep(0)
        change(world)
        assert await binding == f"binding volumes: {problem}"


async def test_what_was_seen_before_the_write_does_not_end_it():
    async with faulty([says(200, SELECTED)]) as server:
        world = World(server)
        binding = asyncio.create_task(world.binder.bind(POD, DYNAMIC, 20.0))
        await server.asked(1)
        world.claim(raw_claim(version="3"))  # without the node, and older than what was written
        world.claim(SELECTED)
        world.bound()
        assert await binding is None


async def test_the_wait_ends_with_the_claim_that_it_was_for():
    async with faulty([says(200, SELECTED)]) as server:
        problem = await World(server).binder.bind(POD, DYNAMIC, 0.2)
        assert problem == "binding volumes: the pod still waits for claim data after 0.2 s"


@pytest.mark.parametrize("bindings", [STATIC, DYNAMIC], ids=["held", "selected"])
async def test_what_an_earlier_process_has_written_is_not_written_again(bindings):
    async with faulty([says(500)]) as server:
        world = World(server, selected="n1")
        world.volume(HELD)
        binding = asyncio.create_task(world.binder.bind(POD, bindings, 20.0))
        await asyncio.sleep(0)
        world.bound()
        assert await binding is None
        assert not server.seen


async def looks_for_claims(count):
    """How often a binder looks at claims of a pod that are bound one after another."""
    async with faulty([says(500)]) as server:
        world, looks = World(server), 0
        keys = [ClaimKey("default", f"c{i}") for i in range(count)]
        for key in keys:
            world.claim(raw_claim(key.name, node="n1", version="5"))
            world.volume(raw_volume(f"disk-{key.name}", claim=key.name, on="n1"))
        look = world.binder._is_provisioned

        def counted(*arguments):
            nonlocal looks
            looks += 1
            return look(*arguments)

        world.binder._is_provisioned = counted
        binding = asyncio.create_task(world.binder.bind(POD, VolumeBindings("n1", (), tuple(keys)), 20.0))
        for key in keys:
            for _ in range(3):
                await asyncio.sleep(0)
            assert not binding.done()
            world.claim(raw_claim(key.name, volume=f"disk-{key.name}", node="n1", version="6"))
        assert await binding is None
        return looks


async def test_a_claim_that_is_bound_is_no_reason_to_look_at_a_thousand_others():
    assert await looks_for_claims(200) <= 2 * 200


async def test_nothing_is_written_for_a_pod_that_went_before_its_binding_began():
    async with faulty([says(500)]) as server:
        assert await World(server, waiting=False).binder.bind(POD, STATIC, 20.0) == "binding volumes: The pod is gone."
        assert not server.seen


async def test_a_claim_that_got_another_volume_meanwhile_is_decided_again():
    async with faulty([says(500)]) as server:
        world = World(server)
        world.claim(raw_claim(volume="other"))
        assert "was changed meanwhile" in await world.binder.bind(POD, STATIC, 20.0)
        assert not server.seen


async def test_nothing_is_kept_of_a_binding_that_has_ended():
    async with faulty([says(200, SELECTED)]) as server:
        world = World(server)
        await world.binder.bind(POD, DYNAMIC, 0.01)
        binding = asyncio.create_task(world.binder.bind(POD, DYNAMIC, 20.0))
        await asyncio.sleep(0)
        binding.cancel()
        await asyncio.gather(binding, return_exceptions=True)
        assert not world.binder._flights and not world.binder._waiting


DECIDED_ON = {
    "claim": VolumeBindings("n1", (), (DATA,), ((DATA, "an earlier claim"),)),
    "volume": VolumeBindings("n1", ((DATA, "disk"),), (), (("disk", "an earlier volume"),)),
}


@pytest.mark.parametrize("bindings", DECIDED_ON.values(), ids=DECIDED_ON)
async def test_nothing_is_written_to_an_object_that_has_replaced_the_one_decided_on(bindings):
    async with faulty([says(500)]) as server:
        assert "was deleted and created again" in await World(server).binder.bind(POD, bindings, 20.0)
        assert not server.seen


async def test_nothing_more_is_written_once_the_pod_is_gone():
    logs = ClaimKey("default", "logs")
    async with faulty([refuses(429, "TooManyRequests"), says(200, SELECTED), says(500)]) as server:
        world = World(server)
        world.claim(raw_claim("logs"))
        binding = asyncio.create_task(world.binder.bind(POD, VolumeBindings("n1", (), (DATA, logs)), 20.0))
        await server.asked(1)
        world.binder.on_pod("uid-p", "")
        assert await binding == "binding volumes: The pod is gone."
        assert not any("logs" in line for line in server.seen)


async def test_a_conflict_that_no_other_write_explains_ends():
    impatient = ClaimWriteSettings(1.0, WriteSettings(0.001, 0.01, 0.0, repeats_conflicts=True))
    async with faulty([refuses(409, "Conflict"), says(200, raw_claim())] * 3) as server:
        writes = ClaimWrites(server.session, lambda: True, impatient, FairPlaces(96).place)
        with pytest.raises(NotBound, match="volumes could not be bound: Conflict!"):
            await writes.select_node(claim(), "n1")
        assert patches(server) == 1


async def test_claims_whose_writes_hang_keep_none_of_another_namespace_from_being_bound():
    release = asyncio.Event()

    async def answer(request):
        if "/namespaces/stuck/" in request.path:
            await release.wait()
        return await says(200, raw_claim(node="n1", version="5"))(request)

    async with faulty([answer]) as server:
        patient = ClaimWriteSettings(60.0)
        writes = ClaimWrites(server.session, lambda: True, patient, FairPlaces(96).place)

        def select(name, namespace):
            return asyncio.create_task(writes.select_node(claim(name, namespace=namespace), "n1"))

        stuck = [select(f"c{i}", "stuck") for i in range(100)]
        try:
            await server.asked(1)
            async with asyncio.timeout(20):
                assert await select("data", "free") == "5"
            assert len(server.seen) == 2
        finally:
            release.set()
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
