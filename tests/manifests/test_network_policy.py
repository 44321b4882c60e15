"""The component network-policy: who reaches which port of operator and agents, and what those reach."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from support.crd_schemas import REPOSITORY, documents

MANIFESTS = REPOSITORY / "manifests"
POLICIES = documents(MANIFESTS / "components" / "network-policy" / "policies.yaml")
OPERATOR, AUTOSCALER, AGENT = "concerto-operator", "concerto-autoscaler", "concerto-agent"
POD, NO_POD = "a pod elsewhere", "no pod"


def labels(who: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": who} if who in (OPERATOR, AUTOSCALER, AGENT) else {}


def peer_matches(peer: dict[str, Any], who: str) -> bool:
    if "namespaceSelector" in peer:
        assert peer == {"namespaceSelector": {}}
        return who != NO_POD
    # a pod selector alone is one of the policy's own namespace
    return peer["podSelector"]["matchLabels"].items() <= labels(who).items()


def may(direction: str, ours: str, other: str, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let a pod of ours be reached from (Ingress), or reach (Egress), another's port."""
    side = {"Ingress": "from", "Egress": "to"}[direction]
    (policy,) = [p["spec"] for p in POLICIES if p["spec"]["podSelector"]["matchLabels"] == labels(ours)]
    assert direction in policy["policyTypes"]
    return any(
        {"port": port, "protocol": protocol} in [{"protocol": "TCP"} | p for p in rule["ports"]]
        and (side not in rule or any(peer_matches(peer, other) for peer in rule[side]))
        for rule in policy[direction.lower()]
    )


@pytest.mark.parametrize(
    ("what", "allowed"),
    [
        (("Ingress", OPERATOR, NO_POD, 8080), True),  # kubelet's probes, kube-scheduler's question to /watcher
        (("Ingress", OPERATOR, POD, 8080), True),
        (("Ingress", OPERATOR, POD, 8443), True),  # /metrics, whose callers are checked
        (("Ingress", AUTOSCALER, POD, 8443), True),
        (("Ingress", AGENT, POD, 9103), True),
        (("Ingress", OPERATOR, AGENT, 443), False),
        (("Ingress", AGENT, NO_POD, 9101), True),
        (("Ingress", AUTOSCALER, NO_POD, 8080), True),
        (("Ingress", AGENT, AUTOSCALER, 9102), True),
        (("Ingress", AGENT, OPERATOR, 9102), False),
        (("Ingress", AGENT, POD, 9102), False),
        (("Ingress", AGENT, AGENT, 9102), False),  # one node does not ask another
        (("Ingress", AGENT, NO_POD, 9102), False),
        (("Egress", OPERATOR, NO_POD, 6443), True),
        (("Egress", OPERATOR, NO_POD, 16443), True),  # MicroK8s; minikube has 8443
        (("Egress", OPERATOR, POD, 9090), True),
        (("Egress", OPERATOR, NO_POD, 9090), False),
        (("Egress", OPERATOR, POD, 2020), True),  # a load watcher
        (("Egress", OPERATOR, NO_POD, 2020), False),
        (("Egress", AUTOSCALER, POD, 2020), False),
        (("Egress", OPERATOR, POD, 53, "UDP"), True),
        (("Egress", OPERATOR, POD, 5353, "UDP"), True),  # OpenShift's DNS
        (("Egress", OPERATOR, AGENT, 9102), False),
        (("Egress", AUTOSCALER, AGENT, 9102), True),
        (("Egress", AUTOSCALER, NO_POD, 6443), True),
        (("Egress", AUTOSCALER, POD, 9090), True),
        (("Egress", AUTOSCALER, NO_POD, 9090), False),
        (("Egress", AUTOSCALER, POD, 53, "UDP"), True),
        (("Egress", AUTOSCALER, POD, 5353, "TCP"), True),
        (("Egress", AUTOSCALER, POD, 9102), False),
        (("Egress", OPERATOR, POD, 9102), False),
        (("Egress", OPERATOR, NO_POD, 80), False),
        (("Egress", AGENT, NO_POD, 6443), True),
        (("Egress", AGENT, NO_POD, 10250), True),  # the kubelet of its node
        (("Egress", OPERATOR, NO_POD, 10250), False),
        (("Egress", AGENT, POD, 53, "UDP"), False),  # it asks for no name
        (("Egress", AGENT, AGENT, 9102), False),
        (("Egress", AGENT, OPERATOR, 8080), False),
    ],
    ids=str,
)
def test_who_reaches_what(what, allowed):
    assert may(*what) == allowed


@pytest.mark.parametrize(
    ("ours", "page", "key"),
    [(OPERATOR, "load-aware.md", "address: "), (AUTOSCALER, "install.md", "--autoscaling-prometheus-url=")],
)
def test_a_provider_at_an_address_that_a_page_shows_is_reached(ours, page, key):
    text = (REPOSITORY / "docs" / page).read_text()
    shown = re.findall(rf"{key}\"?(https?://[^\s\"}}]+)", text)
    assert shown
    for url in map(urlsplit, shown):
        assert may("Egress", ours, POD, url.port or {"http": 80, "https": 443}[url.scheme]), url


def test_every_port_that_a_pod_of_ours_serves_is_let_through_and_no_other():
    serves: dict[str, set[int]] = {OPERATOR: set(), AUTOSCALER: set(), AGENT: set()}
    for path in MANIFESTS.rglob("*.yaml"):
        text = path.read_text()
        for document in yaml.safe_load_all(text):
            for patch in (document or {}).get("patches", ()):
                text += f"\n---\n{patch['patch']}" if "patch" in patch else ""
        for obj in yaml.safe_load_all(text):
            if isinstance(obj, dict) and obj.get("kind") in ("Deployment", "DaemonSet"):
                containers = obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
                ports = {port["containerPort"] for c in containers for port in c.get("ports", ())}
                serves.get(obj["metadata"]["name"], set()).update(ports)
    let_in = {
        p["metadata"]["name"]: {port["port"] for rule in p["spec"]["ingress"] for port in rule["ports"]}
        for p in POLICIES
    }
    assert let_in == serves


def test_the_default_overlay_restricts_the_network():
    overlay = yaml.safe_load((MANIFESTS / "overlays" / "default" / "kustomization.yaml").read_text())
    assert "../../components/network-policy" in overlay["components"]


def test_the_policies_select_the_pods_there_are():
    pods = [
        o["spec"]["template"]["metadata"]["labels"]
        for path in [*(MANIFESTS / "base").glob("*.yaml"), MANIFESTS / "components/autoscaling/deployment.yaml"]
        for o in documents(path)
        if o["kind"] in ("Deployment", "DaemonSet")
    ]
    chosen = [p["spec"]["podSelector"]["matchLabels"] for p in POLICIES]
    assert len(pods) == len(chosen)
    assert all(sum(c.items() <= labels.items() for c in chosen) == 1 for labels in pods)
