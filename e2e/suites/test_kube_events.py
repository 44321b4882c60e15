"""Events as a person sees them with kubectl."""

from __future__ import annotations

import asyncio

from concerto.kube import Object, Session
from concerto.kube.events import EventRecorder, EventSettings
from concerto.kube.resources import PODS
from e2e.testbed.clusters import Cluster
from e2e.testbed.waiting import PATIENCE_SECONDS
from support.event_recorders import running


async def make_pod(session: Session, namespace: str, name: str = "one") -> Object:
    spec = {"containers": [{"name": "main", "image": "localhost/none:1"}], "schedulerName": "nobody"}
    return await session.create(
        PODS.path(namespace), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    )


async def test_a_person_sees_what_was_said_and_how_often(cluster: Cluster, session: Session, namespace: str) -> None:
    pod = await make_pod(session, namespace)
    recorder = EventRecorder(session, "concerto.dev/scheduler", "host-1")
    async with running(recorder):
        for _ in range(5):
            recorder.record(
                pod, type="Warning", reason="FailedScheduling", action="Scheduling",
                note="0/2 nodes are available: 2 node(s) have no capacity left.",
            )  # fmt: skip
        recorder.record(
            pod, reason="Scheduled", note=f"Successfully assigned {namespace}/one to node-a", action="Binding"
        )
        assert await recorder.drain(PATIENCE_SECONDS)
    assert (recorder.written, recorder.dropped) == (2, 0)

    described = await asyncio.to_thread(cluster.kubectl, "describe", "pod", "-n", namespace, "one")
    events = described[described.index("Events:") :]
    assert "(x5 over" in events
    assert "concerto.dev/scheduler" in events
    assert "2 node(s) have no capacity left." in events
    assert f"Successfully assigned {namespace}/one to node-a" in events

    listed = await asyncio.to_thread(cluster.kubectl, "events", "-n", namespace, "--for", "pod/one")
    assert "FailedScheduling" in listed
    assert "Scheduled" in listed


async def test_a_series_that_has_been_written_goes_on_counting(
    cluster: Cluster, session: Session, namespace: str
) -> None:
    pod = await make_pod(session, namespace)
    recorder = EventRecorder(session, "concerto.dev/scheduler", "host-1")
    async with running(recorder):
        for _ in range(4):
            for _ in range(10):
                recorder.record(pod, type="Warning", reason="FailedScheduling", note="no", action="Scheduling")
            assert await recorder.drain(PATIENCE_SECONDS)
    found = await asyncio.to_thread(cluster.get, "events.events.k8s.io", "-n", namespace)
    assert [event["series"]["count"] for event in found["items"]] == [40]


async def test_events_about_nodes_are_found_too(cluster: Cluster, session: Session) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-of-events", "uid": "node-of-events"}}
    recorder = EventRecorder(session, "concerto.dev/agent", "node-of-events")
    async with running(recorder):
        recorder.record(node, reason="Warm", note="three batches folded", action="Measuring")
        assert await recorder.drain(PATIENCE_SECONDS)
    listed = await asyncio.to_thread(cluster.kubectl, "events", "-n", "default", "--for", "node/node-of-events")
    assert "three batches folded" in listed


async def test_three_thousand_events_arrive_each_once(cluster: Cluster, session: Session, namespace: str) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": f"p{i}", "uid": f"u{i}"}}
        for i in range(3000)
    ]
    busy = True
    settings = EventSettings(rate_per_second=5000, busy_rate_per_second=50)
    recorder = EventRecorder(session, "concerto.dev/scheduler", "host-1", settings=settings, busy=lambda: busy)
    async with running(recorder):
        for pod in pods:
            recorder.record(pod, reason="Scheduled", note="done", action="Binding")
        busy = False
        assert await recorder.drain(PATIENCE_SECONDS)
    assert (recorder.written, recorder.dropped) == (3000, 0)
    found = await session.list(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    assert len({event["regarding"]["uid"] for event in found["items"]}) == len(found["items"]) == 3000


async def test_a_namespace_that_goes_takes_its_events_with_it(
    cluster: Cluster, session: Session, namespace: str
) -> None:
    """The API server refuses events of a namespace that is being deleted or gone: none of that is a loss."""
    going, configmaps = f"{namespace}-going", f"/api/v1/namespaces/{namespace}-going/configmaps"
    await session.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": going}})
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/held"]}}
    await session.create(configmaps, held)
    await session.delete(f"/api/v1/namespaces/{going}")
    recorder = EventRecorder(session, "concerto.dev/scheduler", "host-1")
    try:
        async with running(recorder):
            for place in ("no-such-place", going):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": place, "name": "a", "uid": "u"}}
                recorder.record(pod, reason="Scheduled", note="done", action="Binding")
            assert await recorder.drain(PATIENCE_SECONDS)
        assert (recorder.written, recorder.dropped) == (0, 0)
    finally:
        await session.patch(f"{configmaps}/held", {"metadata": {"finalizers": None}})
