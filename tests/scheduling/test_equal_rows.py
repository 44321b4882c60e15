"""Alike pods take equally good nodes without another look at all of them, and get what another look would give."""

import numpy as np
import pytest

from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling import evaluation
from concerto.scheduling.cycle import schedule
from concerto.scheduling.equal_rows import EqualRows
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.profile import Profile
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod

HOST = "kubernetes.io/hostname"
REFUSES_B = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "b"}}}
        ]
    }
}
SPREADS = [
    {
        "topologyKey": "zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
]


def cluster_of(capacities, **over):
    names = [f"n{i}" for i in range(len(capacities))]
    nodes = [node(name, labels={"zone": "ab"[i % 2]}, **over) for i, name in enumerate(names)]
    statuses = [capacity(name, value) for name, value in zip(names, capacities) if value is not None]
    return cluster_state(nodes, [], statuses)


def nodes_of(make, pods, tie_breaking="Random"):
    profiles = {"concerto": Profile.build(ProfileSettings("concerto", tie_breaking=tie_breaking))}
    result = schedule(make(), pods, profiles, now=NOW, generator=np.random.default_rng(3))
    return [(d.pod.name, d.assignment.node, d.assignment.available, d.score) for d in result.decisions]


def jobs(count, start=0, **over):
    return [pod(f"p{start + i}", labels={"spark-exec-id": str(i)}, **over) for i in range(count)]


ALL_ALIKE = [8.0] * 40
CLOSE = [8.0 + i / 1000 for i in range(40)]
ALL_SIZES = np.random.default_rng(5).uniform(0.5, 12.0, 60).round(3).tolist()
SOME_FULL = [3.0, 0.5, 2.0, 1.0] * 10
ONE_FAR_ABOVE = [100.0] + [2.0] * 20
SOME_UNMEASURED = [None, 4.0, 5.0] * 10
CASES = {
    "nodes that are alike": (ALL_ALIKE, jobs(100)),
    "nodes that are nearly alike": (CLOSE, jobs(100)),
    "nodes that become full": (SOME_FULL, jobs(100)),
    "one node far above the others": (ONE_FAR_ABOVE, jobs(60)),
    "nodes by requests": (SOME_UNMEASURED, jobs(60)),
    "nodes that become full by requests": (ALL_ALIKE, jobs(80, requests={"cpu": "3"})),
    "nodes of all sizes": (ALL_SIZES, jobs(250)),
    "nodes of all sizes that become full by requests": (ALL_SIZES, jobs(150, requests={"cpu": "1"})),
    "two sorts of pods in turns": (
        ALL_ALIKE,
        [p for pair in zip(jobs(30), jobs(30, 30, requests={"cpu": "1"})) for p in pair],
    ),
    "a pod between that refuses others": (
        CLOSE,
        [*jobs(10), pod("other", labels={"app": "c"}, affinity=REFUSES_B), *jobs(20, 10, namespace="more")],
    ),
    "pods that refuse each other": (
        ALL_ALIKE,
        [pod(f"p{i}", labels={"app": "b"}, affinity=REFUSES_B) for i in range(50)],
    ),
    "pods that spread": (
        ALL_ALIKE,
        [pod(f"p{i}", labels={"app": "a"}, topologySpreadConstraints=SPREADS) for i in range(50)],
    ),
    "a pod between that is nominated": (
        ALL_ALIKE,
        [*jobs(10), pod("p10", labels={"spark-exec-id": "0"}, status={"nominatedNodeName": "n7"}), *jobs(20, 11)],
    ),
}


@pytest.mark.parametrize("tie_breaking", ["Random", "FirstByName"])
@pytest.mark.parametrize(("capacities", "pods"), CASES.values(), ids=CASES)
def test_decisions_are_those_of_a_look_at_all_nodes_for_each_pod(monkeypatch, capacities, pods, tie_breaking):
    found = nodes_of(lambda: cluster_of(capacities), pods, tie_breaking)
    monkeypatch.setattr(evaluation, "equal_rows", lambda *_: None)
    assert found == nodes_of(lambda: cluster_of(capacities), pods, tie_breaking)
    assert found


@pytest.mark.parametrize(
    ("capacities", "pods", "most"),
    [(ALL_ALIKE, jobs(80), 3), (CLOSE, jobs(40), 3), (ALL_ALIKE, CASES["pods that spread"][1], 50)],
    ids=["nodes that are alike", "nodes that are nearly alike", "pods that spread"],
)
def test_how_often_all_nodes_are_looked_at(monkeypatch, capacities, pods, most):
    looks = []
    totals = Evaluation.totals
    monkeypatch.setattr(Evaluation, "totals", lambda self: looks.append(1) or totals(self))
    assert len(nodes_of(lambda: cluster_of(capacities), pods)) == len(pods)
    assert len(looks) <= most


@pytest.mark.parametrize(
    ("placed", "explained"),
    [([3, 5], True), ([4, 5], False), ([3, 5, 5], False), ([3], False)],
    ids=["those", "as many, the last one on the same row", "one more on the last row", "one fewer"],
)
def test_placements_are_those_of_pods_that_took_equal_rows(placed, explained):
    equal = EqualRows([3, 4, 5], 100.0, (None, None), (1.0, np.ones(8)))
    placements = [(None, 7)]
    for row in (3, 5):
        equal.take(row)
    placements += [(None, row) for row in placed]
    assert equal.explain(placements, 1) is explained
