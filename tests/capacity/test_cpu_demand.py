"""How many tasks want a CPU, and what nodes do for their pods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import CapacitySettings
from concerto.capacity.cpu_demand import DEMAND_SOURCES, RecentMean, SystemCpu, best, from_pressure, mean_of_known
from concerto.capacity.pipeline import NodePipeline

NAN = np.nan

DEMAND = {
    "an idle node": (0.0, 0.0, 0.0),
    "half used": (0.25, 0.5, 0.5),
    "just full": (0.5, 1.0, 1.0),
    "twice as many threads as CPUs": (1.0, 1.0, 2.0),
    "a quota's pressure on an idle node does not count": (0.11 * 1.79 / 2, 0.11, 0.11 * 1.79),
    "no pressure reported, half used": (0.5, 0.5, 0.5),
    "no pressure reported, full: the worst is believed": (1.0, 1.0, 2.0),
}


@pytest.mark.parametrize("sentence", DEMAND)
def test_demand_from_pressure_is_known_up_to_two(sentence):
    y, used, expected = DEMAND[sentence]
    demand, _, _ = from_pressure(np.array([[y]]), np.array([[used]]))
    assert demand[0, 0] == pytest.approx(expected)


def of(y, used, *, runnable=NAN, waiting=NAN, tells_pressure=True):
    demand, utilised, _ = from_pressure(np.array([[y]]), np.array([[used]]))
    found, source = best(demand, utilised, np.array([[runnable]]), np.array([waiting]), np.array([tells_pressure]))
    return float(found[0, 0]), DEMAND_SOURCES[int(source[0])]


SOURCES = {
    "tasks are counted: no limit": ({"y": 1.0, "used": 1.0, "runnable": 7.5}, (7.5, "RunnableTasks")),
    "tasks are counted, and the CPUs idle": ({"y": 0.25, "used": 0.5, "runnable": 0.5}, (0.5, "RunnableTasks")),
    "what pods wait for is added to what runs": ({"y": 1.0, "used": 1.0, "waiting": 6.0}, (7.0, "PodPressure")),
    "waiting on a CPU that idles is by quota": ({"y": 0.1, "used": 0.1, "waiting": 4.0}, (0.5, "PodPressure")),
    "the node's pressure, where pods report less": ({"y": 1.0, "used": 1.0, "waiting": 0.0}, (2.0, "PodPressure")),
    "the node's pressure alone": ({"y": 1.0, "used": 1.0}, (2.0, "Pressure")),
    "no pressure at all": ({"y": 0.5, "used": 0.5, "tells_pressure": False}, (0.5, "Utilisation")),
    "both: tasks are exact": ({"y": 1.0, "used": 1.0, "runnable": 3.0, "waiting": 6.0}, (3.0, "RunnableTasks")),
}


@pytest.mark.parametrize(("reading", "expected"), SOURCES.values(), ids=SOURCES)
def test_the_best_reading_there_is_shows_the_demand(reading, expected):
    demand, source = of(**reading)
    assert (pytest.approx(demand), source) == expected


def learned_window(tasks, *, runnable, seconds=120):
    """Window of a node of one CPU on which so many endless tasks run, whose pods live for as long as they share it."""
    pipeline = NodePipeline(CapacitySettings(), 1)
    now, life = 100.0, 2.0 * tasks
    starts = [now + i * life / tasks - life for i in range(tasks)]
    for at in starts:
        pipeline.pod_started(0, at)
    report = None
    for step in range(seconds * 10):
        now = 100.0 + (step + 1) / 10
        while starts[0] + life <= now:
            pipeline.pod_ended(0, starts.pop(0), now)
            starts.append(now)
            pipeline.pod_started(0, now)
        full = pipeline.sample(
            now,
            np.array([[min(1.0, tasks / 2), 0.1]]),
            utilisation=np.array([[1.0, 0.1]]),
            runnable=np.array([float(tasks)]) if runnable else None,
        )
        if full:
            report = pipeline.fold(now)
    return report


def test_an_overloaded_node_does_not_believe_in_more_pods_the_more_it_runs():
    few, many = learned_window(4, runnable=True), learned_window(16, runnable=True)
    assert many.demand[0] == pytest.approx(16)
    window = {n: float(r.capacity[0] + n) for n, r in ((4, few), (16, many))}
    assert window[16] <= window[4] + 1.5
    assert many.capacity[0] < -8, "it says by how many it runs too many"
    capped = learned_window(16, runnable=False)
    assert capped.capacity[0] + 16 > 2 * window[16], "which two tasks per CPU at most could not show"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e300])
def test_a_count_of_tasks_that_cannot_be_is_not_believed(bad):
    pipeline = NodePipeline(CapacitySettings(), 1)
    for step in range(30):
        if pipeline.sample(
            100 + step / 10, np.array([[0.5, 0.1]]), utilisation=np.array([[1.0, 0.1]]), runnable=np.array([bad])
        ):
            report = pipeline.fold(100 + step / 10)
    assert np.isfinite(report.capacity).all()
    assert 0.0 <= report.demand[0] <= 1000.0


def test_a_recent_mean_follows_within_some_seconds_and_knows_what_is_unknown():
    recent = RecentMean(3)
    recent.add(np.array([1.0, 1.0, NAN]), 0.0)
    assert recent.mean == pytest.approx([1.0, 1.0, NAN], nan_ok=True), "the first value is the mean"
    for _ in range(10):
        recent.add(np.array([0.0, NAN, 2.0]), 1.0)
    assert recent.mean == pytest.approx([0.9**10, NAN, 2.0], nan_ok=True)
    recent.add(np.array([0.5, 0.5, 0.5]), 60.0)
    assert recent.mean == pytest.approx([0.5, 0.5, 0.5]), "and nothing is left of long ago"


def test_a_mean_leaves_out_what_is_unknown():
    assert mean_of_known(np.array([[1.0, NAN, 3.0], [NAN] * 3])) == pytest.approx([2.0, NAN], nan_ok=True)


def shares(rows, changing):
    """Share of the CPU time that a node takes for itself, second by second; CPUs all in use."""
    system, found = SystemCpu(1), []
    for second, (others, change) in enumerate(zip(rows, changing)):
        found.append(
            float(system.share(np.array([others]), np.ones(1), np.ones(1, bool), np.array([change]), float(second))[0])
        )
    return found


def test_what_the_node_does_for_starts_and_ends_counts_as_its_pods():
    found = shares([0.05] * 10 + [0.5] * 10, [False] * 10 + [True] * 10)
    assert found[:10] == pytest.approx([0.05] * 10)
    assert found[10:] == pytest.approx([0.05] * 10)


def test_what_the_node_does_while_no_pod_comes_or_goes_is_its_own():
    assert shares([0.05] * 10 + [0.5] * 10, [False] * 20)[-1] == pytest.approx(0.5)


def test_a_load_that_lasts_is_the_nodes_own_even_while_pods_come_and_go():
    assert shares([0.05] * 10 + [0.5] * 40, [True] * 50)[-1] == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_the_nodes_own_share_is_never_more_than_what_pods_do_not_take(rows):
    for (others, _), own in zip(rows, shares([o for o, _ in rows], [c for _, c in rows])):
        assert 0.0 <= own <= others + 1e-12


def seen_by(system, seconds, *, others, stolen=0.0, changing=False, begin=0):
    for second in range(begin, begin + seconds):
        system.share(
            np.array([others]),
            np.ones(1),
            np.ones(1, bool),
            np.array([changing]),
            float(second),
            np.array([stolen]),
        )


def test_what_starts_and_ends_took_is_added_up_and_is_not_the_nodes_own():
    system = SystemCpu(1)
    seen_by(system, 20, others=0.05)
    seen_by(system, 20, others=0.45, changing=True, begin=20)
    assert system.for_pods[0] == pytest.approx(20 * 0.4, rel=0.01)
    assert system.own[0] == pytest.approx(0.05, abs=0.01)


def test_what_others_on_the_machine_take_starts_no_pods_and_is_lost_to_them():
    system = SystemCpu(1)
    seen_by(system, 20, others=0.05)
    seen_by(system, 20, others=0.45, stolen=0.4, changing=True, begin=20)
    assert system.for_pods[0] == pytest.approx(0.0, abs=0.01)
    assert system.own[0] == pytest.approx(0.45, abs=0.01)


def test_a_pause_is_not_added_up():
    system = SystemCpu(1)
    seen_by(system, 5, others=0.05)
    seen_by(system, 2, others=0.45, changing=True, begin=1000)
    assert system.for_pods[0] < 0.4 * 7
