"""The agent on a real node: what kubelet and runc do to the cgroups is what the status says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from e2e.testbed.agent_helpers import Object, make_daemon_pod, make_pod, status
from e2e.testbed.clusters import Cluster
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNode, RealNodes
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.system import agent_on
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

NODE = "agent-real"


@pytest.fixture(scope="module")
def node(concerto_cluster: Cluster) -> Iterator[RealNode]:
    """A real node with its agent."""
    plane = require_real_nodes(concerto_cluster)
    with RealNodes(plane, [NODE]) as nodes:
        nodes.wait_ready()
        node = nodes[NODE]
        node.import_image(build_image(concerto_cluster.work_dir / "busybox.tar", BUSYBOX_IMAGE))
        agent = agent_on(concerto_cluster, node, concerto_cluster.logs).start()
        yield node
        agent.kill()


def measured(cluster: Cluster) -> Object:
    def warm() -> Object | None:
        now = status(cluster, NODE)
        return now if now.get("capacityMode") in ("Quiet", "Slots") else None

    return dict(eventually("the node is measured", warm))


def test_a_pods_cgroup_is_its_time_on_the_node(
    concerto_cluster: Cluster, namespace: str, node: RealNode, say: Callable[[str], None]
):
    assert measured(concerto_cluster)["agent"]["podEvents"] == "Inotify"
    make_daemon_pod(concerto_cluster, namespace, NODE)
    concerto_cluster.wait("--for=condition=Ready", "pod", "-l=app=daemon", "-n", namespace)
    began = time.monotonic()
    uid = make_pod(concerto_cluster, namespace, NODE, "one")
    eventually("it is observed", lambda: uid in status(concerto_cluster, NODE)["observedPodUIDs"])
    say(f"agent: a pod is observed {time.monotonic() - began:.2f} s after its creation was asked for")
    assert status(concerto_cluster, NODE)["observedPodUIDs"] == [uid], "without the DaemonSet's"
    began = time.monotonic()
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "one", "--wait=false")
    eventually("its end is observed", lambda: not status(concerto_cluster, NODE)["observedPodUIDs"])
    say(f"agent: its end is observed {time.monotonic() - began:.2f} s after its deletion was asked for")


def test_a_pod_that_ends_by_itself_is_no_longer_observed(concerto_cluster: Cluster, namespace: str, node: RealNode):
    measured(concerto_cluster)
    uid = make_pod(concerto_cluster, namespace, NODE, "short", "until [ -e /tmp/end ]; do sleep 0.1; done")
    eventually("it is observed", lambda: uid in status(concerto_cluster, NODE)["observedPodUIDs"])
    concerto_cluster.wait("--for=condition=Ready", "pod/short", "-n", namespace)
    concerto_cluster.kubectl("exec", "-n", namespace, "short", "--", "sh", "-c", ": >/tmp/end")
    eventually("its end is observed", lambda: uid not in status(concerto_cluster, NODE)["observedPodUIDs"])
    phase = concerto_cluster.get("pod", "-n", namespace, "short")["status"]["phase"]
    assert phase in ("Running", "Succeeded"), "the object stays, whatever it says by now"


def test_a_pod_of_as_many_threads_as_cpus_among_short_ones_is_named(
    concerto_cluster: Cluster, namespace: str, node: RealNode, say: Callable[[str], None]
):
    measured(concerto_cluster)
    for i in range(3):
        make_pod(concerto_cluster, namespace, NODE, f"short-{i}", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
    phases = lambda: [p["status"]["phase"] for p in concerto_cluster.get("pods", "-n", namespace)["items"]]  # noqa: E731
    eventually("the short ones have ended", lambda: phases() == ["Succeeded"] * 3)
    began = time.monotonic()
    uid = make_pod(
        concerto_cluster, namespace, NODE, "large", "while :; do :; done & " * len(node.cpus) + "while :; do :; done"
    )

    def named() -> Object | None:
        now = status(concerto_cluster, NODE)
        return now if [pod["uid"] for pod in now["largePods"]] == [uid] else None

    now = eventually("it is named", named)
    after = time.monotonic() - began
    say(f"agent: a large pod is named {after:.0f} s after it was asked for: {now['largePods'][0]['cpu']} of the node")
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "large", "--grace-period=0", "--wait=false")
    eventually("it is named no more", lambda: not status(concerto_cluster, NODE)["largePods"])


def test_busy_pods_fill_the_node_and_are_distinguished_from_the_rest(
    concerto_cluster: Cluster, namespace: str, node: RealNode, say: Callable[[str], None]
):
    before = measured(concerto_cluster)
    cpus = len(node.cpus)
    for i in range(3 * cpus):
        make_pod(concerto_cluster, namespace, NODE, f"busy-{i}", "while :; do :; done")

    def full() -> Object | None:
        now = status(concerto_cluster, NODE)
        cpu = now["resources"][0]
        return now if now["podCount"] == 3 * cpus and cpu["usage"] > 0.9 and now["freePods"] == 0 else None

    after = eventually("the node is full", full)
    cpu = after["resources"][0]
    say(
        f"agent: {cpus} CPUs, {3 * cpus} busy pods: cpu {before['resources'][0]['usage']} -> {cpu['usage']}, "
        f"nonPod {cpu['nonPod']}, base {cpu['base']}, cost {cpu['cost']}, "
        f"capacity {before['capacity']} -> {after['capacity']}"
    )
    assert cpu["nonPod"] < cpu["usage"], "other tests may run on this machine's CPUs; the rest is the pods'"
