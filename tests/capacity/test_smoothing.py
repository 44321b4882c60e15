"""Dynamic EMA: spikes of container events stay out, lasting changes get in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import SmoothingSettings
from concerto.capacity.smoothing import DynamicEma

PERIOD = 0.1
PHASES = np.linspace(0.0, PERIOD, 41, endpoint=False)


def sampled(level_at, seconds):
    """What counters show of a signal: its mean over each sampling period."""
    edges = np.arange(0.0, seconds + 1e-9, PERIOD)
    fine = 200
    times = edges[:-1, None] + (np.arange(fine) + 0.5) / fine * PERIOD
    return level_at(times).mean(axis=1)


def follow(samples, start=0.0):
    ema = DynamicEma((1,), SmoothingSettings())
    ema.update(np.array([start]))
    return np.array([ema.update(np.array([y]))[0] for y in samples])


@pytest.mark.parametrize("base", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("phase", PHASES)
def test_a_pulse_of_200_ms_and_height_half_moves_it_by_less_than_0_06_at_any_phase(phase, base, sign):
    start = base if sign > 0 else base + 0.5
    samples = sampled(lambda t: start + sign * 0.5 * ((t >= 0.5 + phase) & (t < 0.7 + phase)), 3.0)
    assert np.abs(follow(samples, start) - start).max() < 0.06


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("phase", PHASES)
def test_a_lasting_step_of_half_is_followed_to_within_0_05_in_800_ms_at_any_phase(phase, sign):
    start, end = (0.2, 0.7) if sign > 0 else (0.7, 0.2)
    step = 0.5 + phase
    samples = sampled(lambda t: np.where(t < step, start, end), 3.0)
    smoothed = follow(samples, start)
    taken_at = (np.arange(len(samples)) + 1) * PERIOD
    after = smoothed[taken_at >= step + 0.8 - 1e-9]
    assert np.abs(after - end).max() <= 0.05


def test_the_first_sample_is_the_first_value():
    ema = DynamicEma((2, 2), SmoothingSettings())
    assert np.isnan(ema.value).all()
    ok = np.array([[True, False], [True, True]])
    ema.update(np.array([[0.1, 9.0], [0.2, 0.3]]), ok)
    assert ema.value.tolist()[1] == [0.2, 0.3]
    assert np.isnan(ema.value[0, 1])
    ema.update(np.full((2, 2), 0.5))
    assert ema.value[0, 1] == 0.5


def test_a_dropped_sample_changes_nothing_not_even_the_run():
    with_gap, without = DynamicEma((1,), SmoothingSettings()), DynamicEma((1,), SmoothingSettings())
    nothing = np.array([False])
    for y in [0.0, 0.5, 0.5, 0.5, 0.5, 0.5]:
        with_gap.update(np.array([y]))
        with_gap.update(np.array([np.nan]), nothing)
        without.update(np.array([y]))
    assert with_gap.value == without.value


def test_a_change_of_side_ends_the_run():
    smoothed = follow([0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.5], start=0.25)
    assert np.abs(smoothed - 0.25).max() < 0.06


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_it_stays_within_what_was_seen(samples):
    smoothed = follow(samples, samples[0])
    assert smoothed.min() >= min(samples) - 1e-12
    assert smoothed.max() <= max(samples) + 1e-12


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=30))
def test_series_do_not_touch_each_other(rows):
    together = DynamicEma((3,), SmoothingSettings())
    apart = [DynamicEma((1,), SmoothingSettings()) for _ in range(3)]
    for row in rows:
        together.update(np.array(row))
        for series, y in zip(apart, row):
            series.update(np.array([y]))
    assert together.value.tolist() == [series.value[0] for series in apart]
