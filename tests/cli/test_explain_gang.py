from concerto.cli.explain_gang import sentences
from support.gang_builders import add, group, member, members
from support.scheduling_builders import cluster_state, node


def test_what_a_gang_waits_for_and_what_it_is_placed_with():
    cluster = cluster_state([node("n")])
    asked, *others = members(3)
    add(cluster, *others)
    assert sentences(cluster, asked) == ["Waiting for PodGroup g to appear"]
    add(cluster, group("g", 4))
    assert sentences(cluster, asked) == ["Waiting for 4 pods of PodGroup g, of which 3 are there"]
    add(cluster, group("g", 2))
    assert sentences(cluster, asked) == [
        "Of the 3 pods of PodGroup g that wait, 2 are placed at once, or none is. What follows is about this pod alone"
    ]
    add(cluster, *(member(each.name, nodeName="n") for each in others))
    assert sentences(cluster, asked) == []
