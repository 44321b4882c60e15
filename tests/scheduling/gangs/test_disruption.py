from concerto.scheduling.gangs.disruption import with_whole_gangs
from support.gang_builders import add, group, member
from support.scheduling_builders import cluster_state, node, pod

ALL, SINGLE = {"all": {}}, {"single": {}}


def evicted(mode, *pods, priority=100):
    cluster = cluster_state([node("a"), node("b")])
    add(cluster, group("g", 1, disruptionMode=mode), *pods)
    return [each.name for each in with_whole_gangs(cluster, pods[:1], priority)]


def test_pods_of_a_gang_that_is_evicted_as_a_whole_go_together():
    pods = [member("v", nodeName="a"), member("w", nodeName="b"), member("waits"), pod("alone", nodeName="a")]
    assert evicted(ALL, *pods) == ["v", "w"]
    assert evicted(SINGLE, *pods) == ["v"]
    assert evicted(None, *pods) == ["v"]


def test_a_pod_of_the_same_priority_is_never_evicted():
    assert evicted(ALL, member("v", nodeName="a"), member("w", nodeName="b", priority=100)) == ["v"]


def test_pods_without_a_gang_go_alone():
    assert evicted(ALL, pod("alone", nodeName="a"), member("w", nodeName="b")) == ["alone"]
