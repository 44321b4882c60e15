"""Random bindings of random pods on a real kubelet, agent and operator killed at random: it ends as the objects say.

The agent also dies at each of its named points; ``CONCERTO_PINNING_FULL=1`` (`make chaos`) twenty times at each.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import combinations

import pytest

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.podcpubinding import PodCPUBinding
from concerto.pinning.validation import BoundPod, judge_node
from e2e.testbed.agent_helpers import Object, condition
from e2e.testbed.clusters import Cluster, ClusterError, LocalControlPlane
from e2e.testbed.failpoints import Failpoint
from e2e.testbed.nodes import RealNode
from e2e.testbed.pinning_helpers import FULL, GROUP, Kernel, binding, pinning_node, pod
from e2e.testbed.processes import QUICK_LEASE, Process, operator_process
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

NODE = "pin-random"
STEPS = 200 if FULL else 15
TURNS = 20 if FULL else 1
POINTS = ("before-cpuset", "after-cpuset", "before-pin-status", "after-pin-status")
PODS = 5


@pytest.fixture(scope="module")
def system(
    concerto_cluster: Cluster, failpoint: Failpoint
) -> Iterator[tuple[LocalControlPlane, RealNode, Process, Process]]:
    """A node, its agent, and an operator."""
    plane = require_real_nodes(concerto_cluster, cpus=2)
    operator = operator_process(plane, plane.logs, "operator-pinning", QUICK_LEASE, restarts=True).start()
    try:
        with pinning_node(plane, NODE) as (node, agent):
            agent.kill()
            agent.restarts = True
            failpoint.add_to(agent)
            agent.start()
            operator.wait_ready()
            yield plane, node, agent, operator
    finally:
        operator.stop()


class Sampler(threading.Thread):
    """Looks again and again at who owns CPUs: by the API, and by the kernel.

    An owner is a pod whose exclusive binding is validated and applied in its present generation, in one list of all
    bindings, and that the kernel keeps to just those CPUs when it is asked after that.
    """

    def __init__(self, plane: LocalControlPlane, kernel: Kernel, namespace: str) -> None:
        super().__init__(daemon=True)
        self.plane = plane
        self.kernel = kernel
        self.path = f"{GROUP}/namespaces/{namespace}/podcpubindings"
        self.samples = 0
        self.owners_seen = 0
        self.shared_by_owners: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self.done.is_set():
            owners = {}
            for obj in self.plane.request("GET", self.path)["items"]:
                said = [condition(obj, kind) for kind in ("Validated", "Applied")]
                current = all(c.get("observedGeneration") == obj["metadata"]["generation"] for c in said)
                exclusive = obj["spec"]["exclusivenessLevel"] != "None"
                if exclusive and current and all(c["status"] == "True" for c in said):
                    owners[obj["status"]["podUID"]] = parse_cpu_list(obj["status"]["cpus"])
            kept = {
                uid: cpus for uid, cpus in owners.items() if {*map(parse_cpu_list, self.kernel.sets(uid))} == {cpus}
            }
            self.samples += 1
            self.owners_seen += len(kept)
            self.shared_by_owners += [f"{a} {b}: {kept}" for a, b in combinations(kept, 2) if kept[a] & kept[b]]


@pytest.mark.timeout(900)
def test_random_steps_end_as_the_objects_say(
    system: tuple[LocalControlPlane, RealNode, Process, Process],
    failpoint: Failpoint,
    namespace: str,
    say: Callable[[str], None],
):
    plane, node, agent, operator = system
    chance = random.Random(11)
    kernel = Kernel(node)
    sampler = Sampler(plane, kernel, namespace)
    uids: dict[str, str] = {}

    def make(name: str) -> None:
        made = plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(namespace, name, "sleep 1000", NODE))
        uids[name] = made["metadata"]["uid"]

    def bindings() -> dict[str, Object]:
        found = plane.request("GET", f"{GROUP}/namespaces/{namespace}/podcpubindings")["items"]
        return {obj["metadata"]["name"]: obj for obj in found}

    def step() -> None:
        """One random change of bindings or pods."""
        name, pod_name = f"b{chance.randrange(PODS + 2)}", f"p{chance.randrange(PODS)}"
        path = f"{GROUP}/namespaces/{namespace}/podcpubindings"
        what = chance.random()
        with contextlib.suppress(ClusterError):  # it is not there, or was changed in between: then nothing happens
            if what < 0.25:
                plane.request("DELETE", f"{path}/{name}")
            elif what < 0.33:
                plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod_name}?gracePeriodSeconds=1")
                uids.pop(pod_name, None)
            elif what < 0.43:
                make(pod_name)
            else:
                cpus = chance.choice([[0], [1], [1], [0, 1]])
                level = chance.choice(["None", "CPU", "CPU", "Core"])
                wanted = binding(namespace, pod_name, cpus, level, name)
                old = bindings().get(name)
                if old is None:
                    plane.request("POST", path, wanted)
                else:
                    plane.request("PUT", f"{path}/{name}", old | {"spec": wanted["spec"]})

    for i in range(PODS):
        make(f"p{i}")
    sampler.start()
    killed = 0
    for _ in range(STEPS):
        step()
        for process in (agent, operator):
            if chance.random() < 0.05:
                process.kill()
                process.start()
                killed += 1
        time.sleep(chance.choice([0, 0, 0.05, 0.3]))
    operator.wait_ready()

    def settled() -> bool:
        pods = {
            item["metadata"]["name"]: item
            for item in plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        }
        if any("deletionTimestamp" in item["metadata"] for item in pods.values()):
            return False
        objects = bindings()
        views = [PodCPUBinding.from_raw(obj) for obj in objects.values()]
        there = [(v, BoundPod(pods[v.pod_name]["metadata"]["uid"], NODE)) for v in views if v.pod_name in pods]
        topology = NodeCPUTopology.from_raw(plane.request("GET", f"{GROUP}/nodecputopologies/{NODE}"))
        assert topology.topology is not None
        verdicts = judge_node(NODE, topology, there)
        granted = {v.pod_name: v for v in views if v.key in verdicts and verdicts[v.key].status == "Validated"}
        kept = {name: topology.topology.closure(v.cpus, v.level) for name, v in granted.items()}
        for name, item in pods.items():
            others = frozenset().union(*(cpus for owner, cpus in kept.items() if owner != name))
            want = granted[name].cpus if name in granted else topology.topology.cpus - others
            sets = kernel.sets(item["metadata"]["uid"])
            if {parse_cpu_list(each) for each in sets} != {want}:
                return False
        for view in views:
            obj = objects[view.name]
            status = obj.get("status") or {}
            if granted.get(view.pod_name) is view:
                right = status.get("resourceStatus") == "Applied" and condition(obj, "Ready")["status"] == "True"
                current = condition(obj, "Applied").get("observedGeneration") == obj["metadata"]["generation"]
                if not right or not current or status["applied"]["podUID"] != pods[view.pod_name]["metadata"]["uid"]:
                    return False
            elif condition(obj, "Ready")["status"] != "False" or "cpus" in (status.get("applied") or {}):
                return False
        return True

    eventually("cpusets and statuses are what the objects say", settled)
    for at in POINTS * TURNS:
        failpoint.set(at)
        eventually(f"the agent reaches {at}", lambda: step() or failpoint.is_reached())
        eventually(f"after its end at {at}, cpusets and statuses are what the objects say", settled)
    for name in bindings():
        plane.request("DELETE", f"{GROUP}/namespaces/{namespace}/podcpubindings/{name}")
    for uid in uids.values():
        if kernel.sets(uid):
            kernel.until(uid, "0-1")
    make("last")
    plane.request("POST", f"{GROUP}/namespaces/{namespace}/podcpubindings", binding(namespace, "last", [1]))
    eventually("the sampler has seen an owner", lambda: sampler.owners_seen)
    sampler.done.set()
    sampler.join()
    say(
        f"pinning: {STEPS} random steps, {killed} kills, {sampler.samples} samples of API and kernel, "
        f"{sampler.owners_seen} of them with an exclusive owner; "
        f"the agent ended {len(POINTS) * TURNS} times at named points"
    )
    assert sampler.samples > STEPS
    assert sampler.shared_by_owners == []
