"""Asks the metric providers of profiles, each on a task of its own, and hands what they say to the cluster.

Nothing that schedules waits for any of this: a cycle reads what the last answer said, with its age.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.schedulingprofile import ProfileSettings
from concerto.capacity.windows import WINDOW_SECONDS
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.scheduling.load_providers.load_watcher import LoadWatcherSource
from concerto.controllers.scheduling.load_providers.metrics_server import MetricsServerSource
from concerto.controllers.scheduling.load_providers.prometheus import PrometheusSource
from concerto.controllers.scheduling.load_providers.source import Source, SourceError
from concerto.controllers.scheduling.load_providers.state import (
    AGENTS,
    NOT_ASKED,
    ProviderState,
    answered_state,
    failed_state,
)
from concerto.kube import Session
from concerto.kube.events import EventRecorder, EventType
from concerto.kube.references import build_event_subject
from concerto.kube.resources import SCHEDULING_PROFILES
from concerto.scheduling.state.cluster import ClusterState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """A profile in use that has a provider.

    Attributes:
        profile: its name.
        uid: its UID.
        settings: its spec.
    """

    profile: str
    uid: str
    settings: ProfileSettings


class LoadProviders:
    """The providers of all profiles in use.

    Attributes:
        on_change: called when what is to be said of a provider has changed.
        on_answer: called when a provider has answered.
    """

    def __init__(
        self,
        session: Session,
        namespace: str,
        cluster: ClusterState,
        recorder: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """Nobody is asked before `run`.

        Args:
            session: the way to the API server.
            namespace: the operator's own, where Secrets are.
            cluster: where the answers go.
            recorder: where events go.
            metrics: where outcomes are counted.
            clock: seconds since the epoch, never jumping.
        """
        self.on_change: Callable[[], None] = lambda: None
        self.on_answer: Callable[[], None] = lambda: None
        self._session = session
        self._namespace = namespace
        self._cluster = cluster
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._wanted: dict[str, Wanted] = {}
        self._states: dict[str, ProviderState] = {}
        self._changed = asyncio.Event()

    def use(self, scheduler_name: str, wanted: Wanted | None) -> None:
        """Have that profile's provider asked from now on for pods of that scheduler name; None: nobody."""
        if wanted is not None and wanted.settings.metric_provider.type == "Agents":
            wanted = None
        before = self._wanted.get(scheduler_name)
        if wanted == before:
            return
        if before is None or wanted is None or _question(before) != _question(wanted):
            self._cluster.load.forget_provider(scheduler_name)
            self._states.pop(scheduler_name, None)
            if before is not None:
                self._metrics.forget_profile(before.profile)
        if wanted is None:
            del self._wanted[scheduler_name]
        else:
            self._wanted[scheduler_name] = wanted
        self._changed.set()

    def state(self, scheduler_name: str) -> ProviderState:
        """What came of the last time that the provider for a scheduler name was asked."""
        if scheduler_name not in self._wanted:
            return ProviderState(AGENTS)
        return self._states.get(scheduler_name, ProviderState(NOT_ASKED))

    async def run(self) -> None:
        """Ask until cancelled."""
        asking: dict[str, tuple[Wanted, asyncio.Task[None]]] = {}
        try:
            while True:
                self._changed.clear()
                for name, (wanted, task) in [*asking.items()]:
                    if self._wanted.get(name) != wanted:
                        task.cancel()
                        del asking[name]
                for name, wanted in self._wanted.items():
                    if name not in asking:
                        asking[name] = wanted, asyncio.create_task(self._ask_for_ever(name, wanted))
                await self._changed.wait()
        finally:
            for _, task in asking.values():
                task.cancel()

    async def _ask_for_ever(self, scheduler_name: str, wanted: Wanted) -> None:
        interval = wanted.settings.metric_provider.interval_seconds
        source = build_source(self._session, self._namespace, wanted.settings, self._clock)
        try:
            while True:
                asked = self._clock()
                state = await self.ask(scheduler_name, wanted, source)
                if self._wanted.get(scheduler_name) == wanted:
                    self._report(scheduler_name, wanted, state)
                await asyncio.sleep(max(0.0, interval - (self._clock() - asked)))
        finally:
            await source.close()

    async def ask(self, scheduler_name: str, wanted: Wanted, source: Source) -> ProviderState:
        """Ask once, and let the cluster know, unless something else is to be asked by then."""
        asked = self._clock()
        before = self.state(scheduler_name)
        try:
            with self._metrics.provider_seconds.labels(wanted.profile).time():
                answer = await source.fetch()
            if self._wanted.get(scheduler_name) != wanted:
                return before  # the edit has made void what was said, and this is what was asked before it
            joined = self._cluster.provide(scheduler_name, answer.series, asked)
            self.on_answer()
        except SourceError as error:
            return failed_state(error, before)
        except Exception as error:  # of ours; it must not end the asking
            logger.exception("metric provider of SchedulingProfile %s", wanted.profile)
            return failed_state(SourceError("InternalError", repr(error)), before)
        for reason, count in joined.rejected.items():
            self._metrics.provider_rejected.labels(wanted.profile, reason).inc(count)
        self._metrics.provider_unmatched.labels(wanted.profile).set(joined.unmatched_count)
        return answered_state(answer, joined)

    def _report(self, scheduler_name: str, wanted: Wanted, state: ProviderState) -> None:
        before, now = self.state(scheduler_name), state.condition
        self._metrics.provider_polls.labels(wanted.profile, now.reason).inc()
        self._states[scheduler_name] = state
        if state == before:
            return
        was_ready = before.condition.status != "False"
        if now.status == "False" and (was_ready or before.condition.reason != now.reason):
            self._record(wanted, "Warning", "MetricProviderFailed", f"{now.reason}: {now.message}")
        elif now.status == "True" and not was_ready:
            self._record(wanted, "Normal", "MetricProviderRecovered", now.message)
        self.on_change()

    def _record(self, wanted: Wanted, kind: EventType, reason: str, note: str) -> None:
        self._recorder.record(
            build_event_subject(SCHEDULING_PROFILES, wanted.profile, uid=wanted.uid),
            type=kind,
            reason=reason,
            action="Measuring",
            note=note,
        )


def build_source(session: Session, namespace: str, settings: ProfileSettings, clock: Callable[[], float]) -> Source:
    """Whom a profile's provider is.

    Args:
        session: the way to the API server.
        namespace: where the provider's Secret is.
        settings: the profile's spec; its provider is not of type Agents.
        clock: seconds, never jumping.
    """
    provider = settings.metric_provider
    if provider.watcher_address:
        return LoadWatcherSource(provider.watcher_address, provider.timeout_seconds)
    if provider.prometheus is None:
        window_seconds = WINDOW_SECONDS[settings.load.window]
        return MetricsServerSource(session, provider.timeout_seconds, window_seconds, clock)
    return PrometheusSource(
        session,
        namespace,
        provider.prometheus,
        timeout_seconds=provider.timeout_seconds,
        window=settings.load.window,
    )


def _question(wanted: Wanted) -> object:
    """What an answer depends on."""
    return wanted.profile, wanted.settings.metric_provider, wanted.settings.load.window
