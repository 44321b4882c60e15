"""`concerto operator`: the process. kopf runs it and tells which low-rate objects changed; the rest is ours.

Everything that reads runs in every replica, so that a standby is warm; everything that decides or writes runs in the
one that holds the Lease.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from typing import Any

import kopf
import uvloop
from aiohttp import web

from concerto.api.quantities import parse_duration
from concerto.controllers.autoscaling.controller import PredictiveHPAController
from concerto.controllers.autoscaling.flags import add_arguments as add_autoscaling_arguments
from concerto.controllers.autoscaling.flags import settings_from as autoscaling_settings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import AgentMetrics, AgentSettings, AgentTokens
from concerto.controllers.capacity.cluster_model import ClusterModelPublisher
from concerto.controllers.capacity.load_watcher import Watcher
from concerto.controllers.capacity.orphaned_objects import NodelessObjects
from concerto.controllers.pinning.validation import PodCPUBindingController
from concerto.controllers.runtime.clock import SteadyClock
from concerto.controllers.runtime.metrics import Health, Metrics, serve
from concerto.controllers.runtime.reconciler import Reconciler
from concerto.controllers.scheduling.load_providers import LoadProviders
from concerto.controllers.scheduling.profiles import ProfileController
from concerto.controllers.scheduling.reservations import ReservationController
from concerto.controllers.scheduling.scheduler import Scheduler, SchedulerSettings
from concerto.kube import ClusterConfig, ConfigError, Forbidden, KubeError, NotFound, Object, Reflector, Session
from concerto.kube.events import EventRecorder
from concerto.kube.kubeconfig import add_cluster_arguments, load_config
from concerto.kube.lease import LeaderElection, LeaseSettings
from concerto.kube.resources import (
    DEPLOYMENTS,
    NODE_CAPACITIES,
    NODE_CPU_TOPOLOGIES,
    NODES,
    POD_CPU_BINDINGS,
    POD_RESERVATIONS,
    PODS,
    PREDICTIVE_HPAS,
    SCHEDULING_PROFILES,
    SUBSPACE_SNAPSHOTS,
)

logger = logging.getLogger(__name__)

LEASE_NAME = "concerto-operator"
ACCOUNT = "concerto-operator"
"""The operator's own service account, for which it asks for tokens to show to agents."""
CONTROLLERS = ("scheduling", "pinning", "autoscaling")
"""What an operator can run; scheduling it always does."""
_GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""Python's own (700, 10, 10) have it look through a cluster that is being listed again and again: nothing there is
garbage, and what is dropped later is free without a search, as it is in no cycles."""
_LEAD_AT_ONCE_SECONDS = 1.0
"""A replica that leads within this time reads the cluster once, and not once before and once after its election."""
_LOOK_FOR_KINDS_SECONDS = 1.0
IN_FLIGHT_LABEL = "concerto.dev/in-flight"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto operator`."""
    add_cluster_arguments(parser)
    parser.add_argument("--namespace", help="the operator's own namespace; by default the one it runs in")
    parser.add_argument(
        "--bind", default="0.0.0.0:8080", help="where /metrics, /healthz, /readyz and /watcher are served"
    )
    parser.add_argument(
        "--controllers",
        action="append",
        choices=CONTROLLERS,
        help="what to run, once for each; all by default. Each needs the rights that its component brings",
    )
    parser.add_argument(
        "--deployment",
        help="the Deployment that this is a pod of: it then owns the Lease and the placements under way",
    )
    lease = LeaseSettings()
    for name, default, help_ in (
        ("lease-duration", lease.lease_duration_seconds, "how long others leave a Lease alone that is not renewed"),
        ("renew-deadline", lease.renew_deadline_seconds, "how long a leader leads without a confirmed renewal"),
        ("retry-period", lease.retry_period_seconds, "between two renewals"),
    ):
        parser.add_argument(
            f"--leader-elect-{name}", type=parse_duration, default=float(default), metavar="DURATION", help=help_
        )
    add_autoscaling_arguments(parser)
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM; any other end is an error, and the kubelet starts it again."""
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    try:
        config = load_config(args.kubeconfig, args.context)
    except ConfigError as error:
        print(f"concerto operator: {error}", file=sys.stderr)
        return 2
    try:
        lease = LeaseSettings(
            lease_duration_seconds=int(args.leader_elect_lease_duration),
            renew_deadline_seconds=args.leader_elect_renew_deadline,
            retry_period_seconds=args.leader_elect_retry_period,
        )
    except ValueError as error:
        print(f"concerto operator: --leader-elect-*: {error}", file=sys.stderr)
        return 2
    autoscaling = PredictiveHPASettings(controller=autoscaling_settings(args))
    operator = Operator(
        config,
        args.namespace or config.namespace,
        args.bind,
        lease,
        autoscaling,
        ask_agents=args.autoscaling_ask_agents,
        controllers=args.controllers or CONTROLLERS,
        deployment=args.deployment,
    )
    kopf.run(
        loop=uvloop.new_event_loop(),
        registry=operator.registry(),
        settings=operator.settings(),
        standalone=True,
        clusterwide=True,
    )
    return 1 if operator.failed else 0


def exit_at_once() -> None:
    """Leadership is lost: nothing may be sent any more, not even what is in the middle of being sent."""
    logging.shutdown()
    os._exit(3)


class Operator:
    """One replica: its session, what it watches, and what it does while it leads.

    Attributes:
        failed: whether a part of it ended by an error.
    """

    def __init__(
        self,
        config: ClusterConfig,
        namespace: str,
        bind: str,
        lease: LeaseSettings,
        autoscaling: PredictiveHPASettings,
        *,
        ask_agents: bool,
        controllers: Collection[str],
        deployment: str | None,
    ) -> None:
        """Nothing is sent before kopf starts it."""
        self.failed = False
        self._controllers = frozenset(controllers)
        self._deployment = deployment
        self._ask_agents = ask_agents
        self._lease = lease
        self._autoscaling = autoscaling
        self._config = config
        self._namespace = namespace
        self._bind = bind
        # New at each start: what an earlier process of this pod held is not ours
        self._identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._metrics = Metrics()
        self._health = Health()
        self._tasks: list[asyncio.Task[None]] = []
        self._reconcilers: dict[str, Reconciler] = {}
        self._session: Session | None = None
        self._recorder: EventRecorder | None = None
        self._web: web.AppRunner | None = None
        self._stop: asyncio.Event | None = None

    def settings(self) -> kopf.OperatorSettings:
        """kopf, kept to what it is here for."""
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.label_selectors[POD_RESERVATIONS.group, POD_RESERVATIONS.plural] = f"!{IN_FLIGHT_LABEL}"
        return settings

    def registry(self) -> kopf.OperatorRegistry:
        """Handlers for kopf: they mark keys dirty and do nothing else."""
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
                self.failed = True
                raise kopf.PermanentError(f"cannot start: {error}") from error

        @kopf.on.cleanup(registry=registry, id="stop")
        async def stop(**_: Any) -> None:
            await self._close()

        pinning = (POD_CPU_BINDINGS,) if "pinning" in self._controllers else ()
        for resource in (SCHEDULING_PROFILES, POD_RESERVATIONS, *pinning):

            @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id="changed")
            async def changed(name: str, namespace: str | None, plural: str = resource.plural, **_: Any) -> None:
                if plural in self._reconcilers:
                    self._reconcilers[plural].mark(namespace, name)

        return registry

    async def _start(self) -> None:
        pinning = "pinning" in self._controllers
        session = self._session = await Session.open(self._config)
        clock = SteadyClock()
        recorder = self._recorder = EventRecorder(
            session,
            component="concerto-scheduler",
            instance=self._identity,
            busy=lambda: scheduler.busy,
        )
        model = ClusterModelPublisher(session, self._metrics, clock)
        scheduler = Scheduler(
            session,
            self._namespace,
            self._identity,
            recorder,
            self._metrics,
            clock,
            SchedulerSettings(binding_timeout_seconds=binding_timeout_seconds(self._lease)),
            may_write=lambda: election.remaining_seconds() > 0,
        )
        providers = LoadProviders(session, self._namespace, scheduler.cluster, recorder, self._metrics, clock)
        profiles = ProfileController(session, scheduler, providers, recorder, self._metrics)
        reservations = ReservationController(session, scheduler, recorder, clock)

        def on_topology(old: Object | None, new: Object | None) -> None:
            scheduler.on_topology(old, new)
            bindings.on_topology(old, new)

        topologies = Reflector(session, NODE_CPU_TOPOLOGIES, on_change=on_topology)

        def on_pod(old: Object | None, new: Object | None) -> None:
            scheduler.on_pod(old, new)
            bindings.on_pod(old, new)

        pods = Reflector(
            session,
            PODS,
            field_selector="status.phase!=Succeeded,status.phase!=Failed",
            on_change=on_pod,
            trim=scheduler.trim_pod,
        )
        binding_events = EventRecorder(session, component="podcpubinding-controller", instance=self._identity)
        bindings = PodCPUBindingController(session, binding_events, pods.store, topologies.store)
        self._reconcilers = {
            r.plural: Reconciler(session, r, reconcile, self._metrics, label_selector=selector)
            for r, reconcile, selector in (
                (SCHEDULING_PROFILES, profiles.reconcile, None),
                (POD_RESERVATIONS, reservations.reconcile, f"!{IN_FLIGHT_LABEL}"),
                (POD_CPU_BINDINGS, bindings.reconcile, None),
            )
        }
        bindings.mark = scheduler.pins.mark = self._reconcilers[POD_CPU_BINDINGS.plural].mark
        bindings.assigned = scheduler.pins.assigned
        scheduler.on_consumed = self._reconcilers[POD_RESERVATIONS.plural].mark
        reflectors = {
            "nodes": Reflector(session, NODES, on_change=scheduler.on_node, trim=scheduler.trim_node),
            "pods": pods,
            "nodecputopologies": topologies,
            "podcpubindings": Reflector(session, POD_CPU_BINDINGS, on_change=scheduler.on_binding),
            "nodecapacities": Reflector(session, NODE_CAPACITIES, on_change=scheduler.on_capacity),
            "subspacesnapshots": Reflector(session, SUBSPACE_SNAPSHOTS, on_change=model.on_snapshot),
            "podreservations": Reflector(
                session,
                POD_RESERVATIONS,
                namespace=self._namespace,
                label_selector=IN_FLIGHT_LABEL,
                on_change=scheduler.on_batch,
            ),
        }
        nodeless = NodelessObjects(
            reflectors["nodes"].store,
            [reflectors[plural].store for plural in ("nodecapacities", "subspacesnapshots", "nodecputopologies")],
            recorder,
            clock,
        )
        if not pinning:
            del self._reconcilers[POD_CPU_BINDINGS.plural]
            del reflectors["nodecputopologies"], reflectors["podcpubindings"]
        for name, reflector in reflectors.items():
            self._health.ready[name] = not_yet(reflector)
        self._health.ready["kinds"] = lambda: "not asked yet"
        self._web = await serve(self._bind, self._metrics, self._health, Watcher(scheduler.cluster, clock).routes())
        logger.info("%s started; metrics and health on %s", self._identity, self._bind)
        await self._wait_for_kinds(session)
        scheduler.owners = await read_owners(session, self._namespace, self._deployment)
        self._spawn("events", recorder.run())
        self._spawn("binding events", binding_events.run())
        scaling_events = EventRecorder(session, component="concerto-autoscaler", instance=self._identity)
        self._spawn("scaling events", scaling_events.run())
        agents = None
        if self._ask_agents:
            tokens = AgentTokens(session, self._namespace, ACCOUNT, clock)
            fresh = AgentSettings(fresh_seconds=min(5.0, self._autoscaling.controller.sync_seconds / 3))
            agents = AgentMetrics(reflectors["nodecapacities"].store, tokens, clock, fresh)
        autoscaler = PredictiveHPAController(session, scaling_events, clock, self._metrics, self._autoscaling, agents)
        watching = False

        def watch() -> None:
            nonlocal watching
            watching = True
            for name, reflector in reflectors.items():
                self._spawn(f"reflector {name}", reflector.run())

        async def stand_by() -> None:
            """A replica that does not lead at once reads the cluster meanwhile, so that it can take over warm."""
            await asyncio.sleep(_LEAD_AT_ONCE_SECONDS)
            if not watching:
                watch()
            await asyncio.Event().wait()

        async def read_afresh() -> None:
            """What another leader did to the last must be known: only lists begun after the election count."""
            if watching:
                await asyncio.gather(*(r.refresh() for r in reflectors.values()))
            else:
                watch()
                await asyncio.gather(*(r.synced.wait() for r in reflectors.values()))

        async def lead() -> None:
            self._metrics.leader.set(1)
            loads = [profiles.load, reservations.load, *([bindings.load] if pinning else ())]
            await asyncio.gather(read_afresh(), *(insist(load) for load in loads))
            async with asyncio.TaskGroup() as group:
                group.create_task(scheduler.run())
                group.create_task(keep_running("cluster model", model.run))
                if "autoscaling" in self._controllers:
                    group.create_task(keep_running("autoscaler", autoscaler.run))
                for reconciler in self._reconcilers.values():
                    group.create_task(keep_running(reconciler.kind, reconciler.run))
                group.create_task(keep_running("profiles", profiles.run))
                group.create_task(keep_running("objects without a node", nodeless.run))
                group.create_task(keep_running("metric providers", providers.run))

        election = LeaderElection(
            session,
            namespace=self._namespace,
            name=LEASE_NAME,
            identity=self._identity,
            settings=self._lease,
            owners=scheduler.owners,
            on_lost=exit_at_once,
        )

        async def elect() -> None:
            await election.run(lead)

        self._spawn("leader", elect())
        self._spawn("stand-by", stand_by())
        self._health.alive["tasks"] = self._ended_task

    async def _wait_for_kinds(self, session: Session) -> None:
        """Return when there is something to work on: kopf looks for kinds once, and gives up where nobody answers."""
        said: str | None = "not asked yet"
        self._health.ready["kinds"] = lambda: said
        while said is not None:
            now = await missing_kinds(session)
            if now not in (said, None):
                logger.warning("waiting: %s", now)
            said = now
            if said is not None:
                await asyncio.sleep(_LOOK_FOR_KINDS_SECONDS)

    def _ended_task(self) -> str | None:
        ended = [t.get_name() for t in self._tasks if t.done()]
        return f"ended: {', '.join(ended)}" if ended else None

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_end)
        self._tasks.append(task)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self.failed = True
        logger.critical("%s ended; the operator exits", task.get_name(), exc_info=task.exception())
        # No half an operator: whatever else is running stops, and the kubelet starts it afresh
        exit_at_once()

    async def _close(self) -> None:
        if self._recorder is not None:
            await self._recorder.drain(timeout_seconds=2)
        for task in self._tasks:
            task.cancel()
        # The leader gives back its Lease here
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._web is not None:
            await self._web.cleanup()
        if self._session is not None:
            await self._session.close()


def binding_timeout_seconds(lease: LeaseSettings) -> float:
    """How long one binding may take: over before anyone can succeed a leader that lost its Lease while it was sent."""
    return 0.8 * (lease.lease_duration_seconds - lease.renew_deadline_seconds)


async def missing_kinds(session: Session) -> str | None:
    """What is missing before the operator can begin, in words for a person; None when nothing is."""
    group, version = SCHEDULING_PROFILES.group, SCHEDULING_PROFILES.version
    wanted = (
        NODE_CAPACITIES,
        NODE_CPU_TOPOLOGIES,
        POD_CPU_BINDINGS,
        POD_RESERVATIONS,
        PREDICTIVE_HPAS,
        SCHEDULING_PROFILES,
        SUBSPACE_SNAPSHOTS,
    )
    try:
        served = await session.request("GET", f"/apis/{group}/{version}", attempts=1)
    except NotFound:
        served = {}
    except KubeError as error:
        return f"the API server does not answer: {error}"
    names = {item["name"] for item in served.get("resources") or ()}
    if missing := [f"{resource.plural}.{group}" for resource in wanted if resource.plural not in names]:
        return f"the API server does not serve {', '.join(missing)} yet: kubectl apply -k crds"
    return None


async def read_owners(
    session: Session, namespace: str, deployment: str | None, pause_seconds: float = 1.0
) -> list[Object]:
    """Owner references that name the operator's Deployment; none where it is not known, or not to be found.

    An API server that can't say now is asked again: what nobody owns would stay when the Deployment goes.
    """
    if deployment is None:
        return []
    while True:
        try:
            found = await session.get(DEPLOYMENTS.path(namespace, deployment))
            break
        except (NotFound, Forbidden) as error:
            logger.warning("nothing owns the Lease and the placements under way: %s", error)
            return []
        except KubeError as error:
            logger.warning("cannot begin yet: %s", error)
            await asyncio.sleep(pause_seconds)
    uid = found["metadata"]["uid"]
    return [{"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "name": deployment, "uid": uid}]


async def keep_running(name: str, run: Callable[[], Coroutine[Any, Any, None]], pause_seconds: float = 5.0) -> None:
    """Run for ever what pods can be placed without: an error in it costs a pause, and not the scheduler."""
    while True:
        try:
            return await run()
        except Exception:
            logger.exception("%s: ended by an error of ours; again in %.0f s", name, pause_seconds)
            await asyncio.sleep(pause_seconds)


async def insist(load: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do it until it has worked: without it nothing may be decided."""
    while True:
        try:
            return await load()
        except KubeError as error:
            logger.warning("cannot begin yet: %s", error)
            await asyncio.sleep(1)


def not_yet(reflector: Reflector) -> Callable[[], str | None]:
    """A readiness check: has this been listed?"""
    return lambda: None if reflector.synced.is_set() else "not listed yet"


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
