"""A part of a production trace in the simulator: what is read, at what scale, and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from concerto.simulation.scheduling.node_model import MIB
from concerto.simulation.scheduling.workloads import make_pods
from concerto.simulation.studies.openb_replay import SKIPPED, ReplaySettings, main, read_pods, replay

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
SMALL = ReplaySettings(pods=20, nodes=2, cores=16, memory_gib=64, faster=10.0)


def line(index, cpu, memory, created, deleted, scheduled):
    return f"p{index},{cpu},{memory},0,0,,LS,Succeeded,{created},{deleted},{scheduled}"


@pytest.fixture(name="trace")
def write_trace(tmp_path):
    lines = [line(i, 2000 if i % 2 else 8000, 4096, 30 * i, 30 * i + 100 + i, 30 * i + 5) for i in range(40)]
    lines += [line(90, 2000, 4096, 5, "", ""), line(91, 64_000, 4096, 6, 60, 7), line(92, 0, 4096, 6, 60, 7)]
    path = tmp_path / "openb-pods.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_pods_that_were_scheduled_and_ended_are_read_by_time_of_creation(trace):
    pods = read_pods(trace)
    assert len(pods) == 41
    assert [pod.created for pod in pods] == sorted(pod.created for pod in pods)
    assert (pods[0].millicores, pods[0].memory_bytes, pods[0].life) == (8000, 4096 * MIB, 100.0)


def test_a_replay_has_the_requests_the_lives_and_the_order_of_the_trace_at_the_load_that_is_asked_for(trace):
    setup = replay(read_pods(trace), SMALL, 1)
    assert sorted((job.cpu_request_millicores, job.count) for job in setup.jobs) == [(2000, 10), (8000, 10)]
    pods = list(make_pods(setup.jobs, np.random.default_rng(1)))
    assert len({pod.job.cpu_request_millicores for pod in pods[:2]}) == 2, "of the two shapes in turn, as in the trace"
    lives = [pod.load.wait_seconds + pod.load.core_seconds / pod.load.threads for pod in pods]
    assert all(10.0 <= life <= 14.0 for life in lives), "at a tenth of the trace's"
    load = sum(pod.load.core_seconds for pod in pods) / (pods[-1].created_at * 2 * 16)
    assert load == pytest.approx(SMALL.load)


def test_a_kind_uses_the_same_part_of_its_requests_in_each_of_its_pods(trace):
    setup = replay(read_pods(trace), SMALL, 1)
    for job in setup.jobs:
        loads = [pod.load for pod in make_pods((job,), np.random.default_rng(1))]
        parts = {round(each.core_seconds / (each.wait_seconds + each.core_seconds / each.threads), 9) for each in loads}
        assert len(parts) == 1
        assert SMALL.min_used <= parts.pop() / (job.cpu_request_millicores / 1000) <= SMALL.max_used


def test_a_trace_with_fewer_pods_than_are_asked_for_is_refused(trace):
    with pytest.raises(ValueError, match="has 40 pods that fit"):
        replay(read_pods(trace), replace(SMALL, pods=41), 1)


def test_the_command_prints_each_policy_and_says_why_it_does_nothing_without_the_trace(trace, tmp_path, capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.strip() == SKIPPED.replace("--openb-pods", "--pods")
    out = tmp_path / "figures.json"
    words = ["--pods", str(trace), "--count", "20", "--seeds", "1", "--json", str(out)]
    assert main([*words, "--policy", "concerto-known", "--policy", "kube-scheduler"]) == 0
    printed = capsys.readouterr().out
    assert "| concerto-known |" in printed
    assert "| kube-scheduler, requests of the trace |" in printed
    figures = json.loads(out.read_text())
    assert figures["concerto-known"]["turnaround"] >= figures["concerto-known"]["runs"] > 0.0
