"""Learn from observations (demand, start-up times), and forecast many objects together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from concerto.autoscaling.forecast_influence import ForecastResult, Subject, predict
from concerto.controllers.autoscaling.initial_history import with_earlier_load
from concerto.controllers.autoscaling.measurements import Load, load_of
from concerto.controllers.autoscaling.observation import Observation
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.spec import models_of
from concerto.controllers.autoscaling.state import State
from concerto.controllers.autoscaling.tracked import TrackedObject

logger = logging.getLogger(__name__)


def forecast_batches(
    observed: Sequence[Observation], max_objects: int, max_settings: int
) -> Iterator[list[Observation]]:
    """Parts of what was observed that are forecast without a break, objects of the same settings together.

    Objects of the same settings cost a fraction of a millisecond each, and each of several settings costs 7 ms.

    Args:
        observed: in any order.
        max_objects: in one part.
        max_settings: different ones in one part.
    """
    by_settings: dict[tuple[object, ...], list[Observation]] = {}
    for each in observed:
        prediction = each.spec.prediction
        key = (prediction.model, prediction.season_seconds, prediction.shortage_seconds, prediction.history_seconds)
        by_settings.setdefault(key, []).append(each)
    batch: list[Observation] = []
    settings = 0
    for alike in by_settings.values():
        settings += 1
        for each in alike:
            if len(batch) == max_objects or settings > max_settings:
                yield batch
                batch, settings = [], 1
            batch.append(each)
    if batch:
        yield batch


class Forecaster:
    """Updates the state of observed objects, and forecasts them."""

    def __init__(
        self,
        clock: Callable[[], float],
        settings: PredictiveHPASettings,
        on_error: Callable[[TrackedObject, Exception], None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._on_error = on_error

    def forecast(self, observed: Sequence[Observation]) -> list[ForecastResult | None]:
        """A result for each observation; None where the object makes no forecasts, or its forecast failed."""
        subjects: dict[int, Subject] = {}
        for index, each in enumerate(observed):
            try:
                each.tracked.state = self.learn(each)
                if each.spec.prediction.mode != "Off" and each.combined is not None:
                    subjects[index] = self._subject(each, load_of(each.measured.outcomes, each.now))
            except Exception as error:
                self._on_error(each.tracked, error)
        try:
            return self._results(subjects, len(observed))
        except Exception:
            logger.exception("forecasts of %d objects together failed: each is forecast alone", len(subjects))
        results: list[ForecastResult | None] = [None] * len(observed)
        for index, subject in subjects.items():
            try:
                (results[index],) = self._results({0: subject}, 1)
            except Exception as error:
                # Without a result, the present metrics alone decide
                self._on_error(observed[index].tracked, error)
        return results

    def learn(self, observed: Observation) -> State:
        """The object's state, with the demand and the start-up times that were observed."""
        state, now = with_earlier_load(observed.tracked, observed.tracked.state), observed.now
        known = state.initialisation
        known = replace(known, learned_until=min(known.learned_until, now))
        # One node whose clock is ahead must not make the pods of all others count as learned already
        learned = known.learn([p for p in observed.pods if p.ready_since <= now], self._settings.initialisation)
        state = state.with_rings(lambda ring: ring.not_after(now))
        if observed.spec.prediction.mode != "Off" and observed.combined is not None:
            load = load_of(observed.measured.outcomes, now)
            if (demand := load.demand) is not None:
                state = state.with_rings(lambda ring: ring.add(load.observed_at, demand))
        return replace(state, initialisation=learned)

    def _results(self, subjects: Mapping[int, Subject], count: int) -> list[ForecastResult | None]:
        settings = self._settings
        found = predict(list(subjects.values()), self._clock(), settings.forecast, stale_seconds=settings.stale_seconds)
        results: list[ForecastResult | None] = [None] * count
        for index, result in zip(subjects, found, strict=True):
            results[index] = result
        return results

    def _subject(self, observed: Observation, load: Load) -> Subject:
        prediction, state = observed.spec.prediction, observed.tracked.state
        horizon = prediction.horizon_seconds
        if horizon is None:
            ahead = state.initialisation.ahead(self._settings.initialisation)
            horizon = ahead + self._settings.controller.sync_seconds / 2
        newest = (state.fine.last + 0.5) * state.fine.step if state.fine.values else 0.0
        return Subject(
            state.fine,
            state.coarse,
            horizon,
            min(newest, load.observed_at) if newest else load.observed_at,
            load.certain,
            models_of(observed.spec),
            prediction.season_seconds,
            prediction.season_start,
            prediction.shortage_seconds,
            state.weekly,
            observed.exceptions,
            prediction.season_time_zone,
        )
