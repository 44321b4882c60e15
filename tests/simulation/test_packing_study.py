"""The study of packing: what it counts, and that packing by load saves machines."""

import json
from dataclasses import replace

import numpy as np
import pytest

from concerto.simulation.studies.packing_study import (
    PackingSettings,
    Traces,
    main,
    policies,
    read_traces,
    run,
    within_percent_of_pods_that_stay,
)

SMALL = PackingSettings(nodes=8, mean_cores=0.5, minutes=16, warm_up=6, begins_full=True)
STEADY = Traces(np.ones((1, 60)), np.array([64]), np.ones(1), np.array([20]))


@pytest.fixture(scope="module")
def figures():
    return {name: run(SMALL, STEADY, scores, 0)[0] for name, scores in policies(SMALL).items()}


def test_packing_holds_nodes_near_the_target_and_saves_machines(figures):
    packed = figures["TargetLoadPacking"]
    for other in ("LeastAllocated", "Capacity"):
        assert packed.nodes_used <= figures[other].nodes_used - 1
        assert packed.within_percent > figures[other].within_percent
    assert packed.hottest <= SMALL.target + 10


def test_everything_is_placed_and_counted(figures):
    for found in figures.values():
        assert found.waiting == 0
        assert 0 < found.nodes_used <= SMALL.nodes
        assert found.below_percent + found.within_percent + found.beyond_percent == pytest.approx(100)


def test_a_run_is_the_same_for_the_same_seed():
    scores = policies(SMALL)["TargetLoadPacking"]
    uses = [run(SMALL, STEADY, scores, seed)[1] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(uses[0], uses[1])
    assert not np.array_equal(uses[0], uses[2], equal_nan=True)


def test_nothing_but_the_load_is_on_the_nodes():
    _, use = run(SMALL, STEADY, policies(SMALL)["LeastAllocated"], 0)
    assert np.nanmean(use[SMALL.warm_up :]) == pytest.approx(SMALL.load, abs=0.08)


def test_what_pods_that_stay_vary_by_themselves_is_no_fault_of_the_scheduler():
    assert within_percent_of_pods_that_stay(SMALL, STEADY) == 100
    swings = Traces(np.array([[0.5, 1.5] * 30]), STEADY.cores, STEADY.sizes, STEADY.lives)
    one_pod = replace(SMALL, mean_cores=0.4 * 64)
    assert within_percent_of_pods_that_stay(one_pod, swings) == 0
    assert within_percent_of_pods_that_stay(replace(SMALL, mean_cores=0.01), swings) > 90


def test_pods_that_end_are_no_load_any_more():
    """Pods use what is predicted of them, all the time: means over minutes are as good as what is known at once."""
    grows = replace(SMALL, begins_full=False, wrong_by=1.0, minutes=80, warm_up=50)
    found = [run(replace(grows, window=w), STEADY, policies(SMALL)["TargetLoadPacking"], 0)[0] for w in (5, 0)]
    assert found[0].within_percent == pytest.approx(found[1].within_percent, abs=2)
    assert found[0].nodes_used == pytest.approx(found[1].nodes_used, abs=0.2)


def test_public_traces_are_read(tmp_path):
    trace, pods, nodes = (tmp_path / name for name in ("trace.csv", "pods.csv", "nodes.csv"))
    trace.write_text("sample,a,b\n0,10,1\n1,30,3\n")
    pods.write_text("name,cpu_milli,creation_time,deletion_time\np,1000,0,61\nq,3000,0,60000000\n")
    nodes.write_text("sn,cpu_milli\na,96000\nb,16000\n")
    traces = read_traces(trace, pods, nodes, SMALL)
    assert traces.demand.shape == (2, 10)
    assert traces.cores.tolist() == [96], "smaller machines are left out"
    assert traces.sizes.tolist() == [0.5, 1.5]
    assert traces.lives.tolist() == [2, SMALL.longest_life]


def test_the_command_prints_each_policy(tmp_path, capsys):
    out = tmp_path / "out" / "figures.json"
    assert main(["--machines", "3", "--minutes", "4", "--warm-up", "1", "--mean-cores", "1", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in policies(SMALL))
    assert set(json.loads(out.read_text())) == set(policies(SMALL))
