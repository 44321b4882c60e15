"""150,000 running pods: what taking each in costs a replica that starts, and what it holds of them and later ones.

Run: ``pytest -s -m bench e2e/bench/test_bench_pods.py`` (2 minutes). There is no API server: its answers are made here.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pytest

from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.controllers.runtime.garbage import search_new_objects_only
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import PODS
from concerto.scheduling.state.cluster import ClusterState
from e2e.bench.scale_pods import SERVICES, existing_pod, replica_set
from e2e.testbed.hollow.objects import PodLife, pod_status
from e2e.testbed.processes import rss_mib

pytestmark = pytest.mark.bench

NODES, COUNT, CAME, PAGE = 5000, 150_000, 100_000, 500
NOW = 1.8e9
SETS = [replica_set(number) for number in range(SERVICES)]
TOKEN_SOURCES = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]
OWNERS = {
    each["metadata"]["name"]: {"kind": "ReplicaSet", "name": each["metadata"]["name"], "uid": f"uid-{number}"}
    for number, each in enumerate(SETS)
}


def listed(number: int) -> dict[str, Any]:
    """The pod as an API server lists it: with defaults, a status, and the fields that each writer manages."""
    made = existing_pod(number, NODES, OWNERS)
    uid = f"{number:08x}-1111-2222-3333-444455556666"
    made["metadata"] |= {"uid": uid, "resourceVersion": str(number), "creationTimestamp": "2026-03-01T12:00:00Z"}
    owned = {f"f:{key}": {".": {}, "f:value": {}} for key in (*made["spec"], *made["metadata"], *range(40))}
    made["metadata"]["managedFields"] = [{"manager": "m", "operation": "Update", "fieldsV1": owned}]
    seconds = [{"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute"} for k in ("a", "b")]
    made["spec"] |= {"tolerations": seconds, "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    token = f"kube-api-access-{number:05x}"
    mount = {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    made["spec"]["containers"][0]["volumeMounts"] = [mount]
    made["spec"]["volumes"] = [{"name": token, "projected": {"defaultMode": 420, "sources": TOKEN_SOURCES}}]
    life = PodLife("10.0.0.1", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", NOW + number, NOW + number)
    made["status"] = pod_status(made, life, NOW + number)
    resources = made["spec"]["containers"][0]["resources"]
    made["status"]["containerStatuses"][0] |= {"resources": resources, "allocatedResources": resources["requests"]}
    return made


def different(number: int) -> dict[str, Any]:
    """A pod that shares with no other what the pods of a workload share."""
    made = listed(number)
    made["metadata"] |= {"uid": f"different-{number}", "name": f"different-{number}"}
    made["metadata"]["labels"] = {"different": str(number)}
    made["metadata"]["ownerReferences"][0] |= {"name": f"owner-{number}"}
    made["spec"] |= {"nodeSelector": {"different": str(number)}}
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{number}m"}}
    return made


@pytest.fixture
def searches() -> Iterator[list[float]]:
    """CPU seconds of each search for garbage."""
    seconds: list[float] = []
    began = 0.0

    def note(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        else:
            seconds.append(time.thread_time() - began)

    before = gc.get_threshold(), list(gc.callbacks)
    search_new_objects_only()
    gc.callbacks.append(note)
    yield seconds
    gc.set_threshold(*before[0])
    gc.callbacks[:] = before[1]
    gc.unfreeze()


class Intake:
    """What a replica does with events of pods, and the CPU seconds that it takes."""

    def __init__(self, session: Session) -> None:
        self.reflector = FollowedKind(session, PODS, self._on_change, trim=trim_pod).reflector
        self.spent = 0.0
        self._cluster = ClusterState()

    def take(self, kind: str, pods: Iterable[dict[str, Any]]) -> None:
        for lines in _pages(orjson.dumps({"type": kind, "object": each}) for each in pods):
            began = time.process_time()
            for line in lines:
                self.reflector._take(line)
            self.spent += time.process_time() - began

    def _on_change(self, old: Any, new: Any) -> None:
        if new is None:
            self._cluster.remove_pod(old["metadata"]["uid"])
        else:
            self._cluster.set_pod(PodView.from_raw(new), NOW)


async def test_a_replica_takes_in_all_pods(searches: list[float]) -> None:
    async with await Session.open(ClusterConfig("http://127.0.0.1:1")) as session:
        intake, before = Intake(session), rss_mib(os.getpid())
        intake.take("ADDED", map(listed, range(COUNT)))
        held = rss_mib(os.getpid()) - before
        print(f"\n{COUNT} pods: {held:.0f} MiB, {1e6 * intake.spent / COUNT:.0f} us of CPU a pod")
        print(f"of that, {1e6 * sum(searches) / COUNT:.1f} us for {len(searches)} searches of {_most(searches)}")
        assert len(intake.reflector.store) == COUNT

        searches.clear()
        before, half, after = (come_and_go(intake, part) for part in range(3))
        print(
            f"{before:.0f} MiB, {half:.0f} when {CAME // 2} different pods had come and gone, {after:.0f} after as many"
        )
        print(f"{len(searches)} searches of {_most(searches)}")
        searches.clear()
        gc.unfreeze()
        gc.collect()
        print(f"a search among all objects: {_most(searches)}")
        assert len(intake.reflector.store) == COUNT
        assert after < 1.05 * half, "what is held of pods that are gone has a limit, and that was reached"


def come_and_go(intake: Intake, part: int) -> float:
    """The MiB that the process holds after the first part of the pods (none), the second, or the third."""
    for first in range(COUNT + (part - 1) * CAME // 2, COUNT + part * CAME // 2, 2 * PAGE) if part else ():
        coming = range(first, first + 2 * PAGE)
        intake.take("ADDED", map(different, coming))
        intake.take("DELETED", map(different, coming))
    return rss_mib(os.getpid())


def _most(searches: list[float]) -> str:
    return f"up to {1000 * max(searches):.0f} ms"


def _pages(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    while page := list(itertools.islice(lines, PAGE)):
        yield page
