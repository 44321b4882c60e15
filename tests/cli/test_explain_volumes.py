import pytest

from concerto.cli.explain_volumes import read_storage, waits_for
from concerto.kube import KubeError
from support.faulty_server import faulty, refuses, says
from support.scheduling_builders import cluster_state, node, pod
from support.volume_builders import claim, mounts, raw_claim, raw_volume, storage_class, store, volume

FAST = storage_class("fast", provisioner="csi.example.com")
CASES = {
    "a claim that does not exist": ([], ["waits for claim data: it does not exist"]),
    "a claim that is bound": ([claim(volume="disk"), volume(claim="data")], []),
    "a claim whose volume is being made": (
        [claim(storageClassName="fast", node="n1"), FAST],
        ["waits for claim data: its volume is to be made by csi.example.com for node n1"],
    ),
    "a claim for which a volume is held": (
        [claim(), storage_class(), volume(claim="data")],
        ["waits for claim data: volume disk is held for it and not bound yet"],
    ),
    "a claim that should be bound": (
        [claim(storageClassName="now"), storage_class("now", volumeBindingMode="Immediate")],
        ["waits for claim data: it is not bound, and its class does not wait for pods"],
    ),
    "a claim that waits for the pod": ([claim(), storage_class()], []),
}


@pytest.mark.parametrize(("storage", "sentences"), CASES.values(), ids=CASES)
def test_what_a_pod_waits_for(storage, sentences):
    cluster = store(cluster_state([node("n1")]), *storage)
    assert waits_for(cluster.volumes, pod("p", **mounts("data"))) == sentences
    assert waits_for(cluster.volumes, pod("p", nodeName="n1", **mounts("data"))) == []


async def test_storage_is_read_from_the_api_server():
    async def answer(request):
        items = {
            "persistentvolumes": [raw_volume("bad", size="much"), raw_volume(claim="data")],
            "persistentvolumeclaims": [raw_claim(volume="disk")],
        }
        listed = {"metadata": {}, "items": items.get(request.path.rpartition("/")[2], [])}
        return await says(200, listed)(request)

    async with faulty([answer]) as server:
        volumes = cluster_state([]).volumes
        await read_storage(server.session, volumes)
        assert (list(volumes.volumes), len(server.seen)) == (["disk"], 7)


async def test_a_missing_right_is_an_error():
    async with faulty([refuses(403, "Forbidden")]) as server:
        with pytest.raises(KubeError):
            await read_storage(server.session, cluster_state([]).volumes)
