"""Random clusters by the rules of the API alone, and pods that wait there while the clusters change.

`e2e/suites/test_scheduling_differential.py` compares more of them, and with kube-scheduler. Scenarios with claims need
controllers, and are left out here.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from e2e.testbed.placement import ours
from e2e.testbed.placement.changes import Change as ChangeOfObject
from e2e.testbed.placement.changes import random_change
from e2e.testbed.placement.preemption_scenarios import PRIORITIES
from e2e.testbed.placement.random_objects import NAMESPACES, Object
from e2e.testbed.placement.rules import World
from e2e.testbed.placement.scenario import Scenario
from e2e.testbed.placement.scenarios import scenario

from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.scheduling.cycle import schedule
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState

SCENARIOS = [*range(60), 412]
CHANGES = 25
NOW = 1.8e9


def test_nodes_are_feasible_by_the_rules():
    feasible = infeasible = 0
    for found in without_claims():
        world, followed = world_of(found), ours.Followed()
        for body in found.pods:
            for change in found.changes.get(body["metadata"]["name"], ()):
                carry_out(world, change)
            pod = made(body, found)
            broken = world.broken(pod)
            answer, rows = ours.ask(followed.as_in(world), pod)
            if answer.waits:
                continue
            assert rows == {node for node, rules in broken.items() if not rules}, (body, broken)
            feasible, infeasible = feasible + bool(rows), infeasible + (not rows)
            if answer.node:
                world.pods.append(on_node(pod, answer.node))
    assert feasible > 20 and infeasible > 20


def test_a_pod_that_waits_is_looked_at_again_after_each_change_by_which_it_fits():
    found_nodes = 0
    for found in without_claims():
        rng = random.Random(f"requeue-{found.name}")
        world, followed = world_of(found), ours.Followed()
        cluster = followed.as_in(world)
        pods = [made(body, found) for body in found.pods]
        waiting = [(pod, waits_for) for pod in pods if (waits_for := requeue_on(cluster, pod)) is not None]
        for _ in range(CHANGES):
            change = any_change(rng, world, found)
            carry_out(world, change)
            followed.as_in(world)
            before, waiting = waiting, []
            for pod, waits_for in before:
                now = requeue_on(cluster, pod)
                if now is None:
                    assert followed.changes & waits_for, f"{change} helps, and {waits_for} was waited for: {pod}"
                    found_nodes += 1
                else:
                    waiting.append((pod, now if followed.changes & waits_for else waits_for))
    assert found_nodes > 10


# --- the worlds


def without_claims() -> Iterator[Scenario]:
    return (found for number in SCENARIOS if not (found := scenario(number)).storage)


def world_of(found: Scenario) -> World:
    running = [made(pod, found) for pod in found.running]
    running = [{**pod, "status": found.statuses.get(pod["metadata"]["name"], {})} for pod in running]
    for pod in running:
        if pod["metadata"]["name"] in found.deleted:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    nodes = {node["metadata"]["name"]: made(node, found) for node in found.nodes}
    nominated = [made(pod, found) for pod in found.nominated]
    return World(nodes, running, NAMESPACES, nominated=nominated, services=found.services, workloads=found.workloads)


def any_change(rng: random.Random, world: World, found: Scenario) -> ChangeOfObject:
    """A change of an object that is there; nodes that are gone come back."""
    gone = [node for node in found.nodes if node["metadata"]["name"] not in world.nodes]
    if gone and rng.random() < 0.7:
        name = gone[0]["metadata"]["name"]
        world.put("Node", name, made(gone[0], found))
        return ChangeOfObject("Node", name, {})
    return random_change(rng, sorted(world.nodes), world.pods) if world.nodes else ChangeOfObject("Pod", "", {})


def carry_out(world: World, change: ChangeOfObject) -> None:
    before = world.nodes.get(change.name) if change.kind == "Node" else world.pod(change.name)
    if before is not None:
        world.put(change.kind, change.name, None if change.patch is None else merged(before, change.patch))


def merged(obj: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch."""
    found = dict(obj) if isinstance(obj, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value) if isinstance(value, Mapping) else value
    return found


def on_node(pod: Object, node: str) -> Object:
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}


def requeue_on(cluster: ClusterState, raw: Object) -> Change | None:
    """What a pod waits for that finds no node; None for one that finds a node, or is not looked at."""
    pod = PodView.from_raw(trim_pod(raw))
    result = schedule(cluster, [pod], ours.PROFILES, now=NOW, generator=np.random.default_rng(0))
    cluster.forget(pod.uid)
    return result.unschedulable[0].diagnosis.requeue_on if result.unschedulable else None


# --- what the API server makes of an object


def made(body: Object, found: Scenario) -> dict[str, Any]:
    """The object as the API server would have made it."""
    obj: dict[str, Any] = {"status": {}, **copy.deepcopy(body)}
    metadata = obj["metadata"]
    metadata |= {"uid": metadata["name"], "creationTimestamp": "2026-01-01T00:00:00Z"}
    if body["kind"] == "Pod":
        for fill in DEFAULTS:
            fill(obj)
        if node := found.nominations.get(metadata["name"]):
            obj["status"]["nominatedNodeName"] = node
    return obj


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]


def request_what_is_limited(pod: Object) -> None:
    for owner in (*containers(pod), pod["spec"]):
        resources = owner.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = limits | resources.get("requests", {})


def make_ports_those_of_the_node(pod: Object) -> None:
    for container in containers(pod) if pod["spec"].get("hostNetwork") else ():
        for port in container.get("ports", ()):
            port["hostPort"] = port["containerPort"]


def put_label_keys_into_selectors(pod: Object) -> None:
    labels = pod["metadata"]["labels"]
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = pod["spec"].get("affinity", {}).get(kind, {})
        soft = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        hard = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ())
        for term in (*hard, *(each["podAffinityTerm"] for each in soft)):
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
                more = [
                    {"key": key, "operator": operator, "values": [labels[key]]}
                    for key in term.get(field, ())
                    if key in labels
                ]
                if more:
                    selector = term["labelSelector"] = copy.deepcopy(term["labelSelector"])
                    selector["matchExpressions"] = [*selector.get("matchExpressions", ()), *more]


def name_pools(pod: Object) -> None:
    for volume in pod["spec"].get("volumes", ()):
        if "rbd" in volume:
            volume["rbd"].setdefault("pool", "rbd")


def set_priority(pod: Object) -> None:
    pod["spec"]["priority"] = PRIORITIES.get(pod["spec"].get("priorityClassName", ""), 0)


DEFAULTS: tuple[Callable[[Object], None], ...] = (
    request_what_is_limited, make_ports_those_of_the_node, put_label_keys_into_selectors, name_pools, set_priority,
)  # fmt: skip
