"""What the agent reads from the API that no agent, and no small node, would write."""

from __future__ import annotations

import pytest

from concerto_agent.agent import allowed_pods, read_cluster_model


@pytest.mark.parametrize(("quantity", "pods"), [("110", 110), ("1k", 1000), ("2500", 2500), ("0", 0)])
def test_how_many_pods_a_node_takes_is_a_quantity(quantity, pods):
    assert allowed_pods(quantity) == pods


@pytest.mark.parametrize(
    "status",
    [
        {"observedAt": "2026-03-01T12:00:00Z"},
        {"observedAt": "?", "resources": ["cpu"], "sigma": [1], "directions": [[1]], "batches": 1, "nodes": 1},
        {"observedAt": "2026-03-01T12:00:00Z", "resources": ["cpu"], "sigma": ["?"], "directions": [[1]], "batches": 1,
         "nodes": 1},
    ],
)  # fmt: skip
def test_a_cluster_model_that_cannot_be_read_is_left_out(status):
    assert read_cluster_model({"metadata": {"name": "cluster"}, "status": status}) is None
