"""The pods of the run at scale. As a program: one of several connections that create pods which are bound already.

`python -m e2e.bench.scale_pods --kubeconfig FILE --nodes 500 --first 0 --step 2 --count 7500 (create|flap)`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

from concerto.api.timestamps import format_timestamp
from concerto.kube import ClusterConfig, Conflict, NotFound, OutcomeUnknown, Session
from concerto.kube.request_bodies import STRATEGIC_PATCH, Patch
from concerto.kube.resources import PODS, REPLICA_SETS

Object = dict[str, Any]

TEAMS = 20
SERVICES = 300
"""Workloads that the existing pods belong to: a few of each team."""
IN_FLIGHT = 24
# It waits for ever: nodes have pods to count, and nothing to compute
_IDLE = {"hollow.concerto.dev/wait-seconds": "10000000", "hollow.concerto.dev/core-seconds": "0.01"}
_HASH = "7d9f8b6c5d"


def team(number: int) -> str:
    """The namespace of a service."""
    return f"team-{number % TEAMS:02d}"


def service(number: int) -> str:
    """The name of a Deployment."""
    return f"service-{number:03d}"


def replica_set(number: int) -> Object:
    """The ReplicaSet of a service; nothing in this control plane acts on it."""
    labels = {"app": service(number), "pod-template-hash": _HASH}
    container = {"name": "app", "image": f"registry.invalid/{service(number)}:v1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"namespace": team(number), "name": f"{service(number)}-{_HASH}", "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def pod(namespace: str, name: str, owner: Object, *, node: str = "") -> Object:
    """A pod of a service as most pods are: an owner, an environment, requests, and a token that is mounted.

    Args:
        namespace: where.
        name: of the pod.
        owner: kind, name and uid of what controls it.
        node: it is bound to it from the start; empty: Concerto is to place it.
    """
    app = owner["name"].removesuffix(f"-{_HASH}")
    spec: Object = {
        "schedulerName": "concerto",
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "app",
                "image": f"registry.invalid/{app}:v1",
                "ports": [{"containerPort": 8080}],
                "env": [{"name": f"SETTING_{number}", "value": f"value-of-{app}-{number}"} for number in range(8)],
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
            }
        ],
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {"app": app, "app.kubernetes.io/part-of": namespace, "pod-template-hash": _HASH},
            "annotations": _IDLE,
            "ownerReferences": [{"controller": True, "blockOwnerDeletion": True, **owner}],
        },
        "spec": spec,
    }


def existing_pod(number: int, nodes: int, owners: dict[str, Object]) -> Object:
    """One of the pods that run already; nodes and services have equally many."""
    of = number % SERVICES
    name = f"{service(of)}-{_HASH}"
    return pod(team(of), f"{name}-{number:06d}", owners[name], node=f"hollow-{number % nodes:04d}")


def job_pod(namespace: str, number: int) -> Object:
    """One of the pods to place: ten of each Job, so that what is known of a kind can't be known of the next."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": f"{namespace}-{number // 10:05d}"}
    return pod(namespace, f"{namespace}-{number:06d}", {**job, "uid": f"{namespace}-{number // 10:05d}"})


async def at_a_time(count: int, what: Iterable[Awaitable[object]]) -> None:
    """Await all of these, so many at a time."""
    waiting = iter(what)

    async def work() -> None:
        for each in waiting:
            await each

    await asyncio.gather(*(work() for _ in range(count)))


async def owners_of(session: Session) -> dict[str, Object]:
    """Owner references to the services' ReplicaSets, by name."""
    listed = await session.list(REPLICA_SETS.path())
    return {
        item["metadata"]["name"]: {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": item["metadata"]["name"],
            "uid": item["metadata"]["uid"],
        }
        for item in listed["items"]
    }


async def _run(arguments: argparse.Namespace) -> None:
    numbers = range(arguments.first, arguments.first + arguments.step * arguments.count, arguments.step)
    async with await Session.open(ClusterConfig.from_kubeconfig(arguments.kubeconfig)) as session:
        owners = await owners_of(session)
        done = itertools.count(1)

        async def create(number: int) -> None:
            body = existing_pod(number, arguments.nodes, owners)
            for _ in range(3):  # a server that has so much to do may not answer in time
                with contextlib.suppress(OutcomeUnknown, Conflict):
                    await session.create(PODS.path(body["metadata"]["namespace"]), body, timeout_seconds=60)
                    break
            if next(done) % 1000 == 0:
                print(".", flush=True)

        async def flap(number: int) -> None:
            body = existing_pod(number, arguments.nodes, owners)
            path = PODS.path(body["metadata"]["namespace"], body["metadata"]["name"], "status")
            ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_timestamp(time.time())}
            patch = Patch(STRATEGIC_PATCH, {"status": {"conditions": [ready]}})
            try:
                await session.request("PATCH", path, body=patch, timeout_seconds=60)
            except NotFound:
                print(f"{path} is not there", file=sys.stderr)

        what = {"create": create, "flap": flap}[arguments.what]
        await at_a_time(IN_FLIGHT, (what(number) for number in numbers))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.scale_pods", description=__doc__)
    parser.add_argument("what", choices=["create", "flap"], help="make the pods, or write that they are not ready")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    for name in ("nodes", "first", "step", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
