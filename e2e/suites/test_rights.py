"""The tokens of operator, autoscaler and agents are good for what docs/security.md says, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests

from concerto.api.nodecapacity import metrics_audience
from e2e.testbed.clusters import Cluster
from e2e.testbed.rights import ACCOUNTS, NAMESPACE, file, listing

OURS, OTHER = "rights-ours", "rights-other"
GROUP = "/apis/concerto.dev/v1alpha1"
PATCHES = {"merge": "application/merge-patch+json", "apply": "application/apply-patch+yaml"}


@dataclass(frozen=True)
class Try:
    """One request that must be refused.

    Attributes:
        method: GET, POST, DELETE, PUT, or ``merge`` and ``apply`` for the two kinds of PATCH.
        path: with ``{ns}`` for a namespace that holds the objects below.
        body: for a POST or a PATCH.
        headers: further ones.
    """

    method: str
    path: str
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


def pod(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "localhost/nothing:1"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def ours(kind: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": "concerto.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, **rest}


def rbac(kind: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "more"}, **rest}


def volume(namespace: str) -> dict[str, Any]:
    """A volume that is held for a claim which does not exist."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "rights",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": namespace, "name": "somebody-elses", "uid": "somebody-elses"},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "rights-disk"}, "spec": spec}


def claim() -> dict[str, Any]:
    """A claim whose volume is to be made for a node."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "rights",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"name": "c", "annotations": {"volume.kubernetes.io/selected-node": OURS}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def token_request(audiences: list[str], seconds: int = 3600) -> dict[str, Any]:
    spec = {"audiences": audiences, "expirationSeconds": seconds}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


LABELS = {"metadata": {"labels": {"tried": "true"}}}
PODS = "/api/v1/namespaces/{ns}/pods"
VOLUME = "/api/v1/persistentvolumes/rights-disk"
CLAIM = "/api/v1/namespaces/{ns}/persistentvolumeclaims/c"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMIN = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
ALL_RULES = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
ASSIGNMENT = {
    "namespace": "n",
    "name": "p",
    "uid": "u",
    "node": OURS,
    "basis": "Requests",
    "available": "1",
    "units": 1,
}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

# None of them may do any of these
ALL = {
    "read the secrets of another namespace": Try("GET", "/api/v1/namespaces/kube-system/secrets"),
    "read a secret at home": Try("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/anything"),
    "read all secrets": Try("GET", "/api/v1/secrets"),
    "make a secret": Try("POST", "/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "s"}}),
    "read configuration": Try("GET", "/api/v1/namespaces/kube-system/configmaps"),
    "run a command in a pod": Try("POST", PODS + "/p/exec?command=id&stdout=1"),
    "attach to a pod": Try("POST", PODS + "/p/attach?stdout=1"),
    "reach a pod's ports": Try("POST", PODS + "/p/portforward?ports=80"),
    "read a pod's log": Try("GET", PODS + "/p/log"),
    "make a pod": Try("POST", PODS, pod("q")),
    "make a pod at home, with the account of the other": Try("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod("q")),
    "label a pod": Try("merge", PODS + "/p", LABELS),
    "change a pod's image": Try("merge", PODS + "/p", {"spec": {"containers": [{"name": "c", "image": "evil"}]}}),
    "put a debugger into a pod": Try("merge", PODS + "/p/ephemeralcontainers", {"spec": {"ephemeralContainers": []}}),
    "delete all pods": Try("DELETE", PODS),
    "evict a pod": Try(
        "POST", PODS + "/p/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    ),
    "label a node": Try("merge", f"/api/v1/nodes/{OURS}", LABELS),
    "taint a node": Try("merge", f"/api/v1/nodes/{OTHER}", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}),
    "say how a node is": Try("merge", f"/api/v1/nodes/{OTHER}/status", {"status": {"capacity": {"cpu": "1"}}}),
    "talk to a kubelet": Try("GET", f"/api/v1/nodes/{OTHER}/proxy/pods"),
    "delete a node": Try("DELETE", f"/api/v1/nodes/{OTHER}"),
    "change a Deployment": Try("merge", "/apis/apps/v1/namespaces/{ns}/deployments/d", {"spec": {"replicas": 5}}),
    "change the operator's Deployment": Try(
        "merge", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/concerto-operator", LABELS
    ),
    "tune a node's measuring": Try("merge", f"{GROUP}/nodecapacities/{OURS}", {"spec": {"heartbeat": "60s"}}),
    "label a node's measurements": Try("merge", f"{GROUP}/nodecapacities/{OURS}", LABELS),
    "delete a node's measurements": Try("DELETE", f"{GROUP}/nodecapacities/{OURS}"),
    "change a profile": Try("merge", f"{GROUP}/schedulingprofiles/concerto", {"spec": {"schedulerName": "mine"}}),
    "make a profile": Try(
        "POST", f"{GROUP}/schedulingprofiles", ours("SchedulingProfile", "mine", spec={"schedulerName": "mine"})
    ),
    "change a PredictiveHPA": Try(
        "merge", GROUP + "/namespaces/{ns}/predictivehpas/h", {"spec": {"maxReplicas": 1000}}
    ),
    "change a person's reservation": Try(
        "merge", GROUP + "/namespaces/{ns}/podreservations/r", {"spec": {"count": 100}}
    ),
    "record placements elsewhere": Try(
        "POST",
        GROUP + "/namespaces/{ns}/podreservations",
        {
            **ours("PodReservation", "x", spec={"count": 1, "assignments": [ASSIGNMENT]}),
            "metadata": {"name": "x", "labels": {"concerto.dev/in-flight": "true"}},
        },
    ),
    "publish the capacity of another node": Try(
        "apply",
        f"{GROUP}/nodecapacities/{OTHER}/status?fieldManager=x&force=true",
        ours("NodeCapacity", OTHER, status={"capacity": 99}),
    ),
    "publish the model of another node": Try(
        "apply",
        f"{GROUP}/subspacesnapshots/{OTHER}/status?fieldManager=x&force=true",
        ours("SubspaceSnapshot", OTHER, status={"nodes": 1}),
    ),
    "publish the CPUs of another node": Try(
        "apply",
        f"{GROUP}/nodecputopologies/{OTHER}/status?fieldManager=x&force=true",
        ours("NodeCPUTopology", OTHER, status={}),
    ),
    "get a token of its own account": Try(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/concerto-autoscaler/token",
        token_request([]),
    ),
    "get a token of its own account for the API server, for long": Try(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/concerto-autoscaler/token",
        token_request(["https://kubernetes.default.svc"], 86400),
    ),
    "get a token of its own account for agents and the API server": Try(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/concerto-autoscaler/token",
        token_request([metrics_audience(OTHER), "https://kubernetes.default.svc"]),
    ),
    "get a token for agents that lasts": Try(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/concerto-autoscaler/token",
        token_request([metrics_audience(OTHER)], 86400),
    ),
    "get a token of another account": Try(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token",
        token_request([metrics_audience(OTHER)]),
    ),
    "become an administrator": Try(
        "POST",
        RBAC + "/clusterrolebindings",
        rbac("ClusterRoleBinding", roleRef=ADMIN, subjects=[{"kind": "ServiceAccount", "name": "x", "namespace": "x"}]),
    ),
    "widen its own role": Try("merge", RBAC + "/clusterroles/concerto-operator", {"rules": ALL_RULES}),
    "make a role": Try("POST", RBAC + "/clusterroles", rbac("ClusterRole", rules=ALL_RULES)),
    "act as somebody else": Try("GET", "/api/v1/nodes", headers={"Impersonate-User": "admin"}),
    "delete a kind": Try(
        "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodecapacities.concerto.dev?dryRun=All"
    ),
    "lift the policy that holds agents to their nodes": Try(
        "DELETE", ADMISSION + "/validatingadmissionpolicybindings/concerto-agent-own-node?dryRun=All"
    ),
    "say what becomes of a volume": Try("merge", VOLUME, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
    "label a volume": Try("merge", VOLUME, LABELS),
    "annotate a volume": Try("merge", VOLUME, {"metadata": {"annotations": {"tried": "true"}}}),
    "take a volume from its claim": Try("merge", VOLUME, {"spec": {"claimRef": {"name": "mine"}}}),
    "give a volume to a claim of the same name": Try("merge", VOLUME, {"spec": {"claimRef": {"uid": "another"}}}),
    "free a volume from its claim": Try("merge", VOLUME, {"spec": {"claimRef": None}}),
    "delete a volume": Try("DELETE", VOLUME),
    "make a claim that nobody can remove": Try("merge", CLAIM, {"metadata": {"finalizers": ["example.com/never"]}}),
    "label a claim": Try("merge", CLAIM, LABELS),
    "move a claim to another node": Try(
        "merge", CLAIM, {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": OTHER}}}
    ),
    "delete a claim": Try("DELETE", CLAIM),
    "delete a namespace": Try("DELETE", "/api/v1/namespaces/{ns}?dryRun=All"),
    "take the Lease of a part of Kubernetes": Try(
        "merge", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", {"spec": {"holderIdentity": "me"}}
    ),
}
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
RESERVE = Try(
    "POST",
    GROUP + "/namespaces/{ns}/podreservations",
    ours("PodReservation", "mine", spec={"count": 1, "podSelector": {"matchLabels": {"a": "b"}}}),
)
PIN = Try(
    "POST",
    GROUP + "/namespaces/{ns}/podcpubindings",
    ours("PodCPUBinding", "b", spec={"podName": "p", "cpuSet": [{"cpuID": 0}]}),
)
PLACE = Try(
    "POST",
    PODS + "/p/binding",
    {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": OURS}},
)
SCALE = Try("merge", "/apis/apps/v1/namespaces/{ns}/deployments/d/scale", {"spec": {"replicas": 5}})
ONLY = {
    "operator": {
        "publish the capacity of a node": Try(
            "merge", f"{GROUP}/nodecapacities/{OURS}/status", {"status": {"capacity": 99}}
        ),
        "publish the model of a node": Try(
            "merge", f"{GROUP}/subspacesnapshots/{OURS}/status", {"status": {"nodes": 1}}
        ),
        "make the measurements of a node": Try("POST", GROUP + "/nodecapacities", ours("NodeCapacity", "n")),
        "take another Lease at home": Try("merge", f"{LEASES}/x", {"spec": {"holderIdentity": "me"}}),
        "take the autoscaler's Lease": Try(
            "merge", f"{LEASES}/concerto-autoscaler", {"spec": {"holderIdentity": "me"}}
        ),
        "scale a Deployment": SCALE,
        "list the workloads": Try("GET", "/apis/apps/v1/deployments"),
        "read what agents measure of pods": Try("GET", f"/apis/metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/pods"),
        "reserve room elsewhere": RESERVE,
    },
    "autoscaler": {
        "publish the capacity of a node": Try(
            "merge", f"{GROUP}/nodecapacities/{OURS}/status", {"status": {"capacity": 99}}
        ),
        "publish the model of the cluster": Try(
            "merge", f"{GROUP}/subspacesnapshots/cluster/status", {"status": {"nodes": 1}}
        ),
        "pin a pod": PIN,
        "place a pod": PLACE,
        "delete a pod": Try("DELETE", PODS + "/p"),
        "say how a pod is": Try("merge", PODS + "/p/status", {"status": {"phase": "Failed"}}),
        "list the nodes": Try("GET", "/api/v1/nodes"),
        "list the profiles": Try("GET", GROUP + "/schedulingprofiles"),
        "take the operator's Lease": Try("merge", f"{LEASES}/concerto-operator", {"spec": {"holderIdentity": "me"}}),
    },
    "agent": {
        "make the measurements of another node": Try("POST", GROUP + "/nodecapacities", ours("NodeCapacity", OTHER)),
        "make the model of another node": Try("POST", GROUP + "/subspacesnapshots", ours("SubspaceSnapshot", OTHER)),
        "make the topology of another node": Try(
            "POST", GROUP + "/nodecputopologies", ours("NodeCPUTopology", OTHER, spec={"nodeName": OTHER})
        ),
        "make an object that nobody can remove": Try(
            "POST",
            GROUP + "/nodecapacities",
            {**ours("NodeCapacity", OURS), "metadata": {"name": OURS, "finalizers": ["example.com/never"]}},
        ),
        "put a finalizer on an object of its own": Try(
            "merge", f"{GROUP}/nodecapacities/{OURS}", {"metadata": {"finalizers": ["example.com/never"]}}
        ),
        "publish the model of the cluster": Try(
            "apply",
            f"{GROUP}/subspacesnapshots/cluster/status?fieldManager=x&force=true",
            ours("SubspaceSnapshot", "cluster", status={"nodes": 1}),
        ),
        "reserve room": RESERVE,
        "pin a pod": PIN,
        "change which CPUs a pod gets": Try("merge", GROUP + "/namespaces/{ns}/podcpubindings/b", LABELS),
        "place a pod": PLACE,
        "say how a pod is": Try("merge", PODS + "/p/status", {"status": {"phase": "Failed"}}),
        "scale a Deployment": SCALE,
        "list the nodes": Try("GET", "/api/v1/nodes"),
        "list the profiles": Try("GET", GROUP + "/schedulingprofiles"),
        "take the operator's Lease": Try("merge", f"{LEASES}/concerto-operator", {"spec": {"holderIdentity": "me"}}),
    },
}


@pytest.fixture(scope="module")
def place(concerto_cluster: Cluster) -> Iterator[str]:
    """A namespace with the objects that are tried, and two nodes."""
    cluster, namespace = concerto_cluster, "rights"
    cluster.make_namespace(namespace)

    def here(obj: dict[str, Any]) -> dict[str, Any]:
        return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}

    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("p")["spec"]}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in (OURS, OTHER)]
    cluster.apply(
        *nodes,
        *(ours(kind, node) for kind in ("NodeCapacity", "SubspaceSnapshot") for node in (OURS, OTHER)),
        *(ours("NodeCPUTopology", node, spec={"nodeName": node}) for node in (OURS, OTHER)),
        ours("SubspaceSnapshot", "cluster"),
        here(pod("p", schedulerName="nobody")),
        here(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "d"},
                "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template},
            }
        ),
        here(ours("PodReservation", "r", spec={"count": 1, "podSelector": {"matchLabels": {"a": "b"}}})),
        volume(namespace),
        here(claim()),
        here(ours("PredictiveHPA", "h", spec={"scaleTargetRef": target, "maxReplicas": 3})),
    )
    yield namespace
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    cluster.kubectl("delete", "node", OURS, OTHER, "--wait=false")
    cluster.kubectl("delete", "persistentvolume", "rights-disk", "--wait=false")
    for kind in ("ncap", "sub", "ncpu"):
        cluster.kubectl("delete", kind, OURS, OTHER, "--ignore-not-found")


@pytest.fixture(scope="module")
def send(concerto_cluster: Cluster, place: str) -> Callable[[str, Try], requests.Response]:
    """Send a request with an account's token."""
    config = json.loads(concerto_cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))[
        "clusters"
    ][0]["cluster"]
    tokens = {
        account: concerto_cluster.service_account_token(
            NAMESPACE, f"concerto-{account}", bound_node=OURS if account == "agent" else None
        )
        for account in ACCOUNTS
    }
    session = requests.Session()
    session.trust_env = False

    def sent(account: str, wanted: Try) -> requests.Response:
        headers = {"Authorization": f"Bearer {tokens[account]}", **wanted.headers}
        method = wanted.method
        if method in PATCHES:
            method, headers["Content-Type"] = "PATCH", PATCHES[method]
        else:
            headers["Content-Type"] = "application/json"
        return session.request(
            method,
            config["server"] + wanted.path.format(ns=place),
            data=json.dumps(wanted.body) if wanted.method not in ("GET", "DELETE") else None,
            headers=headers,
            timeout=60,
            verify=False,
        )

    return sent


FORBIDDEN = [(account, what, t) for account in ACCOUNTS for what, t in {**ALL, **ONLY[account]}.items()]


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize(
    ("account", "wanted"), [(a, t) for a, _, t in FORBIDDEN], ids=[f"{a}: {w}" for a, w, _ in FORBIDDEN]
)
def test_a_token_of_ours_may_not(send, account, wanted):
    answer = send(account, wanted)
    assert answer.status_code == 403, f"{answer.status_code} {answer.text[:500]}"


def test_at_least_thirty_things_are_tried_with_each_token():
    for account in ACCOUNTS:
        assert len({**ALL, **ONLY[account]}) >= 30


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize(
    ("account", "wanted"),
    [
        ("operator", Try("GET", "/api/v1/nodes")),
        ("operator", Try("GET", GROUP + "/namespaces/{ns}/podreservations")),
        ("autoscaler", Try("GET", "/apis/apps/v1/namespaces/{ns}/deployments/d/scale")),
        ("agent", Try("GET", f"{GROUP}/nodecapacities/{OURS}")),
        (
            "agent",
            Try(
                "apply",
                f"{GROUP}/nodecapacities/{OURS}/status?fieldManager=x&dryRun=All",
                ours("NodeCapacity", OURS, status={"podCount": 1}),
            ),
        ),
    ],
)
def test_the_same_tokens_are_good_for_what_they_are_for(send, account, wanted):
    answer = send(account, wanted)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("account", ACCOUNTS)
def test_what_kubectl_lists_is_what_is_written_down(concerto_cluster, place, account):
    assert listing(concerto_cluster, account, OURS) == file(account).read_text(), "make rights writes it afresh"
