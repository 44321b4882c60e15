"""Objects that are as large as the API server takes them: little of them is held, and what counts still counts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from concerto.api import pod_kind
from concerto.api.node import NodeView, trim_node
from concerto.api.object_bounds import bound_metadata
from concerto.api.pod import PodView
from concerto.api.pod_constraints import HostPort
from concerto.api.pod_decoding import PodDecoder
from concerto.api.pod_trimming import trim_pod, trim_target_pod
from concerto.api.poddisruptionbudget import DisruptionBudget, trim_budget
from concerto.api.selectors import LabelSelector
from concerto.api.shared_parts import SharedParts
from concerto.api.volume_trimming import trim_claim
from concerto.api.volumes import PersistentVolumeClaim
from concerto.controllers.autoscaling.targets import trim_target
from concerto.controllers.scheduling.informers import trim_namespace
from concerto.controllers.scheduling.workload_informers import trim_to_selector
from concerto.scheduling.state.host_ports import HostPortIndex
from concerto.scheduling.state.node_rows import NodeRows
from support.daemon_sets import daemon_affinity
from support.traced_memory import traced_memory

Object = dict[str, Any]

MOST_BYTES = 96 * 1024
"""Of JSON that is held of any object."""
TOO_LARGE = ("scheduling constraints of more than 64 KiB",)


def pod(spec: Object | None = None, **metadata: Any) -> Object:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]
    named = {"namespace": "n", "name": "p", "uid": "u", "resourceVersion": "1"}
    return {"metadata": named | metadata, "spec": {"containers": containers, **(spec or {})}, "status": {}}


def of_container(**fields: Any) -> Object:
    return {"containers": [pod()["spec"]["containers"][0] | fields]}


def requesting(number: int) -> Object:
    amounts = {f"example.com/r{i}": "1" for i in range(number)} | {"cpu": "1", "memory": "1Gi"}
    return of_container(resources={"requests": amounts, "limits": amounts})


def ports(number: int, *fields: str) -> Object:
    return of_container(ports=[dict.fromkeys(("containerPort", *fields), i) for i in range(1, number)])


def reporting(phase: str = "Running", **status: Any) -> Object:
    """A pod of which a kubelet says that."""
    return pod() | {"status": {"phase": phase, **status}}


TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
LARGE = {
    "tolerations": pod({"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(20_000)]}),
    "a node selector": pod({"nodeSelector": {f"k{i}": "v" for i in range(40_000)}}),
    "affinity": pod(
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM] * 8_000}}}
    ),
    "owners": pod(ownerReferences=[{"apiVersion": "v1", "kind": "K", "name": "n", "uid": f"{i}"} for i in range(9000)]),
    "scheduling gates": pod({"schedulingGates": [{"name": f"g{i}"} for i in range(40_000)]}),
    "resource claims": pod({"resourceClaims": [{"name": f"g{i}"} for i in range(40_000)]}),
    "ports": pod(ports(40_000)),
    "host ports": pod(ports(20_000, "hostPort")),
    "resources": pod(requesting(20_000)),
    "containers": pod({"containers": pod()["spec"]["containers"] * 8_000}),
    "rules of containers": pod(of_container(restartPolicyRules=[{"action": "Restart"}] * 40_000)),
    "reports of containers": reporting(containerStatuses=[{"name": "c", "allocatedResources": {"cpu": "1"}}] * 20_000),
    "reports of what failed to start": reporting(
        "Pending", initContainerStatuses=[{"name": "c", "state": {"waiting": {"reason": "Error"}}}] * 20_000
    ),
    "reports of ends": reporting(
        containerStatuses=[{"name": "c", "state": {"terminated": {"exitCode": 1}}} for _ in range(20_000)]
    ),
    "reported amounts": reporting(resources={"requests": {f"example.com/r{i}": "1" for i in range(40_000)}}),
    "allocated amounts": reporting(allocatedResources={f"example.com/r{i}": "1" for i in range(40_000)}),
    "conditions": reporting(conditions=[{"type": "Ready", "status": f"{i}"} for i in range(20_000)]),
}  # fmt: skip


def both_ways(obj: Object) -> list[Object]:
    """The pod as it is decoded in a list and in an event."""
    decoder = PodDecoder(SharedParts())
    listed = decoder.page(orjson.dumps({"metadata": {"resourceVersion": "9"}, "items": [obj]}))["items"]
    return [*listed, decoder.event(orjson.dumps({"type": "ADDED", "object": obj}))["object"]]


@pytest.mark.parametrize("obj", LARGE.values(), ids=LARGE)
def test_little_is_held_of_a_large_pod(obj: Object) -> None:
    assert len(json.dumps(obj)) > 500_000
    kept = trim_pod(obj)
    assert len(json.dumps(kept)) < MOST_BYTES
    assert both_ways(obj) == [kept, kept]
    assert len(json.dumps(trim_target_pod(obj))) < MOST_BYTES
    view = PodView.from_raw(kept)
    assert view.requests["cpu"] >= 1000 and view.requests["memory"] >= 2**30


NEARLY = {
    "tolerations": {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(1300)]},
    "a node selector": {"nodeSelector": {f"k{i}": "v" for i in range(3000)}},
    "terms about nodes": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": f"k{i}", "operator": "Exists"}]} for i in range(700)
                    ]
                }
            }
        }
    },
    "terms about pods": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM] * 450}}},
    "topology spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": f"k{i}", "whenUnsatisfiable": "ScheduleAnyway"} for i in range(550)
        ]
    },
}  # fmt: skip
"""Constraints that are evaluated, as they are not too large."""


@pytest.mark.parametrize("spec", NEARLY.values(), ids=NEARLY)
def test_of_large_constraints_the_text_is_held_and_no_maps(spec: Object) -> None:
    lines = [orjson.dumps({"type": "ADDED", "object": pod(spec, name=f"p{i}")}) for i in range(10)]
    decoder = PodDecoder(SharedParts())
    decoder.event(lines[0])
    with traced_memory() as memory:
        kept = [decoder.event(line)["object"] for line in lines]
    assert 30_000 < len(lines[0]) < 64 * 1024
    assert memory.held < 2 * sum(map(len, lines)), "as maps, they take ten times as much as their text"
    assert kept == [trim_pod(pod(spec, name=f"p{i}")) for i in range(10)]
    assert PodView.from_raw(kept[0]).shape is PodView.from_raw(kept[1]).shape
    whole, shape = PodView.from_raw(pod(spec)).shape, PodView.from_raw(kept[0]).shape
    assert not shape.unsupported
    fields = [each.name for each in dataclasses.fields(shape) if each.name != "key"]
    assert [getattr(shape, name) for name in fields] == [getattr(whole, name) for name in fields]
    assert len(shape.key) < 100


@pytest.mark.parametrize("number", range(60, 130, 3))
def test_the_same_is_held_of_a_pod_however_it_is_decoded(number: int) -> None:
    obj = pod({"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(number)]})
    assert both_ways(obj) == [trim_pod(obj)] * 2


def test_a_pod_of_a_daemon_set_with_large_constraints_belongs_to_its_node() -> None:
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]
    spec = NEARLY["tolerations"] | {"affinity": daemon_affinity("n1")}
    assert not PodView.from_raw(trim_pod(pod(spec, ownerReferences=owners))).counted
    assert PodView.from_raw(trim_pod(pod(NEARLY["tolerations"], ownerReferences=owners))).counted


def test_of_what_no_decision_needs_little_is_held_however_much_there_is() -> None:
    rules = of_container(restartPolicyRules=[{"action": "Restart"}] * 300)
    gates, claims = (
        {field: [{"name": f"g{i}"} for i in range(1000)]} for field in ("schedulingGates", "resourceClaims")
    )
    for spec in (ports(1000), rules, gates, claims):
        obj = pod(spec)
        assert 5_000 < len(json.dumps(obj)) < 64 * 1024
        assert len(json.dumps(trim_pod(obj))) < 1000
        assert both_ways(obj) == [trim_pod(obj)] * 2
        assert PodView.from_raw(trim_pod(obj)).waiting == PodView.from_raw(obj).waiting


STATUSES = (
    "reports of containers", "reports of what failed to start", "reports of ends", "reported amounts",
    "allocated amounts", "conditions",
)  # fmt: skip
FINE = ("owners", "scheduling gates", "ports", "rules of containers", *STATUSES)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_pod_is_refused_if_its_constraints_make_it_large(name: str) -> None:
    view = PodView.from_raw(trim_pod(LARGE[name]))
    expected = () if name in FINE else ("resource claims",) if name == "resource claims" else TOO_LARGE
    assert view.shape.unsupported == expected
    assert view.waiting == (name != "scheduling gates")


@pytest.mark.parametrize("name", STATUSES)
def test_a_pod_with_a_large_status_counts_by_what_it_requests_and_runs_on(name: str) -> None:
    view = PodView.from_raw(trim_pod(LARGE[name]))
    assert view.requests == PodView.from_raw(pod()).requests
    assert view.counted and not view.start_fails and not view.uses_nothing
    assert view.phase == LARGE[name]["status"]["phase"]


def test_of_many_conditions_of_a_type_the_last_counts() -> None:
    obj = LARGE["conditions"]
    obj["status"]["conditions"].append({"type": "Ready", "status": "True"})
    assert PodView.from_raw(trim_pod(obj)).ready == "True"


def test_containers_that_are_too_many_count_together() -> None:
    spec = LARGE["containers"]["spec"] | {
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}],
        "overhead": {"cpu": "250m"},
    }
    whole, kept = PodView.from_raw(pod(spec)), PodView.from_raw(trim_pod(pod(spec)))
    assert kept.requests == whole.requests == {"cpu": 8_000_750, "memory": 8_000 * 2**30}


def test_a_large_pod_with_many_host_ports_counts_as_having_all_of_its_node() -> None:
    rows = NodeRows()
    index = HostPortIndex(rows)
    rows.indexes = (index,)
    taken, free = rows.row("taken"), rows.row("free")
    view = PodView.from_raw(trim_pod(LARGE["host ports"]))
    index.pod_added(view, taken)
    wanted = (HostPort("10.0.0.1", "UDP", 65_000),)
    assert index.conflicts(wanted, np.array([taken, free])).tolist() == [True, False]
    index.pod_removed(view, taken)
    assert not index.conflicts(wanted, slice(None)).any()


def test_a_pod_is_not_refused_for_ports_that_are_not_those_of_its_node() -> None:
    spec = ports(5_000)
    spec["containers"][0]["ports"].append({"containerPort": 80, "hostPort": 8080})
    spec["nodeSelector"] = {"a": "b"}
    view = PodView.from_raw(trim_pod(pod(spec)))
    assert view.shape.unsupported == ()
    assert view.shape.host_ports == (HostPort("0.0.0.0", "TCP", 8080),)
    assert view.shape.selects_nodes


def test_the_controller_is_held_however_many_owners_there_are() -> None:
    controller = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}
    obj = LARGE["owners"]
    obj = pod(ownerReferences=[*obj["metadata"]["ownerReferences"], controller])
    assert trim_pod(obj)["metadata"]["ownerReferences"] == [controller]
    assert PodView.from_raw(trim_pod(obj)).owner == ("ReplicaSet", "web")


@pytest.mark.parametrize("spec", [of_container(image="i" * 100_000), {"containers": [{"name": "c"}] * 1000}])
def test_kinds_with_long_names_are_not_remembered(spec: Object) -> None:
    before = pod_kind._cached_kind.cache_info().misses
    assert pod_kind.kind_of_pod(pod(spec)) == pod_kind.kind_of_pod(pod(spec))
    assert pod_kind._cached_kind.cache_info().misses == before
    assert len(max(pod_kind.kind_of_pod(pod(spec)).keys, key=len)) < 300


LABELS = {f"k{i}": "v" for i in range(60_000)}
SELECTOR = {"matchLabels": LABELS}
OWNERS = [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": f"{i}"} for i in range(20_000)]


def plain(spec: Object, **metadata: Any) -> Object:
    return {"metadata": {"namespace": "n", "name": "o", "uid": "u", "resourceVersion": "1"} | metadata, "spec": spec}


def node(spec: Object | None = None, labels: Any = None, **status: Any) -> Object:
    named = {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels or {"a": "b"}}
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": named, "spec": spec or {}, "status": {"allocatable": allocatable, "conditions": ready} | status
    }  # fmt: skip


NODES = {
    "labels": node(labels=LABELS),
    "taints": node({"taints": [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(20_000)]}),
    "images": node(images=[{"names": [f"registry.example/i{i}:1"], "sizeBytes": 1} for i in range(20_000)]),
    "names of an image": node(images=[{"names": [f"i{i}" for i in range(60_000)], "sizeBytes": 1}]),
    "features": node(declaredFeatures=[f"Feature{i}" for i in range(60_000)]),
    "addresses": node(addresses=[{"type": "InternalIP", "address": f"10.{i}"} for i in range(20_000)]),
    "resources": node(allocatable={f"example.com/r{i}": "1" for i in range(40_000)} | {"cpu": "8", "memory": "32Gi"}),
}


@pytest.mark.parametrize("name", NODES)
def test_little_is_held_of_a_node_of_which_a_kubelet_says_much(name: str) -> None:
    assert len(json.dumps(NODES[name])) > 500_000
    kept = trim_node(NODES[name])
    assert len(json.dumps(kept)) < 3 * MOST_BYTES
    view = NodeView.from_raw(kept)
    assert (view.allocatable["cpu"], view.allocatable["memory"], view.ready) == (8000, 32 * 2**30, True)
    assert view.unschedulable is (name == "taints")
    assert view.labels == ({} if name == "labels" else {"a": "b"})


OTHERS: dict[str, tuple[Callable[[Object], Object], Object]] = {
    "a claim's selector": (trim_claim, plain({"selector": SELECTOR})),
    "a claim's owners": (trim_claim, plain({}, ownerReferences=OWNERS)),
    "a claim's access modes": (trim_claim, plain({"accessModes": ["ReadWriteOnce"] * 60_000})),
    "a claim's requests": (trim_claim, plain({"resources": {"requests": LABELS}})),
    "a budget's selector": (trim_budget, plain({"selector": SELECTOR})),
    "a Service's selector": (trim_to_selector, plain({"selector": LABELS})),
    "a workload's selector": (trim_to_selector, plain({"selector": SELECTOR})),
    "a target's selector": (trim_target, plain({"selector": SELECTOR})),
    "a namespace's labels": (trim_namespace, plain({}, labels=LABELS)),
    "labels": (bound_metadata, plain({}, labels=LABELS)),
    "annotations": (bound_metadata, plain({}, annotations=LABELS)),
    "owners": (bound_metadata, plain({}, ownerReferences=OWNERS)),
    "finalizers": (bound_metadata, plain({}, finalizers=[f"a.b/{i}" for i in range(60_000)])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_little_is_held_of_other_large_objects(name: str) -> None:
    trim, obj = OTHERS[name]
    assert len(json.dumps(obj)) > 500_000
    assert len(json.dumps(trim(obj))) < 1000


def test_a_claim_with_a_large_selector_finds_no_volume_and_is_otherwise_as_it_was() -> None:
    requests = {"requests": {"storage": "1Gi", "other": "1"}, "limits": {"storage": "2Gi"}}
    spec = {"resources": requests, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "storageClassName": "fast"}
    owners = [*OWNERS, {"kind": "Pod", "uid": "p", "controller": True}]
    small = plain(spec | {"selector": {"matchLabels": {"a": "b"}}}, ownerReferences=owners)
    claim = PersistentVolumeClaim.from_raw(trim_claim(small))
    assert claim == PersistentVolumeClaim.from_raw(small)
    large = PersistentVolumeClaim.from_raw(trim_claim(plain(spec | {"selector": SELECTOR})))
    assert large.selector is not None and not large.selector.matches(LABELS)


def test_a_budget_with_a_large_selector_protects_all_pods_of_its_namespace() -> None:
    raw = plain({"selector": SELECTOR}) | {"status": {"disruptionsAllowed": 5}}
    budget = DisruptionBudget.from_raw(trim_budget(raw))
    assert (budget.selector, budget.allowed) == (LabelSelector(()), 0)


def test_what_concerto_reads_of_large_metadata_is_held() -> None:
    ours = {"concerto.dev/paused": "true"}
    obj = bound_metadata(plain({"a": 1}, annotations={**LABELS, **ours}, labels={"concerto.dev/in-flight": ""}))
    assert obj["metadata"]["annotations"] == ours
    assert obj["metadata"]["labels"] == {"concerto.dev/in-flight": ""}
    small = plain({"a": 1}, annotations={"x": "y"}, ownerReferences=OWNERS[:3], finalizers=["f"])
    assert bound_metadata(json.loads(json.dumps(small))) == small
