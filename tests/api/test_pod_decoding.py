"""Pods that are decoded in part are, once they are trimmed, what they are when all of them is decoded."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_decoding import decode_pod_event, decode_pod_list
from concerto.api.pod_trimming import trim_pod

LEFT_OUT = ("managedFields", "env", "volumeMounts", "containerID", "securityContext")


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


def both_ways(pod: dict[str, Any]) -> tuple[Any, Any]:
    """The pod decoded in part, in a list and in an event."""
    (listed,) = decode_pod_list(orjson.dumps({"metadata": {"resourceVersion": "9"}, "items": [pod]}))["items"]
    return listed, decode_pod_event(orjson.dumps({"type": "ADDED", "object": pod}))["object"]


PODS = {
    "all fields": as_sent(),
    "no status": {key: value for key, value in as_sent().items() if key != "status"},
    "running": as_sent(status={"phase": "Running", "containerStatuses": [{"name": "main", "resources": {}}]}),
    "null where a map or a list belongs": as_sent(status=None, spec={"containers": None, "volumes": None}),
    "labels of another type": as_sent(metadata={**as_sent()["metadata"], "labels": None, "annotations": None}),
}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_nothing_is_missing_that_is_kept(pod: dict[str, Any]) -> None:
    kept = dict(pod, spec={**pod["spec"], "containers": pod["spec"]["containers"] or []})
    for decoded in both_ways(kept):
        assert trim_pod(decoded) == trim_pod(kept)


def test_what_is_left_out_is_not_decoded() -> None:
    for decoded in both_ways(as_sent()):
        text = orjson.dumps(decoded).decode()
        assert not [name for name in LEFT_OUT if f'"{name}"' in text]


def test_a_list_and_an_event_are_whole_beside_their_pods() -> None:
    page = {"metadata": {"resourceVersion": "9", "continue": "t", "remainingItemCount": 3}, "items": [as_sent()]}
    assert decode_pod_list(orjson.dumps(page))["metadata"] == page["metadata"]
    assert decode_pod_event(orjson.dumps({"type": "DELETED", "object": as_sent()}))["type"] == "DELETED"


OTHERS = {
    "a bookmark": {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}, "spec": {"containers": None}}},
    "an error": {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}},
    "a refusal": {"kind": "Status", "status": "Failure", "code": 403},
    "deeply nested": {"type": "ADDED", "object": {"metadata": {"labels": {"a": [[[[[[{}]]]]]]}}, "spec": []}},
}


@pytest.mark.parametrize("document", OTHERS.values(), ids=OTHERS)
def test_what_is_no_pod_is_read_as_it_is(document: dict[str, Any]) -> None:
    decoded = decode_pod_event(orjson.dumps(document))
    assert {key: decoded[key] for key in decoded} == {key: document[key] for key in decoded}
    assert decoded.get("object", {}).get("code") == document.get("object", {}).get("code")


def test_what_is_no_json_is_an_error() -> None:
    for decode in (decode_pod_list, decode_pod_event):
        with pytest.raises(ValueError, match=r"EOF|unexpected end"):
            decode(b'{"type": "ADDED", "obj')


names = st.sampled_from(
    ["metadata", "spec", "status", "containers", "containerStatuses", "name", "phase", "labels", "x"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["Pending", "Running", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


def outcome(pod: Any) -> Any:
    """What `trim_pod` makes of it, or how it fails."""
    try:
        return trim_pod(pod)
    except Exception as error:
        return type(error)


@given(st.dictionaries(names, values, max_size=4))
def test_whatever_stands_in_a_pod_comes_to_the_same(pod: dict[str, Any]) -> None:
    for decoded in both_ways(pod):
        assert outcome(decoded) == outcome(pod)
