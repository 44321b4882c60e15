"""The plant: processor sharing, pressure, start-up, memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_model import GIB, MIB, Change, NodeModelSettings, PodLoad

AT_ONCE = NodeModelSettings(
    start_seconds=(0.0, 0.0),
    start_when_full_seconds=0.0,
    end_seconds=(0.0, 0.0),
    teardown_seconds=0.0,
    spike_seconds=0.0,
    spike_threads=0,
    system_cpu=0.0,
    system_memory_bytes=0.0,
)


def fleet(cores=4.0, memory=8 * GIB, nodes=1, settings=AT_ONCE):
    return NodeFleet([cores] * nodes, [memory] * nodes, np.random.default_rng(0), settings)


def exits(model, until):
    return {t.pod: (t.at, t.reason) for t in model.advance(until) if t.change is Change.EXITED}


ALONE_AND_TOGETHER = {
    "one thread alone has a core to itself": ([PodLoad(0, 4.0, 1)], [4.0]),
    "four threads alone have four": ([PodLoad(0, 4.0, 4)], [1.0]),
    "waiting comes first": ([PodLoad(2.0, 4.0, 1)], [6.0]),
    "eight equal threads on four cores take twice as long": ([PodLoad(0, 4.0, 1)] * 8, [8.0] * 8),
    "a four-thread pod gets four fifths beside one thread": ([PodLoad(0, 16.0, 4), PodLoad(0, 4.0, 1)], [5.0, 5.0]),
    "what leaves frees its share": ([PodLoad(0, 2.0, 4), PodLoad(0, 4.0, 4)], [1.0, 1.5]),
    "bursts alternate": ([PodLoad(2.0, 4.0, 1, bursts=2)], [6.0]),
    "a quota holds back": ([PodLoad(0, 1.0, 1, cpu_limit=0.5)], [2.0]),
    "what a quota leaves goes to others": ([PodLoad(0, 1.0, 4, cpu_limit=1.0), PodLoad(0, 12.0, 4)], [1.0, 3.25]),
}


@pytest.mark.parametrize("sentence", ALONE_AND_TOGETHER)
def test_pods_end_when_processor_sharing_says(sentence):
    loads, expected = ALONE_AND_TOGETHER[sentence]
    model = fleet()
    for i, load in enumerate(loads):
        model.start(i, 0, load, 0.0)
    ended = exits(model, 100.0)
    assert [ended[i][0] for i in range(len(loads))] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("busy", "pressure"), [(1, 0.0), (4, 0.0), (5, 0.25), (6, 0.5), (8, 1.0), (12, 1.0)])
def test_pressure_is_what_linux_was_measured_to_say(busy, pressure):
    model = fleet()
    for i in range(busy):
        model.start(i, 0, PodLoad(0, 1000.0, 1), 0.0)
    model.advance(0.0)
    model.readings(0.001)
    model.advance(10.0)
    readings = model.readings(10.0)
    assert readings.pressure[0] == pytest.approx(pressure, abs=1e-6)
    assert readings.utilisation[0] == pytest.approx(min(1.0, busy / 4), abs=1e-6)


def test_a_pod_held_back_by_its_quota_makes_pressure_on_an_idle_node():
    model = fleet(cores=2.0)
    model.start("limited", 0, PodLoad(0, 100.0, 1, cpu_limit=0.2), 0.0)
    model.advance(10.0)
    readings = model.readings(10.0)
    assert readings.utilisation[0] == pytest.approx(0.1, abs=0.01)
    assert readings.pressure[0] == pytest.approx(0.8, abs=0.01)


WANTED = {
    "alone": ([PodLoad(0, 100.0)], 1.0, 1.0),
    "two on a core": ([PodLoad(0, 100.0)] * 2, 1.0, 2.0),
    "sixteen threads alone": ([PodLoad(0, 1000.0, 16)], 1.0, 1.0),
    "on four cores": ([PodLoad(0, 1000.0, 16)], 4.0, 4.0),
    "two of sixteen threads on a core": ([PodLoad(0, 1000.0, 16)] * 2, 1.0, 2.0),
    "eight on four cores": ([PodLoad(0, 1000.0)] * 8, 4.0, 8.0),
    "a quota": ([PodLoad(0, 100.0, cpu_limit=0.2)] * 3, 1.0, 0.6),
    "a pod that waits": ([PodLoad(100.0, 1.0)], 1.0, 0.0),
}


@pytest.mark.parametrize("sentence", WANTED)
def test_pods_want_a_cpu_while_they_compute_or_none_of_their_threads_runs(sentence):
    pods, cores, expected = WANTED[sentence]
    model = fleet(cores=cores)
    for i, load in enumerate(pods):
        model.start(i, 0, load, 0.0)
    model.advance(10.0)
    assert model.pods_wanted(0, range(len(pods)), 10.0) == pytest.approx(10.0 * expected)


def test_what_a_pod_wanted_stays_known_once_a_burst_is_over():
    model = fleet(cores=1.0)
    for i in range(2):
        model.start(i, 0, PodLoad(8.0, 4.0, bursts=2), 0.0)
    model.advance(14.0)  # both wait for 4 s, and compute side by side for 4 s
    assert model.pods_wanted(0, range(2), 14.0) == pytest.approx(2 * (4.0 + 2.0))


def test_memory_beyond_the_node_kills_the_largest_pod():
    model = fleet(memory=1 * GIB)
    model.start("small", 0, PodLoad(10.0, 1.0, memory_bytes=300 * MIB), 0.0)
    model.start("large", 0, PodLoad(10.0, 1.0, memory_bytes=900 * MIB, memory_ramp_seconds=4.0), 0.0)
    ended = exits(model, 100.0)
    assert ended["large"][1] == "OOMKilled"
    assert ended["small"][1] == "Completed"
    assert model.oom_kills == 1
    assert model.readings(101.0).memory[0] == 0.0


def test_a_full_node_starts_pods_later():
    settings = NodeModelSettings(start_seconds=(1.0, 1.0), spike_threads=0)
    model = fleet(settings=settings)
    model.start("first", 0, PodLoad(0, 100.0, 8), 0.0)
    assert [t.at for t in model.advance(2.0) if t.change is Change.RUNNING] == [1.0]
    model.start("second", 0, PodLoad(0, 1.0, 1), 2.0)
    assert [t.at for t in model.advance(9.0) if t.change is Change.RUNNING] == [2.0 + 1.0 + 2.0]


def test_starts_wait_for_a_cpu_as_pods_do_and_their_work_is_the_systems():
    model = fleet(cores=1.0, settings=replace(AT_ONCE, start_core_seconds=0.5, end_core_seconds=0.25))
    model.start("alone", 0, PodLoad(0, 1.0, 1), 0.0)
    changes = {t.change: t.at for t in model.advance(1.0)}
    assert (changes[Change.CGROUP_CREATED], changes[Change.RUNNING]) == (0.0, 0.5)
    readings = model.readings(1.0)
    assert readings.system_cpu[0] == pytest.approx(0.5), "half of the second was the start"
    changes = {t.change: t.at for t in model.advance(2.0)}
    assert (changes[Change.EXITED], changes[Change.TERMINATED]) == (1.5, 1.75)
    model.start("busy", 0, PodLoad(0, 100.0, 1), 2.0)
    model.advance(10.0)
    model.start("late", 0, PodLoad(0, 1.0, 1), 10.0)
    started = [t.at for t in model.advance(12.0) if t.change is Change.RUNNING]
    assert started == [11.0], "half of a CPU for a second"
    assert model.pods_used(0, ["late"], 12.0)["late"] == pytest.approx(0.5), "its start is not its own CPU time"


def test_a_start_under_way_is_lost_with_its_node():
    model = fleet(cores=1.0, settings=replace(AT_ONCE, start_core_seconds=5.0))
    model.start("pod", 0, PodLoad(0, 1.0, 1), 0.0)
    model.advance(1.0)
    model.fail(0, 1.0)
    model.restore(0, 2.0)
    assert model.advance(50.0) == []


def test_programs_outside_of_the_node_take_their_share_of_its_cpus():
    model = fleet(cores=2.0, settings=replace(AT_ONCE, other_cpu=0.25))
    for i in range(3):
        model.start(i, 0, PodLoad(0, 1.0, 1), 0.0)
    assert [at for at, _ in exits(model, 10.0).values()] == pytest.approx([2.0] * 3)
    readings = model.readings(10.0)
    assert readings.utilisation[0] == pytest.approx(0.25 + 0.75 * 2.0 / 10.0), "the CPUs' time, and not that of pods"
    assert readings.system_cpu[0] == pytest.approx(0.25)


def test_a_lost_node_says_nothing_more_and_comes_back_empty():
    model = fleet()
    model.start("pod", 0, PodLoad(0, 4.0, 1), 0.0)
    model.advance(1.0)
    model.fail(0, 1.0)
    assert model.advance(50.0) == []
    model.restore(0, 50.0)
    model.readings(50.0)
    model.advance(51.0)
    assert model.readings(51.0).utilisation[0] == 0.0


@settings(deadline=None)
@given(
    works=st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 20.0), st.integers(1, 6)), min_size=1, max_size=12),
    step=st.floats(0.05, 3.0),
)
def test_work_is_neither_lost_nor_made_however_time_is_cut(works, step):
    model = fleet()
    for i, (wait, work, threads) in enumerate(works):
        model.start(i, 0, PodLoad(wait, work, threads), 0.0)
    now, ended = 0.0, 0
    while ended < len(works):
        now += step
        ended += len(exits(model, now))
        assert now < 1e4
    assert model.busy_core_seconds(now)[0] == pytest.approx(sum(work for _, work, _ in works), rel=1e-6)


def test_others_go_on_after_a_pod_that_computes_is_stopped():
    model = fleet(cores=1.0)
    for key, seconds in (("stopped", 1.0), ("other", 4.0)):
        model.start(key, 0, PodLoad(0, seconds, 1), 0.0)
    model.advance(1.0)
    model.delete("stopped", 0, 1.0)
    assert exits(model, 100.0)["other"] == (pytest.approx(4.5, abs=1e-6), "Completed")


def test_a_pod_that_is_held_runs_and_computes_once_it_is_released():
    model = fleet(cores=1.0)
    model.start("held", 0, PodLoad(1.0, 2.0, 1), 0.0, held=True)
    assert [t.change for t in model.advance(10.0)] == [Change.CGROUP_CREATED, Change.RUNNING]
    model.release("held", 0, 10.0)
    assert exits(model, 100.0)["held"][0] == pytest.approx(13.0, abs=1e-6)
