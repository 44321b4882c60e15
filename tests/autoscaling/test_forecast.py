from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.autoscaling.forecast import Earlier, forecast
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.forecasters import Onset, Seasons, holt, line, noise, seasonal_peak
from concerto.autoscaling.margins import Past, critical_fractile

SETTINGS = ForecastSettings()


def of(series, horizon=120.0, **kw):
    rows = np.atleast_2d(np.asarray(series, dtype=float))
    return forecast(rows, np.full(len(rows), horizon), SETTINGS, **kw)


def test_a_line_is_found_exactly_as_the_seed_writes_it():
    x = np.arange(12.0)
    y = np.array([3, 5, 4, 6, 8, 7, 9, 9, 11, 10, 12, 13.0])
    slope = np.cov(x, y, bias=True)[0, 1] / np.var(x)
    trend = line(y[None], 12).trend(y[None])
    assert trend.slope[0, -1] == pytest.approx(slope)
    assert trend.level[0, -1] == pytest.approx(y.mean() + slope * (x[-1] - x.mean()))


def test_a_falling_line_promises_no_less_than_now():
    falling = np.linspace(9, 1, 20)[None]
    trend = line(falling, 20).trend(falling)
    assert trend.slope[0, -1] < 0
    assert trend.peak(np.array([50.0]), -1)[0] == pytest.approx(1.0)


def test_a_line_is_drawn_out_no_further_than_it_is_long():
    rising = np.arange(40.0)[None]
    trend = line(rising, 20).trend(rising)
    assert trend.peak(np.array([1000.0]), -1)[0] == pytest.approx(39 + 20)


def test_missing_samples_leave_lines_and_levels_where_they_were():
    y = np.arange(40.0)
    y[[5, 17, 30, 31, 32]] = np.nan
    assert line(y[None], 20).trend(y[None]).slope[0, -1] == pytest.approx(1.0)
    assert holt(y[None], 0.4, 0.15, 0.97).level[0, -1] == pytest.approx(39, abs=1.5)


def days(load):
    return Past(np.atleast_2d(np.asarray(load, dtype=float)), 300.0)


ROOM = SETTINGS.surprise * (300.0 / SETTINGS.surprise_seconds) ** 0.15 * 4.0**0.25
"""What a load of four replicas may grow by within 300 s as long as nothing else is known."""


HISTORIES = {
    "without any history there is all the room": (None, 1.0),
    "nor does an hour of calm say much": (days([np.nan] * 850 + [4.0] * 14), 1.0 - 13 / 72 / 2),
    "days without a rise leave half of it": (days(np.full(864, 4.0)), 0.5),
    "days that once in a while rose by as much keep it": (days(np.tile([4.0] * 17 + [8.5], 48)), 1.0),
    "days that rose by less keep what they needed": (days(np.tile([4.0] * 17 + [6.5], 48)), 2.5 / ROOM),
    "as much of a small load is more of it": (days(np.tile([1.0] * 17 + [2.9], 48)), 1.9 / ROOM * 4.0**0.25),
    "an empty history changes nothing": (days(np.full(864, np.nan)), 1.0),
    "and so is one that is shorter than the horizon": (days([4.0]), 1.0),
}


@pytest.mark.parametrize(("past", "share"), HISTORIES.values(), ids=HISTORIES)
def test_a_load_has_room_for_surprises_until_days_have_shown_how_it_rises(past, share):
    got = of(np.full(60, 4.0), horizon=300.0, earlier=Earlier(past=past))
    assert got.upper[0] == pytest.approx(4.0 + share * ROOM, rel=0.01)


def test_rises_are_looked_for_within_each_objects_own_horizon():
    slow = np.tile(np.r_[np.full(12, 4.0), 4.0 + np.arange(1, 7)], 48)
    rows, past = np.full((2, 60), 4.0), Past(np.stack([slow, slow]), 300.0)
    near, far = (
        forecast(rows, np.array([300.0, 1500.0]), replace(SETTINGS, risen_min=0.0), earlier=Earlier(past=past)).upper
        - 4.0
    )
    assert near == pytest.approx(1.0, rel=0.01)
    assert far > 2 * near


def test_a_load_that_stays_the_same_does_not_fall_by_how_numbers_are_rounded():
    """Such as the length of a queue. A load of 0.7, 1.1 or 2.3 replicas had fallen "for certain", and one of 4 not."""
    loads = np.array([0.3, 0.7, 1.1, 2.3, 3.3, 10.0, 33.3])
    rest = np.tile(loads[:, None], (1, 100))
    got = of(np.hstack([0.5 * rest[:, :10], rest]), horizon=300.0)
    assert (got.upper > got.expected + 1.0).all(), "each has its room for what nothing announces"
    assert not line(rest, 20).trend(rest).rises.any(), "so the same errors count for each"


FALLS = {
    "for five minutes": np.append(np.full(20, 8.0), np.linspace(8, 5, 20)),
    "for ten minutes, too slowly for five to show it": np.linspace(8, 7, 40),
}


@pytest.mark.parametrize("load", FALLS.values(), ids=FALLS)
def test_a_young_object_expects_no_growth_without_warning_while_its_load_falls_for_certain(load):
    falling, level = (of(noisy(each), horizon=300.0) for each in (load, np.full(40, load[-1])))
    room = [got.upper[0] - got.expected[0] for got in (falling, level)]
    assert room[0] < 0.25 * room[1]
    assert (falling.noise[0], level.noise[0] > 0.0) == (0.0, True)


def test_a_longer_line_says_no_more_that_the_load_falls_once_a_shorter_one_has_come_to_rest():
    """Six minutes after a fall of ten, all of them did."""
    rests = np.r_[np.full(40, 8.0), np.linspace(8, 4, 40), np.full(24, 4.0)]
    falls = of(np.stack([noisy(rests, seed) for seed in range(60)]), horizon=300.0).noise == 0.0
    assert falls.mean() < 0.7


def test_what_days_have_shown_counts_while_the_load_falls_too():
    past = days(np.tile([4.0] * 17 + [8.5], 48))
    young, old = (of(noisy(FALLS["for five minutes"]), earlier=Earlier(past=each)) for each in (None, past))
    assert old.upper[0] > young.upper[0] + 1.0


def test_a_rise_that_is_over_is_drawn_out_no_further():
    rising = np.r_[np.full(40, 2.0), np.linspace(2, 9, 16)]
    turned = np.r_[rising, np.linspace(8.5, 5, 8)]
    assert of(noisy(rising), horizon=300.0).expected[0] > 11.0
    assert of(noisy(turned), horizon=300.0).expected[0] < 6.0


def test_what_was_missed_of_a_burst_does_not_stay_with_the_small_load_it_leaves_behind():
    burst = np.r_[np.full(60, 0.5), np.full(30, 8.0), np.full(40, 0.5)]
    small = of(noisy(burst), horizon=300.0)
    assert small.upper[0] < 0.5 + 1.2 * ROOM * (0.5 / 4.0) ** 0.25


def test_room_for_what_was_never_seen_takes_no_models_say():
    rising = noisy(np.linspace(3, 6, 24), seed=3)
    assert of(rising, horizon=300.0).better_than_no_change[0]


def test_growth_that_is_forecast_is_a_part_of_the_growth_that_is_feared():
    flat, rising = np.full(16, 4.0), np.linspace(1, 4, 16)
    room = [got.upper[0] - got.expected[0] for got in (of(flat, horizon=60.0), of(rising, horizon=60.0))]
    assert room[1] < room[0]


def noisy(load, seed=0):
    return load + np.random.default_rng(seed).normal(0, 0.15, len(load)) * np.sqrt(load)


def test_the_noise_of_a_sample_is_what_leaves_any_line():
    assert noise(np.linspace(1, 9, 60)[None], 60)[0, -1] == pytest.approx(0.0, abs=1e-6)
    assert noise(noisy(np.full(200, 4.0))[None], 160)[0, -1] == pytest.approx(0.3, rel=0.25)
    assert np.isnan(noise(np.full((1, 5), 4.0), 60)[0, -1])


def onset_of(load, steps=8.0):
    rows = np.stack([noisy(load, seed) for seed in range(40)])
    lines = tuple(line(rows, window) for window in SETTINGS.onset_windows)
    onset = Onset(lines, noise(rows, SETTINGS.noise_window), np.full(rows.shape, np.inf), SETTINGS.onset_errors)
    return float(np.median(onset.peak(np.full(len(rows), steps), -1)))


def test_a_rise_beyond_the_noise_shows_within_a_minute_and_noise_alone_is_none():
    flat = np.full(60, 4.0)
    sudden = np.r_[flat, 4.0 + np.arange(1, 6)]
    assert onset_of(flat) < 4.5
    assert onset_of(sudden) > 10.0
    assert onset_of(sudden) > line(sudden[None], 20).trend(sudden[None]).peak(np.array([8.0]), -1)[0]


def test_a_level_is_not_capped_by_what_was_seen_before_readings_stopped_at_the_pods_limits():
    rising = np.r_[np.full(40, 2.0), np.linspace(2, 6, 16)]
    seen, blind = rising.copy(), np.r_[rising, [np.nan] * 3]
    assert of(blind, horizon=15.0).expected[0] > of(seen, horizon=15.0).expected[0]


def test_a_burst_does_not_hold_up_pods_that_start_within_seconds():
    burst = np.r_[np.full(40, 1.0), np.full(20, 12.0), np.full(12, 1.0)]
    assert of(noisy(burst), horizon=30.0).upper[0] < 4.0


def test_a_season_foresees_what_a_trend_cannot():
    day = 86400.0
    buckets = np.arange(0, 2 * day, 300)
    load = np.where((buckets % day) >= 43200, 10.0, 2.0)
    seasons = Seasons(load[None], 0.0, 300.0, day)
    noon = 2 * day + 43200
    level = np.full((1, 3), 2.0)
    at = noon - np.array([900.0, 600.0, 300.0])
    assert seasonal_peak(level, at, np.array([[600.0]]), seasons)[0].tolist() == pytest.approx(
        [2.0, 6.0, 10.0], abs=4.1
    )
    assert seasonal_peak(level, at, np.array([[900.0]]), seasons)[0, -1] == pytest.approx(10.0)


def test_a_season_that_is_not_known_says_nothing():
    seasons = Seasons(np.full((1, 10), np.nan), 0.0, 300.0, 86400.0)
    assert np.isnan(seasonal_peak(np.ones((1, 1)), np.array([3000.0]), np.array([[300.0]]), seasons)).all()


def test_too_few_samples_are_a_warm_up_never_a_zero():
    got = of([np.nan] * 50 + [3.0] * 3)
    assert not got.warm[0]
    assert np.isnan(got.expected[0]) and np.isnan(got.upper[0])
    assert not got.better_than_no_change[0]


def test_no_samples_at_all_are_a_warm_up_too():
    assert not of([np.nan] * 60).warm[0]


def test_a_steady_rise_is_foreseen_and_earns_its_say():
    got = of(np.linspace(1, 10, 120))
    assert got.better_than_no_change[0]
    assert got.expected[0] == pytest.approx(10 + 8 * 9 / 119, rel=0.1)
    assert got.error_percent[0] < got.persistence_percent[0]


def test_after_steps_that_led_no_further_a_step_is_drawn_out_less():
    steps = np.repeat([2.0, 4.0, 6.0, 8.0], [60, 60, 60, 4])[None]
    trusting = replace(SETTINGS, rise_prior=1e6)
    learned, drawn_out = (forecast(steps, np.array([120.0]), each).expected[0] for each in (SETTINGS, trusting))
    assert learned < 9.5
    assert drawn_out > 10.5


def test_a_forecast_that_asked_for_more_than_came_of_it_has_no_influence():
    bursts = np.r_[np.full(100, 2.0), np.linspace(2, 12, 6), np.full(60, 2.0), np.linspace(2, 8, 4), np.full(4, 2.0)]
    assert not of(bursts, horizon=300.0).better_than_no_change[0]


def test_a_load_that_never_changes_gives_no_model_a_say():
    got = of(np.full(120, 5.0))
    assert got.warm[0]
    assert not got.better_than_no_change[0]
    assert got.persistence_percent[0] == 0.0


def test_a_forecast_is_clipped_to_what_history_makes_plausible():
    series = np.r_[np.full(60, 1.0), np.linspace(1, 8, 20)]
    assert of(series, horizon=3600.0).upper[0] <= SETTINGS.plausible * 8 + 1


def test_after_a_drop_the_past_holds_nothing_up():
    got = of(np.r_[np.full(100, 10.0), np.full(8, 1.0)], models=("Linear", "Holt"))
    assert got.expected[0] <= 1.5


def test_seasonal_alone_without_a_season_warms_up():
    got = of(np.ones(100), models=("Seasonal",))
    assert got.names == ("Seasonal",)
    assert not got.warm[0]


def test_a_missing_pod_weighs_more_the_sooner_it_could_have_been_there():
    near, far = critical_fractile(np.array([30.0, 300.0]), 1200.0)
    assert 0.5 < far < near < 1.0


def test_objects_do_not_see_each_other():
    rng = np.random.default_rng(7)
    rows = np.abs(rng.normal(5, 1, (6, 120))) + np.linspace(0, 3, 120)
    together = forecast(rows, np.linspace(30, 300, 6), SETTINGS)
    for i in range(6):
        alone = forecast(rows[i : i + 1], np.linspace(30, 300, 6)[i : i + 1], SETTINGS)
        assert alone.upper[0] == pytest.approx(together.upper[i])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1000), st.just(float("nan"))), min_size=1, max_size=80), st.floats(1, 3600))
def test_whatever_the_history_a_forecast_is_a_number_or_nothing(values, horizon):
    got = of(values, horizon)
    if got.warm[0]:
        assert got.expected[0] >= 0
        assert np.isfinite(got.upper[0])
        assert got.upper[0] <= SETTINGS.plausible * np.nanmax(values) + 1
    else:
        assert not got.better_than_no_change[0]
