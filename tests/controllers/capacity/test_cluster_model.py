"""The cluster's model from what agents publish, also from what no agent of ours would."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from concerto.api.timestamps import parse_timestamp
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.sums import KindSums
from concerto.controllers.capacity.cluster_model import ClusterModelPublisher, build_cluster_status
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.supervision import keep_running
from concerto.kube import Conflict
from support.crd_schemas import problems
from support.faulty_server import faulty, refuses
from support.step_counts import steps_of

Object = dict[str, Any]


def snapshot(name: str, resources: list[str], sigma: list[float], directions: list[list[float]]) -> dict[str, object]:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SubspaceSnapshot",
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": {},
        "status": {
            "observedAt": "2026-03-01T12:00:00Z",
            "resources": resources,
            "sigma": sigma,
            "directions": directions,
            "batches": 1,
        },
    }


def publisher() -> ClusterModelPublisher:
    return ClusterModelPublisher(None, Metrics(), lambda: 0.0)  # type: ignore[arg-type]


def folded(model: ClusterModelPublisher) -> ClusterModelPublisher:
    for _ in model.fold():
        pass
    return model


def written(model: ClusterModelPublisher) -> dict[str, object]:
    folded(model)
    return build_cluster_status(
        model._model.subspace(), model._resources, observed_at=1.5, batches=1, generation=1, conditions=[]
    )


HONEST = snapshot("n1", ["cpu", "memory"], [0.5, 0.1], [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("resources", "sigma", "directions"),
    [
        ([], [], []),
        (["cpu", "memory"], [], []),
        (["cpu", "memory"], [1e200], [[1.0, 0.0]]),
        (["cpu", "memory"], [0.5], [[1.0]]),
        (["cpu", "cpu"], [0.5], [[1.0, 0.0]]),
        (["cpu", "memory"], ["?"], [[1.0, 0.0]]),
        (["x"], [0.0], [[0.0]]),
    ],
)
@pytest.mark.parametrize("first", ["honest", "odd"])
def test_an_odd_model_neither_ends_nor_spoils_the_merge(resources, sigma, directions, first):
    model = publisher()
    odd = snapshot("odd", resources, sigma, directions)
    for obj in (HONEST, odd) if first == "honest" else (odd, HONEST):
        model.on_snapshot(None, obj)
        folded(model)._model.subspace()
    model.on_snapshot(odd, None)
    model.on_snapshot(HONEST, HONEST)
    assert folded(model)._model.subspace().sigma[0] == pytest.approx(0.5)
    assert np.isfinite(written(model)["sigma"]).all()


def test_more_resources_than_a_status_can_hold_leave_out_the_rare_ones():
    model = publisher()
    model.on_snapshot(None, HONEST)
    for node in ("n2", "n3", "n4"):
        model.on_snapshot(None, snapshot(node, ["memory", "io", "cpu"], [0.5], [[0.6, 0.0, 0.8]]))
    for node in ("odd", "even"):
        model.on_snapshot(None, snapshot(node, [f"gauge{i}" for i in range(8)], [0.5], [[1.0] + [0.0] * 7]))
    status = written(model)
    assert status["resources"][:3] == ["cpu", "memory", "gauge0"]
    assert "io" in status["resources"]
    assert problems({**HONEST, "metadata": {"name": "cluster"}, "status": status}) == []


def test_one_node_that_names_other_resources_each_time_rebuilds_nothing():
    model = publisher()
    for number in range(500):
        model.on_snapshot(None, snapshot(f"n{number}", ["cpu", "memory"], [0.5], [[0.6, 0.8]]))
    folded(model)
    merged = model._model

    def publish() -> None:
        for turn in range(100):
            model.on_snapshot(None, snapshot("hostile", [f"x{turn}", "cpu"], [0.5], [[0.6, 0.8]]))

    assert steps_of(publish) < 100 * 2000
    folded(model)
    assert model._model is merged and model._resources == ("cpu", "memory")


def test_a_resource_that_several_nodes_measure_is_taken_in_and_left_out_again():
    model = publisher()
    for node in ("n1", "n2"):
        model.on_snapshot(None, snapshot(node, ["cpu", "memory", "io"], [0.5], [[0.6, 0.0, 0.8]]))
    assert folded(model)._resources == ("cpu", "memory", "io")
    for node in ("n1", "n2"):
        model.on_snapshot(HONEST, snapshot(node, ["cpu", "memory"], [0.5], [[0.6, 0.8]]))
    assert folded(model)._resources == ("cpu", "memory")


async def test_what_pods_can_be_placed_without_is_started_again():
    runs = []

    async def run() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise IndexError("ours")

    await keep_running("thing", run, pause_seconds=0.001)
    assert len(runs) == 3


def test_what_a_node_measured_that_has_not_reported_since_long_before_this_process_began_is_that_of_one_that_has_gone():
    kinds, now = ClusterKinds(), parse_timestamp("2026-03-01T12:16:00Z")
    model = ClusterModelPublisher(None, Metrics(), lambda: now, kinds=kinds)  # type: ignore[arg-type]
    for name, at in (("n1", "2026-03-01T12:00:00Z"), ("n2", "2026-03-01T12:15:00Z")):
        reported = snapshot(name, ["cpu", "memory"], [0.5], [[0.6, 0.8]])
        reported["status"]["observedAt"] = at  # type: ignore[index]
        model.on_snapshot(None, reported)
        kinds.set_node(name, {"shop/Job/pi@1": KindSums(ended=10.0, work=20.0, held=10.0)}, 4.0)
    assert kinds.table()["shop/Job/pi@1"].ended == 20.0
    folded(model)._drop_stale()
    assert kinds.table()["shop/Job/pi@1"].ended == 10.0


async def test_a_model_that_the_api_server_stores_late_replaces_none_that_was_made_later():
    version, stored, release = 1, list[Object](), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal version
        if request.method == "PATCH":
            body = json.loads(await request.read())
            if body["status"]["nodes"] == 1:
                await release.wait()
            if body.get("metadata", {}).get("resourceVersion", str(version)) != str(version):
                return await refuses(409, "Conflict")(request)
            version += 1
            stored.append(body["status"])
        return web.json_response({"metadata": {"name": "cluster", "uid": "u", "resourceVersion": str(version)}})

    async with faulty([answer]) as server:
        model = ClusterModelPublisher(server.session, Metrics(), lambda: 0.0)
        model.on_snapshot(None, HONEST)
        first = folded(model)._model.subspace()
        late = asyncio.create_task(model._publish(first, {}))
        await server.asked(2)
        model.on_snapshot(None, HONEST | {"metadata": {"name": "n2", "resourceVersion": "1"}})
        await model._publish(folded(model)._model.subspace(), {})
        release.set()
        with pytest.raises(Conflict):
            await late
    assert [status["nodes"] for status in stored] == [2]
