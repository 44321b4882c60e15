"""The session against a real API server: what it writes, what it raises, whom it is."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid

import pytest

from concerto.kube import (
    ClusterConfig,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Session,
    SessionSettings,
    Unauthorized,
    Unreachable,
    apply_status,
)
from concerto.kube.apply import Target
from concerto.kube.resources import NAMESPACES, NODES, PODS, Resource
from e2e.testbed.clusters import Cluster, LocalControlPlane

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)


def config_map(name: str, **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "localhost/none:1"}], "schedulerName": "nobody"},
    }


def binding(pod: dict, node: str, uid: str | None = None) -> dict:
    metadata = {"name": pod["metadata"]["name"], "uid": uid or pod["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": node}}


async def test_an_object_goes_through_its_life(session: Session, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace, "one")
    created = await session.create(CONFIG_MAPS.path(namespace), config_map("one", a="1"))
    assert (await session.get(path))["metadata"]["uid"] == created["metadata"]["uid"]

    patched = await session.patch(path, {"data": {"b": "2"}})
    assert patched["data"] == {"a": "1", "b": "2"}

    with pytest.raises(Conflict):  # created's resourceVersion is old by now
        await session.replace(path, {**created, "data": {}})
    replaced = await session.replace(path, {**patched, "data": {"c": "3"}})
    assert replaced["data"] == {"c": "3"}

    with pytest.raises(Conflict):
        await session.delete(path, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        await session.delete(path, resource_version=created["metadata"]["resourceVersion"])
    await session.delete(path, uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await session.get(path)


async def test_a_long_list_is_the_same_whatever_the_size_of_its_pages(admin: ClusterConfig, namespace: str) -> None:
    names = {f"item-{i:04}" for i in range(1200)}
    async with await Session.open(admin) as session:
        slots = asyncio.Semaphore(32)

        async def create(name: str) -> None:
            async with slots:
                await session.create(CONFIG_MAPS.path(namespace), config_map(name))

        await asyncio.gather(*map(create, names))
        pages = [
            page
            async for page in session.pages(
                CONFIG_MAPS.path(namespace), field_selector="metadata.name!=kube-root-ca.crt"
            )
        ]
        assert [len(page["items"]) for page in pages] == [500, 500, 200]
        assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1

    async with await Session.open(admin, SessionSettings(page_size=7)) as session:
        found = await session.list(CONFIG_MAPS.path(namespace), field_selector="metadata.name!=kube-root-ca.crt")
        assert {item["metadata"]["name"] for item in found["items"]} == names


async def test_refusals_carry_the_servers_own_words(session: Session, namespace: str) -> None:
    cases = {
        "a name that cannot be": (PODS.path(namespace), pod("Not A Name"), Invalid, "metadata.name"),
        "a kind that nobody serves": ("/apis/concerto.dev/v9/nothings", {}, NotFound, "not found"),
        "a namespace that is not there": (
            CONFIG_MAPS.path("no-such-place"),
            config_map("a"),
            NotFound,
            "no-such-place",
        ),
        "a name that is taken": (NAMESPACES.path(), {"metadata": {"name": namespace}}, Conflict, "already exists"),
    }
    for sentence, (path, body, error, words) in cases.items():
        with pytest.raises(error) as caught:
            await session.create(path, body)
        assert words in caught.value.message, sentence


async def test_a_binding_holds_only_for_the_pod_with_its_uid(session: Session, namespace: str) -> None:
    made = await session.create(PODS.path(namespace), pod("one"))
    path = PODS.path(namespace, "one", "binding")
    with pytest.raises(Conflict):
        await session.create(path, binding(made, "node-a", uid="00000000-0000-0000-0000-000000000000"))
    assert "nodeName" not in (await session.get(PODS.path(namespace, "one")))["spec"]

    await session.create(path, binding(made, "node-a"))
    with pytest.raises(Conflict):  # a second one, for another node
        await session.create(path, binding(made, "node-b"))
    assert (await session.get(PODS.path(namespace, "one")))["spec"]["nodeName"] == "node-a"


async def test_two_managers_share_a_status(session: Session, namespace: str) -> None:
    labels = {"app": "shared"}
    container = {"name": "main", "image": "localhost/none:1"}
    await session.create(
        DEPLOYMENTS.path(namespace),
        {
            "metadata": {"name": "shared"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
    )

    async def say(manager: str, kind: str, status: str, *, force: bool = False) -> dict:
        said = {"conditions": [{"type": kind, "status": status, "reason": "Said", "message": manager}]}
        target = Target(DEPLOYMENTS, "shared", namespace)
        return await apply_status(session, target, said, field_manager=manager, force=force)

    await say("left", "Left", "True")
    both = await say("right", "Right", "False")
    assert {"Left", "Right"} <= {c["type"] for c in both["status"]["conditions"]}
    with pytest.raises(Conflict) as caught:
        await say("right", "Left", "False")
    assert "left" in caught.value.message
    # "right" no longer applies Right: the condition goes with its last owner
    taken = {c["type"]: c["status"] for c in (await say("right", "Left", "False", force=True))["status"]["conditions"]}
    assert taken["Left"] == "False"
    assert "Right" not in taken


async def test_a_status_is_not_said_about_another_object_of_the_same_name(session: Session) -> None:
    name = f"node-{uuid.uuid4().hex[:8]}"
    await session.create(NODES.path(), {"metadata": {"name": name}})
    try:
        with pytest.raises(Invalid):
            other = Target(NODES, name, uid="00000000-0000-0000-0000-000000000000")
            await apply_status(session, other, {"phase": "Running"}, field_manager="test")
    finally:
        await session.delete(NODES.path(name=name))
    with pytest.raises(NotFound):
        await apply_status(session, Target(NODES, name), {"phase": "Running"}, field_manager="test")


async def test_a_service_account_is_no_administrator(cluster: Cluster, namespace: str) -> None:
    config = ClusterConfig.from_kubeconfig(cluster.token_kubeconfig(namespace, "default"))
    async with await Session.open(config) as session:
        who = await session.create(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        )
        assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"
        with pytest.raises(Forbidden):
            await session.list(PODS.path(namespace))


async def test_a_token_that_is_refused_is_read_again(cluster: Cluster, namespace: str) -> None:
    kubeconfig = cluster.token_kubeconfig(namespace, "default")
    token_file = kubeconfig.with_name(f"{kubeconfig.name}.token")
    good = token_file.read_text()
    token_file.write_text("not a token")
    version = "/version"
    watch = {"watch": "true", "timeoutSeconds": "1"}
    async with await Session.open(ClusterConfig.from_kubeconfig(kubeconfig)) as session:
        with pytest.raises(Unauthorized):
            await session.get(version)
        token_file.write_text(good)
        assert (await session.get(version))["major"] == "1"

        token_file.write_text("not a token")
        assert (await session.get(version))["major"] == "1"  # the good one is a minute younger than that

    token_file.write_text("not a token")
    async with await Session.open(ClusterConfig.from_kubeconfig(kubeconfig)) as session:
        with pytest.raises(Unauthorized):
            async with session.stream(PODS.path(namespace), params=watch, inactivity_seconds=5):
                pass
        token_file.write_text(good)
        # whom the server knows by now, and does not let: the token was read again
        with pytest.raises(Forbidden):
            async with session.stream(PODS.path(namespace), params=watch, inactivity_seconds=5):
                pass


async def test_a_server_with_another_certificate_is_not_spoken_to(admin: ClusterConfig) -> None:
    stranger = dataclasses.replace(admin, certificate_authority_data=None, certificate_authority=None)
    async with await Session.open(stranger, SessionSettings(attempts=1)) as session:
        with pytest.raises(Unreachable) as caught:
            await session.get("/version")
    assert "certificate" in str(caught.value).lower()


async def test_an_outage_is_waited_out(control_plane: LocalControlPlane, admin: ClusterConfig, namespace: str) -> None:
    patient = SessionSettings(attempts=1000, max_backoff_seconds=0.5)
    async with await Session.open(admin, patient) as session:
        await session.create(CONFIG_MAPS.path(namespace), config_map("before"))
        await asyncio.to_thread(control_plane.stop_apiserver)
        # never sent, so even a create may be said again
        waiting = asyncio.create_task(session.create(CONFIG_MAPS.path(namespace), config_map("during")))
        await asyncio.to_thread(control_plane.start_apiserver)
        assert (await waiting)["metadata"]["name"] == "during"
        assert (await session.get(CONFIG_MAPS.path(namespace, "before")))["metadata"]["name"] == "before"
