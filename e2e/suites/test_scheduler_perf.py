"""The benchmark's workloads: pods as scheduler_perf describes them, and the table of results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from e2e.bench.perf_results import keep, load, table, write_docs
from e2e.bench.scheduler_perf import WORKLOADS, bodies
from e2e.bench.throughput import bind_all
from support.faulty_server import faulty, says
from support.scheduling_builders import raw_pod


def terms_in(value: Any) -> list[dict[str, Any]]:
    """Everything in there that has a topology key."""
    if isinstance(value, list):
        return [term for each in value for term in terms_in(each)]
    if not isinstance(value, dict):
        return []
    own = [value] if "topologyKey" in value else []
    return own + [term for each in value.values() for term in terms_in(each)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_terms_of_affinity_select_pods_in_both_namespaces(name: str) -> None:
    kinds = [WORKLOADS[name].waiting, *(kind for kind, _ in WORKLOADS[name].bound)]
    for kind in kinds:
        pods = list(bodies(kind, ["one", "two"], "concerto", "mine", "other"))
        assert [pod["metadata"]["name"] for pod in pods] == ["one", "two"]
        spec = pods[0]["spec"]
        assert all(term["namespaces"] == ["mine", "other"] for term in terms_in(spec.get("affinity")))
        assert all("namespaces" not in term for term in terms_in(spec.get("topologySpreadConstraints")))
        assert "mine" not in json.dumps(kind.spec), "the workload's own description stays as it is"


def test_rows_of_several_runs_become_one_table_in_the_page(tmp_path: Path) -> None:
    results, page = tmp_path / "build" / "rows.json", tmp_path / "page.md"
    assert load(results) == {}
    row = {"kube": {"pods_per_second": 400.4}, "concerto": {"pods_per_second": 900.0}, "ratio": 2.25}
    keep({"5000": {"SchedulingBasic": row}}, results)
    figures = load(results)
    figures["1000"] = {"Unschedulable": {"error": "concerto: pods are left unbound after 300 s"}}
    lines = [
        "| Unschedulable | 1000 | concerto: pods are left unbound after 300 s | | |",
        "| SchedulingBasic | 5000 | 400 | 900 | 2.25 |",
    ]
    assert table(figures)[2:] == lines
    page.write_text("# Page\n\n<!-- begin scheduler_perf -->\n<!-- end scheduler_perf -->\n\n## Next\n")
    write_docs(figures, page)
    assert "\n".join(lines) in page.read_text()
    assert page.read_text().endswith("## Next\n")


async def test_pods_are_listed_again_only_when_the_last_of_them_is_bound() -> None:
    waits, there = raw_pod("b"), raw_pod("b", nodeName="n")
    listed = says(200, {"items": [raw_pod("a"), waits]})
    answers = [listed, says(200, {"items": []}), says(200, waits), says(200, {"items": [there]}), says(200, there)]
    async with faulty([*answers, says(200, {"items": []})]) as server:
        first, _ = await bind_all(server.session, "default", os.getpid(), "concerto")
    assert first > 0.0
    pods = "GET /api/v1/namespaces/default/pods"
    unbound, bound = (f"{pods}?fieldSelector=spec.nodeName{operator}" for operator in ("%3D", "!"))
    expected = [unbound, bound, f"{pods}/b?", bound, f"{pods}/b?", unbound]
    assert len(server.seen) == len(expected)
    assert all(seen.startswith(start) for seen, start in zip(server.seen, expected))
