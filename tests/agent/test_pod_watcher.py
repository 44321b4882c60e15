from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import threading
from pathlib import Path

import pytest

from concerto_agent.cgroups import Cgroup, Hierarchies, is_qos_directory, pod_uid
from concerto_agent.inotify import IN_CREATE, IN_IGNORED, IN_ISDIR, IN_Q_OVERFLOW, Event, Inotify
from concerto_agent.pod_census import Containers
from concerto_agent.pod_watcher import PodWatcher
from support.node_trees import STATIC_UID, UIDS, Machine, pod_paths
from support.waiting import eventually

A, B = UIDS

NAMES = {
    "cgroupfs": (f"pod{A}", A),
    "cgroupfs, static": (f"pod{STATIC_UID}", STATIC_UID),
    "systemd, guaranteed": (f"kubepods-pod{A.replace('-', '_')}.slice", A),
    "systemd, burstable": (f"kubepods-burstable-pod{A.replace('-', '_')}.slice", A),
    "systemd, best effort": (f"kubepods-besteffort-pod{A.replace('-', '_')}.slice", A),
    "systemd, static": (f"kubepods-burstable-pod{STATIC_UID}.slice", STATIC_UID),
    "kind": (f"kubelet-kubepods-burstable-pod{A.replace('-', '_')}.slice", A),
    "a QoS directory": ("burstable", None),
    "a QoS slice": ("kubepods-besteffort.slice", None),
    "kubepods itself": ("kubepods.slice", None),
    "podman's": ("libpod-0123.scope", None),
    "an unrelated slice": ("user-pods.slice", None),
    "a container": ("cri-containerd-0123.scope", None),
    "a file": ("cpu.stat", None),
}


@pytest.mark.parametrize(("name", "uid"), NAMES.values(), ids=NAMES.keys())
def test_pod_uid_of_a_directory(name, uid):
    assert pod_uid(name) == uid


QOS_NAMES = {
    "burstable": True,
    "besteffort": True,
    "kubepods-burstable.slice": True,
    "kubelet-kubepods-besteffort.slice": True,
    "guaranteed": False,
    "kubepods.slice": False,
    f"pod{A}": False,
    f"kubepods-burstable-pod{STATIC_UID}.slice": False,
}


@pytest.mark.parametrize(("name", "expected"), QOS_NAMES.items())
def test_qos_directories(name, expected):
    assert is_qos_directory(name) is expected


HIERARCHIES = {"v1": (1, "cpuacct", None), "v1-joined": (1, "cpu,cpuacct", None), "hybrid": (1, "cpuacct", "unified")}


@pytest.mark.parametrize("layout", [*HIERARCHIES, "v2"])
def test_hierarchies_are_detected_from_the_tree(tmp_path, layout):
    machine = Machine(tmp_path, layout)
    found = Hierarchies.detect(machine.sys)
    if layout == "v2":
        assert (found.version, found.cpu, found.pressure) == (2, machine.cgroups, machine.cgroups)
    else:
        version, cpu, pressure = HIERARCHIES[layout]
        assert (found.version, found.cpu) == (version, machine.cgroups / cpu)
        assert found.pressure == (machine.cgroups / pressure if pressure else None)


def test_a_machine_without_cgroups_has_no_hierarchy(tmp_path):
    assert Hierarchies.detect(tmp_path) == Hierarchies(None, None, None, None, version=1)


class Watch:
    """A watcher on a real directory, with a record of what it said."""

    def __init__(self, root: Path, scope: str = "", **options) -> None:
        self.said: list[tuple[str, bool]] = []
        self.root = root
        self.working: list[str] = []
        self.gone: list[tuple[str, Containers]] = []
        self.watcher = PodWatcher(
            root,
            scope,
            lambda uid, came: self.said.append((uid, came)),
            self.working.append,
            lambda uid, left: self.gone.append((uid, left)),
            **options,
        )
        self.watcher.refresh()

    def make(self, path: str) -> None:
        (self.root / path).mkdir(parents=True)

    def remove(self, path: str) -> None:
        shutil.rmtree(self.root / path)

    def take(self) -> list[tuple[str, bool]]:
        """What was said since the last call."""
        self.watcher.drain()
        said, self.said = self.said, []
        return said


@pytest.fixture
def watch(tmp_path):
    opened = []

    def start(scope: str = "", **options) -> Watch:
        opened.append(Watch(tmp_path, scope, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.watcher.close()


@pytest.mark.parametrize("below", ["", "n1"])
@pytest.mark.parametrize("qos", ["guaranteed", "burstable", "besteffort"])
@pytest.mark.parametrize("driver", ["cgroupfs", "systemd", "kind"])
def test_a_pod_that_comes_and_goes_is_reported_by_the_kernel(watch, tmp_path, driver, qos, below):
    path = pod_paths(driver, {A: qos}, below)[A]
    (tmp_path / path).parent.mkdir(parents=True)
    w = watch(below)
    assert w.watcher.events == "Inotify"
    w.make(path)
    w.make(f"{path}/cri-containerd-0123")
    assert w.take() == [(A, True)]
    assert w.watcher.pods == {A: path}
    w.remove(path)
    assert w.take() == [(A, False)]
    assert w.watcher.pods == {}


CONTAINERS = {
    "the sandbox alone": (["cri-containerd-0"], False),
    "sandbox and container": (["cri-containerd-0", "cri-containerd-1"], True),
    "systemd scopes": (["cri-containerd-0.scope", "cri-containerd-1.scope"], True),
    "CRI-O's monitor is no container": (["crio-conmon-0.scope", "crio-0.scope"], False),
}


@pytest.mark.parametrize("when", ["seen by events", "found by a scan"])
@pytest.mark.parametrize(("cgroups", "expected"), CONTAINERS.values(), ids=CONTAINERS.keys())
def test_a_pod_works_once_a_container_is_there_and_not_only_its_sandbox(watch, tmp_path, cgroups, expected, when):
    path = f"kubepods/pod{A}"
    if when == "found by a scan":
        for name in cgroups:
            (tmp_path / path / name).mkdir(parents=True)
    (tmp_path / "kubepods").mkdir(exist_ok=True)
    w = watch()
    if when == "seen by events":
        w.make(path)
        w.take()
        for name in cgroups:
            w.make(f"{path}/{name}")
    w.take()
    assert w.working == ([A] if expected else [])
    w.watcher.refresh()
    assert w.working == ([A] if expected else []), "it is reported once"


SANDBOX, FIRST, SECOND = ("a" * 64, "b" * 64, "c" * 64)
STEPS = {
    "its only container ends": (["+b", "-b"], [Containers(1, frozenset({SANDBOX}))]),
    "one container of two ends": (["+b", "+c", "-b"], []),
    "both end": (["+b", "+c", "-b", "-c"], [Containers(2, frozenset({SANDBOX}))]),
    "an init container, then another": (
        ["+b", "-b", "+c", "-c"],
        [Containers(1, frozenset({SANDBOX})), Containers(2, frozenset({SANDBOX}))],
    ),
}


@pytest.mark.parametrize("how", ["events", "scans"])
@pytest.mark.parametrize(("steps", "expected"), STEPS.values(), ids=STEPS)
def test_the_end_of_the_last_container_is_seen_before_the_pods_cgroup_goes(watch, tmp_path, steps, expected, how):
    path = f"kubepods/pod{A}"
    (tmp_path / path / SANDBOX).mkdir(parents=True)
    w = watch()
    for step in steps:
        name = {"b": FIRST, "c": SECOND}[step[1]]
        (w.make if step[0] == "+" else w.remove)(f"{path}/{name}")
        if how == "events":
            w.take()
        else:
            w.watcher.refresh()
    assert w.gone == [(A, left) for left in expected]
    w.watcher.refresh()
    assert len(w.gone) == len(expected), "it is reported once"
    w.remove(path)
    w.take()
    assert w.watcher.pods == {}


def test_where_sandboxes_have_no_cgroup_the_end_is_seen_as_well(watch, tmp_path):
    path = f"kubepods/pod{A}"
    (tmp_path / path / FIRST).mkdir(parents=True)
    w = watch()
    w.remove(f"{path}/{FIRST}")
    w.take()
    assert w.gone == [(A, Containers(1))]


def test_a_pod_that_is_made_again_has_to_start_again(watch, tmp_path):
    path = f"kubepods/pod{A}"
    (tmp_path / "kubepods").mkdir()
    w = watch()
    w.make(f"{path}/c0")
    w.make(f"{path}/c1")
    w.take()
    w.remove(path)
    w.make(path)
    w.take()
    assert w.working == [A]
    w.make(f"{path}/c0")
    w.make(f"{path}/c1")
    w.take()
    assert w.working == [A, A]


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd", "kind"])
def test_pods_that_are_there_already_are_found(watch, tmp_path, driver):
    paths = pod_paths(driver, {A: "guaranteed", B: "besteffort", STATIC_UID: "burstable"})
    for path in paths.values():
        (tmp_path / path).mkdir(parents=True)
    assert watch().watcher.pods == paths


def test_a_pod_that_came_and_went_between_two_looks_is_not_missed(watch, tmp_path):
    (tmp_path / "kubepods").mkdir()
    w = watch()
    w.make(f"kubepods/pod{A}")
    w.remove(f"kubepods/pod{A}")
    assert w.take() == [(A, True), (A, False)]


def test_a_pod_is_reported_once_even_if_both_a_scan_and_an_event_show_it(watch, tmp_path):
    (tmp_path / "kubepods").mkdir()
    w = watch()
    w.make(f"kubepods/pod{A}")
    w.watcher.refresh()
    assert w.take() == [(A, True)]


def test_kubepods_may_come_later(watch, tmp_path):
    w = watch()
    assert w.watcher.kubepods is None
    w.make("kubepods")
    w.take()
    assert w.watcher.kubepods == "kubepods"
    w.make(f"kubepods/burstable/pod{A}")
    assert w.take() == [(A, True)]


def test_a_node_whose_cgroup_does_not_exist_yet_is_found_by_the_next_scan(watch):
    w = watch("n1")
    w.make(f"n1/kubepods/besteffort/pod{A}")
    assert w.take() == [], "nothing could be watched"
    w.watcher.refresh()
    assert w.take() == [(A, True)]
    w.make(f"n1/kubepods/besteffort/pod{B}")
    assert w.take() == [(B, True)]


def test_kubepods_may_be_removed_and_made_again(watch, tmp_path):
    (tmp_path / f"kubepods/burstable/pod{A}").mkdir(parents=True)
    w = watch()
    w.take()
    w.remove("kubepods")
    assert w.take() == [(A, False)]
    assert w.watcher.kubepods is None
    w.make(f"kubepods/burstable/pod{B}")
    assert w.take() == [(B, True)]
    w.make(f"kubepods/pod{A}")
    assert w.take() == [(A, True)]


def test_a_qos_directory_may_be_removed_and_made_again(watch, tmp_path):
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    w = watch()
    w.remove("kubepods/burstable")
    w.take()
    w.make("kubepods/burstable")
    w.take()
    w.make(f"kubepods/burstable/pod{A}")
    assert w.take() == [(A, True)]


def test_pods_made_while_the_watches_are_put_in_place_are_not_lost(watch, tmp_path):
    """Add the watch first, then scan: whatever the moment, a pod is in the scan or in the queue."""
    paths = [f"kubepods/{('burstable', 'besteffort')[i % 2]}/pod{A[:-3]}{i:03}" for i in range(120)]

    def kubelet() -> None:
        for path in paths:
            (tmp_path / path).mkdir(parents=True)

    thread = threading.Thread(target=kubelet)
    thread.start()
    w = watch()
    while thread.is_alive():
        w.take()
    thread.join()
    for _ in range(3):  # each level that appeared is one more round
        w.take()
    assert set(w.watcher.pods.values()) == set(paths)


class Overflowing(Inotify):
    """The kernel's queue overflows: all events but the overflow are lost."""

    def read(self) -> list[Event]:
        return [Event(-1, IN_Q_OVERFLOW, "")] if super().read() else []


def test_an_overflow_of_the_queue_leads_to_a_scan(watch, tmp_path, caplog):
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    (tmp_path / f"kubepods/pod{B}").mkdir(parents=True)
    w = watch(open_inotify=Overflowing)
    w.take()
    w.make(f"kubepods/burstable/pod{A}")
    w.remove(f"kubepods/pod{B}")
    assert w.take() == [(B, False), (A, True)]


def items_in(watcher: PodWatcher) -> int:
    """Entries of all that a watcher holds."""
    held = [each for each in vars(watcher).values() if isinstance(each, dict | set)]
    inner = [each for outer in held if isinstance(outer, dict) for each in outer.values() if isinstance(each, set)]
    return sum(len(each) for each in (*held, *inner))


class NoWatchesLeft(Inotify):
    """fs.inotify.max_user_watches is used up."""

    def watch(self, directory: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def no_instances_left() -> Inotify:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("opener", [NoWatchesLeft, no_instances_left])
def test_without_inotify_the_tree_is_scanned_and_that_is_said_once(watch, tmp_path, opener, caplog):
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        w = watch(open_inotify=opener)
        assert w.watcher.events == "Scan"
        w.make(f"kubepods/burstable/pod{A}")
        assert w.take() == [], "nothing reports it"
        w.watcher.refresh()
        assert w.take() == [(A, True)]
        w.remove(f"kubepods/burstable/pod{A}")
        w.watcher.refresh()
        assert w.take() == [(A, False)]
    assert len(caplog.records) == 1


def test_of_containers_that_are_started_again_and_again_their_number_is_remembered_and_not_their_names(watch, tmp_path):
    pod = f"kubepods/pod{A}"
    (tmp_path / pod / "sandbox").mkdir(parents=True)
    w = watch()
    for number in range(50):
        w.make(f"{pod}/c{number}")
        w.take()
        w.remove(f"{pod}/c{number}")
        w.take()
    assert w.gone[-1] == (A, Containers(50, frozenset()))
    assert items_in(w.watcher) < 40


class FewWatches(Inotify):
    """What is left of fs.inotify.max_user_watches is enough for kubepods and its QoS classes, and so many pods."""

    left = 0

    def watch(self, directory: Path) -> int:
        if directory.name.startswith("pod"):
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            type(self).left -= 1
        return super().watch(directory)


def test_pods_without_a_watch_leave_nothing_behind(watch, tmp_path, monkeypatch):
    monkeypatch.setattr(FewWatches, "left", 0)
    (tmp_path / "kubepods").mkdir()
    w = watch(open_inotify=FewWatches)
    before = items_in(w.watcher)
    for _ in range(3):
        w.make(f"kubepods/pod{A}")
        w.take()
        w.remove(f"kubepods/pod{A}")
        w.take()
    assert items_in(w.watcher) == before


@pytest.mark.parametrize("first", ["pods", "watcher"])
def test_pods_whose_containers_no_event_shows_are_scanned_and_watched_again_when_that_is_possible(
    watch, tmp_path, caplog, monkeypatch, first
):
    monkeypatch.setattr(FewWatches, "left", 0)
    pods = [f"kubepods/burstable/pod{each}" for each in (A, B)]
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    if first == "pods":
        for pod in pods:
            (tmp_path / pod).mkdir()
    w = watch(open_inotify=FewWatches)
    if first == "watcher":
        assert w.watcher.events == "Inotify"
        for pod in pods:
            w.make(pod)
        w.take()
        w.watcher.refresh()
    assert w.watcher.events == "Scan"
    for name in "01":
        w.make(f"{pods[0]}/cri-containerd-{name}")
    w.watcher.refresh()
    assert w.working == [A]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["no watch on cgroups of pods"]
    monkeypatch.setattr(FewWatches, "left", 9)
    w.watcher.refresh()
    assert w.watcher.events == "Inotify"
    for name in "01":
        w.make(f"{pods[1]}/cri-containerd-{name}")
    w.take()
    assert w.working == [A, B]


async def test_a_pod_that_cannot_be_watched_is_looked_at_a_second_later(tmp_path, monkeypatch):
    monkeypatch.setattr(FewWatches, "left", 0)
    (tmp_path / "kubepods").mkdir()
    working = []
    watcher = PodWatcher(
        tmp_path, "", lambda uid, came: None, working.append, scan_seconds=0.05, open_inotify=FewWatches
    )
    running = asyncio.ensure_future(watcher.run())
    await asyncio.sleep(0)
    pod = tmp_path / f"kubepods/pod{A}"
    pod.mkdir()
    await eventually(lambda: A in watcher.pods)
    for name in "01":
        (pod / f"cri-containerd-{name}").mkdir()
    await eventually(lambda: working == [A])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_inotify_that_becomes_available_is_used(watch, tmp_path):
    (tmp_path / "kubepods").mkdir()
    openers = iter([no_instances_left, Inotify])
    w = watch(open_inotify=lambda: next(openers)())
    assert w.watcher.events == "Scan"
    w.watcher.refresh()
    assert w.watcher.events == "Inotify"
    w.make(f"kubepods/pod{A}")
    assert w.take() == [(A, True)]


def test_the_constants_are_the_kernels(tmp_path):
    inotify = Inotify()
    inner = tmp_path / "inner"
    inner.mkdir()
    outer_watch, inner_watch = inotify.watch(tmp_path), inotify.watch(inner)
    assert inotify.watch(inner) == inner_watch
    assert inotify.read() == []
    (tmp_path / "naïve").mkdir()
    assert inotify.read() == [Event(outer_watch, IN_CREATE | IN_ISDIR, "naïve")]
    inner.rmdir()
    assert Event(inner_watch, IN_IGNORED, "") in inotify.read()
    with pytest.raises(FileNotFoundError):
        inotify.watch(inner)
    inotify.close()


FORMER = pod_paths("cgroupfs", {A: "burstable"})[A]
PRESENT = pod_paths("systemd", {A: "burstable"})[A]
CONTAINER = "cri-containerd-" + 64 * "0" + ".scope"


@pytest.mark.parametrize("left", ["kubepods/burstable", FORMER], ids=["no pod", "an empty pod"])
def test_cgroups_of_a_former_driver_hide_no_pods(watch, tmp_path, left):
    """Kubelet's driver was changed as kubeadm's page has it: drained, stopped and started, without a reboot."""
    (tmp_path / left).mkdir(parents=True)
    (tmp_path / PRESENT / CONTAINER).mkdir(parents=True)
    watcher = watch().watcher
    assert watcher.pods == {A: PRESENT}
    assert (watcher.kubepods, watcher.events) == ("kubepods.slice", "Inotify")
    scope = Cgroup(Hierarchies(tmp_path, tmp_path, tmp_path, tmp_path, version=2), "")
    assert scope.find_kubepods() == "kubepods.slice"


def test_the_first_pod_under_a_new_driver_is_seen_beside_empty_cgroups_of_the_former(watch, tmp_path):
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    made = watch()
    assert made.watcher.kubepods == "kubepods"
    made.make(PRESENT)
    assert made.take() == [(A, True)]
    made.make(f"{PRESENT}/{CONTAINER}")
    made.watcher.refresh()
    assert (made.watcher.kubepods, made.watcher.pods) == ("kubepods.slice", {A: PRESENT})


def test_a_pod_is_not_gone_while_only_its_cgroup_of_a_former_driver_goes(watch, tmp_path):
    (tmp_path / FORMER).mkdir(parents=True)
    made = watch()
    assert made.watcher.pods == {A: FORMER}
    made.make(f"{PRESENT}/{CONTAINER}")
    made.watcher.refresh()
    assert made.watcher.pods == {A: PRESENT}
    made.take()
    made.remove(FORMER)
    assert made.take() == []
    made.watcher.refresh()
    assert made.watcher.pods == {A: PRESENT}
    made.remove(PRESENT)
    assert made.take() == [(A, False)]
