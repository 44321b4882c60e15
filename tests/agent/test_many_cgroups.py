"""Cgroups that a container makes for itself, as many and as deep as it likes: they cost its own pod, and no other."""

from __future__ import annotations

import logging

import pytest
from test_cpusets import FOUR, agent, claim, node, sets

from concerto_agent.cpuset_files import MAX_CGROUPS, MAX_LEVELS, ContainerWatcher, CpusetFiles
from concerto_agent.inotify import Inotify

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def make_deep(model, uid: str, levels: int) -> str:
    path = model.below(uid)[-1]
    for _ in range(levels):
        path += "/x"
        model.cgroups.make(path)
    return path


def make_many(model, uid: str, count: int, files: bool = True) -> None:
    above = model.below(uid)[-1]
    for number in range(count):
        path = f"{above}/x{number}"
        if files:
            model.cgroups.make(path)
        else:
            (model.cgroups.root / path).mkdir()


@VERSIONS
def test_of_deep_cgroups_those_of_the_first_levels_are_read_parents_first(tmp_path, version, caplog):
    model = node(tmp_path, version)
    make_deep(model, "a", MAX_LEVELS + 100)
    files = CpusetFiles(model.cgroups.root, version, model.cgroups.write)
    with caplog.at_level(logging.WARNING):
        pods = [files.pod(model.pods["a"]) for _ in range(3)]
    pod, path = pods[-1], model.pods["a"]
    assert pod is not None and pod.unread
    assert max(each.removeprefix(path).count("/") for each in pod.cpusets) == MAX_LEVELS
    seen = set()
    for each in pod.cpusets:
        assert each == path or each.rpartition("/")[0] in seen
        seen.add(each)
    assert len(caplog.records) == 1, "once for a pod, and not at each look"
    other = files.pod(model.pods["b"])
    assert other is not None and not other.unread


@pytest.mark.parametrize("files", [True, False], ids=["with cpusets", "without"])
def test_of_many_cgroups_no_more_than_the_bound_are_read_and_every_container_is(tmp_path, files, monkeypatch):
    model = node(tmp_path, 2)
    make_many(model, "a", MAX_CGROUPS + 50, files)
    last = model.start_container("a", "f" * 64)
    made = CpusetFiles(model.cgroups.root, 2, model.cgroups.write)
    reads = []
    read = made.read
    monkeypatch.setattr(made, "read", lambda path: (reads.append(path), read(path))[1])
    pod = made.pod(model.pods["a"])
    assert pod is not None and pod.unread and last in pod.cpusets
    assert len(reads) <= MAX_CGROUPS + 2


def test_as_many_as_the_bound_are_all_read(tmp_path):
    model = node(tmp_path, 2)
    levels = MAX_LEVELS - make_deep(model, "a", 0).removeprefix(model.pods["a"]).count("/")
    make_deep(model, "a", levels)
    pod = CpusetFiles(model.cgroups.root, 2).pod(model.pods["a"])
    assert pod is not None and not pod.unread


@VERSIONS
def test_deep_cgroups_end_nothing_and_what_the_kernel_refuses_for_them_is_said_of_their_pod(tmp_path, version):
    model = node(tmp_path, version)
    make_deep(model, "b", MAX_LEVELS + 100)
    cpusets = agent(model)
    cpusets.enforce([claim("a", 1)])
    # v1 refuses to take CPUs from a cgroup while one below it has them, and what is not read is not written
    assert sets(model, "b") >= {1: {FOUR.cpus}, 2: {FOUR.cpus - {1}}}[version]
    assert not sets(model, "a") & sets(model, "b") or version == 1
    mine = claim("b", 2, created=1)
    cpusets.enforce([mine])
    standing = cpusets.standing(mine)
    assert isinstance(standing, tuple)
    if version == 1:
        assert "are not read" in standing[1].error and "Device or resource busy" in standing[1].error
        assert not standing[1].exact
    else:
        assert standing[1].exact and not standing[1].error
    cpusets.enforce([claim("c", 3)])


def test_the_cgroups_that_a_container_makes_for_itself_use_up_no_watches(tmp_path):
    model = node(tmp_path, 2)
    changed: list[str] = []
    watched: list[object] = []

    class Counted(Inotify):
        def watch(self, path):
            watched.append(path)
            return super().watch(path)

    watcher = ContainerWatcher(model.cgroups.root, changed.append, Counted)
    watcher.follow("a", model.pods["a"])
    above = model.below("a")[-1]
    for number in range(1000):
        model.cgroups.make(f"{above}/x{number}")
        watcher.drain()
    before = len(watched)
    assert before < 400
    container = model.start_container("a", "e" * 64)
    watcher.drain()
    assert watched[before:] == [model.cgroups.root / container], "containers are watched still"
    watcher.close()
