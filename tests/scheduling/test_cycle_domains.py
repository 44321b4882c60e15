"""Placements of a cycle that make nodes feasible, or better, for pods that come later in it."""

from dataclasses import replace

import numpy as np
import pytest

from concerto.scheduling.cycle import schedule
from concerto.scheduling.framework import FilterDefaults, Reach, ScoreDefaults
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NAMES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
X = {"labels": {"app": "x"}}


def cycle(*heads, by=None):
    nodes = [node(name, labels={"zone": zone}) for name, zone in NAMES.items()]
    cluster = cluster_state(nodes, (), [capacity(name, 50.0) for name in NAMES])
    result = schedule(cluster, heads, {"concerto": by or profile()}, now=NOW, generator=np.random.default_rng(0))
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


class Asked(FilterDefaults):
    """Lets every node pass, and keeps how many it was asked about each time."""

    name = "Asked"

    def __init__(self):
        self.rows = []

    def check(self, state, rows):
        codes = np.zeros_like(state.cluster.nodes.exists[: state.cluster.size][rows], dtype=np.int8)
        self.rows.append(len(codes))
        return codes


# The first pod with an affinity term makes labels matter that did not: its like are evaluated once more
LOOKS_AT_ALL = {"spread": (spread("DoNotSchedule"), 1), "affinity": (X | wants("x"), 2)}


@pytest.mark.parametrize(("spec", "looks"), LOOKS_AT_ALL.values(), ids=LOOKS_AT_ALL)
def test_filters_that_look_at_single_nodes_are_asked_only_about_the_node_that_a_pod_has_come_to(spec, looks):
    asked = Asked()
    by = profile()
    _, failed = cycle(*(pod(f"p{i}", **spec) for i in range(6)), by=replace(by, filters=(*by.filters, asked)))
    assert not failed
    assert asked.rows == looks * [4] + (6 - looks) * [1]


class Fixed(ScoreDefaults):
    """A score that no placement changes."""

    name = "Fixed"
    reach = Reach.NOWHERE
    needs_normalising = True

    def __init__(self):
        self.normalised = 0

    def score(self, state, rows):
        return np.arange(4.0)[rows]

    def normalise(self, state, scores):
        self.normalised += 1
        return scores * 100.0 / np.nanmax(scores)


def test_a_score_is_normalised_again_only_when_it_or_the_feasible_nodes_have_changed():
    fixed = Fixed()
    by = replace(profile(), scores=((fixed, 1),))
    cycle(*(pod(f"p{i}") for i in range(6)), by=by)
    assert fixed.normalised == 1
    placed, _ = cycle(*(pod(f"p{i}", requests={"cpu": "3"}) for i in range(3)), by=by)
    assert placed == {"p0": "b2", "p1": "b1", "p2": "a2"}, "a node that is full is not the measure of the others"
    assert fixed.normalised == 1 + 3
