"""Pinning on what clusters have: cgroup v2, systemd, hyper-threads and two memory nodes, in an emulated machine.

Operator, API server and etcd run on this machine; kubelet, containerd, the agent and all pods in the guest. By hand:
``make e2e-guest`` (CI leaves it out: to boot 20 emulated CPUs alone takes more than a minute).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from e2e.testbed.agent_helpers import condition
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.guest import GuestNode, Shape
from e2e.testbed.guest.cgroups import PodCgroups
from e2e.testbed.guest.node import AGENT_UNIT, NRI_SOCKET
from e2e.testbed.guest.pinned import SHARED, Pinned
from e2e.testbed.pinning_helpers import get_binding, pod, until_condition
from e2e.testbed.processes import operator_process
from e2e.testbed.requirements import require_containerd, require_guest
from e2e.testbed.waiting import eventually

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(1800)]

NODE = "guest"
TYPE = "concerto.dev/workload-type"
# What its own program says first: no other process is asked, and nothing is started before
SAY_CPUS = 'while read k v; do [ "$k" = Cpus_allowed_list: ] && echo $v; done </proc/self/status'
SHAPE = Shape(sockets=2, cores=5, threads=2)
# QEMU numbers a core's threads one after the other, and the cores of a socket likewise
ALL, FIRST_SOCKET, SECOND_SOCKET = frozenset(range(20)), frozenset(range(10)), frozenset(range(10, 20))


@pytest.fixture(scope="module")
def guest(concerto_cluster: Cluster, say: Callable[[str], None]) -> Iterator[Pinned]:
    """The guest on the API server, its agent, and an operator."""
    plane = require_guest(concerto_cluster)
    operator = operator_process(plane, plane.logs, "operator-guest").start()
    try:
        with GuestNode(plane, NODE, SHAPE, say, containerd=require_containerd(say)) as node:
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
    resize(guest.plane, namespace, "resized", {"requests": larger, "limits": larger})
    eventually("it is not throttled", lambda: guest.kernel.read(uid).pod["cpu.max"] == "max 100000")
    guest.kernel.until(uid, "2")
    guest.plane.kubectl("delete", "pcb", "-n", namespace, "resized")
    eventually("it is throttled again", lambda: guest.kernel.read(uid).pod["cpu.max"] == "70000 100000")


def resize(plane: LocalControlPlane, namespace: str, name: str, resources: dict[str, Any]) -> None:
    """Resize a pod's only container in place; returns when kubelet has carried it out."""
    (container,) = plane.get("pod", "-n", namespace, name)["spec"]["containers"]
    patch = {"spec": {"containers": [{"name": container["name"], "resources": resources}]}}
    plane.kubectl("patch", "pod", name, "-n", namespace, "--subresource=resize", "-p", json.dumps(patch))

    def carried_out() -> bool:
        (status,) = plane.get("pod", "-n", namespace, name)["status"]["containerStatuses"]
        found = status.get("resources", {})
        return all(found.get(kind, {}).get("cpu") == amounts["cpu"] for kind, amounts in resources.items())

    eventually(f"kubelet has resized {name}", carried_out)


def typed(namespace: str, name: str, kind: str, cpu: str) -> dict[str, Any]:
    """A pod with a workload type, for the scheduler of the namespace's profile."""
    # A start that takes the guest longer than runc waits for systemd is tried again
    made = pod(namespace, name, "exec sleep 1000", hostNetwork=True, schedulerName=namespace, restartPolicy="Always")
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
    log = f"/var/log/pods/{namespace}_{name}_{guest.uid(namespace, name)}/*/*.log"
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


def test_a_labelled_pod_that_is_resized_keeps_its_cpus_and_gets_more_near_them_or_gives_some_up(
    guest: Pinned, namespace: str, profile: Callable[..., None]
):
    profile()
    guest.plane.apply(typed(namespace, "sized", "cpu-bound", "2"))
    uid = guest.uid(namespace, "sized")
    guest.kernel.until_it_runs(uid)
    before = two = guest.cpus_of(uid)
    assert len(two) == 2
    for cpu, count in (("7", 7), ("1", 1)):
        resize(guest.plane, namespace, "sized", {"requests": {"cpu": cpu}})

        def held(count: int = count) -> frozenset[int]:
            items = get_binding(guest.plane, namespace, "sized")["spec"]["cpuSet"]
            return frozenset(item["cpuID"] for item in items) if len(items) == count else frozenset()

        cpus = eventually(f"its binding has {count} CPUs", held)
        assert before < cpus or cpus < before
        guest.kernel.until(uid, format_cpu_list(cpus))
        guest.until("free", ALL - cpus)
        if count == 7:
            assert cpus <= (FIRST_SOCKET if two <= FIRST_SOCKET else SECOND_SOCKET)
            assert len({each // 2 for each in cpus}) == 5, "all cores of the socket, then siblings of its own"
        before = cpus


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


KUBELET = "/var/lib/kubelet"
CPU_MANAGER_STATE = f"{KUBELET}/cpu_manager_state"


def use_static_policy(guest: Pinned) -> None:
    """Have the guest's kubelet use its static CPU manager from now on."""
    machine = guest.node.machine

    def is_used() -> bool:
        return "static" in machine.shell(f"cat {CPU_MANAGER_STATE}", check=False)

    if is_used():
        return
    settings = yaml.safe_load(machine.shell(f"cat {KUBELET}/config.yaml"))
    settings |= {"cpuManagerPolicy": "static", "reservedSystemCPUs": "18-19"}
    machine.shell(f"systemctl stop kubelet; rm {KUBELET}/config.yaml {CPU_MANAGER_STATE}")
    machine.write(f"{KUBELET}/config.yaml", yaml.safe_dump(settings))
    machine.run("systemctl", "start", "kubelet")
    eventually("kubelet has the policy", is_used)


def test_with_kubelets_static_policy_containers_are_pinned_and_those_that_kubelet_pins_are_left_alone(
    guest: Pinned, namespace: str
):
    machine = guest.node.machine
    use_static_policy(guest)
    guest.bind("owner", frozenset({4}), "Core")
    guest.until("owner", frozenset({4}))
    guest.until("free", ALL - {4, 5})
    owner = guest.kernel.read(guest.uids["owner"])
    assert parse_cpu_list(owner.pod["cpuset.cpus.effective"]) == ALL, "only containers: kubelet gives these their sets"
    whole = {"cpu": "2", "memory": "32Mi"}
    kubelets = guest.start(namespace, "kubelets", requests=whole, limits=whole)
    guest.kernel.until_it_runs(kubelets)

    def assigned() -> frozenset[int]:
        entries = json.loads(machine.shell(f"cat {CPU_MANAGER_STATE}")).get("entries") or {}
        return frozenset(cpu for cpus in entries.get(kubelets, {}).values() for cpu in parse_cpu_list(cpus))

    cpus = eventually("kubelet has assigned CPUs", assigned)
    assert len(cpus) == 2
    guest.ask("kubelets", frozenset({16}), namespace=namespace)
    said = until_condition(guest.plane, namespace, "kubelets", "KubeletConflict")
    assert condition(said, "Applied")["reason"] == "KubeletConflict"
    assert {parse_cpu_list(each) for each in guest.kernel.read(kubelets).program()} == {cpus}
    # Kubelet moves containers off its CPUs, and leaves sandboxes, which run nothing
    rest = {format_cpu_list(ALL - {4, 5} - cpus)}
    eventually("kubelet moves the other pod", lambda: guest.kernel.read(guest.uids["free"]).program() == rest)


def test_with_nri_containers_are_created_with_their_cpus_also_after_containerd_was_started_again(
    guest: Pinned, namespace: str, profile: Callable[..., None], say: Callable[[str], None]
):
    """With kubelet's static policy, where no container inherits its CPUs from its pod's cgroup.

    No file names the reserved CPUs to the agent: it asks kubelet.
    """
    use_static_policy(guest)
    profile()
    machine = guest.node.machine
    guest.node.stop_agent()
    guest.node.start_agent("--nri-socket", str(NRI_SOCKET), "--kubelet-config", "/nowhere/config.yaml")

    def registrations() -> int:
        log = machine.run("journalctl", "-u", AGENT_UNIT, "-o", "cat", check=False).output
        return log.count("registered with containerd")

    def begin(*names: str) -> list[frozenset[int]]:
        """The CPUs on which each pod's program begins: of labelled pods, and of one without a label."""
        for name in names:
            labelled = name.startswith("own")
            made = typed(namespace, name, "cpu-bound" if labelled else "", "2" if labelled else "")
            made["spec"]["containers"][0]["command"] = ["sh", "-c", f"{SAY_CPUS}; exec sleep 1000"]
            guest.plane.apply(made)
            guest.kernel.until_it_runs(guest.uid(namespace, name))
        return [first_cpus(guest, namespace, name) for name in names]

    try:
        eventually("the agent is registered with containerd", registrations)

        def reserved() -> str:
            (topology,) = guest.plane.get("ncpu", f"--field-selector=metadata.name={NODE}")["items"]
            return str(topology["status"]["pools"].get("reserved", ""))

        eventually("the CPUs that kubelet reserves are known", lambda: reserved() == "18-19")
        for number in (1, 2):
            own, free = begin(f"own-{number}", f"free-{number}")
            held = get_binding(guest.plane, namespace, f"own-{number}")["status"]["cpus"]
            say(f"guest: with NRI, of CPUs {held} a program began on {format_cpu_list(own)}")
            assert (own, free & own) == (parse_cpu_list(held), frozenset())
            before = registrations()
            machine.run("systemctl", "restart", "containerd")
            eventually("the agent is registered again", lambda before=before: registrations() > before)
            assert guest.cpus_of(guest.uid(namespace, f"own-{number}")) == own
    finally:
        guest.node.stop_agent()
        guest.node.start_agent()
