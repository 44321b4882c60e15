import numpy as np
import pytest

from concerto.scheduling.plugins.node_volume_limits.filter import NodeVolumeLimits
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons
from support.step_counts import steps_of
from support.volume_builders import attachment, claim, csi_driver, csi_node, mounts, storage_class, store, volume

DRIVER, EBS = "csi.example.com", "ebs.csi.aws.com"
NODES = [node("n1"), node("n2")]


def csi(name):
    """A claim that is bound to a CSI volume, and the volume."""
    source = {"driver": DRIVER, "volumeHandle": name}
    return claim(name, volume=f"disk-{name}"), volume(f"disk-{name}", claim=name, csi=source)


def ebs(*names):
    return {"volumes": [{"name": n, "awsElasticBlockStore": {"volumeID": n}} for n in names]}


ONE = csi_node("n1", {DRIVER: 1, EBS: 1})
A, B = csi("a"), csi("b")
CASES = {
    "below the limit": ([ONE, *A], {}, mounts("a"), ["n1", "n2"]),
    "at the limit": ([ONE, *A, *B], mounts("a"), mounts("b"), ["n2"]),
    "two at once above it": ([ONE, *A, *B], {}, mounts("a", "b"), ["n2"]),
    "the volume that is there already": ([ONE, *A, *B], mounts("a"), mounts("a"), ["n1", "n2"]),
    "a node without a CSINode has no limit": ([*A, *B], mounts("a"), mounts("b"), ["n1", "n2"]),
    "a driver that names no limit has none": (
        [csi_node("n1", {DRIVER: None}), *A, *B], mounts("a"), mounts("b"), ["n1", "n2"],
    ),
    "a limit of 0": ([csi_node("n1", {DRIVER: 0}), *A], {}, mounts("a"), ["n2"]),
    "a volume that is still attached": ([ONE, *A, *B, attachment("x", "n1", "disk-a")], {}, mounts("b"), ["n2"]),
    "attached and in use is one": (
        [csi_node("n1", {DRIVER: 2}), *A, *B, attachment("x", "n1", "disk-a")], mounts("a"), mounts("b"), ["n1", "n2"],
    ),
    "a claim whose volume is to be made": (
        [ONE, *A, claim("new", storageClassName="fast"), storage_class("fast", provisioner=DRIVER)],
        mounts("a"), mounts("new"), ["n2"],
    ),
    "an ephemeral claim": (
        [ONE, *A, claim("new-v", storageClassName="fast"), storage_class("fast", provisioner=DRIVER)],
        mounts("a"), mounts(ephemeral=["v"]), ["n2"],
    ),
    "an in-tree volume of the pod counts as its driver's": ([ONE], ebs("v1"), ebs("v2"), ["n2"]),
    "one in-tree volume twice is one": ([ONE], ebs("v1"), ebs("v1"), ["n1", "n2"]),
    "an inline CSI volume is not attached": (
        [csi_node("n1", {DRIVER: 0})], {}, {"volumes": [{"name": "v", "csi": {"driver": DRIVER}}]}, ["n1", "n2"],
    ),
    "a volume that no CSI driver serves": (
        [ONE, claim("local", volume="l"), volume("l", claim="local")], {}, mounts("local"), ["n1", "n2"],
    ),
    "a driver that is required and missing": (
        [ONE, csi_driver(preventPodSchedulingIfMissing=True), *A], {}, mounts("a"), ["n1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("storage", "there", "new", "names"), CASES.values(), ids=CASES)
def test_beside_a_pod_on_n1_the_new_one_goes_to(storage, there, new, names):
    cluster = store(cluster_state(NODES, [pod("there", nodeName="n1", **there)]), *storage)
    assert passes(NodeVolumeLimits(), query(cluster, pod("new", **new))) == names


def test_the_reasons_are_kube_schedulers():
    storage = [csi_node("n1", {DRIVER: 0}), csi_driver(preventPodSchedulingIfMissing=True), *A]
    cluster = store(cluster_state(NODES), *storage)
    assert reasons(NodeVolumeLimits(), query(cluster, pod(**mounts("a")))) == {
        "node(s) exceed max volume count": 1,
        f"{DRIVER} CSI driver is not installed on the node": 1,
    }


def work_for_one_node(nodes):
    """Steps that the answer for one node takes, among so many."""
    storage = [
        csi_driver(preventPodSchedulingIfMissing=True),
        *A,
        *(csi_node(f"n{i}", {DRIVER: 1}) for i in range(nodes)),
    ]
    cluster = store(cluster_state([node(f"n{i}") for i in range(nodes)]), *storage)
    plugin = NodeVolumeLimits()
    state = plugin.prepare(query(cluster, pod("new", **mounts("a"))))
    return steps_of(lambda: plugin.check(state, np.array([1])))


def test_the_answer_for_one_node_is_no_more_work_among_many():
    assert work_for_one_node(200) == work_for_one_node(2)
