"""What pods have used, from their cgroups."""

from __future__ import annotations

import pytest

from concerto_agent.cgroups import Hierarchies
from concerto_agent.pod_reader import PodReader
from support.node_trees import UIDS, Machine

A, B = UIDS
PATHS = {A: f"kubepods/pod{A}", B: f"kubepods/pod{B}"}


def made(tmp_path, layout):
    machine = Machine(tmp_path, layout)
    for seconds, path in enumerate(PATHS.values(), 1):
        machine.cpu(path, seconds)
        machine.memory(path, 1000 * seconds, inactive=100)
        if layout in ("v2", "hybrid"):
            machine.cgroup_psi(path, some=seconds * 3_000_000, full=seconds * 1_000_000)
    return machine, PodReader(Hierarchies.detect(machine.sys))


@pytest.mark.parametrize("layout", ["v1", "v1-joined", "hybrid", "v2"])
def test_each_pod_is_read_in_every_layout(tmp_path, layout):
    _, reader = made(tmp_path, layout)
    readings = reader.read(PATHS)
    assert [r.cpu_seconds for r in readings.values()] == [1.0, 2.0]
    if layout in ("v2", "hybrid"):
        assert [(r.waited_seconds, r.stalled_seconds) for r in readings.values()] == [(3.0, 2.0), (6.0, 4.0)]
    else:
        assert [(r.waited_seconds, r.stalled_seconds) for r in readings.values()] == [(None, None)] * 2


def test_memory_is_read_at_first_and_then_now_and_then_of_one_pod_after_the_other(tmp_path):
    machine, reader = made(tmp_path, "v2")
    found = []
    for turn in range(30):
        found.append({uid: reading.memory_bytes for uid, reading in reader.read(PATHS).items()})
        for path in PATHS.values():
            machine.cpu(path, 10.0 + turn)
    assert found[0] == {A: 900.0, B: 1900.0}
    later = found[10:]
    for uid, memory in ((A, 900.0), (B, 1900.0)):
        assert [each[uid] for each in later].count(memory) == 4
    assert all(None in each.values() for each in later), "never of both at once"


def test_a_pod_that_is_gone_is_left_out_and_one_made_again_is_read_anew(tmp_path):
    machine, reader = made(tmp_path, "v2")
    reader.read(PATHS)
    machine.remove("cpuacct", PATHS[A])
    assert reader.read({B: PATHS[B]}).keys() == {B}
    assert reader.read(PATHS).keys() == {B}, "its cgroup is not there"
    machine.cpu(PATHS[A], 7.0)
    assert reader.read(PATHS)[A].cpu_seconds == 7.0


def test_the_last_reading_of_a_pod_holds_everything(tmp_path):
    _, reader = made(tmp_path, "v2")
    last = reader.read_last(A, PATHS[A])
    assert (last.cpu_seconds, last.stalled_seconds, last.memory_bytes) == (1.0, 2.0, 900.0)
    assert reader.read_last("gone", "kubepods/podgone") is None


def test_pods_wait_whose_pressure_has_grown_since_the_read_before(tmp_path):
    machine, reader = made(tmp_path, "v2")
    reader.read(PATHS)
    assert reader.waiting == {A, B}, "nothing is known of a pod that was read once"
    machine.cgroup_psi(PATHS[B], some=7_000_000, full=2_000_000)
    reader.read(PATHS)
    assert reader.waiting == {B}
    reader.add_up_pressure()
    reader.read_last(B, PATHS[B])
    assert reader.waiting == set()
    reader.read({A: PATHS[A]})
    reader.close()
    assert not reader.waiting
    reader.add_up_pressure()


def test_a_pod_without_pressure_does_not_wait(tmp_path):
    _, reader = made(tmp_path, "v1")
    reader.read(PATHS)
    assert not reader.waiting
    reader.add_up_pressure()


def test_what_an_idle_pod_has_waited_is_read_once_it_has_run_again(tmp_path):
    machine, reader = made(tmp_path, "hybrid")
    reader.read(PATHS)
    reader.read(PATHS)
    assert not reader.waiting
    machine.cgroup_psi(PATHS[A], some=5_000_000, full=3_000_000)
    assert reader.read(PATHS)[A].waited_seconds == 3.0, "it has had no CPU time since"
    machine.cpu(PATHS[A], 1.5)
    assert reader.read(PATHS)[A].waited_seconds == 5.0
    assert reader.waiting == {A}
    machine.cgroup_psi(PATHS[A], some=6_000_000, full=4_000_000)
    assert reader.read_last(A, PATHS[A]).waited_seconds == 6.0, "the last reading takes everything"


def test_pressure_that_comes_after_the_pod_is_read_though_the_pod_is_idle(tmp_path):
    machine = Machine(tmp_path, "hybrid")
    machine.cpu(PATHS[A], 1.0)
    reader = PodReader(Hierarchies.detect(machine.sys))
    assert reader.read({A: PATHS[A]})[A].waited_seconds is None, "the other hierarchy has no such cgroup yet"
    machine.cgroup_psi(PATHS[A], some=2_000_000, full=1_000_000)
    assert reader.read({A: PATHS[A]})[A].waited_seconds == 2.0


def test_the_memory_of_a_pod_is_read_again_once_it_has_run(tmp_path):
    machine, reader = made(tmp_path, "v2")

    def found(reads: int) -> set[float | None]:
        return {reader.read(PATHS)[A].memory_bytes for _ in range(reads)} - {None}

    assert found(12) == {900.0}
    machine.memory(PATHS[A], 5100, inactive=100)
    assert found(12) == set(), "a pod that does not run takes no more, with few exceptions"
    machine.cpu(PATHS[A], 1.5)
    assert found(12) == {5000.0}
    assert found(12) == set()


def test_memory_that_an_idle_pod_takes_shows_within_a_minute(tmp_path):
    """What a socket receives is its pod's, and so are file pages that another pod makes active."""
    machine, reader = made(tmp_path, "v2")
    for _ in range(12):
        reader.read(PATHS)
    machine.memory(PATHS[A], 5100, inactive=100)
    found = [reader.read(PATHS)[A].memory_bytes for _ in range(60)]
    assert [memory for memory in found if memory is not None] == [5000.0]
