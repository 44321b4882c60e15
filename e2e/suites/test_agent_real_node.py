"""The agent on a real node: what kubelet and runc do to the cgroups is what the status says."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from concerto.capacity.kinds.sums import FORGET_PER_POD, KindSums
from concerto_agent.cgroups import Cgroup, Hierarchies
from e2e.testbed.agent_helpers import Object, make_daemon_pod, make_pod, pod_spec, status
from e2e.testbed.clusters import Cluster
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNode, RealNodes
from e2e.testbed.processes import Process, operator_process
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.system import agent_on
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

NODE = "agent-real"
ALONE = 4
WITHIN = 1.1
OF_THE_ERROR = 0.6
"""Part of the error without correction that may be left where other suites overload this machine as well: the agent
waits for a CPU then, too, and what it does not read in time is lost."""


@pytest.fixture(scope="module")
def node(concerto_cluster: Cluster) -> Iterator[RealNode]:
    """A real node."""
    plane = require_real_nodes(concerto_cluster)
    with RealNodes(plane, [NODE]) as nodes:
        nodes.wait_ready()
        node = nodes[NODE]
        node.import_image(build_image(concerto_cluster.work_dir / "busybox.tar", BUSYBOX_IMAGE))
        yield node


@pytest.fixture(autouse=True, scope="module")
def agent(concerto_cluster: Cluster, node: RealNode) -> Iterator[Process]:
    """The node's agent."""
    agent = agent_on(concerto_cluster, node, concerto_cluster.logs).start()
    yield agent
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


def test_what_a_kind_takes_is_the_same_on_an_empty_and_on_an_overloaded_node(
    concerto_cluster: Cluster, namespace: str, node: RealNode, say: Callable[[str], None]
):
    """Pods of one program: one at a time, and four on each CPU at once."""
    measured(concerto_cluster)
    program = "sleep 1; i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done"

    def ended(kind: str, pods: int) -> KindSums | None:
        """What the node's agent has measured of a kind, once so many of its pods have ended."""
        kinds = (concerto_cluster.get("sub", NODE).get("status") or {}).get("kinds") or ()
        found = next((k["sums"] for k in kinds if k["key"].startswith(f"{namespace}/Pod/{kind}@")), [])
        sums = KindSums.from_list(found)
        # Each further pod replaces some of what was known
        all_of_them = (1.0 - (1.0 - FORGET_PER_POD) ** pods) / FORGET_PER_POD
        return sums if sums.ended > all_of_them - 0.5 else None

    for i in range(ALONE):
        make_pod(concerto_cluster, namespace, NODE, f"alone-{i}", program)
        concerto_cluster.wait("--for=jsonpath={.status.phase}=Succeeded", f"pod/alone-{i}", "-n", namespace)
    crowd = 4 * len(node.cpus)
    for i in range(crowd):
        make_pod(concerto_cluster, namespace, NODE, f"crowd-{i}", program)
    by_life = []
    for kind, pods in (("alone", ALONE), ("crowd", crowd)):
        sums = eventually(f"{pods} pods {kind} are measured", lambda kind=kind, pods=pods: ended(kind, pods))
        say(
            f"agent: {pods} pods {kind}: {sums.work / sums.ended:.2f} core-seconds, held "
            f"{sums.held / sums.ended:.2f} s of {sums.life / sums.ended:.2f} s: {sums.work / sums.held:.3f} cores "
            f"(by their life {sums.work / sums.life:.3f})"
        )
        by_life.append(sums.work / sums.life)
    operator = operator_process(concerto_cluster, concerto_cluster.logs, "operator-kinds").start()
    try:
        cores = eventually(
            "a person sees both kinds", lambda: described(concerto_cluster, f"{namespace}/Pod/", ("alone", "crowd"))
        )
    finally:
        operator.kill()
    say(f"agent: kubectl describe sub cluster: {cores[0]} cores alone, {cores[1]} in a crowd")
    error, uncorrected = (abs(math.log(pair[1] / pair[0])) for pair in (cores, by_life))
    assert error <= max(math.log(WITHIN), OF_THE_ERROR * uncorrected)


def described(cluster: Cluster, prefix: str, kinds: Sequence[str]) -> list[float] | None:
    """Cores that `kubectl describe` of the cluster's SubspaceSnapshot shows for those kinds, once it shows them all."""
    text = cluster.kubectl("describe", "sub", "cluster", check=False)
    found = {pods: float(cores) for cores, pods in re.findall(r"Cores: +(\S+)\n(?:.*\n){1,4}? +Pods: +(\S+)", text)}
    shown = [found.get(f"{prefix}{kind}") for kind in kinds]
    return None if None in shown else [cores for cores in shown if cores is not None]


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


GENEROUS = {
    "overProvision": {"enabled": True, "window": 2, "max": 8},
    "smoothing": {"deltaPercent": 1},
    "slots": {"headRoomPercent": 300, "extraPods": "5"},
}


HELD_BYTES = 512 * 2**20


def make_memory_pod(cluster: Cluster, namespace: str) -> None:
    """A pod on the node that holds that much memory until it is deleted."""
    spec = pod_spec(f"dd if=/dev/zero of=/held/bytes bs=1M count={HELD_BYTES >> 20} && exec sleep 1000")
    spec["containers"][0]["volumeMounts"] = [{"name": "held", "mountPath": "/held"}]
    spec |= {"nodeName": NODE, "volumes": [{"name": "held", "emptyDir": {"medium": "Memory"}}]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "memory", "namespace": namespace}, "spec": spec}
    )


@pytest.mark.parametrize("estimator", ["PerResource", "Signal"])
def test_a_node_whose_memory_is_97_percent_full_publishes_no_room_whatever_its_settings(
    concerto_cluster: Cluster, namespace: str, node: RealNode, agent: Process, estimator: str
):
    """For this the agent is started again as that of a smaller node."""
    make_memory_pod(concerto_cluster, namespace)
    scope = Cgroup(Hierarchies.detect(Path("/sys")), node.cgroup)
    eventually("the pod has its memory", lambda: (scope.memory_bytes() or 0) >= HELD_BYTES)
    settings = {**GENEROUS, "estimator": {"type": estimator, "initialPerPodCost": "0.001"}}
    concerto_cluster.kubectl("patch", "ncap", NODE, "--type=merge", "-p", json.dumps({"spec": settings}))
    generation = concerto_cluster.get("ncap", NODE)["metadata"]["generation"]
    agent.kill()
    capacity = ["--memory-capacity", str(int((scope.memory_bytes() or 0) / 0.97))]
    smaller = agent_on(concerto_cluster, node, concerto_cluster.logs, capacity).start()

    def full() -> Object | None:
        now = status(concerto_cluster, NODE)
        memory = next((r["usage"] for r in now.get("resources", ()) if r["name"] == "memory"), 0.0)
        warm = now.get("capacityMode") in ("Quiet", "Slots") and now["observedGeneration"] == generation
        return now if warm and memory >= 0.95 else None

    try:
        now = eventually("the node is measured with its memory full", full)
        assert now["capacity"] <= 0
        assert now["room"] <= 0
        assert now["freePods"] == 0
    finally:
        smaller.kill()
        agent.start()
