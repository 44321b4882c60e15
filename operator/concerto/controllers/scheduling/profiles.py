"""SchedulingProfiles: which of them are in use, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from concerto.api.conditions import Condition, find_condition, merge_conditions, with_progress
from concerto.api.schedulingprofile import ProfileSettings
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.load_providers import LoadProviders, ProviderState, Wanted
from concerto.controllers.scheduling.outcome_counts import ProfileCounts
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.kube import KubeError, NotFound, Object
from concerto.kube.backoff import Backoff
from concerto.kube.errors import seconds_asked
from concerto.kube.resources import SCHEDULING_PROFILES
from concerto.kube.status_writes import raise_if_changed, write_status
from concerto.scheduling.consistency import Heartbeat, consistency_condition
from concerto.scheduling.coverage import Coverage, coverage
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.changes import Change

logger = logging.getLogger(__name__)

_COUNTS_EVERY_SECONDS = 30.0
_LOOK_EVERY_SECONDS = 5.0
_SOON_SECONDS = 1.0
"""How long what has changed at a provider waits for more of its kind."""


@dataclass(frozen=True)
class _Known:
    """One profile object."""

    name: str
    uid: str
    created: str
    generation: int
    settings: ProfileSettings | None
    wrong: str = ""


@dataclass(frozen=True)
class ProfileState:
    """What is said of a profile besides its being in use.

    Attributes:
        counts: what was done for its pods.
        coverage: of how many nodes its load is known.
        provider: who measures it.
        consistency: whether its settings work against each other.
    """

    counts: ProfileCounts = field(default_factory=ProfileCounts)
    coverage: Coverage = field(default_factory=Coverage)
    provider: ProviderState = field(default_factory=ProviderState)
    consistency: Condition = field(default_factory=lambda: consistency_condition(None))


class ProfileController:
    """Keeps the scheduler's profiles equal to the objects; of two with one schedulerName the older one is in use."""

    def __init__(self, context: Context, parts: SchedulerParts, providers: LoadProviders) -> None:
        """It changes the profiles in use and the providers that are asked, and writes statuses and events."""
        self._session = context.session
        self._recorder = context.recorder
        self._metrics = context.metrics
        self._clock = context.clock
        self._parts = parts
        self._providers = providers
        self._known: dict[str, _Known] = {}
        self._reported: dict[str, ProfileState] = {}
        self._failed: Backoff[str] = Backoff(context.clock)  # profiles whose status could not be written, by name
        self._soon = asyncio.Event()
        providers.on_change = self._soon.set
        # A profile may keep pods off nodes that are not measured
        providers.on_answer = lambda: parts.pending.requeue(Change.LOAD)

    def load(self, objects: Iterable[Object]) -> None:
        """Put every profile in use before anything is decided."""
        for obj in objects:
            self._known[obj["metadata"]["name"]] = _read(obj)
        for scheduler_name in {k.settings.scheduler_name for k in self._known.values() if k.settings}:
            try:
                self._put_in_use(scheduler_name)
            except Exception:  # pods of other profiles are placed; its reconcile reports it again and again
                logger.exception("the SchedulingProfile of schedulerName %s can't be used", scheduler_name)

    async def reconcile(self, key: tuple[str, str], obj: Object | None) -> float | None:
        """Put an edit into use, and say so in the status."""
        name = key[1]
        before = self._known.pop(name, None)
        if obj is None:
            self._metrics.forget_profile(name)
            self._failed.forget(name)
        if obj is not None:
            self._known[name] = _read(obj)
        affected = {k.settings.scheduler_name for k in (before, self._known.get(name)) if k and k.settings}
        for scheduler_name in affected:
            self._put_in_use(scheduler_name)
        # A profile that lost its name to this one, or got it back, has something new to say, too
        for other in list(self._known.values()):
            if other.name != name and other.settings and other.settings.scheduler_name in affected:
                self._reported.pop(other.name, None)
                await self._write_or_back_off(other)
        if (known := self._known.get(name)) is not None:
            await self._write(known)
            self._failed.forget(name)
        return None

    async def run(self) -> None:
        """Bring statuses up to date: soon where conditions differ, now and then where only counters have moved."""
        clock = asyncio.get_running_loop().time
        counted = clock()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_SECONDS):
                    await self._soon.wait()
                    await asyncio.sleep(_SOON_SECONDS)
            self._soon.clear()
            if due := clock() - counted >= _COUNTS_EVERY_SECONDS:
                counted = clock()
            for known in list(self._known.values()):
                try:
                    await self._look_at(known, due=due)
                except Exception:  # the other profiles' statuses must have their turn
                    logger.exception("SchedulingProfile %s", known.name)

    async def _write_or_back_off(self, known: _Known) -> None:
        """Write its status, unless that has failed just now; a later look writes it then."""
        if not self._failed.is_due(known.name):
            return
        try:
            await self._write(known)
            self._failed.forget(known.name)
        except KubeError as error:
            wait = self._failed.failed(known.name, at_least_seconds=seconds_asked(error))
            logger.info("SchedulingProfile %s: %s; again in %.1f s", known.name, error, wait)

    async def _look_at(self, known: _Known, *, due: bool) -> None:
        state, reported = self._state(known), self._reported.get(known.name)
        self._count_nodes(known, state)
        if known.settings and (reported is None or (state != reported if due else is_news(state, reported))):
            await self._write_or_back_off(known)

    def _state(self, known: _Known) -> ProfileState:
        if known.settings is None or self._in_use(known.settings.scheduler_name) != known:
            return ProfileState(consistency=consistency_condition(known.settings))
        name = known.settings.scheduler_name
        profile = self._parts.profiles.get(name)
        known_load = coverage(self._parts.cluster, profile, self._clock()) if profile else Coverage()
        longest = self._parts.cluster.ledger.nodes.longest_heartbeat()
        consistency = consistency_condition(known.settings, None if longest is None else Heartbeat(*longest))
        return ProfileState(self._parts.counts.of(name), known_load, self._providers.state(name), consistency)

    def _count_nodes(self, known: _Known, state: ProfileState) -> None:
        for kind in ("fresh", "stale", "missing"):
            self._metrics.load_nodes.labels(known.name, kind).set(getattr(state.coverage, kind))

    def _in_use(self, scheduler_name: str) -> _Known | None:
        rivals = [k for k in self._known.values() if k.settings and k.settings.scheduler_name == scheduler_name]
        return min(rivals, key=lambda k: (k.created, k.name), default=None)

    def _put_in_use(self, scheduler_name: str) -> None:
        winner = self._in_use(scheduler_name)
        settings = winner.settings if winner else None
        self._providers.use(scheduler_name, Wanted(winner.name, winner.uid, settings) if winner and settings else None)
        self._parts.profiles.use(scheduler_name, Profile.build(settings) if settings else None)
        self._parts.cluster.unstarted.wait_seconds = self._parts.profiles.failed_start_wait_seconds()
        self._parts.pending.on_profile(scheduler_name)

    async def _write(self, known: _Known) -> None:
        path = SCHEDULING_PROFILES.path(name=known.name)
        try:
            obj = await self._session.get(path)
            if obj["metadata"]["uid"] != known.uid or obj["metadata"].get("generation") != known.generation:
                return  # another change is on its way to us
            winner = self._in_use(known.settings.scheduler_name) if known.settings else None
            state = self._state(known)
            self._count_nodes(known, state)
            ready = ready_condition(known.wrong, known.name, winner.name if winner else "")
            status = build_profile_status(obj, ready, state, wall_timestamp())
            written = None
            if status != obj.get("status"):
                written = await write_status(self._session, SCHEDULING_PROFILES, obj, status)
            before = find_condition((obj.get("status") or {}).get("conditions"), "Ready") or {}
            if ready.status == "False" and ready.message != before.get("message"):
                self._recorder.record(obj, type="Warning", reason=ready.reason, action="Reading", note=ready.message)
            self._reported[known.name] = state
            if written is not None:
                raise_if_changed(obj, written, status, written.get("status") or {})
        except NotFound:
            self._reported.pop(known.name, None)


def is_news(state: ProfileState, reported: ProfileState) -> bool:
    """Whether a condition would say something else than it does."""
    numbers = [
        (s.coverage.missing, s.coverage.affected, metrics_condition(s.coverage).reason, s.provider)
        for s in (state, reported)
    ]
    return numbers[0] != numbers[1]


def _read(obj: Object) -> _Known:
    metadata = obj["metadata"]
    settings, wrong = None, ""
    try:
        settings = ProfileSettings.from_raw(obj["spec"])
        Profile.build(settings)
    except Exception as error:
        # The CRD refuses such a spec; one from before an upgrade may still be there
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        settings, wrong = (
            None,
            f"spec can't be used: {why}. Correct it; `kubectl explain sprof.spec` describes the fields.",
        )
    return _Known(
        metadata["name"],
        metadata["uid"],
        metadata["creationTimestamp"],
        metadata.get("generation", 0),
        settings,
        wrong,
    )


def ready_condition(wrong: str, name: str, winner: str) -> Condition:
    """Whether the profile is in use, or who is in its place."""
    if wrong:
        return Condition("Ready", "False", "InvalidSpec", wrong)
    if winner != name:
        return Condition(
            "Ready",
            "False",
            "DuplicateSchedulerName",
            f"SchedulingProfile {winner} is older and has the same spec.schedulerName: change it in one of the two.",
        )
    return Condition("Ready", "True", "InUse", "Pods with its schedulerName are placed by this profile.")


def metrics_condition(coverage: Coverage) -> Condition:
    """Whether there is usable telemetry of every node."""
    missing, nodes = coverage.missing, coverage.nodes
    if not nodes:
        return Condition("MetricsComplete", "Unknown", "NoNodes", "There is no node, or the profile is not in use.")
    if not missing and coverage.lacking:
        words = "; ".join(f"{score} lacks {', '.join(names)}" for score, names in coverage.lacking)
        return Condition(
            "MetricsComplete",
            "False",
            "ScoresLackMetrics",
            f"spec.metricProvider has no query for some of what scores read ({words}). A missing deviation counts as "
            "0, a missing resource is left out, and a score without any goes by requests: add the queries, or remove "
            "these scores from spec.scores.",
        )
    if not missing:
        return Condition("MetricsComplete", "True", "Measured", f"Telemetry of all {nodes} nodes is usable.")
    look = {
        "Agents": "`kubectl get ncap` shows which agents do not report.",
        "KubernetesMetricsServer": "`kubectl top nodes` shows what metrics-server has.",
    }.get(coverage.provider, "Condition ProviderReady shows the state of its provider.")
    return Condition(
        "MetricsComplete",
        "False",
        "SomeMissing" if missing < nodes else "AllMissing",
        f"Telemetry of {missing} of {nodes} nodes is missing, unusable or older than spec.staleAfter. "
        f"{_affected(coverage)} {look}",
    )


def _affected(coverage: Coverage) -> str:
    """Which scores lack metrics, of how many nodes, and by which rule these nodes are used."""
    if not coverage.affected:
        return "spec.metricsPolicy decides how these nodes are used."
    return "; ".join(f"{score} lacks that of {count} ({rule})" for score, rule, count in coverage.affected) + "."


def build_profile_status(obj: Object, ready: Condition, state: ProfileState, now: str) -> Object:
    """The status of a profile.

    Args:
        obj: the object as it is, for its generation and conditions.
        ready: see `ready_condition`.
        state: what the scheduler did for its schedulerName since it started, and by whose measurements.
        now: RFC 3339 time of this look.
    """
    generation = obj["metadata"].get("generation", 0)
    counts, coverage, provider = state.counts, state.coverage, state.provider
    _, *progress = with_progress(ready)
    conditions = [ready, state.consistency, metrics_condition(coverage), provider.condition, *progress]
    return {
        "observedGeneration": generation,
        "decisions": counts.decisions,
        "unschedulable": counts.unschedulable,
        "fallbacks": counts.fallbacks,
        "abstentions": [{"plugin": p, "count": c} for p, c in sorted(counts.abstentions.items())],
        "metrics": {
            "provider": coverage.provider,
            "fresh": coverage.fresh,
            "stale": coverage.stale,
            "missing": coverage.missing,
            "missingNodes": list(coverage.missing_nodes),
            "unmatched": list(provider.unmatched),
            "unmatchedCount": provider.unmatched_count,
            "rejected": [{"reason": r, "count": c} for r, c in sorted(provider.rejected.items())],
        },
        "conditions": merge_conditions(
            (obj.get("status") or {}).get("conditions") or (), conditions, now=now, observed_generation=generation
        ),
    }
