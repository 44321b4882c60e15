"""Gangs and priorities in the simulator: what its policies are worth, by gang completion, waste and evictions."""

from __future__ import annotations

import argparse

import pytest

from concerto.api.capacity_settings import CapacitySettings
from concerto.cli import simulate
from concerto.simulation.scheduling import evaluate_gangs, scenario
from concerto.simulation.scheduling.experiments import Task, run_task
from concerto.simulation.scheduling.gangs import Gangs
from concerto.simulation.scheduling.node_model import PodLoad
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec, SimPod

ONE_CORE = PodLoad(core_seconds=20.0)
HALVES = Setup(
    (NodeSpec(count=2),),
    (JobSpec("left", 6, ONE_CORE, gang=6), JobSpec("right", 6, ONE_CORE, gang=6)),
    limit_seconds=500.0,
)
"""8 CPUs, and two gangs that need 6 each."""
CRITICAL = Setup(
    (NodeSpec(count=2),),
    (
        JobSpec("batch", 16, PodLoad(core_seconds=40.0)),
        JobSpec("critical", 3, PodLoad(5.0, 5.0), priority=1000, arrivals=Arrivals(start_seconds=20.0)),
        JobSpec("training", 4, ONE_CORE, priority=1000, gang=4, arrivals=Arrivals(start_seconds=40.0)),
    ),
    limit_seconds=500.0,
)
"""8 CPUs full of batch, to which come pods and a gang of high priority."""


def figures(policy, setup, seed=1):
    return run_task(Task(setup, policy, seed, CapacitySettings())).figures


def member(uid, load=ONE_CORE):
    job = JobSpec("job", 2, load, gang=2)
    return SimPod(uid, job, load, 0.0, gang="job-gang-0")


def test_a_gang_begins_once_all_of_its_pods_run_and_what_they_waited_is_wasted():
    first, second = member("a"), member("b")
    gangs = Gangs((first.job,))
    for pod in (first, second):
        gangs.created(pod, 1.0)
    gangs.holds(first, 2.0)
    assert not gangs.runs(first, 0, 4.0)
    gangs.holds(second, 10.0)
    assert gangs.runs(second, 1, 12.0) == {"a": 0, "b": 1}
    for pod, end in ((first, 30.0), (second, 35.0)):
        gangs.exited(pod, end, completed=True)
    found = gangs.summary()
    assert (found["complete"], found["median_s"], found["waiting_core_s"]) == (1, 34.0, 10.0 + 2.0)


def test_a_pod_that_replaces_one_of_a_gang_that_has_begun_works_at_once():
    first, second, third = member("a"), member("b"), member("b~1")
    gangs = Gangs((first.job,))
    gangs.runs(first, 0, 1.0)
    gangs.runs(second, 1, 1.0)
    gangs.exited(second, 5.0, completed=False)
    gangs.holds(third, 6.0)
    assert gangs.runs(third, 2, 8.0) == {"b~1": 2}
    assert gangs.summary()["waiting_core_s"] == 0.0


def test_one_by_one_two_gangs_block_each_other_for_ever_and_with_a_reservation_for_five_minutes():
    one_by_one = figures("kube-one-by-one@1000m", HALVES)
    assert one_by_one["gangs"]["complete"] == 0
    assert one_by_one["gangs"]["waiting_core_s"] > 8 * 400
    reserved = figures("kube-reserve-and-wait@1000m", HALVES)
    assert reserved["gangs"]["median_s"] > 300 and reserved["gangs"]["waiting_core_s"] > 8 * 280


@pytest.mark.parametrize("policy", ["concerto", "kube-gangs@1000m"])
def test_gangs_that_are_decided_on_as_a_whole_do_not(policy):
    found = figures(policy, HALVES)["gangs"]
    assert found["complete"] == 2
    assert found["worst_s"] <= 1.1 * (12 * 20 / 8 + 2 * 4.0) + 20.0
    assert found["waiting_core_s"] <= 12 * 3.0


def test_pods_and_gangs_of_high_priority_start_at_once_by_the_eviction_of_few():
    ours = figures("concerto-known", CRITICAL)
    assert ours["gangs"]["complete"] == 1 and ours["jct_s"] is not None and not ours["lost_pods"]
    for job in ("critical", "training"):
        assert ours["jobs"][job]["start_s"]["max"] <= 10.0
    assert 0 < ours["gangs"]["evictions"] <= 7
    assert ours["gangs"]["lost_core_s"] > 0
    # Without priorities they wait for batch to end
    without = figures("kube-scheduler@1000m", CRITICAL)
    assert without["jobs"]["critical"]["start_s"]["max"] > 20.0
    assert without["gangs"]["evictions"] == 0


@pytest.mark.parametrize("mode", ["one-by-one", "reserve-and-wait", "gangs"])
def test_kube_scheduler_evicts_for_them_too(mode):
    found = figures(f"kube-{mode}@1000m", CRITICAL)
    assert found["gangs"]["complete"] == 1 and not found["lost_pods"]
    assert found["jobs"]["critical"]["start_s"]["max"] <= 10.0
    assert 7 <= found["gangs"]["evictions"] <= 9


def test_a_gang_is_read_from_a_scenario_and_has_to_divide_the_count():
    text = "jobs: [{name: a, count: 6, coreSeconds: 1, gang: 4}]"
    with pytest.raises(scenario.ScenarioError, match=r"gang: expected a divisor of the count, 6, got '4'"):
        scenario.parse(text, "x.yaml")
    job = scenario.parse(text.replace("4", "3"), "x.yaml").setup.jobs[0]
    assert job.gang_names == ["a-gang-0", "a-gang-1"]


def test_what_is_asked_holds_for_no_policy_that_places_pods_one_by_one_at_their_true_request():
    """Fixed figures as they came out of one seed, for the sums; `--only gangs` makes them for all."""
    names = ("concerto", "concerto-known", "kube-one-by-one@250m", "kube-one-by-one@1000m", "kube-gangs@1000m")
    worst = (320.0, 360.0, 310.0, None, 390.0)
    waiting = (138.0, 1400.0, 3000.0, 23000.0, 140.0)
    by_policy = {
        name: {
            "gangs": {
                "complete": 6, "count": 6, "median_s": seconds, "worst_s": seconds, "waiting_core_s": waits,
                "lost_core_s": 80.0, "evictions": 4,
            },
            "jobs": {
                job: {"jct_s": seconds, "start_s": {"p50": 2.0, "max": 5.0} if seconds else {}}
                for job in ("training", "single", "critical", "batch")
            },
        }
        for name, seconds, waits in zip(names, worst, waiting, strict=True)
    }  # fmt: skip
    results = dict.fromkeys(evaluate_gangs.SCENARIOS, by_policy)
    halves = [claim for claim in evaluate_gangs.claims(results) if claim.scenario == "gangs-halves"]
    assert [claim.limit for claim in halves] == [1.25 * 310.0, 1500.0]
    assert all(claim.holds("first run") and claim.holds("later run") for claim in halves)
    assert not any(claim.holds("pods one by one") for claim in halves)
    lines = evaluate_gangs.gang_lines(results)
    assert "| gangs-halves | slowest gang ≤ 1.25 × the best request's | 388 s | 320 | 360 | **-** |" in lines
    assert "| kube-one-by-one@1000m | 6 of 6 | never | 23000 | 80 | 4 | -, never | -, never | -, never |" in lines


def test_the_command_prints_what_became_of_gangs(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(
        "nodes: [{count: 2}]\njobs: [{name: a, count: 4, gang: 4, coreSeconds: 2}]\npolicies: [kube-gangs@1000m]\n"
    )
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    assert simulate.run(parser.parse_args([str(path), "--seeds", "1", "--workers", "1"])) == 0
    out = capsys.readouterr().out
    assert "small: gangs and evictions" in out and "waiting core-s" in out
