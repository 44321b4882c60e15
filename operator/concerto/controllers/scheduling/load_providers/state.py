"""How a provider of load is, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from concerto.api.conditions import Condition
from concerto.controllers.scheduling.load_providers.source import Answer, SourceError
from concerto.scheduling.state.provided_load import Joined

ANSWERING = "Answering"
AGENTS = Condition("ProviderReady", "True", "Agents", "The agents' windows are read.")
NOT_ASKED = Condition("ProviderReady", "Unknown", "NotAsked", "The metric provider was not asked yet.")


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
    message = f"The metric provider gave no answer: {error}. Its last one is used until it is spec.staleAfter old."
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
            f"{len(answer.failed)} of {asked} queries failed ({words}). What they said last is used until it is "
            "spec.staleAfter old.",
        )
    names = {name for series in answer.series for name in (*series.values, *series.ambiguous)}
    if not names:
        return _not_ready("NoSeries", f"The {asked} queries have answers without any series.")
    if joined.unmatched_count == len(names):
        told = ", ".join(repr(name) for name in joined.unmatched)
        return _not_ready(
            "NothingMatched",
            "No series is of a node, which goes by its name or internal IP address: say in "
            f"spec.metricProvider.prometheus.nodeLabel which label has it. They are of {told}.",
        )
    if rejected:
        words = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
        return _not_ready(
            "ValuesRejected",
            f"Of {said} values some cannot be, and were left out ({words}). Values are parts of the machine, from 0 "
            "to 1, and of each node a query has one.",
        )
    more = ""
    if joined.unmatched_count:
        more = f" {joined.unmatched_count} of what it calls nodes are none: see status.metrics.unmatched."
    return Condition("ProviderReady", "True", ANSWERING, f"The metric provider answers.{more}")


def _not_ready(reason: str, message: str) -> Condition:
    return Condition("ProviderReady", "False", reason, message)
