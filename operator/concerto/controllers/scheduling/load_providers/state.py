"""How a provider of load is, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from concerto.api.conditions import Condition
from concerto.controllers.scheduling.load_providers.source import Answer, SourceError
from concerto.scheduling.state.provided_load import Joined

ANSWERING = "Answering"
AGENTS = Condition("ProviderReady", "True", "Agents", "Load comes from the agents' windows.")
NOT_ASKED = Condition("ProviderReady", "Unknown", "NotAsked", "The metric provider was not polled yet.")


@dataclass(frozen=True)
class ProviderState:
    """What came of the last time that a provider was asked.

    Attributes:
        condition: ProviderReady.
        unmatched: see `Joined`.
        unmatched_count: see `Joined`.
        rejected: see `Joined`.
    """

    condition: Condition = AGENTS
    unmatched: tuple[str, ...] = ()
    unmatched_count: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)


def failed_state(error: SourceError, before: ProviderState) -> ProviderState:
    """It gave no answer at all; what is known of its series is as it was."""
    message = f"The metric provider gave no answer: {error}. Its last answer is used until it is spec.staleAfter old."
    return ProviderState(_not_ready(error.reason, message), before.unmatched, before.unmatched_count, before.rejected)


def answered_state(answer: Answer, joined: Joined) -> ProviderState:
    """It answered, perhaps not everything, and perhaps with what cannot be."""
    rejected = {reason: count for reason, count in joined.rejected.items() if count}
    return ProviderState(_answered(answer, joined, rejected), joined.unmatched, joined.unmatched_count, rejected)


def _answered(answer: Answer, joined: Joined, rejected: Mapping[str, int]) -> Condition:
    said = sum(len(series.values) for series in answer.series)
    asked = len(answer.series) + len(answer.failed)
    if answer.failed:
        words = "; ".join(f"{name}: {error.reason}, {error}" for name, error in sorted(answer.failed.items()))
        return _not_ready(
            "QueriesFailed",
            f"{len(answer.failed)} of {asked} queries failed ({words}). Their last answers are used until "
            "they are spec.staleAfter old.",
        )
    names = {name for series in answer.series for name in (*series.values, *series.ambiguous)}
    if not names:
        return _not_ready("NoSeries", f"The {asked} queries returned no series.")
    if joined.unmatched_count == len(names):
        unmatched = ", ".join(repr(name) for name in joined.unmatched)
        return _not_ready(
            "NothingMatched",
            "No series matches a node by name or internal IP address. With Prometheus, set "
            f"spec.metricProvider.prometheus.nodeLabel to the label that has it. The series are of {unmatched}.",
        )
    if rejected:
        words = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
        return _not_ready(
            "ValuesRejected",
            f"Some of {said} values are impossible and were left out ({words}). Values must be fractions of "
            "the machine, from 0 to 1, and each query must return one for each node.",
        )
    more = ""
    if joined.unmatched_count:
        more = f" {joined.unmatched_count} names in its answers match no node: see status.metrics.unmatched."
    return Condition("ProviderReady", "True", ANSWERING, f"The metric provider answers.{more}")


def _not_ready(reason: str, message: str) -> Condition:
    return Condition("ProviderReady", "False", reason, message)
