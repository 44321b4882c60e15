"""A SchedulingProfile with its plugins in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from concerto.api.metric_provider import SMOOTHING
from concerto.api.schedulingprofile import MetricsPolicy, ProfileSettings
from concerto.api.score_arguments import ScoreSettings
from concerto.scheduling.framework import Filter, Score
from concerto.scheduling.plugins.missing_metrics.filter import MissingMetrics
from concerto.scheduling.plugins.registry import ALWAYS, FILTERS, SCORES


@dataclass(frozen=True)
class Profile:
    """How the pods of one scheduler name are placed. Profiles share no state.

    Attributes:
        settings: the SchedulingProfile's spec.
        filters: in the order in which they run.
        scores: (plugin, weight).
    """

    settings: ProfileSettings
    filters: tuple[Filter, ...]
    scores: tuple[tuple[Score, int], ...]

    @classmethod
    def build(cls, settings: ProfileSettings) -> Self:
        """The profile that a SchedulingProfile's spec describes.

        Raises:
            KeyError: a plugin of that name does not exist (the CRD's enum refuses it).
            ValueError: a field has no effect without another; the message names both.
        """
        policy = settings.workload_aware.policy
        if policy != "Balanced" and "WorkloadAware" not in {score.name for score in settings.scores}:
            raise ValueError(
                f"spec.workloadAware.policy {policy} has no effect without the score WorkloadAware: add it to "
                "spec.scores, or remove the policy"
            )
        scores = tuple((SCORES[score.name](_completed(score, settings)), score.weight) for score in settings.scores)
        avoiding = tuple(score for score, _ in scores if score.missing_metrics == "Avoid")
        filters: list[Filter] = [FILTERS[name]() for name in settings.filters]
        if avoiding:
            filters.append(MissingMetrics(avoiding))
        return cls(settings, (*filters, *(filter_() for filter_ in ALWAYS)), scores)

    @cached_property
    def capacity_policy(self) -> MetricsPolicy:
        """What happens to a node without measured capacity.

        A profile whose load comes from a metric provider needs no agents, unless one of its scores reads capacity.
        """
        by_agents = not self.settings.load.provider or any("capacity" in s.needs_telemetry for s, _ in self.scores)
        return self.settings.metrics_policy if by_agents else "FallbackToRequests"

    @cached_property
    def reads_load(self) -> bool:
        """Whether a score looks at the load of nodes, and not only at their measured capacity."""
        return any("load" in score.needs_telemetry for score, _ in self.scores)


def _completed(score: ScoreSettings, settings: ProfileSettings) -> ScoreSettings:
    """The score's settings with what other fields of the profile decide."""
    args = score.low_risk_over_commitment
    if args.smoothing_window is None:
        args = replace(args, smoothing_window=SMOOTHING[settings.metric_provider.type])
    rule = "Avoid" if settings.metrics_policy == "Avoid" else score.missing_metrics
    return replace(score, low_risk_over_commitment=args, missing_metrics=rule)
