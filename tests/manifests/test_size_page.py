"""docs/operations.md states the requests and limits that the manifests have."""

from __future__ import annotations

import re

import pytest

from support.crd_schemas import REPOSITORY, documents

FILES = {
    "concerto-operator": "base/operator.yaml",
    "concerto-autoscaler": "components/autoscaling/deployment.yaml",
    "concerto-agent": "base/agent.yaml",
}


@pytest.mark.parametrize(("name", "file"), FILES.items(), ids=FILES)
def test_the_page_on_operations_states_the_size_that_the_manifests_have(name, file):
    (workload,) = (d for d in documents(REPOSITORY / "manifests" / file) if d["kind"] in ("Deployment", "DaemonSet"))
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    ((replicas, requests, limit),) = re.findall(
        rf"^\| `{name}` \| (\d)[^|]* \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE
    )
    assert int(replicas) == workload["spec"].get("replicas", 1)
    assert requests == f"{resources['requests']['cpu']}, {resources['requests']['memory']}"
    assert resources["limits"] == {"memory": limit}
