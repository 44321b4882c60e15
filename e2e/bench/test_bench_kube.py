"""What it costs to take in what an API server sends: lists and watch events of pods, against Python's own decoder."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from concerto.api.pod_decoding import PodDecoder
from concerto.api.pod_trimming import trim_pod
from concerto.api.shared_parts import SharedParts
from concerto.controllers.runtime.garbage import search_new_objects_only
from concerto.kube.request_bodies import Object

pytestmark = pytest.mark.bench

PODS = 500
REPEATS = 7


def pod(number: int) -> Object:
    """A pod as an API server sends it, with what its controllers, its kubelet and managed fields add."""
    time_ = "2026-11-28T16:00:00Z"
    fields: Object = {f"f:field{n}": {".": {}, "f:name": {}, "f:value": {}} for n in range(25)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-5d4f7c9b8-{number:05d}",
            "generateName": "web-5d4f7c9b8-",
            "namespace": f"team-{number % 50}",
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": time_,
            "labels": {"app": "web", "pod-template-hash": "5d4f7c9b8"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}],
            "managedFields": [
                {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time_, "fieldsV1": fields}
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team/web:1.2.3",
                    "resources": {"requests": {"cpu": "250m", "memory": "128Mi"}},
                    "env": [{"name": f"SETTING_{n}", "value": f"value of setting {n}"} for n in range(8)],
                    "volumeMounts": [{"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets"}],
                }
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": time_}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        },
    }


def cpu_seconds(decoder: Callable[[bytes], Any], documents: list[bytes]) -> float:
    """CPU time to decode all documents once, the best of some rounds."""
    best = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        began = time.process_time()
        for document in documents:
            decoder(document)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.parametrize("kind", ["list", "watch"])
def test_decoding(kind: str, say: Callable[[str], None]) -> None:
    pods = [pod(number) for number in range(PODS)]
    if kind == "list":
        documents = [json.dumps({"kind": "PodList", "items": pods}).encode()]
    else:
        documents = [json.dumps({"type": "MODIFIED", "object": each}).encode() for each in pods]
    search_new_objects_only()
    own, standard = cpu_seconds(orjson.loads, documents), cpu_seconds(json.loads, documents)
    say(f"{kind} of {PODS} pods: {own / PODS * 1e6:.0f} us a pod, json {standard / PODS * 1e6:.0f} us: "
        f"{standard / own:.2f} times as fast")  # fmt: skip
    assert [orjson.loads(document) for document in documents] == [json.loads(document) for document in documents]


def test_decoding_what_is_kept_of_pods(say: Callable[[str], None]) -> None:
    documents = [json.dumps({"metadata": {}, "items": [pod(number) for number in range(PODS)]}).encode()]
    search_new_objects_only()
    in_part = cpu_seconds(PodDecoder(SharedParts()).page, documents)
    whole = cpu_seconds(lambda text: [trim_pod(each) for each in orjson.loads(text)["items"]], documents)
    say(f"list of {PODS} pods, trimmed: {in_part / PODS * 1e6:.0f} us a pod, orjson {whole / PODS * 1e6:.0f} us")
