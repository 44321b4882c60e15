from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.autoscaling.forecast_influence import ActionSettings, ForecastResult, Subject, predict, with_hold
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.history import Ring
from concerto.autoscaling.settings import Bounds

ACTION = ActionSettings()


def subject(values, horizon=60.0, **kw):
    fine, coarse = Ring(15, 240), Ring(300, 864)
    for i, v in enumerate(values):
        fine, coarse = fine.add(15.0 * i, v), coarse.add(15.0 * i, v)
    return Subject(fine, coarse, horizon, 15.0 * (len(values) - 0.5), **kw)


def look(*subjects, late=0.0):
    now = max(s.observed_at for s in subjects) + late
    return predict(subjects, now, ForecastSettings(), stale_seconds=120.0)


def test_a_rise_asks_for_replicas_ahead_of_it():
    (result,) = look(subject(np.linspace(1, 9, 100)))
    assert result.is_active
    floor = result.floor(Bounds(50), 1, ACTION, replaces=False)
    assert floor is not None and floor.replicas >= 9
    assert result.persistence_percent > result.error_percent


def test_a_forecast_expires():
    (result,) = look(subject(np.linspace(1, 9, 100)), late=500.0)
    assert result.reason == "Expired"
    assert result.floor(Bounds(50), 1, ACTION, replaces=False) is None


def test_warming_up_is_a_reason_and_asks_for_nothing():
    (result,) = look(subject([1.0, 1.0]))
    assert (result.reason, result.expected, result.floor(Bounds(50), 1, ACTION, replaces=False)) == (
        "WarmingUp",
        None,
        None,
    )


def test_at_the_pods_limits_the_forecast_is_no_lower_than_what_is_certain():
    (result,) = look(subject(np.full(60, 2.0), min_demand=7.0))
    assert result.upper >= 7.0


def test_subjects_of_different_settings_come_back_in_their_order():
    rising, flat = np.linspace(1, 9, 100), np.full(100, 2.0)
    got = look(subject(rising), subject(flat, models=("Holt",)), subject(rising, horizon=300.0), subject(flat))
    assert [round(o.horizon_seconds) for o in got] == [60, 60, 300, 60]
    assert got[0].expected > got[1].expected


DAY = 86400.0


def daily(days, keep_days=3.0, until=None):
    """A load that is 2 by day and 6 in the first hour of each, seen for so long; the newest a quarter before that."""
    end = days * DAY - 900.0 if until is None else until
    fine, coarse = Ring(15, 240), Ring(300, int(keep_days * 288))
    for at in np.arange(0.0, end, 300.0):
        coarse = coarse.add(at, 6.0 if at % DAY < 3600 else 2.0)
    for at in np.arange(end - 3600.0, end, 15.0):
        fine = fine.add(at, 6.0 if at % DAY < 3600 else 2.0)
    return Subject(fine, coarse, 1800.0, end - 7.5, models=("Seasonal",), period_seconds=DAY)


@pytest.mark.parametrize(
    "other",
    [daily(3, until=2.5 * DAY), daily(3, keep_days=0.01), daily(3, keep_days=2)],
    ids=["one without readings for hours", "one that keeps next to no history", "one that keeps less"],
)
def test_what_a_season_says_of_one_does_not_depend_on_the_others(other):
    now = 3 * DAY - 900.0
    mine = daily(3)
    (alone,) = predict([mine], now, ForecastSettings(), stale_seconds=120.0)
    assert alone.expected > 5
    for company in ([other, mine], [mine, other]):
        found = predict(company, now, ForecastSettings(), stale_seconds=120.0)[company.index(mine)]
        assert found.expected == pytest.approx(alone.expected)


RINGS = st.builds(
    lambda values, behind, length: (
        Ring(15, 240, 10_000 - behind, tuple(values), 1),
        Ring(300, length, 500 - behind // 20, tuple(values[-length:]), 1),
    ),
    st.lists(st.integers(-1, 20_000), max_size=240),
    st.integers(0, 300),
    st.sampled_from([1, 2, 288, 864]),
)


@given(
    st.lists(
        st.builds(
            Subject,
            st.none(),
            st.none(),
            st.floats(1.0, 3600.0),
            st.floats(140_000.0, 150_000.0),
            st.sampled_from([0.0, 5.5]),
            st.sampled_from([("Linear", "Holt", "Seasonal"), ("Seasonal",)]),
            st.sampled_from([None, 60.0, 3600.0]),
            st.sampled_from([None, 0.0, 1e12]),
        ),
        min_size=2,
        max_size=4,
    ),
    st.lists(RINGS, min_size=4, max_size=4),
)
@settings(max_examples=15)
def test_whatever_the_histories_a_result_is_whole_and_the_same_in_any_company(subjects, rings):
    subjects = [replace(s, fine=fine, coarse=coarse) for s, (fine, coarse) in zip(subjects, rings, strict=False)]
    together = predict(subjects, 150_000.0, ForecastSettings(), stale_seconds=120.0)
    for one, result in zip(subjects, together, strict=True):
        (alone,) = predict([one], 150_000.0, ForecastSettings(), stale_seconds=120.0)
        assert result.reason == alone.reason
        assert (result.expected is None) == (result.reason in ("WarmingUp", "Expired"))
        if result.expected is not None:
            assert (result.expected, result.upper) == pytest.approx((alone.expected, alone.upper))
            assert result.expected >= 0 and result.upper >= 0


@pytest.mark.parametrize(("horizon", "seconds"), [(10, 60), (200, 90), (5000, 300)])
def test_the_hold_grows_with_the_horizon_within_bounds(horizon, seconds):
    assert ActionSettings(hold_share=0.45, hold_min_seconds=60, hold_max_seconds=300).hold_seconds(horizon) == seconds


def test_without_a_say_the_ordinary_window_holds():
    silent = ForecastResult("NotBetterThanNoChange", "Holt", 1.0, 1.0, 100.0)
    bounds = Bounds(5)
    assert with_hold(bounds, silent, ActionSettings(), None, 3) is bounds
    speaking = ForecastResult("ForecastActive", "Holt", 1.0, 1.0, 100.0)
    assert with_hold(bounds, speaking, ActionSettings(), 42.0, 3).controller.downscale_stabilization_seconds == 42.0


EXPECTED = {
    "one tolerance of the room above the target is used up": (11.0, 11.0, False, 10),
    "beyond it replicas rise, to as many as bear it with that room": (12.5, 12.5, False, 12),
    "where the forecast decides alone, the load is carried at the target": (12.5, 12.5, True, 13),
}


@pytest.mark.parametrize(("expected", "before", "replaces", "replicas"), EXPECTED.values(), ids=EXPECTED)
def test_the_expected_load_may_use_up_room_until_metrics_ask_for_more(expected, before, replaces, replicas):
    result = ForecastResult("ForecastActive", "Linear", expected, expected, 100.0, expected_before=before)
    action = replace(ACTION, expected_room=1.0, min_rise=1.0)
    assert result.floor(Bounds(50), 10, action, replaces=replaces).replicas == replicas


FLOORS = {
    "the expected load is carried at the target": (4.2, 4.3, 5),
    "an upper end within four tolerances asks for nothing more": (4.0, 5.2, 4),
    "what the upper end is above that, is asked for": (4.0, 6.0, 5),
}


@pytest.mark.parametrize(("expected", "upper", "replicas"), FLOORS.values(), ids=FLOORS)
def test_the_unlikely_may_use_up_room_above_the_target(expected, upper, replicas):
    result = ForecastResult("ForecastActive", "Holt", expected, upper, 135.0)
    assert result.floor(Bounds(9), 1, ACTION, replaces=False).replicas == replicas


def test_what_is_certain_is_carried_at_the_target():
    (result,) = look(subject(np.linspace(1, 2, 60), min_demand=7.0))
    assert result.is_active
    assert result.floor(Bounds(9), 1, ACTION, replaces=False).replicas == 7


TOLERATED = {
    "a need within the tolerance above changes nothing": (10, 10.9, False, 10),
    "a need beyond it is asked for": (10, 11.1, False, 12),
    "a lower need is a floor below": (10, 7.2, False, 8),
    "where the forecast decides, a need within the tolerance below changes nothing either": (10, 9.1, True, 10),
    "... and one beyond it is asked for": (10, 8.1, True, 9),
    "from zero any need is asked for": (0, 0.3, False, 1),
}


@pytest.mark.parametrize(("current", "need", "replaces", "replicas"), TOLERATED.values(), ids=TOLERATED)
def test_a_forecast_is_subject_to_the_tolerance_as_metrics_are(current, need, replaces, replicas):
    result = ForecastResult("ForecastActive", "Linear", need, need, 100.0)
    assert result.floor(Bounds(50), current, replace(ACTION, min_rise=1.0), replaces=replaces).replicas == replicas


CONFIRMED = {
    "the sample before asked for more, too: replicas rise": (10.6, 10, 12),
    "the newest sample alone asks for more: replicas stay": (10.4, 10, 10),
    "nothing is known of the sample before: replicas rise": (None, 10, 12),
    "from zero one sample is enough": (0.0, 0, 12),
    "a floor below the present replicas needs no second sample": (1.0, 12, 12),
}


@pytest.mark.parametrize(("before", "current", "replicas"), CONFIRMED.values(), ids=CONFIRMED)
def test_a_rise_needs_two_samples_that_ask_for_it(before, current, replicas):
    result = ForecastResult("ForecastActive", "Linear", 12.0, 12.0, 100.0, expected_before=before)
    action = replace(ACTION, expected_room=0.0, min_rise=1.0, min_rise_before=0.5)
    assert result.floor(Bounds(50), current, action, replaces=False).replicas == replicas


def test_what_the_sample_before_led_to_expect_is_forecast_from_samples_up_to_it():
    rising = np.append(np.full(60, 4.0), 9.0)
    before, now = look(subject(rising[:-1])), look(subject(rising))
    assert now[0].expected > 4.5
    assert now[0].expected_before == pytest.approx(before[0].expected, abs=0.2)


def test_certain_demand_needs_no_second_sample():
    (result,) = look(subject(np.full(60, 2.0) + 0.1 * np.arange(60) % 0.3, min_demand=7.0))
    assert result.expected_before is None


def test_what_is_released_early_follows_from_the_upper_end_and_the_cost_of_a_rescale():
    result = ForecastResult("ForecastActive", "Linear", 3.0, 5.7, 135.0)
    action = replace(ACTION, hold_share=0.5, min_drop=0.2, min_drop_replicas=2.0, rise_room=4.0)
    few, many = (with_hold(Bounds(50), result, action, None, current).release for current in (5, 20))
    assert (many.replicas, many.min_drop, many.window_seconds) == (5, 4.0, 67.5)
    assert few.min_drop == 2.0


def test_replicas_that_noise_would_soon_ask_for_again_are_not_released():
    calm = ForecastResult("ForecastActive", "Linear", 8.0, 10.0, 135.0)
    noisy = replace(calm, noise=0.75)
    assert [with_hold(Bounds(50), r, ACTION, None, 12).release.replicas for r in (calm, noisy)] == [8, 9]


def test_a_steady_load_of_days_keeps_the_replicas_that_its_noise_asks_for():
    """A load of 8 whose readings are off by 0.73: 8 replicas are asked for more every few minutes, and 9 hardly."""
    rng, end = np.random.default_rng(2), 3 * DAY
    subjects = []
    for _ in range(30):
        fine, coarse = Ring(15, 240), Ring(300, 864)
        for at, load in zip(np.arange(0.0, end, 300.0), 8.0 + 0.16 * rng.normal(size=864), strict=True):
            coarse = coarse.add(at, load)
        for at, load in zip(np.arange(end - 3600.0, end, 15.0), 8.0 + 0.73 * rng.normal(size=240), strict=True):
            fine = fine.add(at, load)
        subjects.append(Subject(fine, coarse, 142.5, end - 7.5))
    active = [r for r in predict(subjects, end, ForecastSettings(), stale_seconds=120.0) if r.is_active]
    kept = [with_hold(Bounds(50), result, ACTION, None, 11).release.replicas for result in active]
    assert len(kept) >= 5
    assert np.mean(np.array(kept) >= 9) >= 0.9


def test_noise_is_that_of_a_sample_unless_the_load_falls_for_certain():
    rng = np.random.default_rng(1)
    steady, falling = look(
        subject(8.0 + 0.7 * rng.normal(size=240)),
        subject(np.append(np.full(220, 9.0), np.linspace(9.0, 3.0, 20)) + 0.1 * rng.normal(size=240)),
    )
    assert steady.noise == pytest.approx(0.7, rel=0.2)
    assert falling.noise == 0.0


def test_the_longer_pods_take_the_more_room_is_used_for_what_is_unlikely():
    action = ActionSettings(rise_room=4.0, rise_room_power=0.5)
    assert [action.upper_room(seconds) for seconds in (33.75, 135.0, 540.0)] == [2.0, 4.0, 8.0]


def every_17_minutes(**kw):
    """A job whose next start is 30 s away."""
    rng, since = np.random.default_rng(3), (np.arange(240.0) + 68 * 4 - 242) % 68
    return subject(2.0 + 6.0 * np.exp(-since / 8.0) + rng.normal(0, 0.2, 240), **kw)


def test_a_load_that_repeats_is_met_without_a_season_being_given():
    met, given, late, holt = look(
        every_17_minutes(),
        every_17_minutes(period_seconds=DAY),
        every_17_minutes(season_start=1800.0),
        every_17_minutes(models=("Linear", "Holt")),
    )
    assert met.model == "Seasonal" and met.expected > 4.5 and met.is_active
    for other in (given, late, holt):
        assert other.model != "Seasonal" and other.expected < 3.0
