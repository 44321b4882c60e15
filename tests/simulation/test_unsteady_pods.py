"""Pods that compute on all CPUs by turns keep these busy, and pods that always compute don't crowd them."""

from __future__ import annotations

import pytest

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling.experiments import Task, run_task
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import JobSpec


def figures_of(load, count, policy):
    setup = Setup(nodes=(NodeSpec(count=3),), jobs=(JobSpec("pods", count, load),))
    return run_task(Task(setup, policy, 1, CapacitySettings())).figures


@pytest.mark.parametrize("policy", ["concerto-known", "concerto"])
def test_a_node_idles_little_while_short_pods_of_four_threads_wait(policy):
    """Half a second of computing on all CPUs in a life of three seconds: six pods at a time left a third of them idle.

    With 150m, 26 pods are on a node, and each of them takes four times as long.
    """
    load = PodLoad(wait_seconds=0.3, core_seconds=2.0, threads=4)
    ours, others = (figures_of(load, 240, each) for each in (policy, "kube-scheduler@150m"))
    assert ours["jct_s"] < 1.25 * others["jct_s"]
    assert ours["pct_s"]["mean"] < 0.5 * others["pct_s"]["mean"]


def test_pods_that_always_compute_have_a_cpu_each():
    load = PodLoad(wait_seconds=2.0, core_seconds=60.0, threads=1)
    ours, others = (figures_of(load, 60, each) for each in ("concerto-known", "kube-scheduler@1000m"))
    assert ours["jct_s"] < 1.02 * others["jct_s"]
    assert ours["pct_s"]["mean"] < 1.1 * others["pct_s"]["mean"], "but for the last ones"


@pytest.mark.parametrize(
    ("wait", "job", "pods"), [(2.0, 81.0, 6.0), (0.0, 78.0, 3.0)], ids=["wait and compute", "compute throughout"]
)
def test_nodes_of_one_cpu_are_given_no_more_pods_than_they_can_start_and_end_beside_the_others(wait, job, pods):
    """Starts and ends took 0.4 core-seconds that the pace did not count: pods took 7.4 s and 4.0 s, and Jobs 78 s."""
    plant = NodeModelSettings(
        start_seconds=(0.35, 0.6),
        start_when_full_seconds=0.0,
        spike_threads=0,
        start_core_seconds=0.2,
        end_core_seconds=0.2,
        other_cpu=0.12,
    )
    load = PodLoad(wait_seconds=wait, core_seconds=1.8)
    setup = Setup(nodes=(NodeSpec(count=2, cores=1.0),), jobs=(JobSpec("pods", 60, load),), plant=plant)
    figures = run_task(Task(setup, "concerto-known", 1, CapacitySettings())).figures
    assert figures["jct_s"] < job
    assert figures["pct_s"]["mean"] < pods
