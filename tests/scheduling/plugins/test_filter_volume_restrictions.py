import pytest

from concerto.scheduling.plugins.volume_restrictions.filter import VolumeRestrictions
from support.scheduling_builders import NOW, cluster_state, node, passes, pod, query, reasons
from support.step_counts import steps_of
from support.volume_builders import claim, mounts, store

NODES = [node("n1"), node("n2")]
ONE_POD = claim(accessModes=["ReadWriteOncePod"])


def disk(read_only=False):
    return {"volumes": [{"name": "d", "gcePersistentDisk": {"pdName": "d", "readOnly": read_only}}]}


CASES = {
    "a pod without volumes": ([], {}, {}, ["n1", "n2"]),
    "a disk that nobody has": ([], disk(), {}, ["n1", "n2"]),
    "a disk that a pod has": ([], disk(), disk(), ["n2"]),
    "a disk that all mount read-only": ([], disk(True), disk(True), ["n1", "n2"]),
    "a claim for many pods": ([claim()], mounts("data"), mounts("data"), ["n1", "n2"]),
    "a claim for one pod, in use": ([ONE_POD], mounts("data"), mounts("data"), []),
    "a claim for one pod, not in use": ([ONE_POD], mounts("data"), {}, ["n1", "n2"]),
    "the same name in another namespace": (
        [ONE_POD], mounts("data"), mounts("data", namespace="other"), ["n1", "n2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("storage", "new", "there", "names"), CASES.values(), ids=CASES)
def test_beside_a_pod_on_n1_the_new_one_goes_to(storage, new, there, names):
    cluster = store(cluster_state(NODES, [pod("there", nodeName="n1", **there)]), *storage)
    assert passes(VolumeRestrictions(), query(cluster, pod("new", **new))) == names


def test_the_reasons_are_kube_schedulers():
    there = [pod("there", nodeName="n1", volumes=disk()["volumes"] + mounts("data")["volumes"])]
    cluster = store(cluster_state(NODES, there), ONE_POD)
    both = {"volumes": disk()["volumes"] + mounts("data")["volumes"]}
    assert reasons(VolumeRestrictions(), query(cluster, pod("new", **both))) == {
        "node(s) had no available disk": 1,
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
        "another pod": 1,
    }


def test_a_claim_that_does_not_exist_is_named():
    plugin = VolumeRestrictions()
    state = plugin.prepare(query(cluster_state(NODES), pod(**mounts("gone"))))
    assert plugin.pod_refusal(state) == 'persistentvolumeclaim "gone" not found'


def test_pods_that_come_and_go_are_counted():
    plugin, cluster = VolumeRestrictions(), store(cluster_state(NODES), ONE_POD)
    both = {"volumes": disk()["volumes"] + mounts("data")["volumes"]}
    state = plugin.prepare(query(cluster, pod("new", **both)))
    every = slice(0, cluster.size)
    assert plugin.check(state, every).tolist() == [0, 0]
    assert plugin.add_pod(state, pod("a", **disk()), 0).tolist() == [0]
    assert plugin.check(state, every).tolist() == [1, 0]
    assert plugin.add_pod(state, pod("b", **mounts("data")), 1).tolist() == [0, 1]
    assert plugin.check(state, every).tolist() == [1, 2]
    assert plugin.remove_pod(state, pod("b", **mounts("data")), 1).tolist() == [0, 1]
    assert plugin.remove_pod(state, pod("a", **disk()), 0).tolist() == [0]
    assert plugin.check(state, every).tolist() == [0, 0]
    assert plugin.add_pod(state, pod("c"), 0).tolist() == []


def iscsi(name, number):
    return {"iscsi": {"iqn": name, "targetPortal": "p", "lun": number}}


def rbd(name, number):
    return {"rbd": {"image": name, "monitors": [f"m{number}"]}}


MANY_DISKS = {
    "a name each": lambda owner, i: iscsi(f"{owner}-{i}", 0),
    "all of the same name": lambda owner, i: iscsi("q", i),
    "all of the same name, by different monitors": lambda owner, i: rbd("i", f"{owner}{i}"),
    "all of the same name, by the same monitors": lambda owner, i: rbd("i", i),
}


@pytest.mark.parametrize("disk_of", MANY_DISKS.values(), ids=MANY_DISKS)
def test_two_pods_with_many_disks_are_compared_disk_by_disk_and_not_each_with_each(disk_of):
    plugin = VolumeRestrictions()

    def with_disks(name, count, **over):
        return pod(name, volumes=[{"name": f"d{i}", **disk_of(name, i)} for i in range(count)], **over)

    def steps(count):
        cluster = cluster_state(NODES, [with_disks("there", count, nodeName="n2")])
        asks, other = query(cluster, with_disks("new", count)), with_disks("other", count)
        state = plugin.prepare(asks)
        return steps_of(lambda: (plugin.prepare(asks), plugin.add_pod(state, other, 0)))

    assert steps(80) < 5 * steps(20)


def test_images_of_ceph_conflict_where_they_share_a_monitor():
    def image(*monitors, read_only=False):
        return {"volumes": [{"name": "d", "rbd": {"monitors": monitors, "image": "i", "readOnly": read_only}}]}

    on_nodes = [
        pod("a", nodeName="n1", **image("m1", "m2")),
        pod("b", nodeName="n1", **image("m1", "m2")),
        pod("c", nodeName="n2", **image("m2", read_only=True)),
    ]
    cluster = cluster_state(NODES, on_nodes)

    def free(spec):
        return passes(VolumeRestrictions(), query(cluster, pod("new", **spec)))

    assert free(image("m1")) == ["n2"]
    assert free(image("m2")) == []
    assert free(image("m2", read_only=True)) == ["n2"]
    cluster.remove_pod("uid-a")
    assert free(image("m1")) == ["n2"], "the other one still has it"
    cluster.remove_pod("uid-b")
    assert free(image("m1")) == ["n1", "n2"]
    cluster.remove_pod("uid-c")
    assert free(image("m2")) == ["n1", "n2"]


def test_a_pod_that_mounts_a_claim_twice_uses_it_once():
    plugin, cluster = VolumeRestrictions(), store(cluster_state(NODES), ONE_POD)
    twice = pod("twice", nodeName="n1", **mounts("data", "data"))
    cluster.set_pod(twice, NOW)
    state = plugin.prepare(query(cluster, pod("new", **mounts("data"))))
    plugin.remove_pod(state, twice, 0)
    assert plugin.check(state, slice(0, cluster.size)).tolist() == [0, 0]


def test_a_claim_for_one_pod_that_two_use_is_free_when_both_have_gone():
    plugin = VolumeRestrictions()
    first, second = (pod(name, nodeName="n1", **mounts("data")) for name in ("first", "second"))
    cluster = store(cluster_state(NODES, [first, second]), ONE_POD)
    state = plugin.prepare(query(cluster, pod("new", **mounts("data"))))
    every = slice(0, cluster.size)
    plugin.remove_pod(state, first, 0)
    assert plugin.check(state, every).tolist() == [2, 2]
    plugin.remove_pod(state, second, 0)
    assert plugin.check(state, every).tolist() == [0, 0]
    plugin.add_pod(state, first, 0)
    assert plugin.check(state, every).tolist() == [2, 2]


def test_a_pod_uses_its_claims_only_while_its_node_is_there():
    there = [pod("there", nodeName="n1", **mounts("data")), pod("other", nodeName="never", **mounts("logs"))]
    one_pod = [claim(name, accessModes=["ReadWriteOncePod"]) for name in ("data", "logs")]
    cluster = store(cluster_state(NODES, there), *one_pod)

    def refused(name):
        return set(reasons(VolumeRestrictions(), query(cluster, pod("new", **mounts(name)))))

    assert refused("data") == {VolumeRestrictions.refusals[1]}
    assert refused("logs") == set()
    cluster.remove_node("n1")
    assert refused("data") == set()
    cluster.set_node(node("n1"))
    assert refused("data") == {VolumeRestrictions.refusals[1]}
