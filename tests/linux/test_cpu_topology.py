from pathlib import Path

import pytest

import support.sysfs_trees as trees
from concerto.api.cpulist import format_cpu_list
from concerto.api.nodecputopology import CPUTopology, NodeCPUTopology
from concerto.kube.resources import NODE_CPU_TOPOLOGIES
from concerto.linux.cpu_topology import KubeletCPUs, fingerprint, read_kubelet, read_topology
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.node_files import NodeFiles
from concerto_agent.topology_publisher import TopologyPublisher, TopologySettings, build_topology_status
from concerto_agent.topology_reader import TopologyReader
from concerto_agent.writer import build_object
from support.crd_schemas import problems
from support.node_trees import write

# machine: (sockets, cores, CPUs, memory nodes), CPUs of the first core, shared caches
SHAPES = {
    "one CPU": (trees.SINGLE, (1, 1, 1, 1), "0", []),
    "a laptop with SMT": (trees.LAPTOP, (1, 4, 8, 1), "0,4", [(3, "0-7")]),
    "Stefanakis's two sockets": (trees.SEED, (2, 10, 20, 2), "0,10", [(3, "0-4,10-14"), (3, "5-9,15-19")]),
    "sub-NUMA clusters": (trees.SUB_NUMA, (2, 16, 32, 4), "0,16", [(3, "0-7,16-23"), (3, "8-15,24-31")]),
    "AMD's core complexes": (
        trees.CCX, (1, 16, 32, 1), "0,16", [(3, "0-3,16-19"), (3, "4-7,20-23"), (3, "8-11,24-27"), (3, "12-15,28-31")],
    ),
    "fast and frugal cores": (trees.HYBRID, (1, 12, 16, 1), "0-1", [(2, "8-11"), (2, "12-15"), (3, "0-15")]),
    "siblings offline": (trees.OFFLINE, (1, 4, 6, 1), "0,4", [(3, "0-4,6")]),
    "core numbers that start again in each die": (trees.DIES, (1, 4, 4, 1), "0", []),
    "Arm, which reports no package": (trees.ARM, (1, 4, 4, 1), "0", []),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "counts", "core", "caches"), SHAPES.values(), ids=SHAPES)
def test_a_machine_is_read_as_it_is(tmp_path, shape, counts, core, caches):
    reading = read_topology(trees.build(tmp_path, shape))
    topology = reading.topology
    assert tuple(topology.counts().values()) == counts
    assert format_cpu_list(topology.cores[0].cpus) == core
    assert [(c.level, format_cpu_list(c.cpus)) for c in topology.caches] == caches
    assert len({(c.socket, c.number) for c in topology.cores}) == len(topology.cores)
    assert reading.problems == ()


@pytest.mark.parametrize("shape", [row[0] for row in SHAPES.values()], ids=list(SHAPES))
def test_what_is_published_is_valid_and_reads_back_the_same(tmp_path, shape):
    reading = read_topology(trees.build(tmp_path, shape))
    status = build_topology_status({}, reading, KubeletCPUs(), 1e9)
    obj = build_object(NODE_CPU_TOPOLOGIES, {"metadata": {"name": "n", "uid": "u"}}) | {"status": status}
    assert problems(obj) == []
    read = NodeCPUTopology.from_raw(obj)
    assert read.topology == reading.topology
    assert read.pools.shared == reading.topology.cpus


def test_offline_cpus_are_those_present_and_not_those_that_could_be_plugged_in(tmp_path):
    assert read_topology(trees.build(tmp_path, trees.OFFLINE)).topology.offline == {5, 7}


def test_kinds_of_cores_are_reported_only_where_there_are_several(tmp_path):
    def kinds(name: str, shape: trees.Shape) -> dict[str, str]:
        found = read_topology(trees.build(tmp_path / name, shape)).topology.core_kinds
        return {kind: format_cpu_list(cpus) for kind, cpus in found.items()}

    assert kinds("laptop", trees.LAPTOP) == {}
    assert kinds("hybrid", trees.HYBRID) == {"atom": "8-15", "core": "0-7"}
    assert kinds("arm", trees.ARM) == {"capacity-446": "0-1", "capacity-1024": "2-3"}


def test_a_cpu_whose_topology_is_hidden_is_a_core_of_its_own_and_reported(tmp_path):
    write(tmp_path / "devices/system/cpu/online", "0-1\n")
    reading = read_topology(tmp_path)
    assert [format_cpu_list(c.cpus) for c in reading.topology.cores] == ["0", "1"]
    assert reading.topology.numa_nodes == {0: {0, 1}}
    (problem,) = reading.problems
    assert "0, 1" in problem
    conditions = build_topology_status({}, reading, KubeletCPUs(), 1e9)["conditions"]
    assert {c["type"]: (c["status"], c["reason"]) for c in conditions}["Ready"] == ("False", "Incomplete")


def test_a_node_that_has_a_part_of_the_machine_sees_that_part():
    whole = CPUTopology.from_raw(
        {
            "cpus": [0, 1, 2, 3],
            "sockets": {"0": {"cpus": [0, 1, 2, 3], "cores": {"0": {"cpus": [0, 2]}, "1": {"cpus": [1, 3]}}}},
            "numaNodes": {"0": {"cpus": [0, 1, 2, 3]}},
            "caches": [{"level": 3, "cpus": "0-3"}],
        }
    )
    part = whole.only({0, 2})
    assert part.counts() == {"sockets": 1, "cores": 1, "cpus": 2, "numaNodes": 1}
    assert part.caches == (), "nobody is left to share it with"


# Kubelet's files: state, configuration, (exclusive, reserved), words of the problems
KUBELET = {
    "the static policy, with two pods": (
        '{"policyName":"static","defaultCpuSet":"0,4-7","entries":{"uid-1":{"a":"1-2"},"uid-2":{"b":"3"}},"checksum":1}',
        "kind: KubeletConfiguration\nreservedSystemCPUs: 0,4\n",
        ({1, 2, 3}, {0, 4}),
        [],
    ),
    "a pod that was given CPUs as a whole": (
        '{"policyName":"static","defaultCpuSet":"0-3","entries":{"u":{"a":"4-6","b":"7-9"}},'
        '"podEntries":{"u":{"cpuSet":"4-10"},"v":{"cpuSet":"12"}},"checksum":1}',
        "{}",
        ({4, 5, 6, 7, 8, 9, 10, 12}, set()),
        [],
    ),
    "such a pod, as Kubernetes 1.37 writes it": (
        '{"policyName":"static","defaultCpuSet":"1-3","entries":{"u":{"a":"4-6"}},"checksum":1,"dataChecksum":1,"data":'
        '"{\\"policyName\\":\\"static\\",\\"entries\\":{\\"u\\":{\\"a\\":\\"4-6\\"}},'
        '\\"podEntries\\":{\\"u\\":{\\"cpuSet\\":\\"4-10\\"}}}"}',
        "{}",
        ({4, 5, 6, 7, 8, 9, 10}, set()),
        [],
    ),
    "a form that no kubelet writes": ('{"entries":{"u":{"a":{"cpus":"1"}}}}', "{}", (set(), set()), ["static"]),
    "data that are half written": ('{"entries":{},"data":"{"}', "{}", (set(), set()), ["static CPU manager"]),
    "the policy none": ('{"policyName":"none","defaultCpuSet":"","checksum":1}', "{}", (set(), set()), []),
    "a kubelet that has not started, and has flags only": (None, None, (set(), set()), []),
    "a state that is half written": ('{"policyName":"sta', "{}", (set(), set()), ["static CPU manager"]),
    "a configuration that is not valid": ("{}", "reservedSystemCPUs: some\n", (set(), set()), ["reserves"]),
}  # fmt: skip


@pytest.mark.parametrize(("state", "config", "expected", "words"), KUBELET.values(), ids=KUBELET)
def test_what_kubelet_keeps_is_read_from_its_files(tmp_path, state, config, expected, words):
    for name, text in (("cpu_manager_state", state), ("config.yaml", config)):
        if text is not None:
            write(tmp_path / name, text)
    found = read_kubelet(tmp_path / "cpu_manager_state", tmp_path / "config.yaml")
    assert (found.exclusive, found.reserved) == expected
    assert len(found.problems) == len(words)
    assert all(word in problem for word, problem in zip(words, found.problems, strict=True))


def test_cpus_that_kubelet_has_named_itself_stand_for_those_of_its_file(tmp_path):
    write(tmp_path / "config.yaml", "reservedSystemCPUs: some\n")
    found = read_kubelet(tmp_path / "cpu_manager_state", tmp_path / "config.yaml", frozenset({3}))
    assert (found.reserved, found.problems) == ({3}, ())
    found = read_kubelet(tmp_path / "cpu_manager_state", tmp_path / "config.yaml", frozenset())
    assert (found.reserved, found.problems) == (set(), ())


def test_files_of_kubelet_that_are_not_shown_to_the_agent_are_reported_and_not_taken_for_none(tmp_path):
    found = read_kubelet(Path("/nowhere/cpu_manager_state"), Path("/nowhere/config.yaml"))
    assert len(found.problems) == 1
    status = build_topology_status({}, read_topology(trees.build(tmp_path, trees.SINGLE)), found, 1e9)
    assert {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}["Ready"] == ("False", "KubeletUnknown")


def test_reserved_cpus_are_the_specs_before_kubelets(tmp_path):
    reading = read_topology(trees.build(tmp_path, trees.LAPTOP))
    kubelet = KubeletCPUs(exclusive=frozenset({2, 6}), reserved=frozenset({0}))
    status = build_topology_status({}, reading, kubelet, 1e9)
    assert status["pools"] == {
        "allocated": "",
        "shared": "0-1,3-5,7",
        "reserved": "0",
        "kubeletExclusive": "2,6",
        "kept": "",
    }
    obj = {"metadata": {"generation": 3}, "spec": {"nodeName": "n", "reservedCPUs": "1,99"}}
    status = build_topology_status(obj, reading, kubelet, 1e9)
    assert (status["pools"]["reserved"], status["observedGeneration"]) == ("1", 3)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ReservedOffline")
    assert "99" in ready["message"]


def test_reserved_cpus_that_an_earlier_crd_took_are_read(tmp_path):
    """The API server goes on serving them; without a status no pod of the node is pinned."""
    reading = read_topology(trees.build(tmp_path, trees.LAPTOP))
    obj = {"metadata": {"generation": 1}, "spec": {"nodeName": "n", "reservedCPUs": "0-1,9000-9999"}}
    status = build_topology_status(obj, reading, KubeletCPUs(), 1e9)
    assert status["pools"]["reserved"] == "0-1"
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ReservedOffline")
    assert "9000-9999" in ready["message"]


def test_cpus_that_no_pod_can_have_are_left_out(tmp_path):
    """As where systemd's AllowedCPUs of kubepods.slice, or a cpuset partition of other programs, has taken them."""
    reading = read_topology(trees.build(tmp_path, trees.OFFLINE))
    assert (reading.topology.cpus, reading.topology.offline) == ({0, 1, 2, 3, 4, 6}, {5, 7})
    kubelet = KubeletCPUs(reserved=frozenset({0, 1}))
    obj = {"metadata": {"generation": 1}, "spec": {"nodeName": "n", "reservedCPUs": "0-1"}}
    status = build_topology_status(obj, reading, kubelet, 1e9, None, frozenset({1, 2, 3, 6}))
    made = build_object(NODE_CPU_TOPOLOGIES, {"metadata": {"name": "n", "uid": "u"}}) | {"status": status}
    assert problems(made) == []
    read = NodeCPUTopology.from_raw(made)
    assert read.topology is not None
    assert (read.topology.cpus, read.topology.offline) == ({1, 2, 3, 6}, {5, 7})
    assert (read.pools.shared, read.pools.reserved) == ({1, 2, 3, 6}, {1})
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "CPUsNotForPods")
    assert "CPUs 0,4 are left out" in ready["message"]
    wrong = {"metadata": {"generation": 1}, "spec": {"nodeName": "n", "reservedCPUs": "0-1,99"}}
    status = build_topology_status(wrong, reading, kubelet, 1e9, None, frozenset({1, 2, 3, 6}))
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "ReservedOffline"
    assert "CPUs 0,4 are left out" in ready["message"], "the only place that says so"
    status = build_topology_status(obj, reading, kubelet, 1e9, None, frozenset(range(8)))
    assert next(c for c in status["conditions"] if c["type"] == "Ready")["reason"] == "Read"


def test_cpus_of_a_pod_that_is_a_partition_of_its_own_are_kubelets(tmp_path):
    """CRI-O makes one of a pod that asks for no load balancing: the cgroup of all pods is then without its CPUs."""
    reading = read_topology(trees.build(tmp_path, trees.LAPTOP))
    kubelet = KubeletCPUs(exclusive=frozenset({2, 6}))
    status = build_topology_status({}, reading, kubelet, 1e9, None, frozenset({0, 1, 3, 4, 5, 7}))
    assert (status["counts"]["cpus"], status["pools"]["kubeletExclusive"]) == (8, "2,6")
    assert next(c for c in status["conditions"] if c["type"] == "Ready")["reason"] == "Read"


# files of the hierarchy, CPUs that pods can have
POD_CPUS = {
    "v2, and none of its own": ({"kubepods.slice/cpu.stat": "", "cpuset.cpus.effective": "0-7"}, set(range(8))),
    "v2, and a part": (
        {"kubepods.slice/cpuset.cpus.effective": "2-7", "cpuset.cpus.effective": "0-7"},
        set(range(2, 8)),
    ),
    "no pods yet": ({"cpuset.cpus.effective": "0-7"}, None),
}


@pytest.mark.parametrize(("files", "expected"), POD_CPUS.values(), ids=POD_CPUS)
def test_the_cpus_that_pods_can_have_are_those_of_kubelets_cgroup(tmp_path, files, expected):
    trees.build(tmp_path, trees.LAPTOP)
    for name, text in {"cgroup.controllers": "cpuset cpu", **files}.items():
        write(tmp_path / "fs/cgroup" / name, text)
    assert TopologyReader(NodeFiles(sys=tmp_path)).pod_cpus() == expected


def test_the_cpus_that_pods_can_have_are_read_from_v1_too(tmp_path):
    trees.build(tmp_path, trees.LAPTOP)
    assert TopologyReader(NodeFiles(sys=tmp_path)).pod_cpus() is None
    write(tmp_path / "fs/cgroup/cpuset/kubepods/cpuset.cpus", "1-3")
    assert TopologyReader(NodeFiles(sys=tmp_path)).pod_cpus() == {1, 2, 3}


def test_memory_that_is_plugged_in_is_seen(tmp_path):
    """A memory node's new size is published then: pods that fit it now were refused until the agent was restarted."""
    trees.build(tmp_path / "sys", trees.LAPTOP)
    proc = tmp_path / "proc"
    write(proc / "meminfo", "MemTotal: 8000000 kB\nMemFree: 10 kB\n")
    where = NodeFiles(sys=tmp_path / "sys", proc=proc)
    settings = TopologySettings(tmp_path / "cpu_manager_state", tmp_path / "config.yaml")
    publisher = TopologyPublisher(
        None, "n", None, where, settings, lambda: 1e9, HeldCPUs, lambda: "Files", lambda: None  # type: ignore[arg-type]
    )  # fmt: skip
    before = publisher._fingerprint()
    # The last: a balloon's driver changes it every second, and each change would be written to the API server
    for text in ("MemTotal: 8000000 kB\nMemFree: 20 kB\n", "MemTotal: 7900000 kB\n", "MemTotal: 8100000 kB\n"):
        write(proc / "meminfo", text)
        assert publisher._fingerprint() == before
    write(proc / "meminfo", "MemTotal: 8131072 kB\nMemFree: 20 kB\n")
    assert publisher._fingerprint() != before


def test_a_cpu_that_goes_offline_changes_the_fingerprint(tmp_path):
    trees.build(tmp_path, trees.LAPTOP)
    state = tmp_path / "cpu_manager_state"
    before = fingerprint(tmp_path, state)
    assert fingerprint(tmp_path, state) == before
    write(tmp_path / "devices/system/cpu/online", "0-6\n")
    gone = fingerprint(tmp_path, state)
    write(state, "{}")
    assert len({before, gone, fingerprint(tmp_path, state)}) == 3


def test_what_the_agent_has_given_to_pods_is_allocated_and_what_it_keeps_is_not_shared(tmp_path):
    reading = read_topology(trees.build(tmp_path, trees.LAPTOP))
    held = HeldCPUs(frozenset({0}), frozenset({0, 4}))  # a core is kept for a pod that runs on one of its threads
    pools = build_topology_status({}, reading, KubeletCPUs(), 1e9, held)["pools"]
    assert (pools["allocated"], pools["kept"], pools["shared"]) == ("0", "4", "1-3,5-7")


def test_bindings_that_kubelet_stands_in_the_way_of_are_named_in_the_nodes_condition(tmp_path):
    reading = read_topology(trees.build(tmp_path, trees.LAPTOP))

    def conflict(*bindings: str) -> tuple[str, str]:
        conditions = build_topology_status({}, reading, KubeletCPUs(), 1e9, HeldCPUs(kubelet_conflicts=bindings))
        found = {c["type"]: c for c in conditions["conditions"]}["KubeletConflict"]
        return found["status"], found["message"]

    assert conflict()[0] == "False"
    status, message = conflict("ns/a", "ns/b")
    assert status == "True" and "ns/a, ns/b." in message
    assert "ns/7 and 12 more." in conflict(*(f"ns/{n}" for n in range(20)))[1]


def test_memory_nodes_are_published_with_their_sizes(tmp_path):
    sys = trees.build(tmp_path, trees.SEED)
    write(sys / "devices/system/node/node0/meminfo", "Node 0 MemTotal:       32505856 kB\nNode 0 MemFree: 1 kB\n")
    reading = read_topology(sys)
    assert reading.topology.memory_bytes == {0: 31 * 2**30}, "node 1 reports none, and is not guessed"
    status = build_topology_status({}, reading, KubeletCPUs(), 1e9)
    obj = build_object(NODE_CPU_TOPOLOGIES, {"metadata": {"name": "n", "uid": "u"}}) | {"status": status}
    assert problems(obj) == []
    assert NodeCPUTopology.from_raw(obj).topology == reading.topology


def test_huge_pages_are_published_by_memory_node(tmp_path):
    sys = trees.build(tmp_path, trees.SEED)
    pages = sys / "devices/system/node/node1/hugepages"
    write(pages / "hugepages-2048kB/nr_hugepages", "3\n")
    write(pages / "hugepages-1048576kB/nr_hugepages", "0\n")
    before = fingerprint(sys)
    reading = read_topology(sys)
    assert reading.topology.hugepage_bytes == {1: {"hugepages-1Gi": 0, "hugepages-2Mi": 6 * 2**20}}
    status = build_topology_status({}, reading, KubeletCPUs(), 1e9)
    obj = build_object(NODE_CPU_TOPOLOGIES, {"metadata": {"name": "n", "uid": "u"}}) | {"status": status}
    assert problems(obj) == []
    assert NodeCPUTopology.from_raw(obj).topology == reading.topology
    write(pages / "hugepages-2048kB/nr_hugepages", "4\n")
    assert fingerprint(sys) != before, "the agent publishes it when they change"
