import argparse

import pytest

from concerto.api.score_arguments import ScoreSettings
from concerto.cli.explain import (
    add_arguments,
    build_snapshot,
    events_of,
    find_profile,
    render,
    run,
)
from concerto.scheduling.explanation import explain
from support.scheduling_builders import NOW, capacity, cluster_state, load, node, pod, profile, raw_pod

SCORES = (ScoreSettings("TargetLoadPacking"), ScoreSettings("NodeResourcesFit", 2))


def cluster():
    nodes = [
        node("a", allocatable={"memory": 10**9}),
        node("b", allocatable={"memory": 10**9}),
        node("cordoned", unschedulable=True),
        node("full"),
    ]
    return cluster_state(nodes, (), [capacity("a", windows=load((0.0, 0.0))), capacity("b"), capacity("full", 0.0)])


def test_every_node_is_listed_best_first():
    waiting = pod("p", requests={"cpu": "400m", "memory": "0"})
    verdicts = explain(cluster(), waiting, profile(scores=SCORES), NOW)
    assert [(v.node, v.refused_by, v.reason) for v in verdicts] == [
        ("a", "", ""),
        ("b", "", ""),
        ("cordoned", "NodeUnschedulable", "node(s) were unschedulable"),
        ("full", "PodCapacity", "Insufficient measured capacity"),
    ]
    # a: 15 % of the cpu is predicted -> 62.5; 90 % of cpu and all of memory are left -> 95
    assert verdicts[0].scores == {"TargetLoadPacking": 63, "NodeResourcesFit": 95}
    # b is not measured
    assert verdicts[1].scores == {"TargetLoadPacking": 0, "NodeResourcesFit": 95}
    assert [v.total for v in verdicts[:2]] == [(63 + 2 * 95) / 3, 2 * 95 / 3]


def test_the_table_marks_the_pods_node_and_shows_abstentions_and_refusals():
    running = pod("p", requests={"cpu": "400m", "memory": "0"}, nodeName="a")
    abstaining = profile(scores=(ScoreSettings("TargetLoadPacking", missing_metrics="Abstain"), SCORES[1]))
    verdicts = explain(cluster(), pod("p", requests={"cpu": "400m", "memory": "0"}), abstaining, NOW)
    assert render(running, ["Successfully assigned default/p to a"], verdicts) == "\n".join(
        [
            "Pod default/p, on a, schedulerName concerto",
            "  Successfully assigned default/p to a",
            "",
            "Were it placed now (*: where it is):",
            "NODE      BASIS     TOTAL  TargetLoadPacking  NodeResourcesFit",
            "a*        Capacity  84.3   63                 95",
            "b         Capacity  84.3   -                  95",
            "cordoned  Requests  -                                           NodeUnschedulable: "
            "node(s) were unschedulable",
            "full      Capacity  -                                           PodCapacity: "
            "Insufficient measured capacity",
        ]
    )


def test_affinity_selects_namespaces_by_their_labels():
    term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "red"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    nodes = [{"metadata": {"name": name, "labels": {"zone": name}}} for name in "ab"]
    for raw in nodes:
        ready = {"type": "Ready", "status": "True"}
        raw["status"] = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}, "conditions": [ready]}
    other = raw_pod("other", namespace="theirs", nodeName="a")
    namespaces = [{"metadata": {"name": "theirs", "labels": {"team": "red"}}}]
    made = build_snapshot(nodes, [other], [], [], NOW, namespaces=namespaces)
    verdicts = explain(made, pod("p", affinity={"podAntiAffinity": required}), profile(), NOW)
    assert [(v.node, v.refused_by) for v in verdicts] == [("b", ""), ("a", "InterPodAffinity")]


def test_a_node_that_the_pod_does_not_name_is_refused_for_that():
    fields = [{"key": "metadata.name", "operator": "In", "values": ["b"]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    made = cluster_state([node("a", unschedulable=True), node("b")])
    verdicts = explain(made, pod("p", affinity={"nodeAffinity": required}), profile(), NOW)
    assert [(v.node, v.reason) for v in verdicts] == [
        ("b", ""),
        ("a", "node(s) didn't satisfy plugin(s) [NodeAffinity]"),
    ]


def test_taints_are_named_that_the_pod_does_not_tolerate():
    taints = [("gpu", "yes", "NoSchedule"), ("spot", "", "PreferNoSchedule"), ("bad", "", "NoExecute")]
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    tainted = cluster_state([node("a", taints=taints)])
    reasons = [explain(tainted, pod("p", tolerations=t), profile(), NOW)[0].reason for t in ([], tolerations)]
    assert reasons == [
        "node(s) had untolerated taint(s): gpu=yes:NoSchedule, bad:NoExecute",
        "node(s) had untolerated taint(s): bad:NoExecute",
    ]


def test_an_empty_cluster_and_the_older_of_two_profiles():
    assert explain(build_snapshot([], [], [], [], NOW), pod("p"), profile(), NOW) == []

    def stored(name, created, score):
        return {
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"schedulerName": "x", "scores": [{"name": score}]},
        }

    both = [
        stored("young", "2026-03-02T00:00:00Z", "Capacity"),
        stored("old", "2026-03-01T00:00:00Z", "NodeResourcesFit"),
    ]
    assert [s.name for s, _ in find_profile(both, "x").scores] == ["NodeResourcesFit"]


STATES = {
    "waiting": ({}, "waiting"),
    "on a node": ({"nodeName": "a"}, "on a"),
    "ended there": ({"nodeName": "a", "phase": "Succeeded"}, "ended on a"),
    "ended before it was anywhere": ({"phase": "Failed"}, "ended"),
}


@pytest.mark.parametrize(("over", "state"), STATES.values(), ids=STATES)
def test_the_first_line_says_how_the_pod_is(over, state):
    assert render(pod("p", **over), [], []).splitlines()[0] == f"Pod default/p, {state}, schedulerName concerto"


def event(reason, note, second, **more):
    return {"reason": reason, "note": note, "eventTime": f"2026-03-01T12:00:{second:02d}.000000Z", **more}


def test_what_was_said_comes_in_order_and_of_a_placed_pod_no_attempt_before():
    again = {"series": {"count": 2, "lastObservedTime": "2026-03-01T12:00:30.000000Z"}}
    reported = [
        event("FailedScheduling", "full", 1, **again),
        event("Scheduled", "to a", 40),
        event("FailedScheduling", "tainted", 20),
        event("Pulled", "image", 41),
    ]
    assert events_of(pod("p", nodeName="a"), reported) == ["to a"]
    assert events_of(pod("p"), reported) == ["tainted", "full", "to a"]


def test_what_an_event_says_stays_a_line_and_moves_no_cursor():
    lines = render(pod("p"), ["\x1b[2Jassigned\nNODE  TOTAL"], []).splitlines()
    assert lines[1:3] == ["  \N{REPLACEMENT CHARACTER}[2Jassigned\N{REPLACEMENT CHARACTER}NODE  TOTAL", ""]


@pytest.mark.parametrize("name", ["/", "ns/", "/p", "a/b/c", "../p", "ns/p?x=y", ""])
def test_what_is_no_name_of_a_pod_is_not_asked_for(name, capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(["pod", name, "--kubeconfig", "/nowhere"])) == 2
    assert "give NAMESPACE/NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("windows", "scores", "expected"),
    [
        (load((0.5, 0.1)), SCORES, False),
        ((), SCORES, True),
        ((), SCORES[-1:], False),
    ],
    ids=["measured", "not measured", "no score by load"],
)
def test_requests_stand_in_for_load_where_no_node_is_measured(windows, scores, expected):
    nodes = cluster_state([node("a"), node("b")], (), [capacity("a", windows=windows)])
    verdicts = explain(nodes, pod("p", requests={"cpu": "100m"}), profile(scores=scores), NOW)
    assert {verdict.by_allocation for verdict in verdicts} == {expected}


def test_a_refused_node_says_what_preemption_would_take():
    pods = [pod(f"low-{i}", nodeName="a", requests={"cpu": "2"}) for i in range(2)]
    pods.append(pod("other", nodeName="b", priority=100, requests={"cpu": "4"}))
    full = cluster_state([node("a"), node("b")], pods)
    asks = pod("p", priority=100, requests={"cpu": "3"})
    verdicts = {v.node: v for v in explain(full, asks, profile(), NOW)}
    assert {name: v.victims for name, v in verdicts.items()} == {"a": 2, "b": None}
    text = render(asks, [], list(verdicts.values()))
    assert "NodeResources: Insufficient cpu; would fit after preempting 2 pods of lower priority" in text
    polite = pod("p", priority=100, requests={"cpu": "3"}, preemptionPolicy="Never")
    assert {v.victims for v in explain(full, polite, profile(), NOW)} == {None}
