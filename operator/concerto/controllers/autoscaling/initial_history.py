"""Load the history of a new object from Prometheus, once, beside the syncs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from concerto.api.conditions import Condition
from concerto.autoscaling.history import NOTHING, Ring
from concerto.autoscaling.initial_history import common_times, filled, grid, history_queries
from concerto.autoscaling.pods import MetricError
from concerto.autoscaling.replicas import MAX_REPLICAS
from concerto.controllers.autoscaling.namespace_turns import NamespaceTurns
from concerto.controllers.autoscaling.observation import Observation
from concerto.controllers.autoscaling.sources import PrometheusMetrics
from concerto.controllers.autoscaling.sources.prometheus import Span
from concerto.controllers.autoscaling.state import FINE_SECONDS, State
from concerto.controllers.autoscaling.tracked import HISTORY_LOADED, EarlierLoad, Key, ObjectEvents, TrackedObject

logger = logging.getLogger(__name__)

_CONCURRENCY, _OF_ONE_NAMESPACE = 4, 1
"""Objects whose history is loaded at a time: a range query may be expensive."""
_LOAD_SECONDS = 60.0
"""For all queries of one object; others wait meanwhile."""
_RETRY_SECONDS = 300.0


class HistoryLoader:
    """Loads histories of objects that ask for it; an error is a condition, and is tried again later."""

    def __init__(self, prometheus: PrometheusMetrics, events: ObjectEvents, clock: Callable[[], float]) -> None:
        self._prometheus = prometheus
        self._events = events
        self._clock = clock
        self._turns = NamespaceTurns(_CONCURRENCY, _OF_ONE_NAMESPACE)
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def load_if_new(self, observed: Observation) -> None:
        """Begin to load the object's history, if it asks for one and has not got it."""
        tracked, now = observed.tracked, self._clock()
        prediction = observed.spec.prediction
        if prediction.initial_history is None or prediction.mode == "Off":
            tracked.history_condition = None
            return
        loaded = tracked.history_condition is not None and tracked.history_condition.status == "True"
        # A time further away than a retry shows that the clock was set back
        waits = now < tracked.load_history_after <= now + _RETRY_SECONDS or tracked.key in self._tasks
        if loaded or waits or tracked.earlier is not None or observed.scale is None or observed.combined is None:
            return
        tracked.load_history_after = now + _RETRY_SECONDS
        task = self._tasks[tracked.key] = asyncio.ensure_future(self._load(observed))
        task.add_done_callback(lambda ended: self._drop(tracked.key, ended))

    def forget(self, key: Key) -> None:
        """Take note that an object is deleted: its history is wanted no more."""
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """End what is being loaded."""
        for task in self._tasks.values():
            task.cancel()

    def _drop(self, key: Key, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is ended:  # and not that of a new object of the name
            del self._tasks[key]

    async def _load(self, observed: Observation) -> None:
        tracked, asked = observed.tracked, _what_is_asked(observed.tracked)
        try:
            async with self._turns.turn(observed.spec.namespace):
                earlier = await self._fetch_in_time(observed)
        except MetricError as error:
            if _what_is_asked(tracked) == asked:
                tracked.load_history_after = self._clock() + _RETRY_SECONDS
                message = f"The history could not be loaded: {error}"
                tracked.history_condition = Condition(HISTORY_LOADED, "False", "QueryFailed", message)
                self._events.warning(tracked, "FailedLoadHistory", "Loading", message)
        except Exception:
            # It is tried again; the object scales without
            logger.exception("PredictiveHPA %s/%s: history", *tracked.key)
        else:
            if _what_is_asked(tracked) == asked:
                tracked.earlier = earlier

    async def _fetch_in_time(self, observed: Observation) -> EarlierLoad:
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                return await self._fetch(observed)
        except TimeoutError as error:
            raise MetricError(f"its queries take longer than {_LOAD_SECONDS:g} s together") from error

    async def _fetch(self, observed: Observation) -> EarlierLoad:
        found: EarlierLoad = {}
        now = self._clock()
        for ring in _long_rings(observed.tracked.state):
            begin, end = grid(ring, now)
            found[ring.step] = []
            for query in history_queries(observed.spec, observed.pods, ring.step):
                span = Span(begin, end, ring.step)
                points = await self._prometheus.series(observed.spec.namespace, query.expression, span)
                found[ring.step].append([(at, min(value / query.per_replica, MAX_REPLICAS)) for at, value in points])
            if not common_times(found[ring.step]):
                raise MetricError("the series of the metrics have no time in common")
        return found


def _what_is_asked(tracked: TrackedObject) -> tuple[object, ...]:
    """What an answer depends on: the query, what load is counted in, and the grid. Each may change meanwhile."""
    asked = None if tracked.spec is None else tracked.spec.prediction.initial_history
    return tracked.digest, tracked.state.grids, asked


def _long_rings(state: State) -> tuple[Ring, ...]:
    """Those that are for seasons. The last hour has to be of the object's own readings, by which models are judged."""
    return tuple(ring for ring in state.rings if ring.step != FINE_SECONDS)


def with_earlier_load(tracked: TrackedObject, state: State) -> State:
    """The state with the load that was fetched for it, if any; the object's condition says so from then on."""
    if tracked.earlier is None:
        return state
    earlier, tracked.earlier = tracked.earlier, None
    filled_state = state.with_rings(lambda ring: filled(ring, earlier.get(ring.step, ())))
    hours = max(_loaded_hours(ring) for ring in _long_rings(filled_state))
    message = f"Prometheus gave {hours:.1f} h of history from before the object's own."
    if not hours:
        message = "Prometheus has no load from before the object's own history."
    tracked.history_condition = Condition(HISTORY_LOADED, "True", "Loaded", message)
    return filled_state


def _loaded_hours(ring: Ring) -> float:
    return sum(value != NOTHING for value in ring.values[: ring.loaded]) * ring.step / 3600
