"""Admission webhooks that never answer for one namespace hold up that namespace, on a real API server.

Nodes are mere API objects. The webhook is a socket that takes connections and says nothing.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import pytest

from e2e.suites.test_scheduling import events, node_of, pod
from e2e.testbed.clusters import Cluster
from e2e.testbed.processes import Process, operator_process, running_operator
from e2e.testbed.requirements import require_local_plane
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually

STUCK = 320
"""Pods of the namespace: more than may wait for their bindings."""
WITHIN_SECONDS = 10.0
"""A pod of another namespace is placed after 2 s or somewhat more. Bindings that hang are given up after 60 s."""
MANY = 40
"""Namespaces that hang: seven had kept all others from bindings, five from events, and 33 from statuses."""
KNOWN_WITHIN_SECONDS = 5.0
"""A write in a namespace in which one was made before takes no longer than it does without those."""
BUSY = 8
"""Namespaces whose bindings begin to hang at one moment, with 40 pods each."""
PLACED_WITHIN_SECONDS = 2.0
"""A pod of another namespace meanwhile, as a rule: what else keeps the machine busy costs seconds, too."""
PROBE = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "probe"}, "target": {"kind": "Node", "name": "x"}}


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster) -> Iterator[Process]:
    plane = require_local_plane(concerto_cluster)
    process = operator_process(plane, plane.work_dir, "operator-webhooks", restarts=True)
    nodes = hollow_nodes(plane, 3, "--api-only", "--max-pods", "200", "--prefix", "hook")
    with nodes, running_operator(process):
        yield process


@contextmanager
def hanging(
    cluster: Cluster, namespaces: str | list[str], resource: str, group: str = "", operation: str = "CREATE"
) -> Iterator[None]:
    """Such writes of the resource in the namespaces get no answer from a webhook while the context is open."""
    names = [namespaces] if isinstance(namespaces, str) else namespaces
    name = f"hanging-{uuid.uuid4().hex[:8]}"
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        webhook: dict[str, Any] = {
            "name": "hanging.e2e.concerto.dev",
            "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"},
            "rules": [
                {"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource]}
            ],
            "namespaceSelector": {
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}]
            },
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 30, "failurePolicy": "Fail",
        }  # fmt: skip
        cluster.apply({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        })  # fmt: skip
        try:
            yield
        finally:
            cluster.kubectl("delete", "validatingwebhookconfiguration", name)


def binding_hangs(cluster: Cluster, namespace: str) -> bool:
    path = f"/api/v1/namespaces/{namespace}/pods/probe/binding?dryRun=All"
    said = cluster.kubectl(
        "create", "--raw", path, "-f", "-", "--request-timeout=10s", stdin=json.dumps(PROBE), check=False
    )
    return "imeout" in said or "deadline" in said


def test_bindings_that_hang_in_one_namespace_hold_up_no_other(concerto_cluster, operator, namespace):
    cluster, stuck = concerto_cluster, f"stuck-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(stuck)
    names = [f"p{i:03}" for i in range(STUCK)]

    def decided() -> int:
        records = cluster.get("pres", "-n", "concerto-system", "-l", "concerto.dev/in-flight")["items"]
        return sum(len(record["spec"]["assignments"]) for record in records)

    with hanging(cluster, stuck, "pods/binding"):
        eventually("the webhook is asked", partial(binding_hangs, cluster, stuck))
        items = [pod(stuck, name) for name in names]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        eventually("more are decided on than are bound at a time", lambda: decided() > 250)
        cluster.apply(pod(namespace, "free"))
        eventually("another pod is bound", lambda: node_of(cluster, namespace, "free"), WITHIN_SECONDS)
        eventually("its event", lambda: events(cluster, namespace, "free", "Scheduled"))
        assert not any(each["spec"].get("nodeName") for each in cluster.get("pods", "-n", stuck)["items"])

    def all_bound() -> bool:
        return all(each["spec"].get("nodeName") for each in cluster.get("pods", "-n", stuck)["items"])

    eventually("they are bound once the webhook is gone", all_bound)
    cluster.remove_namespace(stuck)
    eventually("they are gone", lambda: not cluster.get("pods", "-n", stuck)["items"])


@dataclass(frozen=True)
class Write:
    """A write that the operator makes about an object.

    Attributes:
        of: resource, API group and operation.
        build: given a namespace and a name, the object.
        is_seen: given the cluster, a namespace and a name, whether it was made.
    """

    of: tuple[str, str, str]
    build: Callable[[str, str], dict[str, Any]]
    is_seen: Callable[[Cluster, str, str], object]


def concerto_object(kind: str, spec: dict[str, Any]) -> Callable[[str, str], dict[str, Any]]:
    def build(namespace: str, name: str) -> dict[str, Any]:
        metadata = {"namespace": namespace, "name": name}
        return {"apiVersion": "concerto.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}

    return build


def has_status(resource: str) -> Callable[[Cluster, str, str], object]:
    return lambda cluster, namespace, name: cluster.get(resource, name, "-n", namespace).get("status")


WRITES = {
    "events": Write(
        ("events", "events.k8s.io", "CREATE"), pod, lambda cluster, *whose: events(cluster, *whose, "Scheduled")
    ),
    "statuses of PodReservations": Write(
        ("podreservations/status", "concerto.dev", "UPDATE"),
        concerto_object("PodReservation", {"podSelector": {"matchLabels": {"of": "nobody"}}, "count": 1}),
        has_status("podreservations"),
    ),
    "statuses of PodCPUBindings": Write(
        ("podcpubindings/status", "concerto.dev", "UPDATE"),
        concerto_object("PodCPUBinding", {"podName": "nobody", "cpuSet": [{"cpuID": 0}]}),
        has_status("podcpubindings"),
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_that_hang_in_one_namespace_hold_up_none_of_another(concerto_cluster, operator, namespace, write):
    cluster, stuck = concerto_cluster, f"stuck-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(stuck)
    numbers = itertools.count()

    def hangs() -> bool:
        cluster.apply(write.build(stuck, name := f"first-{next(numbers)}"))
        time.sleep(3.0)
        return not write.is_seen(cluster, stuck, name)

    with hanging(cluster, stuck, *write.of):
        eventually("such a write hangs", hangs)
        names = [f"o{i}" for i in range(40)]
        items = [write.build(stuck, name) for name in names]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        cluster.apply(write.build(namespace, "free"))
        eventually(
            "that of another namespace is made", lambda: write.is_seen(cluster, namespace, "free"), WITHIN_SECONDS
        )
        assert not any(write.is_seen(cluster, stuck, name) for name in names)
    cluster.remove_namespace(stuck)


BINDINGS = Write(("pods/binding", "", "CREATE"), pod, lambda cluster, *whose: node_of(cluster, *whose))


@pytest.mark.parametrize("write", [BINDINGS, *WRITES.values()], ids=["bindings", *WRITES])
def test_however_many_namespaces_hang_others_go_on_as_they_did(concerto_cluster, operator, namespace, write):
    cluster, prefix = concerto_cluster, f"stuck-{uuid.uuid4().hex[:8]}"
    stuck = [f"{prefix}-{number:02}" for number in range(MANY)]
    for each in stuck:
        cluster.make_namespace(each)
    cluster.apply(write.build(namespace, "known"))
    eventually("such a write is made", lambda: write.is_seen(cluster, namespace, "known"))
    numbers = itertools.count()

    def hangs() -> bool:
        cluster.apply(write.build(stuck[0], name := f"first-{next(numbers)}"))
        time.sleep(3.0)
        return not write.is_seen(cluster, stuck[0], name)

    with hanging(cluster, stuck, *write.of):
        eventually("such a write hangs", hangs)
        items = [write.build(each, f"o{i}") for each in stuck for i in range(3)]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for number in range(6):
            cluster.apply(write.build(namespace, f"free-{number}"))
            eventually(
                f"write {number} of another namespace is made",
                partial(write.is_seen, cluster, namespace, f"free-{number}"),
                KNOWN_WITHIN_SECONDS,
            )
            time.sleep(1.5)
    for each in stuck:
        cluster.remove_namespace(each)


def test_a_pod_is_placed_within_two_seconds_while_known_namespaces_begin_to_hang(
    concerto_cluster, operator, namespace, say
):
    cluster, prefix = concerto_cluster, f"stuck-{uuid.uuid4().hex[:8]}"
    stuck = [f"{prefix}-{number:02}" for number in range(BUSY)]
    for each in stuck:
        cluster.make_namespace(each)
    for each in (*stuck, namespace):
        cluster.apply(pod(each, "known"))
    for each in (*stuck, namespace):
        eventually("a pod is bound", partial(node_of, cluster, each, "known"))
    took = []
    with hanging(cluster, stuck, "pods/binding"):
        eventually("the webhook is asked", partial(binding_hangs, cluster, stuck[0]))
        items = [pod(each, f"o{i:02}") for each in stuck for i in range(40)]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for number in range(6):
            cluster.apply(pod(namespace, f"free-{number}"))
            began = time.monotonic()
            eventually("it is placed", partial(node_of, cluster, namespace, f"free-{number}"), WITHIN_SECONDS)
            took.append(time.monotonic() - began)
            time.sleep(0.5)
    say(
        f"hanging: pods beside {BUSY} namespaces that begin to hang are placed after {took[0]:.1f} s, {max(took):.1f} s"
    )
    assert median(took) <= PLACED_WITHIN_SECONDS, took
    for each in stuck:
        cluster.remove_namespace(each)
    eventually("their pods are gone", lambda: not any(cluster.get("pods", "-n", each)["items"] for each in stuck))
