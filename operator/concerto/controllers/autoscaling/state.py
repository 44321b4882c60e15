"""What a PredictiveHPA remembers between syncs, to and from its status: a restarted operator goes on from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from concerto.api.prediction import PredictionSpec
from concerto.api.predictivehpa import PredictiveHPA
from concerto.api.timestamps import format_micro_timestamp, parse_timestamp
from concerto.autoscaling.behavior import Memory, Recommendation, ScaleEvent
from concerto.autoscaling.earlier_days import highest_of_earlier_days
from concerto.autoscaling.history import Ring, coarse_ring, weekly_ring
from concerto.autoscaling.initialisation import Initialisation, InitialisationSettings
from concerto.autoscaling.replicas import MAX_REPLICAS

FINE_SECONDS = 15
FINE_LENGTH = 240
_MAX_COUNTED = 1000
"""Samples of a bucket: one a second, and a quarter of an hour of them."""
MAX_REMEMBERED = 512
"""As the CRD bounds recommendations and scale events."""


@dataclass(frozen=True)
class State:
    """All that is remembered of one object."""

    memory: Memory = field(default_factory=Memory)
    initialisation: Initialisation = field(default_factory=Initialisation)
    fine: Ring = field(default_factory=lambda: Ring(FINE_SECONDS, FINE_LENGTH))
    coarse: Ring = field(default_factory=lambda: coarse_ring(PredictionSpec.history_seconds))
    weekly: Ring | None = field(default_factory=lambda: weekly_ring(PredictionSpec.history_seconds))

    @property
    def rings(self) -> tuple[Ring, ...]:
        """All of its rings."""
        return (self.fine, self.coarse) if self.weekly is None else (self.fine, self.coarse, self.weekly)

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Step and length of each ring."""
        return tuple((ring.step, ring.length) for ring in self.rings)

    @property
    def has_long_history(self) -> bool:
        """Whether there is a sample in each ring that is for seasons."""
        return all(ring.values for ring in self.rings if ring.step != FINE_SECONDS)

    def with_rings(self, change: Callable[[Ring], Ring]) -> State:
        """With each ring changed."""
        weekly = None if self.weekly is None else change(self.weekly)
        return replace(self, fine=change(self.fine), coarse=change(self.coarse), weekly=weekly)


def fallback_replicas(spec: PredictiveHPA, state: State, ahead_seconds: float, now: float) -> int:
    """Replicas that ``spec.fallback`` requires: its number, or with ``earlierDays`` what those days needed if more.

    Args:
        spec: of the object; 0 without a fallback.
        state: its history.
        ahead_seconds: how much of each earlier day counts from this time of day on.
        now: seconds.
    """
    if spec.fallback is None:
        return 0
    found = None
    if spec.fallback.earlier_days:
        found = highest_of_earlier_days(state.coarse, now, ahead_seconds, spec.prediction.season_time_zone)
    return max(spec.fallback.replicas, min(math.ceil((found or 0.0) - 1e-9), MAX_REPLICAS))


def read_state(spec: PredictiveHPA, status: Mapping[str, Any]) -> State:
    """The state in a status; what is not there, or on another grid than the spec asks for, begins anew.

    Raises:
        ValueError: a time is not valid.
    """
    learned = status.get("initialization") or {}
    rings = {item["stepSeconds"]: item for item in status.get("history") or ()}
    weekly = weekly_ring(spec.prediction.history_seconds) if spec.prediction.season_seconds is None else None
    return State(
        Memory(
            tuple(Recommendation(_time(r["at"]), r["replicas"]) for r in status.get("recommendations") or ()),
            tuple(ScaleEvent(_time(e["at"]), e["change"]) for e in status.get("scaleEvents") or ()),
        ),
        Initialisation(
            tuple(float(s) for s in learned.get("recent") or ()),
            learned.get("revision", ""),
            tuple(float(s) for s in learned.get("before") or ()),
            _time(learned["learnedUntil"]) if "learnedUntil" in learned else 0.0,
            tuple(float(s) for s in learned.get("waits") or ()),
        ),
        _filled(Ring(FINE_SECONDS, FINE_LENGTH), rings),
        _filled(coarse_ring(spec.prediction.history_seconds), rings),
        None if weekly is None else _filled(weekly, rings),
    )


def write_state(state: State, settings: InitialisationSettings) -> dict[str, Any]:
    """The members of a status that `read_state` reads, and what is typical of its times by the settings."""
    learned = state.initialisation
    initialisation: dict[str, Any] = {
        "seconds": round(learned.typical(settings), 1),
        "waitSeconds": round(learned.typical_wait(settings), 1),
        "pods": len(learned.seconds),
        "revision": learned.revision,
        "recent": [round(s) for s in learned.seconds],
        "before": [round(s) for s in learned.before],
        "waits": [round(s) for s in learned.waits],
    }
    if learned.learned_until:
        initialisation["learnedUntil"] = format_micro_timestamp(learned.learned_until)
    return {
        "recommendations": [
            {"at": format_micro_timestamp(r.at), "replicas": r.replicas}
            for r in state.memory.recommendations[-MAX_REMEMBERED:]
        ],
        "scaleEvents": write_events(state.memory),
        "initialization": initialisation,
        "history": [_written(ring) for ring in state.rings if ring.values],
    }


def write_events(memory: Memory) -> list[dict[str, Any]]:
    """``status.scaleEvents``."""
    return [{"at": format_micro_timestamp(e.at), "change": e.change} for e in memory.events[-MAX_REMEMBERED:]]


def _time(text: str) -> float:
    """Not before 1970: a time that somebody set to the year 1 could not be written again."""
    return max(parse_timestamp(text), 1.0)


def _filled(ring: Ring, written: Mapping[int, Mapping[str, Any]]) -> Ring:
    found = written.get(ring.step)
    if found is None:
        return ring
    # Somebody may have edited the status: sums and means must stay numbers that a status can hold
    values = tuple(min(v, 1000 * MAX_REPLICAS) for v in found["values"][-ring.length :])
    count = min(max(found.get("count", 1), 1), _MAX_COUNTED)
    return Ring(ring.step, ring.length, found["last"], values, count, found.get("loadedBefore", 0))


def _written(ring: Ring) -> dict[str, Any]:
    written = {"stepSeconds": ring.step, "last": ring.last, "count": ring.count, "values": list(ring.values)}
    return {**written, "loadedBefore": ring.loaded_before} if ring.loaded else written
