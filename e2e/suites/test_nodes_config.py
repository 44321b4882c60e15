"""Names, addresses, CPU shares and cgroup layouts of real nodes: what can be tested without any node."""

from pathlib import Path

import pytest
import yaml

from e2e.testbed.nodes.cgroups import Hierarchy, Machine, parse_hierarchies
from e2e.testbed.nodes.config import (
    NODES_PER_SLOT,
    SLOTS,
    NodeSpec,
    Slot,
    kubeconfig_for_node,
    kubelet_config,
    parse_cpus,
    share_cpus,
)

GIB = 2**30

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset,clone_children 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime,nsdelegate 0 0
cgroup /somewhere/else cgroup rw,relatime,cpuset 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"


@pytest.mark.parametrize(
    ("cpus", "nodes", "shares"),
    {
        "two nodes on two CPUs get one each": ([0, 1], 2, ["0", "1"]),
        "a third node doubles up with the first": ([0, 1], 3, ["0", "1", "0"]),
        "CPUs left over are dealt out": ([0, 1, 2, 3, 4], 2, ["0,1,2", "3,4"]),
        "one node gets them all": ([2, 5], 1, ["2,5"]),
        "on one CPU they all share": ([0], 2, ["0", "0"]),
    }.values(),
    ids=lambda value: None,
)
def test_cpus_are_dealt_out(cpus: list[int], nodes: int, shares: list[str]) -> None:
    assert share_cpus(cpus, nodes) == shares


def test_a_cpu_list_reads_as_linux_writes_it() -> None:
    assert parse_cpus("0-2,5,7-8\n") == [0, 1, 2, 5, 7, 8]


def test_no_two_slots_share_a_name_or_an_address() -> None:
    node = NodeSpec("n1", 0, "0", GIB, GIB)
    slots = [Slot(number) for number in range(SLOTS)]
    cidrs = [slot.pod_cidr(index) for slot in slots for index in range(NODES_PER_SLOT)]
    assert len(set(cidrs)) == len(cidrs)
    for one in slots:
        assert len(one.bridge) <= 15, "Linux takes no longer link names"
        for other in slots:
            if one is not other:
                assert not one.cgroup(node).startswith(other.cgroup_prefix)
                assert not one.bridge.startswith(other.link_prefix)


def test_allocatable_memory_is_the_nodes_share() -> None:
    node = NodeSpec("n1", 0, "0", 10 * GIB, 24 * GIB, {"cpuManagerPolicy": "static"})
    config = yaml.safe_load(kubelet_config(node, Path("/ca.crt")))
    reserved = int(config["systemReserved"]["memory"]) + int(config["evictionHard"]["memory.available"])
    assert 24 * GIB - reserved == 10 * GIB
    assert config["cpuManagerPolicy"] == "static"


def test_a_nodes_kubeconfig_points_at_the_bridge_and_still_checks_the_certificate() -> None:
    original = yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:26443"}}]})
    text, port = kubeconfig_for_node(original, "10.77.3.1")
    cluster = yaml.safe_load(text)["clusters"][0]["cluster"]
    assert port == 26443
    assert cluster == {"server": "https://10.77.3.1:26443", "tls-server-name": "127.0.0.1"}


def test_hierarchies_of_a_v1_machine_beside_a_unified_one() -> None:
    found = parse_hierarchies(V1)
    assert [h.options for h in found] == [("cpu", "cpuacct"), ("cpuset",), ("name=systemd",), ()]
    machine = Machine(found)
    assert not machine.v2_only
    assert machine.controller_path("x", "cpuacct") == Path("/sys/fs/cgroup/cpu,cpuacct/x")
    assert machine.controller_path("x", "unified") == Path("/sys/fs/cgroup/unified/x")
    with pytest.raises(KeyError, match="memory"):
        machine.controller_path("x", "memory")


def test_a_v2_machine_has_every_controller_in_one_place() -> None:
    machine = Machine(parse_hierarchies(V2))
    assert machine.v2_only
    assert machine.controller_path("x", "memory") == machine.controller_path("x", "cpuset") == Path("/sys/fs/cgroup/x")


def test_on_v2_the_nodes_daemons_live_beside_its_pods_not_above_them(tmp_path: Path) -> None:
    """A v2 cgroup with controllers handed down may hold no process itself."""
    for name in ("cpuset.mems.effective", "cgroup.subtree_control"):
        (tmp_path / name).write_text("0")
    machine = Machine([Hierarchy(tmp_path, "cgroup2", ())])
    machine.create("n", "1")
    assert machine.join_files("n") == [tmp_path / "n" / "cgroup.procs"], "the root of the cgroup namespace"
    machine.delegate("n", [42])
    assert (tmp_path / "n" / "node" / "cgroup.procs").read_text() == "42"
    assert "+memory" in (tmp_path / "n" / "cgroup.subtree_control").read_text()
    assert machine.join_files("n") == [tmp_path / "n" / "node" / "cgroup.procs"], "processes that join later"
