"""Settings of a profile that work against each other. The profile is used as it is. Pure.

Source: docs/references.md, "Load-aware scores".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from concerto.api.conditions import Condition
from concerto.api.prometheus_queries import ranges
from concerto.api.quantities import parse_duration
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.score_arguments import NodeResourcesFitArgs, ScoreSettings
from concerto.capacity.windows import WINDOW_SECONDS

_PACK = {"TargetLoadPacking"}
_SPREAD = {"Capacity", "LoadVariationRiskBalancing"}
WITHOUT_REQUESTS = {"TargetLoadPacking", "LoadVariationRiskBalancing"}
"""Scores that requests work against. Of LowRiskOverCommitment, which compares risks, they do not: references.md."""
BY_REQUESTS = {"NodeResourcesFit", "NodeResourcesBalancedAllocation"}
_REPORTS_WITHIN_STALE_AFTER = 2
"""Reports that are due before the last one is too old: one of them may be late."""


@dataclass(frozen=True)
class Contradiction:
    """Two settings that work against each other.

    Attributes:
        reason: CamelCase.
        message: which they are, and what to do.
    """

    reason: str
    message: str


@dataclass(frozen=True)
class Heartbeat:
    """How often the agent of a node reports at least.

    Attributes:
        node: its name.
        seconds: ``spec.heartbeat`` of its NodeCapacity.
    """

    node: str
    seconds: float


def contradictions(settings: ProfileSettings, longest: Heartbeat | None = None) -> tuple[Contradiction, ...]:
    """What works against each other in a profile, the gravest first; `consistency_condition` names the arguments."""
    return (
        *_opposed(settings.scores),
        *_stale_too_soon(settings, longest),
        *_load_and_requests(settings.scores),
        *_ranges(settings),
    )


def consistency_condition(settings: ProfileSettings | None, longest: Heartbeat | None = None) -> Condition:
    """Condition SettingsConsistent of a profile.

    Args:
        settings: its spec; None if that can't be used, and the condition is Unknown.
        longest: the longest heartbeat of all nodes; None while no agent has reported.
    """
    if settings is None:
        return Condition("SettingsConsistent", "Unknown", "InvalidSpec", "The spec can't be used.")
    found = contradictions(settings, longest)
    if not found:
        return Condition("SettingsConsistent", "True", "Consistent", "No settings work against each other.")
    return Condition("SettingsConsistent", "False", found[0].reason, " ".join(each.message for each in found))


def _opposed(scores: tuple[ScoreSettings, ...]) -> Iterator[Contradiction]:
    packing = [score.name for score in scores if score.name in _PACK or _direction(score) > 0]
    spreading = [score.name for score in scores if score.name in _SPREAD or _direction(score) < 0]
    if packing and spreading:
        yield Contradiction(
            "OpposedScores",
            f"{_words(packing)} fills nodes that are in use, and {_words(spreading)} prefers empty ones: keep the "
            "scores of one kind in spec.scores, and make another profile of the others.",
        )


def _load_and_requests(scores: tuple[ScoreSettings, ...]) -> Iterator[Contradiction]:
    names = [score.name for score in scores]
    by_load, by_requests = [n for n in names if n in WITHOUT_REQUESTS], [n for n in names if n in BY_REQUESTS]
    if by_load and by_requests:
        yield Contradiction(
            "LoadAndRequests",
            f"{_words(by_requests)} compares requests, which {_words(by_load)} is to correct by load: Trimaran advises "
            "to remove the scores by requests. spec.load.requestsStrategy decides while metrics are missing.",
        )


def _stale_too_soon(settings: ProfileSettings, longest: Heartbeat | None) -> Iterator[Contradiction]:
    stale, provider = settings.stale_after_seconds, settings.metric_provider
    bound = f"spec.staleAfter is {stale:g} s"
    if longest is not None and stale < _REPORTS_WITHIN_STALE_AFTER * longest.seconds:
        yield Contradiction(
            "StaleTooSoon",
            f"{bound}, and the agent of node {longest.node} may report only every {longest.seconds:g} s "
            "(spec.heartbeat of its NodeCapacity): its telemetry counts as missing in between. Set spec.staleAfter to "
            "several heartbeats, or shorten spec.heartbeat.",
        )
    if provider.type != "Agents" and stale < _REPORTS_WITHIN_STALE_AFTER * provider.interval_seconds:
        yield Contradiction(
            "StaleTooSoon",
            f"{bound}, and spec.metricProvider.interval is {provider.interval_seconds:g} s: metrics count as missing "
            "between two polls. Set spec.staleAfter to several intervals, or shorten the interval.",
        )


def _ranges(settings: ProfileSettings) -> Iterator[Contradiction]:
    provider, window = settings.metric_provider, settings.load.window
    for query in provider.prometheus.queries if provider.prometheus is not None else ():
        if query.statistic == "latest":
            continue
        given = ranges(query.expression)
        if given and not any(each == "$window" or _seconds(each) == WINDOW_SECONDS[window] for each in given):
            yield Contradiction(
                "RangeDiffersFromWindow",
                f"spec.metricProvider.prometheus.queries.{query.name} is over {' and '.join(given)}, and "
                f"spec.load.window is {window}: pods that have just started are predicted wrongly. Write [$window].",
            )


def _direction(score: ScoreSettings) -> int:
    """1 for NodeResourcesFit that prefers full nodes, -1 for one that prefers empty nodes, else 0."""
    if score.name != "NodeResourcesFit":
        return 0
    args: NodeResourcesFitArgs = score.node_resources_fit
    if args.strategy != "RequestedToCapacityRatio":
        return 1 if args.strategy == "MostAllocated" else -1
    rises = [right.score - left.score for left, right in pairwise(args.shape)]
    if all(rise >= 0 for rise in rises) and any(rises):
        return 1
    return -1 if any(rises) and all(rise <= 0 for rise in rises) else 0


def _seconds(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _words(names: list[str]) -> str:
    return " with ".join(names)
