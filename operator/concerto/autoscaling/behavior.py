"""From what the metrics ask for to what is asked of the target: stabilisation windows, rates and bounds.

Two rule sets, as in autoscaling/v2: an object with ``behavior`` goes by its windows and policies, one without by the
controller's downscale window and the doubling limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from concerto.autoscaling.settings import Behavior, Bounds, Policy, Release, ScalingRules

SCALE_UP_FACTOR = 2
SCALE_UP_MINIMUM = 4


@dataclass(frozen=True)
class Recommendation:
    """What the metrics asked for, before any limit, at one moment."""

    at: float
    replicas: int


@dataclass(frozen=True)
class ScaleEvent:
    """A change that was carried out: replicas added (positive) or removed (negative)."""

    at: float
    change: int


@dataclass(frozen=True)
class Memory:
    """What earlier decisions left behind; bounded by the longest window that can still ask about it."""

    recommendations: tuple[Recommendation, ...] = ()
    events: tuple[ScaleEvent, ...] = ()

    def until(self, now: float) -> Memory:
        """With nothing that is yet to come: once a clock was set back, what it called later counts as of now.

        Else it would hold replicas, or use up a policy's changes, until the clock is there again.
        """
        if max([now, *(r.at for r in self.recommendations), *(e.at for e in self.events)]) <= now:
            return self
        return Memory(
            tuple(replace(r, at=min(r.at, now)) for r in self.recommendations),
            tuple(replace(e, at=min(e.at, now)) for e in self.events),
        )

    def seeded(self, now: float, current: int) -> Memory:
        """With the present replicas as first recommendation, so that a fresh start scales nothing down at once."""
        return self if self.recommendations else replace(self, recommendations=(Recommendation(now, current),))

    def held(self, now: float, current: int) -> Memory:
        """With the present replicas as only recommendation: where the metrics do not decide, these are to stay."""
        return replace(self, recommendations=(Recommendation(now, current),))

    def resumed(self, now: float, current: int, window_seconds: float) -> Memory:
        """`held` if no recommendation is as recent as the down window: nobody has decided for as long.

        Else an autoscaler that was away would scale down by its first reading. That of autoscaling/v2 remembers nothing
        when it starts, and holds the present replicas, too.
        """
        if any(r.at >= now - window_seconds for r in self.recommendations):
            return self
        return self.held(now, current)

    def recommended(self, now: float, replicas: int, keep_seconds: float) -> Memory:
        """With one more recommendation, and without those older than ``keep_seconds``."""
        kept = tuple(r for r in self.recommendations if r.at >= now - keep_seconds)
        return replace(self, recommendations=(*kept, Recommendation(now, replicas)))

    def at_most(self, replicas: int) -> Memory:
        """With no recommendation above that: what a forecast has released must not come back when it ends."""
        kept = tuple(replace(r, replicas=min(r.replicas, replicas)) for r in self.recommendations)
        return replace(self, recommendations=kept)

    def scaled(self, now: float, change: int, keep_seconds: float) -> Memory:
        """With one more change carried out, and without those older than ``keep_seconds``."""
        return replace(self, events=(*(e for e in self.events if e.at >= now - keep_seconds), ScaleEvent(now, change)))


@dataclass(frozen=True)
class Normalised:
    """Replicas after stabilisation, rates and bounds, and the reasons for conditions AbleToScale and ScalingLimited."""

    replicas: int
    stabilized: int
    able_reason: str
    able_message: str
    limited: bool
    limited_reason: str
    limited_message: str


_LOWER = "recent recommendations were lower than current one, applying the lowest recent recommendation"
_HIGHER = "recent recommendations were higher than current one, applying the highest recent recommendation"
_READY = ("ReadyForNewScale", "recommended size matches current size")
_WITHIN = ("DesiredWithinRange", "the desired count is within the acceptable range")
_TOO_FAST_UP = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
_TOO_FAST_DOWN = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")
_TOO_MANY = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
_TOO_FEW = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")


def normalise(bounds: Bounds, memory: Memory, *, current: int, desired: int, now: float) -> Normalised:
    """Limit ``desired``; Call `Memory.recommended` after it, not before."""
    if bounds.behavior is None:
        return _without_behavior(bounds, memory, current, desired, now)
    return _with_behavior(bounds, bounds.behavior.with_window(bounds.controller), memory, current, desired, now)


def longest_window(bounds: Bounds) -> float:
    """Seconds for which recommendations can still matter."""
    if bounds.behavior is None:
        return bounds.controller.downscale_stabilization_seconds
    both = bounds.behavior.with_window(bounds.controller)
    return max(both.scale_up.stabilization_seconds or 0.0, both.scale_down.stabilization_seconds or 0.0)


def longest_period(bounds: Bounds) -> float:
    """Seconds for which changes carried out can still matter."""
    behavior = bounds.behavior or Behavior()
    policies = (*behavior.scale_up.policies, *behavior.scale_down.policies)
    return float(max((p.period_seconds for p in policies), default=0))


def _without_behavior(bounds: Bounds, memory: Memory, current: int, desired: int, now: float) -> Normalised:
    cutoff = now - bounds.controller.downscale_stabilization_seconds
    stabilized = max([desired, *(r.replicas for r in memory.recommendations if r.at >= cutoff)])
    stabilized = _released(bounds.release, memory, current, desired, stabilized, now)
    able = _READY if stabilized == desired else ("ScaleDownStabilized", _HIGHER)

    rate = max(SCALE_UP_FACTOR * current, SCALE_UP_MINIMUM)
    ceiling, too_high = (rate, _TOO_FAST_UP) if bounds.max_replicas > rate else (bounds.max_replicas, _TOO_MANY)
    if stabilized < bounds.min_replicas:
        return _result(bounds.min_replicas, stabilized, able, _TOO_FEW)
    if stabilized > ceiling:
        return _result(ceiling, stabilized, able, too_high)
    return _result(stabilized, stabilized, able, _WITHIN)


def _with_behavior(
    bounds: Bounds, behavior: Behavior, memory: Memory, current: int, desired: int, now: float
) -> Normalised:
    up_cutoff = now - (behavior.scale_up.stabilization_seconds or 0.0)
    down_cutoff = now - (behavior.scale_down.stabilization_seconds or 0.0)
    lowest = min([desired, *(r.replicas for r in memory.recommendations if r.at > up_cutoff)])
    highest = max([desired, *(r.replicas for r in memory.recommendations if r.at > down_cutoff)])
    if bounds.behavior is not None and bounds.behavior.scale_down.stabilization_seconds is None:
        highest = _released(bounds.release, memory, current, desired, highest, now)
    stabilized = min(max(current, lowest), highest)
    able = _READY
    if stabilized != desired:
        able = ("ScaleUpStabilized", _LOWER) if desired >= current else ("ScaleDownStabilized", _HIGHER)

    if stabilized > current:
        rate = max(current, scale_up_limit(behavior.scale_up, memory.events, current, now))
        ceiling, too_high = (rate, _TOO_FAST_UP) if bounds.max_replicas > rate else (bounds.max_replicas, _TOO_MANY)
        if stabilized > ceiling:
            return _result(ceiling, stabilized, able, too_high)
    elif stabilized < current:
        rate = min(current, scale_down_limit(behavior.scale_down, memory.events, current, now))
        floor, too_low = (rate, _TOO_FAST_DOWN) if bounds.min_replicas < rate else (bounds.min_replicas, _TOO_FEW)
        if stabilized < floor:
            return _result(floor, stabilized, able, too_low)
    return _result(stabilized, stabilized, able, _WITHIN)


def _released(release: Release | None, memory: Memory, current: int, desired: int, highest: int, now: float) -> int:
    """The highest recommendation that counts: older ones hold no more than the release allows, and never raise."""
    if release is None:
        return highest
    cutoff = now - release.window_seconds
    recent = max([desired, *(r.replicas for r in memory.recommendations if r.at >= cutoff)])
    needed = max(recent, release.replicas)
    # Old recommendations must not bring back replicas that were released
    held = max(min(highest, current), min(recent, highest))
    # While a fall goes on so fast that the next one would be worth a rescale, too, one is enough for both
    goes_on = needed - max(desired, release.replicas) >= release.min_drop
    return held if goes_on or held - needed < release.min_drop else needed


def scale_up_limit(rules: ScalingRules, events: Sequence[ScaleEvent], current: int, now: float) -> int:
    """Most replicas that the policies allow, counted from where each policy's period began."""
    return _limit(rules, events, current, now, grow=True)


def scale_down_limit(rules: ScalingRules, events: Sequence[ScaleEvent], current: int, now: float) -> int:
    """Fewest replicas that the policies allow, counted from where each policy's period began."""
    return _limit(rules, events, current, now, grow=False)


def _limit(rules: ScalingRules, events: Sequence[ScaleEvent], current: int, now: float, *, grow: bool) -> int:
    if rules.select_policy == "Disabled":
        return current
    starts = ((p, current - _changed(events, now - p.period_seconds)) for p in rules.policies)
    allowed = [_allowed(policy, start, grow) for policy, start in starts]
    # "Max" allows the largest change, which is the highest count upwards and the lowest downwards.
    return max(allowed) if grow == (rules.select_policy == "Max") else min(allowed)


def _allowed(policy: Policy, start: int, grow: bool) -> int:
    if policy.type == "Pods":
        return start + policy.value if grow else start - policy.value
    if not grow:
        return int(start * (1 - policy.value / 100))
    # Rounded up, or one replica at 10 % would never become two. In autoscaling/v2 zero replicas stay zero
    return max(math.ceil(start * (1 + policy.value / 100)), 1)


def _changed(events: Iterable[ScaleEvent], cutoff: float) -> int:
    return sum(e.change for e in events if e.at > cutoff)


def _result(replicas: int, stabilized: int, able: tuple[str, str], limit: tuple[str, str]) -> Normalised:
    return Normalised(replicas, stabilized, *able, replicas != stabilized, *limit)
