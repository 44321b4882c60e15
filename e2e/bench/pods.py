"""Pods for the benchmarks: made as fast as the API server takes them, and removed again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from concerto.kube import Session
from concerto.kube.resources import NAMESPACES, PODS

_CREATIONS_IN_FLIGHT = 16
# Load of a pod on simulated nodes: pi-2000, about 2 s of waiting and 4.1 core-seconds of work in one thread.
# Source: Carico, section 5.2 (docs/references.md).
PI_2000 = {"hollow.concerto.dev/wait-seconds": "2", "hollow.concerto.dev/core-seconds": "4.1"}


def pod(namespace: str, name: str, scheduler: str) -> dict[str, Any]:
    """A pod without requests that any node will do for."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": "bench"}, "annotations": PI_2000},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.invalid/none"}],
        },
    }


async def create_pods(session: Session, namespace: str, scheduler: str, count: int) -> None:
    """Create them as fast as the API server takes them."""
    await create_all(session, (pod(namespace, f"p-{index:05d}", scheduler) for index in range(count)))


async def create_all(session: Session, bodies: Iterable[dict[str, Any]]) -> None:
    """Create these pods as fast as the API server takes them."""
    waiting = iter(bodies)

    async def create() -> None:
        for body in waiting:
            await session.create(PODS.path(body["metadata"]["namespace"]), body)

    await asyncio.gather(*(create() for _ in range(_CREATIONS_IN_FLIGHT)))


async def make_namespace(session: Session, name: str) -> None:
    """Make a namespace for the pods of one measurement."""
    await session.create(NAMESPACES.path(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def wait_for_phase(session: Session, path: str, phase: str, seconds: float, *, pause_seconds: float) -> None:
    """Wait until all pods of a collection are in the phase.

    An API server heeds ``limit`` only without ``resourceVersion=0``: with it, each look would take all that are left.

    Args:
        session: the way to the API server.
        path: of the collection.
        phase: that of the pods' status.
        seconds: how long that may take.
        pause_seconds: between two looks.

    Raises:
        TimeoutError: some are not in time.
    """
    params, began = {"fieldSelector": f"status.phase!={phase}", "limit": "1"}, time.monotonic()
    while (await session.get(path, params=params, timeout_seconds=60))["items"]:
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"pods are left that are not {phase} after {seconds:.0f} s")
        await asyncio.sleep(pause_seconds)


async def remove(session: Session, namespace: str) -> None:
    """Delete the pods and events, and wait until they are gone: the next scheduler finds the same cluster."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    for path in (PODS.path(namespace), f"/api/v1/namespaces/{namespace}/events"):
        await session.request("DELETE", path, body=body, timeout_seconds=120, attempts=3)
    while (await session.get(PODS.path(namespace), params={"limit": "1"}))["items"]:
        await asyncio.sleep(0.5)
    await session.delete(NAMESPACES.path(name=namespace))
