"""The benchmark's workloads: pods as scheduler_perf describes them, and the table of results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.bench.scheduler_perf import WORKLOADS, bodies, table


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


def test_the_table_has_a_line_for_each_workload() -> None:
    figures = {
        "SchedulingBasic": {"kube": {"pods_per_second": 400.4}, "concerto": {"pods_per_second": 900.0}, "ratio": 2.25}
    }
    assert table(figures)[2:] == ["| SchedulingBasic | 400 | 900 | 2.25 |"]
