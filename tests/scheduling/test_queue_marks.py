"""Pods that no cycle looks at, because thousands of their like are before them, are noted in parts."""

from __future__ import annotations

from collections import Counter

import pytest

from concerto.scheduling.cycle_result import CycleResult, Unschedulable
from concerto.scheduling.queue import Queue
from concerto.scheduling.queue_marks import BeyondHeads, mark_failures
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import pod

NOW, HEADS, LIMIT = 1000.0, 250, 100
NO_NODE = Diagnosis(1, {"no room": 1}, Change.CAPACITY)


def kind(name, count, **over):
    return [pod(f"{name}-{i:03}", nodeSelector={"of": name}, **over) for i in range(count)]


def noted(queue, result):
    """The kinds of the pods that are noted with a cycle, and how many of each."""
    mark_failures(queue, result, NOW)
    beyond = BeyondHeads(queue)
    beyond.add(result)
    return kinds_of(beyond.take(LIMIT))


def kinds_of(noted):
    return Counter(each.name.rpartition("-")[0] for each, _ in noted)


def queue_of(kinds):
    queue = Queue()
    for each in (each for pods in kinds for each in pods):
        queue.set(each)
    return queue


def test_kinds_of_few_pods_take_no_part_from_one_of_many():
    kinds = [*(kind(f"few-{i}", 1) for i in range(99)), kind("some", HEADS + 3), kind("many", HEADS + 200)]
    result = CycleResult(unschedulable=[Unschedulable(pods[0], NO_NODE) for pods in kinds])
    queue = queue_of(kinds)
    assert noted(queue, result) == {"some": 3, "many": 97}
    assert noted(queue, result) == {"some": 3, "many": 97}


def test_nor_do_those_of_a_gang_and_each_has_its_turn():
    member = {"schedulingGroup": {"podGroupName": "g"}}
    kinds = [*(kind(f"few-{i}", 1, **member) for i in range(50)), kind("many", 200, **member)]
    queue = queue_of(kinds)
    result = CycleResult(
        unschedulable=[Unschedulable(kinds[0][0], NO_NODE)], gangs={("default", "g"): NO_NODE, ("default", "h"): None}
    )
    found = Counter()
    for _ in range(5):
        found += noted(queue, result)
    assert found["many"] >= 200
    assert set(found) == {pods[0].name.rpartition("-")[0] for pods in kinds}


def test_each_kind_has_a_pod_noted_however_many_kinds_there_are():
    kinds = [kind(f"k{i}", HEADS + 1) for i in range(LIMIT + 5)]
    result = CycleResult(unschedulable=[Unschedulable(pods[0], NO_NODE) for pods in kinds])
    assert set(noted(queue_of(kinds), result).values()) == {1}


GANG = {"schedulingGroup": {"podGroupName": "g"}}
CROWDS = {
    "alike": lambda: [kind("many", HEADS + 1000)],
    "of many kinds": lambda: [*(kind(f"k{i}", HEADS + 1) for i in range(LIMIT + 5)), kind("many", HEADS + 700)],
    "of a gang": lambda: [*(kind(f"k{i}", 1, **GANG) for i in range(500)), kind("many", 500, **GANG)],
}


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_all_pods_are_noted_in_the_end_though_no_cycle_looks_at_them_again(crowd):
    kinds = crowd()
    queue = queue_of(kinds)
    is_gang = bool(kinds[0][0].group)
    result = CycleResult(
        unschedulable=[Unschedulable(pods[0], NO_NODE) for pods in kinds],
        gangs={("default", "g"): NO_NODE} if is_gang else {},
    )
    mark_failures(queue, result, NOW)
    beyond, found, most = BeyondHeads(queue), set(), 0
    beyond.add(result)
    while beyond:
        names = [pod.name for pod, _ in beyond.take(LIMIT)]
        most = max(most, len(names))
        found.update(names)
    assert found == {pod.name for pods in kinds for pod in (pods if is_gang else pods[HEADS:])}
    assert most <= max(LIMIT, len(kinds))


def test_pods_of_which_some_have_a_node_meanwhile_are_not_noted():
    (pods,) = queue_of_one = [kind("many", HEADS + 200)]
    queue = queue_of(queue_of_one)
    beyond = BeyondHeads(queue)
    beyond.add(CycleResult(unschedulable=[Unschedulable(pods[0], NO_NODE)]))
    queue.take(pods[0].uid)
    assert not list(beyond.take(LIMIT))
    assert not beyond
