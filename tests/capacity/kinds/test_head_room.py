"""How far nodes are filled, by how unsteadily their pods use CPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_kind import Kind
from concerto.capacity.cpu_demand import RecentMean
from concerto.capacity.kinds.cost import Cost, estimate
from concerto.capacity.kinds.merging import merged, possible, read_rows
from concerto.capacity.kinds.node_loads import NodeLoads
from concerto.capacity.kinds.settings import KindSettings
from concerto.capacity.kinds.sums import FIELDS, KindSums, PodMeasurement
from concerto.capacity.kinds.table import NodeKinds

UNKNOWN = KindSettings().head_room


def loads(cores=4.0, nodes=1):
    found = NodeLoads()
    found.grow(nodes)
    for row in range(nodes):
        found.set_node(row, cores, 2.0**40)
    return found


def cost(share, peak):
    variance = None if peak is None else share * max(0.0, peak - share)
    return Cost(share, 10.0, 10.0 / share, 0.0, 10.0, "Ended", variance)


def filled(pod, cores=4.0):
    """What a node is filled to that has such pods, and how many of them it takes."""
    nodes, pods = loads(cores), 0
    while pods < 1000 and nodes.fits(pod, slice(None))[0]:
        nodes.add_pod(0, pod)
        pods += 1
    return float(nodes.head_room[0]), pods


def test_a_node_of_which_nobody_knows_how_unsteady_its_pods_are_is_filled_as_before():
    assert filled(cost(0.5, None))[0] == pytest.approx(UNKNOWN)
    assert loads().head_room[0] == UNKNOWN


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_a_node_takes_no_more_pods_that_always_compute_than_it_has_cpus(share):
    head_room, pods = filled(cost(share, 1.0))
    assert head_room < 1.07
    assert pods == (4 if share == 1.0 else 5)  # the last one may stand over


def test_pods_that_compute_on_all_cpus_by_turns_are_placed_until_one_nearly_always_computes():
    """Six pods that each use four cores for a fifth of the time leave no pod to compute for a quarter of it."""
    head_room, pods = filled(cost(0.8, 4.0))
    assert head_room > 1.6
    assert pods >= 8


@given(st.floats(0.05, 3.5), st.floats(0.0, 1.0), st.sampled_from([1.0, 2.0, 4.0, 8.0, 64.0]))
def test_a_node_is_filled_the_further_the_less_steady_its_pods_are_and_the_less_the_more_cpus_it_has(s, part, cores):
    peak = s + part * (4.0 - s)
    nodes = [loads(cores), loads(cores), loads(2 * cores)]
    for each, p in zip(nodes, (s, peak, peak)):
        each.add_pod(0, cost(s, p))
    steady, unsteady, larger = (float(each.head_room[0]) for each in nodes)
    assert 1.0 == steady <= unsteady <= KindSettings().max_head_room
    assert larger <= unsteady


@given(st.lists(st.tuples(st.floats(0.01, 4.0), st.none() | st.floats(0.01, 8.0)), min_size=1, max_size=20))
def test_pods_that_have_gone_leave_nothing_behind(pods):
    nodes = loads(nodes=2)
    stays = cost(0.8, 4.0)
    for row in range(2):
        nodes.add_pod(row, stays)
    for share, peak in pods:
        nodes.add_pod(0, cost(share, peak))
    for share, peak in pods:
        nodes.change_cost(np.array([0]), cost(share, peak), cost(1.0, 2.0), np.ones(1))
    assert nodes.head_room[0] != nodes.head_room[1]
    for _ in pods:
        nodes.remove_pod(0, cost(1.0, 2.0))
    assert nodes.head_room[0] == pytest.approx(nodes.head_room[1], abs=1e-6)
    for row in range(2):
        nodes.remove_pod(row, stays)
    assert nodes.head_room.tolist() == [UNKNOWN, UNKNOWN]


def idles(nodes, pod, used, seconds=60):
    for second in range(seconds):
        if nodes.fits(pod, slice(None))[0]:
            nodes.add_pod(0, pod)
        nodes.observe(0, used, True, float(second))
    return float(nodes.head_room[0])


def test_steady_pods_are_given_no_more_head_room_where_cpus_idle_between_two_generations_of_them():
    steady = loads()
    assert idles(steady, cost(0.98, 1.0), 0.7) == 1.0
    assert min(idles(loads(), cost(0.5, peak), 0.7) for peak in (1.0, None)) > 1.5
    steady.add_pod(0, cost(0.5, 4.0))
    assert steady.head_room[0] < 1.5, "what was not given then is not given at once later"


@pytest.mark.parametrize("every", [1, 3, 10])
def test_cpus_that_idled_before_a_node_was_filled_are_no_reason_to_fill_it_further(every):
    """Its CPUs are in use from then on, but for some seconds the mean that its agent publishes is that of before."""
    nodes, published = loads(), RecentMean(1)
    for second in range(120):
        published.add(np.array([float(second >= 60)]), 1.0)
        while second >= 60 and nodes.fits(cost(0.5, None), slice(None))[0]:
            nodes.add_pod(0, cost(0.5, None))
        if second % every == every - 1:
            nodes.observe(0, float(published.mean[0]), second >= 60, float(second))
    assert nodes.head_room[0] <= UNKNOWN + 0.03


def test_a_later_process_goes_on_with_what_the_one_before_had_seen():
    nodes = loads()
    for _ in range(6):
        nodes.add_pod(0, cost(0.5, 1.0))
    by_pods = float(nodes.head_room[0])
    for recorded in (by_pods, by_pods + 0.2, 5.0):
        nodes.set_head_room(0, recorded)
        assert nodes.head_room[0] == pytest.approx(min(recorded, KindSettings().max_head_room))
    nodes.set_head_room(0, 1.0)
    assert nodes.head_room[0] == pytest.approx(by_pods)


KIND = Kind(("a@1", "a", "i", "j", ""))


def ended(work, held, peak, started=0.0):
    return KindSums.of_ended(PodMeasurement(work, held, held, 0.0, True, started=started, peak_work=work * peak))


def peak_of(sums):
    cost = estimate({KIND.key: sums}, KIND)
    return cost.share + cost.variance / cost.share


def test_what_pods_use_while_they_compute_is_the_mean_over_what_they_compute():
    both = ended(3.0, 10.0, 4.0).plus(ended(1.0, 10.0, 1.0))
    assert peak_of(both) == pytest.approx((3.0 * 4.0 + 1.0) / 4.0)
    assert estimate({KIND.key: ended(3.0, 10.0, 0.0)}, KIND).variance is None, "an older agent does not say"


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize("known", range(4))
def test_a_group_of_which_it_is_not_known_says_nothing_of_it(known, endless):
    """Pods of the kind itself have run only, or had older agents; pods of others with its images compute on 4 cores."""
    kind = Kind(("a@1", "a", "i", "j", ""), endless)
    table = {key: ended(3.0, 10.0, 4.0 if group == known else 0.0) for group, key in enumerate(kind.keys[:4])}
    assert estimate(table, kind).variance == pytest.approx(0.3 * 3.7)


def test_pods_that_run_without_end_compute_as_those_with_their_images_that_have_ended():
    kind = Kind(("a@1", "a", "i", "j", ""), True)
    running = KindSums.of_running(PodMeasurement(30.0, 100.0, 100.0, 0.0, False, recent=0.3))
    table = {"a@1": running, "a": running, "i": ended(3.0, 10.0, 4.0), "j": ended(3.0, 10.0, 4.0)}
    assert estimate(table, kind).variance == pytest.approx(0.3 * 3.7)


def test_starts_and_ends_make_pods_dearer_and_not_less_steady():
    plain, with_start = (estimate({KIND.key: ended(3.0, 10.0, 1.0, started)}, KIND) for started in (0.0, 2.0))
    assert (plain.work, plain.started, with_start.work, with_start.started) == (3.0, 0.0, 3.0, 2.0)
    assert with_start.share == pytest.approx(0.5)
    assert with_start.variance == plain.variance == pytest.approx(0.3 * 0.7)


def test_pods_use_no_more_cores_than_their_node_has_whatever_it_says():
    rows = possible(np.array([ended(3.0, 10.0, 400.0)]), 4.0, np.inf)
    assert peak_of(merged(rows)) == pytest.approx(4.0)


@pytest.mark.parametrize("work", [5e-324, 1e-9, 1.0, 1e30])
def test_whatever_is_said_of_it_a_node_is_filled_to_some_number_and_what_others_use_is_not_lost(work):
    said = KindSums(1.0, work, 1e30, 10.0, 10.0, running=1.0, running_work=1.0, running_held=100.0)
    for endless in (False, True):
        nodes = loads()
        nodes.add_pod(0, cost(0.8, 4.0))
        before, odd = nodes.head_room[0], estimate({KIND.key: said}, Kind(KIND.keys, endless))
        nodes.add_pod(0, odd)
        assert 1.0 <= nodes.head_room[0] <= KindSettings().max_head_room
        nodes.remove_pod(0, odd)
        assert work == 1e30 or nodes.head_room[0] == pytest.approx(before, abs=1e-6)


def test_one_of_many_nodes_that_lies_about_it_makes_little_difference():
    rows = np.array([ended(3.0, 10.0, 1.0)] * 9 + [ended(3.0, 10.0, 64.0)])
    assert peak_of(merged(rows)) <= 1.4


SINGLE_THREAD = [64.0, 1600.0, 40000.0, 1640.0, 1640.0]
"""What an agent of a former version publishes: 64 pods of 25 CPU seconds, the third number being their squares."""


def test_squares_of_cpu_time_that_a_former_version_has_published_are_not_taken_for_cores():
    """They were, and pods of one thread that always compute had been placed 7 to 4 CPUs."""
    old = KindSums.from_list(SINGLE_THREAD)
    _, rows = read_rows([("a@1", tuple(SINGLE_THREAD))])
    assert old == KindSums(*rows[0].tolist())
    assert estimate({"a@1": old}, KIND).variance is None
    with pytest.raises(ValueError, match="18 numbers"):
        KindSums.from_list([0.0] * 18)


def test_an_agent_goes_on_with_what_a_former_version_has_published():
    kinds = NodeKinds()
    kinds.recall({KIND.key: KindSums.from_list(SINGLE_THREAD)}, 0.0, 0.0)
    assert filled(replace(estimate(kinds.table((), 0.0), KIND), memory=0.0))[0] < 1.07


@given(st.lists(st.floats(0.0, 1e6), min_size=len(FIELDS), max_size=len(FIELDS)))
def test_what_is_published_is_read_again_in_both_ways(numbers):
    sums = KindSums(*(float(f"{n:.4g}") for n in numbers))
    assert KindSums.from_list(sums.to_list()) == sums
    found = read_rows([("a", tuple(sums.to_list()))])
    assert found is not None and KindSums(*found[1][0].tolist()) == sums
