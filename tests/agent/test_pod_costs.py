"""What pods cost by kind, from readings of their cgroups."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_kind import CLUSTER, kind_of_pod
from concerto.api.timestamps import format_timestamp
from concerto.capacity.kinds.cost import estimate
from concerto.capacity.kinds.sums import KindSums
from concerto.capacity.kinds.table import from_entries
from concerto_agent.pod_census import trim_pod
from concerto_agent.pod_costs import PodCosts
from concerto_agent.pod_reader import PodReading

WALL, NOW = 1_800_000_000.0, 1000.0


def raw(name, *, job="pi", image="pi:1", limit=None, accepted=None, phase="Running"):
    resources = {"limits": {"cpu": limit}} if limit else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "ownerReferences": [{"kind": "Job", "name": job, "controller": True, "uid": "j"}],
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": image, "resources": resources}]},
        "status": {"phase": phase} | ({} if accepted is None else {"startTime": format_timestamp(accepted)}),
    }


def shown_ended(costs, name, at, **pod):
    """The API server shows that the pod has ended."""
    costs.on_pod(trim_pod(raw(name, **pod)), trim_pod(raw(name, phase="Succeeded", **pod)), at, WALL + at - NOW)


def run(costs, name, *, work, life, lost, memory=1e6, tasks_per_cpu=1.0, pressure=True, peak=0.0, **pod):
    """A pod that lives for so long, read five times in between, and ends at NOW + life."""
    costs.on_pod(None, trim_pod(raw(name, **pod)), NOW, WALL)
    for part in range(1, 6):
        stalled, used = lost * part / 5 if pressure else None, work * part / 5
        reading = PodReading(used, stalled, stalled, memory * part / 5, peak * used)
        costs.read({f"uid-{name}": reading}, tasks_per_cpu)
    costs.ended(f"uid-{name}", NOW, NOW + life)
    shown_ended(costs, name, NOW + life, **pod)


def cost_of(costs, now=NOW + 100.0, **pod):
    return estimate(from_entries(costs.entries({}, now)), kind_of_pod(raw("next", **pod)))


@pytest.mark.parametrize("pods_on_the_cpu", [1, 2, 4, 8])
def test_the_share_of_a_kind_is_the_same_on_an_idle_and_on_an_overloaded_node(pods_on_the_cpu):
    """Two seconds of waiting and one core-second: with n on one CPU, n - 1 seconds are lost for each that is worked."""
    costs = PodCosts()
    for i in range(20):
        lost = 1.0 * (pods_on_the_cpu - 1)
        run(costs, f"p{i}", work=1.0, life=3.0 + lost, lost=lost)
    cost = cost_of(costs)
    assert cost.share == pytest.approx(1 / 3, rel=0.01)
    assert cost.work == pytest.approx(1.0, rel=0.01)
    assert cost.memory == pytest.approx(1e6, rel=0.05)


@pytest.mark.parametrize("tasks_per_cpu", [1.0, 2.0, 8.0])
def test_where_pods_have_no_pressure_the_nodes_demand_shows_what_they_lost(tasks_per_cpu):
    costs = PodCosts()
    for i in range(20):
        life = 2.0 + 1.0 * tasks_per_cpu
        run(costs, f"p{i}", work=1.0, life=life, lost=0.0, pressure=False, tasks_per_cpu=tasks_per_cpu)
    assert cost_of(costs).share == pytest.approx(1 / 3, rel=0.01)


def test_a_quota_is_no_contention():
    """Half a CPU allowed, four core-seconds wanted: seven of eight seconds are lost to the quota's own throttling."""
    costs = PodCosts()
    for i in range(20):
        run(costs, f"p{i}", work=4.0, life=8.0, lost=7.0, limit="500m")
    assert cost_of(costs, limit="500m").share == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("limit, peak", [(None, 4.0), ("1", 1.0), ("2", 2.0), ("8", 4.0)])
def test_a_pod_uses_no_more_cores_while_it_computes_than_its_quota_gives(limit, peak):
    """Four threads; a quota of one CPU lets them run for a quarter of each period, and others for the rest of it."""
    costs = PodCosts()
    for i in range(20):
        run(costs, f"p{i}", work=4.0, life=10.0, lost=0.0, peak=4.0, limit=limit)
    assert cost_of(costs, limit=limit).variance == pytest.approx(0.4 * (peak - 0.4), rel=0.01)


def test_life_begins_when_kubelet_takes_the_pod_in():
    costs = PodCosts()
    for i in range(20):
        run(costs, f"p{i}", work=1.0, life=5.0, lost=0.0, accepted=WALL - 5.0)
    assert cost_of(costs).share == pytest.approx(1 / 10, rel=0.01)


def test_life_begins_when_the_pod_is_bound_where_kubelet_has_not_taken_it_in_yet():
    costs = PodCosts()
    for i in range(20):
        bound = trim_pod(raw(f"p{i}"))
        costs.on_pod(None, bound, NOW - 1.3, WALL - 1.3)
        costs.on_pod(bound, trim_pod(raw(f"p{i}", accepted=WALL - 2.0)), NOW - 1.0, WALL - 1.0)
        costs.read({f"uid-p{i}": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
        costs.ended(f"uid-p{i}", NOW, NOW + 2.7)
        shown_ended(costs, f"p{i}", NOW + 2.7)
    assert cost_of(costs).share == pytest.approx(1 / 4, rel=0.01)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_wall_clock_that_is_set_makes_no_pod_older_or_younger(step):
    costs = PodCosts()
    pod = raw("p", accepted=WALL - 5.0)
    costs.on_pod(None, trim_pod(pod), NOW, WALL)
    costs.on_pod(trim_pod(pod), trim_pod(pod), NOW + 1.0, WALL + step)
    costs.read({"uid-p": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
    costs.ended("uid-p", NOW, NOW + 5.0)
    shown_ended(costs, "p", NOW + 5.0)
    table = from_entries(costs.entries({}, NOW + 5.0))
    assert table[CLUSTER].life == pytest.approx(10.0)


@pytest.mark.parametrize(("shown_after", "held"), [(0.0, 5.0), (1.5, 6.5), (3600.0, 5.0)])
def test_a_pod_holds_its_place_until_the_api_server_shows_its_end_unless_that_takes_forever(shown_after, held):
    costs = PodCosts()
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    costs.read({"uid-p": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
    costs.ended("uid-p", NOW, NOW + 5.0)
    shown_ended(costs, "p", NOW + 5.0 + shown_after)
    assert from_entries(costs.entries({}, NOW + 5000.0))[CLUSTER].held == pytest.approx(held, rel=0.01)


def test_starts_and_ends_that_an_overloaded_node_holds_up_make_no_kind_cheaper():
    costs = PodCosts()
    for i, (start, teardown) in enumerate([(1.0, 0.5)] * 4 + [(6.0, 3.0)] * 16):
        pod = raw(f"p{i}", accepted=WALL - start)
        costs.on_pod(None, trim_pod(pod), NOW, WALL)
        costs.read({f"uid-p{i}": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
        costs.ended(f"uid-p{i}", NOW, NOW + 2.5)
        shown_ended(costs, f"p{i}", NOW + 2.5 + teardown)
    assert cost_of(costs).share == pytest.approx(20.0 / (4 * 4.0 + 16 * 4.5), rel=0.01)


@pytest.mark.parametrize("held_up", [0.0, 6.0], ids=["idle", "overloaded"])
def test_pods_that_wait_until_kubelet_looks_for_their_ends_cost_the_same_on_an_idle_and_on_an_overloaded_node(held_up):
    """kubelet looks once a second, so that a place of 1 + 2 + 0.2 s is held for half a second more on average."""
    costs = PodCosts()
    for i in range(84):
        extra = held_up if i >= 20 else 0.0
        costs.on_pod(None, trim_pod(raw(f"p{i}", accepted=WALL - 1.0 - extra)), NOW, WALL)
        costs.read({f"uid-p{i}": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
        costs.exited(f"uid-p{i}", NOW + 2.0)
        costs.ended(f"uid-p{i}", NOW, NOW + 2.2)
        shown_ended(costs, f"p{i}", NOW + 2.2 + (i % 11) / 10)
    assert cost_of(costs).share == pytest.approx(1.0 / 3.7, rel=0.05)


def test_a_runtime_that_an_overloaded_node_keeps_from_removing_cgroups_makes_no_kind_cheaper():
    costs = PodCosts()
    for i, removal in enumerate([0.5] * 4 + [6.0] * 16):
        costs.on_pod(None, trim_pod(raw(f"p{i}", accepted=WALL - 1.0)), NOW, WALL)
        costs.read({f"uid-p{i}": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
        costs.exited(f"uid-p{i}", NOW + 2.5)
        costs.ended(f"uid-p{i}", NOW, NOW + 2.5 + removal)
        shown_ended(costs, f"p{i}", NOW + 2.5 + removal)
    assert cost_of(costs).share == pytest.approx(20.0 / (4 * 4.0 + 16 * 4.5), rel=0.01)


def test_the_end_of_a_pod_that_was_not_read_before_is_known_as_well():
    costs = PodCosts()
    for i, removal in enumerate([0.5] * 4 + [6.0] * 16):
        costs.on_pod(None, trim_pod(raw(f"p{i}", accepted=WALL - 1.0)), NOW, WALL)
        costs.exited(f"uid-p{i}", NOW + 0.5)
        costs.read({f"uid-p{i}": PodReading(0.4, 0.0, 0.0, 1e6)}, 1.0)
        costs.ended(f"uid-p{i}", NOW, NOW + 0.5 + removal)
        shown_ended(costs, f"p{i}", NOW + 0.5 + removal)
    assert cost_of(costs).share == pytest.approx(20 * 0.4 / (4 * 2.0 + 16 * 2.5), rel=0.01)


def test_a_container_that_ends_before_others_does_not_end_its_pod():
    costs = PodCosts()
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    costs.read({"uid-p": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
    for second in (1.0, 5.0):
        costs.exited("uid-p", NOW + second)
    costs.ended("uid-p", NOW, NOW + 5.0)
    shown_ended(costs, "p", NOW + 5.0)
    assert from_entries(costs.entries({}, NOW + 5.0))[CLUSTER].held == pytest.approx(5.0)


def test_a_pod_that_ended_after_the_api_server_had_shown_it_is_complete_at_once():
    costs = PodCosts()
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    costs.read({"uid-p": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
    shown_ended(costs, "p", NOW + 4.0)
    costs.ended("uid-p", NOW, NOW + 5.0)
    assert from_entries(costs.entries({}, NOW + 5.0))[CLUSTER].held == pytest.approx(5.0)


def test_a_pod_whose_end_never_shows_is_complete_after_a_while():
    costs = PodCosts()
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    costs.read({"uid-p": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
    costs.ended("uid-p", NOW, NOW + 5.0)
    assert not costs.entries({}, NOW + 6.0)
    assert from_entries(costs.entries({}, NOW + 60.0))[CLUSTER].held == pytest.approx(5.0, rel=0.01)


def test_starts_and_ends_are_part_of_what_pods_cost():
    costs = PodCosts()
    for i in range(200):
        costs.start_cost.started_or_ended()
        costs.start_cost.spent(0.5 * (i + 1))
        costs.start_cost.started_or_ended()
        run(costs, f"p{i}", work=1.0, life=3.0, lost=0.0)
    assert cost_of(costs).work == pytest.approx(1.0, rel=0.05), "which is the pod's own, and what its node has to do"
    assert cost_of(costs).share == pytest.approx(0.5, rel=0.05)


def test_the_first_pod_is_not_charged_with_the_starts_of_all_others():
    costs = PodCosts()
    for _ in range(20):
        costs.start_cost.started_or_ended()
    costs.start_cost.spent(20 * 0.5)
    costs.start_cost.started_or_ended()
    run(costs, "p", work=1.0, life=3.0, lost=0.0)
    assert 1.5 <= 3.0 * cost_of(costs).share < 2.5, "its own start, and an end like it"


def test_the_first_load_and_the_first_end_of_a_kind_are_news():
    costs = PodCosts()
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    costs.read({"uid-p": PodReading(0.01, 0.0, 0.0, 1e6)}, 1.0)
    assert not costs.has_news
    costs.read({"uid-p": PodReading(1.0, 0.0, 0.0, 1e6)}, 1.0)
    assert costs.has_news
    costs.entries({"uid-p": NOW}, NOW + 2.0)
    costs.read({"uid-p": PodReading(2.0, 0.0, 0.0, 1e6)}, 1.0)
    costs.entries({"uid-p": NOW}, NOW + 4.0)
    costs.read({"uid-p": PodReading(3.0, 0.0, 0.0, 1e6)}, 1.0)
    assert not costs.has_news
    costs.ended("uid-p", NOW, NOW + 5.0)
    shown_ended(costs, "p", NOW + 5.0)
    assert costs.has_news
    costs.entries({}, NOW + 6.0)
    run(costs, "q", work=1.0, life=2.0, lost=0.0)
    assert not costs.has_news


def test_an_agent_that_is_started_again_remembers_what_pods_cost_and_measures_anew_what_runs():
    before, after = PodCosts(), PodCosts()
    for i in range(20):
        run(before, f"p{i}", work=1.0, life=2.0, lost=0.0)
    before.on_pod(None, trim_pod(raw("q")), NOW, WALL)
    before.read({"uid-q": PodReading(50.0, 0.0, 0.0, 5e9)}, 1.0)
    after.recall(before.entries({"uid-q": NOW}, NOW + 20.0), 3600.0, NOW)
    one, other = cost_of(after), cost_of(before)
    assert (one.share, one.work) == pytest.approx((other.share, other.work), rel=1e-3)
    sums = from_entries(after.entries({}, NOW))[CLUSTER]
    assert (sums.running, sums.max_running_work) == (0.0, 0.0)


def test_what_is_recalled_late_is_added_to_what_was_measured_since():
    costs = PodCosts()
    run(costs, "p", work=1.0, life=2.0, lost=0.0)
    published = costs.entries({}, NOW + 2.0)
    costs.recall(published, 0.0, NOW + 2.0)
    assert from_entries(costs.entries({}, NOW + 2.0))[CLUSTER].ended == pytest.approx(2.0, rel=0.01)


def test_what_a_pod_uses_of_late_shows_between_two_looks():
    costs, counted = PodCosts(), {"uid-p": NOW}
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    for second in range(1, 6):
        costs.read({"uid-p": PodReading(0.8 * second, 0.0, 0.0, 1e6)}, 1.0)
        entries = costs.entries(counted, NOW + second)
    assert from_entries(entries)[CLUSTER].max_running_recent == pytest.approx(0.8)


def test_pods_that_run_are_in_it_and_each_pod_is_counted_once():
    costs = PodCosts()
    costs.on_pod(None, trim_pod(raw("p")), NOW, WALL)
    costs.read({"uid-p": PodReading(3.0, 0.0, 0.0, 5e6)}, 1.0)
    running = from_entries(costs.entries({"uid-p": NOW}, NOW + 10.0))[CLUSTER]
    assert (running.running, running.running_work, running.running_held) == (1.0, 3.0, 10.0)
    costs.ended("uid-p", NOW, NOW + 12.0)
    costs.ended("uid-p", NOW, NOW + 12.0)
    shown_ended(costs, "p", NOW + 12.0)
    shown_ended(costs, "p", NOW + 12.0)
    ended = from_entries(costs.entries({}, NOW + 12.0))[CLUSTER]
    assert (ended.ended, ended.work, ended.running) == (1.0, 3.0, 0.0)


def test_pods_of_different_kinds_are_distinguished_and_a_new_image_is_another_kind():
    costs = PodCosts()
    for i in range(10):
        run(costs, f"pi{i}", work=1.0, life=2.0, lost=0.0)
        run(costs, f"web{i}", work=0.1, life=2.0, lost=0.0, job="web", image="web:1")
    assert cost_of(costs).share == pytest.approx(0.5, rel=0.1)
    assert cost_of(costs, job="web", image="web:1").share == pytest.approx(0.05, rel=0.1)
    assert kind_of_pod(raw("a", image="pi:1")).key != kind_of_pod(raw("a", image="pi:2")).key


def test_a_pod_that_does_not_count_or_was_never_read_costs_nothing():
    costs = PodCosts()
    costs.ended("uid-stranger", NOW, NOW + 5.0)
    costs.on_pod(None, trim_pod(raw("unread")), NOW, WALL)
    costs.ended("uid-unread", NOW, NOW + 5.0)
    assert costs.entries({"uid-stranger": NOW}, NOW + 5.0) == ()


def test_what_is_known_of_a_pod_goes_with_it():
    costs = PodCosts()
    for i in range(100):
        costs.exited(f"uid-p{i}", NOW)
        run(costs, f"p{i}", work=1.0, life=2.0, lost=0.0)
        costs.exited(f"uid-p{i}", NOW)
        costs.on_pod(trim_pod(raw(f"p{i}")), None, NOW, WALL)
        pod = trim_pod(raw(f"q{i}"))
        costs.on_pod(None, pod, NOW, WALL)
        costs.exited(f"uid-q{i}", NOW)
        costs.on_pod(pod, None, NOW, WALL)
    assert not costs._pods
    assert not costs._use
    assert not costs._exited


numbers = st.floats(0, 1e12, allow_nan=False)


@given(st.lists(st.tuples(numbers, st.none() | numbers, numbers, numbers, st.booleans()), max_size=20), numbers)
def test_whatever_is_read_the_sums_are_finite_and_can_be_read_back(rows, tasks_per_cpu):
    costs, counted = PodCosts(), {}
    for i, (work, lost, memory, life, ends) in enumerate(rows):
        costs.on_pod(None, trim_pod(raw(f"p{i}")), NOW, WALL)
        costs.read({f"uid-p{i}": PodReading(work, lost, lost, memory)}, tasks_per_cpu)
        if ends:
            costs.ended(f"uid-p{i}", NOW, NOW + life)
            shown_ended(costs, f"p{i}", NOW + life)
        else:
            counted[f"uid-p{i}"] = NOW
    for _, sums in costs.entries(counted, NOW + 10.0):
        assert all(math.isfinite(v) and v >= 0.0 for v in KindSums.from_list(sums))
