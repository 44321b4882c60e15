"""Whole runs in virtual time: the law on a sample of the grid, faults, and the baselines."""

from __future__ import annotations

import argparse
import dataclasses
import json
from functools import partial

import numpy as np
import pytest

from concerto.api.capacity_settings import CapacitySettings
from concerto.cli import simulate as cli
from concerto.simulation.scheduling import evaluate, evaluate_grid, latency, scenario
from concerto.simulation.scheduling.experiments import Task, run_task, trade
from concerto.simulation.scheduling.kept_runs import run_tasks
from concerto.simulation.scheduling.node_model import PodLoad
from concerto.simulation.scheduling.policies import registry
from concerto.simulation.scheduling.setup import Fault, NodeSpec, Setup
from concerto.simulation.scheduling.workloads import PI_2000, SKLEARN, Arrivals, JobSpec

SMALL = Setup((NodeSpec(count=4),), (JobSpec("pi", 60, PI_2000),))


def figures(policy, setup=SMALL, seed=1):
    return run_task(Task(setup, policy, seed, CapacitySettings())).figures


@pytest.mark.parametrize(
    "policy",
    [
        "concerto",
        "kube-scheduler@500m",
        "carico",
        "spazio",
        "spazio-over-provision",
        "pronto",
        "random",
        "oracle",
        "trimaran-target-load-packing",
        "trimaran-load-variation",
    ],
)
def test_every_policy_completes_a_small_job(policy):
    found = figures(policy)
    assert found["jct_s"] is not None
    assert (found["lost_pods"], found["double_binds"], found["oom_kills"]) == (0, 0, 0)


def test_a_seed_gives_the_same_run_and_another_one_another():
    assert figures("concerto", seed=3) == figures("concerto", seed=3)
    assert figures("concerto", seed=3) != figures("concerto", seed=4)


def test_requests_bound_what_kube_scheduler_puts_on_a_node():
    for millicores, most in ((500, 8), (1000, 4), (1500, 2)):
        assert figures(f"kube-scheduler@{millicores}m")["pods_per_node"]["max"] == most


class FourNodes(evaluate_grid.Cell):
    """A cell of the grid with 4 of its 19 nodes, and as many pods for each; `make evaluate` runs the whole grid."""

    def setup(self) -> Setup:
        whole = super().setup()
        (nodes,), (job,) = whole.nodes, whole.jobs
        return dataclasses.replace(
            whole,
            nodes=(dataclasses.replace(nodes, count=4),),
            jobs=(dataclasses.replace(job, count=job.count * 4 // nodes.count),),
        )


GRID_SAMPLE = [
    (FourNodes(2.0, 10.0, 1), "first run"),
    (FourNodes(0.3, 60.0, 4), "later run"),
    (FourNodes(5.0, 2.0, 1), "pods as units"),
    (FourNodes(5.0, 60.0, 1), "first run"),
]


@pytest.mark.parametrize(("cell", "column"), GRID_SAMPLE)
def test_the_law_does_not_run_away_on_a_sample_of_the_grid(cell, column):
    columns = {column: evaluate_grid.GRID_COLUMNS[column]}
    (result,) = evaluate_grid.run_grid([cell], columns, seeds=1, run=partial(run_tasks, workers=1))
    assert result.worst_pct <= evaluate_grid.RUNAWAY
    # One seed and the worst cells in the sample: the bound on the median is evaluate's to show
    assert result.jct <= 1.35


def test_some_cells_of_the_grid_are_printed_and_leave_the_docs_alone(monkeypatch, tmp_path, capsys):
    asked = []

    def run_grid(which, columns, seeds, run):
        asked.append(([*map(str, which)], [*columns], seeds))
        return [evaluate_grid.CellResult(which[0], "later run", 1.1, 0.3, 0.3)]

    monkeypatch.setattr(evaluate, "run_grid", run_grid)
    options = ["--only", "grid", "--seeds", "1", "--cell", "0.3/2/4", "--column", "later run"]
    places = ["--out", str(tmp_path / "out"), "--docs", str(tmp_path / "docs.md")]
    monkeypatch.setattr("sys.argv", ["evaluate", *options, *places])
    evaluate.main()
    assert asked == [(["0.3/2/4"], ["later run"], 1)]
    assert "| 0.3 | 2 | 4 | 1.10 / 0.30 |" in capsys.readouterr().out
    assert not (tmp_path / "docs.md").exists()


def test_short_pods_finish_as_soon_as_with_the_best_requests_and_each_of_them_sooner():
    setup = Setup(jobs=(JobSpec("pi", 1000, PI_2000),))
    sweep = {f"kube-scheduler@{m}m": figures(f"kube-scheduler@{m}m", setup) for m in (100, 200, 300, 500)}
    ours = figures("concerto", setup)
    assert ours["jct_s"] <= 1.10 * trade(sweep).best_jct_s
    assert ours["pct_s"]["mean"] <= sweep["kube-scheduler@500m"]["pct_s"]["mean"]
    assert ours["overcommits"] == 0


def test_large_pods_among_small_ones_are_done_in_half_of_the_time_and_the_small_ones_too():
    jobs = (JobSpec("pi", 250, PI_2000), JobSpec("sklearn", 10, SKLEARN, cpu_request_millicores=200))
    setup = Setup((NodeSpec(count=10),), jobs)
    ours, theirs = (figures(policy, setup)["jobs"] for policy in ("concerto", "kube-scheduler@100m"))
    assert ours["sklearn"]["pct_s"]["mean"] <= 0.6 * theirs["sklearn"]["pct_s"]["mean"]
    assert ours["pi"]["pct_s"]["mean"] <= 0.3 * theirs["pi"]["pct_s"]["mean"]
    assert ours["sklearn"]["jct_s"] <= 1.15 * theirs["sklearn"]["jct_s"]


def test_large_pods_wait_for_no_service_to_end():
    services = JobSpec("service", 12, PodLoad(3.0, 0.3, bursts=0))
    small = JobSpec("pi", 200, PI_2000, arrivals=Arrivals("Poisson", 20.0, 1.5))
    large = JobSpec("sklearn", 10, SKLEARN, arrivals=Arrivals("Poisson", 40.0, 0.1))
    setup = Setup((NodeSpec(count=6),), (services, small, large), limit_seconds=1000.0)
    outcome = run_task(Task(setup, "concerto", 1, CapacitySettings()))
    assert outcome.figures["jct_s"] is not None, "some are not done yet"
    assert outcome.figures["jobs"]["sklearn"]["jct_s"] <= 40.0 + 10 / 0.1 + 120.0


FAULTS = {
    "agents die": Fault("AgentDeath", 8, 20, (0, 1)),
    "a node is lost for good": Fault("NodeLoss", 8, 4000, (3,)),
    "a node is lost for a while": Fault("NodeLoss", 8, 15, (3,)),
    "the API is away for 60 s": Fault("ApiOutage", 8, 60),
    "telemetry stands still": Fault("FrozenTelemetry", 6, 40, (0, 1)),
    "telemetry says idle": Fault("IdleTelemetry", 6, 40, (0, 1)),
    "telemetry says full": Fault("FullTelemetry", 6, 40, (0, 1)),
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_no_pod_is_lost_or_bound_twice_when(sentence):
    setup = dataclasses.replace(SMALL, faults=(FAULTS[sentence],), jobs=(JobSpec("pi", 120, PI_2000),))
    for seed in (1, 2):
        found = figures("concerto", setup, seed)
        assert (found["lost_pods"], found["double_binds"], found["overcommits"]) == (0, 0, 0)
        assert found["jct_s"] is not None


def test_a_server_that_is_alone_answers_as_table_5_4_says():
    answers = latency.percentiles(latency.latencies(np.zeros(200_000), np.random.default_rng(1)))
    assert answers["p50"] == pytest.approx(3.04, abs=0.05)
    assert answers["p90"] == pytest.approx(3.78, abs=0.08)
    assert answers["p99"] == pytest.approx(4.47, abs=0.15)


def run_cli(*words):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(words))


def test_the_command_writes_figures_and_plots(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(
        "nodes: [{count: 2}]\njobs: [{name: a, count: 6, coreSeconds: 2}]\npolicies: [concerto, random]\nseeds: 1\n"
    )
    out = tmp_path / "out.json"
    assert run_cli(str(path), "--workers", "1", "--json", str(out), "--plots", str(tmp_path / "plots")) == 0
    found = json.loads(out.read_text())
    assert set(found["policies"]) == {"concerto", "random"}
    run = found["policies"]["concerto"][0]
    assert {"jct_s", "pct_s", "utilisation", "pods_per_node", "oom_kills", "double_binds", "overcommits"} <= set(run)
    assert set(run["pct_s"]) == {"mean", "std", "min", "p25", "p50", "p75", "p99", "max"}
    assert len(list((tmp_path / "plots").glob("*.png"))) == 3
    assert "concerto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.yaml"], "neither a file nor a built-in scenario"),
        ([], "name a scenario"),
        (["pi-2000", "--policy", "magic"], "--policy magic: expected one of"),
    ],
)
def test_the_command_refuses_with_words(words, said, capsys):
    assert run_cli(*words) == 2
    assert said in capsys.readouterr().err


def test_every_policy_that_a_message_names_can_be_made():
    names = registry.EXPECTED.replace("<millicores>m", "250m").replace("<factor>", "1.2")
    for name in names.split(", "):
        for run in registry.expand(name):
            registry.make(run)
    assert scenario.built_in_names()
