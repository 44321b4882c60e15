"""Pods with a workload type get CPUs of their own on a real API server: binding, word of the agent, then the pod.

Nodes are API objects with topologies; their agents' word comes from the process that plays them (or never comes).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from concerto.api.cpulist import parse_cpu_list
from e2e.testbed.agent_helpers import condition
from e2e.testbed.clusters import Cluster
from e2e.testbed.hollow.objects import LABEL as FLEET
from e2e.testbed.processes import QUICK_LEASE, Process, concerto_command, operator_process
from e2e.testbed.system import REPOSITORY, hollow_nodes
from e2e.testbed.waiting import eventually

Object = dict[str, Any]
TYPE = "concerto.dev/workload-type"
NAME = "pinned-e2e"
PREPARE_SECONDS = 2
SHAPE = ("--api-only", "--cores", "20", "--machine", "2x5x2")


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster) -> Iterator[Process]:
    """An operator; two nodes whose agents answer, one whose agent does not: 2 sockets x 5 cores x 2 threads each."""
    profile = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": NAME},
        "spec": {
            "schedulerName": NAME,
            "scores": [{"name": "WorkloadAware"}],
            "tieBreaking": "FirstByName",
            "workloadAware": {"prepareTimeout": f"{PREPARE_SECONDS}s", "features": ["BestEffortSharedCPUs"]},
        },
    }
    concerto_cluster.apply(profile)
    with (
        hollow_nodes(concerto_cluster, 2, "--prefix", "pins", *SHAPE),
        hollow_nodes(concerto_cluster, 1, "--prefix", "mute", "--mute", *SHAPE),
    ):
        logs = getattr(concerto_cluster, "logs", concerto_cluster.work_dir)
        process = operator_process(concerto_cluster, logs, "operator-workloads", QUICK_LEASE, restarts=True).start()
        try:
            process.wait_ready()
            yield process
        finally:
            process.stop()
            concerto_cluster.kubectl("delete", "sprof", NAME)


@pytest.fixture(autouse=True)
def free_cpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the pods' CPUs back at once: the namespace takes its time to go."""
    if "namespace" not in request.fixturenames:
        yield
        return
    cluster, namespace = (request.getfixturevalue(name) for name in ("concerto_cluster", "namespace"))
    yield
    cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false")


def pod(
    namespace: str, name: str, kind: str | None = "cpu-bound", cpu: str | None = "2", fleet: str = "pins"
) -> Object:
    container: Object = {"name": "c", "image": "none.invalid/none"}
    if cpu is not None:
        container["resources"] = {"requests": {"cpu": cpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {} if kind is None else {TYPE: kind}},
        "spec": {
            "schedulerName": NAME,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {FLEET: fleet} if fleet else {},
            "containers": [container],
        },
    }


def bound(cluster: Cluster, namespace: str, *names: str) -> dict[str, str]:
    """Nodes of these pods, once they have one each."""

    def look() -> dict[str, str]:
        items = cluster.get("pods", "-n", namespace)["items"]
        there = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in items if p["spec"].get("nodeName")}
        return there if set(names) <= there.keys() else {}

    return dict(eventually(f"{', '.join(names)} are bound", look))


def bindings(cluster: Cluster, namespace: str) -> dict[str, Object]:
    return {b["metadata"]["name"]: b for b in cluster.get("pcb", "-n", namespace)["items"]}


def reported(cluster: Cluster, namespace: str, name: str, reason: str, words: str) -> str:
    """The event of that reason that has these words."""

    def look() -> str:
        selector = f"involvedObject.name={name},reason={reason}"
        found = cluster.get("events", "-n", namespace, "--field-selector", selector)["items"]
        return next((e["message"] for e in found if words in e["message"]), "")

    return str(eventually(f"{name} has the event: {words}", look))


def concerto(*arguments: Any) -> str:
    """What one of our commands prints; its last argument is the cluster."""
    *words, cluster = arguments
    command = concerto_command(*words, "--kubeconfig", str(cluster.kubeconfig))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def no_binding(cluster: Cluster, namespace: str, name: str) -> None:
    eventually(f"binding {name} is gone", lambda: name not in bindings(cluster, namespace))


def test_each_type_gets_its_cpus_and_the_binding_is_there_before_the_pod_is_bound(
    concerto_cluster, operator, namespace
):
    kinds = {"cpu": "cpu-bound", "memory": "memory-bound", "io": "io-bound", "rest": "best-effort"}
    pods = [pod(namespace, name, kind) for name, kind in kinds.items()]
    pods[3]["spec"]["containers"][0].pop("resources")
    concerto_cluster.apply(*pods, pod(namespace, "plain", None))
    nodes = bound(concerto_cluster, namespace, *kinds, "plain")
    found = bindings(concerto_cluster, namespace)
    assert found.keys() == kinds.keys(), "pods without a type share what is left"
    taken: dict[str, set[int]] = {}
    for name, kind in kinds.items():
        obj, status = found[name], found[name]["status"]
        owner = concerto_cluster.get("pod", "-n", namespace, name)["metadata"]
        assert [(o["kind"], o["uid"]) for o in obj["metadata"]["ownerReferences"]] == [("Pod", owner["uid"])]
        assert (status["nodeName"], status["podUID"]) == (nodes[name], owner["uid"])
        assert condition(obj, "Prepared")["status"] == "True"
        assert obj["metadata"]["labels"][TYPE] == kind
        assert obj["spec"]["exclusivenessLevel"] == ("None" if kind == "best-effort" else "CPU")
        cpus = parse_cpu_list(status["cpus"])
        assert len(cpus) == (1 if kind == "best-effort" else 2)
        assert not cpus & taken.setdefault(nodes[name], set())
        taken[nodes[name]] |= cpus
        said = reported(concerto_cluster, namespace, name, "Scheduled", "Successfully assigned")
        assert f"it has CPUs {status['cpus']}" in said
    assert found["memory"]["status"]["mems"] == "0-1"
    io = sorted(parse_cpu_list(found["io"]["status"]["cpus"]))
    assert io[1] - io[0] == 10, "siblings"
    columns = concerto_cluster.kubectl("get", "pcb", "-n", namespace, "cpu", "--no-headers").split()
    assert columns[1:3] == ["cpu", nodes["cpu"]] and columns[3] == found["cpu"]["status"]["cpus"]
    drawn = concerto("top", "cpus", nodes["memory"], concerto_cluster)
    assert "2 sockets, 10 cores, 20 CPUs, 2 memory nodes" in drawn and f"{namespace}/memory" in drawn
    # It goes with its pod, and as soon as the pod has ended
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "cpu")
    no_binding(concerto_cluster, namespace, "cpu")
    ended = '{"status": {"phase": "Succeeded"}}'
    concerto_cluster.kubectl("patch", "pod", "-n", namespace, "io", "--subresource=status", "-p", ended)
    no_binding(concerto_cluster, namespace, "io")


def test_cpus_that_come_free_go_to_who_waits_and_what_can_not_be_meant_is_said(concerto_cluster, operator, namespace):
    big = {f"big-{i}": pod(namespace, f"big-{i}", cpu="12") for i in range(3)}
    concerto_cluster.apply(*list(big.values())[:2])
    bound(concerto_cluster, namespace, "big-0", "big-1")
    odd = pod(namespace, "odd", "gpu-bound")
    concerto_cluster.apply(big["big-2"], odd, pod(namespace, "unsaid", cpu=None))
    reported(concerto_cluster, namespace, "big-2", "FailedScheduling", "2 Insufficient cpu")
    reported(concerto_cluster, namespace, "odd", "FailedScheduling", f"don't know the value of label {TYPE}=gpu-bound")
    reported(concerto_cluster, namespace, "unsaid", "FailedScheduling", "cpu-bound needs a cpu request")
    explained = concerto("explain", "pod", f"{namespace}/odd", concerto_cluster)
    assert f"WorkloadAware: node(s) don't know the value of label {TYPE}=gpu-bound" in explained
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "big-0")
    assert bound(concerto_cluster, namespace, "big-2")
    assert "plain" not in bindings(concerto_cluster, namespace)


def test_a_pod_that_is_resized_in_place_keeps_its_cpus_and_gets_more_or_gives_some_up(
    concerto_cluster, operator, namespace
):
    concerto_cluster.apply(pod(namespace, "sized"))
    bound(concerto_cluster, namespace, "sized")

    def held() -> frozenset[int]:
        return parse_cpu_list(bindings(concerto_cluster, namespace)["sized"]["status"].get("cpus", ""))

    def resize(cpu: str) -> None:
        spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
        patch = json.dumps({"spec": spec})
        concerto_cluster.kubectl("patch", "pod", "-n", namespace, "sized", "--subresource=resize", "-p", patch)

    before = held()
    resize("20")
    reported(concerto_cluster, namespace, "sized", "CPUsNotResized", "no CPUs for 20 cpu-bound threads")
    assert held() == before
    resize("4")
    eventually("it has four CPUs", lambda: len(held()) == 4)
    assert before < held()
    resize("1")
    eventually("it has one CPU", lambda: len(held()) == 1)
    assert held() < before


def test_a_silent_agent_keeps_its_own_pod_waiting_and_no_other_and_the_pod_goes_elsewhere(
    concerto_cluster, operator, namespace
):
    concerto_cluster.apply(
        pod(namespace, "only-there", fleet="mute"), pod(namespace, "plain", None, fleet="mute"), pod(namespace, "fine")
    )
    nodes = bound(concerto_cluster, namespace, "plain", "fine")
    assert nodes["plain"] == "mute-0000" and "only-there" not in nodes

    def waiting() -> bool:
        found = bindings(concerto_cluster, namespace).get("only-there")
        on = (found or {}).get("status", {}).get("nodeName")
        return on == "mute-0000" and condition(found, "Validated")["status"] == "True"

    eventually("its binding waits for the agent", waiting)
    words = f"Node mute-0000 did not prepare CPUs 0-1 within {PREPARE_SECONDS} s"
    reported(concerto_cluster, namespace, "only-there", "FailedScheduling", words)
    reported(concerto_cluster, namespace, "only-there", "FailedScheduling", "did not prepare a pod's CPUs in time")
    no_binding(concerto_cluster, namespace, "only-there")
    concerto_cluster.apply(pod(namespace, "anywhere", fleet=""))
    assert bound(concerto_cluster, namespace, "anywhere")["anywhere"].startswith("pins-"), "mute-0000 is avoided now"


def test_a_binding_whose_pod_can_not_be_bound_is_removed(concerto_cluster, operator, namespace):
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
                ],
            },
            "validations": [{"expression": "object.metadata.name != 'barred'", "message": "not this one"}],
        },
    }
    use = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {"policyName": namespace, "validationActions": ["Deny"]},
    }
    concerto_cluster.apply(policy, use)
    attempt = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "barred"}, "target": {"name": "pins-0000"}}
    path = f"/api/v1/namespaces/{namespace}/pods/barred/binding?dryRun=All"
    try:
        eventually(
            "the policy holds",
            lambda: "not this one" in concerto_cluster.kubectl(
                "create", "--raw", path, "-f", "-", stdin=json.dumps(attempt), check=False
            ),
        )  # fmt: skip
        concerto_cluster.apply(pod(namespace, "barred"))
        said = reported(concerto_cluster, namespace, "barred", "FailedScheduling", "was rejected")
        assert "not this one" in said
        no_binding(concerto_cluster, namespace, "barred")
    finally:
        concerto_cluster.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", namespace)
    assert bound(concerto_cluster, namespace, "barred")
    assert condition(bindings(concerto_cluster, namespace)["barred"], "Prepared")["status"] == "True"


def test_a_binding_of_somebody_elses_is_not_touched_and_the_pod_waits(concerto_cluster, operator, namespace):
    theirs = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodCPUBinding",
        "metadata": {"namespace": namespace, "name": "p"},
        "spec": {"podName": "other", "cpuSet": [{"cpuID": 0}]},
    }
    concerto_cluster.apply(theirs, pod(namespace, "p"))
    reported(
        concerto_cluster,
        namespace,
        "p",
        "FailedScheduling",
        f"PodCPUBinding {namespace}/p has the name of the pod's own",
    )
    assert bindings(concerto_cluster, namespace)["p"]["spec"]["podName"] == "other"
    concerto_cluster.kubectl("delete", "pcb", "-n", namespace, "p")
    bound(concerto_cluster, namespace, "p")


def test_an_operator_that_is_killed_anywhere_binds_nothing_twice_and_leaves_no_binding_behind(
    concerto_cluster, operator, namespace
):
    stuck = pod(namespace, "stuck", fleet="mute")
    concerto_cluster.apply(stuck)
    first = eventually("its binding is made", lambda: bindings(concerto_cluster, namespace).get("stuck"))
    operator.kill()
    names = [f"p{i}" for i in range(9)]
    operator.start()
    for i, name in enumerate(names):
        concerto_cluster.apply(pod(namespace, name, ["cpu-bound", "io-bound", "memory-bound"][i % 3], str(1 + i % 3)))
        if i == 5:
            operator.kill()
            operator.start()
    operator.wait_ready()
    nodes = bound(concerto_cluster, namespace, *names)
    taken: dict[str, set[int]] = {}
    for name, obj in bindings(concerto_cluster, namespace).items():
        if name in names:
            cpus = parse_cpu_list(obj["status"]["cpus"])
            assert obj["status"]["nodeName"] == nodes[name]
            assert not cpus & taken.setdefault(nodes[name], set()), f"{name} has what another has"
            taken[nodes[name]] |= cpus
    assert sum(map(len, taken.values())) == sum(1 + i % 3 for i in range(9)), "each has its own"
    # What the first process left behind is never bound from; it goes, or a new attempt takes its place
    eventually(
        "the orphan is gone",
        lambda: bindings(concerto_cluster, namespace).get("stuck", {}).get("metadata", {}).get("uid")
        != first["metadata"]["uid"],
    )  # fmt: skip
    assert "nodeName" not in concerto_cluster.get("pod", "-n", namespace, "stuck")["spec"]
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "stuck")
    no_binding(concerto_cluster, namespace, "stuck")


REFUSED = {
    "arguments without the filter": (
        {"filters": [{"name": "UnsupportedConstraints"}], "workloadAware": {}},
        "spec.workloadAware holds arguments of the filter WorkloadAware: list that filter in spec.filters",
    ),
    "the score without the filter": (
        {"filters": [{"name": "UnsupportedConstraints"}], "scores": [{"name": "WorkloadAware"}]},
        "the score WorkloadAware needs the filter WorkloadAware",
    ),
    "a feature that there is not": ({"workloadAware": {"features": ["Magic"]}}, "Unsupported value"),
    "a policy that there is not": ({"workloadAware": {"policy": "Random"}}, "Unsupported value"),
    "no time for agents": ({"workloadAware": {"prepareTimeout": "10ms"}}, "must lie between 1s and 10m"),
}


@pytest.mark.parametrize(("spec", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_profile_that_can_not_be_meant_is_refused(concerto_cluster, spec, sentence):
    body = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": "pinned-e2e-try"},
        "spec": {"schedulerName": "pinned-e2e-try"} | spec,
    }
    said = concerto_cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(body), check=False)
    assert sentence in " ".join(said.split())


def test_what_bounds_a_tenant_is_as_the_documentation_says(concerto_cluster, operator, namespace):
    text = (REPOSITORY / "docs" / "cpu-pinning.md").read_text()
    block = text.partition("## Who may bind")[2].partition("```yaml\n")[2].partition("```")[0]
    policy, of = (o for o in yaml.safe_load_all(block))
    concerto_cluster.kubectl("label", "namespace", namespace, "team=a")
    wide = pod(namespace, "wide")
    wide["metadata"]["labels"]["concerto.dev/exclusiveness"] = "NUMA"
    try:
        concerto_cluster.apply(policy, of)
        made = ("create", "--dry-run=server", "-o", "name", "-f")
        path = concerto_cluster.work_dir / f"{namespace}.json"
        path.write_text(json.dumps(wide))
        refusal = "are for the platform's own namespaces"
        eventually("the policy is in force", lambda: refusal in concerto_cluster.kubectl(*made, str(path), check=False))
        path.write_text(json.dumps(pod(namespace, "plain")))
        assert "pod/plain" in concerto_cluster.kubectl(*made, str(path))
    finally:
        for each in (of, policy):
            concerto_cluster.kubectl("delete", each["kind"], each["metadata"]["name"], "--ignore-not-found")
