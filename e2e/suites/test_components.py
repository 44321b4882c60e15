"""What one leaves out of manifests/components is not missed: the base's rights are enough for what the base runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.processes import Process, concerto_command
from e2e.testbed.system import REPOSITORY
from e2e.testbed.waiting import eventually
from support.crd_schemas import documents

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


def rendered(cluster: Cluster, folder: Path, components: tuple[str, ...]) -> list[dict[str, Any]]:
    """The base with some components, as kustomize makes it of an overlay of one's own."""
    up = "../" * (len(folder.parts) - 1) + str(REPOSITORY / "manifests").lstrip("/")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{up}/base"],
        "components": [f"{up}/components/{name}" for name in components],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return documents(cluster.kubectl("kustomize", str(folder)))


def test_each_component_alone_and_all_together_are_whole_and_the_api_server_takes_them(concerto_cluster, tmp_path):
    chosen = [*((name,) for name in COMPONENTS), COMPONENTS]
    seen: dict[str, str] = {}
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
        for obj in objects:
            # the kinds of the Prometheus operator are not served here; CRDs are tried elsewhere
            if obj["kind"] not in ("PodMonitor", "PrometheusRule", "CustomResourceDefinition"):
                seen[json.dumps(obj, sort_keys=True)] = obj["kind"]
    # each object once, however many of them hold it
    said = concerto_cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "--dry-run=server", "-f", "-",
        stdin="\n---\n".join(seen),
    )  # fmt: skip
    assert len(said.splitlines()) == len(seen)
    assert {"Deployment", "DaemonSet", "NetworkPolicy", "ResourceQuota", "Service"} <= set(seen.values())


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
