"""What if: a dump of a cluster, placed afresh."""

from __future__ import annotations

import pytest

from concerto.api.schedulingprofile import ProfileSettings
from concerto.simulation.studies import what_if

PROFILE = ProfileSettings("concerto")


def node(name):
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": name},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name, on):
    return {
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": on, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


def test_pods_piled_on_one_node_would_be_spread():
    crowd = [pod(f"p{i}", "a") for i in range(12)]
    answer = what_if.replay({"items": [node("a"), node("b"), node("c"), *crowd]}, PROFILE)
    assert answer.total == 12
    assert answer.unplaced == 0
    assert [n.pods_now for n in answer.nodes] == [12, 0, 0]
    then = [n.pods_then for n in answer.nodes]
    assert sum(then) == 12
    assert max(then) <= 8
    assert answer.moved >= 4


def test_a_dump_without_nodes_is_refused():
    with pytest.raises(what_if.DumpError, match="holds no Node"):
        what_if.replay({"items": []}, PROFILE)


def test_a_profile_that_is_none_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("kind: Other\n")
    with pytest.raises(what_if.DumpError, match="expected a SchedulingProfile"):
        what_if.read_profile(str(path))
