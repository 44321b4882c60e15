import numpy as np
import pytest

from concerto.autoscaling.forecast import Earlier, forecast
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.forecasters import Seasons
from concerto.autoscaling.own_period import own_periods, own_seasons

SETTINGS = ForecastSettings()
SAMPLES = np.arange(240.0)


def noisy(load, seed=0):
    return load + np.random.default_rng(seed).normal(0, 0.3, len(load))


def bursts(every, phase=0.0):
    """A job that starts every so many samples and decays."""
    return 2.0 + 6.0 * np.exp(-((SAMPLES + phase) % every) / 8.0)


REPEATING = {
    "a job every 17 minutes": (bursts(68), 68),
    "a job every 5 minutes": (bursts(20), 20),
    "a job every 20 minutes": (bursts(80), 80),
    "a wave": (5.0 + 3.0 * np.sin(2 * np.pi * SAMPLES / 40), 40),
    "on and off": (2.0 + 6.0 * (SAMPLES % 60 < 25), 60),
    "a job with gaps in its samples": (np.where(SAMPLES % 24 == 3, np.nan, bursts(68)), 68),
}


@pytest.mark.parametrize(("load", "period"), REPEATING.values(), ids=REPEATING)
def test_a_load_that_repeats_has_a_period(load, period):
    for seed in range(5):
        assert own_periods(noisy(load, seed)[None], SETTINGS)[0] == pytest.approx(period, abs=1)


OTHERS = {
    "a load that stays the same": np.full(240, 0.7),
    "noise": noisy(np.full(240, 4.0)),
    "a rise": noisy(np.linspace(1, 9, 240)),
    "a fall": noisy(np.linspace(9, 1, 240)),
    "one flash crowd": noisy(2.0 + 6.0 * np.exp(-(((SAMPLES - 120) / 20) ** 2))),
    "steps": noisy(1.0 + SAMPLES // 30),
    "a job that ran twice": noisy(2.0 + 6.0 * ((SAMPLES > 100) & (SAMPLES < 110)) + 6.0 * (SAMPLES > 230)),
    "half an hour of samples": np.where(SAMPLES < 120, np.nan, bursts(40)),
    "no sample": np.full(240, np.nan),
}


@pytest.mark.parametrize("load", OTHERS.values(), ids=OTHERS)
def test_other_loads_have_none(load):
    assert np.isnan(own_periods(load[None], SETTINGS)[0])
    assert own_seasons(load[None], 3600.0, SETTINGS, np.zeros(1)) == []


def test_a_load_that_wanders_seldom_has_one():
    steps = np.random.default_rng(5).normal(size=(200, 240))
    assert np.isfinite(own_periods(np.cumsum(steps, axis=1) + 50.0, SETTINGS)).mean() < 0.05


def test_a_short_series_is_not_searched():
    assert np.isnan(own_periods(np.ones((2, 30)), SETTINGS)).all()


def test_each_object_has_its_own_period_and_its_next_burst_is_expected():
    series = np.stack([noisy(bursts(68, phase), seed) for seed, phase in enumerate((68 * 4 - 240 - 1.0, 10.0))])
    series = np.vstack([series, noisy(np.full(240, 2.0), 7)[None]])
    (season,) = own_seasons(series, 86400.0, SETTINGS, np.full(3, 45.0))
    got = forecast(
        series,
        np.full(3, 45.0),
        SETTINGS,
        models=("Linear", "Seasonal"),
        earlier=Earlier(seasons=[season]),
        now=86400.0,
    )
    names = [got.names[i] for i in got.model[:2]]
    assert names[0] == "Seasonal"
    assert got.expected[0] > 4.5, "its next burst begins within a minute"
    assert got.expected[1] < 4.0, "and the other's later"
    assert got.expected[2] < 3.0


@pytest.mark.parametrize("horizon", [300.0, 600.0, 900.0, 1200.0])
def test_a_horizon_of_several_periods_keeps_the_forecast(horizon):
    rng = np.random.default_rng(3)
    at = np.arange(240) + rng.integers(20, size=(20, 1))
    series = 4.0 + 10.0 * (at % 20 < 6) + rng.normal(0.0, 0.3, (20, 240))
    ahead = np.full(20, horizon)
    seasons = own_seasons(series, 1e6, SETTINGS, ahead)
    got = forecast(series, ahead, SETTINGS, models=("Linear", "Seasonal"), earlier=Earlier(seasons=seasons), now=1e6)
    assert got.warm.all()
    for season in seasons:
        assert (season.period_seconds[:, 0] > ahead).all(), "what comes after a sample is not known then"


def test_a_model_that_has_no_forecast_now_is_not_chosen_for_its_past():
    series = 4.0 + 10.0 * (np.arange(240) % 20 < 6) + np.random.default_rng(3).normal(0.0, 0.3, (1, 240))
    too_short = Seasons(series, 1e6 - 239.5 * 15.0, 15.0, np.full((1, 1), 300.0))
    earlier = Earlier(seasons=[too_short])
    got = forecast(series, np.full(1, 1200.0), SETTINGS, models=("Linear", "Seasonal"), earlier=earlier, now=1e6)
    assert got.warm.all()
