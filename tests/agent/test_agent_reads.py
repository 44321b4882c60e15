"""What the agent hears from the API that an agent of ours, or a small node, would never say."""

from __future__ import annotations

import pytest

from concerto_agent.agent import Agent, allowed_pods


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
def test_a_cluster_model_that_nobody_can_read_is_as_none(status):
    agent = Agent.__new__(Agent)
    agent._cluster_changed(None, {"metadata": {"name": "cluster"}, "status": status})
    assert agent._cluster is None
