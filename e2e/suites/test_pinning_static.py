"""Where kubelet's static CPU manager gives pods CPUs, the agent leaves these alone and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from e2e.testbed.agent_helpers import condition
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.nodes import RealNode
from e2e.testbed.pinning_helpers import (
    FIRST_INSTRUCTION,
    FULL,
    STATIC_POLICY,
    Kernel,
    binding,
    ends,
    get_binding,
    grant,
    pinning_node,
    pod,
    start_bound,
    until_condition,
)
from e2e.testbed.processes import Process
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

NODE = "pin-static"
RECONCILE_SECONDS = 10  # kubelet's cpuManagerReconcilePeriod


@pytest.fixture(scope="module")
def static(concerto_cluster: Cluster) -> Iterator[tuple[LocalControlPlane, RealNode, Process]]:
    """A node whose kubelet has the static policy, and its agent."""
    plane = require_real_nodes(concerto_cluster, cpus=2)
    with pinning_node(plane, NODE, kubelet_config=STATIC_POLICY) as (node, agent):
        yield plane, node, agent


def test_kubelet_itself_names_the_cpus_that_it_reserves(static: tuple[LocalControlPlane, RealNode, Process]):
    """By a token that may get ``nodes/configz``, shown to the certificate that kubelet has made for itself."""
    log = static[2].log
    eventually("kubelet has answered", lambda: "kubelet's reservedSystemCPUs: 0\n" in log.read_text())


def test_where_only_containers_are_written_programs_begin_on_their_cpu_too(
    static: tuple[LocalControlPlane, RealNode, Process], namespace: str, say: Callable[[str], None]
):
    plane = static[0]
    said: list[str] = []
    for number, size in enumerate([3] * 10 + [10] * 3 + [20] * 2 if FULL else [5]):
        names = [f"burst-{number}-{i}" for i in range(size)]
        made = [(pod(namespace, n, FIRST_INSTRUCTION), binding(namespace, n, [1], "None")) for n in names]
        start_bound(plane, NODE, made)
        said += [text for name, text in ends(plane, namespace, names).items() if name in names]
        plane.kubectl("delete", "pcb,pod", "-n", namespace, *names, "--wait=false")
    say(f"pinning: static policy, in bursts {said.count('1')} of {len(said)} began on their CPU")
    # A container is written when its first process enters. Its program runs at the same time, and can be earlier on a
    # machine without an idle CPU; without the writer, none would begin there.
    assert said.count("1") >= (len(said) if FULL else 1)


def test_containers_are_pinned_unless_kubelet_has(static: tuple[LocalControlPlane, RealNode, Process], namespace: str):
    plane, node, _ = static
    kernel = Kernel(node)

    def uid_of(name: str) -> str:
        return str(plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]["uid"])

    plane.apply(pod(namespace, "free", "sleep 1000", NODE), pod(namespace, "ours", "sleep 1000", NODE))
    free, ours = uid_of("free"), uid_of("ours")
    for uid in (free, ours):
        eventually("it runs", lambda uid=uid: kernel.program(uid) == {"0-1"})
    plane.apply(binding(namespace, "ours", [1]))
    grant(plane, get_binding(plane, namespace, "ours"), NODE, ours)
    until_condition(plane, namespace, "ours", "Applied")
    assert (kernel.program(ours), kernel.program(free)) == ({"1"}, {"0"})
    assert (kernel.pod(ours) / "cpuset.cpus").read_text().strip() == "0-1", "only containers: kubelet sets theirs"
    if FULL:
        time.sleep(2.5 * RECONCILE_SECONDS)  # kubelet compares with its own last write, and writes nothing
        assert (kernel.program(ours), kernel.program(free)) == ({"1"}, {"0"})
    plane.kubectl("delete", "pcb", "-n", namespace, "ours")
    for uid in (free, ours):
        eventually("it is back", lambda uid=uid: kernel.program(uid) == {"0-1"})

    whole = pod(namespace, "kubelets", "sleep 1000", NODE)
    resources = {"cpu": "1", "memory": "16Mi"}
    whole["spec"]["containers"][0]["resources"] = {"requests": resources, "limits": resources}
    plane.apply(whole, binding(namespace, "kubelets", [0], "None"))
    kubelets = uid_of("kubelets")
    eventually("kubelet pins it", lambda: kernel.program(kubelets) == {"1"})
    grant(plane, get_binding(plane, namespace, "kubelets"), NODE, kubelets)
    reported = until_condition(plane, namespace, "kubelets", "KubeletConflict")
    assert condition(reported, "Prepared")["reason"] == condition(reported, "Applied")["reason"] == "KubeletConflict"
    assert kernel.program(kubelets) == {"1"}
    eventually("kubelet takes its CPU from the others", lambda: kernel.program(free) == {"0"})
    plane.apply(binding(namespace, "ours", [1]))
    grant(plane, get_binding(plane, namespace, "ours"), NODE, ours)
    reported = until_condition(plane, namespace, "ours", "Prepared", "False")
    assert condition(reported, "Prepared")["reason"] == "KubeletExclusive"
    assert (kernel.program(kubelets), kernel.program(ours)) == ({"1"}, {"0"})
