"""What the operator says of itself: Prometheus metrics, and health for the kubelet's probes.

Nothing is labelled by pod or by node, so the number of series does not grow with the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The operator's series, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.leader = Gauge("concerto_leader", "1 while this replica holds the Lease.", registry=r)
        self.cycle_seconds = Histogram(
            "concerto_scheduling_cycle_seconds", "Time to decide one cycle.", buckets=_SECONDS, registry=r
        )
        self.decisions = Counter(
            "concerto_scheduling_decisions_total", "Decisions, by outcome and basis.", ["result"], registry=r
        )
        self.abstentions = Counter(
            "concerto_score_abstentions_total",
            "Nodes that a score had no metric of, counted once for each kind of pod in a cycle.",
            ["plugin"],
            registry=r,
        )
        self.rejected_metrics = Counter(
            "concerto_rejected_metrics_total", "Metrics of nodes that were no numbers from 0 to 1.", registry=r
        )
        self.provider_polls = Counter(
            "concerto_metric_provider_polls_total",
            "Times that a profile's metric provider was asked, by what came of it.",
            ["profile", "result"],
            registry=r,
        )
        self.provider_seconds = Histogram(
            "concerto_metric_provider_seconds",
            "Time that a profile's metric provider took for all its answers.",
            ["profile"],
            buckets=_SECONDS,
            registry=r,
        )
        self.provider_rejected = Counter(
            "concerto_metric_provider_rejected_total",
            "Values of a profile's metric provider that cannot be, by what is wrong with them.",
            ["profile", "reason"],
            registry=r,
        )
        self.provider_unmatched = Gauge(
            "concerto_metric_provider_unmatched_series",
            "What a profile's metric provider calls nodes and are none.",
            ["profile"],
            registry=r,
        )
        self.load_nodes = Gauge(
            "concerto_load_nodes",
            "Nodes by how well a profile knows their load: fresh, stale or missing.",
            ["profile", "state"],
            registry=r,
        )
        self.bindings = Counter("concerto_bindings_total", "Bindings, by outcome.", ["result"], registry=r)
        self.scheduling_seconds = Histogram(
            "concerto_pod_scheduling_seconds", "Pod seen pending to pod bound.", buckets=_SECONDS, registry=r
        )
        self.pending = Gauge("concerto_pending_pods", "Pods waiting for a place.", registry=r)
        self.placement_records = Gauge(
            "concerto_placement_records", "PodReservations that record placements under way.", registry=r
        )
        self.cluster_model_updates = Counter(
            "concerto_cluster_model_updates_total", "Writes of SubspaceSnapshot/cluster.", registry=r
        )
        self.cluster_model_nodes = Gauge("concerto_cluster_model_nodes", "Nodes in the cluster model.", registry=r)
        self.silent_nodes = Gauge("concerto_silent_nodes", "Nodes whose agent has missed its heartbeats.", registry=r)
        self.reconciles = Counter(
            "concerto_reconciles_total", "Reconciles, by kind and outcome.", ["kind", "result"], registry=r
        )
        self.unreadable = Counter(
            "concerto_unreadable_objects_total", "Objects left out as they could not be read.", ["kind"], registry=r
        )
        self.events_dropped = Counter("concerto_events_dropped_total", "Events given up for want of room.", registry=r)
        self._told: dict[Counter, int] = {}

    def bring_up_to(self, counter: Counter, total: int) -> None:
        """Have a counter say what somebody else has counted since the start."""
        counter.inc(total - self._told.get(counter, 0))
        self._told[counter] = total

    def forget_profile(self, profile: str) -> None:
        """The profile is gone, or measured by somebody else: its series would stand still for ever."""
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
        return generate_latest(self.registry)


@dataclass
class Health:
    """Whether the process is well (liveness) and knows enough to work or to stand by (readiness).

    Attributes:
        alive: names of checks and functions that return None when all is well, else what is wrong.
        ready: the same for readiness.
    """

    alive: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    ready: dict[str, Callable[[], str | None]] = field(default_factory=dict)


async def serve(bind: str, metrics: Metrics, health: Health, routes: Iterable[web.RouteDef] = ()) -> web.AppRunner:
    """Serve /metrics, /healthz, /readyz and more on ``host:port``; the caller cleans the runner up."""

    def probe(checks: dict[str, Callable[[], str | None]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            wrong = [f"{name}: {said}" for name, check in checks.items() if (said := check()) is not None]
            return web.Response(text="\n".join(wrong) or "ok", status=503 if wrong else 200)

        return answer

    async def render(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", render)
    app.router.add_get("/healthz", probe(health.alive))
    app.router.add_get("/readyz", probe(health.ready))
    app.router.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = bind.rpartition(":")
    await web.TCPSite(runner, host or "0.0.0.0", int(port)).start()
    return runner
