"""Memory of running programs is moved beside everything else: nobody waits for the kernel to copy pages."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from test_cpusets import FOUR, SETTINGS

from concerto_agent.cpuset_files import CpusetFiles
from concerto_agent.cpusets import Claim, KubeletRule
from concerto_agent.memory_writes import Work
from concerto_agent.node_cpusets import NodeCpusets
from support.cgroupfs_model import CgroupfsModel, NodeModel

BOTH = frozenset({0, 1})


class Elsewhere:
    """Keeps what is to be called elsewhere until the test calls it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Work, Callable[[OSError | None], None]]] = []

    def __call__(self, work: Work, done: Callable[[OSError | None], None]) -> None:
        self.waiting.append((work, done))

    def go_on(self) -> None:
        work, done = self.waiting.pop(0)
        done(work())


class Node:
    """Two pods on a machine with two memory nodes, and what writes their cpusets."""

    def __init__(self, path, version: int) -> None:
        self.cgroups = CgroupfsModel(path / "cpuset", version, FOUR.cpus, BOTH)
        self.model = NodeModel(self.cgroups, "cgroupfs")
        self.refused = False
        files = CpusetFiles(self.cgroups.root, version, self.write)
        self.elsewhere = Elsewhere()
        self.cpusets = NodeCpusets(files, self.pods, lambda: FOUR, KubeletRule, SETTINGS, lambda: 1e9)
        self.looked: list[bool] = []
        self.cpusets.memory.move_to(self.elsewhere, lambda uid: self.looked.append(self.cpusets.look_at(uid)))
        self.model.start("a", "burstable")

    def pods(self) -> dict[str, str]:
        return dict(self.model.pods)

    def write(self, path, text: str) -> None:
        if self.refused and path.name == "cpuset.mems":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        self.cgroups.write(path, text)

    def mems(self) -> set[frozenset[int]]:
        return {self.cgroups.effective(path, "cpuset.mems") for path in self.model.below("a")}


CLAIM = Claim(("ns", "b"), "", 1, "a", frozenset({1}), frozenset({1}), "CPU")


@pytest.mark.parametrize("version", [1, 2])
def test_a_pods_cpus_do_not_wait_for_its_memory_and_nothing_is_said_before_it_is_there(tmp_path, version):
    node = Node(tmp_path, version)
    node.cpusets.enforce([CLAIM])
    assert {node.cgroups.effective(path) for path in node.model.below("a")} == {frozenset({1})}
    assert (node.mems(), len(node.elsewhere.waiting)) == ({BOTH}, 1)
    assert node.cpusets.standing(CLAIM) is None
    node.cpusets.look_at("a")
    node.cpusets.enforce([CLAIM])
    assert len(node.elsewhere.waiting) == 1, "it is not asked for twice"
    node.elsewhere.go_on()
    assert (node.mems(), node.looked) == ({frozenset({1})}, [True])
    standing = node.cpusets.standing(CLAIM)
    assert standing is not None and standing[1].exact


def test_a_pod_without_containers_has_its_memory_nodes_at_once(tmp_path):
    node = Node(tmp_path, 2)
    for path in node.model.below("a")[1:]:
        node.cgroups.remove(path)
    node.cpusets.enforce([CLAIM])
    assert (node.mems(), node.elsewhere.waiting) == ({frozenset({1})}, [])


def test_what_the_kernel_refuses_is_reported_and_tried_again_with_the_next_look_at_all(tmp_path):
    node = Node(tmp_path, 2)
    node.refused = True
    node.cpusets.enforce([CLAIM])
    node.elsewhere.go_on()
    assert node.elsewhere.waiting == [], "not at once"
    standing = node.cpusets.standing(CLAIM)
    assert standing is not None and "cpuset.mems" in standing[1].error
    node.refused = False
    node.cpusets.enforce([CLAIM])
    node.elsewhere.go_on()
    standing = node.cpusets.standing(CLAIM)
    assert standing is not None and standing[1].exact and not standing[1].error


def test_a_binding_that_is_deleted_meanwhile_is_undone_afterwards(tmp_path):
    node = Node(tmp_path, 2)
    node.cpusets.enforce([CLAIM])
    node.cpusets.enforce([])
    node.elsewhere.go_on()
    while node.elsewhere.waiting:
        node.elsewhere.go_on()
    assert node.mems() == {BOTH}
