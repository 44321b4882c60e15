"""CPU quotas are lifted for pods whose binding asks for it, and put back as kubelet had them."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection
from pathlib import Path

import pytest

from concerto.api.nodecputopology import Core, CPUTopology
from concerto_agent.cpuset_files import CpusetFiles
from concerto_agent.cpusets import Claim, KubeletRule
from concerto_agent.node_cpusets import NodeCpusets
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinning_release import release
from concerto_agent.pinning_settings import PinningSettings
from concerto_agent.quotas import PodLimits, PodQuotas, QuotaFiles, kubelet_sets_quotas, spec_limits
from support.cgroupfs_model import CgroupfsModel, NodeModel
from support.sysfs_trees import build, smt

ID = "a" * 64
POD = "kubepods/burstable/podu"


def container(name: str, cpu: str | None, **more: str) -> dict[str, object]:
    return {"name": name, **({} if cpu is None else {"resources": {"limits": {"cpu": cpu}}}), **more}


# pod's spec, limits in millicores by container; "" is the pod's
SPECS = {
    "none has a limit": ({"containers": [container("a", None)]}, {}),
    "all have one: so has the pod": (
        {"containers": [container("a", "500m"), container("b", "1")]},
        {"a": 500, "b": 1000, "": 1500},
    ),
    "one has none: neither has the pod": (
        {"containers": [container("a", "500m"), container("b", None)]},
        {"a": 500},
    ),
    "an init container that needs more": (
        {"initContainers": [container("i", "3")], "containers": [container("a", "1")]},
        {"i": 3000, "a": 1000, "": 3000},
    ),
    "a sidecar counts with the others, and with inits after it": (
        {
            "initContainers": [container("s", "1", restartPolicy="Always"), container("i", "3")],
            "containers": [container("a", "2")],
        },
        {"s": 1000, "i": 3000, "a": 2000, "": 4000},
    ),
    "an init container without a limit: the pod has none either": (
        {"initContainers": [container("i", None)], "containers": [container("a", "1")]},
        {"a": 1000},
    ),
    "one that runs beside a limited sidecar counts as limited": (
        {
            "initContainers": [container("s", "1", restartPolicy="Always"), container("i", None)],
            "containers": [container("a", "1")],
        },
        {"s": 1000, "a": 1000, "": 2000},
    ),
    "a limit of 0 does not count": ({"containers": [container("a", "0"), container("b", "1")]}, {"b": 1000}),
    "what a sandbox costs comes on top": (
        {"containers": [container("a", "1")], "overhead": {"cpu": "250m"}},
        {"a": 1000, "": 1250},
    ),
    "a limit of the whole pod": (
        {"containers": [container("a", None)], "resources": {"limits": {"cpu": "2"}}},
        {"": 2000},
    ),
}


@pytest.mark.parametrize(("spec", "limits"), SPECS.values(), ids=SPECS)
def test_limits_are_what_kubelet_makes_quotas_of(spec, limits):
    assert spec_limits(spec) == limits


def tree(root: Path, version: int) -> dict[str, Path]:
    files = {}
    for path, quota in ((POD, 50_000), (f"{POD}/sandbox", None), (f"{POD}/cri-containerd-{ID}.scope", 50_000)):
        directory = root / path
        directory.mkdir(parents=True)
        if version == 2:
            files[path] = directory / "cpu.max"
            files[path].write_text(f"{quota or 'max'} 100000\n")
        else:
            files[path] = directory / "cpu.cfs_quota_us"
            files[path].write_text(f"{quota or -1}\n")
            (directory / "cpu.cfs_period_us").write_text("100000\n")
    return files


@pytest.mark.parametrize("version", [1, 2])
def test_quotas_go_from_the_pod_downwards_and_come_back_from_the_containers_upwards(tmp_path, version):
    files = tree(tmp_path, version)
    order: list[str] = []

    def write(path: Path, text: str) -> None:
        order.append(path.parent.relative_to(tmp_path).as_posix().removeprefix(POD))
        path.write_text(text + "\n")

    limits = {"u": PodLimits(500, {ID: 500})}
    quotas = PodQuotas(QuotaFiles(tmp_path, version, write), lambda: limits, kubelet_sets=lambda: True)
    before = {path: file.read_text() for path, file in files.items()}
    pods = {"u": (POD, [path for path in files if path != POD])}
    assert quotas.enforce(pods, ()) == {}
    assert order == [], "what is as kubelet had it is left alone"
    quotas.enforce(pods, {"u"})
    assert {file.read_text().split()[0] for file in files.values()} == {"max" if version == 2 else "-1"}
    assert order == ["", f"/cri-containerd-{ID}.scope"]
    again = PodQuotas(QuotaFiles(tmp_path, version, write), lambda: limits, kubelet_sets=lambda: True)
    again.enforce(pods, ())  # by an agent that did not lift them
    assert {path: file.read_text() for path, file in files.items()} == before
    assert order[2:] == [f"/cri-containerd-{ID}.scope", ""]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("began", "goes_on"), [((), ()), ((), {"u"}), ({"u"}, ()), ({"u"}, {"u"})])
@pytest.mark.parametrize("writes", [0, 1])
def test_who_comes_after_an_agent_that_was_killed_between_two_writes_ends_what_it_began(
    tmp_path, version, began, goes_on, writes
):
    class Killed(BaseException):
        """Not to be caught."""

    files = tree(tmp_path, version)
    pods = {"u": (POD, [path for path in files if path != POD])}
    as_kubelet_had_them = {path: file.read_text() for path, file in files.items()}

    def enforce(unlimited: Collection[str], writes: int = 9) -> None:
        """By an agent that is killed when it has written so often."""

        def write(path: Path, text: str) -> None:
            nonlocal writes
            if writes == 0:
                raise Killed
            writes -= 1
            path.write_text(text + "\n")

        limits = {"u": PodLimits(500, {ID: 500})}
        quotas = PodQuotas(QuotaFiles(tmp_path, version, write), lambda: limits, kubelet_sets=lambda: True)
        quotas.enforce(pods, unlimited)

    enforce({"u"} if not began else ())
    with pytest.raises(Killed):
        enforce(began, writes)
    enforce(goes_on)
    now = {path: file.read_text() for path, file in files.items()}
    if goes_on:
        assert {text.split()[0] for text in now.values()} == {"max" if version == 2 else "-1"}
    else:
        assert now == as_kubelet_had_them


def test_no_quota_is_smaller_than_the_kernel_takes(tmp_path):
    files = tree(tmp_path, 2)
    for file in files.values():
        file.write_text("max 100000\n")
    quotas = PodQuotas(QuotaFiles(tmp_path, 2), lambda: {"u": PodLimits(5, {ID: 5})}, kubelet_sets=lambda: True)
    quotas.enforce({"u": (POD, [path for path in files if path != POD])}, ())
    assert sorted({file.read_text().split()[0] for file in files.values()}) == ["1000", "max"]


@pytest.mark.parametrize("kubelet_sets", [False, None])
def test_what_nobody_is_known_to_have_lifted_stays_lifted(tmp_path, kubelet_sets):
    files = tree(tmp_path, 2)
    for file in files.values():
        file.write_text("max 100000\n")
    limits = {"u": PodLimits(500, {ID: 500})}
    quotas = PodQuotas(QuotaFiles(tmp_path, 2), lambda: limits, lambda: kubelet_sets)
    quotas.enforce({"u": (POD, [path for path in files if path != POD])}, ())
    assert {file.read_text() for file in files.values()} == {"max 100000\n"}


@pytest.mark.parametrize(
    ("text", "sets"),
    [("cpuCFSQuota: false", False), ("cpuCFSQuota: true", True), ("kind: x", True), ("", None), (None, None)],
)
def test_whether_kubelet_sets_quotas_is_in_its_configuration(tmp_path, text, sets):
    if text is not None:
        (tmp_path / "config").write_text(text)
    assert kubelet_sets_quotas(tmp_path / "config") is sets


@pytest.mark.parametrize(("limits", "quota"), [({"u": PodLimits(500, {ID: 500})}, "50000"), (None, "-1")])
def test_a_release_by_hand_gives_back_quotas_where_the_pods_limits_are_known(tmp_path, limits, quota):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    cgroups = CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4)))
    node = NodeModel(cgroups, "cgroupfs")
    node.start("u", "burstable", containers=0)
    paths = [node.pods["u"], node.start_container("u", ID)]
    for path in reversed(paths):
        cgroups.write(cgroups.root / path / "cpuset.cpus", "1")
        directory = sys / "fs/cgroup/cpu" / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpu.cfs_quota_us").write_text("-1\n")
        (directory / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    settings = PinningSettings(tmp_path / "cpu_manager_state", sets_quotas=lambda: True)
    release(NodeFiles(sys=sys), settings, lambda: 0.0, limits)
    assert {cgroups.effective(path) for path in paths} == {frozenset(range(4))}
    quotas = [sys / "fs/cgroup/cpu" / path / "cpu.cfs_quota_us" for path in paths]
    assert {file.read_text().strip() for file in quotas} == {quota}


def test_a_kubelet_that_was_told_by_a_flag_to_set_no_quotas_has_none_set_for_it(tmp_path):
    """Its file does not say so, and every pod with a limit would be throttled."""
    files = tree(tmp_path, 2)
    for file in files.values():
        file.write_text("max 100000\n")
    said: list[bool | None] = [None]
    quotas = PodQuotas(QuotaFiles(tmp_path, 2), lambda: {"u": PodLimits(500, {ID: 500})}, lambda: said[0])
    pods = {"u": (POD, [path for path in files if path != POD])}
    for answer in (None, False):
        said[0] = answer
        quotas.enforce(pods, ())
        assert {file.read_text() for file in files.values()} == {"max 100000\n"}
    said[0] = True
    quotas.enforce(pods, ())
    assert files[POD].read_text().split() == ["50000", "100000"]


FOUR = CPUTopology(tuple(Core(0, n, frozenset({n})) for n in range(4)), {0: frozenset(range(4))})
UNLIMITED = Claim(("ns", "b"), "", 1, "u", frozenset({1}), frozenset({0}), "CPU", unlimited=True)


def limited_pods(root: Path) -> tuple[NodeModel, list[Path]]:
    """Two pods, and the files with the quotas of the first, in a cgroup tree of version 1."""
    node = NodeModel(CgroupfsModel(root / "cpuset", 1, FOUR.cpus), "cgroupfs")
    for uid in ("u", "other"):
        node.start(uid, "burstable", containers=1)
    directories = [root / "cpu" / path for path in node.below("u")]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpu.cfs_quota_us").write_text("50000\n")
        (directory / "cpu.cfs_period_us").write_text("100000\n")
    return node, [directory / "cpu.cfs_quota_us" for directory in directories]


def test_no_quota_is_lifted_while_the_pod_can_run_where_others_do(tmp_path):
    node, quotas = limited_pods(tmp_path)
    cgroups = node.cgroups
    stuck = {"other"}

    def write(path: Path, text: str) -> None:
        if any(f"pod{uid}" in path.as_posix() for uid in stuck):
            raise OSError(errno.EBUSY, "busy")
        cgroups.write(path, text)

    cpusets = NodeCpusets(
        CpusetFiles(cgroups.root, 1, write), lambda: dict(node.pods), lambda: FOUR, KubeletRule,
        PinningSettings(), lambda: 0.0, PodQuotas(QuotaFiles(tmp_path / "cpu", 1), dict, lambda: True),
    )  # fmt: skip

    def lifted_with(*cannot_be_written: str) -> bool:
        stuck.clear()
        stuck.update(cannot_be_written)
        cpusets.enforce([UNLIMITED])
        cpusets.look_at("u")
        return all(file.read_text().startswith("-1") for file in quotas)

    assert not lifted_with("other"), "another is on the CPU"
    assert not lifted_with("u"), "the pod is on others"
    assert lifted_with()


def test_pods_that_are_gone_take_no_memory(tmp_path):
    """One with an unlimited binding may come every minute, for months."""
    quotas = PodQuotas(QuotaFiles(tmp_path, 2), dict, lambda: True)
    for number in range(3):
        quotas.enforce({f"u{number}": ("nowhere", [])}, {f"u{number}"})
    assert len(quotas._lifted) == 3
    quotas.forget_all_but({"u1": "nowhere"})
    assert quotas._lifted == {"u1"}


@pytest.mark.parametrize("between", ["unknown", "gone"])
def test_what_was_lifted_is_known_for_as_long_as_the_pod_may_be_there(tmp_path, between):
    """While kubelet does not say whether it sets quotas, nobody else would put this one back."""
    node, quotas = limited_pods(tmp_path)
    there: list[dict[str, str] | None] = [dict(node.pods)]
    limits = {"u": PodLimits(500, {})}
    of_pod = tmp_path / "cpu" / node.pods["u"] / "cpu.cfs_quota_us"

    def write(path: Path, text: str) -> None:
        path.write_text(text)

    pods = PodQuotas(QuotaFiles(tmp_path / "cpu", 1, write), lambda: limits, lambda: None)
    cpusets = NodeCpusets(
        CpusetFiles(node.cgroups.root, 1, node.cgroups.write), lambda: there[0], lambda: FOUR, KubeletRule,
        PinningSettings(), lambda: 0.0, pods,
    )  # fmt: skip
    cpusets.enforce([UNLIMITED])
    assert {file.read_text().strip() for file in quotas} == {"-1"}
    known = there[0]
    there[0] = None if between == "unknown" else {}
    cpusets.enforce([UNLIMITED])
    assert pods._lifted == ({"u"} if between == "unknown" else set())
    if between == "unknown":
        there[0] = known
        cpusets.enforce([])
        assert of_pod.read_text() == "50000"
