"""Families of traffic that constants are chosen and tested on: rhythms, noise, bursts and outages, each with history.

Every member is drawn from its own random numbers: amplitudes, phases and times of events differ from member to member.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from concerto.simulation.autoscaling.plant import Floats
from concerto.simulation.autoscaling.traffic import MAX_RATE, Traffic

_HISTORY_DAYS = {"weekly": 15, "office hours": 15}
"""Of the families whose rhythm is a week; three of the others."""
_HOUR, _DAY = 3600.0, 86400.0
_STEP_SECONDS = 60.0
_MIN_RATE = 0.2

Rates = Callable[[Floats, np.random.Generator], Floats]


def _flat(at: Floats, rng: np.random.Generator) -> Floats:
    return np.full(len(at), rng.uniform(6, 18))


def _daily(at: Floats, rng: np.random.Generator) -> Floats:
    return 11 + 8 * _day_wave(at, rng) + 0.6 * rng.normal(size=len(at))


def _weekly(at: Floats, rng: np.random.Generator) -> Floats:
    weekday = (at / _DAY + rng.integers(7)) // 1 % 7
    load = (10 + 7 * _day_wave(at, rng)) * np.where(weekday < 5, 1.0, 0.4)
    return np.asarray(load + 0.5 * rng.normal(size=len(at)))


def _noisy(at: Floats, rng: np.random.Generator) -> Floats:
    """Autocorrelated noise: it takes about ten minutes to forget."""
    shocks, state = 0.436 * rng.normal(size=len(at)), np.zeros(len(at))
    for i in range(1, len(at)):
        state[i] = 0.9 * state[i - 1] + shocks[i]
    return np.asarray(10 * np.exp(0.35 * state - 0.06))


def _bursty(at: Floats, rng: np.random.Generator) -> Floats:
    load = 4.0 + 0.3 * rng.normal(size=len(at))
    for begin in _events(at, rng, 1500.0):
        since = np.maximum(at - begin, 0.0)
        load += np.where(at >= begin, rng.uniform(4, 14) * np.exp(-since / rng.uniform(120, 600)), 0.0)
    return np.asarray(load)


def _outages(at: Floats, rng: np.random.Generator) -> Floats:
    """A daily wave with outages of some minutes, as releases and failures of others make them."""
    load = 12 + 4 * _day_wave(at, rng)
    for begin in _events(at, rng, 3 * _HOUR):
        inside = (at >= begin) & (at < begin + rng.uniform(120, 600))
        load = np.where(inside, load * rng.uniform(0, 0.5), load)
    return load


def _periodic_jobs(at: Floats, rng: np.random.Generator) -> Floats:
    period = rng.choice([900.0, 1800.0, 3600.0])
    inside = (at + rng.uniform(0, period)) % period < rng.uniform(120, 400)
    return 5.0 + np.where(inside, rng.uniform(6, 13), 0.0)


def _office(at: Floats, rng: np.random.Generator) -> Floats:
    """Weekdays begin with a jump within the first hour after the history."""
    begin = 300.0 * rng.integers(2, 10)
    day = (at - begin) // _DAY
    works = ((day + rng.integers(5)) % 7 < 5) & ((at - begin) % _DAY < 9 * _HOUR)
    return np.asarray(rng.uniform(2, 5) + np.where(works, rng.uniform(5, 12), 0.0) + 0.3 * rng.normal(size=len(at)))


FAMILIES: dict[str, Rates] = {
    "flat": _flat,
    "daily": _daily,
    "weekly": _weekly,
    "office hours": _office,
    "noisy": _noisy,
    "bursty": _bursty,
    "outages": _outages,
    "periodic jobs": _periodic_jobs,
}


def member(family: str, number: int, *, seconds: float) -> Traffic:
    """One traffic of a family; the same number gives the same one."""
    history_seconds = _HISTORY_DAYS.get(family, 3) * _DAY
    rng = np.random.default_rng((sum(map(ord, family)), number))
    at: Floats = np.arange(-history_seconds, seconds + 1, _STEP_SECONDS)
    rates = np.clip(FAMILIES[family](at, rng), _MIN_RATE, MAX_RATE)
    return Traffic(family, at - at[0], rates, history_seconds, history_seconds + seconds)


def _day_wave(at: Floats, rng: np.random.Generator) -> Floats:
    return np.asarray(np.sin(2 * np.pi * (at / _DAY + rng.random())))


def _events(at: Floats, rng: np.random.Generator, mean_seconds: float) -> Floats:
    count = int(3 * (at[-1] - at[0]) / mean_seconds) + 1
    begins = at[0] + np.cumsum(rng.exponential(mean_seconds, count))
    return np.asarray(begins[begins < at[-1]])
