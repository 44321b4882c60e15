"""The kinds as a real API server takes them: bad objects are refused with a sentence, good ones are not.

What is refused is in e2e/suites/refused, a file for each kind.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from concerto.kube import Resource, resources
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, ClusterError, LocalControlPlane
from e2e.testbed.concerto_objects import API_VERSION, ASSIGNMENT, NAMESPACED_KINDS, build_object
from support.crd_schemas import documents, yaml_of_docs

pytestmark = pytest.mark.apiserver

KINDS = (
    "NodeCPUTopology",
    "NodeCapacity",
    "PodCPUBinding",
    "PodReservation",
    "PredictiveHPA",
    "SchedulingProfile",
    "SubspaceSnapshot",
)
REFUSED = REPOSITORY / "e2e" / "suites" / "refused"
HEADERS_OF_THE_ADDRESS = ("Host", "content-length", "Transfer-Encoding", "CONNECTION", "Proxy-Authorization")


def _profile_with_header(name: str) -> dict[str, Any]:
    provider = {
        "type": "Prometheus",
        "prometheus": {
            "address": "https://p",
            "queries": {"cpu": {"latest": "x"}},
            "headers": [{"name": name, "value": "1"}],
        },
    }
    return {"schedulerName": "x", "scores": [{"name": "TargetLoadPacking"}], "metricProvider": provider}


def _answer(cluster: Cluster, obj: dict[str, Any]) -> str:
    """What the API server says to an object that is to be made, without making it."""
    if not isinstance(cluster, LocalControlPlane):
        return cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(obj), check=False)
    # the same request as kubectl's, without the CPU that kubectl takes to begin
    resource = next(r for r in vars(resources).values() if isinstance(r, Resource) and r.kind == obj["kind"])
    path = resource.path("default" if resource.namespaced else None)
    try:
        made: str = cluster.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", obj)["metadata"]["name"]
    except ClusterError as error:
        message: str = json.loads("{" + str(error).partition("{")[2])["message"]
        return message
    return f"{made} created (server dry run)"


def _refused() -> Iterator[Any]:
    for kind in KINDS:
        for case in documents(REFUSED / f"{kind.lower()}.yaml")[0]:
            yield pytest.param(kind, case["spec"], case["field"], case["advice"], id=f"{kind}: {case['refused']}")
    for name in HEADERS_OF_THE_ADDRESS:
        yield pytest.param(
            "SchedulingProfile",
            _profile_with_header(name),
            "spec.metricProvider.prometheus.headers[0].name",
            "these follow from address",
            id=f"SchedulingProfile: the header {name}",
        )
    yield pytest.param(
        "PodReservation",
        {"count": 251, "assignments": [ASSIGNMENT] * 251},
        "spec.assignments",
        "at most 250",
        id="PodReservation: more decisions than a batch holds",
    )


@pytest.mark.parametrize(("kind", "spec", "field", "advice"), _refused())
def test_a_bad_object_is_refused_and_its_field_named(
    concerto_cluster: Cluster, kind: str, spec: dict[str, Any], field: str, advice: str
) -> None:
    refusal = _answer(concerto_cluster, build_object(kind, "bad", spec))
    assert "(server dry run)" not in refusal
    assert field in refusal
    assert advice in refusal
    assert ("historyLength" in refusal) == ("historyLength" in field)  # whose rule reads two fields, or neither


def _samples() -> Iterator[Any]:
    for folder in ("tests/crds/samples", "tests/crds/earlier", "manifests/samples"):
        for path in sorted((REPOSITORY / folder).glob("*.yaml")):
            for obj in documents(path):
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
    if obj["kind"] in NAMESPACED_KINDS:
        obj["metadata"]["namespace"] = namespace
    elif obj["kind"] != "NodeCPUTopology":  # whose name is part of its spec
        obj["metadata"]["name"] += f"-{uuid.uuid4().hex[:8]}"
    name = obj["metadata"]["name"]
    target = [
        f"{obj['kind'].lower()}.concerto.dev",
        name,
        *(["-n", namespace] if obj["kind"] in NAMESPACED_KINDS else []),
    ]
    concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(obj))
    try:
        if status is not None:
            patch = json.dumps({"status": status})
            concerto_cluster.kubectl("patch", *target, "--subresource=status", "--type=merge", "-p", patch)
            stored = concerto_cluster.get(*target)["status"]
            assert stored == status
    finally:
        concerto_cluster.kubectl("delete", *target, "--wait=false")


PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "autoscaling": ("PredictiveHPA", {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 20}),
    "load-aware": ("SchedulingProfile", {"schedulerName": "dense", "scores": [{"name": "TargetLoadPacking"}]}),
}
"""By page, the kind whose spec its examples show in parts, and what the rest of the spec has to have."""


def _examples() -> Iterator[Any]:
    """Objects of our kinds in the docs; a part of a spec as the whole object. Those with an ellipsis are left out."""
    for page, number, text in yaml_of_docs():
        if "..." in text or "…" in text:
            continue
        for obj in documents(text):
            if "kind" not in obj and page in PARTS:
                kind, spec = PARTS[page]
                obj = build_object(kind, "example", spec | obj.get("spec", obj))
            if obj.get("apiVersion") == API_VERSION:
                yield pytest.param(obj, id=f"{page} {number}: {obj['kind']}")


@pytest.mark.parametrize("example", list(_examples()))
def test_an_example_of_the_docs_is_accepted(concerto_cluster: Cluster, example: dict[str, Any]) -> None:
    example["metadata"].pop("namespace", None)
    assert _answer(concerto_cluster, example).endswith("created (server dry run)")


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"observedAt": "2026-03-01T12:00:00Z", "capacity": 3}, "status.observedAt needs a complete measurement"),
        ({"capacity": -1025}, "status.capacity"),
        ({"conditions": [{"type": "Ready", "status": "Maybe"}]}, "status.conditions[0].status"),
    ],
    ids=["half a measurement", "a capacity that no node can have", "a condition that is neither true nor false"],
)
def test_a_status_that_says_nothing_sound_is_refused(
    concerto_cluster: Cluster, status: dict[str, Any], field: str
) -> None:
    name = f"status-{uuid.uuid4().hex[:8]}"
    concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(build_object("NodeCapacity", name, {})))
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
    assert len(crds) == len(KINDS)
    assert all(conditions == {"NamesAccepted": "True", "Established": "True"} for conditions in crds.values())


def test_kubectl_explain_says_what_each_field_of_a_status_means(concerto_cluster: Cluster) -> None:
    crd = yaml.safe_load((REPOSITORY / "crds" / "nodecapacities.yaml").read_text())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def check(path: str, schema: dict[str, Any]) -> None:
        reported = " ".join(concerto_cluster.kubectl("explain", path).split())
        for name, member in schema["properties"].items():
            assert name in reported
            assert " ".join(member["description"].split()) in reported, f"{path}.{name}"
            inner = member.get("items", member)
            if "properties" in inner:
                check(f"{path}.{name}", inner)

    check("ncap.status", root["properties"]["status"])


def test_nothing_differs_right_after_apply(concerto_cluster: Cluster) -> None:
    overlay = str(REPOSITORY / "manifests" / "overlays" / "local")
    concerto_cluster.kubectl("apply", "-k", overlay)
    assert concerto_cluster.kubectl("diff", "-k", overlay) == ""
