"""Counters to fractions: what /proc and the cgroup files must mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.capacity import readings
from concerto.capacity.readings import Meminfo

#        user nice system idle iowait irq softirq steal guest guest_nice
ZERO = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
GI = 1024**3


@pytest.mark.parametrize(
    ("case", "before", "after", "expected"),
    [
        ("half of the ticks are idle", ZERO, (50, 0, 0, 50, 0, 0, 0, 0, 0, 0), 0.5),
        ("waiting for I/O is not work", ZERO, (25, 0, 0, 25, 50, 0, 0, 0, 0, 0), 0.25),
        ("time stolen by the hypervisor is busy", ZERO, (0, 0, 0, 50, 0, 0, 0, 50, 0, 0), 0.5),
        ("guests are inside user: not counted twice", ZERO, (50, 0, 0, 50, 0, 0, 0, 0, 50, 0), 0.5),
        ("iowait that went back counts as unchanged", (0, 0, 0, 0, 40, 0, 0, 0), (50, 0, 0, 50, 10, 0, 0, 0), 0.5),
        ("no tick has passed", (1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1, 1), None),
        ("an old kernel has fewer fields", (0, 0, 0, 0), (30, 0, 0, 70), 0.3),
    ],
)
def test_utilisation(case, before, after, expected):
    before, after = (tuple(fields) + (0,) * (8 - len(fields)) for fields in (before, after))
    assert readings.utilisation(before, after) == (None if expected is None else pytest.approx(expected)), case


@pytest.mark.parametrize(
    ("case", "formula", "utilised", "waiting", "expected"),
    [
        ("idle", "Damped", 0.0, 0.0, 0.0),
        ("all CPUs busy, none waits", "Damped", 1.0, 0.0, 0.5),
        ("twice as many runnable as CPUs", "Damped", 1.0, 1.0, 1.0),
        ("a pod held back by its own quota on an idle node", "Damped", 0.11, 0.79, 0.11 * 1.79 / 2),
        ("the same by Carico's formula", "Mean", 0.11, 0.79, 0.45),
        ("no pressure file: utilisation alone", "Damped", 0.7, None, 0.7),
    ],
)
def test_cpu(case, formula, utilised, waiting, expected):
    assert readings.cpu(utilised, waiting, formula) == pytest.approx(expected), case


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_two_formulas_agree_at_full_utilisation_and_stay_in_range(utilised, waiting):
    assert readings.cpu(1.0, waiting, "Damped") == pytest.approx(readings.cpu(1.0, waiting, "Mean"))
    for formula in ("Damped", "Mean"):
        assert 0.0 <= readings.cpu(utilised, waiting, formula) <= 1.0


def test_formulas_take_arrays_and_floats_alike():
    utilised, waiting = np.array([0.2, 1.0]), np.array([0.0, 0.5])
    by_array = readings.cpu(utilised, waiting)
    assert by_array == pytest.approx([readings.cpu(0.2, 0.0), readings.cpu(1.0, 0.5)])
    assert readings.non_pod_cpu(by_array, utilised, utilised / 2) == pytest.approx(by_array / 2)


@pytest.mark.parametrize(
    ("case", "info", "available", "seed"),
    [
        ("plenty", Meminfo(8 * GI, 6 * GI, 4 * GI, GI, GI), 0.25, 0.25),
        ("tmpfs is cached but not available", Meminfo(8 * GI, 4 * GI, 4 * GI, GI, 1 * GI), 0.5, 0.25),
        ("a kernel without MemAvailable", Meminfo(8 * GI, None, 4 * GI, GI, GI), None, 0.25),
        ("lines missing", Meminfo(8 * GI, 4 * GI), 0.5, None),
        ("available exceeds total", Meminfo(8 * GI, 9 * GI, 9 * GI, 0, 0), 0.0, 0.0),
        ("no total", Meminfo(0, 0, 0, 0, 0), None, None),
    ],
)
def test_memory(case, info, available, seed):
    assert readings.memory_available(info) == available, case
    assert readings.memory_free_buffers_cached(info) == seed, case


@pytest.mark.parametrize(
    ("case", "y", "utilised", "pods", "expected"),
    [
        ("pods use all", 0.8, 1.0, 1.0, 0.0),
        ("pods use none", 0.4, 0.8, 0.0, 0.4),
        ("a quarter is not theirs", 0.8, 1.0, 0.75, 0.2),
        ("pods read later than the node", 0.1, 0.2, 0.3, 0.0),
        ("idle", 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_non_pod_cpu(case, y, utilised, pods, expected):
    assert readings.non_pod_cpu(y, utilised, pods) == pytest.approx(expected), case
