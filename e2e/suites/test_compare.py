"""The comparison's own arithmetic: times of pods, cells, ratios, and the order of runs."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from concerto.simulation.scheduling.experiments import run_task
from e2e.compare import beside_server, calibrate, latency
from e2e.compare.__main__ import missing, plan, within
from e2e.compare.calibrate import Plant
from e2e.compare.observation import PodTimes, Run, max_on_node, teardown_seconds, times_of
from e2e.compare.report import at_one_speed, cells, goals, table
from e2e.compare.shell_work import steps_per_second
from e2e.compare.workloads import CONCERTO, WORKLOADS, Part


def a_run(scheduler: str, job: float | None, pods: list[float], round: int = 1, on_node: int = 2) -> Run:
    return Run("waiting", 20, scheduler, round, job, pods, on_node, 2.0, 0.5)


def a_pod(job: str, phase: str = "Succeeded") -> dict[str, Any]:
    at = {"startedAt": "2026-01-01T00:00:03Z", "finishedAt": "2026-01-01T00:00:07Z"}
    return {
        "metadata": {"labels": {"batch.kubernetes.io/job-name": job}},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:09Z"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
            ],
            "containerStatuses": [{"state": {"terminated": at}}],
        },
    }


def test_a_pod_lasts_from_podscheduled_to_the_end_of_its_container() -> None:
    (found,) = times_of([a_pod("ours"), a_pod("other"), a_pod("ours", "Running")], ["ours"])
    assert (found.node, found.ended - found.scheduled, found.ended - found.started) == ("n1", 6.0, 4.0)


def test_a_machine_that_is_slow_for_a_while_makes_no_difference_at_one_speed() -> None:
    """Concerto takes 0.9 times as long at each speed of the machine, and pods half as long."""
    speeds = {CONCERTO: (1.0, 1.0, 0.5), "200m": (0.5, 1.0, 1.0)}
    runs = [
        replace(
            a_run(scheduler, (90.0 if scheduler == CONCERTO else 100.0) / speed, [of / speed], round=number),
            core_seconds_per_pod=2.0 / speed,
        )
        for scheduler, of in ((CONCERTO, 3.0), ("200m", 6.0))
        for number, speed in enumerate(speeds[scheduler], start=1)
    ]
    found = cells(runs)
    assert "differed by up to 100%" in at_one_speed(found)
    assert "medians are 0.90 (job) and 0.50 (pods), the greatest 0.90 and 0.50" in at_one_speed(found)
    slower = [replace(r, core_seconds_per_pod=4.0) if r.scheduler == CONCERTO else r for r in runs]
    assert "medians are 0.45 (job)" in at_one_speed(cells(slower)), "it is each scheduler's own CPU time that counts"


def test_teardown_is_what_lies_between_the_containers_end_and_the_terminal_phase_in_a_watch() -> None:
    def version(uid: str, phase: str, *states: str, job: str = "ours") -> dict[str, Any]:
        statuses = [{"state": {state: {}}} for state in states]
        labels = {"batch.kubernetes.io/job-name": job}
        return {
            "metadata": {"uid": uid, "labels": labels},
            "status": {"phase": phase, "containerStatuses": statuses},
        }

    versions = [
        (1.0, version("a", "Pending")),
        (2.0, version("a", "Running", "running")),
        (3.0, version("a", "Running", "terminated", "running")),
        (4.0, version("a", "Running", "terminated", "terminated")),
        (4.5, version("other", "Succeeded", "terminated", job="other")),
        (5.0, version("a", "Running", "terminated", "terminated")),
        (5.25, version("a", "Succeeded", "terminated", "terminated")),
        (6.0, version("a", "Succeeded", "terminated", "terminated")),
        (7.0, version("both at once", "Succeeded", "terminated")),
        (8.0, version("never ran", "Failed")),
    ]
    assert teardown_seconds(versions, ["ours"]) == [1.25, 0.0]


def test_a_fit_begins_with_the_teardown_that_the_runs_have_measured() -> None:
    older, newer = a_run("200m", 80.0, [5.0]), replace(a_run("200m", 80.0, [5.0]), teardown_seconds=1.5)
    assert calibrate.plant_of([older]) == Plant()
    assert calibrate.plant_of([older, newer, replace(newer, teardown_seconds=1.25)]).teardown_seconds == 1.375
    assert calibrate.plant_of([newer]).settings().teardown_seconds == 1.5


ON_A_NODE: dict[str, tuple[list[tuple[str, float, float]], int]] = {
    "nothing has run": ([], 0),
    "one after the other, in the same second": ([("n1", 0, 2), ("n1", 2, 4)], 1),
    "two overlap": ([("n1", 0, 3), ("n1", 2, 4)], 2),
    "on different nodes": ([("n1", 0, 3), ("n2", 2, 4)], 1),
}


@pytest.mark.parametrize(("ran", "most"), ON_A_NODE.values(), ids=ON_A_NODE.keys())
def test_containers_at_once_are_counted_by_node(ran: list[tuple[str, float, float]], most: int) -> None:
    assert max_on_node(PodTimes(node, start, start, end) for node, start, end in ran) == most


def test_the_best_trade_has_the_shortest_pods_among_jobs_that_are_nearly_the_fastest() -> None:
    (cell,) = cells(
        [
            a_run("100m", 100.0, [40.0]),
            a_run("200m", 105.0, [12.0], on_node=5),
            a_run("450m", 130.0, [6.0]),
            a_run(CONCERTO, 90.0, [6.0], on_node=3),
        ]
    )
    assert (cell.fastest.scheduler, cell.trade.scheduler) == ("100m", "200m")
    assert (cell.job_ratio, cell.pod_ratio, cell.node_ratio) == (0.9, 0.5, 0.6)
    assert all(holds for _, holds in goals([cell]))


def test_rounds_are_summed_up_by_their_median_with_the_spread() -> None:
    concerto = [a_run(CONCERTO, job, [pod, pod], n) for n, (job, pod) in enumerate([(80, 5), (100, 9), (90, 7)], 1)]
    (cell,) = cells([*concerto, a_run("200m", 90.0, [14.0])])
    assert (cell.job_ratio, cell.pod_ratio) == (1.0, 0.5)
    assert "| waiting | 20 | 3 | 90.0 (80.0 to 100.0) |" in table([cell])[-1]


def test_a_job_that_was_not_complete_misses_every_goal_it_can() -> None:
    (cell,) = cells([a_run(CONCERTO, None, [5.0]), a_run("200m", 90.0, [14.0])])
    held = dict(goals([cell]))
    assert [holds for sentence, holds in held.items() if sentence.startswith("job")] == [False, False]


def test_a_cell_without_one_of_the_two_is_left_out() -> None:
    assert cells([a_run(CONCERTO, 90.0, [5.0])]) == []
    assert cells([a_run("200m", 90.0, [5.0])]) == []


def test_every_round_runs_every_scheduler_and_begins_with_another() -> None:
    planned = list(plan(["waiting"], [20], ["100m", "200m"], range(1, 4)))
    by_round = [[p.scheduler for p in planned if p.round == number] for number in (1, 2, 3)]
    assert by_round == [[CONCERTO, "100m", "200m"], ["100m", "200m", CONCERTO], ["200m", CONCERTO, "100m"]]


def test_a_comparison_that_was_interrupted_makes_the_runs_that_it_lacks() -> None:
    planned = list(plan(["waiting"], [20], ["100m"], range(1, 3)))
    runs = [a_run(CONCERTO, 9.0, [1.0], 1), a_run("100m", None, [], 1), a_run(CONCERTO, 9.0, [1.0], 2)]
    left = missing(planned, runs)
    assert [(p.scheduler, p.round) for p in left] == [("100m", 1), ("100m", 2)]
    assert [run.job_seconds for run in runs] == [9.0, 9.0], "the one that is made again is gone"
    assert missing(planned, [*runs, a_run("100m", 9.0, [1.0], 1), a_run("100m", 9.0, [1.0], 2)]) == []
    assert within(left, math.inf) == left
    assert within(left, left[0].expected_seconds / 60) == left[:1]
    assert within(left, 0.0) == left[:1], "or it would never end"
    assert within([], 1.0) == []


STEPS_PER_SECOND = 1e6


def test_a_pod_takes_its_core_seconds_on_any_machine() -> None:
    assert Part("a", 2.0, 1.5).command(1e6) == "sleep 2; i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done"
    command = Part("a", 0.0, 0.1).command(steps_per_second())
    shell = shutil.which("busybox")
    assert shell is not None
    before = os.times()
    subprocess.run([shell, "sh", "-c", command], check=True)
    after = os.times()
    assert 0.05 < after.children_user + after.children_system - before.children_user - before.children_system < 0.2


@pytest.mark.parametrize("pods", [20, 60, 150])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_parts_of_a_workload_have_all_its_pods(name: str, pods: int) -> None:
    jobs = WORKLOADS[name].jobs("run", pods, "200m", STEPS_PER_SECOND)
    assert sum(job["spec"]["completions"] for job in jobs) == pods
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        assert spec["schedulerName"] == "default-scheduler"
        assert spec["containers"][0]["resources"] == {"requests": {"cpu": "200m"}}
    ours = WORKLOADS[name].jobs("run", pods, CONCERTO, STEPS_PER_SECOND)[0]["spec"]["template"]
    assert ours["spec"]["schedulerName"] == "concerto"
    assert "resources" not in ours["spec"]["containers"][0]


def a_server_run(scheduler: str, p99: float, number: int = 1) -> latency.ServerRun:
    pods, job = (0, None) if scheduler == latency.ALONE else (20, 40.0)
    return latency.ServerRun(scheduler, number, "100m", pods, job, [2.0] * 98 + [p99, p99])


def test_the_servers_p99_beside_a_job_is_compared_with_its_p99_alone() -> None:
    runs = [a_server_run(latency.ALONE, 4.0), a_server_run(CONCERTO, 8.0), a_server_run("200m", 20.0)]
    assert latency.goal(runs)[1], "twice is allowed"
    assert latency.ratio_to_alone(runs, "200m") == 5.0
    assert latency.table(runs)[2:] == [
        "| nothing | 1 | 100 | 2.0 | 2.0 | 4.0 | **1.00** | - |",
        "| 20 pods by Concerto | 1 | 100 | 2.0 | 2.0 | 8.0 | **2.00** | 40.0 |",
        "| 20 pods by kube-scheduler at 200m | 1 | 100 | 2.0 | 2.0 | 20.0 | **5.00** | 40.0 |",
    ]
    assert not latency.goal([*runs, a_server_run(CONCERTO, 9.0, 2), a_server_run(CONCERTO, 9.0, 3)])[1]


def test_only_answers_to_requests_during_the_job_count() -> None:
    assert latency.answers_between(["10.0 1.5", "11.0 2.5", "", "12.0 3.5"], 10.5, 12.0) == [2.5, 3.5]


def test_a_run_without_answers_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no answer of the server in the run of concerto"):
        latency.ServerRun(CONCERTO, 1, "", 20, 40.0, []).percentile(0.99)


def test_each_round_beside_the_server_begins_with_another() -> None:
    first = [beside_server.order(["200m", "300m"], number)[0] for number in (1, 2, 3, 4, 5)]
    assert first == [latency.ALONE, CONCERTO, "200m", "300m", latency.ALONE]


KEYS = (("burst", 20, "200m"), ("burst", 20, "450m"), ("burst", 20, CONCERTO))


def simulated(plant: Plant) -> dict[calibrate.Key, calibrate.Real]:
    """Figures that real nodes with those numbers would give."""
    some = {key: calibrate.Real(1.0, 1.0, 0.2) for key in KEYS}
    figures = calibrate.compare(some, plant, in_this_process)
    return {f.key: calibrate.Real(f.simulated_job, f.simulated_pod, 0.2) for f in figures}


def in_this_process(tasks: Any) -> Any:
    return (run_task(task).recorder for task in tasks)


def test_the_fit_comes_close_to_the_numbers_that_made_the_figures() -> None:
    truth = Plant(start_seconds=0.9, start_core_seconds=0.45, end_core_seconds=0.1, other_cpu=0.3)
    real = simulated(truth)
    begun = calibrate.error_of(calibrate.compare(real, Plant(), in_this_process))
    plant, error = calibrate.fit(real, in_this_process)
    assert error < 0.05 < begun
    figures = calibrate.compare(real, plant, in_this_process)
    assert all(f.within for f in figures), "Concerto's, which took no part in the fit, too"
    assert "3 of 3" not in calibrate.summary(plant, figures)[-1], "one cell of Concerto's"


def test_there_is_nothing_to_fit_without_runs_of_kube_scheduler() -> None:
    real = calibrate.real_figures([a_run(CONCERTO, 90.0, [5.0]), a_run("200m", None, [])])
    with pytest.raises(ValueError, match="no complete run of kube-scheduler"):
        calibrate.fit(real, in_this_process)


def test_pods_of_several_parts_have_together_the_work_that_was_measured() -> None:
    workload = WORKLOADS["mixed"]
    counts = workload.sizes(20)
    works = calibrate.work_of_parts(workload.parts, counts, 2.0)
    assert sum(work * n for work, n in zip(works, counts)) == pytest.approx(2.0 * 20)
    assert works[2] == pytest.approx(3 * works[0])


def a_figure(scheduler: str, pod: float, simulated_pod: float) -> calibrate.Figure:
    return calibrate.Figure(("waiting", 20, scheduler), 40.0, pod, 40.0, simulated_pod)


def test_the_order_of_schedulers_is_compared_where_the_real_figures_have_one() -> None:
    figures = [a_figure("100m", 20.0, 30.0), a_figure("200m", 10.0, 31.0), a_figure("210m", 10.2, 5.0)]
    assert calibrate.order_agreement(figures) == (1, 2)
    assert [f.within for f in figures] == [False, False, False]
