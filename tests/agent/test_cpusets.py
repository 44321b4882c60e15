"""Which cpusets are written, in which order, and what kubelet and the kernel have to say in it."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.conditions import Condition
from concerto.api.nodecputopology import Core, CPUTopology
from concerto.pinning.topology import TopologyIndex, bits, to_mask
from concerto_agent.bindings import Outcome, build_agent_status, own_part, read_claim
from concerto_agent.cpuset_files import ContainerWatcher, CpusetFiles, read_rule
from concerto_agent.cpusets import Claim, Grant, KubeletRule, Refusal, Write, granted, make_plan
from concerto_agent.grants import resolve
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.inotify import Inotify
from concerto_agent.node_cpusets import NodeCpusets
from concerto_agent.pin_counts import count_pins
from concerto_agent.pinning_settings import PinningSettings
from support.cgroupfs_model import CgroupfsModel, NodeModel
from support.crd_schemas import problems

FOUR = CPUTopology(tuple(Core(0, n, frozenset({n, n + 2})) for n in range(2)), {0: frozenset(range(4))})
SETTINGS = PinningSettings()


def claim(uid: str, *cpus: int, level: str = "CPU", created: int = 0) -> Claim:
    return Claim(("ns", f"b-{uid}"), f"2026-01-01T00:00:{created:02}Z", 1, uid, frozenset(cpus), frozenset({0}), level)


def node(tmp_path, version: int = 1, driver: str = "cgroupfs", pods: str = "ab") -> NodeModel:
    model = NodeModel(CgroupfsModel(tmp_path / "cpuset", version, FOUR.cpus), driver)
    for uid in pods:
        model.start(uid, "burstable")
    return model


def agent(model: NodeModel, rule: KubeletRule | None = None) -> NodeCpusets:
    files = CpusetFiles(model.cgroups.root, model.cgroups.version, model.cgroups.write)
    return NodeCpusets(
        files, lambda: dict(model.pods), lambda: FOUR, lambda: rule or KubeletRule(), SETTINGS, lambda: 1e9
    )


def sets(model: NodeModel, uid: str) -> set[frozenset[int]]:
    return {model.cgroups.effective(path) for path in model.below(uid)}


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd", "crio", "docker"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_bound_pod_has_its_cpus_and_the_others_have_the_rest(tmp_path, version, driver):
    model = node(tmp_path, version, driver)
    cpusets = agent(model)
    cpusets.enforce([claim("a", 1, level="Core")])
    assert (sets(model, "a"), sets(model, "b")) == ({frozenset({1})}, {frozenset({0, 2})})
    assert cpusets.outcomes["a"] == Outcome(frozenset({1}), frozenset({0}), exact=True)
    model.start("c", "besteffort")
    assert cpusets.look_at("c") is False
    assert sets(model, "c") == {frozenset({0, 2})}
    cpusets.enforce([])
    assert {cpus for uid in "abc" for cpus in sets(model, uid)} == {FOUR.cpus}


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_bound_to_cpus_that_no_pod_can_have_does_not_run_on_what_is_kept_for_another(tmp_path, version):
    """v2 gives it all that the cgroup above has, as where systemd's AllowedCPUs or a partition has taken CPUs away."""
    model = node(tmp_path, version, pods="abc")
    for path in ("kubepods/burstable", "kubepods/besteffort", "kubepods"):
        if version == 1:
            for uid in model.pods:
                for below in reversed(model.below(uid)):
                    model.cgroups.write(model.cgroups.root / below / "cpuset.cpus", "0,2")
        model.cgroups.write(model.cgroups.root / path / "cpuset.cpus", "0,2")
    cpusets = agent(model)
    claims = [claim("a", 1), claim("b", 2)]
    cpusets.enforce(claims)
    assert cpusets.refusals[("ns", "b-a")] == Refusal(
        "CPUsNotForPods",
        "Pods of this node have CPUs 0,2 and none of CPUs 1: the cgroup above the pod's is kept off these. "
        "Bind the pod to others.",
    )
    assert [sets(model, uid) for uid in "abc"] == [{frozenset({0})}, {frozenset({2})}, {frozenset({0})}]
    del model.cgroups.writes[:]
    cpusets.enforce(claims)
    assert model.cgroups.writes == [], "or the sets of pods change at each look"
    for path in ("kubepods", "kubepods/burstable", "kubepods/besteffort"):
        model.cgroups.write(model.cgroups.root / path / "cpuset.cpus", "0-3")
    cpusets.enforce(claims)
    assert [sets(model, uid) for uid in "abc"] == [{frozenset({1})}, {frozenset({2})}, {frozenset({0, 3})}]


def test_others_have_a_cpu_left_of_those_that_pods_can_have(tmp_path):
    model = node(tmp_path, 2)
    model.cgroups.write(model.cgroups.root / "kubepods/cpuset.cpus", "0,2")
    cpusets = agent(model)
    cpusets.enforce([claim("a", 0, 2)])
    assert cpusets.refusals[("ns", "b-a")].reason == "SharedPoolEmpty"


def test_others_leave_before_the_owner_enters(tmp_path):
    model = node(tmp_path)
    agent(model).enforce([claim("a", 1)])
    order = [path.split("/pod")[1][0] for path, file, _ in model.cgroups.writes if file == "cpuset.cpus"]
    assert order == sorted(order, reverse=True), "b before a"
    assert [path.count("/") for path, _, _ in model.cgroups.writes[:3]] == [3, 3, 2], "what shrinks, from the leaves"


def test_what_moves_is_at_no_time_without_a_cpu_nor_outside_its_parent(tmp_path):
    model = node(tmp_path)
    cpusets = agent(model)
    cpusets.enforce([claim("a", 1), claim("b", 2)])
    del model.cgroups.writes[:]
    cpusets.enforce([claim("a", 2), claim("b", 1)])  # the two change places
    assert (sets(model, "a"), sets(model, "b")) == ({frozenset({2})}, {frozenset({1})})
    assert cpusets.outcomes["a"].exact and cpusets.outcomes["b"].exact


def test_a_cgroup_of_the_containers_own_is_moved_along_on_v1_and_left_alone_on_v2(tmp_path):
    for version, nested in ((1, {1}), (2, {1})):
        model = node(tmp_path / str(version), version)
        inner = f"{model.below('a')[1]}/inner"
        model.cgroups.make(inner)
        cpusets = agent(model)
        cpusets.enforce([claim("a", 1)])
        assert model.cgroups.effective(inner) == nested
        cpusets.enforce([])
        assert model.cgroups.effective(inner) == FOUR.cpus


# rule, pod a's containers' CPUs, those of pod b's, how a stands
STATIC = KubeletRule(True, frozenset({0, 1, 2}), {"k": frozenset({frozenset({3})})})


def test_with_kubelets_static_policy_only_containers_are_written_and_its_own_are_left_alone(tmp_path):
    model = node(tmp_path, pods="abk")
    pinned = model.below("k")[1]
    model.cgroups.write(model.cgroups.root / pinned / "cpuset.cpus", "3")
    cpusets = agent(model, STATIC)
    cpusets.enforce([claim("a", 1)])
    assert [model.cgroups.effective(model.pods[uid]) for uid in "abk"] == [FOUR.cpus] * 3
    assert {model.cgroups.effective(path) for path in model.below("a")[1:]} == {frozenset({1})}
    assert {model.cgroups.effective(path) for path in model.below("b")[1:]} == {frozenset({0, 2})}
    assert model.cgroups.effective(pinned) == {3}
    cpusets.enforce([claim("k", 1), claim("a", 3, created=1)])
    assert cpusets.refusals[("ns", "b-k")].reason == "KubeletConflict"
    assert cpusets.refusals[("ns", "b-a")].reason == "KubeletExclusive"
    assert model.cgroups.effective(pinned) == {3}
    assert {model.cgroups.effective(path) for path in model.below("a")[1:]} == {frozenset({0, 1, 2})}


def test_on_a_node_without_bindings_nothing_is_read_of_a_pod_that_has_changed(tmp_path, monkeypatch):
    """Container runtimes in pods start processes in cgroups of their own all the time."""
    model = node(tmp_path)
    cpusets = agent(model)
    cpusets.enforce([])
    read: list[str] = []
    pod = CpusetFiles.pod
    monkeypatch.setattr(CpusetFiles, "pod", lambda files, path: read.append(path) or pod(files, path))
    assert cpusets.look_at("a") is False
    assert read == []
    steps = cpusets.steps([claim("b", 1)])
    next(steps)
    model.start_container("a", "c" * 8)
    cpusets.look_at("a")
    assert read == [model.pods["a"]], "of the step, and no other"
    for _ in steps:
        cpusets.look_at("a")
    assert sets(model, "a") == {frozenset({0, 2, 3})}
    assert read
    cpusets.enforce([])
    assert sets(model, "a") == {FOUR.cpus}


@pytest.mark.parametrize("version", [1, 2])
def test_pods_that_outlive_a_change_of_kubelets_policy_get_what_kubelet_gives_them(tmp_path, version):
    """A drain leaves DaemonSets' pods on the node: no container of theirs could leave what its pod's cgroup had."""
    rules = [KubeletRule()]
    model = node(tmp_path, version, pods="abc")
    files = CpusetFiles(model.cgroups.root, version, model.cgroups.write)
    cpusets = NodeCpusets(files, lambda: dict(model.pods), lambda: FOUR, lambda: rules[0], SETTINGS, lambda: 1e9)
    cpusets.enforce([claim("a", 1)])
    assert model.cgroups.effective(model.pods["b"]) == {0, 2, 3}
    rules[0] = KubeletRule(True, frozenset({0, 1, 2}), {"c": frozenset({frozenset({3})})})
    cpusets.enforce([claim("a", 1)])
    assert {model.cgroups.effective(model.pods[uid]) for uid in "abc"} == {FOUR.cpus}
    assert {model.cgroups.effective(path) for path in model.below("a")[1:]} == {frozenset({1})}
    assert all({0, 2} <= model.cgroups.effective(path) <= {0, 2, 3} for path in model.below("b")[1:])
    cpusets.enforce([])
    assert {model.cgroups.effective(path) for path in model.below("a")[1:]} == {frozenset({0, 1, 2})}
    before = len(model.cgroups.writes)
    cpusets.enforce([])
    assert len(model.cgroups.writes) == before


def test_where_kubelets_policy_is_not_known_nothing_is_written_and_the_bindings_say_so(tmp_path):
    model = node(tmp_path)
    model.cgroups.write(model.cgroups.root / model.below("b")[1] / "cpuset.cpus", "3")  # kubelet's doing, perhaps
    before = len(model.cgroups.writes)
    cpusets = agent(model, KubeletRule(known=False))
    cpusets.enforce([claim("a", 1)])
    assert cpusets.refusals[("ns", "b-a")].reason == "KubeletUnknown"
    assert len(model.cgroups.writes) == before
    rules = [KubeletRule(), KubeletRule(known=False)]
    files = CpusetFiles(model.cgroups.root, model.cgroups.version, model.cgroups.write)
    cpusets = NodeCpusets(
        files, lambda: dict(model.pods), lambda: FOUR, lambda: rules.pop(0) if len(rules) > 1 else rules[0], SETTINGS,
        lambda: 1e9,
    )  # fmt: skip
    cpusets.enforce([claim("a", 1)])
    assert cpusets.outcomes["a"].exact, "what was known before counts while the file is away"


# claims, UIDs of the grants, reasons of the refusals
TOGETHER = {
    "two that share nothing": ([claim("a", 0), claim("b", 1)], {"a", "b"}, []),
    "the older of two that share a core": (
        [claim("b", 2, created=1), claim("a", 0, level="Core")], {"a"}, ["Conflict"],
    ),
    "two that share a CPU and keep nobody from it": (
        [claim("a", 0, level="None"), claim("b", 0, level="None")], {"a", "b"}, [],
    ),
    "what leaves CPUs to the others": (
        [claim("a", 0, 1, 2), claim("b", 3, created=1)], {"a"}, ["SharedPoolEmpty"],
    ),
    "what is online": ([claim("a", 9)], set(), ["CPUsGone"]),
    "one for each pod": ([claim("a", 0), claim("a", 1, created=1)], {"a"}, ["Conflict"]),
}  # fmt: skip


@pytest.mark.parametrize(("claims", "uids", "reasons"), TOGETHER.values(), ids=TOGETHER)
def test_a_node_grants(claims, uids, reasons):
    grants, refusals = resolve(claims, FOUR, KubeletRule())
    assert (grants.keys(), [refusal.reason for refusal in refusals.values()]) == (uids, reasons)


@given(st.data())
def test_what_is_kept_from_others_is_what_the_operator_keeps(data):
    sockets, cores, threads = (data.draw(st.integers(1, 3)) for _ in range(3))
    made = [
        Core(s, c, frozenset((t * sockets + s) * cores + c for t in range(threads)))
        for s in range(sockets)
        for c in range(cores)
    ]
    numa = {s: frozenset(cpu for core in made if core.socket == s for cpu in core.cpus) for s in range(sockets)}
    topology = CPUTopology(tuple(made), numa)
    cpus = data.draw(st.frozensets(st.sampled_from(sorted(topology.cpus)), min_size=1))
    for level in ("None", "CPU", "Core", "Socket", "NUMA"):
        index = TopologyIndex.build(topology)
        assert topology.closure(cpus, level) == set(bits(index.closure(to_mask(cpus), level)))


def test_nothing_is_said_of_a_claim_that_was_not_looked_at_yet(tmp_path):
    model = node(tmp_path, 1)
    cpusets = agent(model)
    first, lost = claim("a", 1), claim("b", 1, created=1)
    assert cpusets.standing(first) is None
    cpusets.enforce([first, lost])
    assert cpusets.standing(first) == (Grant(first, frozenset({1})), cpusets.outcomes["a"])
    refusal = cpusets.standing(lost)
    assert isinstance(refusal, Refusal) and refusal.reason == "Conflict"
    edited = claim("b", 2, created=1)
    assert cpusets.standing(edited) is None, "what was said of it before its edit is not said of it now"
    cpusets.enforce([first, edited])
    assert cpusets.standing(edited) == (Grant(edited, frozenset({2})), cpusets.outcomes["b"])
    assert cpusets.standing(lost) is None


def test_what_the_kernel_refuses_is_reported_and_nobody_else_suffers(tmp_path):
    model = node(tmp_path)
    write = model.cgroups.write
    stubborn = model.pods["b"]

    def refuse(path, text):
        if stubborn in str(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        write(path, text)

    model.cgroups.write = refuse
    cpusets = agent(model)
    cpusets.enforce([claim("a", 1)])
    assert cpusets.outcomes["a"].intruder == "pod b"
    assert sets(model, "a") == {FOUR.cpus}, "it does not enter what others have not left"
    cpusets.enforce([claim("a", 1, level="None")])
    assert sets(model, "a") == {frozenset({1})}
    model.cgroups.write = write
    agent(model).enforce([claim("a", 1)])
    assert sets(model, "b") == {frozenset({0, 2, 3})}


def test_memory_nodes_are_set_with_the_cpus_and_left_alone_where_kubelet_gives_them(tmp_path):
    for number, (rule, mems) in enumerate([(KubeletRule(), {1}), (KubeletRule(mems=True), {0, 1})]):
        cgroups = CgroupfsModel(tmp_path / str(number), 1, FOUR.cpus, frozenset({0, 1}))
        model = NodeModel(cgroups, "cgroupfs")
        model.start("a", "burstable")
        cpusets = agent(model, rule)
        cpusets.enforce([Claim(("ns", "b"), "", 1, "a", frozenset({1}), frozenset({1}), "None")])
        assert {frozenset(cgroups.effective(path, "cpuset.mems")) for path in model.below("a")} == {frozenset(mems)}
        assert cpusets.outcomes["a"].exact
        cpusets.enforce([])
        assert {frozenset(cgroups.effective(path, "cpuset.mems")) for path in model.below("a")} == {frozenset({0, 1})}


@pytest.mark.parametrize("version", [1, 2])
def test_a_memory_node_without_memory_leaves_the_pod_the_memory_that_there_is(tmp_path, version):
    cgroups = CgroupfsModel(tmp_path, version, FOUR.cpus, frozenset({0, 1}))
    model = NodeModel(cgroups, "cgroupfs")
    for uid, mems, has in (("a", {2}, {0, 1}), ("b", {1, 2}, {1})):
        model.start(uid, "burstable")
        cpusets = agent(model)
        cpusets.enforce([Claim(("ns", uid), "", 1, uid, frozenset({1}), frozenset(mems), "None")])
        assert cpusets.outcomes[uid] == Outcome(frozenset({1}), frozenset(has), exact=True)


@pytest.mark.parametrize("rule", [KubeletRule(), KubeletRule(containers_only=True, default=FOUR.cpus)])
def test_a_cgroup_that_its_owner_has_locked_keeps_nobody_elses_cpus_from_them(tmp_path, rule):
    model = node(tmp_path, 2, pods="ab")
    file = model.cgroups.root / model.below("b")[-1] / "cpuset.cpus"
    file.unlink()
    file.mkdir()  # root of these tests may read whatever has a mode: this it can't
    cpusets = agent(model, rule)
    cpusets.enforce([claim("a", 1)])
    # Where only containers are written, and this can't be, its pod stays in the way, which is reported
    in_the_way = rule.containers_only
    assert cpusets.outcomes["a"].intruder == ("pod b" if in_the_way else "")
    assert (frozenset({1}) in sets(model, "a")) is not in_the_way


def test_without_a_cpuset_controller_below_kubepods_nothing_is_said_to_be_kept(tmp_path):
    model = node(tmp_path, 2)
    for file in (model.cgroups.root / model.pods["b"]).glob("cpuset.*"):
        file.unlink()
    cpusets = agent(model)
    one = claim("a", 1)
    cpusets.enforce([one])
    refusal = cpusets.standing(one)
    assert isinstance(refusal, Refusal) and refusal.reason == "NoCpusetController"
    assert model.pods["b"] in refusal.message and "subtree_control of cgroup kubepods/burstable" in refusal.message
    assert cpusets.held() == HeldCPUs()
    assert (sets(model, "a"), model.cgroups.writes) == ({FOUR.cpus}, [])


def test_a_pod_that_has_no_process_yet_needs_no_cpuset_to_be_kept_off_cpus(tmp_path):
    """Systemd makes a pod's slice before kubelet enables the controller above it."""
    model = node(tmp_path, 2)
    cpusets = agent(model)
    one, other = claim("a", 1), claim("c", 2, created=1)
    cpusets.enforce([one])
    for file in (model.cgroups.root / model.pods["b"]).glob("cpuset.*"):
        file.unlink()
    (model.cgroups.root / model.pods["b"] / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    model.start("c", "burstable")
    cpusets.enforce([one, other])
    for each in (one, other):
        standing = cpusets.standing(each)
        assert not isinstance(standing, Refusal) and standing is not None and standing[1].exact
    model.stop("b")
    cpusets.enforce([one])
    assert sets(model, "a") == {frozenset({1})}


def test_where_the_pods_cgroups_are_not_found_nothing_is_said_to_be_kept(tmp_path):
    model = node(tmp_path, 2)
    files = CpusetFiles(model.cgroups.root, 2, model.cgroups.write)
    cpusets = NodeCpusets(files, lambda: None, lambda: FOUR, KubeletRule, SETTINGS, lambda: 1e9)
    one = claim("a", 1)
    cpusets.enforce([one])
    refusal = cpusets.standing(one)
    assert isinstance(refusal, Refusal) and refusal.reason == "PodCgroupsNotFound"
    assert not cpusets.look_at("a")


def test_what_is_held_names_the_bindings_that_kubelet_stands_in_the_way_of(tmp_path):
    rule = KubeletRule(True, frozenset({0, 1, 2}), {"k": frozenset({frozenset({3})})})
    cpusets = agent(node(tmp_path), rule)
    cpusets.enforce([claim("a", 1), claim("b", 3)])
    assert cpusets.held() == HeldCPUs(frozenset({1}), frozenset({1}), ("ns/b-b",))


def test_pins_are_counted_by_state_and_so_are_the_changes_of_others(tmp_path):
    model = node(tmp_path)
    cpusets = agent(model)
    claims = [claim("a", 1, level="Core"), claim("later", 2), claim("b", 0, created=1), claim("c", 9)]
    cpusets.enforce(claims)
    model.start_container("a", "new")
    cpusets.look_at("a")
    counts = count_pins(cpusets, claims, FOUR.cpus)
    assert counts.cpus == {"allocated": 2, "kept": 1, "kubeletExclusive": 0, "shared": 1}
    assert counts.pods == {"Applied": 1, "Waiting": 1, "NotApplied": 0, "Refused": 2}
    assert counts.repairs == 0, "a container that starts is no repair"
    for number, uid in enumerate("ab", 1):
        for path in model.below(uid):
            model.cgroups.write(model.cgroups.root / path / "cpuset.cpus", "0-3")
        cpusets.look_at("a")
        cpusets.enforce(claims)
        assert cpusets.repairs == number
    cpusets.enforce([])
    assert cpusets.repairs == 2, "an edit of bindings is no repair"
    assert count_pins(cpusets, [], frozenset()).cpus == {}


def test_what_somebody_else_writes_and_who_enters_is_seen_at_once(tmp_path):
    model = node(tmp_path, pods="a")
    received: list[str] = []
    watcher = ContainerWatcher(model.cgroups.root, received.append, Inotify)
    watcher.follow("a", model.pods["a"])
    # event, whether it is reported
    container = model.start_container("a", "new")
    watcher.drain()
    assert received == ["a"]
    for file in ("cgroup.procs", "cpuset.cpus"):
        (model.cgroups.root / container / file).write_text("1\n")
        watcher.drain()
    assert received == ["a"] * 3
    watcher.drain()
    assert received == ["a"] * 3
    model.stop("a")
    watcher.forget("a")
    watcher.drain()
    assert received == ["a"] * 3
    watcher.close()


def test_files_that_were_away_are_watched_again(tmp_path):
    model = node(tmp_path, pods="ab")
    received: list[str] = []
    watcher = ContainerWatcher(model.cgroups.root, received.append, Inotify)
    for uid in "ab":
        watcher.follow(uid, model.pods[uid])
    directory = model.cgroups.root / model.below("a")[-1]
    away = directory / "cpuset.cpus"
    away.unlink()
    away.write_text("0-3\n")
    model.stop("b")
    watcher.forget("b")
    assert sum(1 for _ in watcher.renew()) == 1, "a step for each pod that is there"
    watcher.drain()
    received.clear()
    away.write_text("1\n")
    watcher.drain()
    assert received == ["a"]
    watcher.close()


def test_without_an_inotify_instance_nothing_is_told_until_there_is_one(tmp_path, caplog):
    """Others may have taken all that the kernel gives a user (fs.inotify.max_user_instances)."""
    model, left = node(tmp_path, pods="a"), [3]
    received: list[str] = []

    def open_inotify() -> Inotify:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return Inotify()

    watcher = ContainerWatcher(model.cgroups.root, received.append, open_inotify)
    watcher.follow("a", model.pods["a"])
    for _ in range(2):
        assert watcher.fileno() is None
        model.start_container("a", f"new{left[0]}")
        watcher.drain()
        list(watcher.renew())
    assert (received, len(caplog.records)) == ([], 1)
    list(watcher.renew())
    assert watcher.fileno() is not None
    model.start_container("a", "another")
    watcher.drain()
    assert received == ["a"]
    watcher.close()


def test_without_watches_that_is_said_once_and_nothing_of_cgroups_that_are_gone(tmp_path, caplog):
    model, number = node(tmp_path, pods="a"), [errno.ENOENT]

    class Refusing(Inotify):
        def watch(self, directory):
            raise OSError(number[0], os.strerror(number[0]))

    watcher = ContainerWatcher(model.cgroups.root, lambda uid: None, Refusing)
    watcher.follow("a", model.pods["a"])
    assert not caplog.records
    number[0] = errno.ENOSPC
    for _ in range(2):
        list(watcher.renew())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["no inotify watch"]
    watcher.close()


ENTRIES = {"uid-1": {"c": "2-3"}}
# cpu_manager_state, memory_manager_state, rule
RULES = {
    "no policy: all levels are ours": ({"policyName": "none"}, {"policyName": "None"}, KubeletRule()),
    "no memory manager": ({"policyName": "none"}, None, KubeletRule()),
    "static: containers only": (
        {"policyName": "static", "defaultCpuSet": "0-1", "entries": ENTRIES},
        {"policyName": "Static"},
        KubeletRule(True, frozenset({0, 1}), {"uid-1": frozenset({frozenset({2, 3})})}, mems=True),
    ),
    "static, with CPUs of a whole pod": (
        {
            "policyName": "static",
            "defaultCpuSet": "0-1",
            "entries": ENTRIES,
            "podEntries": {"uid-1": {"cpuSet": "2-5"}},
        },
        {"policyName": "Static"},
        KubeletRule(
            True, frozenset({0, 1}), {"uid-1": frozenset({frozenset({2, 3}), frozenset({2, 3, 4, 5})})}, mems=True
        ),
    ),
    "a form of a later kubelet: it may be anything": (
        {"policyName": "static", "entries": {"u": {"c": {"cpus": "1"}}}},
        {"policyName": "None"},
        KubeletRule(known=False),
    ),
    "nothing can be read: it may be anything": (None, None, KubeletRule(mems=True, known=False)),
    "nonsense: it may be anything": (
        {"policyName": "static", "entries": {"u": "?"}},
        {"policyName": "None"},
        KubeletRule(known=False),
    ),
}


@pytest.mark.parametrize(("cpu", "memory", "rule"), RULES.values(), ids=RULES)
def test_what_kubelet_decides_is_read_from_its_state_files(tmp_path, cpu, memory, rule):
    for name, content in (("cpu", cpu), ("memory", memory)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    assert read_rule(tmp_path / "cpu", tmp_path / "memory") == rule


OBJECT = {
    "apiVersion": "concerto.dev/v1alpha1",
    "kind": "PodCPUBinding",
    "metadata": {
        "name": "b-a", "namespace": "ns", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"podName": "p", "cpuSet": [{"cpuID": 1}], "exclusivenessLevel": "CPU"},
    "status": {
        "nodeName": "n", "podUID": "a", "cpus": "1", "mems": "0",
        "conditions": [
            {
                "type": "Validated", "status": "True", "reason": "Validated", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    },
}  # fmt: skip


def test_a_binding_is_claimed_once_it_is_validated_and_until_an_edit_is():
    first = read_claim(OBJECT, "n", None)
    assert first == claim("a", 1)
    assert read_claim(OBJECT, "another", None) is None
    edited = OBJECT | {
        "metadata": OBJECT["metadata"] | {"generation": 2},
        "spec": OBJECT["spec"] | {"exclusivenessLevel": "NUMA"},
    }
    assert read_claim(edited, "n", first) == first
    assert read_claim(OBJECT | {"status": {**OBJECT["status"], "conditions": []}}, "n", first) is None


def test_an_agent_that_has_just_started_applies_what_was_validated_and_no_later_edit():
    edited = OBJECT | {
        "metadata": OBJECT["metadata"] | {"generation": 2},
        "spec": OBJECT["spec"] | {"exclusivenessLevel": "NUMA", "cpuQuota": "Unlimited"},
        "status": OBJECT["status"] | {"exclusivenessLevel": "CPU", "cpuQuota": "Kubelet", "containers": ["main"]},
    }
    edited["spec"]["containers"] = ["another"]
    found = read_claim(edited, "n", None)
    assert found is not None and (found.level, found.unlimited, found.containers) == ("CPU", False, {"main"})


ONE = frozenset({1})
GRANT = Grant(claim("a", 1), ONE)
# grant, what there is to say, status and reason of Prepared, Applied and KubeletConflict, applied
SAID = {
    "no container yet": (
        GRANT, Outcome(), ("True", "Held"), ("Unknown", "NoContainers"), "False", {"podUID": "a"},
    ),
    "only the sandbox": (
        GRANT, Outcome(ONE, frozenset({0}), True, started=False), ("True", "Held"), ("Unknown", "NoContainers"),
        "False", {"podUID": "a"},
    ),
    "applied": (
        GRANT, Outcome(ONE, frozenset({0}), True), ("True", "Held"), ("True", "Applied"), "False",
        {"podUID": "a", "cpus": "1", "mems": "0", "at": "2026-01-01T00:00:01Z"},
    ),
    "not what was granted": (
        GRANT, Outcome(frozenset({0, 1}), frozenset({0})), ("True", "Held"), ("False", "NotAsGranted"), "False",
        {"podUID": "a", "cpus": "0-1", "mems": "0", "at": "2026-01-01T00:00:01Z"},
    ),
    "refused by the kernel": (
        GRANT, Outcome(error="no"), ("True", "Held"), ("False", "Refused"), "False", {"podUID": "a"},
    ),
    "others are in the way": (
        GRANT, Outcome(intruder="pod b"), ("False", "SharedPoolNotShrunk"), ("False", "SharedPoolNotShrunk"), "False",
        {"podUID": "a"},
    ),
    "kubelet's": (
        None, Refusal("KubeletConflict", "It rules."), ("False", "KubeletConflict"), ("False", "KubeletConflict"),
        "True", {"podUID": "a"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("grant", "said", "prepared", "applied", "conflict", "reported"), SAID.values(), ids=SAID)
def test_an_agents_part_of_the_status_fits_the_crd(grant, said, prepared, applied, conflict, reported):
    now = "2026-01-01T00:00:02Z"
    status = build_agent_status(OBJECT, claim("a", 1), grant, said, "2026-01-01T00:00:01Z", now)
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert (conditions["Prepared"], conditions["Applied"]) == (prepared, applied)
    assert conditions["KubeletConflict"][0] == conflict
    assert {c["observedGeneration"] for c in status["conditions"]} == {1}
    assert status["applied"] == reported
    whole = OBJECT["status"] | status | {"conditions": OBJECT["status"]["conditions"] + status["conditions"]}
    assert problems(OBJECT | {"status": whole}) == []
    assert own_part(whole) == status
    again = build_agent_status(OBJECT | {"status": whole}, claim("a", 1), grant, said, "2026-01-01T00:00:01Z", "later")
    assert again == status, "a status that is built again is the same"


def test_between_the_end_of_a_container_and_its_next_start_a_pod_is_pinned_as_before():
    one = claim("a", 1)

    def applied(obj, made_for: Claim, outcome: Outcome) -> tuple[dict[str, object], str]:
        status = build_agent_status(obj, made_for, Grant(made_for, ONE), outcome, None, "now")
        return status, next(c["reason"] for c in status["conditions"] if c["type"] == "Applied")

    sandbox = Outcome(ONE, frozenset({0}), True, started=False)
    status, reason = applied(OBJECT, one, sandbox)
    assert reason == "NoContainers"
    status, reason = applied(OBJECT | {"status": status}, one, Outcome(ONE, frozenset({0}), True))
    assert reason == "Applied"
    again, reason = applied(OBJECT | {"status": status}, one, sandbox)
    assert (again, reason) == (status, "Applied")
    edited = Claim(**vars(one) | {"generation": 2})
    assert applied(OBJECT | {"status": status}, edited, sandbox)[1] == "NoContainers"
    another = Claim(**vars(one) | {"pod_uid": "b"})
    assert applied(OBJECT | {"status": status}, another, sandbox)[1] == "NoContainers"


def test_what_was_seen_of_a_pods_use_stays_with_it_and_goes_with_it():
    one = claim("a", 1)
    typed = Claim(**vars(one) | {"workload_type": "cpu-bound"})
    fits = Condition("WorkloadTypeFits", "False", "MostlyIdle", "Type best-effort would suit the pod better.")

    def built(obj, made_for, **said):
        return build_agent_status(obj, made_for, Grant(made_for, ONE), Outcome(ONE, **said), None, "now")

    def reported(status) -> list[str]:
        return [c["reason"] for c in status["conditions"] if c["type"] == "WorkloadTypeFits"]

    status = built(OBJECT, typed, fit=fits)
    assert reported(status) == ["MostlyIdle"]
    seen = OBJECT | {"status": status}
    assert reported(built(seen, typed)) == ["MostlyIdle"], "an agent that has started again has seen nothing yet"
    assert reported(built(seen, one)) == [], "the binding has no type any more"
    assert reported(built(seen, Claim(**vars(typed) | {"pod_uid": "b"}))) == [], "another pod has its name"


def test_a_plan_for_pods_that_have_what_they_shall_have_is_empty(tmp_path):
    model = node(tmp_path)
    files = CpusetFiles(model.cgroups.root, 1)
    pods = {uid: files.pod(path) for uid, path in model.pods.items()}
    plan = make_plan(1, pods, {}, KubeletRule())
    assert (plan.leave, plan.enter) == ({}, {})
    assert granted(pods["a"]) == (FOUR.cpus, frozenset({0}), True)
    assert files.apply([Write("kubepods/gone", "cpuset.cpus", "1")]) is None, "what is gone needs no write"
