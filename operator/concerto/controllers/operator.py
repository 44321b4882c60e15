"""`concerto operator`: its arguments, and the process. kopf runs the process and its life cycle."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import kopf
import uvloop

from concerto.api.arguments import add_log_level, duration, listening
from concerto.controllers.autoscaling.flags import add_arguments as add_autoscaling_arguments
from concerto.controllers.autoscaling.flags import settings_from as autoscaling_settings
from concerto.controllers.capacity.kinds_trace import KindsTrace
from concerto.controllers.capacity.load_watcher import Watcher
from concerto.controllers.runtime.clock import SteadyClock
from concerto.controllers.runtime.garbage import FullSearches, search_new_objects_only
from concerto.controllers.runtime.health import Endpoints, Health
from concerto.controllers.runtime.loop_watchdog import LoopWatchdog
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.prerequisites import read_owners, wait_for_kinds
from concerto.controllers.runtime.secure_metrics import secure_metrics_server
from concerto.controllers.runtime.supervision import Supervisor
from concerto.controllers.wiring import CONTROLLERS, OperatorSettings, Replica, build
from concerto.kube import ClusterConfig, ConfigError, Session
from concerto.kube.events import EventRecorder
from concerto.kube.kubeconfig import add_cluster_arguments, load_config
from concerto.kube.lease import LeaseSettings
from concerto.linux.open_files import raise_open_files_limit
from concerto.scheduling.state.cluster import ClusterState
from concerto.serving.certificate import CertificateError
from concerto.serving.http_server import HttpServer, HttpServerThread

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto operator`."""
    add_cluster_arguments(parser)
    parser.add_argument("--namespace", help="the operator's own namespace; by default the one it runs in")
    parser.add_argument(
        "--bind",
        default=":8080",
        type=listening,
        metavar="HOST:PORT",
        help="where /metrics, /healthz, /readyz, /watcher and /debug/trace are served (default: %(default)s)",
    )
    parser.add_argument(
        "--secure-metrics-bind",
        type=listening,
        metavar="HOST:PORT",
        help="serve /metrics there, over TLS and to callers that may get it, and not at --bind; takes the right to "
        "create TokenReviews and SubjectAccessReviews",
    )
    parser.add_argument(
        "--controllers",
        action="append",
        choices=CONTROLLERS,
        help="what to run, once for each; all by default. Each needs the rights that its component brings; an operator "
        "without scheduling has a Lease of its own",
    )
    parser.add_argument(
        "--costs-by-kind",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="place pods by what pods of their kind were measured to cost (default); --no-costs-by-kind counts every "
        "pod as one unit of its node's capacity, for comparison",
    )
    parser.add_argument(
        "--service-account",
        metavar="NAME",
        help="the ServiceAccount that this runs as: it then owns the Lease and the placement records, which go with it",
    )
    lease = LeaseSettings()
    for name, lowest, default, help_ in (
        (
            "lease-duration",
            "1s",
            lease.lease_duration_seconds,
            "how long other replicas wait for a Lease that is not renewed",
        ),
        (
            "renew-deadline",
            "100ms",
            lease.renew_deadline_seconds,
            "how long a leader stays the leader without a confirmed renewal",
        ),
        ("retry-period", "100ms", lease.retry_period_seconds, "time between two renewals"),
    ):
        parser.add_argument(
            f"--leader-elect-{name}",
            type=duration(lowest, "1h", f"{default:g}s", whole_seconds=name == "lease-duration"),
            default=float(default),
            metavar="DURATION",
            help=f"{help_} (default: {default:g}s)",
        )
    add_autoscaling_arguments(parser)
    add_log_level(parser)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM; any other end is an error, and the kubelet starts it again."""
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    search_new_objects_only()
    raise_open_files_limit()
    try:
        settings = _settings(args)
        config = load_config(args.kubeconfig, args.context)
    except (ValueError, ConfigError) as error:
        print(f"concerto operator: {error}", file=sys.stderr)
        return 2
    settings = replace(settings, namespace=args.namespace or config.namespace)
    operator = Operator(config, settings, args.bind, args.secure_metrics_bind)
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(operator.open())
    except (ConfigError, CertificateError, OSError) as error:
        loop.close()
        print(f"concerto operator: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    kopf.run(loop=loop, registry=operator.registry(), settings=kopf_settings(), standalone=True, clusterwide=True)
    return 1 if operator.failed else 0


def _settings(args: argparse.Namespace) -> OperatorSettings:
    """What the options say, without the namespace of the cluster's configuration.

    Raises:
        ValueError: options contradict each other, or a file that they name can't be used; the message says which.
    """
    try:
        lease = LeaseSettings(
            lease_duration_seconds=int(args.leader_elect_lease_duration),
            renew_deadline_seconds=args.leader_elect_renew_deadline,
            retry_period_seconds=args.leader_elect_retry_period,
        )
    except ValueError as error:
        raise ValueError(
            f"--leader-elect-retry-period ({args.leader_elect_retry_period:g} s) has to be shorter than "
            f"--leader-elect-renew-deadline ({args.leader_elect_renew_deadline:g} s), and that shorter than "
            f"--leader-elect-lease-duration ({args.leader_elect_lease_duration:g} s)"
        ) from error
    return OperatorSettings(
        namespace=args.namespace or "",
        controllers=frozenset(args.controllers or CONTROLLERS),
        service_account=args.service_account,
        lease=lease,
        autoscaling=autoscaling_settings(args),
        ask_agents=args.autoscaling_ask_agents,
        costs_by_kind=args.costs_by_kind,
    )


def exit_at_once() -> None:
    """Leadership is lost: nothing more may be sent, not even the rest of what is being sent."""
    logging.shutdown()
    os._exit(3)


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf runs the process and its life cycle; it follows no kind."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    return settings


class Operator:
    """One replica: its session, its HTTP endpoints, and its tasks."""

    def __init__(
        self, config: ClusterConfig, settings: OperatorSettings, bind: str, secure_metrics_bind: str | None = None
    ) -> None:
        """Nothing is open before `open`, and nothing is sent before kopf starts it.

        Args:
            config: the way to the API server.
            settings: what to run.
            bind: ``host:port`` of the HTTP endpoints.
            secure_metrics_bind: ``host:port`` of /metrics, if it is served to authorized callers only.
        """
        self._start_failed = False
        self._config = config
        self._settings = settings
        self._bind = bind
        self._secure_metrics_bind = secure_metrics_bind
        self._supervisor = Supervisor(exit_at_once)
        self._health, self._metrics = Health(), Metrics()
        self._cluster, self._clock = ClusterState(), SteadyClock()
        self._trace = KindsTrace(self._cluster, self._clock)
        self._watchdog = LoopWatchdog(self._metrics)
        self._problem: str | None = "not checked yet"
        self._session: Session | None = None
        self._recorders: list[EventRecorder] = []
        self._http: HttpServerThread | None = None

    @property
    def failed(self) -> bool:
        """Whether the start failed, or a task ended by itself."""
        return self._start_failed or self._supervisor.failed

    def registry(self) -> kopf.OperatorRegistry:
        """Handlers of the life cycle, for kopf."""
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry, id="login")
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return await connection_info(self._config)

        @kopf.on.startup(registry=registry, id="start")
        async def start(**_: Any) -> None:
            try:
                await self._start()
            except Exception as error:
                # A second start beside what is left of the first would be two leaders under one name
                self._start_failed = True
                raise kopf.PermanentError(f"cannot start: {error}") from error

        @kopf.on.cleanup(registry=registry, id="stop")
        async def stop(**_: Any) -> None:
            await self._close()

        return registry

    async def open(self) -> None:
        """Read the credentials and serve the HTTP endpoints; nothing is sent to the API server.

        Raises:
            ConfigError: the credentials or the certificate authority can't be used.
            OSError: an address can't be bound.
            CertificateError: no certificate could be made.
        """
        self._health.ready["kinds"] = lambda: self._problem
        self._health.alive["tasks"] = self._supervisor.problem
        self._health.alive["event loop"] = self._watchdog.problem
        try:
            self._session = await Session.open(self._config)
            http = HttpServerThread(*self._servers())
            http.start()
        except BaseException:
            await self._close()
            raise
        self._http = http

    def _servers(self) -> list[HttpServer]:
        endpoints = Endpoints(self._metrics, self._health)
        routes = [*endpoints.routes(), *Watcher(self._cluster, self._clock).routes(), *self._trace.routes()]
        if self._secure_metrics_bind is None:
            return [HttpServer(self._bind, [*routes, endpoints.metrics_route()])]
        secure = secure_metrics_server(self._secure_metrics_bind, endpoints, self._config)
        return [HttpServer(self._bind, routes), secure]

    async def _start(self) -> None:
        session, settings = self._session, self._settings
        assert session is not None, "opened"
        identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._supervisor.spawn("loop watchdog", self._watchdog.run)
        self._supervisor.spawn("full searches for garbage", FullSearches().run)
        metrics = self._secure_metrics_bind or self._bind
        logger.info("%s started; health on %s, metrics on %s", identity, self._bind, metrics)

        def report(missing: str | None) -> None:
            self._problem = missing or "starting"

        await wait_for_kinds(session, report)
        owners = await read_owners(session, settings.namespace, settings.service_account)
        replica = Replica(
            identity,
            session,
            self._cluster,
            self._metrics,
            self._health,
            self._supervisor,
            self._clock,
            self._trace,
            owners,
            on_lost=exit_at_once,
        )
        running, self._recorders = build(replica, settings)
        for name, run in running:
            self._supervisor.spawn(name, run)
        self._problem = None

    async def _close(self) -> None:
        if self._recorders:
            await self._recorders[0].drain(timeout_seconds=2)
        await self._supervisor.stop()
        if self._http is not None:
            self._http.stop()
        if self._session is not None:
            await self._session.close()


async def connection_info(config: ClusterConfig) -> kopf.ConnectionInfo:
    """The same credentials for kopf, which asks again when they expire or are refused."""
    credentials = await config.credential_source().current()
    scheme, _, token = (credentials.authorization or "").partition(" ")
    expiry = credentials.expires_at
    return kopf.ConnectionInfo(
        server=config.server,
        ca_path=config.certificate_authority,
        ca_data=config.certificate_authority_data,
        insecure=config.insecure_skip_tls_verify or None,
        scheme=scheme or None,
        token=token or None,
        certificate_data=credentials.client_certificate,
        private_key_data=credentials.client_key,
        proxy_url=config.proxy_url,
        default_namespace=config.namespace,
        expiration=datetime.fromtimestamp(expiry, UTC) if expiry is not None else None,
    )
