"""Load the history of a new object from Prometheus, once, beside the syncs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from concerto.api.conditions import Condition
from concerto.autoscaling.initial_history import filled, grid, history_queries
from concerto.autoscaling.pods import MetricError
from concerto.controllers.autoscaling.observation import Observation
from concerto.controllers.autoscaling.sources import PrometheusMetrics
from concerto.controllers.autoscaling.sources.prometheus import Span
from concerto.controllers.autoscaling.state import State
from concerto.controllers.autoscaling.tracked import HISTORY_LOADED, EarlierLoad, ObjectEvents, TrackedObject

logger = logging.getLogger(__name__)

_CONCURRENCY = 4
"""Objects whose history is loaded at a time: a range query may be expensive."""
_RETRY_SECONDS = 300.0


class HistoryLoader:
    """Loads histories of objects that ask for it; an error is a condition, and is tried again later."""

    def __init__(self, prometheus: PrometheusMetrics, events: ObjectEvents, clock: Callable[[], float]) -> None:
        self._prometheus = prometheus
        self._events = events
        self._clock = clock
        self._limit = asyncio.Semaphore(_CONCURRENCY)
        self._tasks: set[asyncio.Task[None]] = set()

    def load_if_new(self, observed: Observation) -> None:
        """Begin to load the object's history, if it asks for one and has not got it."""
        tracked, now = observed.tracked, self._clock()
        prediction = observed.spec.prediction
        if prediction.initial_history is None or prediction.mode == "Off":
            tracked.history_condition = None
            return
        loaded = tracked.history_condition is not None and tracked.history_condition.status == "True"
        waits = tracked.load_history_after > now
        if loaded or waits or tracked.earlier is not None or observed.scale is None or observed.combined is None:
            return
        tracked.load_history_after = now + _RETRY_SECONDS
        task = asyncio.ensure_future(self._load(observed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End what is being loaded."""
        for task in self._tasks:
            task.cancel()

    async def _load(self, observed: Observation) -> None:
        tracked, digest = observed.tracked, observed.tracked.digest
        try:
            async with self._limit:
                earlier = await self._fetch(observed)
        except MetricError as error:
            if tracked.digest == digest:
                message = f"The history could not be loaded: {error}"
                tracked.history_condition = Condition(HISTORY_LOADED, "False", "QueryFailed", message)
                self._events.warning(tracked, "FailedLoadHistory", "Loading", message)
        except Exception:
            # It is tried again; the object scales without
            logger.exception("PredictiveHPA %s/%s: history", *tracked.key)
        else:
            if tracked.digest == digest:
                tracked.earlier = earlier

    async def _fetch(self, observed: Observation) -> EarlierLoad:
        found: EarlierLoad = {}
        ring, now = observed.tracked.state.coarse, self._clock()
        begin, end = grid(ring, now)
        series = []
        for query in history_queries(observed.spec, observed.pods, ring.step):
            span = Span(begin, end, ring.step)
            points = await self._prometheus.series(observed.spec.namespace, query.expression, span)
            series.append([(at, value / query.per_replica) for at, value in points])
        found[ring.step] = series
        return found


def with_earlier_load(tracked: TrackedObject, state: State) -> State:
    """The state with the load that was fetched for it, if any; the object's condition says so from then on."""
    if tracked.earlier is None:
        return state
    before = len(state.coarse.values)
    coarse = filled(state.coarse, tracked.earlier.get(state.coarse.step, ()))
    tracked.earlier = None
    count = len(coarse.values) - before
    message = f"Prometheus gave {count * coarse.step / 3600:.1f} h of history from before the object's own."
    tracked.history_condition = Condition(HISTORY_LOADED, "True", "Loaded", message)
    return replace(state, coarse=coarse)
