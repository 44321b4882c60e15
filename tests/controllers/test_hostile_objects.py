"""Objects of which any one field is hostile go through the operator as it is put together, and cost only themselves.

The API server refuses most of them today. It has stored what an earlier or later version of a CRD let through, and a
person may switch a webhook or a policy off: an operator that ends over an object ends again at each start.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import json
import logging
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.capacity import kinds_feed
from concerto.controllers.capacity.kinds_trace import KindsTrace
from concerto.controllers.runtime.clock import SteadyClock
from concerto.controllers.runtime.health import Health
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.supervision import Supervisor
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.controllers.scheduling import profiles, reservations
from concerto.controllers.wiring import OperatorSettings, Plan, Replica, plan_parts
from concerto.kube.lease import LeaseSettings
from concerto.scheduling.state.cluster import ClusterState
from support.cluster_contents import state_of
from support.crd_schemas import CRDS, REPOSITORY, documents
from support.faulty_server import faulty
from support.waiting import eventually

Object = dict[str, Any]

NOW = 1772366400.123456
"""When the samples were observed, seconds since the epoch."""
LATE = "10000-01-01T23:58:59Z"
HOSTILE: list[Any] = [
    None, "", "\x00\x1b[2J", LATE, "9" * 400, 0, -1, 2**63, 1e308, -1e-308, True, [], {}, [None], [[]], [{}],
    {"": None}, {"a": []},
]  # fmt: skip
REQUIRED = {"namespace", "name", "uid", "resourceVersion", "creationTimestamp"}
"""Metadata that the API server sets or checks for every kind."""


def samples() -> Iterator[tuple[str, Object]]:
    """Objects of each kind that the operator follows, by ``resource.group``."""
    for crd in CRDS.values():
        names = crd["spec"]["names"]
        for path in sorted((REPOSITORY / "tests/crds/samples").glob("*.yaml")):
            for obj in documents(path):
                if obj["kind"] == names["kind"]:
                    yield f"{names['plural']}.{crd['spec']['group']}", obj
    for path in sorted((REPOSITORY / "tests/controllers/samples").glob("*.yaml")):
        for obj in documents(path):
            yield obj.pop("followedAs"), obj


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each member of an object, outermost first."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        if (path == ("metadata",) and key in REQUIRED) or (not path and key in ("kind", "apiVersion")):
            continue
        if path or key != "metadata":
            yield (*path, key)
        yield from paths(member, (*path, key))


def replaced(obj: Object, path: tuple[Any, ...], value: Any) -> Object:
    """A copy with this member replaced."""
    made = copy.deepcopy(obj)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return made


def named(obj: Object, number: int) -> Object:
    metadata = {"creationTimestamp": "2026-03-01T12:00:00Z", "generation": 1} | (obj.get("metadata") or {})
    metadata |= {"name": f"{metadata['name']}-{number}", "uid": f"uid-{number}", "resourceVersion": str(number + 1)}
    return obj | {"metadata": metadata}


def at_version(obj: Object, number: int) -> Object:
    """The same object after so many writes."""
    version = int(obj["metadata"]["resourceVersion"]) + 10_000 * number
    return obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version)}}


def node_of(obj: Object) -> Any:
    """``spec.nodeName`` of a Pod."""
    return spec.get("nodeName") if isinstance(spec := obj.get("spec"), dict) else None


def hostile(kind: str, obj: Object, count: int) -> Iterator[Object]:
    """The object with each of its members replaced, by so many of the hostile values in turn.

    Members of Kubernetes' own kinds keep their types, which no API server changes.
    """
    values = itertools.cycle(HOSTILE)
    for path in paths(obj):
        before = functools.reduce(operator.getitem, path, obj)
        fitting = values if kind.endswith("concerto.dev") else (v for v in HOSTILE if type(v) is type(before))
        for value in itertools.islice(fitting, count):
            yield replaced(obj, path, value)


class Server:
    """Takes every write, and remembers which pods were bound."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.bound = asyncio.Event()
        self.phases: dict[str, str] = {}  # of reservations, by name

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        if request.path.endswith("/pods/good/binding"):
            self.bound.set()
        if request.method == "POST":
            body.setdefault("metadata", {}).update(uid="made", resourceVersion="1")
            return web.json_response(body, status=201)
        if "phase" in (body.get("status") or {}):
            self.phases[request.path.split("/")[-2]] = body["status"]["phase"]
        found = next((obj for kind, obj in GOOD.items() if f"/{kind.partition('.')[0]}/good" in request.path), None)
        if found is None:
            found = next((self.objects[part] for part in request.path.split("/") if part in self.objects), {})
        return web.json_response(found | {"status": body["status"]} if "status" in body else found)


@asynccontextmanager
async def planned(server: Server, clock: Callable[[], float]) -> AsyncIterator[Plan]:
    """The parts of an operator that runs all controllers; nothing runs yet."""
    async with faulty([server]) as opened:
        cluster = ClusterState()
        replica = Replica(
            "host_me", opened.session, cluster, Metrics(), Health(), Supervisor(lambda: None), clock,
            KindsTrace(cluster, clock), (), on_lost=lambda: None,
        )  # fmt: skip
        controllers = frozenset({"scheduling", "pinning", "autoscaling"})
        settings = OperatorSettings(
            "concerto-system", controllers, None, LeaseSettings(), PredictiveHPASettings(), True
        )
        made, election = plan_parts(replica, settings)
        election.remaining_seconds = lambda: 10.0  # type: ignore[method-assign]
        yield made


def put(plan: Plan, kind: str, obj: Object) -> None:
    """The API server shows the object."""
    reflector, metadata = plan.kinds[kind].reflector, obj["metadata"]
    reflector._put((metadata.get("namespace", ""), metadata["name"]), reflector._trimmed(copy.deepcopy(obj)))


def remove(plan: Plan, kind: str, obj: Object) -> None:
    metadata = obj["metadata"]
    plan.kinds[kind].reflector._put((metadata.get("namespace", ""), metadata["name"]), None)


SAMPLES = list(samples())


@pytest.mark.parametrize(
    ("kind", "sample"), [pytest.param(k, o, id=f"{k}-{o['metadata']['name']}") for k, o in SAMPLES]
)
async def test_an_object_that_was_hostile_for_a_while_leaves_nothing_behind(kind: str, sample: Object, caplog):
    async with planned(Server(), lambda: NOW) as tried, planned(Server(), lambda: NOW) as spared:
        goods = []
        for number, bad in enumerate(hostile(kind, sample, 3)):
            goods.append(good := named(sample, number))
            earlier = named(bad, number)
            earlier["metadata"]["uid"] = f"earlier-{number}"
            put(tried, kind, earlier)
            remove(tried, kind, earlier)
            put(tried, kind, at_version(good, 1))
            if node_of(bad) == node_of(good):  # which never changes once it is set
                put(tried, kind, at_version(named(bad, number), 2))
                put(tried, kind, at_version(good, 3))
            put(spared, kind, at_version(good, 3 if node_of(bad) == node_of(good) else 1))
        assert tried.kinds[kind].store == spared.kinds[kind].store
        assert state_of(tried.replica.cluster) == state_of(spared.replica.cluster)
        for good in goods:
            remove(tried, kind, good)
            remove(spared, kind, good)
        assert not tried.kinds[kind].store
        assert state_of(tried.replica.cluster) == state_of(spared.replica.cluster)
    traces = [record.exc_info[2] for record in caplog.records if record.exc_info]
    assert [trace for trace in traces if trace.tb_frame.f_code is FollowedKind._give.__code__] == []


GOOD = {
    "nodes": {
        "metadata": {"name": "good", "uid": "good-node", "resourceVersion": "1"},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    },
    "podreservations.concerto.dev": {
        "metadata": {
            "namespace": "good", "name": "good", "uid": "good-reservation", "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2020-01-01T00:00:00Z",
        },
        "spec": {"podSelector": {"matchLabels": {"app": "good"}}, "count": 2},
    },
    "schedulingprofiles.concerto.dev": {
        "metadata": {
            "name": "good", "uid": "good-profile", "resourceVersion": "1", "creationTimestamp": "2020-01-01T00:00:00Z",
        },
        "spec": {"schedulerName": "good"},
    },
    "pods": {
        "metadata": {
            "namespace": "good", "name": "good", "uid": "good-pod", "resourceVersion": "1",
            "creationTimestamp": "2026-03-01T12:00:00Z",
        },
        "spec": {"schedulerName": "good", "nodeName": "", "containers": [{"name": "c"}]},
        "status": {"phase": "Pending"},
    },
}  # fmt: skip


async def test_a_leader_starts_and_places_pods_among_hostile_objects_of_every_kind(monkeypatch, caplog):
    """What runs while it leads looks at all of them, ends over none, and serves the others."""
    caplog.set_level(logging.CRITICAL)
    for module, name in (
        (reservations, "_PASS_SECONDS"),
        (profiles, "_LOOK_EVERY_SECONDS"),
        (kinds_feed, "INTERVAL_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.02)
    server = Server()
    async with planned(server, SteadyClock()) as plan:
        for kind, sample in SAMPLES:
            for number, obj in enumerate(hostile(kind, sample, 1)):
                bad = named(obj, number)
                if kind == "pods":
                    bad["metadata"]["namespace"] = f"hostile-{number % 5}"
                server.objects[bad["metadata"]["name"]] = bad
                put(plan, kind, bad)
        for kind, obj in GOOD.items():
            put(plan, kind, obj)
        for reconciler in plan.reconcilers:
            reconciler.start()
        for load in plan.loads:
            load()
        runs = [*plan.essential, *(run for _, run in plan.leading)]
        tasks = [asyncio.ensure_future(run()) for run in runs]
        bound = asyncio.ensure_future(server.bound.wait())
        async with asyncio.timeout(60):
            await asyncio.wait([*tasks, bound], return_when=asyncio.FIRST_COMPLETED)
        await eventually(lambda: "good" in server.phases or any(task.done() for task in tasks))
        ended = {run.__qualname__: task.exception() for run, task in zip(runs, tasks, strict=True) if task.done()}
        for task in (*tasks, bound):
            task.cancel()
        await asyncio.gather(*tasks, bound, return_exceptions=True)
    assert ended == {}
    assert server.bound.is_set()
    assert "good" in server.phases, "room was looked for although other reservations can't be read"
