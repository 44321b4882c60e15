"""Gangs of random clusters by the rules of the API alone: what is placed is whole, and what fits is placed."""

from __future__ import annotations

from typing import Any

from e2e.testbed.placement import gang_rules, ours
from e2e.testbed.placement.gang_scenarios import GangScenario, gang_scenario
from e2e.testbed.placement.random_objects import NAMESPACES, Object
from e2e.testbed.placement.rules import World

SCENARIOS = range(15)
"""`e2e/suites/test_scheduling_differential.py` compares more of them, and with kube-scheduler."""


def made(body: Object) -> dict[str, Any]:
    """The object as the API server would have made it."""
    metadata = {**body["metadata"], "uid": body["metadata"]["name"], "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"status": {}, **body, "metadata": metadata}


def world_of(scenario: GangScenario) -> World:
    nodes = {node["metadata"]["name"]: made(node) for node in scenario.cluster.nodes}
    return World(nodes, [made(pod) for pod in scenario.cluster.running], NAMESPACES)


def on_node(pod: Object, node: str) -> Object:
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}


def test_gangs_of_random_clusters_are_placed_by_the_rules_where_they_fit_and_as_a_whole_or_not_at_all():
    placed = without = 0
    for number in SCENARIOS:
        scenario = gang_scenario(number)
        world = world_of(scenario)
        for gang in scenario.gangs:
            world.pods = [pod for pod in world.pods if pod["metadata"]["name"] not in gang.gone]
            pods = {pod["metadata"]["name"]: made(pod) for pod in gang.pods}
            decided = ours.ask_gang(world, made(gang.group), [*pods.values()])
            found = [(pods[name], node) for name, node in decided]
            assert gang_rules.faults(world, gang.min_count, found) == [], gang.name
            if found:
                placed += 1
            else:
                without += 1
                assert gang_rules.placement(world, gang.min_count, [*pods.values()]) is None, gang.name
            if gang.early:
                early = [*pods.values()][: gang.early]
                assert ours.ask_gang(world, made(gang.group), early) == []
            world.pods += [on_node(pod, node) for pod, node in found]
    assert placed > 10 and without > 10


def test_a_half_of_a_gang_and_a_node_that_is_full_break_the_rules():
    scenario = gang_scenario(0)
    world = world_of(scenario)
    node = made({**scenario.cluster.nodes[0], "spec": {}})
    node["status"] = {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "10"}}
    world.nodes, world.pods = {"n": {**node, "metadata": {**node["metadata"], "name": "n"}}}, []
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    pods = [made({"metadata": {"namespace": "red", "name": f"p{i}", "labels": {}}, "spec": spec}) for i in range(3)]
    assert gang_rules.faults(world, 2, [(pod, "n") for pod in pods[:2]]) == []
    assert gang_rules.faults(world, 2, [(pods[0], "n")]) == ["half a gang: 1 of 2 pods are placed"]
    (fault,) = gang_rules.faults(world, 3, [(pod, "n") for pod in pods])
    assert fault.startswith("in no order may each pod be placed: p0 on n: ['cpu']")
    found = gang_rules.placement(world, 2, pods)
    assert found is not None and len(found) == 2
    assert gang_rules.placement(world, 3, pods) is None
