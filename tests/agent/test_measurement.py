from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterable

import numpy as np
import pytest

from concerto.api.capacity_settings import CapacitySettings
from concerto.capacity.cpu_demand import DEMAND_SOURCES
from concerto.capacity.subspace import Subspace, second_moment
from concerto_agent.law_trace import LawTrace
from concerto_agent.measurement import Measured, Measurement, align
from concerto_agent.node_files import NodeFiles
from concerto_agent.pod_census import trim_pod
from concerto_agent.pod_reader import PodReading
from support.node_trees import UIDS, Machine, write

A, B = UIDS
WALL = 1_800_000_000.0


def pod(uid: str) -> dict:
    return trim_pod({"metadata": {"name": uid[:8], "namespace": "default", "uid": uid, "resourceVersion": "1"}})


class Run:
    """A measurement on a fake machine, driven second by second."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = 10.0
        self.ticks = [0, 0]  # busy, idle
        self.measurement = Measurement(NodeFiles(proc=machine.proc, sys=machine.sys), self.now)

    def sample(self, busy: float | None = 0.5) -> bool:
        """A tenth of a second with so much of the CPUs busy; None leaves the files alone."""
        if busy is not None:
            self.ticks[0] += round(busy * 100)
            self.ticks[1] += round((1 - busy) * 100)
            self.machine.stat(f"{self.ticks[0]} 0 0 {self.ticks[1]} 0 0 0 0")
        self.now += 0.1
        return self.measurement.sample(self.now, WALL + self.now)

    def second(self, busy: float | None = 0.5) -> Measured:
        """One batch, folded."""
        full = False
        while not full:
            full = self.sample(busy)
        return self.measurement.fold(self.now, None)


class LearnsAtOnce(Measurement):
    """Learns each sample as it is taken."""

    def sample(self, now: float, wall: float, uncounted: Iterable[str] = ()) -> bool:
        full = super().sample(now, wall, uncounted)
        self._learn_samples()
        return full


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(Machine(tmp_path))


def reasons(measured: Measured) -> set[str]:
    return {problem.reason for problem in measured.problems}


def test_a_batch_is_ten_samples_and_three_make_it_warm(run):
    for expected in (False, False, True):
        measured = run.second()
        assert measured.fresh
        assert run.measurement.warm is expected
    assert run.measurement.counters.samples == 30
    assert measured.report.usage[0, 0] == pytest.approx(0.25, abs=0.01), "damped, no pressure"
    assert measured.wall == pytest.approx(WALL + run.now)
    assert measured.silent_seconds == 0


def test_pods_that_count_are_those_listed(run):
    census = run.measurement.census
    for uid in (A, B):
        census.on_pod_change(None, pod(uid), run.now, WALL)
        census.appeared(uid, run.now)
        census.working(uid, run.now)
    assert run.measurement.pods_changed
    measured = run.second()
    assert not run.measurement.pods_changed
    assert set(measured.pod_uids) == {A, B}
    assert measured.report.pods[0] == 2
    census.vanished(A, run.now)
    assert run.measurement.pods_changed
    measured = run.second()
    assert measured.pod_uids == (B,)
    assert measured.report.pods[0] == 1


def test_a_batch_can_be_folded_early_for_a_pod(run):
    for _ in range(3):
        run.second()
    run.sample()
    run.measurement.census.on_pod_change(None, pod(A), run.now, WALL)
    run.measurement.census.appeared(A, run.now)
    run.measurement.census.working(A, run.now)
    run.sample()
    measured = run.measurement.fold(run.now, None)
    assert measured.fresh
    assert measured.pod_uids == (A,)
    assert measured.report.samples[0].tolist() == [2, 2]


def test_a_resource_lost_is_reported_and_the_other_goes_on(run):
    run.second()
    (run.machine.proc / "meminfo").unlink()
    run.measurement.apply(CapacitySettings(cpu_formula="Mean"), 2, run.now)  # and its descriptors are closed
    run.sample()
    measured = run.second()
    assert measured.fresh
    assert measured.report.samples[0, 1] == 0
    assert "Unreadable" in reasons(measured)
    write(run.machine.proc / "meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    measured = run.second()
    assert measured.report.samples[0, 1] == 10
    assert "Unreadable" not in reasons(measured)


def test_what_only_some_samples_lacked_is_no_news(run):
    run.second()
    (run.machine.proc / "pressure/cpu").rename(run.machine.proc / "hidden")
    run.measurement.apply(CapacitySettings(cpu_formula="Mean"), 2, run.now)
    for _ in range(3):
        run.sample()
    (run.machine.proc / "hidden").rename(run.machine.proc / "pressure/cpu")
    measured = run.second()
    assert "NoPressure" not in reasons(measured)


def test_a_reading_that_never_comes_is_reported_even_without_a_problem(run):
    run.second()
    measured = run.second(busy=None)  # the counters stand still: no time, as far as they are concerned
    assert measured.report.samples[0, 0] == 0
    assert "cpu" in {problem.resource for problem in measured.problems}


def test_a_node_that_can_not_be_measured_keeps_its_last_instant(run):
    measured = run.second()
    last = measured.wall
    (run.machine.proc / "meminfo").unlink()
    (run.machine.proc / "stat").unlink()
    run.measurement.apply(CapacitySettings(cpu_formula="Mean"), 2, run.now)
    measured = run.second(busy=None)
    measured = run.second(busy=None)
    assert not measured.fresh
    assert measured.wall == last
    assert measured.silent_seconds == pytest.approx(2.0)


def test_a_node_that_was_never_measured_has_no_instant(tmp_path):
    run = Run(Machine(tmp_path))
    for name in ("meminfo", "stat"):
        (run.machine.proc / name).unlink()
    measured = run.second(busy=None)
    assert measured.at is measured.wall is None
    assert not measured.fresh


def test_other_settings_keep_what_was_learned(run):
    for _ in range(3):
        run.second()
    run.measurement.apply(CapacitySettings(churn_window_seconds=1.0), 7, run.now)
    measured = run.second()
    assert measured.generation == 7
    assert run.measurement.warm
    assert measured.report.batches[0] == 4


def test_other_resources_begin_anew_with_the_pods_that_are_there(run):
    run.measurement.census.on_pod_change(None, pod(A), run.now, WALL)
    run.measurement.census.appeared(A, run.now)
    run.measurement.census.working(A, run.now)
    for _ in range(3):
        run.second()
    run.machine.psi(0, "io")
    run.measurement.apply(CapacitySettings(resources=("memory", "cpu", "io")), 7, run.now)
    measured = run.second()
    assert measured.report.usage.shape == (1, 3)
    assert measured.report.pods[0] == 1
    assert measured.pod_uids == (A,)
    assert not run.measurement.warm


def test_the_same_settings_under_another_generation_disturb_nothing(run):
    for _ in range(5):
        run.sample()
    run.measurement.apply(CapacitySettings(), 9, run.now)
    measured = run.second()
    assert measured.report.samples[0, 1] == 10
    assert measured.generation == 9


def test_time_in_fractions_of_other_cpus_is_not_time_that_pods_have_had_since(run):
    for uid in (A, B):
        run.measurement.census.on_pod_change(None, pod(uid), run.now, WALL)
        run.measurement.census.appeared(uid, run.now)
        run.measurement.census.working(uid, run.now)
    for seconds in range(8):
        run.measurement.pods_read({A: PodReading(3600.0 + 0.02 * seconds), B: PodReading(0.4 * seconds)}, run.now)
        run.second()
    run.measurement.census.vanished(B, run.now)
    online = run.machine.sys / "devices/system/cpu/online"
    for seconds, cpus in enumerate(("0-1", "0-3", "0-3", "0", "0", "0-1")):
        online.write_text(cpus + "\n")
        run.measurement.apply(CapacitySettings(heartbeat_seconds=20.0 + seconds), 2 + seconds, run.now)
        run.second()
        run.measurement.pods_read({A: PodReading(3600.2 + 0.02 * seconds)}, run.now)
        assert not run.second().report.large[0]


def test_what_each_pod_waits_for_shows_the_demand_beyond_two(run):
    """On four CPUs that are in use, three pods whose tasks wait all the time."""
    waited = dict.fromkeys((A, B, "c"), 0.0)
    for _ in range(4):
        run.measurement.pods_read({uid: PodReading(1.0, seconds, seconds) for uid, seconds in waited.items()}, run.now)
        measured = run.second(busy=1.0)
        waited = {uid: seconds + 1.0 for uid, seconds in waited.items()}
    run.measurement.pods_read({uid: PodReading(1.0, seconds, seconds) for uid, seconds in waited.items()}, run.now)
    measured = run.second(busy=1.0)
    assert measured.report.demand[0] == pytest.approx(1.0 + 3.0 / 4, rel=0.05)
    assert DEMAND_SOURCES[int(measured.report.demand_source[0])] == "PodPressure"


def test_how_many_pods_want_a_cpu_is_averaged_over_some_seconds(run):
    """On four CPUs, six pods of which two wait for a CPU all the time."""
    for uid in ("c0", "c1", "c2", "c3", "w0", "w1"):
        run.measurement.pod_changed(None, pod(uid), run.now, WALL)
    seconds = 0.0
    for _ in range(60):
        computes, waits = (
            PodReading(cpu, held_up, held_up, held_up_seconds=held_up)
            for cpu, held_up in ((seconds, 0.0), (0.0, seconds))
        )
        readings = {f"c{i}": computes for i in range(4)} | {f"w{i}": waits for i in range(2)}
        run.measurement.pods_read(readings, run.now)
        measured = run.second(busy=1.0)
        seconds += 1.0
    assert measured.report.pods_wanting[0] == pytest.approx(6.0 / 4, rel=0.05)
    assert measured.report.cpu_used[0] == pytest.approx(1.0)
    for _ in range(5):
        run.measurement.pods_read({}, run.now)
        measured = run.second(busy=0.0)
    assert measured.report.pods_wanting[0] == pytest.approx(6.0 / 4 * 0.9**5, rel=0.1)
    assert measured.report.cpu_used[0] == pytest.approx(0.9**5, rel=0.05)


def test_without_pressure_of_pods_it_is_unknown_how_many_want_a_cpu(run):
    for _ in range(4):
        run.measurement.pods_read({A: PodReading(1.0)}, run.now)
        measured = run.second(busy=1.0)
    assert math.isnan(measured.report.pods_wanting[0])


def test_the_node_takes_no_more_pods_than_its_kubelet(run):
    run.measurement.allow(2)
    for _ in range(3):
        measured = run.second(busy=0.0)
    assert measured.report.capacity[0] <= 2


def test_the_trace_of_a_batch_is_written_once_whoever_asks(run):
    trace = LawTrace("n1", batches=10)
    for number in (1, 2):
        trace.keep(float(number), run.second(), 0.5, None)
        assert len(json.loads(trace.text())["rows"]) == number
        assert trace.text() is trace.text()


def test_a_cluster_model_is_read_by_the_names_of_its_rows():
    directions, sigma = (
        np.linalg.qr(np.array([[0.9, 0.1, 0.3], [0.2, 0.8, 0.1], [0.1, 0.4, 0.7]]))[0],
        np.array([3, 2, 1]),
    )
    cluster = Subspace(directions, sigma, 5, ("cpu", "io", "memory"))
    whole = second_moment(directions, sigma)
    aligned = align(cluster, ("memory", "cpu"))
    assert aligned is not None
    assert aligned.resources == ("memory", "cpu")
    assert second_moment(aligned.directions, aligned.sigma) == pytest.approx(whole[np.ix_([2, 0], [2, 0])])
    assert align(cluster, ("cpu", "gpu")) is None


@pytest.mark.parametrize("seed", range(5))
def test_samples_learned_together_give_what_each_gives_by_itself(tmp_path, seed):
    rng = random.Random(seed)
    later = Run(Machine(tmp_path))
    where = NodeFiles(proc=later.machine.proc, sys=later.machine.sys)
    both = (later.measurement, LearnsAtOnce(where, later.now))
    started: dict[str, float] = {}
    for number in range(200):
        full = later.sample(rng.random())
        assert both[1].sample(later.now, WALL + later.now) is full
        uid = f"pod-{number}"
        if rng.random() < 0.2:
            started[uid] = later.now
            for each in both:
                each.pod_started(later.now)
        elif started and rng.random() < 0.2:
            gone, at = started.popitem()
            for each in both:
                each.pod_ended(gone, at, later.now)
        if rng.random() < 0.02:
            settings = dataclasses.replace(CapacitySettings(), churn_window_seconds=rng.choice([0.5, 2.0]))
            for each in both:
                each.apply(settings, number, later.now)
        if full or rng.random() < 0.05:
            one, other = (each.fold(later.now, None) for each in both)
            assert (one.at, one.wall, one.problems) == (other.at, other.wall, other.problems)
            for field in dataclasses.fields(one.report):
                np.testing.assert_equal(getattr(one.report, field.name), getattr(other.report, field.name))
