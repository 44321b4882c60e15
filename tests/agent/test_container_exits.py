"""When the processes of containers end, from files as the kernel has them."""

from __future__ import annotations

import errno
import shutil

import pytest

from concerto_agent.container_exits import ContainerExits
from concerto_agent.inotify import Inotify

POD = "kubepods/pod1"


class Tree:
    """Cgroups in a folder; inotify is the kernel's."""

    def __init__(self, root):
        self.root, self.exited = root, []
        self.exits = ContainerExits(root, self.exited.append)

    def make(self, container, populated=1):
        (self.root / POD / container).mkdir(parents=True, exist_ok=True)
        self.write(container, populated)

    def write(self, container, populated):
        (self.root / POD / container / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")

    def seen(self):
        self.exits.drain()
        found, self.exited[:] = list(self.exited), []
        return found


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_container_whose_last_process_ends_is_reported_before_its_cgroup_goes(tree):
    tree.make("c")
    tree.exits.add("uid-1", f"{POD}/c")
    assert tree.seen() == []
    tree.write("c", 0)
    assert set(tree.seen()) == {"uid-1"}
    shutil.rmtree(tree.root / POD / "c")
    assert tree.seen() == []


def test_a_container_that_is_still_there_is_not_reported(tree):
    tree.make("c")
    tree.exits.add("uid-1", f"{POD}/c")
    tree.write("c", 1)
    assert tree.seen() == []


def test_a_cgroup_that_comes_later_in_this_hierarchy_is_followed_then(tree):
    (tree.root / POD).mkdir(parents=True)
    tree.exits.add("uid-1", f"{POD}/c")
    tree.make("c")
    tree.exits.follow()
    tree.write("c", 0)
    assert set(tree.seen()) == {"uid-1"}


def test_a_cgroup_that_never_comes_is_given_up_with_its_pod(tree):
    (tree.root / POD).mkdir(parents=True)
    tree.exits.add("uid-1", f"{POD}/c")
    shutil.rmtree(tree.root / POD)
    tree.exits.follow()
    assert not tree.exits._pending


def test_containers_that_were_gone_before_they_could_be_followed_do_not_pile_up(tree):
    tree.make("c")
    for number in range(100):
        tree.exits.add("uid-1", f"{POD}/c{number}")
    assert tree.exits._pending
    for _ in range(100):
        tree.exits.follow()
    assert not tree.exits._pending


def test_without_watches_containers_are_followed_as_soon_as_there_are_some_and_that_is_said_once(tree, caplog):
    left = []

    class Scarce(Inotify):
        def watch_file(self, file):
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().watch_file(file)

    tree.exits = ContainerExits(tree.root, tree.exited.append, open_inotify=Scarce)
    for number in range(5):
        tree.make(f"c{number}")
        tree.exits.add(f"uid-{number}", f"{POD}/c{number}")
    shutil.rmtree(tree.root / POD / "c4")
    assert len(caplog.records) == 1
    left.append("some")
    tree.exits.follow()
    for number in range(4):
        tree.write(f"c{number}", 0)
    assert set(tree.seen()) == {f"uid-{number}" for number in range(4)}


def test_without_such_a_hierarchy_or_without_inotify_nothing_is_reported(tmp_path):
    def none_left():
        raise OSError(24, "too many instances")

    for exits in (
        ContainerExits(None, lambda uid: None),
        ContainerExits(tmp_path, lambda uid: None, open_inotify=none_left),
    ):
        exits.add("uid-1", f"{POD}/c")
        exits.follow()
        exits.drain()
