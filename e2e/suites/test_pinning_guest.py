"""Pinning on what clusters have: cgroup v2, systemd, hyper-threads and two memory nodes, in an emulated machine.

Operator, API server and etcd run on this machine; kubelet, containerd, the agent and all pods in the guest. By hand:
``make e2e-guest`` (CI leaves it out: to boot 20 emulated CPUs alone takes more than a minute).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from e2e.testbed.agent_helpers import condition
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.guest import GuestNode, Shape
from e2e.testbed.guest.cgroups import PodCgroups
from e2e.testbed.pinning_helpers import binding, get_binding, pod, until_condition
from e2e.testbed.processes import operator_process
from e2e.testbed.requirements import require_guest
from e2e.testbed.waiting import eventually

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(1800)]

NODE = "guest"
SHARED = "pinned-guest"
TYPE = "concerto.dev/workload-type"
# What its own program says first: no other process is asked, and nothing is started before
SAY_CPUS = 'while read k v; do [ "$k" = Cpus_allowed_list: ] && echo $v; done </proc/self/status'
SHAPE = Shape(sockets=2, cores=5, threads=2)
# QEMU numbers a core's threads one after the other, and the cores of a socket likewise
ALL, FIRST_SOCKET, SECOND_SOCKET = frozenset(range(20)), frozenset(range(10)), frozenset(range(10, 20))


@dataclass
class Pinned:
    """The guest, with an agent that pins, two pods that run on it, and what its kernel shows.

    Attributes:
        plane: the control plane.
        node: the guest as a node.
        kernel: the guest's cgroups.
        uids: of the pods ``free`` and ``owner``, by name. To start a pod takes the guest 10 s, so tests share them.
    """

    plane: LocalControlPlane
    node: GuestNode
    kernel: PodCgroups
    uids: dict[str, str] = field(default_factory=dict)

    def start(self, namespace: str, name: str, command: str = "exec sleep 1000", **resources: Any) -> str:
        """A pod on the node; its UID."""
        made = pod(namespace, name, command, NODE, hostNetwork=True, restartPolicy="Always")
        made["spec"]["containers"][0]["resources"] = resources
        self.plane.apply(made)
        return self.uid(namespace, name)

    def uid(self, namespace: str, name: str) -> str:
        return str(self.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]["uid"])

    def ask(self, name: str, cpus: frozenset[int], level: str = "CPU", namespace: str = SHARED, **spec: Any) -> None:
        """A binding of a pod."""
        made = binding(namespace, name, sorted(cpus), level)
        made["spec"] |= spec
        self.plane.apply(made)

    def bind(self, name: str, cpus: frozenset[int], level: str = "CPU", namespace: str = SHARED, **spec: Any) -> None:
        """A binding of a pod, once the agent has applied it."""
        self.ask(name, cpus, level, namespace, **spec)
        until_condition(self.plane, namespace, name, "Applied")

    def cpus_of(self, name_or_uid: str) -> frozenset[int]:
        """The CPUs that a pod's containers get; they all have the same."""
        (cpus,) = self.kernel.read(self.uids.get(name_or_uid, name_or_uid)).effective()
        return parse_cpu_list(cpus)

    def until(self, name: str, cpus: frozenset[int]) -> float:
        """Wait until a shared pod's containers and program have these CPUs; how long that took, seconds."""
        return self.kernel.until(self.uids[name], format_cpu_list(cpus))

    def programs(self, uid: str) -> dict[str, frozenset[int]]:
        """The CPUs of each ``sleep`` of a pod, by its command line."""
        found = self.kernel.read(uid).programs
        return {line.strip(): parse_cpu_list(cpus) for cpus, line in found if line.startswith("sleep ")}


@pytest.fixture(scope="module")
def guest(concerto_cluster: Cluster, say: Callable[[str], None]) -> Iterator[Pinned]:
    """The guest on the API server, its agent, and an operator."""
    plane = require_guest(concerto_cluster)
    operator = operator_process(plane, plane.logs, "operator-guest").start()
    try:
        with GuestNode(plane, NODE, SHAPE, say) as node:
            node.start_agent()
            made = Pinned(plane, node, PodCgroups(node.machine))
            plane.make_namespace(SHARED)
            for name in ("free", "owner"):
                made.uids[name] = made.start(SHARED, name)
            for uid in made.uids.values():
                made.kernel.until(uid, "0-19")
            yield made
    finally:
        plane.remove_namespace(SHARED)
        operator.stop()


@pytest.fixture(autouse=True)
def no_pins_left(guest: Pinned, namespace: str) -> Iterator[None]:
    """Bindings and pods of a test do not stand in the way of the next."""
    yield
    guest.plane.kubectl("delete", "pcb,pods", "--all", "-n", namespace, "--wait=false")
    guest.plane.kubectl("delete", "pcb", "--all", "-n", SHARED, "--wait=false")
    eventually("no binding is left", lambda: not guest.plane.get("pcb", "-A")["items"])
    eventually("nor a pod", lambda: not guest.plane.get("pods", "-n", namespace)["items"])
    for name in guest.uids:
        guest.until(name, ALL)


def test_the_topology_has_sockets_siblings_and_memory_nodes_with_their_sizes(guest: Pinned):

    def published() -> dict[str, Any] | None:
        found = guest.plane.get("ncpu", f"--field-selector=metadata.name={NODE}")["items"]
        return found[0].get("status") if found else None

    status = eventually("the topology is published", published)
    assert status["counts"] == {"sockets": 2, "cores": 10, "cpus": 20, "numaNodes": 2}
    for number, cpus in (("0", FIRST_SOCKET), ("1", SECOND_SOCKET)):
        memory = status["topology"]["numaNodes"][number]
        assert set(memory["cpus"]) == cpus
        assert 0.8 * SHAPE.node_mib * 2**20 < memory["memoryBytes"] <= SHAPE.node_mib * 2**20
    cores = [core["cpus"] for each in status["topology"]["sockets"].values() for core in each["cores"].values()]
    assert sorted(cores) == [[cpu, cpu + 1] for cpu in range(0, 20, 2)]


def test_each_level_keeps_others_off_what_it_names(guest: Pinned, namespace: str):
    kept = {
        "None": frozenset[int](),
        "CPU": frozenset({2}),
        "Core": frozenset({2, 3}),
        "Socket": FIRST_SOCKET,
        "NUMA": FIRST_SOCKET,
    }
    for level, cpus in kept.items():
        guest.bind("owner", frozenset({2}), level)
        assert (level, guest.cpus_of("owner")) == (level, {2})
        assert (level, guest.cpus_of("free")) == (level, ALL - cpus)
    new = guest.start(namespace, "new")
    guest.kernel.until(new, "10-19")
    guest.plane.kubectl("delete", "pcb", "-n", SHARED, "owner")
    guest.kernel.until(new, "0-19")


def test_the_older_of_two_bindings_has_the_cpus_and_the_younger_gets_them_when_it_goes(guest: Pinned):
    guest.bind("owner", frozenset({4, 5}))
    guest.ask("free", frozenset({5, 6}))

    def refused() -> bool:
        status = get_binding(guest.plane, SHARED, "free").get("status", {})
        return status.get("resourceStatus") == "CPUSetAllocationFailed" and bool(status.get("conflictsWith"))

    eventually("the younger is refused", refused)
    assert (guest.cpus_of("owner"), guest.cpus_of("free")) == ({4, 5}, ALL - {4, 5})
    guest.plane.kubectl("delete", "pcb", "-n", SHARED, "owner")
    until_condition(guest.plane, SHARED, "free", "Applied")
    guest.until("owner", ALL - {5, 6})
    assert guest.cpus_of("free") == {5, 6}


def test_what_others_write_is_put_right(guest: Pinned, say: Callable[[str], None]):
    machine = guest.node.machine
    guest.bind("owner", frozenset({2, 12}), "Core")
    for name, cpus in (("owner", frozenset({2, 12})), ("free", ALL - {2, 3, 12, 13})):
        path, container = guest.kernel.path(guest.uids[name]), guest.kernel.containers(guest.uids[name])[-1]
        machine.shell(f"echo 0-19 >{path}/cpuset.cpus; echo 0-19 >{container}/cpuset.cpus")
        say(f"guest: a cpuset written by hand was right again after {guest.until(name, cpus):.1f} s")
        scope = container.rpartition("/")[2]
        machine.run("systemctl", "set-property", "--runtime", scope, "AllowedCPUs=0-19")
        say(f"guest: AllowedCPUs of a scope was right again after {guest.until(name, cpus):.1f} s")


def test_pins_stay_when_systemd_reads_its_units_again(guest: Pinned, say: Callable[[str], None]):
    guest.bind("owner", frozenset({2}), "Core")
    for words in ("daemon-reload", "daemon-reexec"):
        guest.node.machine.run("systemctl", words)
        found = {name: format_cpu_list(guest.cpus_of(name)) for name in guest.uids}
        seconds = max(guest.until("owner", frozenset({2})), guest.until("free", ALL - {2, 3}))
        say(f"guest: after systemctl {words} the pods had {found}; all was right after {seconds:.1f} s")


def test_cpusets_that_were_taken_away_and_given_back_are_written_and_watched_again(
    guest: Pinned, say: Callable[[str], None]
):
    """Whoever thinks that nobody needs the controller cpuset may switch it off (systemd#40438)."""
    guest.bind("owner", frozenset({2}), "Core")
    switch = (
        "for d in $(find /sys/fs/cgroup/kubepods.slice {} -type d); do echo {}cpuset >$d/cgroup.subtree_control; done"
    )
    off, on = switch.format("-depth", "-"), switch.format("", "+")
    guest.node.machine.shell(f"{off} 2>/dev/null; {on} 2>/dev/null; exit 0")
    seconds = max(guest.until("owner", frozenset({2})), guest.until("free", ALL - {2, 3}))
    say(f"guest: cpusets that were gone for a moment were right again after {seconds:.1f} s")
    path = guest.kernel.path(guest.uids["owner"])
    guest.node.machine.shell(f"echo 0-19 >{path}/cpuset.cpus")
    seconds = guest.until("owner", frozenset({2}))
    say(f"guest: and what is written by hand afterwards, after {seconds:.1f} s")


def test_pins_stay_when_containerd_is_started_again_and_containers_are_made_anew(guest: Pinned):
    guest.bind("owner", frozenset({2}), "Core")
    guest.node.machine.run("systemctl", "restart", "containerd")
    assert (guest.cpus_of("owner"), guest.cpus_of("free")) == ({2}, ALL - {2, 3})
    before = {name: set(guest.kernel.containers(uid)) for name, uid in guest.uids.items()}
    for uid in guest.uids.values():
        guest.kernel.end_program(uid)
    for name, cpus in (("owner", frozenset({2})), ("free", ALL - {2, 3})):
        uid, old = guest.uids[name], before[name]
        eventually(
            f"the container of {name} is made anew", lambda uid=uid, old=old: set(guest.kernel.containers(uid)) - old
        )
        guest.until(name, cpus)


def test_less_than_what_is_asked_for_is_reported_and_right_once_it_is_there(guest: Pinned):
    machine = guest.node.machine
    machine.run("systemctl", "set-property", "--runtime", "kubepods.slice", "AllowedCPUs=0-5")
    try:
        guest.ask("owner", frozenset({4, 8}))
        said = until_condition(guest.plane, SHARED, "owner", "Applied", "False")
        assert condition(said, "Applied")["reason"] == "NotAsGranted"
        assert guest.cpus_of("owner") == {4}
    finally:
        machine.run("systemctl", "set-property", "--runtime", "kubepods.slice", "AllowedCPUs=0-19")
    until_condition(guest.plane, SHARED, "owner", "Applied")
    assert guest.cpus_of("owner") == {4, 8}


def test_pins_stay_when_the_agent_is_killed_and_a_new_one_goes_on(guest: Pinned):
    guest.bind("owner", frozenset({2}), "Core")
    guest.node.stop_agent(kill=True)
    assert (guest.cpus_of("owner"), guest.cpus_of("free")) == ({2}, ALL - {2, 3})
    container = guest.kernel.containers(guest.uids["owner"])[-1]
    guest.node.machine.shell(f"echo 0-19 >{container}/cpuset.cpus")
    path = guest.kernel.path(guest.uids["free"])
    guest.node.machine.shell(f"echo 0-19 >{path}/cpuset.cpus")
    assert guest.cpus_of("free") == ALL, "nobody is there"
    guest.node.start_agent()
    guest.until("free", ALL - {2, 3})
    guest.until("owner", frozenset({2}))


def test_memory_comes_from_the_memory_node_of_the_cpus_where_the_pod_fits(guest: Pinned, namespace: str):
    wait = "while [ ! -e /dev/shm/go ]; do usleep 100000; done"
    fill = f"{wait}; dd if=/dev/zero of=/dev/shm/filled bs=1M count=48 2>/dev/null; exec sleep 1000"
    bound = guest.start(namespace, "bound", fill, limits={"memory": "128Mi"})
    large = guest.start(namespace, "large", limits={"memory": "2Gi"})
    eventually("it waits", lambda: any("usleep" in command for _, command in guest.kernel.read(bound).programs))
    guest.bind("bound", frozenset({11}), namespace=namespace, memory="Bind")
    assert guest.kernel.read(bound).effective("mems") == {"1"}
    (shell, *_) = guest.node.machine.shell(f"cat {guest.kernel.path(bound)}/*/cgroup.procs").split()
    root = f"/proc/{shell}/root"
    guest.node.machine.shell(f"touch {root}/dev/shm/go")
    guest.kernel.until_it_runs(bound)
    stat = f"{guest.kernel.path(bound)}/memory.numa_stat"
    nodes = guest.node.machine.shell(f"grep '^shmem ' {stat}").split()[1:]
    megabytes = {node: int(size) // 2**20 for node, size in (each.split("=") for each in nodes)}
    assert megabytes == {"N0": 0, "N1": 48}
    guest.kernel.until_it_runs(large)
    guest.ask("large", frozenset({13}), namespace=namespace, memory="Bind")

    def refused() -> bool:
        found = get_binding(guest.plane, namespace, "large")
        return bool(condition(found, "Validated")["reason"] == "MemoryTooSmall")

    eventually("a pod that does not fit is not bound", refused)
    assert guest.kernel.read(large).effective("mems") == {"0-1"}
    guest.bind("large", frozenset({13}), namespace=namespace, memory="Prefer")
    found = guest.kernel.read(large)
    assert (found.effective(), found.effective("mems")) == ({"13"}, {"0-1"})


def test_only_the_named_containers_have_the_cpus(guest: Pinned, namespace: str):
    made = pod(namespace, "two", "exec sleep 1000", NODE, hostNetwork=True)
    (main,) = made["spec"]["containers"]
    made["spec"]["containers"].append({**main, "name": "beside", "command": ["sh", "-c", "exec sleep 2000"]})
    guest.plane.apply(made)
    uid = guest.uid(namespace, "two")
    eventually("both run", lambda: guest.programs(uid).keys() >= {"sleep 1000", "sleep 2000"})
    guest.bind("two", frozenset({2}), "Core", namespace, containers=[main["name"]])
    wanted = {"sleep 1000": {2}, "sleep 2000": ALL - {2, 3}}
    eventually(lambda: guest.programs(uid), lambda: guest.programs(uid).items() >= wanted.items())


def test_a_resize_leaves_the_cpus_and_an_unlimited_quota(guest: Pinned, namespace: str):
    uid = guest.start(namespace, "resized", limits={"cpu": "500m", "memory": "64Mi"})
    guest.kernel.until_it_runs(uid)
    assert guest.kernel.read(uid).pod["cpu.max"] == "50000 100000"
    guest.bind("resized", frozenset({2}), namespace=namespace, cpuQuota="Unlimited")
    eventually("it is not throttled", lambda: guest.kernel.read(uid).pod["cpu.max"] == "max 100000")
    larger = {"cpu": "700m", "memory": "64Mi"}
    (container,) = guest.plane.get("pod", "-n", namespace, "resized")["spec"]["containers"]
    resources = {"requests": larger, "limits": larger}
    patch = {"spec": {"containers": [{"name": container["name"], "resources": resources}]}}
    guest.plane.kubectl("patch", "pod", "resized", "-n", namespace, "--subresource=resize", "-p", json.dumps(patch))

    def resized() -> bool:
        (status,) = guest.plane.get("pod", "-n", namespace, "resized")["status"]["containerStatuses"]
        return bool(status.get("resources", {}).get("limits", {}).get("cpu") == "700m")

    eventually("kubelet has resized it", resized)
    eventually("it is not throttled", lambda: guest.kernel.read(uid).pod["cpu.max"] == "max 100000")
    guest.kernel.until(uid, "2")
    guest.plane.kubectl("delete", "pcb", "-n", namespace, "resized")
    eventually("it is throttled again", lambda: guest.kernel.read(uid).pod["cpu.max"] == "70000 100000")


def typed(namespace: str, name: str, kind: str, cpu: str) -> dict[str, Any]:
    """A pod with a workload type, for the scheduler of the namespace's profile."""
    made = pod(namespace, name, "exec sleep 1000", hostNetwork=True, schedulerName=namespace)
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    made["metadata"]["labels"] = {TYPE: kind} if kind else {}
    if cpu:
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


@pytest.fixture
def profile(guest: Pinned, namespace: str) -> Iterator[Callable[..., None]]:
    """Makes a profile whose scheduler has the name of the namespace."""

    def make(*features: str) -> None:
        spec: dict[str, Any] = {"schedulerName": namespace, "scores": [{"name": "WorkloadAware"}]}
        # an emulated node takes its time
        spec["workloadAware"] = {"features": list(features), "prepareTimeout": "300s"}
        metadata = {"name": namespace}
        guest.plane.apply(
            {"apiVersion": "concerto.dev/v1alpha1", "kind": "SchedulingProfile", "metadata": metadata, "spec": spec}
        )

    yield make
    guest.plane.kubectl("delete", "sprof", namespace, "--ignore-not-found")


def first_cpus(guest: Pinned, namespace: str, name: str) -> frozenset[int]:
    """The CPUs that a pod's program found itself on with its first instruction, from its log."""
    log = f"/var/log/pods/{namespace}_{name}_{guest.uid(namespace, name)}/*/0.log"
    return parse_cpu_list(guest.node.machine.shell(f"cat {log}").split()[-1])


def test_eight_threads_get_one_socket_and_the_next_pod_idle_cores_and_nobody_gets_theirs(
    guest: Pinned, namespace: str, profile: Callable[..., None], say: Callable[[str], None]
):
    profile()
    asked = {"eight": ("cpu-bound", "8"), "four": ("cpu-bound", "4"), "rest": ("best-effort", "")}
    cpus = {}
    for name, (kind, cpu) in asked.items():
        made = typed(namespace, name, kind, cpu)
        made["spec"]["containers"][0]["command"] = ["sh", "-c", f"{SAY_CPUS}; exec sleep 1000"]
        guest.plane.apply(made)
        uid = guest.uid(namespace, name)
        guest.kernel.until_it_runs(uid)
        cpus[name] = guest.cpus_of(uid)
    first = [first_cpus(guest, namespace, name) for name in asked]
    right = sum(found == cpus[name] for name, found in zip(asked, first))
    say(f"guest: {right} of {len(asked)} labelled pods began on their CPUs")
    assert first == list(cpus.values())
    eight, four, rest = cpus.values()
    own, other = (FIRST_SOCKET, SECOND_SOCKET) if eight <= FIRST_SOCKET else (SECOND_SOCKET, FIRST_SOCKET)
    assert (len(eight), eight <= own) == (8, True)
    assert len({cpu // 2 for cpu in eight}) == 5, "all cores of the socket, then siblings of its own"
    assert (len(four), four <= other) == (4, True)
    assert len({cpu // 2 for cpu in four}) == 4, "an idle core for each thread"
    assert not rest & (eight | four)
    assert guest.cpus_of("free") == ALL - eight - four


def test_nine_exclusive_cores_leave_room_for_two_requests_and_pods_without_any_take_none_of_theirs(
    guest: Pinned, namespace: str, profile: Callable[..., None], say: Callable[[str], None]
):
    """One pod of nine threads: nine pods at once are too much for the guest on a busy machine."""
    profile("PhysicalCores")
    guest.plane.apply(typed(namespace, "nine", "cpu-bound", "9"))
    nine = guest.uid(namespace, "nine")
    guest.kernel.until_it_runs(nine)
    cores = {cpu // 2 for cpu in guest.cpus_of(nine)}
    assert (len(guest.cpus_of(nine)), len(cores)) == (9, 9)
    (left,) = set(range(10)) - cores
    asking = [f"asking-{number}" for number in range(11)]
    guest.plane.apply(*(typed(namespace, name, "", "1") for name in asking))
    guest.plane.apply(typed(namespace, "nothing", "", ""))

    def events() -> int:
        found = guest.plane.get("events", "-n", namespace, "--field-selector=reason=FailedScheduling")["items"]
        words = "Insufficient cpu beside exclusive CPUs"
        return len({e["involvedObject"]["name"] for e in found if words in e["message"]})

    eventually("nine are refused with the reason", lambda: events() == 9)
    placed = [name for name in asking if _has_node(guest, namespace, name)]
    assert len(placed) == 2
    for name in (*placed, "nothing"):
        guest.kernel.until(guest.uid(namespace, name), f"{2 * left}-{2 * left + 1}")
    assert guest.cpus_of("free") == {2 * left, 2 * left + 1}
    say(f"guest: nine exclusive cores keep 18 of 20 CPUs; {len(placed)} of 11 requests were placed beside them")


def _has_node(guest: Pinned, namespace: str, name: str) -> bool:
    found = guest.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return bool(found["spec"].get("nodeName"))


def test_with_kubelets_static_policy_containers_are_pinned_and_those_that_kubelet_pins_are_left_alone(
    guest: Pinned, namespace: str
):
    machine, directory = guest.node.machine, "/var/lib/kubelet"
    settings = yaml.safe_load(machine.shell(f"cat {directory}/config.yaml"))
    settings |= {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}
    machine.shell(f"systemctl stop kubelet; rm {directory}/config.yaml {directory}/cpu_manager_state")
    machine.write(f"{directory}/config.yaml", yaml.safe_dump(settings))
    machine.run("systemctl", "start", "kubelet")
    state = f"{directory}/cpu_manager_state"
    eventually("kubelet has the policy", lambda: "static" in machine.shell(f"cat {state}", check=False))
    guest.bind("owner", frozenset({4}), "Core")
    guest.until("owner", frozenset({4}))
    guest.until("free", ALL - {4, 5})
    owner = guest.kernel.read(guest.uids["owner"])
    assert parse_cpu_list(owner.pod["cpuset.cpus.effective"]) == ALL, "only containers: kubelet gives these their sets"
    whole = {"cpu": "2", "memory": "32Mi"}
    kubelets = guest.start(namespace, "kubelets", requests=whole, limits=whole)
    guest.kernel.until_it_runs(kubelets)

    def assigned() -> frozenset[int]:
        entries = json.loads(machine.shell(f"cat {state}")).get("entries") or {}
        return frozenset(cpu for cpus in entries.get(kubelets, {}).values() for cpu in parse_cpu_list(cpus))

    cpus = eventually("kubelet has assigned CPUs", assigned)
    assert len(cpus) == 2
    guest.ask("kubelets", frozenset({18}), namespace=namespace)
    said = until_condition(guest.plane, namespace, "kubelets", "KubeletConflict")
    assert condition(said, "Applied")["reason"] == "KubeletConflict"
    assert {parse_cpu_list(each) for each in guest.kernel.read(kubelets).program()} == {cpus}
    # Kubelet moves containers off its CPUs, and leaves sandboxes, which run nothing
    rest = {format_cpu_list(ALL - {4, 5} - cpus)}
    eventually("kubelet moves the other pod", lambda: guest.kernel.read(guest.uids["free"]).program() == rest)
