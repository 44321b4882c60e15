from scheduling_builders import NOW, capacity, load, node, pod, profile, snapshot

from concerto.api.schedulingprofile import ScoreSettings
from concerto.controllers.explain import build_snapshot, find_profile, render
from concerto.scheduling.explain import explain

SCORES = (ScoreSettings("TargetLoadPacking"), ScoreSettings("NodeResourcesFit", 2))


def cluster():
    nodes = [
        node("a", allocatable={"memory": 10**9}),
        node("b", allocatable={"memory": 10**9}),
        node("cordoned", unschedulable=True),
        node("full"),
    ]
    return snapshot(nodes, (), [capacity("a", windows=load((0.0, 0.0))), capacity("b"), capacity("full", 0.0)])


def test_every_node_is_told_of_best_first():
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
    assert verdicts[1].scores == {"TargetLoadPacking": None, "NodeResourcesFit": 95}
    assert verdicts[0].total == verdicts[1].total == (63 + 2 * 95) / 3


def test_the_table_marks_the_pods_node_and_shows_abstentions_and_refusals():
    running = pod("p", requests={"cpu": "400m", "memory": "0"}, nodeName="a")
    verdicts = explain(cluster(), pod("p", requests={"cpu": "400m", "memory": "0"}), profile(scores=SCORES), NOW)
    assert render(running, ["Successfully assigned default/p to a"], verdicts) == "\n".join(
        [
            "Pod default/p, on a, schedulerName concerto",
            "  Successfully assigned default/p to a",
            "",
            "NODE      BASIS     TOTAL  TargetLoadPacking  NodeResourcesFit",
            "a*        Capacity  84.3   63                 95",
            "b         Capacity  84.3   -                  95",
            "cordoned  Requests  -                                           NodeUnschedulable: "
            "node(s) were unschedulable",
            "full      Capacity  -                                           PodCapacity: "
            "Insufficient measured capacity",
        ]
    )


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
