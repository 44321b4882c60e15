"""Placements of a cycle that make nodes feasible, or better, for pods that come later in it."""

import numpy as np
import pytest

from concerto.scheduling.cycle import schedule
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NAMES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
X = {"labels": {"app": "x"}}


def cycle(*heads):
    nodes = [node(name, labels={"zone": zone}) for name, zone in NAMES.items()]
    cluster = cluster_state(nodes, (), [capacity(name, 50.0) for name in NAMES])
    result = schedule(cluster, heads, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    return {d.pod.name: d.assignment.node for d in result.decisions}, [u.pod.name for u in result.unschedulable]


def term(app):
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}


def wants(app):
    return {"affinity": {"podAffinity": {REQUIRED: [term(app)]}}}


def spread(when, skew=1):
    return X | {"topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": skew, "whenUnsatisfiable": when,
         "labelSelector": {"matchLabels": {"app": "x"}}}]}  # fmt: skip


def test_a_pod_that_found_no_node_may_find_one_later_in_the_cycle():
    placed, failed = cycle(pod("early", **wants("x")), pod("x", **X), pod("late", **wants("x")))
    assert failed == ["early"]
    assert NAMES[placed["late"]] == NAMES[placed["x"]]


def test_the_second_of_a_group_goes_to_the_zone_of_the_first():
    placed, failed = cycle(*(pod(f"p{i}", **X | wants("x")) for i in range(6)))
    assert not failed
    assert len({NAMES[name] for name in placed.values()}) == 1


def test_a_placement_in_the_emptiest_zone_makes_the_others_feasible_again():
    placed, failed = cycle(*(pod(f"p{i}", **spread("DoNotSchedule")) for i in range(8)))
    assert not failed
    zones = [NAMES[placed[f"p{i}"]] for i in range(8)]
    assert all({zones[i], zones[i + 1]} == {"a", "b"} for i in range(0, 8, 2))


SOFT = {
    "preferred anti-affinity": X | {"affinity": {"podAntiAffinity": {PREFERRED: [
        {"weight": 100, "podAffinityTerm": term("x")}]}}},
    "spread that need not hold": spread("ScheduleAnyway"),
}  # fmt: skip


@pytest.mark.parametrize("spec", SOFT.values(), ids=SOFT)
def test_replicas_of_one_cycle_are_spread_by_wishes_under_a_profile_without_scores(spec):
    placed, _ = cycle(*(pod(f"p{i}", **spec) for i in range(6)))
    zones = [NAMES[name] for name in placed.values()]
    assert zones.count("a") == zones.count("b") == 3


def test_a_pod_with_anti_affinity_keeps_plain_pods_of_the_same_cycle_away():
    refusing = pod("alone", affinity={"podAntiAffinity": {REQUIRED: [term("x")]}})
    placed, failed = cycle(pod("x0", **X), refusing, *(pod(f"x{i}", **X) for i in range(1, 6)))
    assert not failed
    assert NAMES[placed["alone"]] != NAMES[placed["x0"]]
    assert {NAMES[placed[f"x{i}"]] for i in range(6)} == {NAMES[placed["x0"]]}
