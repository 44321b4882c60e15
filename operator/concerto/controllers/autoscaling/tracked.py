"""The PredictiveHPAs that the controller follows: what each asks for, remembers, and was last seen to be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from concerto.api.conditions import Condition, find_condition
from concerto.api.predictivehpa import Pause, PredictiveHPA
from concerto.api.resource_version import not_newer
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import Combined
from concerto.autoscaling.initialisation import InitialisationSettings
from concerto.controllers.autoscaling.schedule_windows import ScheduleWindows
from concerto.controllers.autoscaling.state import State, read_state, write_state
from concerto.controllers.autoscaling.status import is_of_other_target, target_digest
from concerto.kube import Object
from concerto.kube.events import EventRecorder

Key = tuple[str, str]
"""Namespace and name."""

EarlierLoad = dict[int, list[list[tuple[float, float]]]]
"""Load from before an object, by the step of the ring that it fills: series of times in seconds and replicas."""

SCALED_TO_ZERO = "ScaledToZero"
"""Type of the condition that says whether the autoscaler scaled the target to zero, as in autoscaling/v2."""

HISTORY_LOADED = "HistoryLoaded"
"""Type of the condition that says whether the load from before the object was loaded."""

INVALID = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a malformed object raises: only that object must suffer from it."""

_WARNING_SECONDS, _MAX_WARNINGS = 300.0, 4
"""An object's warnings of one reason have at most this many different notes within this time."""

NO_SPEC = PredictiveHPA.from_raw(
    {
        "metadata": {"namespace": "", "name": "", "uid": ""},
        "spec": {"scaleTargetRef": {"kind": "", "name": ""}, "maxReplicas": 1},
    }
)
"""Stands in for the spec of an object whose spec is invalid."""


@dataclass
class TrackedObject:
    """One PredictiveHPA as the controller knows it now.

    Attributes:
        obj: the object as the API server holds it.
        spec: what it asks for; None while its spec is invalid.
        state: what it remembers between syncs.
        due: time of its next sync, seconds.
        busy: whether a sync is in progress.
        unconfirmed: a scale write whose outcome is unknown: replicas before, replicas after, time.
        status: the status as last written or seen.
        version: the object's resourceVersion as last written or seen.
        written_at: when the status was last written, seconds.
        digest: of what its history is relative to; empty until its spec could be read, and so its status.
        failing_since: since when none of its metrics has an answer, seconds; None while one has.
        warnings: by reason, the recent notes and when each was first recorded.
        earlier: load from before the object, which was fetched and is not in its state yet.
        history_condition: condition HistoryLoaded; None: no attempt has ended, or the object wants none.
        load_history_after: no other attempt before this time, seconds.
        scaled_to_zero: whether the target is at zero replicas because of this object, and not of a person.
        windows: which of its schedules are open.
        decided: whether this process has decided on it.
    """

    obj: Object
    spec: PredictiveHPA | None
    state: State
    due: float
    busy: bool = False
    unconfirmed: tuple[int, int, float] | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    written_at: float = 0.0
    digest: str = ""
    warnings: dict[str, dict[str, float]] = field(default_factory=dict)
    failing_since: float | None = None
    earlier: EarlierLoad | None = None
    history_condition: Condition | None = None
    load_history_after: float = 0.0
    scaled_to_zero: bool = False
    windows: ScheduleWindows = field(default_factory=ScheduleWindows)
    decided: bool = False

    @property
    def pause(self) -> Pause | None:
        """What the object's annotations ask for; None where scaling is not paused."""
        return Pause.from_metadata(self.obj["metadata"])

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.obj["metadata"]["namespace"], self.obj["metadata"]["name"]

    @classmethod
    def from_object(cls, obj: Object, due: float) -> TrackedObject:
        """An object that was not followed before; it goes on from its status where that still applies."""
        status = obj.get("status") or {}
        spec, state = _parsed(obj, status)
        digest = target_digest(spec) if spec else ""
        same = status.get("historyOf", digest) == digest
        if not same:
            state = _without_history(state)
        seen = status.get("observedGeneration") == obj["metadata"].get("generation")
        if not seen:
            state = _without_recommendations(state)
        failing_since = _failing_since(status)
        # What has changed while no operator was there is not known: it may be the query
        loaded = _history_loaded(status) if same and seen and state.has_long_history else None
        return cls(
            obj,
            spec,
            state,
            due,
            status=status,
            version=obj["metadata"].get("resourceVersion", ""),
            digest=digest,
            failing_since=failing_since,
            history_condition=loaded,
            scaled_to_zero=_scaled_to_zero(status, spec),
        )

    def update(self, obj: Object) -> bool:
        """Take over a newer version of the object; returns whether its spec or its pause has changed."""
        paused = self.pause
        changed = bool(self.obj["metadata"].get("generation") != obj["metadata"].get("generation"))
        status = obj.get("status") or {}
        self.obj = obj
        version = obj["metadata"].get("resourceVersion", "")
        if not not_newer(version, self.version):  # an event may come after what a later write has returned
            self.version = version
        if not self.busy:
            self.status = status  # members that somebody else has removed are written again
        if changed:
            self._take_spec(obj, status)
        return changed or self.pause != paused

    def _take_spec(self, obj: Object, status: Mapping[str, Any]) -> None:
        known = write_state(self.state, InitialisationSettings()) if self.digest else {}
        spec, state = _parsed(obj, {**status, **known})
        digest = target_digest(spec) if spec else self.digest
        before = self.digest or status.get("historyOf", digest)
        self.load_history_after = 0.0
        if spec is None:  # what is remembered is there for the next one
            self.spec = None
            return
        if is_of_other_target(status.get("historyOf", ""), spec):
            self.scaled_to_zero, self.unconfirmed = False, None
        if digest != before:
            state = _without_history(state)
        if digest != before or state.grids != self.state.grids:
            # On another grid the history begins anew, and a longer one lacks what was too old for the one before
            self.earlier, self.history_condition = None, None
        elif self.spec is None or self.spec.prediction.initial_history != spec.prediction.initial_history:
            self.earlier, self.history_condition = None, None
        if self.spec is None or self.spec.prediction.mode != spec.prediction.mode:
            state = _without_recommendations(state)
        elif self.spec.target != spec.target:
            state = replace(state, memory=Memory())
        self.spec, self.state, self.digest = spec, state, digest

    def note_answer(self, combined: Combined | None, now: float) -> None:
        """Note whether a metric has an answer, also while nothing is decided by it; None: they were not asked."""
        if combined is None or combined.some_known:
            self.failing_since = None
        elif self.failing_since is None or self.failing_since > now:
            self.failing_since = now

    def complaint(self) -> str:
        """Why its spec is invalid."""
        try:
            PredictiveHPA.from_raw(self.obj)
        except KeyError as error:
            return f"{error} is missing"
        except INVALID as error:
            return str(error)
        return "the spec has become valid"


class ObjectEvents:
    """Records events of PredictiveHPAs; a warning whose note differs at each sync does not flood the events."""

    def __init__(self, recorder: EventRecorder, clock: Callable[[], float]) -> None:
        self._recorder = recorder
        self._clock = clock

    def normal(self, tracked: TrackedObject, reason: str, action: str, note: str) -> None:
        """Record a Normal event."""
        self._recorder.record(tracked.obj, type="Normal", reason=reason, action=action, note=note)

    def warning(self, tracked: TrackedObject, reason: str, action: str, note: str) -> None:
        """Record a Warning, unless too many different ones of this reason were recorded in the last minutes."""
        now, known = self._clock(), tracked.warnings.get(reason, {})
        recent = {n: at for n, at in known.items() if 0.0 <= now - at < _WARNING_SECONDS}
        if note not in recent and len(recent) >= _MAX_WARNINGS:
            return
        tracked.warnings[reason] = {**recent, note: recent.get(note, now)}
        self._recorder.record(tracked.obj, type="Warning", reason=reason, action=action, note=note)


def _parsed(obj: Object, status: Mapping[str, Any]) -> tuple[PredictiveHPA | None, State]:
    try:
        spec = PredictiveHPA.from_raw(obj)
    except INVALID:
        return None, State()
    try:
        return spec, read_state(spec, status)
    except INVALID:
        # A malformed status costs the history, but never the scaling
        return spec, State()


def _failing_since(status: Mapping[str, Any]) -> float | None:
    """Since when no metric has had an answer, as the last operator wrote it.

    Condition ScalingActive does not say so: it may have become False because scaling was paused.
    """
    with contextlib.suppress(*INVALID):
        return parse_timestamp(status["metricsFailingSince"])
    return None


def _scaled_to_zero(status: Mapping[str, Any], spec: PredictiveHPA | None) -> bool:
    """Whether the last operator scaled the target to zero, or was about to when it wrote that status.

    Replicas in the status do not say so: a preview desires zero, too, and a write that was refused did.
    """
    with contextlib.suppress(*INVALID):
        if spec is not None and is_of_other_target(status.get("historyOf", ""), spec):
            return False
        return (find_condition(status.get("conditions"), SCALED_TO_ZERO) or {}).get("status") == "True"
    return False


def _history_loaded(status: Mapping[str, Any]) -> Condition | None:
    """The condition HistoryLoaded, if it is True: what failed is tried again."""
    with contextlib.suppress(*INVALID):
        found = find_condition(status.get("conditions"), HISTORY_LOADED)
        if found is not None and found["status"] == "True":
            return Condition(HISTORY_LOADED, "True", found["reason"], found["message"])
    return None


def _without_history(state: State) -> State:
    """Without demand history: with another target or metric, demand in replicas means something else."""
    return state.with_rings(lambda ring: replace(ring, values=(), count=0, loaded_before=0))


def _without_recommendations(state: State) -> State:
    """Without recommendations: those of a preview, or of a forecast that is now off, must not be carried out.

    The present replicas then hold for as long as the recommendations would have.
    """
    return replace(state, memory=replace(state.memory, recommendations=()))
