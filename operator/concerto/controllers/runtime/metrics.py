"""The operator's own Prometheus metrics.

Nothing is labelled by pod or by node, so the number of series does not grow with the cluster.
"""

from __future__ import annotations

from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class DropsEvents(Protocol):
    """Writes events, and counts in ``dropped`` those that were not written."""

    dropped: int


class Metrics:
    """The operator's series, in a registry of their own.

    Attributes:
        recorders: all writers of events of this process.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._totals: dict[Counter, int] = {}
        self.recorders: list[DropsEvents] = []
        self.leader = self._gauge("concerto_leader", "1 while this replica holds the Lease.", "lease")
        self.reconciles = self._counter(
            "concerto_reconciles_total", "Reconciles, by kind and outcome.", "kind", "result"
        )
        self.unreadable = self._counter(
            "concerto_unreadable_objects_total", "Objects that could not be read and were left out.", "kind"
        )
        self.events_dropped = self._counter(
            "concerto_events_dropped_total",
            "Events that were not written: too many waited, or the API server refused them or did not answer.",
        )
        self.write_failures = self._counter(
            "concerto_write_failures_total",
            "Attempts to write that failed and were repeated, by what was written and why it failed.",
            "write",
            "reason",
        )
        self.loop_held_seconds = self._histogram(
            "concerto_event_loop_held_seconds", "How long the event loop was held between two beats of its watchdog."
        )
        self.max_loop_held_seconds = self._gauge(
            "concerto_event_loop_max_held_seconds", "The longest time that the event loop was held since the start."
        )
        self._add_scheduling()
        self._add_preemption()
        self._add_providers()

    def _add_scheduling(self) -> None:
        self.cycle_seconds = self._histogram("concerto_scheduling_cycle_seconds", "Duration of one scheduling cycle.")
        self.decisions = self._counter(
            "concerto_scheduling_decisions_total",
            "Decisions on pods, by outcome and by what they were based on.",
            "result",
        )
        self.gangs = self._counter(
            "concerto_gang_decisions_total",
            "Decisions on gangs: placed, unschedulable (no nodes were found), or waiting (for pods or the PodGroup).",
            "result",
        )
        self.abstentions = self._counter(
            "concerto_score_abstentions_total",
            ("Nodes for which a score abstained without a metric, counted once for each pod signature in a cycle."),
            "plugin",
        )
        self.bindings = self._counter("concerto_bindings_total", "Bindings of pods to nodes, by outcome.", "result")
        self.scheduling_seconds = self._histogram(
            "concerto_pod_scheduling_seconds", "Time from the first sight of a pending pod to its binding."
        )
        self.pending = self._gauge("concerto_pending_pods", "Pods in the queue.")
        self.placement_records = self._gauge(
            "concerto_placement_records",
            "Placement records: PodReservations of decisions whose pods are not all counted yet.",
        )
        self.nodes_with_stale_agent = self._gauge(
            "concerto_nodes_with_stale_agent", "Nodes whose agent has missed its heartbeats."
        )
        self.nodes_without_agent = self._gauge(
            "concerto_nodes_without_agent",
            "Ready nodes whose agent has never reported, while other nodes are measured.",
        )
        self.cluster_model_updates = self._counter(
            "concerto_cluster_model_updates_total", "Writes of the SubspaceSnapshot cluster."
        )
        self.cluster_model_nodes = self._gauge("concerto_cluster_model_nodes", "Nodes in the cluster model.")

    def _add_preemption(self) -> None:
        self.preemption_attempts = self._counter(
            "concerto_preemption_attempts_total",
            "Attempts to find pods to evict for a pod or a gang without nodes: found, not_found or not_eligible.",
            "result",
        )
        self.preemption_victims = self._counter(
            "concerto_preemption_victims_total", "Pods evicted for pods of higher priority, by outcome.", "result"
        )
        self.preemption_pdb_violations = self._counter(
            "concerto_preemption_pdb_violations_total",
            "Pods chosen to be evicted for pods of higher priority against a PodDisruptionBudget.",
        )
        self.preemption_search_seconds = self._histogram(
            "concerto_preemption_search_seconds", "CPU time of one search for pods to evict."
        )

    def _add_providers(self) -> None:
        self.rejected_metrics = self._counter(
            "concerto_rejected_metrics_total", "Metrics of nodes that were not numbers from 0 to 1."
        )
        self.provider_polls = self._counter(
            "concerto_metric_provider_polls_total",
            "Requests to a profile's metric provider, by outcome.",
            "profile",
            "result",
        )
        self.provider_seconds = self._histogram(
            "concerto_metric_provider_seconds",
            "Time that a profile's metric provider took to answer a poll completely.",
            "profile",
        )
        self.provider_rejected = self._counter(
            "concerto_metric_provider_rejected_total",
            "Values of a profile's metric provider that were rejected, by reason.",
            "profile",
            "reason",
        )
        self.provider_unmatched = self._gauge(
            "concerto_metric_provider_unmatched_series",
            "Series of a profile's metric provider that name no node of the cluster.",
            "profile",
        )
        self.load_nodes = self._gauge(
            "concerto_load_nodes",
            "Nodes by the state of the load that a profile has for them: fresh, stale or missing.",
            "profile",
            "state",
        )

    def set_total(self, counter: Counter, total: int) -> None:
        """Raise a counter to what another part has counted since the start."""
        counter.inc(total - self._totals.get(counter, 0))
        self._totals[counter] = total

    def forget_profile(self, profile: str) -> None:
        """Drop the series of a profile that is gone, or that another provider measures now."""
        for family in (
            self.provider_polls,
            self.provider_seconds,
            self.provider_rejected,
            self.provider_unmatched,
            self.load_nodes,
        ):
            family.remove_by_labels({"profile": profile})

    def render(self) -> bytes:
        """The series in the text format of Prometheus."""
        self.set_total(self.events_dropped, sum(recorder.dropped for recorder in self.recorders))
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=_SECONDS, registry=self.registry)
