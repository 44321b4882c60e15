"""The run at scale: its sizes, and what becomes of its figures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.bench.cores import cores_used, in_words
from e2e.bench.scale import Size
from e2e.bench.scale_pods import existing_pod, job_pod, replica_set
from e2e.bench.scale_results import ROWS, keep, load, table, verdicts, write_docs

SIZE = Size.of(500, 15_000)
FIGURES = {"first_decision_s": 12.34, "steady_cpu_cores": 0.6, "leader_growth": 0.02, "not_allowed": 0}


def test_a_size_grows_in_proportion() -> None:
    full = Size.of(5000, 150_000)
    assert (full.placed, full.churn) == (10_000, 100_000)
    assert (SIZE.placed, SIZE.churn) == (1000, 10_000)


def test_nodes_and_workloads_have_equally_many_pods() -> None:
    sets = [replica_set(number) for number in range(300)]
    owners = {s["metadata"]["name"]: {"kind": "ReplicaSet", "name": s["metadata"]["name"], "uid": "u"} for s in sets}
    pods = [existing_pod(number, 500, owners) for number in range(15_000)]
    assert len({(p["metadata"]["namespace"], p["metadata"]["name"]) for p in pods}) == 15_000
    nodes = [p["spec"]["nodeName"] for p in pods]
    assert {nodes.count(name) for name in set(nodes)} == {30}
    labels = {s["metadata"]["name"]: s["spec"]["selector"]["matchLabels"].items() for s in sets}
    assert all(labels[p["metadata"]["ownerReferences"][0]["name"]] <= p["metadata"]["labels"].items() for p in pods)


def test_ten_pods_that_wait_belong_to_one_job() -> None:
    pods = [job_pod("backlog", number) for number in range(30)]
    assert len({p["metadata"]["ownerReferences"][0]["uid"] for p in pods}) == 3
    assert "nodeName" not in pods[0]["spec"]


def test_goals_are_compared_with_what_was_measured() -> None:
    said = verdicts(FIGURES)
    assert len(said) == 4
    assert sum(line.startswith("MISSED") for line in said) == 1
    assert next(line for line in said if line.startswith("MISSED")).endswith("0.600 cores (goal ≤ 0.5 cores)")


def test_sizes_of_several_runs_become_one_table_in_the_page(tmp_path: Path) -> None:
    results, page = tmp_path / "build" / "scale.json", tmp_path / "page.md"
    write_docs(load(results), page)
    assert not page.exists()
    keep(Size.of(5000, 150_000), FIGURES, {"cpus": 2}, results)
    keep(SIZE, {**FIGURES, "first_decision_s": 31.0}, {"cpus": 2}, results)
    lines = table(load(results))
    assert lines[0] == "| | goal | 500 nodes, 15000 pods | 5000 nodes, 150000 pods |"
    assert lines[2].endswith("| ≤ 30 s | 31.0 s (missed) | 12.3 s |")
    assert len(lines) == 2 + len(ROWS)
    write_docs(load(results), page)
    assert all(line in page.read_text() for line in lines)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_figure_that_is_missing_meets_and_misses_no_goal(row) -> None:
    assert row.shown({}) == "–"
    assert row.is_met({}) is None


def test_cores_in_use_are_counted_by_process() -> None:
    with cores_used({}, parent=os.getppid()) as used:
        assert not used
    assert {*used} == {"parent", "load"}
    assert in_words({"etcd": 0.311, "leader": 0.5}) == "leader 0.50, etcd 0.31"
