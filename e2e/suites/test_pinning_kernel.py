"""The writer on this machine's own cpuset hierarchy, v1 or v2, and the model of it that other tests write to.

No kubelet is needed: cgroups are made by hand under names as kubelet's.
"""

from __future__ import annotations

import os
import random
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import Core, CPUTopology
from concerto_agent.cgroups import Hierarchies
from concerto_agent.cpuset_files import CpusetFiles
from concerto_agent.cpusets import Claim, KubeletRule
from concerto_agent.files import write_file
from concerto_agent.node_cpusets import NodeCpusets
from concerto_agent.pinning_settings import PinningSettings
from support.cgroupfs_model import CgroupfsModel, NodeModel

SETTINGS = PinningSettings()


@pytest.fixture
def hierarchy() -> Iterator[tuple[Path, int, frozenset[int]]]:
    """A cgroup of our own in the machine's cpuset hierarchy, its version, and the CPUs it has."""
    found = Hierarchies.detect(Path("/sys"))
    if found.cpuset is None or not os.access(found.cpuset, os.W_OK):
        pytest.skip("no cpuset hierarchy that may be written to (root)")
    root = found.cpuset / f"concerto-test-{uuid.uuid4().hex[:6]}"
    if found.version == 2:
        if "cpuset" not in (found.cpuset / "cgroup.controllers").read_text().split():
            pytest.skip("the v2 hierarchy has no cpusets")
        write_file(found.cpuset / "cgroup.subtree_control", "+cpuset")
    root.mkdir()
    everything = found.cpuset / ("cpuset.cpus" if found.version == 1 else "cpuset.cpus.effective")
    if found.version == 1:
        for what in ("cpus", "mems"):
            write_file(root / f"cpuset.{what}", (found.cpuset / f"cpuset.{what}").read_text())
    yield root, found.version, parse_cpu_list(everything.read_text())
    for directory, _, _ in os.walk(root, topdown=False):
        with suppress(OSError):
            for pid in (Path(directory) / "cgroup.procs").read_text().split():
                write_file(found.cpuset / "cgroup.procs", pid)
        Path(directory).rmdir()


class KernelNode(NodeModel):
    """The same names of cgroups, made in the kernel."""

    class Kernel:
        """What `CgroupfsModel` does, by the kernel."""

        def __init__(self, root: Path, version: int) -> None:
            self.root = root
            self.version = version
            self.populated: set[str] = set()

        def make(self, path: str, *, filled: bool = True) -> None:
            directory = self.root / path
            if self.version == 2:
                write_file(directory.parent / "cgroup.subtree_control", "+cpuset")
            directory.mkdir()
            if self.version == 1 and filled:
                for what in ("cpus", "mems"):
                    write_file(directory / f"cpuset.{what}", (directory.parent / f"cpuset.{what}").read_text())

    def __init__(self, root: Path, version: int) -> None:
        super().__init__(self.Kernel(root, version), "cgroupfs")  # type: ignore[arg-type]


def test_the_kernel_takes_and_refuses_what_the_model_does(hierarchy, tmp_path):
    root, version, cpus = hierarchy
    model = CgroupfsModel(tmp_path / "cpuset", version, cpus)
    kernel = KernelNode.Kernel(root, version)
    paths = ["a", "a/b", "a/b/c", "a/d"]
    for path in paths:
        model.make(path)
        kernel.make(path)
    chance = random.Random(3)
    refused = 0
    for _ in range(300):
        path = chance.choice(paths)
        some = chance.sample(sorted(cpus), chance.randint(0 if version == 2 else 1, len(cpus)))
        text = ",".join(map(str, sorted(some))) + "\n"
        answers = []
        for write, directory in ((model.write, model.root), (write_file, root)):
            try:
                write(directory / path / "cpuset.cpus", text)
                answers.append(0)
            except OSError as error:
                answers.append(error.errno)
        assert answers[0] == answers[1], f"{path} = {text!r}: {answers}"
        refused += answers[0] != 0
        name = "cpuset.cpus" if version == 1 else "cpuset.cpus.effective"
        for each in paths:
            assert model.read(model.root / each, name) == parse_cpu_list((root / each / name).read_text())
    assert version == 2 or refused > 20


def test_a_process_is_moved_with_its_pods_cpuset_and_back(hierarchy):
    root, version, cpus = hierarchy
    if len(cpus) < 2:
        pytest.skip("it takes two CPUs")
    node = KernelNode(root, version)
    first, *rest = sorted(cpus)
    for uid in ("a", "b"):
        node.start(uid, "burstable", 1)
    topology = CPUTopology(tuple(Core(0, n, frozenset({n})) for n in sorted(cpus)), {0: cpus})
    agent = NodeCpusets(
        CpusetFiles(root, version), lambda: node.pods, lambda: topology, KubeletRule, SETTINGS, lambda: 1e9
    )
    sleepers = {uid: subprocess.Popen(["sleep", "60"]) for uid in node.pods}

    def allowed(uid: str) -> frozenset[int]:
        status = Path(f"/proc/{sleepers[uid].pid}/status").read_text()
        return parse_cpu_list(status.split("Cpus_allowed_list:")[1].split()[0])

    try:
        for uid, process in sleepers.items():
            write_file(root / node.pods[uid] / "00000000" / "cgroup.procs", str(process.pid))
        claim = Claim(("ns", "b"), "", 1, "a", frozenset({first}), frozenset(), "CPU")
        agent.enforce([claim])
        assert (allowed("a"), allowed("b")) == ({first}, set(rest))
        assert agent.outcomes["a"].exact
        agent.enforce([])
        assert (allowed("a"), allowed("b")) == (cpus, cpus)
    finally:
        for process in sleepers.values():
            process.kill()
            process.wait()
