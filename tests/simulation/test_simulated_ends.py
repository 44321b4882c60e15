"""A pod's end is shown twice: its container has ended, and later its kubelet has taken it down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling import scenario
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.experiments import Task, run_task
from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_model import GIB, Change, NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.fitting_requests import natural_share
from concerto.simulation.scheduling.policies.raw_pods import kind_of_job
from concerto.simulation.scheduling.setup import Fault, NodeSpec, Setup
from concerto.simulation.scheduling.workloads import JobSpec

TAKES = NodeModelSettings(
    start_seconds=(0.0, 0.0),
    start_when_full_seconds=0.0,
    end_seconds=(0.5, 0.5),
    teardown_seconds=1.0,
    spike_seconds=0.0,
    spike_threads=0,
    system_cpu=0.0,
    system_memory_bytes=0.0,
)
POD = PodLoad(wait_seconds=1.0, core_seconds=1.0)


def changes(model, until):
    return {t.change: t for t in model.advance(until)}


def fleet(settings=TAKES):
    return NodeFleet([1.0], [8 * GIB], np.random.default_rng(0), settings)


def setup_of(load=POD, count=40, plant=TAKES, **more):
    return Setup((NodeSpec(count=2, cores=2.0, **more),), (JobSpec("pods", count, load),), plant=plant)


def figures(policy, setup):
    return run_task(Task(setup, policy, 1, CapacitySettings())).figures


def test_the_end_of_the_container_is_reported_before_the_pod_has_been_taken_down():
    model = fleet()
    model.start("pod", 0, POD, 0.0)
    seen = changes(model, 10.0)
    assert [seen[each].at for each in (Change.EXITED, Change.ENDED, Change.TERMINATED)] == [2.0, 2.5, 3.5]
    measured = seen[Change.ENDED].measured
    assert (measured.life, measured.held, measured.ended) == (2.5, 2.5, True), "its place is free once that is shown"
    assert seen[Change.TERMINATED].reason == "Completed"


def test_containers_that_end_between_two_looks_of_kubelet_are_seen_together():
    """Pods that are placed when others are seen to end go on in step with kubelet's looks."""
    model = NodeFleet([8.0] * 2, [8 * GIB] * 2, np.random.default_rng(0), replace(TAKES, end_seconds=(0.2, 1.2)))
    for i in range(40):
        model.start(i, i % 2, PodLoad(core_seconds=1.0, wait_seconds=i * 0.1), 0.0)
    seen = [t for t in model.advance(100.0) if t.change in (Change.EXITED, Change.ENDED)]
    exited = {t.pod: t.at for t in seen if t.change is Change.EXITED}
    ends = [t for t in seen if t.change is Change.ENDED]
    looks = {node: np.unique([round(t.at, 6) for t in ends if t.node == node]) for node in (0, 1)}
    for node in (0, 1):
        assert np.diff(looks[node]) == pytest.approx([1.0] * (len(looks[node]) - 1))
    assert (looks[0][0] - looks[1][0]) % 1.0 > 0.01, "each kubelet at its own time"
    delays = [t.at - exited[t.pod] for t in ends]
    assert 0.2 <= min(delays) + 1e-9 < max(delays) <= 1.2 + 1e-9


@pytest.mark.parametrize(("core_seconds", "down_at"), [(0.25, 3.5), (1.5, 4.0)])
def test_taking_a_pod_down_takes_its_time_and_the_work_beside_it(core_seconds, down_at):
    model = fleet(replace(TAKES, end_core_seconds=core_seconds))
    model.start("pod", 0, POD, 0.0)
    assert changes(model, 10.0)[Change.TERMINATED].at == down_at


def test_a_pod_that_is_deleted_ends_in_the_same_steps():
    model = fleet()
    model.start("pod", 0, POD, 0.0)
    model.advance(1.0)
    model.delete("pod", 0, 1.0)
    seen = changes(model, 10.0)
    assert [(t.at, t.reason) for t in (seen[Change.ENDED], seen[Change.TERMINATED])] == [
        (1.5, "Deleted"),
        (2.5, "Deleted"),
    ]


@pytest.mark.parametrize("policy", ["kube-scheduler@500m", "kube-vpa", "random", "kube-one-by-one@500m"])
def test_who_waits_for_the_phase_sees_only_how_long_both_take_together(policy):
    """Requests count until the phase is terminal: what is shown before is of no use to kube-scheduler."""
    at_once = replace(TAKES, end_seconds=(1.5, 1.5), teardown_seconds=0.0)
    ours, theirs = (figures(policy, setup_of(plant=plant)) for plant in (TAKES, at_once))
    assert ours == theirs


def test_pods_of_kube_scheduler_wait_until_others_have_been_taken_down():
    soon = replace(TAKES, teardown_seconds=0.0)
    slow, quick = (figures("kube-scheduler@1000m", setup_of(plant=plant))["jct_s"] for plant in (TAKES, soon))
    assert slow - quick == pytest.approx(9 * 1.0, abs=0.5), "10 pods after each other, four at a time"


@pytest.mark.parametrize("policy", ["concerto-known", "concerto-without-kinds"])
def test_concerto_gives_the_place_away_once_the_container_has_ended(policy):
    """Teardown takes 3 s of each pod's place for kube-scheduler, and none of it for Concerto."""
    slow = replace(TAKES, teardown_seconds=3.0)
    for_kube, for_us = (figures(each, setup_of(plant=slow))["jct_s"] for each in ("kube-scheduler@1000m", policy))
    before = figures(policy, setup_of(plant=replace(TAKES, teardown_seconds=0.0)))["jct_s"]
    assert for_us < 1.1 * before
    assert for_us < for_kube - 15.0


def test_requests_and_the_number_of_pods_count_until_the_pod_has_been_taken_down():
    slow = replace(TAKES, teardown_seconds=3.0)
    job = JobSpec("pods", 8, POD, cpu_request_millicores=1000)
    by_requests = replace(setup_of(plant=slow), jobs=(job,))
    # Two pods a node at a time, each with its request for 1 + 1 + 0.5 + 3 s
    assert figures("concerto-known", by_requests)["jct_s"] == pytest.approx(5.5 + 2.0, abs=0.6)
    by_number = setup_of(plant=slow, count=8, max_pods=2)
    assert figures("concerto-known", by_number)["jct_s"] == pytest.approx(5.5 + 2.0, abs=0.6)


def test_agents_measure_how_long_a_place_was_held_until_the_end_was_shown():
    policy = Concerto()
    setup = replace(setup_of(plant=replace(TAKES, teardown_seconds=5.0)), limit_seconds=60.0)
    World(setup, policy, 1).run()
    sums = policy.agents.cluster_kinds.table()[kind_of_job(setup.jobs[0]).key]
    # 1 + 1 + 0.5 s where no other pod computes; the plant counts no wait for a CPU
    assert sums.work / sums.held == pytest.approx(natural_share(setup.jobs[0], setup.plant), rel=0.15)


def test_an_outage_that_hides_both_reports_shows_the_end_after_it():
    setup = replace(setup_of(count=60), faults=(Fault("ApiOutage", 3, 20),))
    found = figures("concerto-known", setup)
    assert (found["lost_pods"], found["double_binds"], found["overcommits"]) == (0, 0, 0)
    assert found["jct_s"] is not None


def test_a_scenario_may_say_how_long_teardown_takes():
    text = "jobs:\n  - {name: a, count: 1, coreSeconds: 1}\nplant: {teardownSeconds: 0.4}\n"
    assert scenario.parse(text, "x.yaml").setup.plant.teardown_seconds == 0.4
