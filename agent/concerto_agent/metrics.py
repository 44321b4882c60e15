"""What the agent says of itself: Prometheus metrics and health checks, served only where asked for.

The server is imported then: an agent that serves nothing is some MiB smaller.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from concerto_agent.exposition import CONTENT_TYPE, NO_LABEL, Metric, exposition

if TYPE_CHECKING:
    from aiohttp import web

    from concerto.kube import Session
    from concerto.serving.http_server import HttpServer
    from concerto_agent.pin_counts import PinCounts

log = logging.getLogger(__name__)


@dataclass
class Counters:
    """What has happened since the start.

    Attributes:
        samples: samples taken.
        missed: samples that were not taken in time.
        invalid: readings that gave no number, by resource.
        pods: pods that started or ended, by which of the two.
        published: statuses written, by what made it worth it.
        failed: writes that failed, by what went wrong.
    """

    samples: int = 0
    missed: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    pods: Counter[str] = field(default_factory=Counter)
    published: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


@dataclass
class Gauges:
    """How things are.

    Attributes:
        capacity: pods the node can take; NaN before anything was measured.
        pod_count: pods counted.
        usage: part of each resource that was in use over the last second, 0 to 1; without those not measured.
        sampled_at: monotonic time of the last sample, seconds.
        pins: numbers of the node's pins; None where the agent does not pin.
    """

    capacity: float = float("nan")
    pod_count: int = 0
    usage: dict[str, float] = field(default_factory=dict)
    sampled_at: float = float("-inf")
    pins: Callable[[], PinCounts] | None = None


def describe(c: Counters, g: Gauges) -> Iterator[Metric]:
    """The metrics with their values now."""
    yield Metric("concerto_agent_samples_total", "counter", "Samples taken.", {NO_LABEL: c.samples})
    yield Metric(
        "concerto_agent_missed_samples_total", "counter", "Samples that were not taken in time.", {NO_LABEL: c.missed}
    )
    for name, text, label, counts in (
        ("invalid_readings", "Readings that were not valid numbers.", "resource", c.invalid),
        ("pod_events", "Pods that started or ended.", "event", c.pods),
        ("publications", "Writes of a status, by the reason for the write.", "reason", c.published),
        ("publication_errors", "Failed writes, by error.", "error", c.failed),
    ):
        yield Metric(f"concerto_agent_{name}_total", "counter", text, counts, label)
    yield Metric(
        "concerto_agent_capacity_pods",
        "gauge",
        "Pods that the node can take now, in addition to those it runs.",
        {NO_LABEL: g.capacity},
    )
    yield Metric("concerto_agent_pods", "gauge", "Pods counted on the node.", {NO_LABEL: g.pod_count})
    yield Metric(
        "concerto_agent_usage_ratio",
        "gauge",
        "Fraction of the resource in use, over the last second.",
        g.usage,
        "resource",
    )
    yield from _pins(g.pins and g.pins())


def _pins(counts: PinCounts | None) -> Iterator[Metric]:
    yield Metric(
        "concerto_agent_cpus",
        "gauge",
        "Online CPUs, by pool of NodeCPUTopology; none without --pinning.",
        counts.cpus if counts else {},
        "pool",
    )
    yield Metric(
        "concerto_agent_pinned_pods",
        "gauge",
        "Pods with a validated PodCPUBinding, by state: Applied, Waiting (for containers), NotApplied (the kernel "
        "refuses, or other pods are in the way) or Refused (by this node).",
        counts.pods if counts else {},
        "state",
    )
    for name, text, count in (
        (
            "cpuset_repairs",
            "Pods whose cpusets another program had changed, and that were set again.",
            counts.repairs if counts else None,
        ),
        (
            "late_pins",
            "Pods whose containers ran on other CPUs when their PodCPUBinding came.",
            counts.late if counts else None,
        ),
        (
            "nri_registrations",
            "Times that the container runtime took the agent as a plugin of NRI.",
            counts.registrations if counts else None,
        ),
    ):
        yield Metric(f"concerto_agent_{name}_total", "counter", text, {} if count is None else {NO_LABEL: count})
    yield Metric(
        "concerto_agent_nri_containers_total",
        "counter",
        "Containers that the container runtime created, by the CPUs that NRI gave them: Bound (those of the pod's "
        "binding), Shared, Inherited (the pod's, or what kubelet asked for), LeftToKubelet or Unknown.",
        counts.created if counts else {},
        "cpus",
    )


@dataclass(frozen=True)
class Binds:
    """Where an agent serves, as ``host:port``.

    Attributes:
        http: /healthz, /readyz, /debug/trace, and /metrics unless `secure_metrics` is given.
        secure_metrics: /metrics over TLS, for callers that may get it.
        pod_metrics: CPU and memory of the node's pods (``pod_metrics_server``).
    """

    http: str | None = None
    secure_metrics: str | None = None
    pod_metrics: str | None = None


async def serve(
    binds: Binds,
    counters: Counters,
    gauges: Gauges,
    unwell: Callable[[], str | None],
    trace: Callable[[], str],
    session: Session,
) -> list[HttpServer]:
    """Serve /metrics, /healthz, /readyz and /debug/trace; the caller cleans the servers up.

    Args:
        binds: where.
        counters: for /metrics.
        gauges: for /metrics.
        unwell: what is wrong with the process; None if nothing is.
        trace: the control law's numbers over the last minutes, for /debug/trace, JSON.
        session: connection to the API server, which decides who may get /metrics.

    Raises:
        OSError: an address can't be bound.
    """
    if not (binds.http or binds.secure_metrics):
        return []
    from aiohttp import web

    from concerto.serving.http_server import HttpServer

    async def metrics(_: web.Request) -> web.Response:
        body = exposition(describe(counters, gauges)).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        wrong = unwell()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    async def ready(_: web.Request) -> web.Response:
        known = counters.published.total() > 0
        return web.Response(text="ok" if known else "no status has been published yet", status=200 if known else 503)

    async def traced(_: web.Request) -> web.Response:
        return web.Response(text=trace(), content_type="application/json")

    servers = []
    if binds.http:
        handlers = {"/healthz": health, "/readyz": ready, "/debug/trace": traced}
        if not binds.secure_metrics:
            handlers["/metrics"] = metrics
        servers.append(HttpServer(binds.http, [web.get(path, handler) for path, handler in handlers.items()]))
    if binds.secure_metrics:
        from concerto.kube.access_review import READ_METRICS, AccessReviewer
        from concerto.serving.authorized import authorized
        from concerto.serving.certificate import CertificateError, make_certificate

        reviewer = AccessReviewer(session, READ_METRICS)
        route = web.get("/metrics", authorized(metrics, reviewer.judge))
        try:
            servers.append(HttpServer(binds.secure_metrics, [route], tls=make_certificate().context))
        except CertificateError as error:  # the node is measured all the same
            log.error("/metrics is not served: %s", error)
    for server in servers:
        await server.start()
    return servers
