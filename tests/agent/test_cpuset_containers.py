"""A binding of some of a pod's containers: these have the CPUs, and the others run where unbound pods do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_cpusets import FOUR, SETTINGS, claim

from concerto_agent.bindings import Outcome
from concerto_agent.cpuset_files import CpusetFiles
from concerto_agent.cpusets import KubeletRule, Refusal
from concerto_agent.node_cpusets import NodeCpusets
from concerto_agent.pin_counts import count_pins
from support.cgroupfs_model import CgroupfsModel, NodeModel

MAIN, SIDECAR, SANDBOX = "a" * 64, "b" * 64, "c" * 64
STATIC = KubeletRule(containers_only=True, default=FOUR.cpus)
ALL_LEVELS = pytest.mark.parametrize("rule", [KubeletRule(), STATIC], ids=["all levels", "containers"])
VERSIONS = pytest.mark.parametrize("version", [1, 2])


class Node:
    """Pods a (sandbox, main, sidecar) and b on four CPUs, and the names of containers as the API server shows them."""

    def __init__(self, tmp_path, version: int, rule: KubeletRule) -> None:
        self.model = NodeModel(CgroupfsModel(tmp_path / "cpuset", version, FOUR.cpus), "systemd")
        self.model.start("a", "burstable", containers=0)
        self.paths = {key: self.model.start_container("a", key) for key in (SANDBOX, MAIN, SIDECAR)}
        self.model.start("b", "burstable")
        self.names: dict[str, str] = {}
        files = CpusetFiles(self.model.cgroups.root, version, self.model.cgroups.write)
        self.cpusets = NodeCpusets(
            files, lambda: dict(self.model.pods), lambda: FOUR, lambda: rule, SETTINGS, lambda: 1e9,
            names=lambda uid: self.names if uid == "a" else {},
        )  # fmt: skip

    def sets(self) -> dict[str, set[int]]:
        """CPUs of main, sidecar and pod b."""
        found = {"main": self.paths[MAIN], "sidecar": self.paths[SIDECAR], "b": self.model.below("b")[-1]}
        return {name: set(self.model.cgroups.effective(path)) for name, path in found.items()}


FOR_MAIN = replace(claim("a", 1), containers=frozenset({"main"}))


@ALL_LEVELS
@VERSIONS
def test_the_named_container_has_the_cpus_and_the_others_share(tmp_path, version, rule):
    node = Node(tmp_path, version, rule)
    node.cpusets.enforce([FOR_MAIN])
    assert node.sets() == {"main": {1}, "sidecar": {1}, "b": {0, 2, 3}}, "nobody knows yet which is which"
    node.names |= {MAIN: "main", SIDECAR: "log"}
    node.cpusets.look_at("a")
    assert node.sets() == {"main": {1}, "sidecar": {0, 2, 3}, "b": {0, 2, 3}}
    standing = node.cpusets.standing(FOR_MAIN)
    assert standing is not None and standing[1] == Outcome(frozenset({1}), frozenset({0}), exact=True)
    node.cpusets.enforce([FOR_MAIN])
    assert node.sets() == {"main": {1}, "sidecar": {0, 2, 3}, "b": {0, 2, 3}}


@ALL_LEVELS
@VERSIONS
def test_a_container_that_is_started_again_gets_the_cpus_before_its_name_is_known(tmp_path, version, rule):
    node = Node(tmp_path, version, rule)
    node.names |= {MAIN: "main", SIDECAR: "log"}
    node.cpusets.enforce([FOR_MAIN])
    node.paths[MAIN] = node.model.start_container("a", "d" * 64)
    node.cpusets.look_at("a")
    assert node.sets() == {"main": {1}, "sidecar": {0, 2, 3}, "b": {0, 2, 3}}


@ALL_LEVELS
@VERSIONS
def test_edits_move_containers_and_what_is_released_comes_back(tmp_path, version, rule):
    node = Node(tmp_path, version, rule)
    node.names |= {MAIN: "main", SIDECAR: "log"}
    node.cpusets.enforce([FOR_MAIN])
    other = replace(claim("b", 2, created=1), level="CPU")
    node.cpusets.enforce([FOR_MAIN, other])
    assert node.sets() == {"main": {1}, "sidecar": {0, 3}, "b": {2}}
    node.cpusets.enforce([replace(FOR_MAIN, containers=frozenset({"log"})), other])
    assert node.sets() == {"main": {0, 3}, "sidecar": {1}, "b": {2}}
    node.cpusets.enforce([replace(FOR_MAIN, containers=frozenset()), other])
    assert node.sets() == {"main": {1}, "sidecar": {1}, "b": {2}}
    node.cpusets.enforce([])
    assert node.sets() == {name: set(FOUR.cpus) for name in ("main", "sidecar", "b")}


@VERSIONS
def test_cgroups_that_a_container_made_for_itself_have_its_cpus(tmp_path, version):
    node = Node(tmp_path, version, KubeletRule())
    inner = {name: f"{node.paths[key]}/inner" for name, key in (("main", MAIN), ("sidecar", SIDECAR))}
    for path in inner.values():
        node.model.cgroups.make(path)
    node.names |= {MAIN: "main", SIDECAR: "log"}
    node.cpusets.enforce([FOR_MAIN])
    node.cpusets.enforce([FOR_MAIN, claim("b", 2, created=1)])
    found = {name: set(node.model.cgroups.effective(path)) for name, path in inner.items()}
    assert found == {"main": {1}, "sidecar": {0, 3}}
    node.cpusets.enforce([])
    found = {name: set(node.model.cgroups.effective(path)) for name, path in inner.items()}
    assert found == {"main": set(FOUR.cpus), "sidecar": set(FOUR.cpus)}


def test_a_binding_that_shares_its_cpus_leaves_the_others_all_cpus(tmp_path):
    node = Node(tmp_path, 2, KubeletRule())
    node.names |= {MAIN: "main", SIDECAR: "log"}
    node.cpusets.enforce([replace(FOR_MAIN, level="None")])
    assert node.sets() == {"main": {1}, "sidecar": {0, 1, 2, 3}, "b": {0, 1, 2, 3}}


@pytest.mark.parametrize("containers", [frozenset(), frozenset({"main"})], ids=["whole pod", "one container"])
@VERSIONS
def test_a_pod_of_which_only_the_sandbox_or_another_container_runs_has_not_started(tmp_path, version, containers):
    node = Node(tmp_path, version, KubeletRule())
    bound = replace(claim("a", 1), containers=containers)

    def started() -> bool:
        standing = node.cpusets.standing(bound)
        assert standing is not None and not isinstance(standing, Refusal) and standing[1].exact
        return standing[1].started

    node.cpusets.enforce([bound])
    assert not started()
    assert count_pins(node.cpusets, [bound], FOUR.cpus).pods["Waiting"] == 1
    node.names[SIDECAR] = "log"
    node.cpusets.look_at("a")
    assert started() is not bool(containers), "the sidecar is one of the containers that it is for, or it is not"
    node.names[MAIN] = "main"
    node.cpusets.look_at("a")
    assert started()
    assert count_pins(node.cpusets, [bound], FOUR.cpus).pods["Applied"] == 1
