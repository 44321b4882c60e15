"""Constants of the forecasts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ForecastSettings:
    """How forecasts are made.

    Attributes:
        step_seconds: grid of the series.
        linear_windows: samples that lines are drawn through.
        holt: weight of a sample, of its surprise in the trend, and the share of the trend left after a step.
        shortage_seconds: a missing pod costs as much as a surplus pod for this long.
        surplus_seconds: a surplus pod is paid for at least so long, however soon it is ready.
        half_life: samples after which an error counts half when models are compared ...
        margin_half_life: ... and when the margin is taken from them.
        surprise: replicas by which a load of one replica is expected to grow within `surprise_seconds` before any error
            has been seen; forecast growth is a part of that ...
        surprise_powers: ... it grows with these powers of the load (a small one can more easily double) and of the
            horizon ...
        surprise_samples: ... and weighs as much as so many seen errors.
        falling_errors: standard errors by which one of the lines falls while load falls for certain: then a young
            object is expected to have no such growth.
        risen: quantile of the rises in the long history that stands in for `surprise` where it is less ...
        risen_min: ... down to this share of it ...
        risen_samples: ... and wholly so once the history holds so many.
        long_window: samples of the one line whose level may lie above what is seen now.
        min_samples: fewer are a warm-up: lines through a few samples follow their noise.
        recent: samples of which no mean may be exceeded by a level: after a drop the past must not hold replicas up.
        noise_window: samples that the noise of one is taken from.
        onset_windows: samples of the lines that detect a sudden rise ...
        onset_errors: ... and standard errors that are taken off what they promise.
        rise_prior: a rise by this share of the load that came as it was forecast, which counts beside those of the
            history.
        room: when forecasts are judged, share of the load that replicas at their target bear on top of it ...
        expected_room: ... how much of it what is expected may use up (`ActionSettings.expected_room`) ...
        upper_room: ... and how much the upper end may (`ActionSettings.rise_room`).
        turn_windows: samples of the lines that show that a rise is over ...
        turn_errors: ... and standard errors by which they have to fall.
        own_period_seconds: a period that is found in the last hour is at least so long: within a shorter one replicas
            can't fall and rise again ...
        own_period_correlation: ... and the load is correlated with itself one period earlier by this much.
        recurring_rise: share of the load by which every season must have risen for a recurring rise.
        plausible: no forecast is above so many times the highest known demand, and one replica.
    """

    step_seconds: float = 15.0
    linear_windows: tuple[int, ...] = (20, 40)
    holt: tuple[float, float, float] = (0.4, 0.15, 0.97)
    shortage_seconds: float = 1800.0
    surplus_seconds: float = 60.0
    half_life: float = 40.0
    margin_half_life: float = 40.0
    surprise: float = 2.5
    surprise_seconds: float = 135.0
    surprise_powers: tuple[float, float] = (0.25, 0.15)
    surprise_samples: float = 12.0
    falling_errors: float = 2.5
    risen: float = 0.95
    risen_min: float = 0.5
    risen_samples: int = 72
    long_window: int = 160
    min_samples: int = 12
    recent: int = 4
    noise_window: int = 60
    onset_windows: tuple[int, ...] = (3, 4, 6, 8)
    onset_errors: float = 1.0
    rise_prior: float = 0.5
    room: float = 1 / 3
    expected_room: float = 0.1
    upper_room: float = 0.4
    turn_windows: tuple[int, ...] = (4, 6, 8)
    turn_errors: float = 1.5
    own_period_seconds: float = 240.0
    own_period_correlation: float = 0.6
    recurring_rise: float = 0.25
    plausible: float = 2.0
