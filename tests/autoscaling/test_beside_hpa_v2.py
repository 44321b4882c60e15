"""Random sequences of decisions beside those of autoscaling/v2, as horizontal.go of Kubernetes 1.37 makes them.

`e2e/suites/test_phpa_differential.py` asks the real controller, in four steps without a clock of ours. Here hours pass:
windows and periods end, people scale by hand, bounds are changed, and metrics fail.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import Failure, carried_out, combine, decide, needs_metrics
from concerto.autoscaling.replicas import Proposal
from concerto.autoscaling.settings import Behavior, Bounds, ControllerSettings, Policy, ScalingRules

MESSAGES = {
    "ScaleUpStabilized": (
        "recent recommendations were lower than current one, applying the lowest recent recommendation"
    ),
    "ScaleDownStabilized": (
        "recent recommendations were higher than current one, applying the highest recent recommendation"
    ),
    "ReadyForNewScale": "recommended size matches current size",
    "DesiredWithinRange": "the desired count is within the acceptable range",
    "ScaleUpLimit": "the desired replica count is increasing faster than the maximum scale rate",
    "ScaleDownLimit": "the desired replica count is decreasing faster than the maximum scale rate",
    "TooManyReplicas": "the desired replica count is more than the maximum replica count",
    "TooFewReplicas": "the desired replica count is less than the minimum replica count",
}


@dataclass
class HpaV2:
    """What horizontal.go remembers of one object, and its decisions.

    Attributes:
        recommendations: replicas and time; None before the first.
        changes: replicas and time.
        scaled_to_zero: condition ScaledToZero.
        able: reason of AbleToScale, as of the last step; None where metrics did not decide.
        limited: status and reason of ScalingLimited; the same.
    """

    recommendations: list[tuple[int, float]] | None = None
    changes: list[tuple[int, float]] = field(default_factory=list)
    scaled_to_zero: bool = False
    able: str | None = None
    limited: tuple[bool, str] | None = None

    def step(self, bounds: Bounds, current: int, proposals: list[int | None], now: float) -> int:
        """reconcileAutoscaler: the replicas that the target gets; None proposed: the metric fails."""
        if self.recommendations is None:
            self.recommendations = [(current, now)]
        self.able = self.limited = None
        wanted = self._wanted(bounds, current, proposals, now)
        if wanted != current:
            self.scaled_to_zero = current > 0 and wanted == bounds.min_replicas == 0
            if bounds.behavior is not None:
                self.changes.append((wanted - current, now))
        return wanted

    def _wanted(self, bounds: Bounds, current: int, proposals: list[int | None], now: float) -> int:
        if current == 0 and not self.scaled_to_zero:
            return 0
        if current > bounds.max_replicas:
            return bounds.max_replicas
        if 0 < current < bounds.min_replicas:
            return bounds.min_replicas
        asked = max((p for p in proposals if p is not None), default=-1)
        if asked < 0 or (None in proposals and asked < current):
            return current
        found = self._limited(bounds, current, asked, now)
        return max(found, bounds.min_replicas) if current == 0 else found

    def _limited(self, bounds: Bounds, current: int, asked: int, now: float) -> int:
        """normalizeDesiredReplicas, or normalizeDesiredReplicasWithBehaviors."""
        past, window = self.recommendations or [], bounds.controller.downscale_stabilization_seconds
        self.recommendations = [*past, (asked, now)]
        if bounds.behavior is None:
            held = max([asked, *(r for r, at in past if at >= now - window)])
            self.able = "ScaleDownStabilized" if held != asked else "ReadyForNewScale"
            found, reason = self._by_doubling(bounds, current, held)
        else:
            held = self._stabilised(bounds.behavior, current, asked, past, now, window)
            found, reason = self._by_rules(bounds, bounds.behavior, current, held, now)
        self.limited = (found != held, reason)
        return found

    @staticmethod
    def _by_doubling(bounds: Bounds, current: int, held: int) -> tuple[int, str]:
        """convertDesiredReplicasWithRules."""
        most, reason = bounds.max_replicas, "TooManyReplicas"
        if most > max(2 * current, 4):
            most, reason = max(2 * current, 4), "ScaleUpLimit"
        if held < bounds.min_replicas:
            return bounds.min_replicas, "TooFewReplicas"
        return (most, reason) if held > most else (held, "DesiredWithinRange")

    def _stabilised(
        self, behavior: Behavior, current: int, asked: int, past: list[tuple[int, float]], now: float, window: float
    ) -> int:
        """stabilizeRecommendationWithBehaviors."""
        up, down = behavior.scale_up, behavior.scale_down
        down_window = window if down.stabilization_seconds is None else down.stabilization_seconds
        lowest = min([asked, *(r for r, at in past if at > now - (up.stabilization_seconds or 0.0))])
        highest = max([asked, *(r for r, at in past if at > now - down_window)])
        held = min(max(current, lowest), highest)
        self.able = "ScaleUpStabilized" if asked >= current else "ScaleDownStabilized"
        if held == asked:
            self.able = "ReadyForNewScale"
        return held

    def _by_rules(self, bounds: Bounds, behavior: Behavior, current: int, held: int, now: float) -> tuple[int, str]:
        """convertDesiredReplicasWithBehaviorRate."""
        if held > current:
            most, reason = bounds.max_replicas, "TooManyReplicas"
            limit = max(current, self._limit(behavior.scale_up, current, now, 1))
            if most > limit:
                most, reason = limit, "ScaleUpLimit"
            if held > most:
                return most, reason
        elif held < current:
            least, reason = bounds.min_replicas, "TooFewReplicas"
            limit = min(current, self._limit(behavior.scale_down, current, now, -1))
            if least < limit:
                least, reason = limit, "ScaleDownLimit"
            if held < least:
                return least, reason
        return held, "DesiredWithinRange"

    def _limit(self, rules: ScalingRules, current: int, now: float, sign: int) -> int:
        """calculateScaleUpLimitWithScalingRules (sign 1) or calculateScaleDownLimitWithBehaviors (-1)."""
        if rules.select_policy == "Disabled":
            return current
        allowed = []
        for policy in rules.policies:
            start = current - sum(c for c, at in self.changes if at > now - policy.period_seconds)
            share = start * (1 + sign * policy.value / 100)
            part = math.ceil(share) if sign > 0 else int(share)
            allowed.append(part if policy.type == "Percent" else start + sign * policy.value)
        return (max if (sign > 0) == (rules.select_policy == "Max") else min)(allowed)


def rules(rng: random.Random, *windows: float | None) -> ScalingRules:
    policies = tuple(
        Policy(rng.choice(["Pods", "Percent"]), rng.choice([1, 2, 4, 10, 50, 90, 100]), rng.choice([15, 30, 60, 300]))
        for _ in range(rng.choice([1, 1, 2]))
    )
    return ScalingRules(policies, rng.choice(["Max", "Max", "Min", "Disabled"]), rng.choice(windows))


@pytest.mark.parametrize("seed", range(150))
def test_decisions_and_conditions_are_those_of_autoscaling_v2(seed):
    rng = random.Random(seed)
    low, window = rng.choice([0, 1, 1, 2, 3]), rng.choice([0.0, 60.0, 300.0])
    high, now, current = rng.randint(max(low, 1), 14), 1000.0, rng.randint(0, 16)
    both = Behavior(rules(rng, 0.0, 0.0, 15.0, 60.0, 300.0), rules(rng, 0.0, 0.0, 15.0, 60.0, 300.0, None))
    behavior = None if rng.random() < 0.3 else both
    theirs, memory = HpaV2(), Memory()
    for step in range(60):
        now += 15.0
        if rng.random() < 0.04:
            current, theirs.scaled_to_zero = rng.randint(0, 16), False
        high = rng.randint(max(low, 1), 14) if rng.random() < 0.03 else high
        low = rng.randint(0, high) if rng.random() < 0.02 else low
        count = rng.choice([1, 1, 2])
        proposals = [None if rng.random() < 0.08 else rng.choice([0, rng.randint(0, 20)]) for _ in range(count)]
        bounds = Bounds(
            high,
            low,
            behavior,
            ControllerSettings(downscale_stabilization_seconds=window),
            starts_from_zero=theirs.scaled_to_zero,
        )
        if current == 0 and (low == 0 or theirs.scaled_to_zero):
            return  # from zero replicas we differ on purpose (docs/autoscaling.md)
        want = theirs.step(bounds, current, proposals, now)
        outcomes = [Failure("FailedGetExternalMetric", "x") if p is None else Proposal(p, "m") for p in proposals]
        asked = combine(outcomes, current) if needs_metrics(bounds, current) else None
        got = decide(bounds, memory, current=current, metrics=asked, floor=None, now=now)
        assert got.replicas == want, (step, current, proposals, bounds)
        said = {c.type: (c.status, c.reason, c.message) for c in got.conditions}
        if theirs.able is not None and theirs.limited is not None:
            is_limited, reason = theirs.limited
            assert said["AbleToScale"] == ("True", theirs.able, MESSAGES[theirs.able])
            assert said["ScalingLimited"] == (str(is_limited), reason, MESSAGES[reason])
        else:
            assert "ScalingLimited" not in said
        memory = carried_out(got.memory, bounds, before=current, after=got.replicas, now=now)
        current = got.replicas
