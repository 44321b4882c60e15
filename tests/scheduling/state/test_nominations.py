import pytest

from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.nominations import Nominations
from concerto.scheduling.state.signatures import PodSignatures
from support.scheduling_builders import pod

FREED = Change.ENDED | Change.CAPACITY


def nominations(*placed):
    return Nominations(lambda uid: uid in placed, PodSignatures())


def nominated(name, priority=0, node="a", **over):
    return pod(name, priority=priority, status={"nominatedNodeName": node} if node else {}, **over)


def taken(known, priority):
    return {node: [p.name for p in pods] for node, pods in known.of_priority(priority).items()}


def test_a_pod_leaves_room_to_nominated_pods_of_its_priority_and_higher_ones():
    known = nominations()
    for each in (nominated("low", 1), nominated("same", 5), nominated("high", 9), nominated("other", 9, "b")):
        known.set_pod(each)
    assert taken(known, 5) == {"a": ["same", "high"], "b": ["other"]}
    assert taken(known, 10) == {}
    assert [p.name for p in known.lower_than(5, "a")] == ["low"]
    assert known.node_of("uid-other") == "b"


def test_a_pod_leaves_no_room_to_itself_nor_to_one_that_is_counted_on_a_node():
    known = nominations("uid-there")
    known.set_pod(nominated("there", 9))
    for each in (nominated("other", 9), nominated("self", 9), nominated("low", 8), nominated("elsewhere", 9, "b")):
        known.set_pod(each)
    assert [p.name for p in known.beside(pod("self", priority=9), "a")] == ["other"]


OVER = {
    "bound": {"nodeName": "a"},
    "deleted": {"deleting": True},
    "ended": {"phase": "Failed"},
    "without the field that it had": {"node": ""},
}


@pytest.mark.parametrize("change", OVER.values(), ids=OVER)
def test_a_nomination_ends_with_a_pod_that_is(change):
    known = nominations()
    known.set_pod(nominated("p"))
    assert known.set_pod(nominated("p", **change)) == FREED
    assert not known
    assert known.set_pod(nominated("p", **change)) is Change.NOTHING


def test_a_nomination_of_ours_holds_before_the_api_server_shows_it():
    known = nominations()
    p = nominated("p", node="")
    known.nominate(p, "a")
    assert known.set_pod(p) is Change.NOTHING
    assert taken(known, 0) == {"a": ["p"]}
    known.set_pod(nominated("p"))
    assert known.set_pod(p) == FREED  # now somebody has taken it off
    assert not known


def test_what_the_api_server_shows_goes_before_what_was_decided():
    known = nominations()
    known.nominate(nominated("p", node=""), "a")
    assert known.set_pod(nominated("p", node="b")) == FREED
    assert taken(known, 0) == {"b": ["p"]}


def test_a_withdrawn_nomination_takes_no_room():
    known = nominations()
    known.set_pod(nominated("p"))
    assert known.withdraw("uid-p") == FREED
    assert known.withdraw("uid-p") is Change.NOTHING
    assert taken(known, 0) == {}
    assert known.node_of("uid-p") == ""


def test_of_pods_of_one_priority_that_are_nominated_for_a_node_the_later_leaves_room_to_the_earlier():
    known = nominations()
    early, late, high = nominated("a", 5), nominated("b", 5), nominated("z", 9)
    for each in (early, high, late):
        known.set_pod(each)
    assert [p.name for p in known.beside(early, "a")] == ["z"]
    assert [p.name for p in known.beside(late, "a")] == ["a", "z"]
    assert [p.name for p in known.beside(nominated("c", 5, ""), "a")] == ["a", "z", "b"]


def test_what_the_api_server_showed_before_does_not_undo_what_was_decided_since():
    known = nominations()
    known.set_pod(nominated("p"))
    known.nominate(nominated("p"), "b")
    assert known.set_pod(nominated("p", labels={"changed": "meanwhile"})) is Change.NOTHING
    assert taken(known, 0) == {"b": ["p"]}
    known.set_pod(nominated("p", node="b"))
    assert known.set_pod(nominated("p", node="c")) == FREED
    assert taken(known, 0) == {"c": ["p"]}


def test_a_nomination_that_is_being_removed_is_not_back_while_the_api_server_still_shows_it():
    known = nominations()
    known.set_pod(nominated("p"))
    assert known.remove("uid-p") == FREED
    assert known.set_pod(nominated("p")) is Change.NOTHING
    assert not known
    assert known.set_pod(nominated("p", node="")) is Change.NOTHING
    known.set_pod(nominated("p"))  # by somebody else
    assert taken(known, 0) == {"a": ["p"]}


@pytest.mark.parametrize("shown", [[""], ["a", "", "b"], ["a", "b"]])
def test_a_later_nomination_holds_while_the_earlier_one_is_being_removed(shown):
    known = nominations()
    known.set_pod(nominated("p"))
    known.remove("uid-p")
    known.nominate(nominated("p"), "b")
    for node in shown:
        assert known.set_pod(nominated("p", node=node)) is Change.NOTHING
        assert taken(known, 0) == {"b": ["p"]}
    known.withdraw("uid-p")
    assert not known


def test_a_nomination_that_the_api_server_does_not_remove_holds_on():
    known = nominations()
    known.set_pod(nominated("p"))
    known.remove("uid-p")
    known.not_removed("uid-p")
    known.set_pod(nominated("p"))
    assert taken(known, 0) == {"a": ["p"]}


def test_nothing_is_kept_of_removals_for_pods_that_are_gone():
    known = nominations()
    known.remove("uid-p")
    known.set_pod(nominated("q"))
    known.remove("uid-q")
    known.withdraw("uid-q")
    assert not known._being_removed
