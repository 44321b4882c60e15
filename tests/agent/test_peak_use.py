"""How many cores pods use while they compute, from readings of their cgroups."""

from __future__ import annotations

import pytest

from concerto_agent.cgroups import Hierarchies
from concerto_agent.peak_use import PeakUse
from concerto_agent.pod_reader import PodReader
from support.node_trees import UIDS, Machine

POD, PATH = UIDS[0], f"kubepods/pod{UIDS[0]}"


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)


def computed(threads, rate, seconds=3.0, waits=2.0, every=0.1):
    """What is found of a pod that waits, and then computes on threads that have a CPU for a part of the time."""
    some, full = 1.0 - rate**threads, (1.0 - rate) ** threads
    peak = PeakUse()
    for step in range(round((waits + seconds) / every) + 1):
        at = step * every
        busy = max(0.0, at - waits)
        peak.note(100.0 + at, threads * rate * busy, (some + full) / 2 * busy)
    return peak.work / (threads * rate * seconds)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_pod_that_nobody_holds_up_uses_a_core_for_each_thread(threads):
    assert computed(threads, 1.0) == pytest.approx(threads)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_a_pod_of_one_thread_uses_one_core_while_it_computes_however_long_it_is_stalled(rate):
    assert computed(1, rate) == pytest.approx(1.0)


def test_a_pod_of_four_threads_on_half_as_many_cpus_uses_four_cores_without_its_stalls():
    assert computed(4, 0.5) == pytest.approx(4.0)


def test_time_in_which_a_pod_waits_makes_no_difference():
    assert computed(4, 1.0, waits=1.0) == pytest.approx(computed(4, 1.0, waits=60.0))


def test_what_a_pod_had_before_it_was_read_was_on_one_cpu_as_far_as_anybody_knows():
    peak = PeakUse()
    peak.note(100.0, 3.0, 0.0)
    assert peak.work == 3.0
    peak.note(101.0, 5.0, 0.0)
    assert peak.work == 3.0 + 2.0 * 2.0


def test_a_reading_is_no_more_than_all_cpus_and_one_that_comes_too_soon_or_goes_back_counts_nothing():
    peak = PeakUse()
    for at, cpu, stalled in ((100.0, 0.0, 0.0), (100.01, 5.0, 0.0), (101.0, 6.0, 0.9999999), (102.0, 2.0, 0.0)):
        peak.note(at, cpu, stalled)
    assert peak.work == pytest.approx(6.0 * 8)


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_pods_that_wait_for_cpus_are_read_several_times_a_second_and_others_once(tmp_path, layout):
    """It computes on two CPUs for the first half of each second; without pressure only its mean can be seen."""
    machine, now = Machine(tmp_path, layout), [100.0]
    machine.memory(PATH, 1000, inactive=100)
    reader = PodReader(Hierarchies.detect(machine.sys), lambda: now[0])
    for tenth in range(31):
        now[0] = 100.0 + tenth / 10
        seconds, tenths = divmod(tenth, 10)
        machine.cpu(PATH, 1.0 * seconds + 0.2 * min(5, tenths))
        if layout == "v2":
            machine.cgroup_psi(PATH, some=1 + tenth, full=0)  # in microseconds
        if tenths:
            reader.add_up_pressure()
        else:
            reading = reader.read({POD: PATH})[POD]
    assert reading.cpu_seconds == 3.0
    assert reading.peak_work == pytest.approx(6.0 if layout == "v2" else 3.0, rel=0.01)


def test_a_pod_that_idles_between_two_bursts_is_not_taken_to_compute_slowly(tmp_path):
    machine, now = Machine(tmp_path, "v2"), [100.0]
    machine.memory(PATH, 1000, inactive=100)
    machine.cgroup_psi(PATH, some=0, full=0)
    reader = PodReader(Hierarchies.detect(machine.sys), lambda: now[0])
    for cpu_seconds in (0.0, 0.0, 0.0, 0.0, 4.0):
        machine.cpu(PATH, cpu_seconds)
        reading = reader.read({POD: PATH})[POD]
        now[0] += 1.0
    assert reading.peak_work == pytest.approx(16.0)
