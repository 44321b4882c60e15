"""Mixed kinds in the simulator: arrivals, requests that fit, and a sample of what `make evaluate` compares."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from concerto.capacity.kinds.cost import estimate
from concerto.capacity.kinds.table import from_entries, to_entries
from concerto.simulation.scheduling import scenario
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.evaluate_kinds import ABLATIONS, SCENARIOS, ablation_lines, kinds_table, run_kinds
from concerto.simulation.scheduling.kept_runs import run_tasks
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.fitting_requests import natural_share, vpa_cores
from concerto.simulation.scheduling.policies.raw_pods import earlier_run, in_one_column, kind_of_job
from concerto.simulation.scheduling.policies.registry import COST_SWEEP, expand, is_policy, make
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec


def test_pods_come_over_a_day_as_people_do():
    times = Arrivals("Daily", 10.0, per_second=2.0, period_seconds=300.0).times(1200, np.random.default_rng(1))
    assert (np.diff(times) >= 0.0).all()
    per_minute, _ = np.histogram(times, bins=[10, 70, 130, 190, 250, 310])
    assert per_minute[2] == pytest.approx(2 * 60 * 2, rel=0.25), "noon: nearly twice the mean"
    assert per_minute[0] < 0.5 * per_minute[2]
    assert per_minute[4] < 0.5 * per_minute[2]


def test_a_release_is_another_kind_of_the_same_workload():
    load = PodLoad(wait_seconds=1.0, core_seconds=1.0)
    first, second = (kind_of_job(JobSpec(name, 1, load, workload="report")) for name in ("v1", "v2"))
    assert first.key != second.key
    assert first.keys[1] == second.keys[1]


def test_a_request_that_fits_is_what_a_pod_takes_while_it_holds_its_place():
    plant = NodeModelSettings(start_seconds=(1.0, 1.0), end_seconds=(1.0, 1.0), spike_seconds=0.5, spike_threads=2)
    job = JobSpec("j", 1, PodLoad(wait_seconds=2.0, core_seconds=8.0, threads=2))
    assert natural_share(job, plant) == pytest.approx((8.0 + 2.0) / (2.0 + 2.0 + 4.0))
    service = JobSpec("s", 1, PodLoad(wait_seconds=3.0, core_seconds=1.0, bursts=0))
    assert natural_share(service, plant) == pytest.approx(0.25)


def test_an_earlier_run_teaches_what_a_fitting_request_says_starts_and_ends_included():
    jobs = (
        JobSpec("j", 1, PodLoad(wait_seconds=0.1, core_seconds=0.3)),
        JobSpec("s", 1, PodLoad(wait_seconds=0.9, core_seconds=0.1, bursts=0)),
        JobSpec("limited", 1, PodLoad(wait_seconds=0.3, core_seconds=4.0, cpu_limit=0.25)),
        JobSpec("hardly-limited", 1, PodLoad(wait_seconds=8.0, core_seconds=4.0, threads=4, cpu_limit=2.0)),
    )
    plant = NodeModelSettings(start_core_seconds=0.2, end_core_seconds=0.1)
    known = earlier_run(Setup(jobs=jobs, plant=plant))
    for job in jobs:
        assert estimate(known, kind_of_job(job)).share == pytest.approx(natural_share(job, plant))


def test_agents_measure_what_pods_cost_their_idle_node_to_start_and_end_as_an_earlier_run_has_it():
    job = JobSpec("j", 12, PodLoad(wait_seconds=0.1, core_seconds=0.3), arrivals=Arrivals("Paced", per_second=0.1))
    setup = Setup(nodes=(NodeSpec(count=1),), jobs=(job,))
    policy = Concerto()
    World(setup, policy, 1).run()
    key = kind_of_job(setup.jobs[0]).key
    measured, known = policy.agents.cluster_kinds.table()[key], earlier_run(setup)[key]
    assert measured.started / measured.ended == pytest.approx(known.started / known.ended, rel=0.3)


@pytest.mark.parametrize("wait", [0.3, 8.0])
def test_agents_measure_of_pods_with_a_quota_what_an_earlier_run_has_it(wait):
    load = PodLoad(wait_seconds=wait, core_seconds=4.0, threads=4, cpu_limit=0.5)
    setup = Setup((NodeSpec(count=1),), (JobSpec("j", 12, load, arrivals=Arrivals("Paced", per_second=0.05)),))
    policy = Concerto()
    World(setup, policy, 1).run()
    key = kind_of_job(setup.jobs[0]).key
    measured, known = policy.agents.cluster_kinds.table()[key], earlier_run(setup)[key]
    for found, expected in ((measured.held, known.held), (measured.life, known.life)):
        assert found / measured.work == pytest.approx(expected / known.work, rel=0.1)
    assert measured.peak_work / measured.work == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("load", "cores"),
    [
        (PodLoad(wait_seconds=2.0, core_seconds=2.0, threads=1), 1.15 * 0.5),
        (PodLoad(wait_seconds=10.0, core_seconds=800.0, threads=4), 1.15 * 4.0),
        (PodLoad(wait_seconds=0.95, core_seconds=0.05, bursts=0), 1.15 * 0.05),
        (PodLoad(wait_seconds=10.0, core_seconds=800.0, threads=4, cpu_limit=2.0), 1.15 * 2.0),
        (PodLoad(wait_seconds=1.0, core_seconds=2.0, cpu_limit=0.5), 1.15 * 0.4),
    ],
)
def test_what_the_vertical_autoscaler_recommends(load, cores):
    assert vpa_cores(load) == pytest.approx(cores, rel=0.01)


def test_the_sweep_of_costs_is_a_run_for_each_factor():
    runs = expand("kube-costs-sweep")
    assert len(runs) == len(COST_SWEEP)
    assert all(map(is_policy, runs))
    assert not is_policy("kube-costs@x")


POLICIES = ("concerto", "concerto-known", "concerto-without-kinds", "kube-costs@0.8", "kube-costs@1", "kube-vpa")
# By job: completion of a first and of a later run, and pod mean of a later run, over those of the best request per kind
LIMITS = {"light": (2.5, 1.15, 1.10), "heavy": (1.05, 1.05, 1.10), "all": (1.05, 1.05, 1.10)}


def test_a_sample_of_the_comparison_holds():
    results = run_kinds(["kinds-heavy-after-light"], 1, POLICIES, partial(run_tasks, workers=1))
    for result in results:
        first, later, pods = LIMITS[result.job]
        assert result.ratio("concerto")[0] < first, result
        assert result.ratio("concerto-known")[0] < later, result
        assert result.ratio("concerto-known")[1] < pods, result
    assert len(kinds_table(results)) == 2 + len(results)


def test_pods_that_fit_the_cluster_at_once_are_not_spread_over_time():
    load = PodLoad(wait_seconds=4.0, core_seconds=25.0, threads=2)
    setup = Setup(nodes=(NodeSpec(count=10, cores=8.0),), jobs=(JobSpec("etl", 60, load),))
    ours, fitting = (World(setup, make(policy), 1).run().summary() for policy in ("concerto-known", "kube-costs@0.7"))
    assert ours["jct_s"] < 1.05 * fitting["jct_s"]
    assert ours["pct_s"]["mean"] < 1.10 * fitting["pct_s"]["mean"]


def test_complementary_pods_get_more_work_done_than_if_one_number_of_each_were_known():
    whole = scenario.load("kinds-complementary").setup
    jobs = tuple(replace(job, count=job.count // 8) for job in whole.jobs)
    setup = replace(whole, nodes=(replace(whole.nodes[0], count=2),), jobs=jobs)
    by_policy = {}
    for policy in ("concerto-known", "concerto-known-one-column"):
        done = World(setup, make(policy), 1).run().summary()["jobs"]
        by_policy[policy] = [done[job.name]["jct_s"] for job in jobs]
    (compute, cache, io), (blind_compute, blind_cache, _) = by_policy.values()
    # Which of the two jobs has to wait, is chance: the last one shows how much work was done
    assert max(blind_compute, blind_cache) > 1.30 * max(compute, cache), by_policy
    assert cache < 1.05 * blind_cache, by_policy
    assert io < 0.5 * compute, "pods that hardly compute do not wait for those that do"


def test_one_number_of_a_kind_is_the_part_of_a_node_that_it_takes_of_what_it_takes_most_of():
    jobs = (
        JobSpec("memory", 1, PodLoad(wait_seconds=20.0, core_seconds=0.1, memory_bytes=4 * 2**30)),
        JobSpec("cpu", 1, PodLoad(core_seconds=20.0, memory_bytes=2**20)),
    )
    known = earlier_run(Setup(jobs=jobs))
    in_one = in_one_column(known, 8.0 / (16 * 2**30))
    shares = [estimate(table, kind_of_job(job)).share for job in jobs for table in (known, in_one)]
    assert shares[1] == pytest.approx(2.0)
    assert shares[2] == pytest.approx(shares[3])


def test_every_scenario_of_kinds_is_compared():
    assert len(SCENARIOS) >= 9


@pytest.mark.parametrize("ending", ABLATIONS.values())
def test_placement_by_kind_can_be_run_without_each_of_its_parts(ending):
    assert is_policy(f"concerto{ending}")


def test_a_table_shows_what_each_part_of_placement_by_kind_is_worth():
    lines = ablation_lines(1, ["kinds-tiny"], partial(run_tasks, workers=1))
    assert len(lines) == 4 + len(ABLATIONS)
    assert lines[2] == "| law | tiny |"
    cells = {label.strip(): cell for _, label, cell, _ in (line.split("|") for line in lines[4:])}
    assert cells["as it is"] != cells["the last pods wait for ends as others do"]


def test_a_later_run_on_nodes_that_never_saw_the_kind_begins_with_what_the_first_one_has_measured():
    setup = scenario.load("kinds-tiny").setup

    def run(policy):
        return World(setup, policy, 1).run().summary()["jct_s"]

    first = Concerto()
    unknown = run(first)
    # All parts are started again: what is left is what the operator had published
    published = from_entries(to_entries(first.agents.cluster_kinds.table()))
    assert run(Concerto(learned=published)) <= 0.8 * unknown


def test_wide_pods_do_not_run_on_for_long_on_nodes_of_one_core():
    setup = scenario.load("kinds-sizes").setup
    ours, theirs = (World(setup, make(name), 1).run().summary() for name in ("concerto-known", "kube-costs@0.8"))
    assert ours["jct_s"] <= 1.15 * theirs["jct_s"]
    assert ours["pct_s"]["mean"] <= theirs["pct_s"]["mean"]
