"""What a replica, leader or standby, holds of pods that came, ran and went."""

from __future__ import annotations

import itertools

from aiohttp import web

from concerto.scheduling.state.cluster import ClusterState
from support.faulty_server import faulty
from support.items_held import items_held
from support.scheduler_builders import Scheduling, scheduling
from support.scheduling_builders import node, raw_pod

PODS = 200
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


async def answers(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


def come_and_go(made: Scheduling, first: int) -> None:
    """Pods that have nothing in common, with whatever is kept by name, label, image, port, claim or owner."""
    for number in range(first, first + PODS):
        name = f"p{number}"
        term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": name}}, "namespaceSelector": {}}
        container = {"name": "c", "image": name, "ports": [{"hostPort": number + 1, "containerPort": 1}]}
        container["resources"] = {"requests": {"cpu": f"{number + 1}m", f"example.com/{name}": "1"}}
        asked = {
            "namespace": name,
            "owner": "ReplicaSet",
            "affinity": {"podAntiAffinity": {REQUIRED: [term]}},
            "containers": [container],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
        }
        steps = [{}, {"nodeName": "n"}, {"nodeName": "n", "phase": "Running"}, {"nodeName": "n", "phase": "Succeeded"}]
        seen = [None, *(raw_pod(name, labels={"app": name}, **asked, **step) for step in steps), None]
        for before, after in itertools.pairwise(seen):
            made.informers.pods.on_change(before, after)


async def test_all_that_is_kept_of_pods_that_went_is_that_they_ended():
    async with faulty([answers]) as server:
        made = scheduling(server.session)
        cluster: ClusterState = made.parts.cluster
        cluster.set_node(node("n"))
        held = []
        for turn in range(3):
            come_and_go(made, turn * PODS)
            held.append(items_held(made.parts, made.informers))
    # Their UIDs, of the last 65,536 that ended: for agents that still list them, and for what pods of their kind took
    assert held[2] - held[1] <= 2 * PODS
