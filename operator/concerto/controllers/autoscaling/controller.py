"""PredictiveHPA: syncs each object once a period: observe, forecast, decide, and scale its target.

Objects are due at their own place in the period. Objects that are due together are observed concurrently, forecast
together, and decided one by one. All that is remembered between syncs is in the object's status too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from concerto.api.pod_trimming import trim_target_pod
from concerto.api.predictivehpa import PredictiveHPA
from concerto.autoscaling.forecast_influence import ForecastResult
from concerto.controllers.autoscaling.actuation import Actuator
from concerto.controllers.autoscaling.forecast_metrics import ForecastMetrics
from concerto.controllers.autoscaling.initial_history import HistoryLoader
from concerto.controllers.autoscaling.learning import Forecaster, forecast_batches
from concerto.controllers.autoscaling.measurements import Measurements
from concerto.controllers.autoscaling.observation import Observation, Observer
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import AgentMetrics, PodReader, PrometheusMetrics, ResourceMetrics
from concerto.controllers.autoscaling.status_writes import StatusWriter
from concerto.controllers.autoscaling.sync_budget import SyncBudget
from concerto.controllers.autoscaling.target_conflicts import HORIZONTAL_POD_AUTOSCALERS, trim_hpa
from concerto.controllers.autoscaling.targets import Targets
from concerto.controllers.autoscaling.tracked import NO_SPEC, Key, ObjectEvents, TrackedObject
from concerto.controllers.runtime.context import Context
from concerto.controllers.runtime.watched_kinds import NOT_ENDED, FollowedKind
from concerto.kube import Object
from concerto.kube.discovery import Kinds
from concerto.kube.reflector import key_of
from concerto.kube.resources import PODS, PREDICTIVE_HPAS

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONFLICTS_SYNC_SECONDS = 10.0
_SAVE_SECONDS = 5.0


@dataclass(frozen=True)
class AutoscaledKinds:
    """The kinds that autoscaling follows.

    Attributes:
        objects: PredictiveHPAs.
        pods: pods that have not ended.
        hpas: HorizontalPodAutoscalers.
    """

    objects: FollowedKind
    pods: FollowedKind
    hpas: FollowedKind

    @classmethod
    def followed_by(cls, follow: Callable[..., FollowedKind]) -> Self:
        """All of them; ``follow`` takes the arguments of `FollowedKind` but for the session."""
        return cls(
            objects=follow(PREDICTIVE_HPAS, on_demand=True),
            pods=follow(PODS, trim=trim_target_pod, field_selector=NOT_ENDED, on_demand=True),
            hpas=follow(HORIZONTAL_POD_AUTOSCALERS, trim=trim_hpa, on_demand=True),
        )

    @property
    def all(self) -> tuple[FollowedKind, ...]:
        """Each of them."""
        return self.objects, self.pods, self.hpas


class PredictiveHPAController:
    """Scales the targets of all PredictiveHPAs."""

    def __init__(
        self,
        context: Context,
        kinds: AutoscaledKinds,
        settings: PredictiveHPASettings | None = None,
        agents: AgentMetrics | None = None,
    ) -> None:
        """Sends no request before `run`.

        Args:
            context: what the operator's parts share; events go to its recorder.
            kinds: that are followed.
            settings: periods, limits and defaults.
            agents: reads pods' use from agents; None asks the metrics API alone.
        """
        session, recorder, clock, metrics = context.session, context.recorder, context.clock, context.metrics
        self.settings = settings or PredictiveHPASettings()
        self._followed = kinds
        self._subscribed = False
        self._clock = clock
        self._may_write = context.may_write
        self._metrics = metrics
        self._forecast_metrics = ForecastMetrics(metrics.registry, self.settings.max_series)
        self._agents = agents
        discovered = Kinds(session, clock)
        self._targets = Targets(session, discovered)
        timeout, fresh = self.settings.metrics_timeout_seconds, min(5.0, self.settings.controller.sync_seconds / 3)
        api = ResourceMetrics(session, clock, fresh_seconds=fresh, timeout_seconds=timeout)
        self._prometheus = PrometheusMetrics(self.settings.prometheus, timeout_seconds=timeout)
        measurements = Measurements(
            session, discovered, PodReader(api, agents), self._prometheus, timeout_seconds=timeout
        )
        self._events = ObjectEvents(recorder, clock)
        self._budget = SyncBudget(self.settings.max_syncs_per_namespace, self.settings.controller.sync_seconds)
        self.observer = Observer(self._targets, measurements, self._events, clock, self.settings, self._budget.charge)
        self._history = HistoryLoader(self._prometheus, self._events, clock)
        self.forecaster = Forecaster(clock, self.settings, self._report_bug)
        statuses = StatusWriter(session, self.settings, context.may_write)
        self.actuator = Actuator(session, self._targets, self._events, self._forecast_metrics, self.settings, statuses)
        self._objects: dict[Key, TrackedObject] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_objects = asyncio.Event()

    async def run(self) -> None:
        """Take note of the objects and their pods, and scale, until cancelled."""
        await self._subscribe()
        try:
            while True:
                self.start_due()
                await asyncio.sleep(min(0.25, self.settings.controller.sync_seconds / 8))
        finally:
            self._targets.close()
            self._history.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.save()
            await self._prometheus.close()
            if self._agents is not None:
                await self._agents.close()

    async def save(self) -> None:
        """Write the statuses that lack samples, so that a successor continues from there; at most for 5 s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SAVE_SECONDS):
                tracked = [t for t in self._objects.values() if self._is_current(t, t.spec)]
                await asyncio.gather(*(self._guarded(t, self.actuator.save(t)) for t in tracked))

    async def _subscribe(self) -> None:
        """Once for the life of the process: what runs again after an error goes on with what it knew."""
        kinds = self._followed
        if not self._subscribed:
            self._subscribed = True
            # What a predecessor wrote last is in the statuses: only a list begun after the election has all of it
            kinds.objects.demand()
            await kinds.objects.reflector.refresh()
            await kinds.objects.subscribe(self.on_object)
            # Without any PredictiveHPA, neither pods nor an index of them are held
            await self._has_objects.wait()
            kinds.pods.demand()
            kinds.hpas.demand()
            await kinds.pods.reflector.synced.wait()
            await kinds.pods.subscribe(self.observer.pods.on_change)
            await kinds.hpas.subscribe(self.observer.conflicts.on_hpa)
        with contextlib.suppress(TimeoutError):  # without the right to list them, scaling goes on
            await asyncio.wait_for(kinds.hpas.reflector.synced.wait(), _CONFLICTS_SYNC_SECONDS)

    def on_object(self, old: Object | None, new: Object | None) -> None:
        """Take note that a PredictiveHPA appeared, changed or was deleted."""
        key = key_of(new or old or {})
        if new is None:
            self._objects.pop(key, None)
            self.observer.selectors.put(key, None)
            self.observer.conflicts.put((PREDICTIVE_HPAS.kind, *key), None)
            self._forecast_metrics.forget(*key)
            self._history.forget(key)
            return
        self._has_objects.set()
        tracked = self._objects.get(key)
        if tracked is None:
            tracked = self._objects[key] = TrackedObject.from_object(new, self._first_due(new))
            self._register_target(tracked)
        elif tracked.update(new):
            tracked.due = self._clock()
            self._register_target(tracked)

    def _register_target(self, tracked: TrackedObject) -> None:
        """Register what this object scales. A preview scales nothing, and conflicts with nobody."""
        spec = tracked.spec
        live = spec is not None and spec.prediction.mode != "Preview"
        target = spec.target if spec and live else None
        self.observer.conflicts.put((PREDICTIVE_HPAS.kind, *tracked.key), target)
        if not live:
            self.observer.selectors.put(tracked.key, None)

    # When objects are due

    def _first_due(self, obj: Object) -> float:
        """A new object is due at once; one with a status waits for its place within the period."""
        now = self._clock()
        return now if "status" not in obj else self._next_due(obj, now - self.settings.controller.sync_seconds / 2)

    def _next_due(self, obj: Object, now: float) -> float:
        """The object's own place in the first period that is at least half a period away.

        Places are spread over the period and do not move: late syncs neither pile up nor drift together.
        """
        period = self.settings.controller.sync_seconds
        place = period * zlib.crc32(obj["metadata"]["uid"].encode()) / 2**32
        return (math.floor((now + period / 2 - place) / period) + 1) * period + place

    def start_due(self) -> None:
        """Start a round for the objects that are due and not in a round already."""
        now, period = self._clock(), self.settings.controller.sync_seconds
        # A due time further away than two periods shows that the clock was set back
        due = [t for t in self._objects.values() if not t.busy and not now < t.due <= now + 2 * period]
        due.sort(key=lambda tracked: tracked.due)
        due = [tracked for tracked in due if self._budget.take(tracked.key[0], now)]
        if not due:
            return
        for tracked in due:
            tracked.busy = True
            tracked.due = self._next_due(tracked.obj, now)
        task = asyncio.ensure_future(self._round(due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # A round

    async def _round(self, due: Sequence[TrackedObject]) -> None:
        """Observe objects, forecast those together that are observed by the same time, and decide on each."""
        observing = [asyncio.ensure_future(self._guarded(t, self._observe(t))) for t in due]
        deciding: list[asyncio.Task[None]] = []
        waiting = set(observing)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=self.settings.batch_seconds)
                if observed := [o for task in observing if task in done and (o := task.result()) is not None]:
                    deciding.append(asyncio.ensure_future(self._decide(observed)))
            await asyncio.gather(*deciding)
        finally:
            for task in (*observing, *deciding):
                task.cancel()

    async def _observe(self, tracked: TrackedObject) -> Observation | None:
        spec = tracked.spec
        observed = await self.observer.observe(tracked, lambda: self._is_current(tracked, spec))
        if observed is None:
            tracked.busy = False
        return observed

    async def _decide(self, observed: Sequence[Observation]) -> None:
        left = {o.tracked.key: o.tracked for o in observed}
        acting: list[asyncio.Task[None]] = []
        try:
            size, different = self.settings.forecast_batch, self.settings.forecast_batch_settings
            for batch in forecast_batches(observed, size, different):
                current = [o for o in batch if self._is_current(o.tracked, o.spec)]
                for each in current:
                    self._history.load_if_new(each)
                results = self.forecaster.forecast(current)
                for o, result in zip(current, results, strict=True):
                    acting.append(asyncio.ensure_future(self._act(o, result)))
                    # Others have their next syncs although a webhook keeps the writes of this one
                    acting[-1].add_done_callback(partial(_end_sync, left.pop(o.tracked.key)))
                await asyncio.sleep(0)
        finally:
            for tracked in left.values():
                tracked.busy = False
        await asyncio.gather(*acting)
        self._metrics.reconciles.labels("PredictiveHPA", "ok").inc(len(acting))

    async def _act(self, observed: Observation, forecast: ForecastResult | None) -> None:
        def is_current() -> bool:
            return self._is_current(observed.tracked, observed.spec)

        if is_current():
            await self._guarded(observed.tracked, self.actuator.act(observed, forecast, is_current))

    def _is_current(self, tracked: TrackedObject, spec: PredictiveHPA | None) -> bool:
        """Whether the object still is what was observed: a metrics API may take ten seconds to answer.

        Meanwhile the object may be deleted, become a preview, or get another target, and another process may lead. A
        changed object is due at once.
        """
        present = NO_SPEC if tracked.spec is None else tracked.spec
        is_same = self._objects.get(tracked.key) is tracked and present is (NO_SPEC if spec is None else spec)
        return is_same and self._may_write()

    async def _guarded(self, tracked: TrackedObject, work: Awaitable[T]) -> T | None:
        """The result of work on one object; an unexpected error is reported there, and does not stop the others."""
        try:
            return await work
        except Exception as error:
            self._report_bug(tracked, error)
            tracked.busy = False
            return None

    def _report_bug(self, tracked: TrackedObject, error: Exception) -> None:
        logger.exception("PredictiveHPA %s/%s", *tracked.key)
        self._metrics.reconciles.labels("PredictiveHPA", "error").inc()
        self._events.warning(tracked, "InternalError", "Syncing", f"{type(error).__name__}: {error}")


def _end_sync(tracked: TrackedObject, task: asyncio.Task[None]) -> None:
    tracked.busy = False
