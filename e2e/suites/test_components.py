"""What one leaves out of manifests/components is not missed: the base's rights are enough for what the base runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.processes import NAMESPACE, Process, concerto_command
from e2e.testbed.system import REPOSITORY
from e2e.testbed.waiting import eventually
from support.crd_schemas import documents, yaml_of_docs

BASE = REPOSITORY / "manifests" / "base"
COMPONENTS = tuple(sorted(path.name for path in (REPOSITORY / "manifests" / "components").iterdir()))


@pytest.fixture
def account(concerto_cluster: Cluster, namespace: str):
    """A service account with the rights that manifests/base gives the operator, in a namespace of its own."""
    name = "bare-operator"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    objects = [o for o in documents(BASE / "operator-rbac.yaml") if o["kind"] != "ServiceAccount"]
    for obj in objects:
        obj["metadata"]["name"] = f"{namespace}-{obj['metadata']['name']}"
        if "namespace" in obj["metadata"]:
            obj["metadata"]["namespace"] = namespace
        if "roleRef" in obj:
            obj["roleRef"]["name"] = f"{namespace}-{obj['roleRef']['name']}"
            obj["subjects"] = [subject]
    concerto_cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}, *objects
    )
    yield name
    for obj in objects:
        if "namespace" not in obj["metadata"]:
            concerto_cluster.kubectl("delete", obj["kind"], obj["metadata"]["name"])


def test_an_operator_of_the_base_alone_leads_and_is_refused_nothing(concerto_cluster, namespace, account, tmp_path):
    kubeconfig = concerto_cluster.token_kubeconfig(namespace, account)
    health = f"127.0.0.1:{free_ports(1)[0]}"
    command = concerto_command(
        "operator", "--kubeconfig", str(kubeconfig), "--namespace", namespace, "--bind", health,
        "--controllers", "scheduling", "--service-account", "concerto-operator",
    )  # fmt: skip
    operator = Process("operator", command, tmp_path / "operator.log", health).start()
    try:
        operator.wait_ready()
        eventually(
            operator.log.read_text, lambda: 'concerto_leader{lease="concerto-operator"} 1.0' in operator.get("/metrics")
        )
        renewals: set[str] = set()

        def renewed() -> bool:
            lease = concerto_cluster.get("lease", "concerto-operator", "-n", namespace)
            renewals.add(lease["spec"]["renewTime"])
            return len(renewals) > 2

        # what is done at an interval of seconds has been done at least once
        eventually("it has renewed its Lease, and again", renewed)
        assert operator.is_running()
    finally:
        operator.stop()
    said = operator.log.read_text()
    assert [line for line in said.splitlines() if "ERROR" in line or "orbidden" in line or "CRITICAL" in line] == []
    # it does not run as that ServiceAccount, which is not there
    assert "nothing owns the Lease" in said


def relative(folder: Path) -> str:
    """The way from a folder to manifests: kustomize takes no absolute paths."""
    return "../" * (len(folder.parts) - 1) + str(REPOSITORY / "manifests").lstrip("/")


def rendered(cluster: Cluster, folder: Path, components: tuple[str, ...]) -> list[dict[str, Any]]:
    """The base with some components, as kustomize makes it of an overlay of one's own."""
    up = relative(folder)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{up}/base"],
        "components": [f"{up}/components/{name}" for name in components],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return documents(cluster.kubectl("kustomize", str(folder)))


def assert_taken(cluster: Cluster, objects: Iterable[dict[str, Any]]) -> None:
    """The API server takes all of them, each once; it does not serve the kinds of the Prometheus operator here."""
    passed_over = ("PodMonitor", "PrometheusRule", "CustomResourceDefinition")
    texts = {json.dumps(obj, sort_keys=True) for obj in objects if obj["kind"] not in passed_over}
    said = cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "--dry-run=server", "-f", "-",
        stdin="\n---\n".join(sorted(texts)),
    )  # fmt: skip
    assert len(said.splitlines()) == len(texts)


def test_each_component_alone_and_all_together_are_whole_and_the_api_server_takes_them(concerto_cluster, tmp_path):
    chosen = [*((name,) for name in COMPONENTS), COMPONENTS]
    seen: list[dict[str, Any]] = []
    for components in chosen:
        objects = rendered(concerto_cluster, tmp_path, components)
        there = {(o["kind"], o["metadata"]["name"]) for o in objects}
        for obj in objects:
            if "roleRef" in obj:
                assert (obj["roleRef"]["kind"], obj["roleRef"]["name"]) in there, components
                assert all((s["kind"], s["name"]) in there for s in obj["subjects"]), components
            if obj["kind"] in ("Deployment", "DaemonSet"):
                (container,) = obj["spec"]["template"]["spec"]["containers"]
                flags = " ".join(container["args"])
                assert ("pinning" in flags) == (
                    "pinning" in components and obj["metadata"]["name"] != "concerto-autoscaler"
                )
                assert "--pod-metrics-bind" not in flags or "autoscaling" in components
                # one program in one version, also where a component brings the Deployment
                of_all = [container, *obj["spec"]["template"]["spec"].get("initContainers", ())]
                images = {each["image"] for each in of_all}
                assert images in ({"concerto-operator:0.1.0"}, {"concerto-agent:0.1.0"})
        assert (("Deployment", "concerto-autoscaler") in there) == ("autoscaling" in components)
        seen += objects
    assert_taken(concerto_cluster, seen)
    assert {"Deployment", "DaemonSet", "NetworkPolicy", "ResourceQuota", "Service"} <= {obj["kind"] for obj in seen}


PRIORITY_LEVELS = {
    "the Lease": ("/apis/coordination.k8s.io/v1/namespaces/concerto-system/leases/{name}", "concerto-leader-election"),
    "an object of a namespace": ("/apis/concerto.dev/v1alpha1/podreservations?limit=1", "concerto"),
    "an object of the cluster": ("/apis/concerto.dev/v1alpha1/nodecapacities?limit=1", "concerto"),
    "no object": ("/apis", "concerto"),
}


@pytest.mark.parametrize("name", ["concerto-operator", "concerto-autoscaler"])
@pytest.mark.parametrize(("path", "schema"), PRIORITY_LEVELS.values(), ids=PRIORITY_LEVELS)
def test_flow_control_gives_requests_the_priority_level_that_it_says(concerto_cluster, name, path, schema):
    schemas = str(REPOSITORY / "manifests" / "components" / "flow-control" / "flow-schemas.yaml")
    concerto_cluster.kubectl("apply", "-f", schemas)
    try:
        uid = concerto_cluster.get("flowschema", schema)["metadata"]["uid"]
        kubeconfig = str(concerto_cluster.token_kubeconfig(NAMESPACE, name))
        asked = ("--kubeconfig", kubeconfig, "get", "--raw", path.format(name=name), "-v=8")

        def matched() -> bool:
            said = concerto_cluster.kubectl(*asked, check=False)
            return re.findall(r"(?i)x-kubernetes-pf-flowschema-uid: *\[?\"?([0-9a-f-]+)", said) == [uid]

        eventually("the API server knows the FlowSchema", matched)
    finally:
        concerto_cluster.kubectl("delete", "-f", schemas)


KUSTOMIZATIONS = [
    pytest.param(text, id=f"{page} {number}") for page, number, text in yaml_of_docs() if "kind: Kustomization" in text
]
OURS = r"https://git\.example\.com/platform/concerto\.git//manifests/([\w/-]+)\?ref=\S+"


@pytest.mark.parametrize("text", KUSTOMIZATIONS)
def test_an_overlay_of_the_docs_is_taken_and_each_of_its_patches_changes_something(concerto_cluster, tmp_path, text):
    base, folder = tmp_path / "concerto", tmp_path / "overlay"
    base.mkdir()
    folder.mkdir()
    rendered(concerto_cluster, base, COMPONENTS)
    (kustomization,) = documents(re.sub(OURS, lambda found: f"{relative(folder)}/{found[1]}", text))

    def built(patches: list[dict[str, Any]]) -> str:
        (folder / "kustomization.yaml").write_text(json.dumps(kustomization | {"patches": patches}))
        return concerto_cluster.kubectl("kustomize", str(folder))

    patches = kustomization.get("patches", [])
    plain = built([])
    assert [patch for patch in patches if built([patch]) == plain] == []
    assert_taken(concerto_cluster, documents(built(patches)))


def violations(cluster: Cluster, namespace: str, workload: dict[str, Any]) -> set[str]:
    """Checks of the Pod Security level of the namespace that the workload's pod fails, as the API server names them."""
    template = workload["spec"]["template"]
    # of the namespace concerto-system alone, and no part of the level
    spec = {k: v for k, v in template["spec"].items() if k not in ("serviceAccountName", "priorityClassName")}
    metadata = {"name": workload["metadata"]["name"], "namespace": namespace}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec | {"automountServiceAccountToken": False},
    }
    said = cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
    if "created" in said:
        return set()
    assert "violates PodSecurity" in said, said
    return {check for check in CHECKS if check in said}


CHECKS = (
    "restricted volume types", "runAsNonRoot != true", "runAsUser=0", "seLinuxOptions",
    "allowPrivilegeEscalation != false", "unrestricted capabilities", "seccompProfile", "host namespaces",
    "privileged (", "hostPort", "sysctls", "non-default capabilities",
)  # fmt: skip
HOST_PATHS = {"restricted volume types"}
"""What level restricted has against an agent without pinning (docs/security.md, "Pods")."""
LEVELS = {
    "without pinning": ((), {"concerto-operator": set(), "concerto-agent": HOST_PATHS}),
    "with pinning": (
        ("pinning", "autoscaling"),
        {
            "concerto-operator": set(),
            "concerto-autoscaler": set(),
            # cgroup files belong to root, and a confined container may not write them
            "concerto-agent": HOST_PATHS | {"runAsNonRoot != true", "runAsUser=0", "seLinuxOptions"},
        },
    ),
}


@pytest.mark.parametrize(("components", "levels"), LEVELS.values(), ids=LEVELS)
def test_pods_of_ours_keep_to_the_pod_security_level_that_is_stated(
    concerto_cluster, namespace, tmp_path, components, levels
):
    concerto_cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    workloads = [
        o for o in rendered(concerto_cluster, tmp_path, components) if o["kind"] in ("Deployment", "DaemonSet")
    ]
    found = {o["metadata"]["name"]: violations(concerto_cluster, namespace, o) for o in workloads}
    assert found == levels


SAMPLES = [
    pytest.param(obj, id=f"{path.name}: {obj['metadata']['name']}")
    for path in sorted((REPOSITORY / "manifests" / "samples").glob("*.yaml"))
    for obj in documents(path)
    if "template" in obj["spec"]
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_pods_of_the_samples_may_run_in_a_namespace_of_the_strictest_level(concerto_cluster, namespace, sample):
    concerto_cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    assert violations(concerto_cluster, namespace, sample) == set()
