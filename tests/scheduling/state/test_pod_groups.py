from concerto.scheduling.state.pod_groups import PodGroups
from support.gang_builders import group, member
from support.scheduling_builders import pod

KEY = ("default", "g")


def test_pods_may_come_before_their_group():
    groups = PodGroups()
    groups.set_pod(member("a"))
    groups.set_pod(member("b"))
    groups.set_pod(pod("alone"))
    assert groups.get(KEY) is None
    assert set(groups.members(KEY)) == {"uid-a", "uid-b"}
    groups.set_group(group("g", 2))
    assert groups.get(KEY).min_count == 2
    groups.remove_group(KEY)
    assert groups.get(KEY) is None
    assert set(groups.members(KEY)) == {"uid-a", "uid-b"}
    assert groups.members(("default", "other")) == {}


def test_who_ends_or_goes_is_no_member():
    groups = PodGroups()
    for name in "abcd":
        groups.set_pod(member(name))
    groups.set_pod(member("a", phase="Succeeded", nodeName="n"))
    groups.set_pod(member("b", deleting=True))
    groups.set_pod(member("c", deleting=True, nodeName="n"))  # it runs until its grace period is over
    groups.remove_pod("uid-d")
    groups.remove_pod("uid-d")
    assert set(groups.members(KEY)) == {"uid-c"}
    groups.remove_pod("uid-c")
    assert groups.members(KEY) == {}


def test_only_what_another_look_depends_on_is_a_change():
    groups = PodGroups()
    groups.set_group(group("g", 2))
    assert groups.take_changed() == {KEY}
    groups.set_group(group("g", 2, conditions=[{"type": "PodGroupInitiallyScheduled", "status": "False"}]))
    assert groups.take_changed() == set()
    groups.set_group(group("g", 3))
    assert groups.take_changed() == {KEY}
    groups.set_pod(member("a"))
    assert groups.take_changed() == {KEY}
    groups.set_pod(member("a", status={"conditions": [{"type": "PodScheduled", "status": "False"}]}))
    assert groups.take_changed() == set()
    groups.set_pod(member("a", nodeName="n"))
    assert groups.take_changed() == {KEY}
    groups.remove_group(("default", "unknown"))
    groups.set_pod(pod("alone"))
    assert groups.take_changed() == set()


def test_what_is_to_be_finished_is_forgotten_once_it_is_bound_or_gone():
    groups = PodGroups()
    for name in "abc":
        groups.set_pod(member(name))
    for name in ("a", "b", "unknown"):
        groups.must_finish(KEY, f"uid-{name}", "n1")
    assert groups.unfinished == {KEY: {"uid-a": "n1", "uid-b": "n1"}}
    groups.set_pod(member("a", nodeName="n1"))
    assert groups.unfinished == {KEY: {"uid-b": "n1"}}
    groups.remove_pod("uid-b")
    assert groups.unfinished == {}
