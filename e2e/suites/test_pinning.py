"""Pods on a real kubelet and containerd run on the CPUs of their PodCPUBindings, from their first instruction on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from e2e.testbed.agent_helpers import condition
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.nodes import RealNode
from e2e.testbed.pinning_helpers import (
    FIRST_INSTRUCTION,
    FULL,
    REPOSITORY,
    Kernel,
    binding,
    ends,
    get_binding,
    grant,
    pinning_agent,
    pinning_node,
    pod,
    start_bound,
    until_condition,
)
from e2e.testbed.processes import Process, concerto_command, operator_process
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

NODE = "pin-real"
"""The numbers in the docs: 50 pods one by one, 161 in bursts. By default a sample of them."""
ONE_BY_ONE = 50 if FULL else 2
FREE = 60 if FULL else 5
BURSTS = [3] * 17 + [10] * 5 + [20] * 3 if FULL else [10]


@pytest.fixture(scope="module")
def plane(concerto_cluster: Cluster) -> LocalControlPlane:
    """A control plane that real nodes can join."""
    return require_real_nodes(concerto_cluster, cpus=2)


@pytest.fixture(scope="module")
def pinned(plane: LocalControlPlane) -> Iterator[tuple[RealNode, Process]]:
    """The node with all CPUs, and its agent."""
    with pinning_node(plane, NODE) as both:
        yield both


@pytest.fixture
def kernel(pinned: tuple[RealNode, Process]) -> Kernel:
    return Kernel(pinned[0])


@pytest.mark.timeout(900)
def test_a_program_finds_itself_on_its_cpu_with_its_first_instruction(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process], say: Callable[[str], None]
):
    said: list[str] = []
    for i in range(ONE_BY_ONE):
        name = f"one-{i}"
        start_bound(plane, NODE, [(pod(namespace, name, FIRST_INSTRUCTION), binding(namespace, name, [1]))])
        said.append(ends(plane, namespace, [name])[name])
        plane.kubectl("delete", "pcb,pod", "-n", namespace, name, "--wait=false")
    say(f"pinning: one by one {said.count('1')} of {len(said)} began on their CPU")
    assert said == ["1"] * ONE_BY_ONE
    burst: list[str] = []
    for number, size in enumerate(BURSTS):
        names = [f"burst-{number}-{i}" for i in range(size)]
        start_bound(
            plane,
            NODE,
            [(pod(namespace, n, FIRST_INSTRUCTION), binding(namespace, n, [1], "None")) for n in names],
        )
        burst += [said for name, said in ends(plane, namespace, names).items() if name in names]
        plane.kubectl("delete", "pcb,pod", "-n", namespace, *names, "--wait=false")
    say(f"pinning: in bursts {burst.count('1')} of {len(burst)} began on their CPU")
    assert burst == ["1"] * sum(BURSTS)


def test_pods_that_say_their_type_begin_on_cpus_of_their_own_one_after_the_other(
    plane: LocalControlPlane, namespace: str, kernel: Kernel
):
    """Nobody binds them by hand: the operator finds CPUs, makes the bindings, and waits for the real agent."""
    profile = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": namespace},
        "spec": {"schedulerName": namespace, "scores": [{"name": "WorkloadAware"}]},
    }

    def asking(name: str, command: str, labels: dict[str, str]) -> dict[str, object]:
        made = pod(namespace, name, command, schedulerName=namespace, nodeSelector={"kubernetes.io/hostname": NODE})
        made["metadata"]["labels"] = labels
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        return made

    names = [f"cpu-{i}" for i in range(3)]
    held: dict[str, str] = {}

    def look() -> bool:
        for obj in plane.get("pcb", "-n", namespace)["items"]:
            if cpus := (obj.get("status") or {}).get("cpus"):
                held[obj["metadata"]["name"]] = cpus
        return held.keys() >= set(names)

    plane.apply(profile)
    operator = operator_process(plane, plane.logs, "operator-pinning").start()
    try:
        operator.wait_ready()
        # Of two CPUs one stays with everybody else, so that the three have to wait for each other
        plane.apply(
            asking("beside", "exec sleep 1000", {}),
            *(asking(n, f"{FIRST_INSTRUCTION}; sleep 1", {"concerto.dev/workload-type": "cpu-bound"}) for n in names),
        )
        eventually("each has had its turn", look)
        said = ends(plane, namespace, names)
        assert {name: said[name] for name in names} == held
        assert all(cpus in ("0", "1") for cpus in held.values())
        eventually("their bindings have gone with them", lambda: not plane.get("pcb", "-n", namespace)["items"])
        kernel.until(plane.get("pod", "-n", namespace, "beside")["metadata"]["uid"], "0-1")
        # Sockets, cores, CPUs, memory nodes, nothing allocated, and all of it shared
        eventually(
            "the node's columns say so", lambda: "1 2 2 1 0-1" in " ".join(plane.kubectl("get", "ncpu", NODE).split())
        )
    finally:
        operator.stop()
        plane.kubectl("delete", "sprof", namespace)


def test_others_leave_before_and_come_back_after_and_restarts_and_drift_change_nothing(
    plane: LocalControlPlane,
    namespace: str,
    pinned: tuple[RealNode, Process],
    kernel: Kernel,
    say: Callable[[str], None],
):
    agent = pinned[1]
    plane.apply(pod(namespace, "free", "sleep 1000", NODE))
    plane.apply(pod(namespace, "restarts", "sleep 1000", NODE, restartPolicy="Always"))
    uids = {
        name: plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]["uid"]
        for name in ("free", "restarts")
    }
    for uid in uids.values():
        kernel.until_it_runs(uid)
        kernel.until(uid, "0-1")
    plane.apply(binding(namespace, "restarts", [1], "Core"))
    obj = get_binding(plane, namespace, "restarts")
    grant(plane, obj, NODE, uids["restarts"])
    applied = until_condition(plane, namespace, "restarts", "Applied")["status"]
    assert {k: applied["applied"][k] for k in ("podUID", "cpus", "mems")} == {
        "podUID": uids["restarts"], "cpus": "1", "mems": "0",
    }  # fmt: skip
    assert (kernel.sets(uids["free"]), kernel.sets(uids["restarts"])) == ({"0"}, {"1"})
    pools = eventually(
        "the topology shows it",
        lambda: (found := plane.get("ncpu", NODE)["status"]["pools"])["allocated"] and found,
    )
    assert (pools["allocated"], pools["shared"]) == ("1", "0")
    assert plane.get("ncpu", NODE)["status"]["cpusetWriter"] == "Files"

    os.kill(agent.pid, signal.SIGSTOP)  # or it would be quicker than we are
    kernel.widen(uids["restarts"], "0-1")
    os.kill(agent.pid, signal.SIGCONT)
    say(f"pinning: drift by hand was repaired after {kernel.until(uids['restarts'], '1'):.2f} s")

    before = set(kernel.pod(uids["restarts"]).iterdir())
    for file in kernel.pod(uids["restarts"]).glob("*/cgroup.procs"):
        for pid in file.read_text().split():
            if b"sleep\x001000" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
    eventually("the container is made anew", lambda: set(kernel.pod(uids["restarts"]).iterdir()) - before)
    kernel.until_it_runs(uids["restarts"])
    kernel.until(uids["restarts"], "1")

    agent.kill()
    kernel.pod(uids["free"]).joinpath("cpuset.cpus").write_text("0-1")
    plane.apply(pod(namespace, "late", "sleep 1000", NODE))
    late = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/late")["metadata"]["uid"]
    kernel.until_it_runs(late)
    assert kernel.sets(late) == {"0-1"}, "there is no agent"
    assert kernel.sets(uids["restarts"]) == {"1"}, "pins stay without it"
    agent.start()
    for uid in (late, uids["free"]):
        kernel.until(uid, "0")
    assert kernel.sets(uids["restarts"]) == {"1"}

    plane.kubectl("delete", "pcb", "-n", namespace, "restarts")
    for uid in (late, *uids.values()):
        kernel.until(uid, "0-1")


def test_pods_without_a_binding_begin_off_the_exclusive_cpus(
    plane: LocalControlPlane,
    namespace: str,
    pinned: tuple[RealNode, Process],
    kernel: Kernel,
    say: Callable[[str], None],
):
    plane.apply(pod(namespace, "owner", "sleep 1000", NODE), binding(namespace, "owner", [1]))
    uid = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/owner")["metadata"]["uid"]
    grant(plane, get_binding(plane, namespace, "owner"), NODE, uid)
    until_condition(plane, namespace, "owner", "Applied")
    names = [f"free-{i}" for i in range(FREE)]
    plane.apply(*(pod(namespace, name, FIRST_INSTRUCTION, NODE) for name in names))
    said = ends(plane, namespace, names)
    say(f"pinning: {sum(said[name] == '0' for name in names)} of {FREE} unbound pods began off the exclusive CPU")
    assert [said[name] for name in names] == ["0"] * FREE
    plane.kubectl("delete", "pcb", "-n", namespace, "owner")
    kernel.until(uid, "0-1")


def test_an_edit_moves_the_pod_and_a_binding_that_goes_while_the_agent_is_down_is_no_more(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process], kernel: Kernel
):
    agent = pinned[1]
    made = pod(namespace, "moves", "sleep 1000", NODE)
    made["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "500m"}}
    plane.apply(made)
    uid = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/moves")["metadata"]["uid"]
    kernel.until_it_runs(uid)
    plane.apply(binding(namespace, "moves", [0]))
    grant(plane, get_binding(plane, namespace, "moves"), NODE, uid)
    kernel.until(uid, "0")
    assert kernel.quotas(uid) == [-1, 50_000, 50_000], "of the sandbox, the container and the pod"
    unlimited = binding(namespace, "moves", [1])
    unlimited["spec"]["cpuQuota"] = "Unlimited"
    plane.apply(unlimited)
    grant(plane, get_binding(plane, namespace, "moves"), NODE, uid)
    kernel.until(uid, "1")
    eventually("it is not throttled any more", lambda: kernel.quotas(uid) == [-1, -1, -1])
    assert until_condition(plane, namespace, "moves", "Applied")["status"]["applied"]["cpus"] == "1"
    agent.stop()
    assert kernel.sets(uid) == {"1"}, "an agent that belongs to no DaemonSet leaves pins when it is asked to stop"
    plane.kubectl("delete", "pcb", "-n", namespace, "moves")
    agent.start()
    kernel.until(uid, "0-1")
    eventually("it is throttled again", lambda: kernel.quotas(uid) == [-1, 50_000, 50_000])


def test_a_pod_of_which_only_the_sandbox_runs_is_not_reported_as_applied(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process], kernel: Kernel
):
    made = pod(namespace, "no-image", "sleep 1000", NODE)
    made["spec"]["containers"][0] |= {"image": "no-such-image:1", "imagePullPolicy": "Never"}
    plane.apply(made)
    uid = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/no-image")["metadata"]["uid"]

    def waits() -> bool:
        statuses = plane.get("pod", "-n", namespace, "no-image")["status"].get("containerStatuses", ())
        return [each["state"].get("waiting", {}).get("reason") for each in statuses] == ["ErrImageNeverPull"]

    eventually("kubelet has made the sandbox, and has no image for the container", waits)
    assert kernel.sets(uid) == {"0-1"}
    plane.apply(binding(namespace, "no-image", [1]))
    grant(plane, get_binding(plane, namespace, "no-image"), NODE, uid)
    found = until_condition(plane, namespace, "no-image", "Prepared")
    kernel.until(uid, "1")
    assert condition(found, "Applied")["reason"] == "NoContainers"
    assert found["status"]["applied"] == {"podUID": uid}


def test_a_binding_of_one_container_leaves_the_pods_others_where_unbound_pods_are(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process], kernel: Kernel
):
    made = pod(namespace, "two", "sleep 1000", NODE)
    main = made["spec"]["containers"][0]
    made["spec"]["containers"].append(main | {"name": "log", "command": ["sh", "-c", "sleep 2000"]})
    plane.apply(made)
    uid = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/two")["metadata"]["uid"]
    for word in (b"1000", b"2000"):
        eventually("its containers run", lambda word=word: kernel.allowed(uid, word) == {"0-1"})
    bound = binding(namespace, "two", [1])
    bound["spec"]["containers"] = [main["name"]]
    plane.apply(bound)
    grant(plane, get_binding(plane, namespace, "two"), NODE, uid)
    for word, cpus in ((b"1000", "1"), (b"2000", "0")):
        eventually("each is where it is to be", lambda word=word, cpus=cpus: kernel.allowed(uid, word) == {cpus})
    assert until_condition(plane, namespace, "two", "Applied")["status"]["applied"]["cpus"] == "1"
    plane.kubectl("delete", "pcb", "-n", namespace, "two")
    eventually("it has all CPUs again", lambda: kernel.allowed(uid) == {"0-1"})


def test_a_binding_that_another_node_has_is_not_ours_to_write(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process]
):
    plane.apply(binding(namespace, "elsewhere", [0]))
    grant(plane, get_binding(plane, namespace, "elsewhere"), "another-node", "some-uid")
    token = plane.token_kubeconfig("concerto-system", "concerto-agent", bound_node=NODE)
    patch = '{"status": {"applied": {"podUID": "some-uid"}}}'
    said = plane.kubectl(
        "--kubeconfig", str(token), "patch", "pcb", "-n", namespace, "elsewhere", "--subresource=status",
        "--type=merge", "-p", patch, check=False,
    )  # fmt: skip
    assert f"may write only PodCPUBindings whose status.nodeName is {NODE}" in said
    grant(plane, get_binding(plane, namespace, "elsewhere"), NODE, "some-uid")
    patch = '{"status": {"cpus": "0-1"}}'
    said = plane.kubectl(
        "--kubeconfig", str(token), "patch", "pcb", "-n", namespace, "elsewhere", "--subresource=status",
        "--type=merge", "-p", patch, check=False,
    )  # fmt: skip
    assert "the rest is the operator's" in said
    assert condition(get_binding(plane, namespace, "elsewhere"), "Validated")["status"] == "True"


def start_and_wait(agent: Process, kernel: Kernel, uid: str) -> None:
    """Start an agent, and return when it has pinned the pod to CPU 1 and lifted its quotas; its pin is undone first."""
    kernel.widen(uid, "0-1")
    agent.start()
    kernel.until(uid, "1")
    eventually("it is not throttled", lambda: kernel.quotas(uid) == [-1, -1, -1])


def without_rights(plane: LocalControlPlane, member: Process, kernel: Kernel, uid: str) -> None:
    """The agent ends while the API server knows nothing of its rights any more."""
    account = "--as=system:serviceaccount:concerto-system:concerto-agent"
    question = ("auth", "can-i", "get", "daemonsets.apps/concerto-agent", "-n", "concerto-system", account)
    start_and_wait(member, kernel, uid)
    plane.kubectl("delete", "rolebinding", "-n", "concerto-system", "concerto-agent-pinning")
    eventually("the authorizer knows of it", lambda: "no" in plane.kubectl(*question, check=False))
    member.stop()
    assert kernel.sets(uid) == {"0-1"}, "its rights are gone, and so is the product"
    plane.kubectl("apply", "-f", str(REPOSITORY / "manifests" / "components" / "pinning" / "rbac.yaml"))


def test_a_restart_leaves_pins_and_a_removal_takes_them_away(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process], kernel: Kernel
):
    node, agent = pinned
    agent.stop()
    daemon_set = "apps/v1", "DaemonSet", "concerto-agent", "concerto-system"
    plane.apply(
        {
            "apiVersion": daemon_set[0],
            "kind": daemon_set[1],
            "metadata": {"name": daemon_set[2], "namespace": daemon_set[3]},
            "spec": {
                "selector": {"matchLabels": {"app": "stand-in"}},
                "template": {
                    "metadata": {"labels": {"app": "stand-in"}},
                    "spec": {
                        "nodeSelector": {"no": "node"},
                        "containers": [{"name": "c", "image": "none.invalid/none"}],
                    },
                },
            },
        }
    )
    made, bound = pod(namespace, "stays", "sleep 1000", NODE), binding(namespace, "stays", [1])
    made["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "500m"}}
    bound["spec"]["cpuQuota"] = "Unlimited"
    plane.apply(made, bound)
    uid = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/stays")["metadata"]["uid"]
    grant(plane, get_binding(plane, namespace, "stays"), NODE, uid)
    kernel.until_it_runs(uid)
    member = pinning_agent(plane, node, "--daemon-set", "concerto-system/concerto-agent")
    try:
        start_and_wait(member, kernel, uid)
        member.stop()
        assert kernel.sets(uid) == {"1"}, "a rolling restart"
        if FULL:
            without_rights(plane, member, kernel, uid)
        start_and_wait(member, kernel, uid)
        plane.kubectl("delete", "daemonset", "-n", "concerto-system", "concerto-agent")
        member.stop()
        assert kernel.sets(uid) == {"0-1"}, "its DaemonSet is gone"
        start_and_wait(agent, kernel, uid)
        agent.kill()
        assert kernel.quotas(uid) == [-1, -1, -1]
        token = plane.token_kubeconfig("concerto-system", "concerto-agent", bound_node=NODE)
        flags = ["--kubeconfig", str(token), "--scope", "cgroup", "--cgroup", node.cgroup, *node.kubelet_flags]
        subprocess.run(concerto_command("agent", "--node-name", NODE, "--release", *flags), check=True)
        assert kernel.sets(uid) == {"0-1"}, "by hand"
        assert kernel.quotas(uid) == [-1, 50_000, 50_000]
    finally:
        member.kill()
        plane.kubectl("delete", "daemonset", "-n", "concerto-system", "concerto-agent", "--ignore-not-found")
        if not agent.is_running():
            agent.start()


def test_what_the_component_gives_the_agents_pod_is_enough_and_no_capability_is(
    plane: LocalControlPlane, namespace: str, pinned: tuple[RealNode, Process], kernel: Kernel, tmp_path: Path
):
    manifests = os.path.relpath(REPOSITORY / "manifests", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{manifests}/base]\ncomponents: [{manifests}/components/pinning]\n"
    )
    rendered = yaml.safe_load_all(plane.kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", str(tmp_path)))
    agents = next(obj for obj in rendered if obj["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    (container,) = agents["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    own = str(kernel.kubepods.relative_to(pinned[0].cgroup_path("cpuset")) / "besteffort" / "cpuset.cpus")
    shell = (
        f"f=/host/sys/fs/cgroup/cpuset/{own}; echo 0-1 >$f && cat /host/kubelet/cpu_manager_state >/dev/termination-log"
    )
    made = pod(namespace, "stand-in", shell, NODE)
    stand_in = made["spec"]["containers"][0]
    stand_in |= {"securityContext": container["securityContext"], "volumeMounts": container["volumeMounts"]}
    made["spec"] |= {"securityContext": agents["securityContext"], "volumes": agents["volumes"]}
    plane.apply(made)
    assert '"policyName":"none"' in ends(plane, namespace, ["stand-in"])["stand-in"]
