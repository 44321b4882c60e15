"""Pods that are decoded in part are what trimming leaves of them when all of them is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_decoding import PodDecoder
from concerto.api.pod_trimming import trim_pod
from concerto.api.shared_parts import SharedParts


def as_sent(**over: Any) -> dict[str, Any]:
    """A pod as an API server sends it."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-1",
            "namespace": "shop",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-03-01T12:00:00Z",
            "labels": {"app": "web"},
            "annotations": {"kubernetes.io/config.mirror": "x", "note": "y"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "schedulerName": "concerto",
            "nodeName": "n1",
            "priority": 5,
            "securityContext": {},
            "containers": [
                {
                    "name": "main",
                    "image": "web:1",
                    "resources": {"requests": {"cpu": "100m"}},
                    "ports": [{"containerPort": 80, "hostPort": 8080}],
                    "env": [{"name": "A", "value": "B"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "initContainers": [{"name": "init", "image": "init", "restartPolicy": "Always", "env": []}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "t", "emptyDir": {}},
            ],
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"operator": "Exists"}],
            "ofALaterRelease": True,
        },
        "status": {
            "phase": "Pending",
            "hostIP": "10.0.0.1",
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-03-01T12:00:01Z", "message": "m"},
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"},
                {"type": "Initialized", "status": "True"},
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "containerID": "c",
                    "restartCount": 0,
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}},
                    "allocatedResources": {"cpu": "200m"},
                }
            ],
        },
    }
    return pod | over


def both_ways(pod: Any, decoder: PodDecoder | None = None) -> tuple[Any, Any]:
    """The pod as it is decoded in a list and in an event."""
    decoder = decoder or PodDecoder(SharedParts())
    (listed,) = decoder.page(orjson.dumps({"metadata": {"resourceVersion": "9"}, "items": [pod]}))["items"]
    return listed, decoder.event(orjson.dumps({"type": "ADDED", "object": pod}))["object"]


def changed(part: str, **over: Any) -> dict[str, Any]:
    """`as_sent` with another metadata, spec or status."""
    return as_sent(**{part: as_sent()[part] | over})


CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
TOKEN = {"name": "kube-api-access-x7k2p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
REPORTED = {"name": "main", "resources": {}, "restartCount": 3, "state": {"running": {}}}
PODS = {
    "all fields": as_sent(),
    "no status": {key: value for key, value in as_sent().items() if key != "status"},
    "an empty status": as_sent(status={}),
    "no node": as_sent(spec={key: value for key, value in as_sent()["spec"].items() if key != "nodeName"}),
    "running": as_sent(status={"phase": "Running", "containerStatuses": [{"name": "sidecar"}, REPORTED]}),
    "running, without reports": as_sent(status={"phase": "Running", "containerStatuses": [{"name": "main"}]}),
    "pending, and started": changed("status", containerStatuses=[REPORTED], initContainerStatuses=[{"name": "i"}]),
    "volumes of which nothing is read": changed("spec", volumes=[TOKEN]),
    "volumes of several sorts": changed("spec", volumes=[TOKEN, CLAIM, {"name": "d", "rbd": {"image": "i"}}]),
    "too many volumes": changed("spec", volumes=[CLAIM | {"name": f"v{n}"} for n in range(2000)]),
    "many volumes": changed("spec", volumes=[CLAIM | {"name": f"v{n}"} for n in range(500)]),
    "a volume that is nothing": changed("spec", volumes=[{"name": "data", "persistentVolumeClaim": None}]),
    "being deleted": changed("metadata", deletionTimestamp="2026-03-01T12:00:00Z", deletionGracePeriodSeconds=30),
    "a generated name": changed("metadata", generateName="web-"),
    "no labels": as_sent(metadata={"namespace": "shop", "name": "p", "uid": "u", "resourceVersion": "1"}),
    "too much text in labels": changed("metadata", labels={f"{n}": "x" * 60 for n in range(300)}),
    "much text in labels": changed("metadata", labels={f"{n}": "x" * 60 for n in range(200)}),
    "null where a map or a list belongs": as_sent(status=None, spec={"containers": None, "volumes": None}),
    "labels of another type": as_sent(metadata={**as_sent()["metadata"], "labels": None, "annotations": None}),
    "no time of a condition": changed("status", conditions=[{"type": "Ready", "lastTransitionTime": None}]),
    "a number where a text belongs": changed("status", phase=5),
    "a condition without a type": changed("status", conditions=[{"status": "True"}]),
}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_a_pod_is_what_trimming_leaves_of_it(pod: dict[str, Any]) -> None:
    kept = dict(pod, spec={**pod["spec"], "containers": pod["spec"]["containers"] or []})
    for decoded in both_ways(kept):
        assert decoded == trim_pod(kept)


def no_pod(pod: Any) -> Any:
    """Pods of which all of the JSON is read."""
    raise AssertionError(f"read whole: {pod}")


COMMON = ["all fields", "no status", "no node", "running", "volumes of several sorts", "being deleted", "no labels"]


@pytest.mark.parametrize("name", COMMON)
def test_what_is_left_out_of_a_common_pod_is_not_decoded(name: str) -> None:
    both_ways(PODS[name], PodDecoder(SharedParts(), trim=no_pod))


def test_pods_of_one_workload_share_what_is_equal() -> None:
    decoder, other = PodDecoder(SharedParts()), as_sent()
    other["metadata"] |= {"name": "web-2", "uid": "v", "resourceVersion": "8"}
    other["spec"] |= {"nodeName": "n2", "volumes": [TOKEN]}
    one, two = both_ways(as_sent(), decoder)[0], both_ways(other, decoder)[1]
    assert (one["spec"]["nodeName"], two["spec"]["nodeName"]) == ("n1", "n2")
    for part in ("containers", "initContainers", "tolerations", "affinity"):
        assert one["spec"][part] is two["spec"][part]
    for part in ("labels", "ownerReferences"):
        assert one["metadata"][part] is two["metadata"][part]


def test_a_pod_in_a_list_that_cannot_be_read_costs_itself_alone() -> None:
    whole: list[Any] = []

    def trim(pod: dict[str, Any]) -> dict[str, Any]:
        whole.append(pod["metadata"]["name"])
        return trim_pod(pod) if isinstance(pod["status"], dict) else {}

    odd = changed("metadata", name="odd") | {"spec": [], "status": 5}
    unusual = changed("spec", nodeName=None)
    pods = [as_sent(), odd, unusual, as_sent()]
    decoder = PodDecoder(SharedParts(), trim)
    listed = decoder.page(orjson.dumps({"metadata": {"resourceVersion": "9"}, "items": pods}))
    items = [*listed["items"]]
    assert items == [trim_pod(as_sent()), {}, trim_pod(unusual), trim_pod(as_sent())]
    assert listed["metadata"] == {"resourceVersion": "9"}
    assert whole == ["odd", "web-1"], "of the others, only what is kept is decoded"
    assert items[0]["spec"]["containers"] is items[3]["spec"]["containers"]


def test_a_list_and_an_event_are_whole_beside_their_pods() -> None:
    page = {"metadata": {"resourceVersion": "9", "continue": "t", "remainingItemCount": 3}, "items": [as_sent()]}
    decoder = PodDecoder(SharedParts())
    assert decoder.page(orjson.dumps(page))["metadata"] == page["metadata"]
    assert decoder.page(orjson.dumps({**page, "items": None}))["metadata"] == page["metadata"]
    assert decoder.event(orjson.dumps({"type": "DELETED", "object": as_sent()}))["type"] == "DELETED"


OTHERS = {
    "a bookmark": {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}, "spec": {"containers": None}}},
    "a bookmark that looks like a pod": {"type": "BOOKMARK", "object": as_sent()},
    "an error": {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}},
    "a refusal": {"kind": "Status", "status": "Failure", "code": 403},
}


@pytest.mark.parametrize("document", OTHERS.values(), ids=OTHERS)
def test_what_is_no_pod_is_whole(document: dict[str, Any]) -> None:
    assert PodDecoder(SharedParts(), trim=no_pod).event(orjson.dumps(document)) == document


def test_what_is_no_json_is_an_error() -> None:
    decoder = PodDecoder(SharedParts())
    for decode in (decoder.page, decoder.event):
        with pytest.raises(ValueError, match=r"EOF|unexpected end"):
            decode(b'{"type": "ADDED", "obj')


names = st.sampled_from(
    ["metadata", "spec", "status", "containers", "containerStatuses", "volumes", "ephemeral", "phase", "labels", "x"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["Pending", "Running", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
NAMED = as_sent()["metadata"]


def outcome(act: Callable[[], Any]) -> Any:
    """What comes of it, or how it fails."""
    try:
        return act()
    except Exception as error:
        return type(error)


@given(st.dictionaries(names, values, max_size=4), st.booleans())
def test_whatever_stands_in_a_pod_comes_to_the_same(pod: dict[str, Any], named: bool) -> None:
    if named:
        pod = {"metadata": NAMED, "spec": {}} | pod
    decoder = PodDecoder(SharedParts())
    event, page = {"type": "ADDED", "object": pod}, {"metadata": {}, "items": [pod]}
    of_event = outcome(lambda: decoder.event(orjson.dumps(event))["object"])
    assert of_event == outcome(lambda: trim_pod(pod))
    assert outcome(lambda: next(iter(decoder.page(orjson.dumps(page))["items"]))) == of_event


ODD = {
    "labels that are a number": ("metadata", "labels", b"5"),
    "labels that are true": ("metadata", "labels", b"true"),
    "a time that is a huge number": ("metadata", "creationTimestamp", b"1000000000000000000000000000000"),
    "a grace period that is a huge number": ("metadata", "deletionGracePeriodSeconds", b"99999999999999999999"),
    "a name with escapes": ("metadata", "generateName", rb'"\u00e9\ud83d\ude00\u2028\\\/"'),
    "a node that is nothing": ("spec", "nodeName", b"null"),
    "a huge priority": ("spec", "priority", b"99999999999999999999"),
    "the same field twice": ("spec", "nodeName", b'"n1", "nodeName": "n2", "containers": []'),
    "the same section twice": ("status", "phase", b'"Failed"}, "status": {"phase": "Running"'),
    "a reason that is a huge number": ("status", "conditions", b'[{"type": "PodResizePending", "reason": 1e400}]'),
    "a condition with a huge number": ("status", "conditions", b'[{"type": "Ready", "status": %d}]' % 10**30),
    "a condition at no time": ("status", "conditions", b'[{"type": "Ready", "lastTransitionTime": 1e30}]'),
    "deep nesting": ("spec", "affinity", b"[" * 200 + b"]" * 200),
    "half of a character": ("spec", "schedulerName", rb'"\ud83d"'),
    "no UTF-8": ("spec", "schedulerName", b'"\xff"'),
}


@pytest.mark.parametrize(("where", "field", "value"), ODD.values(), ids=ODD)
def test_whatever_text_stands_for_a_field_comes_to_the_same(where: str, field: str, value: bytes) -> None:
    pod = orjson.dumps(changed(where, **{field: "INSTEAD"})).replace(b'"INSTEAD"', value)
    decoder = PodDecoder(SharedParts())
    expected = outcome(lambda: trim_pod(orjson.loads(pod)))
    assert outcome(lambda: decoder.event(b'{"type": "ADDED", "object": %b}' % pod)["object"]) == expected
    assert outcome(lambda: next(iter(decoder.page(b'{"metadata": {}, "items": [%b]}' % pod)["items"]))) == expected


@given(st.dictionaries(names, values, max_size=4), st.sampled_from(["metadata", "spec", "status"]))
def test_whatever_stands_in_a_part_of_a_pod_comes_to_the_same(part: dict[str, Any], where: str) -> None:
    pod = changed(where, **part)
    decoded = outcome(lambda: PodDecoder(SharedParts()).event(orjson.dumps({"type": "ADDED", "object": pod}))["object"])
    assert decoded == outcome(lambda: trim_pod(pod))
