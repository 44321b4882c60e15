"""What the agent reads from the API that no agent, and no small node, would write."""

from __future__ import annotations

import pytest

from concerto_agent.agent import read_cluster_model


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
