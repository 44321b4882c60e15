"""The kinds as a real API server takes them: bad objects are refused with a sentence, good ones are not."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.apiserver

API_VERSION = "concerto.dev/v1alpha1"
NAMESPACED = {"PodReservation", "PodCPUBinding", "PredictiveHPA"}

ASSIGNMENT = {"namespace": "default", "name": "p", "uid": "u", "node": "n", "units": 1, "basis": "Requests"}
SELECTOR = {"matchLabels": {"app": "x"}}


def prometheus(address: str, **more: Any) -> dict[str, Any]:
    """A metric provider of that type."""
    queries = {"cpu": {"latest": "x"}}
    return {"type": "Prometheus", "prometheus": {"address": address, "queries": queries, **more}}


PROFILE = {"schedulerName": "x"}
LOAD_AWARE = {**PROFILE, "scores": [{"name": "TargetLoadPacking"}]}
BINDING = {"podName": "p", "cpuSet": [{"cpuID": 0}]}
HPA = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 5}
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}

# what is wrong, kind, spec, and what the refusal must say: the field, and what a person can do about it
BAD: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("a heartbeat of five hours", "NodeCapacity", {"heartbeat": "5h"}, "spec.heartbeat", "between 1s and 5m"),
    ("a heartbeat in words", "NodeCapacity", {"heartbeat": "5 min"}, "spec.heartbeat", "write it like 30s"),
    ("a long churn window", "NodeCapacity", {"churnWindow": "2m"}, "spec.churnWindow", "write it like 500ms"),
    ("an unknown formula", "NodeCapacity", {"cpuFormula": "Max"}, "spec.cpuFormula", '"Damped", "Mean"'),
    (
        "a resource that nothing measures",
        "NodeCapacity",
        {"resources": ["cpu", "gpu"]},
        "spec.resources",
        "add a gauge",
    ),
    ("a resource named twice", "NodeCapacity", {"resources": ["cpu", "cpu"]}, "spec.resources[1]", "Duplicate"),
    ("no resource at all", "NodeCapacity", {"resources": []}, "spec.resources", "at least 1"),
    (
        "a gauge that would never be read",
        "NodeCapacity",
        {"gauges": [{"name": "gpu", "path": "/run/gpu"}]},
        "spec.gauges",
        "add its name to spec.resources",
    ),
    (
        "a gauge in the agent's way",
        "NodeCapacity",
        {"gauges": [{"name": "cpu", "path": "/run/cpu"}]},
        "spec.gauges",
        "choose another name",
    ),
    (
        "a slow weight above the fast",
        "NodeCapacity",
        {"smoothing": {"slowPercent": 60}},
        "slowPercent",
        "lower the one",
    ),
    (
        "a pod that costs two nodes",
        "NodeCapacity",
        {"estimator": {"initialPerPodCost": 2}},
        "spec.estimator.initialPerPodCost",
        "write a tenth of it as 100m",
    ),
    (
        "a cost that is no number",
        "NodeCapacity",
        {"estimator": {"initialPerPodCost": "much"}},
        "spec.estimator.initialPerPodCost",
        "write a tenth of it as 100m",
    ),
    ("more pods than a status holds", "NodeCapacity", {"maxPods": 5000}, "spec.maxPods", "less than or equal to 1024"),
    ("a misspelt field", "NodeCapacity", {"heartBeat": "10s"}, "spec.heartBeat", "unknown field"),
    ("something to set on a model", "SubspaceSnapshot", {"weight": 1}, "spec.weight", "unknown field"),
    ("neither form of reservation", "PodReservation", {"count": 1}, "spec.podSelector", "Exactly one of the two"),
    (
        "both forms of reservation",
        "PodReservation",
        {"count": 1, "podSelector": SELECTOR, "assignments": [ASSIGNMENT]},
        "spec.podSelector",
        "Exactly one of the two",
    ),
    (
        "room for nobody",
        "PodReservation",
        {"count": 0, "podSelector": SELECTOR},
        "spec.count",
        "greater than or equal to 1",
    ),
    ("room without a number", "PodReservation", {"podSelector": SELECTOR}, "spec.count", "Required"),
    ("room for everybody", "PodReservation", {"count": 1, "podSelector": {}}, "spec.podSelector", "matchLabels or"),
    (
        "one node and several",
        "PodReservation",
        {"count": 1, "podSelector": SELECTOR, "nodeName": "n1", "nodeSelector": {"a": "b"}},
        "spec.nodeName",
        "not both",
    ),
    (
        "a selector In nothing",
        "PodReservation",
        {"count": 1, "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "spec.podSelector.matchExpressions",
        "left out with Exists",
    ),
    (
        "a batch whose count is wrong",
        "PodReservation",
        {"count": 2, "assignments": [ASSIGNMENT]},
        "spec.count",
        "number of spec.assignments",
    ),
    (
        "a batch that expires",
        "PodReservation",
        {"count": 1, "ttlSeconds": 5, "assignments": [ASSIGNMENT]},
        "spec.assignments",
        "remove them",
    ),
    (
        "a decision that can't be checked",
        "PodReservation",
        {"count": 1, "assignments": [{**ASSIGNMENT, "basis": "Capacity"}]},
        "spec.assignments",
        "must record nodeCapacityResourceVersion",
    ),
    (
        "more decisions than a batch holds",
        "PodReservation",
        {"count": 251, "assignments": [ASSIGNMENT] * 251},
        "spec.assignments",
        "at most 250",
    ),
    ("a topology of another node", "NodeCPUTopology", {"nodeName": "other"}, "spec.nodeName", "named after its node"),
    (
        "reserved CPUs in words",
        "NodeCPUTopology",
        {"nodeName": "NAME", "reservedCPUs": "two"},
        "spec.reservedCPUs",
        "match",
    ),
    (
        "reserved CPUs that are none",
        "NodeCPUTopology",
        {"nodeName": "NAME", "reservedCPUs": "0,8-2"},
        "spec.reservedCPUs",
        "count upwards",
    ),
    (
        "reserved CPUs that no machine has",
        "NodeCPUTopology",
        {"nodeName": "NAME", "reservedCPUs": "0-70000"},
        "spec.reservedCPUs",
        "match",
    ),
    ("no CPUs", "PodCPUBinding", {**BINDING, "cpuSet": []}, "spec.cpuSet", "at least 1"),
    ("a CPU named twice", "PodCPUBinding", {**BINDING, "cpuSet": [{"cpuID": 1}] * 2}, "spec.cpuSet[1]", "Duplicate"),
    ("a negative CPU", "PodCPUBinding", {**BINDING, "cpuSet": [{"cpuID": -1}]}, "spec.cpuSet[0].cpuID", "greater than"),
    (
        "an unknown exclusiveness",
        "PodCPUBinding",
        {**BINDING, "exclusivenessLevel": "Node"},
        "spec.exclusivenessLevel",
        '"Socket"',
    ),
    ("a binding of no pod", "PodCPUBinding", {"cpuSet": [{"cpuID": 0}]}, "spec.podName", "Required"),
    ("min above max", "PredictiveHPA", {**HPA, "minReplicas": 6}, "spec.minReplicas", "lower the one"),
    ("no pods to measure", "PredictiveHPA", {**HPA, "minReplicas": 0}, "spec.minReplicas", "Object or External"),
    ("nothing to scale", "PredictiveHPA", {"maxReplicas": 3}, "spec.scaleTargetRef", "Required"),
    (
        "a target of another namespace",
        "PredictiveHPA",
        {**HPA, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "../../other/web"}},
        "spec.scaleTargetRef.name",
        "a name and no path",
    ),
    (
        "a metric of another namespace",
        "PredictiveHPA",
        {
            **HPA,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {"metric": {"name": "../x"}, "target": {"type": "AverageValue", "averageValue": "1"}},
                }
            ],
        },
        "spec.metrics[].pods.metric.name",
        "a name and no path",
    ),
    (
        "a metric of a type that is not given",
        "PredictiveHPA",
        {**HPA, "metrics": [{**CPU, "type": "Pods"}]},
        "spec.metrics[].pods",
        "must be given with type Pods",
    ),
    (
        "two targets at once",
        "PredictiveHPA",
        {
            **HPA,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 50, "averageValue": "500m"},
                    },
                }
            ],
        },
        "spec.metrics[].resource.target.averageUtilization",
        "exactly one",
    ),
    (
        "a target of nothing",
        "PredictiveHPA",
        {
            **HPA,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": 0}},
                }
            ],
        },
        "spec.metrics[].pods.target.averageValue",
        "write it like 500m",
    ),
    (
        "a window of two hours",
        "PredictiveHPA",
        {**HPA, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 7200}}},
        "spec.behavior.scaleDown.stabilizationWindowSeconds",
        "less than or equal to 3600",
    ),
    (
        "a forecast for tomorrow",
        "PredictiveHPA",
        {**HPA, "prediction": {"horizon": "24h"}},
        "spec.prediction.horizon",
        "Auto or lie between 1s and 1h",
    ),
    (
        "an unknown model",
        "PredictiveHPA",
        {**HPA, "prediction": {"model": "Oracle"}},
        "spec.prediction.model",
        '"Holt"',
    ),
    (
        "kube-scheduler's own pods",
        "SchedulingProfile",
        {"schedulerName": "default-scheduler"},
        "spec.schedulerName",
        "choose another",
    ),
    ("no scheduler name", "SchedulingProfile", {}, "spec.schedulerName", "Required"),
    (
        "an unknown filter",
        "SchedulingProfile",
        {**PROFILE, "filters": [{"name": "UnsupportedConstraints"}, {"name": "Vibes"}]},
        "spec.filters[1].name",
        '"PodCapacity"',
    ),
    (
        "hard constraints left aside",
        "SchedulingProfile",
        {**PROFILE, "filters": [{"name": "NodeReady"}]},
        "spec.filters",
        "must contain UnsupportedConstraints",
    ),
    (
        "an unknown score",
        "SchedulingProfile",
        {**PROFILE, "scores": [{"name": "Vibes"}]},
        "spec.scores[0].name",
        '"Capacity"',
    ),
    (
        "arguments for a plugin that takes none",
        "SchedulingProfile",
        {**PROFILE, "scores": [{"name": "Capacity", "args": {"targetUtilization": 40}}]},
        "spec.scores[0].args",
        "unknown field",
    ),
    (
        "a target of 100 %",
        "SchedulingProfile",
        {**PROFILE, "scores": [{"name": "TargetLoadPacking", "targetLoadPacking": {"targetUtilization": 100}}]},
        "spec.scores[0].targetLoadPacking.targetUtilization",
        "less than or equal to 99",
    ),
    (
        "another score's arguments",
        "SchedulingProfile",
        {**PROFILE, "scores": [{"name": "Capacity", "targetLoadPacking": {}}]},
        "spec.scores[0]",
        "beside that name",
    ),
    (
        "a ratio without a shape",
        "SchedulingProfile",
        {
            **PROFILE,
            "scores": [{"name": "NodeResourcesFit", "nodeResourcesFit": {"strategy": "RequestedToCapacityRatio"}}],
        },
        "spec.scores[0].nodeResourcesFit",
        "give both or neither",
    ),
    (
        "a margin without end",
        "SchedulingProfile",
        {
            **PROFILE,
            "scores": [
                {"name": "LoadVariationRiskBalancing", "loadVariationRiskBalancing": {"safeVarianceMargin": 101}}
            ],
        },
        "spec.scores[0].loadVariationRiskBalancing.safeVarianceMargin",
        "between 0 and 100",
    ),
    ("a window of an hour", "SchedulingProfile", {**PROFILE, "load": {"window": "1h"}}, "spec.load.window", '"15m"'),
    (
        "a weight of a thousand",
        "SchedulingProfile",
        {**PROFILE, "scores": [{"name": "Capacity", "weight": 1000}]},
        "spec.scores[0].weight",
        "less than or equal to 100",
    ),
    (
        "a provider for nobody",
        "SchedulingProfile",
        {**PROFILE, "metricProvider": {"type": "KubernetesMetricsServer"}},
        "spec.metricProvider",
        "asked for load-aware scores alone",
    ),
    (
        "Prometheus without an address",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": {"type": "Prometheus"}},
        "spec.metricProvider",
        "give both or neither",
    ),
    (
        "an address that is none",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": prometheus("prometheus:9090")},
        "spec.metricProvider.prometheus.address",
        "an http or https URL",
    ),
    (
        "a port of no host",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": prometheus("https://:9090")},
        "spec.metricProvider.prometheus.address",
        "an http or https URL",
    ),
    (
        "a password in the address",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": prometheus("https://me:secret@prometheus:9090")},
        "spec.metricProvider.prometheus.address",
        "without user",
    ),
    (
        "a token in the clear",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": prometheus("http://prometheus:9090", authorization={})},
        "spec.metricProvider.prometheus",
        "not sent unencrypted",
    ),
    (
        "a token among the headers",
        "SchedulingProfile",
        {
            **LOAD_AWARE,
            "metricProvider": prometheus("https://p", headers=[{"name": "AUTHORIZATION", "value": "Bearer x"}]),
        },
        "spec.metricProvider.prometheus.headers[0].name",
        "takes it from a Secret",
    ),
    *(
        (
            f"the header {name}",
            "SchedulingProfile",
            {**LOAD_AWARE, "metricProvider": prometheus("https://p", headers=[{"name": name, "value": "1"}])},
            "spec.metricProvider.prometheus.headers[0].name",
            "these follow from address",
        )
        for name in ("Host", "content-length", "Transfer-Encoding", "CONNECTION", "Proxy-Authorization")
    ),
    (
        "a CA, and any certificate",
        "SchedulingProfile",
        {
            **LOAD_AWARE,
            "metricProvider": prometheus("https://p", tls={"caKey": "ca.crt", "insecureSkipVerify": True}),
        },
        "spec.metricProvider.prometheus.tls",
        "contradict each other",
    ),
    (
        "no query",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": prometheus("https://p", queries={"cpu": {}})},
        "spec.metricProvider.prometheus.queries.cpu",
        "at least 1 properties",
    ),
    (
        "more time for an answer than there is between two",
        "SchedulingProfile",
        {**LOAD_AWARE, "metricProvider": {"type": "KubernetesMetricsServer", "interval": "2s"}},
        "spec.metricProvider",
        "must not be longer than its interval",
    ),
    ("two pods' room", "SchedulingProfile", {**PROFILE, "admitFraction": "2"}, "spec.admitFraction", "a half as 500m"),
    ("telemetry of last week", "SchedulingProfile", {**PROFILE, "staleAfter": "168h"}, "spec.staleAfter", "like 10m"),
    (
        "a large pod waits for ever",
        "SchedulingProfile",
        {**PROFILE, "largePodWait": "0s"},
        "spec.largePodWait",
        "like 2m",
    ),
    *(
        (f"a name that no object can have: {kind} {field}", kind, spec, f"spec.{field}", advice)
        for kind, spec, field, advice in (
            (
                "PodReservation",
                {"count": 1, "podSelector": {"matchLabels": {"app = x": "y"}}},
                "podSelector",
                "such as app",
            ),
            (
                "PodReservation",
                {"count": 1, "podSelector": {"matchLabels": {"app": "x y"}}},
                "podSelector",
                "begins and",
            ),
            (
                "PodReservation",
                {"count": 1, "podSelector": {"matchExpressions": [{"key": "a b", "operator": "Exists"}]}},
                "podSelector.matchExpressions[0].key",
                "such as app",
            ),
            (
                "PodReservation",
                {"count": 1, "podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x!"]}]}},
                "podSelector.matchExpressions[0].values[0]",
                "begins and ends",
            ),
            (
                "PodReservation",
                {"count": 1, "podSelector": SELECTOR, "nodeSelector": {"my pool": "gpu"}},
                "nodeSelector",
                "such as app",
            ),
            (
                "PodReservation",
                {"count": 1, "podSelector": SELECTOR, "nodeName": "Node/1"},
                "nodeName",
                "`kubectl get nodes`",
            ),
            ("PodCPUBinding", {**BINDING, "podName": "default/web"}, "podName", "without its namespace"),
            ("NodeCapacity", {"resources": ["cpu", "GPU"]}, "resources[1]", "such as gpu"),
            (
                "NodeCapacity",
                {"resources": ["gpu"], "gauges": [{"name": "gpu", "path": "gpu-usage"}]},
                "gauges[0].path",
                "/run/gpu-usage",
            ),
            ("SchedulingProfile", {"schedulerName": "Concerto"}, "schedulerName", "write it like concerto"),
            (
                "SchedulingProfile",
                {
                    **PROFILE,
                    "scores": [{"name": "NodeResourcesFit", "nodeResourcesFit": {"resources": [{"name": "gpu"}]}}],
                },
                "scores[0].nodeResourcesFit.resources[0].name",
                "such as example.com/gpu",
            ),
            (
                "PredictiveHPA",
                {**HPA, "scaleTargetRef": {"apiVersion": "apps", "kind": "Deployment", "name": "web"}},
                "scaleTargetRef.apiVersion",
                "write it like apps/v1",
            ),
        )
    ),
    (
        "reserved CPUs like a range of names",
        "NodeCPUTopology",
        {"nodeName": "NAME", "reservedCPUs": "0..3"},
        "spec.reservedCPUs",
        "like 0-1,8",
    ),
    (
        "a million pods more",
        "NodeCapacity",
        {"slots": {"extraPods": "1000000"}},
        "spec.slots.extraPods",
        "a half as 500m",
    ),
    (
        "a root that the formula does not have",
        "SchedulingProfile",
        {
            **PROFILE,
            "scores": [
                {"name": "LoadVariationRiskBalancing", "loadVariationRiskBalancing": {"safeVarianceSensitivity": 3}}
            ],
        },
        "spec.scores[0].loadVariationRiskBalancing",
        "of formula Upstream alone",
    ),
    (
        "a fraction that no filter asks for",
        "SchedulingProfile",
        {**PROFILE, "filters": [{"name": "UnsupportedConstraints"}], "admitFraction": "500m"},
        "spec.admitFraction",
        "list that in spec.filters",
    ),
    (
        "an allowance of nothing",
        "NodeCapacity",
        {"overProvision": {"enabled": True, "max": 0}},
        "spec.overProvision",
        "raise it",
    ),
    (
        "a season in days",
        "PredictiveHPA",
        {**HPA, "prediction": {"season": {"length": "1d"}}},
        "spec.prediction.season.length",
        "write it like 24h",
    ),
    (
        "less history than a season",
        "PredictiveHPA",
        {**HPA, "prediction": {"season": {"length": "168h"}}},
        "spec.prediction.historyLength",
        "make spec.prediction.season.length shorter",
    ),
]


def build(kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    spec = {key: name if value == "NAME" else value for key, value in spec.items()}
    metadata = {"name": name, **({"namespace": namespace} if kind in NAMESPACED else {})}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(("kind", "spec", "field", "advice"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_object_is_refused_and_its_field_named(
    concerto_cluster: Cluster, kind: str, spec: dict[str, Any], field: str, advice: str
) -> None:
    refusal = concerto_cluster.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps(build(kind, "bad", spec)), check=False
    )
    assert "(server dry run)" not in refusal
    assert field in refusal
    assert advice in refusal
    assert ("historyLength" in refusal) == ("historyLength" in field)  # whose rule reads two fields, or neither


def _samples() -> Iterator[Any]:
    for folder in ("tests/crds/samples", "tests/crds/earlier", "manifests/samples"):
        for path in sorted((REPOSITORY / folder).glob("*.yaml")):
            for obj in yaml.safe_load_all(path.read_text()):
                # batches are the operator's alone, which a test below is about
                if obj["apiVersion"] == API_VERSION and "assignments" not in obj.get("spec", {}):
                    yield pytest.param(obj, id=f"{path.name}:{obj['metadata']['name']}")


@pytest.mark.parametrize("sample", list(_samples()))
def test_a_sample_is_accepted_with_its_status(
    concerto_cluster: Cluster, namespace: str, sample: dict[str, Any]
) -> None:
    obj = copy.deepcopy(sample)
    status = obj.pop("status", None)
    obj["metadata"].pop("finalizers", None)
    if obj["kind"] in NAMESPACED:
        obj["metadata"]["namespace"] = namespace
    elif obj["kind"] != "NodeCPUTopology":  # whose name is part of its spec
        obj["metadata"]["name"] += f"-{uuid.uuid4().hex[:8]}"
    name = obj["metadata"]["name"]
    target = [f"{obj['kind'].lower()}.concerto.dev", name, *(["-n", namespace] if obj["kind"] in NAMESPACED else [])]
    concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(obj))
    try:
        if status is not None:
            patch = json.dumps({"status": status})
            concerto_cluster.kubectl("patch", *target, "--subresource=status", "--type=merge", "-p", patch)
            stored = concerto_cluster.get(*target)["status"]
            assert stored == status
    finally:
        concerto_cluster.kubectl("delete", *target, "--wait=false")


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"observedAt": "2026-03-01T12:00:00Z", "capacity": 3}, "status.observedAt stands for a whole measurement"),
        ({"capacity": -1}, "status.capacity"),
        ({"conditions": [{"type": "Ready", "status": "Maybe"}]}, "status.conditions[0].status"),
    ],
    ids=["half a measurement", "less than nothing", "a condition that is neither true nor false"],
)
def test_a_status_that_says_nothing_sound_is_refused(
    concerto_cluster: Cluster, status: dict[str, Any], field: str
) -> None:
    name = f"status-{uuid.uuid4().hex[:8]}"
    concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(build("NodeCapacity", name, {})))
    try:
        refusal = concerto_cluster.kubectl(
            "patch",
            "ncap",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            json.dumps({"status": status}),
            check=False,
        )
        assert "patched" not in refusal
        assert field in refusal
    finally:
        concerto_cluster.kubectl("delete", "ncap", name, "--wait=false")


def test_every_kind_is_established_and_structural(concerto_cluster: Cluster) -> None:
    crds = {
        crd["metadata"]["name"]: {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        for crd in concerto_cluster.get("crd")["items"]
        if crd["spec"]["group"] == "concerto.dev"
    }
    assert len(crds) == 7
    assert all(conditions == {"NamesAccepted": "True", "Established": "True"} for conditions in crds.values())


def test_kubectl_explain_tells_what_each_field_of_a_status_means(concerto_cluster: Cluster) -> None:
    crd = yaml.safe_load((REPOSITORY / "crds" / "nodecapacities.yaml").read_text())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def check(path: str, schema: dict[str, Any]) -> None:
        told = " ".join(concerto_cluster.kubectl("explain", path).split())
        for name, member in schema["properties"].items():
            assert name in told
            assert " ".join(member["description"].split()) in told, f"{path}.{name}"
            inner = member.get("items", member)
            if "properties" in inner:
                check(f"{path}.{name}", inner)

    check("ncap.status", root["properties"]["status"])


def test_nothing_differs_right_after_apply(concerto_cluster: Cluster) -> None:
    overlay = str(REPOSITORY / "manifests" / "overlays" / "local")
    concerto_cluster.kubectl("apply", "-k", overlay)
    assert concerto_cluster.kubectl("diff", "-k", overlay) == ""


# --- who may write what


@pytest.fixture(scope="module")
def nodes(concerto_cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Two Node objects without anything behind them."""
    names = tuple(f"policy-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": True}}
        concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
        concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(build("NodeCapacity", name, {})))
    yield names
    for name in names:
        concerto_cluster.kubectl("delete", "node", name, "--wait=false")
        concerto_cluster.kubectl("delete", "ncap,sub", name, "--ignore-not-found", "--wait=false")


class Account:
    """kubectl with a service account's token."""

    def __init__(self, cluster: Cluster, name: str, bound_node: str | None = None) -> None:
        self._cluster = cluster
        self._kubeconfig = cluster.token_kubeconfig("concerto-system", name, bound_node=bound_node)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints, success or not."""
        return self._cluster.kubectl(f"--kubeconfig={self._kubeconfig}", *arguments, stdin=stdin, check=False)

    def create(self, obj: dict[str, Any]) -> str:
        """What ``kubectl create`` prints."""
        return self.kubectl("create", "-f", "-", stdin=json.dumps(obj))

    def patch_status(self, node: str) -> str:
        """What ``kubectl patch`` of a NodeCapacity's status prints."""
        return self.kubectl(
            "patch", "ncap", node, "--subresource=status", "--type=merge", "-p", '{"status":{"reject":true}}'
        )


@pytest.fixture(scope="module")
def agent(concerto_cluster: Cluster, nodes: tuple[str, str]) -> Account:
    """The first node's agent, once the policy is in force: the API server hears of a new one within seconds."""
    account = Account(concerto_cluster, "concerto-agent", nodes[0])
    eventually("the policy is in force", lambda: "patched" not in account.patch_status(nodes[1]))
    return account


def test_an_agent_writes_the_objects_of_its_own_node(agent: Account, nodes: tuple[str, str]) -> None:
    own, _ = nodes
    assert "patched" in agent.patch_status(own)
    assert "created" in agent.create(build("SubspaceSnapshot", own, {}))


def test_an_agent_writes_nothing_of_another_node(agent: Account, nodes: tuple[str, str]) -> None:
    own, other = nodes
    sentence = f"The agent of node {own} may write only the objects named {own}, not {other}."
    assert sentence in agent.patch_status(other)
    assert sentence in agent.create(build("SubspaceSnapshot", other, {}))


def test_an_agent_may_not_change_a_spec_not_even_its_own(agent: Account, nodes: tuple[str, str]) -> None:
    refusal = agent.kubectl("patch", "ncap", nodes[0], "--type=merge", "-p", '{"spec":{"maxPods":1}}')
    assert "Forbidden" in refusal


def test_an_agent_may_not_write_the_clusters_model(agent: Account) -> None:
    assert "may write only the objects named" in agent.create(build("SubspaceSnapshot", "cluster", {}))


def test_a_token_that_names_no_node_writes_nothing(
    concerto_cluster: Cluster, agent: Account, nodes: tuple[str, str]
) -> None:
    unbound = Account(concerto_cluster, "concerto-agent")
    assert "The token of this agent names no node." in unbound.patch_status(nodes[0])


def batch(name: str, namespace: str = "concerto-system", **labels: str) -> dict[str, Any]:
    obj = build("PodReservation", name, {"count": 1, "assignments": [ASSIGNMENT]}, namespace)
    obj["metadata"]["labels"] = labels
    return obj


IN_FLIGHT = {"concerto.dev/in-flight": "true"}


def test_only_the_operator_records_placements_and_only_at_home(concerto_cluster: Cluster, agent: Account) -> None:
    name = f"cycle-{uuid.uuid4().hex[:8]}-1"
    operator = Account(concerto_cluster, "concerto-operator")
    by_admin = concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(batch(name, **IN_FLIGHT)), check=False)
    assert "Only Concerto's operator may set spec.assignments." in by_admin
    assert "orbidden" in operator.create(batch(name, "default", **IN_FLIGHT))
    assert "must have both or neither" in operator.create(batch(name))
    assert "created" in operator.create(batch(name, **IN_FLIGHT))
    edit = '[{"op": "replace", "path": "/spec/assignments/0/node", "value": "elsewhere"}]'
    edited = concerto_cluster.kubectl(
        "patch", "pres", name, "-n", "concerto-system", "--type=json", "-p", edit, check=False
    )
    assert "spec.assignments is the record of decisions already made" in edited
    assert "deleted" in operator.kubectl("delete", "pres", name, "-n", "concerto-system")


def test_a_person_may_not_pass_a_reservation_off_as_the_operators(concerto_cluster: Cluster, agent: Account) -> None:
    obj = build("PodReservation", "fake", {"count": 1, "podSelector": SELECTOR})
    obj["metadata"]["labels"] = IN_FLIGHT
    refusal = concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(obj), check=False)
    assert "must have both or neither" in refusal
