"""PredictiveHPA: looks at each object every sync period, decides with the pure rules, and scales its target.

Objects come due spread over the period. All that are due at once are observed concurrently, forecast together, and then
decided one by one. Nothing is remembered here that is not in the object's status, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from concerto.api.conditions import Condition
from concerto.api.predictivehpa import PredictiveHPA
from concerto.api.selector_text import parse_selector
from concerto.api.selectors import LabelSelector
from concerto.api.timestamps import format_timestamp
from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import (
    Combined,
    Decision,
    Failure,
    carried_out,
    combine,
    decide,
    failed,
    needs_metrics,
    rescaled,
    stopped,
)
from concerto.autoscaling.forecast import ForecastSettings
from concerto.autoscaling.initialisation import InitialisationSettings
from concerto.autoscaling.pod_reader import trim_pod
from concerto.autoscaling.pods import Gone, PodView
from concerto.autoscaling.prediction import ForecastResult, HoldSettings, Subject, predict, with_hold
from concerto.autoscaling.settings import Bounds, ControllerSettings
from concerto.controllers.autoscaling.capacity_reservation import build_reservation, reserve
from concerto.controllers.autoscaling.measurements import Load, Measured, Measurements, MetricRequest, load_of
from concerto.controllers.autoscaling.pod_index import PodIndex, SelectorIndex
from concerto.controllers.autoscaling.series import ForecastMetrics
from concerto.controllers.autoscaling.sources import AgentMetrics
from concerto.controllers.autoscaling.spec import bounds_of, models_of
from concerto.controllers.autoscaling.state import State, read_state, write_events, write_state
from concerto.controllers.autoscaling.status import (
    all_conditions,
    explain,
    forecast_status,
    last_decision,
    merge_patch,
    metric_statuses,
    no_decision,
    selector_status,
    target_digest,
)
from concerto.controllers.autoscaling.target_conflicts import HORIZONTAL_POD_AUTOSCALERS, TargetConflicts, trim_hpa
from concerto.controllers.autoscaling.targets import Scale, Targets
from concerto.controllers.runtime.metrics import Metrics
from concerto.kube import EventRecorder, KubeError, NotFound, Object, Reflector, Session
from concerto.kube.discovery import Kinds
from concerto.kube.resources import PODS, PREDICTIVE_HPAS

logger = logging.getLogger(__name__)

Key = tuple[str, str]
T = TypeVar("T")

_CONFLICTS_SYNC_SECONDS = 10.0
_NOT_OURS = "default-scheduler"
_WARNED_SECONDS, _WARNED_MOST = 300.0, 4
"""An object's warnings of one reason say so many different things within this time."""


@dataclass(frozen=True)
class PredictiveHPASettings:
    """How the controller runs.

    Attributes:
        controller: the flags of autoscaling/v2.
        forecast: constants of the models.
        initialisation: how start-up times are learned.
        hold: how long recommendations hold while the forecast is active.
        concurrency: scales read at a time.
        stale_seconds: a forecast expires when its newest sample is older than this.
        quiet_seconds: a status that says nothing new is written this often, for the history in it.
        metrics_timeout_seconds: for one question to a metrics API.
        company_seconds: objects due together are forecast together if they are observed within this time; whoever
            waits for a metrics API for longer keeps nobody else waiting.
    """

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    forecast: ForecastSettings = field(default_factory=ForecastSettings)
    initialisation: InitialisationSettings = field(default_factory=InitialisationSettings)
    hold: HoldSettings = field(default_factory=HoldSettings)
    concurrency: int = 32
    stale_seconds: float = 120.0
    quiet_seconds: float = 60.0
    metrics_timeout_seconds: float = 10.0
    company_seconds: float = 1.0


@dataclass
class _Entry:
    """One object as it is known now."""

    obj: Object
    spec: PredictiveHPA | None
    state: State
    due: float
    busy: bool = False
    asked: tuple[int, int, float] | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    written_at: float = 0.0
    digest: str = ""
    warned: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Seen:
    """What one look at the cluster found for one object."""

    entry: _Entry
    spec: PredictiveHPA
    bounds: Bounds
    now: float
    scale: Scale | None = None
    pods: Sequence[PodView] = ()
    gone: Sequence[Gone] = ()
    measured: Measured = field(default_factory=Measured)
    combined: Combined | None = None
    wrong: Condition | None = None
    conflict: Condition | None = None


class PredictiveHPAController:
    """Scales the targets of all PredictiveHPAs."""

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        clock: Callable[[], float],
        metrics: Metrics,
        settings: PredictiveHPASettings | None = None,
        agents: AgentMetrics | None = None,
    ) -> None:
        """Nothing is asked before `run`."""
        self.settings = settings or PredictiveHPASettings()
        self._session = session
        self._recorder = recorder
        self._clock = clock
        self._metrics = metrics
        self._told = ForecastMetrics(metrics.registry)
        kinds = Kinds(session, clock)
        self._targets = Targets(session, kinds)
        self._agents = agents
        self._measurements = Measurements(
            session,
            kinds,
            clock,
            agents,
            sync_seconds=self.settings.controller.sync_seconds,
            timeout_seconds=self.settings.metrics_timeout_seconds,
        )
        self._entries: dict[Key, _Entry] = {}
        self._pods = PodIndex()
        self._selectors = SelectorIndex()
        self._conflicts = TargetConflicts()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self._limit = asyncio.Semaphore(self.settings.concurrency)

    async def run(self) -> None:
        """Follow the objects and their pods, and scale, until cancelled."""
        objects = Reflector(self._session, PREDICTIVE_HPAS, on_change=self.on_object)
        pods = Reflector(self._session, PODS, trim=trim_pod, on_change=self._pods.on_change)
        hpas = Reflector(self._session, HORIZONTAL_POD_AUTOSCALERS, trim=trim_hpa, on_change=self._conflicts.on_hpa)
        async with asyncio.TaskGroup() as group:
            group.create_task(objects.run())
            await objects.synced.wait()
            # As long as nobody autoscales, no second copy of all pods is kept
            await self._wanted.wait()
            group.create_task(pods.run())
            group.create_task(hpas.run())
            await pods.synced.wait()
            with contextlib.suppress(TimeoutError):  # without the right to see them, scaling goes on
                await asyncio.wait_for(hpas.synced.wait(), _CONFLICTS_SYNC_SECONDS)
            try:
                while True:
                    self._start_due()
                    await asyncio.sleep(min(0.25, self.settings.controller.sync_seconds / 8))
            finally:
                self._targets.close()
                for task in self._tasks:
                    task.cancel()
                if self._agents is not None:
                    await self._agents.close()

    def on_object(self, old: Object | None, new: Object | None) -> None:
        """A PredictiveHPA appeared, changed or is gone."""
        meta = (new or old or {})["metadata"]
        key = (meta["namespace"], meta["name"])
        if new is None:
            self._entries.pop(key, None)
            self._selectors.put(key, None)
            self._conflicts.put((PREDICTIVE_HPAS.kind, *key), None)
            self._told.forget(*key)
            return
        self._wanted.set()
        entry = self._entries.get(key)
        status = new.get("status") or {}
        if entry is None:
            spec, state = _understood(new, status)
            digest = target_digest(spec) if spec else ""
            if status.get("historyOf", digest) != digest:
                state = _without_history(state)
            if status.get("observedGeneration") != meta.get("generation"):
                state = _without_recommendations(state)
            entry = self._entries[key] = _Entry(new, spec, state, self._first_due(new), status=status, digest=digest)
            self._claim(entry)
            return
        changed = entry.obj["metadata"].get("generation") != meta.get("generation")
        entry.obj = new
        if not entry.busy:
            entry.status = status  # what somebody else has taken out of it is written again
        if changed:
            spec, state = _understood(new, {**status, **write_state(entry.state, 0.0)})
            digest = target_digest(spec) if spec else ""
            if digest != entry.digest:
                state = _without_history(state)
            if entry.spec is None or spec is None or entry.spec.prediction.mode != spec.prediction.mode:
                state = _without_recommendations(state)
            elif entry.spec.target != spec.target:
                state = replace(state, memory=Memory())
            entry.spec, entry.state, entry.digest = spec, state, digest
            entry.due = self._clock()
            self._claim(entry)

    def _claim(self, entry: _Entry) -> None:
        """Say what this object scales. A preview scales nothing, and stands in nobody's way."""
        meta, spec = entry.obj["metadata"], entry.spec
        live = spec is not None and spec.prediction.mode != "Preview"
        self._conflicts.put(
            (PREDICTIVE_HPAS.kind, meta["namespace"], meta["name"]), spec.target if spec and live else None
        )
        if not live:
            self._selectors.put((meta["namespace"], meta["name"]), None)

    def _first_due(self, obj: Object) -> float:
        """At once for what was never looked at; a known object waits for its place within the period."""
        now = self._clock()
        return now if "status" not in obj else self._next_due(obj, now - self.settings.controller.sync_seconds / 2)

    def _next_due(self, obj: Object, now: float) -> float:
        """The object's own place in the first period that is at least half a period away.

        Places are spread over the period and do not move: looks that were late neither pile up nor drift together.
        """
        period = self.settings.controller.sync_seconds
        place = period * zlib.crc32(obj["metadata"]["uid"].encode()) / 2**32
        return (math.floor((now + period / 2 - place) / period) + 1) * period + place

    def _start_due(self) -> None:
        now, period = self._clock(), self.settings.controller.sync_seconds
        # Further away than it can have been put: the clock was set back
        due = [e for e in self._entries.values() if not e.busy and not now < e.due <= now + 2 * period]
        if not due:
            return
        for entry in due:
            entry.busy = True
            entry.due = self._next_due(entry.obj, now)
        task = asyncio.ensure_future(self._look(due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, entries: list[_Entry]) -> None:
        """Observe objects, forecast those together that are observed by the same time, and decide on each."""
        observing = [asyncio.ensure_future(self._alone(entry, self._observe(entry))) for entry in entries]
        deciding: list[asyncio.Task[None]] = []
        waiting = set(observing)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=self.settings.company_seconds)
                if seen := [s for task in observing if task in done and (s := task.result()) is not None]:
                    deciding.append(asyncio.ensure_future(self._decide(seen)))
            await asyncio.gather(*deciding)
        finally:
            for task in (*observing, *deciding):
                task.cancel()

    async def _decide(self, seen: Sequence[_Seen]) -> None:
        try:
            asked = [s for s in seen if self._is_asked(s.entry, s.spec)]
            results = self._predict(asked)
            await asyncio.gather(*(self._alone(s.entry, self._act(s, o)) for s, o in zip(asked, results, strict=True)))
            self._metrics.reconciles.labels("PredictiveHPA", "ok").inc(len(asked))
        finally:
            for s in seen:
                s.entry.busy = False

    def _is_asked(self, entry: _Entry, spec: PredictiveHPA) -> bool:
        """Whether the object still is what was looked at: a metrics API may take ten seconds, and be overtaken.

        It may be gone, a preview by now, or have another target. What has changed is looked at anew, at once.
        """
        meta = entry.obj["metadata"]
        known = self._entries.get((meta["namespace"], meta["name"]))
        return known is entry and spec is (_PLACEHOLDER if entry.spec is None else entry.spec)

    async def _alone(self, entry: _Entry, work: Awaitable[T]) -> T | None:
        """What cannot go wrong and does is said where it happened, and is not the others' business."""
        try:
            return await work
        except Exception as error:
            self._failed(entry, error)
            entry.busy = False
            return None

    def _failed(self, entry: _Entry, error: Exception) -> None:
        meta = entry.obj["metadata"]
        logger.exception("PredictiveHPA %s/%s", meta["namespace"], meta["name"])
        self._metrics.reconciles.labels("PredictiveHPA", "error").inc()
        self._event(entry, "Warning", "InternalError", "Looking", f"{type(error).__name__}: {error}")

    # Observe

    async def _observe(self, entry: _Entry) -> _Seen | None:
        """What there is to see; None where nobody asks any more."""
        spec = entry.spec
        now = self._clock()
        if spec is None:
            complaint = failed("FailedGetScale", "understand the object", _complaint(entry.obj))
            return _Seen(entry, _PLACEHOLDER, Bounds(1), now, wrong=complaint)
        bounds = bounds_of(spec, self.settings.controller)
        try:
            async with self._limit:
                scale = await self._targets.read(spec.namespace, spec.target)
        except KubeError as error:
            if not self._is_asked(entry, spec):
                entry.busy = False
                return None
            if isinstance(error, NotFound):
                self._selectors.put((spec.namespace, spec.name), None)
            self._event(entry, "Warning", "FailedGetScale", "GettingScale", str(error))
            complaint = failed("FailedGetScale", "get the target's current scale", str(error))
            return _Seen(entry, spec, bounds, now, wrong=complaint)
        if not self._is_asked(entry, spec):
            # Nor may it claim pods, for whom nobody would take the claim back
            entry.busy = False
            return None
        if (conflict := self._target_conflict(entry, spec)) is not None:
            return _Seen(entry, spec, bounds, now, scale, conflict=conflict)
        selector, wrong = self._selector(entry, spec, scale)
        pods = self._pods.select(spec.namespace, selector) if selector else []
        gone = self._pods.gone(spec.namespace, selector) if selector else []
        seen = _Seen(entry, spec, bounds, now, scale, pods, gone)
        if not needs_metrics(bounds, scale.replicas):
            return seen
        if wrong is not None:
            return replace(seen, combined=Combined(None, "", wrong, wrong.message))
        measured = await self._measure(seen)
        return replace(seen, measured=measured, combined=combine(measured.outcomes, scale.replicas))

    def _target_conflict(self, entry: _Entry, spec: PredictiveHPA) -> Condition | None:
        """What is wrong where others scale the same target: then not even bounds are kept, which may differ."""
        others = self._conflicts.of((PREDICTIVE_HPAS.kind, spec.namespace, spec.name))
        if not others:
            return None
        names = ", ".join(f"{kind} {name}" for kind, _, name in others)
        message = f"{spec.target.kind} {spec.target.name} is scaled by {names} as well: leave it to one of them"
        self._event(entry, "Warning", "AmbiguousSelector", "Selecting", message)
        return Condition("ScalingActive", "False", "AmbiguousSelector", message)

    def _selector(
        self, entry: _Entry, spec: PredictiveHPA, scale: Scale
    ) -> tuple[LabelSelector | None, Condition | None]:
        """The target's selector, or what is wrong with it."""
        key = (spec.namespace, spec.name)
        if not scale.selector:
            self._selectors.put(key, None)
            self._event(entry, "Warning", "SelectorRequired", "Selecting", "selector is required")
            message = "the HPA target's scale is missing a selector"
            return None, Condition("ScalingActive", "False", "InvalidSelector", message)
        try:
            selector = parse_selector(scale.selector)
        except ValueError as error:
            self._event(entry, "Warning", "InvalidSelector", "Selecting", str(error))
            return None, Condition("ScalingActive", "False", "InvalidSelector", str(error))
        if spec.prediction.mode == "Preview":
            return selector, None
        self._selectors.put(key, selector)
        others = self._selectors.claimants(spec.namespace, self._pods.labels(spec.namespace, selector))
        if len(others) > 1:
            names = ", ".join(f"{namespace}/{name}" for namespace, name in others)
            message = f"pods by selector {scale.selector} are controlled by multiple PredictiveHPAs: {names}"
            self._event(entry, "Warning", "AmbiguousSelector", "Selecting", message)
            return selector, Condition("ScalingActive", "False", "AmbiguousSelector", message)
        return selector, None

    async def _measure(self, seen: _Seen) -> Measured:
        assert seen.scale is not None
        entry, spec = seen.entry, seen.spec
        settings, wanted = self._start_up_aware(entry, spec), spec.prediction.metrics_source
        look = MetricRequest(
            spec.namespace, seen.scale, seen.pods, seen.bounds.tolerances, settings, seen.now, wanted, seen.gone
        )
        measured = await self._measurements.measure(spec.metrics, look)
        for outcome in measured.outcomes:
            if isinstance(outcome, Failure):
                self._event(entry, "Warning", outcome.reason, "Measuring", outcome.message)
        if measured.readings is not None and measured.readings.trouble:
            self._event(entry, "Warning", "AgentMetricsUnavailable", "Measuring", measured.readings.trouble)
        return measured

    def _start_up_aware(self, entry: _Entry, spec: PredictiveHPA) -> ControllerSettings:
        """With forecasts, start-up work is not taken for load just because it takes longer than five minutes."""
        controller = self.settings.controller
        if spec.prediction.mode == "Off":
            return controller
        typical = entry.state.initialisation.typical(self.settings.initialisation)
        longest = max(controller.cpu_initialization_seconds, 2 * typical)
        return replace(controller, cpu_initialization_seconds=longest, first_readiness=True)

    # Predict

    def _predict(self, seen: Sequence[_Seen]) -> list[ForecastResult | None]:
        """Learn from what was seen, and forecast all objects together."""
        subjects: dict[int, Subject] = {}
        for index, s in enumerate(seen):
            try:
                s.entry.state = self._learn(s)
                if s.spec.prediction.mode != "Off" and s.combined is not None:
                    subjects[index] = self._subject(s, load_of(s.measured.outcomes, s.now))
            except Exception as error:
                self._failed(s.entry, error)
        try:
            return self._forecasts(subjects, len(seen))
        except Exception:
            logger.exception("forecasts of %d objects: trying each by itself", len(subjects))
        results: list[ForecastResult | None] = [None] * len(seen)
        for index, subject in subjects.items():
            try:
                (results[index],) = self._forecasts({0: subject}, 1)
            except Exception as error:
                # The metrics of now decide alone, then
                self._failed(seen[index].entry, error)
        return results

    def _forecasts(self, subjects: Mapping[int, Subject], count: int) -> list[ForecastResult | None]:
        now, stale_seconds = self._clock(), self.settings.stale_seconds
        found = predict(list(subjects.values()), now, self.settings.forecast, stale_seconds=stale_seconds)
        results: list[ForecastResult | None] = [None] * count
        for index, result in zip(subjects, found, strict=True):
            results[index] = result
        return results

    def _learn(self, s: _Seen) -> State:
        state, now = s.entry.state, s.now
        known = state.initialisation
        known = replace(known, learned_until=min(known.learned_until, now))
        # A node whose clock is ahead must not make all others look as if they were learned already
        learned = known.learn([p for p in s.pods if p.ready_since <= now], self.settings.initialisation)
        fine, coarse = state.fine.not_after(now), state.coarse.not_after(now)
        if s.spec.prediction.mode != "Off" and s.combined is not None:
            load = load_of(s.measured.outcomes, now)
            if load.demand is not None:
                fine, coarse = (ring.add(load.observed_at, load.demand) for ring in (fine, coarse))
        return replace(state, initialisation=learned, fine=fine, coarse=coarse)

    def _subject(self, s: _Seen, load: Load) -> Subject:
        prediction, state = s.spec.prediction, s.entry.state
        horizon = prediction.horizon_seconds
        if horizon is None:
            typical = state.initialisation.typical(self.settings.initialisation)
            horizon = typical + self.settings.controller.sync_seconds / 2
        newest = (state.fine.last + 0.5) * state.fine.step if state.fine.values else 0.0
        return Subject(
            state.fine,
            state.coarse,
            horizon,
            min(newest, load.observed_at) if newest else load.observed_at,
            load.certain,
            models_of(s.spec),
            prediction.season_seconds,
            prediction.season_start,
            prediction.shortage_seconds,
        )

    # Act

    async def _act(self, s: _Seen, result: ForecastResult | None) -> None:
        entry, spec, scale = s.entry, s.spec, s.scale
        if scale is None:
            await self._say_wrong(s)
            return
        bounds, floor = s.bounds, None
        key = (spec.namespace, spec.name)
        if result is None:
            self._told.forget(*key)
        else:
            bounds = with_hold(bounds, result, self.settings.hold, spec.prediction.downscale_stabilization_seconds)
            self._told.look(*key, result)
            floor = result.floor(bounds, replaces=spec.prediction.decision == "Predictive")
        memory = self._confirmed(entry, bounds, scale)
        if s.conflict is not None:
            decision = stopped(memory, current=scale.replicas, why=s.conflict, now=s.now)
        else:
            decision = decide(bounds, memory, current=scale.replicas, metrics=s.combined, floor=floor, now=s.now)
        if decision.error is not None:
            self._event(entry, "Warning", "FailedComputeMetricsReplicas", "Computing", decision.error)
        live = spec.prediction.mode != "Preview"
        done, refused, conditions = False, None, list(decision.conditions)
        if decision.rescale and live:
            if floor is not None and floor.replicas > (decision.metrics_replicas or 0):
                await self._reserve(s, decision.replicas - scale.replicas, floor.source, result)
            if bounds.behavior is not None:
                # Written before it is made: whoever goes on after a crash in between must not allow as much again
                made = carried_out(decision.memory, bounds, before=scale.replicas, after=decision.replicas, now=s.now)
                await self._write(entry, {**entry.status, "scaleEvents": write_events(made)}, s.now)
            if not self._is_asked(entry, spec):
                return
            entry.asked = (scale.replicas, decision.replicas, s.now)
            done, condition = await self._rescale(entry, scale, decision)
            refused = None if done else condition.message
            conditions = [c for c in conditions if c.type != "AbleToScale"] + [condition]
        memory = decision.memory
        if done:
            memory = carried_out(memory, bounds, before=scale.replicas, after=decision.replicas, now=s.now)
            entry.asked = None
        entry.state = replace(entry.state, memory=memory)
        asked = floor.replicas if floor else None
        message = explain(decision, scale.replicas, result, asked, carried_out=live, refused=refused)
        replaces = floor is not None and floor.replaces
        old = entry.status
        status: dict[str, Any] = {
            "observedGeneration": spec.generation,
            "currentReplicas": scale.replicas,
            "desiredReplicas": decision.replicas,
            **selector_status(scale.selector),
            "currentMetrics": metric_statuses(spec.metrics, s.measured.outcomes),
            "historyOf": entry.digest,
            "lastDecision": last_decision(
                old.get("lastDecision"), decision, message, asked, now=s.now, replaces=replaces
            ),
            "conditions": self._conditions(s, conditions, result),
            **self._remembered(entry),
        }
        if (readings := s.measured.readings) is not None:
            status["metricsSource"] = readings.source
            if readings.trouble:
                status["metricsSourceMessage"] = readings.trouble[:1024]
        if done:
            status["lastScaleTime"] = format_timestamp(s.now)
        elif "lastScaleTime" in old:
            status["lastScaleTime"] = old["lastScaleTime"]
        expires = s.now + self.settings.stale_seconds
        if result and (forecast := forecast_status(result, asked, now=s.now, expires_at=expires)):
            status["forecast"] = forecast
        await self._write(entry, status, s.now)

    def _confirmed(self, entry: _Entry, bounds: Bounds, scale: Scale) -> Memory:
        """The memory, with the last write in it where its outcome was not known and it is seen to have come true."""
        memory = entry.state.memory
        if entry.asked is not None:
            before, after, at = entry.asked
            if scale.replicas == after:
                memory = carried_out(memory, bounds, before=before, after=after, now=at)
            entry.asked = None
        return memory

    async def _reserve(self, s: _Seen, added: int, model: str, result: ForecastResult | None) -> None:
        """Hold room for the pods of a rise that the forecast asks for, if the object wants that."""
        if added <= 0 or result is None or not s.spec.prediction.reserve_capacity or s.scale is None:
            return
        if s.pods and all(pod.scheduler == _NOT_OURS for pod in s.pods):
            note = f"Nothing is reserved: pods of {_NOT_OURS} do not use up room that Concerto's scheduler holds"
            self._event(s.entry, "Warning", "FailedReservation", "Reserving", note)
            return
        selector = parse_selector(s.scale.selector)
        horizon = result.horizon_seconds
        reservation = build_reservation(s.spec, selector, count=added, horizon_seconds=horizon, now=s.now)
        wrong = await reserve(self._session, reservation, now=s.now)
        name = reservation["metadata"]["name"]
        if wrong is None:
            note = f"Reserved room for {added} pods that {model} expects ({name})"
            self._event(s.entry, "Normal", "ReservedCapacity", "Reserving", note)
        else:
            self._event(s.entry, "Warning", "FailedReservation", "Reserving", f"{name}: {wrong}")

    async def _rescale(self, entry: _Entry, scale: Scale, decision: Decision) -> tuple[bool, Condition]:
        spec = entry.spec
        assert spec is not None
        # autoscaling/v2 gives none for a rise that was asked for before, and limited then
        reason = decision.reason or "a recent recommendation was higher"
        new_size = f"New size: {decision.replicas}; reason: {reason}"
        try:
            await self._targets.write(spec.namespace, spec.target.name, scale, decision.replicas)
        except KubeError as error:
            self._event(entry, "Warning", "FailedRescale", "Rescaling", f"{new_size}; error: {error}")
            return False, failed("FailedUpdateScale", "update the target scale", str(error))
        self._event(entry, "Normal", "SuccessfulRescale", "Rescaling", new_size)
        self._told.rescaled(scale.replicas, decision.replicas)
        return True, rescaled(decision.replicas)

    async def _say_wrong(self, s: _Seen) -> None:
        assert s.wrong is not None
        old = s.entry.status
        self._told.forget(s.entry.obj["metadata"]["namespace"], s.entry.obj["metadata"]["name"])
        status = {
            **{k: v for k, v in old.items() if k not in ("conditions", "forecast")},
            "observedGeneration": s.entry.obj["metadata"].get("generation", 0),
            "lastDecision": no_decision(old, s.wrong, now=s.now),
            "conditions": self._conditions(s, [s.wrong], None),
        }
        await self._write(s.entry, status, s.now)

    def _conditions(
        self, s: _Seen, decided: Sequence[Condition], result: ForecastResult | None
    ) -> list[dict[str, Any]]:
        return all_conditions(
            decided,
            result,
            off=s.spec.prediction.mode == "Off",
            generation=s.entry.obj["metadata"].get("generation", 0),
            old=s.entry.status.get("conditions") or (),
            now=format_timestamp(s.now),
        )

    def _remembered(self, entry: _Entry) -> dict[str, Any]:
        state = entry.state
        return write_state(state, state.initialisation.typical(self.settings.initialisation))

    async def _write(self, entry: _Entry, status: Mapping[str, Any], now: float) -> None:
        """Write what is new; what only a restarted operator would miss waits for company."""
        patch = merge_patch(entry.status, status)
        if not (set(patch) - _ONLY_REMEMBERED) and 0.0 <= now - entry.written_at < self.settings.quiet_seconds:
            return
        meta = entry.obj["metadata"]
        path = PREDICTIVE_HPAS.path(meta["namespace"], meta["name"], "status")
        try:
            written = await self._session.patch(path, {"metadata": {"uid": meta["uid"]}, "status": patch})
        except NotFound:
            return
        except KubeError as error:
            # Nothing is lost: the next look writes it again
            logger.warning("PredictiveHPA %s/%s: status: %s", meta["namespace"], meta["name"], error)
            return
        entry.status = written.get("status") or {}
        entry.written_at = now

    def _event(self, entry: _Entry, kind: str, reason: str, action: str, note: str) -> None:
        """Say it; a trouble that has other words at each look (a value, an address) does not fill the events."""
        now = self._clock()
        if kind == "Warning":
            said = {n: at for n, at in entry.warned.get(reason, {}).items() if 0.0 <= now - at < _WARNED_SECONDS}
            if note not in said and len(said) >= _WARNED_MOST:
                return
            entry.warned[reason] = {**said, note: said.get(note, now)}
        self._recorder.record(
            entry.obj, type="Normal" if kind == "Normal" else "Warning", reason=reason, action=action, note=note
        )


_ONLY_REMEMBERED = frozenset({"history", "recommendations", "initialization", "forecast"})
"""Members of the status that change at every look and that nobody waits for."""

_PLACEHOLDER = PredictiveHPA.from_raw(
    {
        "metadata": {"namespace": "", "name": "", "uid": ""},
        "spec": {"scaleTargetRef": {"kind": "", "name": ""}, "maxReplicas": 1},
    }
)


_NOT_UNDERSTOOD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading an object that is of no form ends with: it is that object's trouble, and nobody else's."""


def _understood(obj: Object, status: Mapping[str, Any]) -> tuple[PredictiveHPA | None, State]:
    try:
        spec = PredictiveHPA.from_raw(obj)
    except _NOT_UNDERSTOOD:
        return None, State()
    try:
        return spec, read_state(spec, status)
    except _NOT_UNDERSTOOD:
        # A status that somebody has spoilt costs the history, never the scaling
        return spec, State()


def _without_history(state: State) -> State:
    """With other targets, demand in replicas means something else."""
    return replace(
        state,
        fine=replace(state.fine, values=(), count=0),
        coarse=replace(state.coarse, values=(), count=0),
    )


def _without_recommendations(state: State) -> State:
    """What a preview has said it would do is not done once it is none, nor a forecast's answer once it is off.

    The replicas that there are hold for as long as those would have.
    """
    return replace(state, memory=replace(state.memory, recommendations=()))


def _complaint(obj: Object) -> str:
    try:
        PredictiveHPA.from_raw(obj)
    except KeyError as error:
        return f"{error} is missing"
    except _NOT_UNDERSTOOD as error:
        return str(error)
    return "it is understood now"
