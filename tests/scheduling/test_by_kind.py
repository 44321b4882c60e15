"""Cycles that place pods by what their kind costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.api.nodecapacity import ResourceStatus
from concerto.capacity.kinds.cost import cpu_in_words, memory_in_words
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.cli.explain import render
from concerto.scheduling.cycle import schedule
from concerto.scheduling.explanation import cost_in_words, explain
from concerto.scheduling.recalled_work import recall_work
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import GI, NOW, capacity, cluster_state, node, pod, profile

MI = 2**20


ALL = slice(None)


def knows(cluster, **kinds):
    """Have the cluster know the cost of pods by name: work, seconds for which they hold their place, and memory."""
    known = NodeKinds()
    for name, (work, held, memory) in kinds.items():
        for _ in range(10):
            known.pod_ended(pod(name).kind, PodMeasurement(work, held, held, memory, True), 0.0)
    cluster.kinds.set_table(known.table((), 0.0))
    return cluster


def measured(name, *, system_cpu=0.0):
    made = capacity(name, -5.0)
    return replace(made, status=replace(made.status, system_cpu=system_cpu))


def run(cluster, *pods, now=NOW, parked=()):
    generator = np.random.default_rng(1)
    return schedule(cluster, pods, {"concerto": profile()}, now=now, generator=generator, parked=parked)


def test_a_decision_says_what_the_pod_was_taken_to_cost_and_what_was_left():
    cluster = knows(cluster_state([node("n")], [], [measured("n", system_cpu=0.25)]), p=(2.0, 4.0, 64 * MI))
    (decision,) = run(cluster, pod("p")).decisions
    cost = decision.assignment.cost
    assert (cost.cpu_millicores, cost.cpu_seconds, cost.known_from) == (500, 2.0, "Ended")
    assert cost.memory_bytes == 64 * MI
    assert cost.head_room == 1.15
    assert cost.cpu_left_millicores == pytest.approx(1.15 * 3000, abs=1)
    assert cost.memory_left_bytes == pytest.approx(0.95 * 8 * GI, rel=1e-6)
    assert decision.assignment.available == pytest.approx(1.15 * 3.0 / 0.5, rel=1e-3)


def test_a_node_that_is_over_by_units_takes_pods_by_what_they_cost():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(0.0, 10.0, 64 * MI))
    assert len(run(cluster, *(pod(f"p-{i}") for i in range(20))).decisions) == 20


def test_while_nothing_is_known_of_any_kind_a_decision_carries_no_cost():
    cluster = cluster_state([node("n")], [], [capacity("n", 5.0)])
    (decision,) = run(cluster, pod("p")).decisions
    assert decision.assignment.cost is None
    assert decision.assignment.available == 5.0


def refused(cluster, *pods, now=NOW):
    return {u.pod.name: u.diagnosis.message for u in run(cluster, *pods, now=now).unschedulable}


def test_a_pods_event_says_what_its_kind_takes_and_that_no_node_has_it_left():
    cluster = cluster_state([node("n")], [pod(f"p-{i}", nodeName="n") for i in range(10)], [measured("n")])
    knows(cluster, p=(2.0, 4.03, 64 * MI))
    message = "0/1 nodes are available: 1 node(s) had less CPU left than the 500m that pods of this kind take."
    waiting = [pod(f"p-x{i}") for i in range(4)]
    assert refused(cluster, *waiting) == {p.name: message for p in waiting}


def test_a_pods_event_says_that_memory_is_what_runs_out():
    cluster = cluster_state([node("n")], [pod(f"p-{i}", nodeName="n") for i in range(5)], [measured("n")])
    knows(cluster, p=(0.2, 4.0, 1.5 * GI))
    message = "0/1 nodes are available: 1 node(s) had less memory left than the 1.5Gi that pods of this kind take."
    assert refused(cluster, pod("p-x")) == {"p-x": message}


def test_a_pod_waits_until_the_work_of_those_before_it_is_done_and_says_so():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(40.0, 400.0, 64 * MI))
    result = run(cluster, *(pod(f"p-{i}") for i in range(70)))
    assert 0 < len(result.decisions) < 20
    assert "1 node(s) limited how fast pods may start" in result.unschedulable[0].diagnosis.message
    assert NOW < result.look_again_at < NOW + 60.0


def successor(cluster, decisions, made):
    """The cluster as a scheduler finds it that begins after those decisions were carried out."""
    names = sorted(cluster.row_of)
    nodes = {d.pod.name: d.assignment.node for d in decisions}
    there = [replace(p, node_name=nodes[p.name]) for p in made if p.name in nodes]
    after = cluster_state([node(name) for name in names], there, [measured(name) for name in names])
    after.kinds.set_table(cluster.kinds.table)
    return after


def test_pods_do_not_wait_for_the_work_of_others_if_all_that_wait_find_room():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(40.0, 400.0, 64 * MI))
    assert len(run(cluster, *(pod(f"p-{i}") for i in range(20))).decisions) == 20
    assert not cluster.kinds.loads.unpaced, "it is over with the cycle"


def test_a_small_job_on_idle_nodes_starts_at_once_though_it_goes_beyond_their_head_room():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(40.0, 400.0, 64 * MI))
    assert len(run(cluster, *(pod(f"p-{i}") for i in range(60))).decisions) == 60


def test_the_last_pods_that_go_beyond_the_head_room_of_nodes_that_are_filled_are_paced():
    there = [pod(f"there-{i}", nodeName="n") for i in range(41)]
    cluster = knows(cluster_state([node("n")], there, [measured("n")]), p=(40.0, 400.0, 64 * MI))
    assert 0 < len(run(cluster, *(pod(f"p-{i}") for i in range(15))).decisions) < 15


def test_pods_that_have_just_come_are_not_all_that_wait():
    """Others would wait for ever for a node that is filled only to its head room, or for the end of others' work."""
    parked = [pod(f"q-{i}") for i in range(60)]
    costs = {"p": (40.0, 400.0, 64 * MI), "q": (40.0, 400.0, 64 * MI)}
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), **costs)
    assert 0 < len(run(cluster, *(pod(f"p-{i}") for i in range(20)), parked=parked).decisions) < 20
    full = [pod(f"q-{i}", nodeName="n") for i in range(60, 106)]
    for others, placed in (((), 5), (parked, 0)):
        cluster = knows(cluster_state([node("n")], full, [measured("n")]), **costs)
        arrived = [pod(f"p-{i}") for i in range(5)]
        assert len(run(cluster, *arrived, parked=others).decisions) == placed


def test_a_scheduler_that_begins_anew_goes_on_at_the_pace_of_the_one_before():
    made = [pod(f"p-{i}") for i in range(70)]
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(40.0, 400.0, 64 * MI))
    decisions = run(cluster, *made).decisions
    assert run(successor(cluster, decisions, made), *made).decisions, "which cannot be had without what is on record"
    after = successor(cluster, decisions, made)
    recall_work(after, [d.assignment for d in decisions], NOW, NOW)
    assert not run(after, *made).decisions
    assert run(after, *made, now=NOW + 60.0).decisions


def test_a_record_that_an_api_server_made_whose_clock_is_ahead_holds_up_no_pods_until_then():
    made = [pod(f"p-{i}") for i in range(70)]
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(40.0, 400.0, 64 * MI))
    decisions = run(cluster, *made).decisions
    after = successor(cluster, decisions, made)
    recall_work(after, [d.assignment for d in decisions], NOW + 3600.0, NOW)
    assert not run(after, *made).decisions
    assert run(after, *made, now=NOW + 60.0).decisions


def test_a_scheduler_that_begins_anew_fills_nodes_as_far_as_the_one_before():
    made = [pod(f"p-{i}") for i in range(2)]
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(2.0, 4.0, 64 * MI))
    cluster.kinds.loads.set_head_room(0, 1.5)
    decisions = run(cluster, *made).decisions
    after = successor(cluster, decisions, made)
    recall_work(after, [d.assignment for d in decisions], NOW, NOW)
    assert after.kinds.loads.head_room[0] == pytest.approx(1.5)


@pytest.mark.parametrize(("used", "wider"), [(None, False), (1.0, False), (0.8, True)])
def test_a_filled_node_is_given_more_if_its_cpus_idle_though_its_pods_wait_at_times(used, wider):
    """Usage counts tasks that wait, too: a node whose pods compute in turns may idle half of the time with usage 1."""
    cpu = ResourceStatus("cpu", usage=0.6, base=0.0, cost=0.1)
    there = [pod(f"p-{i}", nodeName="n") for i in range(9)]
    cluster = knows(cluster_state([node("n")], there, [capacity("n")]), p=(2.0, 4.0, 64 * MI))
    assert not run(cluster, *(pod(f"p-{i}") for i in range(9, 20))).decisions
    for second in range(30):
        made = capacity("n", version=2 + second, at=NOW + second)
        status = replace(made.status, resources=(cpu,), cpu_used=used)
        cluster.set_capacity(replace(made, status=status), NOW + second)
    assert (cluster.kinds.loads.head_room[0] > 1.15) == wider


def test_what_is_no_number_in_a_status_keeps_no_pods_away():
    cluster = knows(cluster_state([node("n")], [], [capacity("n")]), p=(2.0, 4.0, 64 * MI))
    cpu = ResourceStatus("cpu", usage=0.6, base=0.0, cost=0.1)
    for second in range(3):
        made = capacity("n", version=2 + second, at=NOW + second)
        status = replace(made.status, resources=(cpu,), cpu_used=np.nan, pods_wanting=np.nan, system_cpu=np.nan)
        cluster.set_capacity(replace(made, status=status), NOW + second)
        assert run(cluster, pod(f"p-{second}"), now=NOW + second).decisions
    assert np.isfinite(cluster.kinds.loads.head_room[0])


@pytest.mark.parametrize(("waiting", "placed"), [(3, 3), (5, 0)])
def test_the_last_pods_are_placed_beyond_a_nodes_head_room_and_their_records_say_so(waiting, placed):
    there = [pod(f"p-{i}", nodeName="n") for i in range(9)]
    cluster = knows(cluster_state([node("n")], there, [measured("n")]), p=(2.0, 4.0, 64 * MI))
    cluster.kinds.loads.settings = replace(cluster.kinds.loads.settings, min_burst_seconds=10.0)
    decisions = run(cluster, *(pod(f"p-{i}") for i in range(10, 10 + waiting))).decisions
    costs = [d.assignment.cost for d in decisions]
    # Nine of 0.5 cores leave 0.1 of 1.15 x 4, and 0.4 x 4 more for the last ones
    assert [c.head_room for c in costs] == pytest.approx([1.55] * placed)
    assert [c.cpu_left_millicores for c in costs] == [1700, 1200, 700][:placed]
    assert not cluster.kinds.loads.fits(cluster.kinds.cost_of(pod("p")), ALL).any(), "it is over with the cycle"


def test_the_end_of_a_pod_makes_room_for_light_ones_on_a_node_that_a_large_one_hangs_over():
    there = [pod("large-1", nodeName="n"), pod("large-2", nodeName="n"), pod("small-1", nodeName="n")]
    cluster = knows(
        cluster_state([node("n")], there, [measured("n")]), large=(9.6, 4.0, 64 * MI), small=(0.4, 4.0, 3 * GI)
    )
    cluster.kinds.loads.settings = replace(cluster.kinds.loads.settings, last_pods=0.0)
    (decision,) = run(cluster, pod("small-2")).decisions
    # 4.9 of 4.6 cores are taken, and 0.7 of the mean share, 4.9 / 3, may be beyond
    assert decision.assignment.cost.head_room == pytest.approx(1.15 + 0.7 * 4.9 / 3 / 4, abs=1e-3)
    assert decision.assignment.cost.cpu_left_millicores == pytest.approx(4600 - 4900 + 700 * 4.9 / 3, abs=5)
    waiting = run(cluster, pod("small-3"))
    assert "memory" in waiting.unschedulable[0].diagnosis.message
    assert Change.CAPACITY in cluster.set_pod(replace(there[2], phase="Succeeded"), NOW)
    assert run(cluster, pod("small-3")).decisions


OUT_OF_USE = {"gone": None, "cordoned": {"unschedulable": True}, "not Ready": {"ready": False}}


@pytest.mark.parametrize("over", OUT_OF_USE.values(), ids=OUT_OF_USE)
def test_no_pods_are_placed_beyond_head_room_for_the_sake_of_a_node_that_takes_none(over):
    there = [pod(f"p-{name}{i}", nodeName=name) for name in "nm" for i in range(9)]
    cluster = knows(cluster_state([node("n"), node("m")], there, [measured("n"), measured("m")]), p=(2.0, 4.0, 64 * MI))
    if over is None:
        cluster.remove_node("m")
    else:
        cluster.set_node(node("m", **over))
    # n alone would take three of the five, and the others wait as before
    assert not run(cluster, *(pod(f"p-{i}") for i in range(5))).decisions


def test_a_placement_that_was_never_carried_out_gives_its_node_no_work():
    made = [pod(f"p-{i}") for i in range(20)]
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(40.0, 400.0, 64 * MI))
    decisions = run(cluster, *made).decisions
    after = successor(cluster, [], made)
    recall_work(after, [d.assignment for d in decisions], NOW, NOW)
    assert len(run(after, *made).decisions) == len(decisions)


def test_pods_of_a_kind_that_nobody_knows_start_one_by_one():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(2.0, 4.0, 64 * MI))
    cluster.kinds.set_table({"elsewhere/Job/x@y": next(iter(cluster.kinds.table.values()))})
    result = run(cluster, *(pod(f"p-{i}") for i in range(3)))
    assert [d.assignment.cost.known_from for d in result.decisions] == ["Guess"]


@pytest.mark.parametrize(
    ("cores", "text"), [(0.336, "340m"), (0.0051, "5.1m"), (0.999, "1"), (1.52, "1.5"), (12.3, "12")]
)
def test_cpu_is_written_to_two_digits(cores, text):
    assert cpu_in_words(cores) == text


@pytest.mark.parametrize(("amount", "text"), [(3.2 * MI, "3.2Mi"), (400 * MI, "400Mi"), (1.52 * GI, "1.5Gi")])
def test_memory_is_written_to_two_digits(amount, text):
    assert memory_in_words(amount) == text


def test_an_explanation_says_what_the_kind_takes_and_what_each_node_has_left():
    there = [pod(f"p-{i}", nodeName="a") for i in range(8)]
    cluster = knows(cluster_state([node("a"), node("b")], there, [measured("a"), measured("b")]), p=(2.0, 4.0, 64 * MI))
    assert cost_in_words(cluster, pod("p")) == (
        "Takes 500m CPU, 2 core-seconds and 64Mi of memory, by 9 pods of its kind that have ended"
    )
    verdicts = explain(cluster, pod("p"), profile(), NOW)
    assert [(v.node, v.left) for v in verdicts] == [("b", "4.6 CPU, 7.6Gi"), ("a", "600m CPU, 7.1Gi")]
    assert "LEFT" in render(pod("p"), [], verdicts)


def test_an_explanation_admits_that_nothing_is_known():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(2.0, 4.0, 64 * MI))
    cluster.kinds.set_table({"elsewhere/Job/x@y": next(iter(cluster.kinds.table.values()))})
    assert cost_in_words(cluster, pod("p")).startswith("Nothing is known of pods of its kind")
    assert cost_in_words(cluster_state([]), pod("p")) == "", "nothing is measured of any kind: pods count as units"


def test_a_node_that_is_over_shows_it():
    there = [pod(f"p-{i}", nodeName="n") for i in range(12)]
    cluster = knows(cluster_state([node("n")], there, [measured("n")]), p=(2.0, 4.0, 64 * MI))
    (verdict,) = explain(cluster, pod("p"), profile(), NOW)
    assert verdict.left.startswith("-1.4 CPU")


def small_and_large(**over):
    """Nine small pods that fill a node, and one that takes nearly all of it."""
    return [pod(f"small-{i}") for i in range(9)] + [pod("large", **over)]


def one_node():
    return knows(cluster_state([node("n")], [], [measured("n")]), small=(0.0, 4.0, 800 * MI), large=(0.0, 4.0, 7 * GI))


def placed_first(cluster, *pods):
    return run(cluster, *pods).decisions[0].pod.name


def test_of_pods_created_in_the_same_second_those_that_take_most_of_a_node_come_first():
    assert placed_first(one_node(), *small_and_large()) == "large"


@pytest.mark.parametrize(
    "over", [{"created": "2026-03-01T12:00:01Z"}, {"namespace": "other"}], ids=["created later", "of another namespace"]
)
def test_a_large_pod_takes_no_other_pods_turn(over):
    cluster = one_node()
    knows_more = NodeKinds()
    for each in small_and_large(**over):
        measured_pod = PodMeasurement(0.0, 4.0, 4.0, (7 * GI if each.name == "large" else 800 * MI), True)
        knows_more.pod_ended(each.kind, measured_pod, 0.0)
    cluster.kinds.set_table(knows_more.table((), 0.0))
    assert placed_first(cluster, *small_and_large(**over)) == "small-0"


def test_while_nothing_is_measured_the_queues_order_stays():
    assert placed_first(cluster_state([node("n")], [], [capacity("n", 5.0)]), *small_and_large()) == "small-0"


class Stream:
    """Two nodes full of small pods of which one ends a second, more of them waiting, and one large pod among those."""

    def __init__(self, *, wait_seconds):
        self.profile = profile(large_pod_wait_seconds=wait_seconds)
        self.small = [pod(f"small-{i}", nodeName=("a", "b")[i % 2], phase="Running") for i in range(18)]
        self.cluster = cluster_state([node("a"), node("b")], self.small, [measured("a"), measured("b")])
        knows(self.cluster, small=(0.5, 1.0, MI), large=(3.0, 1.0, MI))
        self.made = 0

    def second(self, now, large):
        self.cluster.set_pod(replace(self.small.pop(0), phase="Succeeded"), now)
        for name in ("a", "b"):  # agents go on reporting
            self.cluster.set_capacity(replace(measured(name), resource_version=str(10 + int(now))), now)
        self.made += 1
        small = replace(pod(f"small-{100 + self.made}"), created=now)
        result = schedule(
            self.cluster, [large, small], {"concerto": self.profile}, now=now, generator=np.random.default_rng(1)
        )
        for decision in result.decisions:
            if decision.pod.name == large.name:
                return decision
            self.small.append(replace(decision.pod, node_name=decision.assignment.node, phase="Running"))
        return None


def test_a_large_pod_does_not_wait_for_ever_behind_small_ones_that_take_each_place_that_comes_free():
    stream = Stream(wait_seconds=30.0)
    large = replace(pod("large"), created=NOW)
    placed_at = next((s for s in range(300) if stream.second(NOW + s, large) is not None), None)
    assert placed_at is not None
    assert 30 <= placed_at <= 60, "a node is drained for it once it has waited for largePodWait"
