"""Kinds of pods that are no unit, and how they are placed."""

from __future__ import annotations

import numpy as np
import pytest
from scheduling_builders import NOW, capacity, node, pod, profile, snapshot

from concerto.scheduling.cycle import schedule
from concerto.scheduling.sizes import Sizes

_CREATED = "1970-01-01T00:16:40Z"  # NOW
WAIT = profile().settings.large_pod_wait_seconds


def big(name, **over):
    labels = {"job": "big", "batch.kubernetes.io/job-completion-index": name}
    return pod(name, labels=labels, created=_CREATED, **over)


def small(name, **over):
    return pod(name, labels={"job": "small"}, created=_CREATED, **over)


def sizes(*named):
    """Pods of one kind, placed; of those named here an agent says that they take 3.9 CPUs."""
    made = Sizes()
    for i in range(4):
        made.placed(big(f"b{i}"), "n")
    made.told("n", dict.fromkeys(named, 3900.0))
    return made


def test_what_one_pod_takes_holds_for_its_siblings_and_for_nobody_else():
    made = sizes("uid-b0")
    assert made.millicores(big("next")) == 3900.0
    assert made.millicores(small("next")) == 0.0
    assert made.millicores(big("next", namespace="other")) == 0.0


def test_an_agent_speaks_for_the_pods_on_its_node_only():
    made = sizes()
    made.told("other", {"uid-b0": 3900.0})
    assert made.millicores(big("next")) == 0.0


def test_those_that_ended_before_one_was_named_count_as_well():
    made = sizes()
    for uid in ("uid-b1", "uid-b2"):
        made.lifted(uid, ended=True)
    made.told("n", {"uid-b0": 3900.0})
    assert made.millicores(big("next")) == 0.0


def test_a_kind_of_which_most_pods_have_ended_unnamed_has_units():
    made = sizes("uid-b0")
    for uid in ("uid-b1", "uid-b2"):
        made.lifted(uid, ended=True)
    assert made.millicores(big("next")) == 0.0


def test_a_pod_that_moved_or_was_taken_back_is_no_witness():
    made = sizes("uid-b0")
    for uid in ("uid-b1", "uid-b2", "uid-b3"):
        made.lifted(uid, ended=False)
    assert made.millicores(big("next")) == 3900.0


def test_a_pod_that_is_named_before_it_is_heard_of_counts_when_it_is():
    made = Sizes()
    made.told("n", {"uid-b0": 3000.0})
    assert made.millicores(big("next")) == 0.0
    made.placed(big("b0"), "n")
    assert made.millicores(big("next")) == 3000.0


def test_what_is_learned_outlives_its_pods_and_follows_the_latest():
    made = sizes("uid-b0")
    made.lifted("uid-b0", ended=True)
    made.told("n", {})
    assert made.millicores(big("next")) == 3900.0
    for i in range(20):
        made.placed(big(f"c{i}"), "n")
        made.told("n", {f"uid-c{i}": 2000.0})
        made.lifted(f"uid-c{i}", ended=True)
    assert made.millicores(big("next")) == pytest.approx(2000.0, rel=0.05)


def cluster(*pods, **capacities):
    """Nodes of 4 CPUs on which an ordinary pod takes a tenth, with these pods; big ones are known to take 3.9 CPUs."""
    known = capacity("known", 0.0, observed=("uid-b0",), large={"uid-b0": 0.975}, pod_share=0.1, spare_share=0.0)
    return snapshot(
        [node("known"), *(node(name) for name in capacities)],
        [big("b0", nodeName="known"), *pods],
        [known, *(capacity(name, **{"pod_share": 0.1} | of) for name, of in capacities.items())],
    )


def decide(made, *pods, waited=1.0):
    result = schedule(made, pods, {"concerto": profile()}, now=NOW + waited, generator=np.random.default_rng(1))
    return {d.pod.name: d.assignment.node for d in result.decisions}, result


BUSY = tuple(small(f"s{i}", nodeName="busy") for i in range(3))
SEEN = tuple(p.uid for p in BUSY)


def test_a_large_pod_goes_where_its_cpu_is_left_and_not_where_there_is_room_for_one_more_pod():
    made = cluster(*BUSY, busy={"value": 6.0, "observed": SEEN}, free={"value": 3.0})
    assert decide(made, big("next"))[0] == {"next": "free"}


def test_where_it_is_left_nowhere_the_pod_waits_and_is_told_why_and_others_go_on():
    made = cluster(*BUSY, busy={"value": 6.0, "observed": SEEN})
    placed, result = decide(made, big("next"), small("other"))
    assert placed == {"other": "busy"}
    reasons = result.unschedulable[0].diagnosis.message
    assert "1 node(s) had less CPU left than the 3900m of a pod like it" in reasons


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
    two = small("t0", nodeName="two")
    made = cluster(*BUSY, two, busy={"value": 6.0, "observed": SEEN}, two={"value": 1.0, "observed": (two.uid,)})
    placed, result = decide(made, small("first"), big("next"), waited=WAIT)
    assert placed == {"first": "busy"}, "two has the least to lose, and is kept"
    full = small("s9"), small("s8")
    made.set_capacity(capacity("busy", 0.0, observed=SEEN, version=2, pod_share=0.1), NOW)
    placed, result = decide(made, big("next"), *full, waited=WAIT)
    assert placed == {}
    assert "1 node(s) were being emptied for a larger pod" in result.unschedulable[1].diagnosis.message
    assert decide(made, small("s7"), waited=WAIT)[0] == {"s7": "two"}, "kept only while somebody waits for it"


def test_where_no_node_comes_free_it_is_content_with_less_and_less():
    full = tuple(small(f"u{i}", nodeName="busy") for i in range(5))
    made = cluster(*full, busy={"value": 4.0, "observed": tuple(p.uid for p in full)})
    assert decide(made, big("next"), waited=1.9 * WAIT)[0] == {}
    assert decide(made, big("next"), waited=2.1 * WAIT)[0] == {"next": "busy"}
