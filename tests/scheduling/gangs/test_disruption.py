import numpy as np

from concerto.scheduling.cycle import schedule
from concerto.scheduling.gangs.disruption import with_whole_gangs
from support.gang_builders import add, group, member
from support.scheduling_builders import NOW, cluster_state, node, pod, profile

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


def test_a_pod_whose_binding_is_under_way_goes_with_its_gang_and_one_that_has_ended_does_not():
    cluster = cluster_state([node("a")])
    bound, assumed = member("v", nodeName="a"), member("w")
    add(cluster, group("g", 1, disruptionMode=ALL), bound, assumed, ended := member("e", nodeName="a"))
    add(cluster, member("e", nodeName="a", status={"phase": "Succeeded"}))
    found = schedule(cluster, [assumed], {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    assert [each.pod.name for each in found.decisions] == ["w"]
    victims = with_whole_gangs(cluster, [bound], 100)
    assert ended.uid not in {each.uid for each in victims}
    assert [(each.name, each.node_name) for each in victims] == [("v", "a"), ("w", "a")]


def test_a_pod_of_the_same_priority_is_never_evicted():
    assert evicted(ALL, member("v", nodeName="a"), member("w", nodeName="b", priority=100)) == ["v"]


def test_pods_without_a_gang_go_alone():
    assert evicted(ALL, pod("alone", nodeName="a"), member("w", nodeName="b")) == ["alone"]
