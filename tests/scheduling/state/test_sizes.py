"""Kinds of large pods, and how they are placed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from concerto.api.podreservation import Reservation
from concerto.api.selectors import LabelSelector
from concerto.scheduling.cycle import schedule
from concerto.scheduling.reservation_placement import place
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.learned_sizes import LearnedSizes
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.step_counts import steps_of

_CREATED = "1970-01-01T00:16:40Z"  # NOW
WAIT = profile().settings.large_pod_wait_seconds


def big(name, **over):
    labels = {"job": "big", "batch.kubernetes.io/job-completion-index": name}
    return pod(name, labels=labels, created=_CREATED, **over)


def small(name, **over):
    return pod(name, labels={"job": "small"}, created=_CREATED, **over)


def sizes(*named):
    """Pods of one kind, placed; of those named here an agent says that they take 3.9 CPUs."""
    made = LearnedSizes()
    for i in range(4):
        made.add_pod(big(f"b{i}"), "n")
    made.report("n", dict.fromkeys(named, 3900.0))
    return made


def test_what_one_pod_takes_holds_for_its_siblings_and_for_nobody_else():
    made = sizes("uid-b0")
    assert made.millicores(big("next")) == 3900.0
    assert made.millicores(small("next")) == 0.0
    assert made.millicores(big("next", namespace="other")) == 0.0


def test_an_agent_reports_on_the_pods_on_its_node_only():
    made = sizes()
    made.report("other", {"uid-b0": 3900.0})
    assert made.millicores(big("next")) == 0.0


def test_one_node_s_status_makes_no_pods_on_many_nodes_large():
    made = LearnedSizes()
    for i in range(100):
        made.add_pod(big(f"b{i}"), f"n{i}")
    made.report("n7", {"uid-b7": 64_000.0}, ["uid-b7"])
    assert made.millicores(big("next")) == 0.0
    for i in range(51):
        made.report(f"n{i}", {f"uid-b{i}": 3900.0}, [f"uid-b{i}"])
    assert made.millicores(big("next")) > 0.0, "most nodes say so"


def test_a_status_that_names_pods_costs_the_same_however_many_pods_there_are():
    def steps(others):
        made = LearnedSizes()
        for i in range(others):
            made.add_pod(pod(f"o{i}", labels={"job": f"o{i}"}), f"n{i % 50}")
        for i in range(10):
            made.add_pod(pod(f"b{i}", labels={"job": f"b{i}"}), "liar")
        named = {f"uid-b{i}": 3900.0 for i in range(10)}
        return steps_of(lambda: made.report("liar", named, [*named]))

    assert steps(2000) < 1.5 * steps(20), "110 pods of a node, each looked for among 150,000, held the loop for seconds"


def test_pods_on_several_nodes_of_one_kind_are_witnesses_once_each_as_long_as_they_are_there():
    def named(*gone):
        made = LearnedSizes()
        for i in range(6):
            made.add_pod(big(f"b{i}"), f"n{i // 2}")
        made.add_pod(big("b5"), "n2")  # seen twice
        for i in gone:
            made.remove_pod(f"uid-b{i}", ended=False)
        made.report("n0", {"uid-b0": 3900.0})
        return made.millicores(big("next"))

    assert named() == 0.0, "two other nodes have such pods"
    assert named(2, 3) == named(2, 4) == 0.0
    assert named(2, 3, 4, 5) == 3900.0
    assert named(1, 2, 3, 4, 5) == 3900.0


def test_those_that_ended_before_one_was_named_count_as_well():
    made = sizes()
    for uid in ("uid-b1", "uid-b2"):
        made.remove_pod(uid, ended=True)
    made.report("n", {"uid-b0": 3900.0})
    assert made.millicores(big("next")) == 0.0


def test_a_kind_of_which_most_pods_have_ended_unnamed_has_units():
    made = sizes("uid-b0")
    for uid in ("uid-b1", "uid-b2"):
        made.remove_pod(uid, ended=True)
    assert made.millicores(big("next")) == 0.0


def test_a_pod_that_moved_or_was_taken_back_is_no_witness():
    made = sizes("uid-b0")
    for uid in ("uid-b1", "uid-b2", "uid-b3"):
        made.remove_pod(uid, ended=False)
    assert made.millicores(big("next")) == 3900.0


def test_a_pod_that_is_named_before_it_is_seen_counts_when_it_is():
    made = LearnedSizes()
    made.report("n", {"uid-b0": 3000.0})
    assert made.millicores(big("next")) == 0.0
    made.add_pod(big("b0"), "n")
    assert made.millicores(big("next")) == 3000.0


def test_what_is_learned_outlives_its_pods_and_follows_the_latest():
    made = sizes("uid-b0")
    made.remove_pod("uid-b0", ended=True)
    made.report("n", {})
    assert made.millicores(big("next")) == 3900.0
    for i in range(20):
        made.add_pod(big(f"c{i}"), "n")
        made.report("n", {f"uid-c{i}": 2000.0})
        made.remove_pod(f"uid-c{i}", ended=True)
    assert made.millicores(big("next")) == pytest.approx(2000.0, rel=0.05)


def cluster(*pods, **capacities):
    """Nodes of 4 CPUs on which an ordinary pod takes a tenth, with these pods; big ones are known to take 3.9 CPUs."""
    known = capacity("known", 0.0, observed=("uid-b0",), large={"uid-b0": 0.975}, pod_share=0.1, spare_share=0.0)
    return cluster_state(
        [node("known"), *(node(name) for name in capacities)],
        [big("b0", nodeName="known"), *pods],
        [known, *(capacity(name, **{"pod_share": 0.1} | of) for name, of in capacities.items())],
    )


def decide(made, *pods, waited=1.0):
    patient = profile(stale_after_seconds=1e6)
    result = schedule(made, pods, {"concerto": patient}, now=NOW + waited, generator=np.random.default_rng(1))
    return {d.pod.name: d.assignment.node for d in result.decisions}, result


BUSY = tuple(small(f"s{i}", nodeName="busy") for i in range(3))
SEEN = tuple(p.uid for p in BUSY)


def test_a_large_pod_goes_where_its_cpu_is_left_and_not_where_there_is_room_for_one_more_pod():
    made = cluster(*BUSY, busy={"value": 6.0, "observed": SEEN}, free={"value": 3.0})
    assert decide(made, big("next"))[0] == {"next": "free"}


def test_where_it_is_left_nowhere_the_pod_waits_and_gets_an_event_that_says_why_and_others_go_on():
    made = cluster(*BUSY, busy={"value": 6.0, "observed": SEEN})
    placed, result = decide(made, big("next"), small("other"))
    assert placed == {"other": "busy"}
    reasons = result.unschedulable[0].diagnosis.message
    assert "1 node(s) had less CPU left than the 3900m that pods of this kind use" in reasons


def test_what_a_large_pod_will_take_is_kept_from_others_until_its_agent_names_it():
    made = cluster(free={"value": 10.0})
    placed, _ = decide(made, big("next"), small("other"), small("third"))
    assert placed == {"next": "free"}
    made.set_capacity(capacity("free", 9.0, observed=("uid-next",), version=2, pod_share=0.1), NOW)
    assert decide(made, small("other"))[0] == {}, "seen, not named yet: 9 less the 9.75 units that it will take"
    named = {"large": {"uid-next": 0.5}, "spare_share": 0.5}
    made.set_capacity(capacity("free", 4.0, observed=("uid-next",), version=3, pod_share=0.1, **named), NOW)
    assert decide(made, small("other"))[0] == {"other": "free"}


def test_two_large_pods_are_not_sent_to_one_empty_node():
    made = cluster(one={"value": 10.0}, two={"value": 9.0})
    assert decide(made, big("x"), big("y"), big("z"))[0] == {"x": "one", "y": "two"}


def test_for_a_pod_that_has_waited_for_long_the_emptiest_node_is_kept():
    four = tuple(small(f"t{i}", nodeName="four") for i in range(4))
    seen = tuple(p.uid for p in four)
    made = cluster(*BUSY, *four, four={"value": 6.0, "observed": seen}, busy={"value": 1.0, "observed": SEEN})
    placed, result = decide(made, small("first"), big("next"), waited=WAIT)
    assert placed == {"first": "four"}, "the other has the least to lose, and is kept"
    full = small("s9"), small("s8")
    made.set_capacity(capacity("four", 0.0, observed=seen, version=2, pod_share=0.1), NOW)
    placed, result = decide(made, big("next"), *full, waited=WAIT)
    assert placed == {}
    assert "1 node(s) were being drained for a larger pod" in result.unschedulable[1].diagnosis.message
    assert decide(made, small("s7"), waited=WAIT)[0] == {"s7": "busy"}, "kept only while somebody waits for it"


def test_where_no_node_comes_free_it_is_content_with_less_and_less():
    full = tuple(small(f"u{i}", nodeName="busy") for i in range(5))
    made = cluster(*full, busy={"value": 4.0, "observed": tuple(p.uid for p in full)})
    assert decide(made, big("next"), waited=1.9 * WAIT)[0] == {}
    assert decide(made, big("next"), waited=2.1 * WAIT)[0] == {"next": "busy"}


def test_in_the_end_it_goes_where_any_pod_would_go():
    # More than half of a window beyond N: each node has room for one more, and none has any of its CPUs left
    full = tuple(small(f"u{i}", nodeName="busy") for i in range(15))
    made = cluster(*full, busy={"value": 1.0, "observed": tuple(p.uid for p in full)})
    assert decide(made, big("next"), waited=4.9 * WAIT)[0] == {}
    assert decide(made, big("next"), waited=5.1 * WAIT)[0] == {"next": "busy"}


def test_a_node_whose_agent_says_nothing_of_shares_has_room_by_its_capacity_and_keeps_no_other_from_being_kept():
    made = cluster(*BUSY, silent={"value": 1.0, "pod_share": None}, busy={"value": 1.0, "observed": SEEN})
    made.set_pod(small("u0", nodeName="silent"), NOW)
    assert decide(made, big("next"), waited=1.0)[0] == {}, "its one start is taken"
    placed, _ = decide(made, big("next"), small("other"), waited=WAIT)
    assert placed == {}, "busy is kept"
    made.set_capacity(capacity("silent", 1.0, observed=("uid-u0",), version=2), NOW)
    assert decide(made, big("next"))[0] == {"next": "silent"}


def test_one_node_is_not_kept_from_pods_that_have_waited_for_it_for_longer_still():
    made = cluster(*BUSY, busy={"value": 1.0, "observed": SEEN})
    young = big("next", uid="young")
    assert decide(made, young, small("old"), waited=WAIT)[0] == {}
    old = small("old")
    made = cluster(*BUSY, busy={"value": 1.0, "observed": SEEN})
    result = schedule(
        made,
        [old, dataclasses.replace(young, created=NOW + 2.0 * WAIT)],
        {"concerto": profile(stale_after_seconds=1e6)},
        now=NOW + 3.1 * WAIT,
        generator=np.random.default_rng(1),
    )
    assert {d.pod.name: d.assignment.node for d in result.decisions} == {"old": "busy"}


def test_of_a_few_nodes_that_would_do_a_quarter_is_kept_however_many_others_there_are():
    pool = {"labels": {"pool": "a"}}
    made = cluster()
    for i in range(8):
        of = pool if i < 4 else {}
        made.set_node(node(f"n{i}", **of))
        on = [small(f"s{i}{j}", nodeName=f"n{i}") for j in range(3)]
        for each in on:
            made.set_pod(each, NOW)
        made.set_capacity(capacity(f"n{i}", 1.0, observed=tuple(p.uid for p in on), pod_share=0.1), NOW)
    large = [big(f"b{i}", nodeSelector={"pool": "a"}, uid=f"b{i}") for i in range(4)]
    made.large_pods.sizes.add_pod(dataclasses.replace(large[0], uid="seen"), "known")
    made.large_pods.sizes.report("known", {"seen": 3900.0})
    ordinary = [pod(f"o{i}", labels={"job": "small"}, created=_CREATED, nodeSelector={"pool": "a"}) for i in range(9)]
    placed, _ = decide(made, *large, *ordinary, waited=WAIT)
    assert len(placed) == 3


def test_whom_nodes_are_kept_for_is_reported():
    made = cluster(*BUSY, busy={"value": 6.0, "observed": SEEN})
    assert [u.always_considered for u in decide(made, big("next"), waited=0.9 * WAIT)[1].unschedulable] == [False]
    assert [u.always_considered for u in decide(made, big("next"), waited=WAIT)[1].unschedulable] == [True]


def test_what_an_agent_does_not_name_in_a_minute_is_kept_no_longer():
    made = cluster(free={"value": 10.0})
    decide(made, big("next"))
    for seconds, available in ((0.0, 9.0 - 8.75), (59.0, 9.0 - 8.75), (60.0, 9.0)):
        reported = capacity(
            "free", 9.0, observed=("uid-next",), version=int(seconds) + 2, at=NOW + seconds, pod_share=0.1
        )
        made.set_capacity(reported, NOW + seconds)
        assert made.measured.available[made.row_of["free"]] == pytest.approx(available)


CAME_FREE = {
    "an agent names the large pod": lambda s: s.set_capacity(
        capacity("free", 4.0, observed=("uid-next",), version=2, pod_share=0.1, large={"uid-next": 0.5}), NOW
    ),
    "the large pod ends before it is named": lambda s: s.set_pod(big("next", nodeName="free", phase="Succeeded"), NOW),
    "its binding is refused": lambda s: s.forget("uid-next"),
    "it is deleted": lambda s: s.remove_pod("uid-next"),
}


@pytest.mark.parametrize("sentence", CAME_FREE)
def test_those_that_wait_are_looked_at_again_when(sentence):
    made = cluster(free={"value": 10.0})
    decide(made, big("next"))
    assert made.measured.available[made.row_of["free"]] < 1.0
    assert CAME_FREE[sentence](made) & Change.CAPACITY
    assert made.measured.available[made.row_of["free"]] >= 1.0


def test_large_ones_are_looked_at_again_when_a_node_s_cpus_come_free_and_its_room_for_pods_is_what_it_was():
    made = cluster(busy={"value": 2.5, "spare_share": 0.3})
    status = capacity("busy", 2.5, version=2, pod_share=0.1, spare_share=0.28)
    assert not made.set_capacity(status, NOW) & Change.CAPACITY
    status = capacity("busy", 2.5, version=3, pod_share=0.1, spare_share=0.9)
    assert made.set_capacity(status, NOW) & Change.CAPACITY
    assert not made.set_capacity(dataclasses.replace(status, resource_version="4"), NOW) & Change.CAPACITY


def test_shares_that_are_reported_before_the_node_is_known_are_of_its_cpus_when_it_is():
    made = cluster_state(
        [], [big("b0", nodeName="n")], [capacity("n", 1.0, observed=("uid-b0",), large={"uid-b0": 0.5})]
    )
    assert made.large_pods.sizes.millicores(big("next")) == 0.0
    made.set_node(node("n"))
    assert made.large_pods.sizes.millicores(big("next")) == 2000.0


def test_one_that_was_busy_for_a_while_and_stays_says_nothing_of_its_kind():
    made = sizes("uid-b0")
    made.report("n", {}, ["uid-b1"])
    assert made.millicores(big("next")) == 3900.0, "its end is not known yet"
    made = sizes("uid-b0")
    made.report("n", {}, ["uid-b0", "uid-b1"])
    assert not made
    made.remove_pod("uid-b1", ended=True)
    made.report("n", {"uid-b0": 2000.0})
    assert made.millicores(big("next")) == 0.0, "one of two"


def test_nothing_is_held_for_a_person_where_a_large_pod_will_take_it():
    made = cluster(free={"value": 10.0, "room": 12.0}, other={"value": 3.0})
    assert decide(made, big("next"))[0] == {"next": "free"}
    view = Reservation("default", "r", "uid-r", LabelSelector.from_raw({}), 9)
    made.set_reservation(view)
    assert place(made, view, now=NOW, max_units=9, stale_after_seconds=600.0) == {"free": 2, "other": 3}
