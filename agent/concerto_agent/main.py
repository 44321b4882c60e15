"""``concerto agent``: the command line of the node agent."""

from __future__ import annotations

import os

# One thread of arithmetic on 2x2 matrices; a pool of threads would cost memory and cache for nothing. Before numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
from asyncio import sslproto
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from concerto.api.arguments import add_log_level, listening, memory, number, pair
from concerto.kube import ClusterConfig, ConfigError, KubeError, Session, SessionSettings
from concerto.kube.own_version import own_version
from concerto.kube.resources import NODES, PODS
from concerto.linux.open_files import raise_open_files_limit
from concerto_agent import metrics
from concerto_agent.agent import Agent, AgentSettings
from concerto_agent.large_objects import decode_pods
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinning_settings import PinningSettings
from concerto_agent.pod_census import Object, limits_of, trim_pod
from concerto_agent.quotas import PodLimits
from concerto_agent.topology_publisher import TopologySettings

if TYPE_CHECKING:
    from concerto.serving.http_server import HttpServer
    from concerto_agent.kubelet_configz import KubeletConfigz
    from concerto_agent.nri.client import NriSettings

log = logging.getLogger("concerto_agent")

_TLS_BUFFER_BYTES = 32768  # two records
_SESSION = SessionSettings(max_page_bytes=4 * 2**20)
"""An agent may have 128 MiB. It holds two pages of a list at a time, and most nodes' pods fit into one of that size."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``concerto agent``."""
    parser.add_argument("--node-name", required=True, help="name of the Node, as its kubelet registered it")
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, the pod's service account, ~/.kube/config")
    parser.add_argument(
        "--scope",
        choices=["machine", "cgroup"],
        default="machine",
        help="measure the machine, or (for nodes that share one) only the node's cgroup (default: %(default)s)",
    )
    parser.add_argument(
        "--cgroup",
        help="the node's cgroup, relative to the hierarchies' roots: kubepods is looked for below it (default: /)",
    )
    parser.add_argument(
        "--memory-capacity",
        type=memory("1Mi", "8Pi", "8Gi"),
        metavar="QUANTITY",
        help="memory of the node in scope cgroup, such as 8Gi (default: the machine's)",
    )
    for name in ("proc", "sys"):
        text = f"where the node's /{name} is mounted (default: %(default)s)"
        parser.add_argument(f"--{name}", type=Path, default=Path(f"/{name}"), metavar="FOLDER", help=text)
    kubelet = TopologySettings()
    parser.add_argument(
        "--kubelet-state",
        type=Path,
        default=kubelet.kubelet_state,
        metavar="FILE",
        help="cpu_manager_state of the node's kubelet (default: %(default)s)",
    )
    parser.add_argument(
        "--kubelet-config",
        type=Path,
        default=kubelet.kubelet_config,
        metavar="FILE",
        help="KubeletConfiguration of the node's kubelet (default: %(default)s)",
    )
    parser.add_argument(
        "--kubelet-certificate",
        type=Path,
        metavar="FILE",
        help="serving certificate of the node's kubelet, if it has signed that itself (default: pki/kubelet.crt beside "
        "--kubelet-state)",
    )
    parser.add_argument(
        "--copy-kubelet-certificate",
        type=Path,
        metavar="FILE",
        help="copy that certificate to FILE if there is one, and exit: for an init container, so that the agent need "
        "not see kubelet's folder pki, where its key lies",
    )
    parser.add_argument(
        "--pod-metrics-bind",
        type=listening,
        metavar="HOST:PORT",
        help="serve CPU and memory of the node's pods there over TLS, for autoscaling (default: not served)",
    )
    pinning = parser.add_argument_group("pinning", "needs the rights of manifests/components/pinning")
    pinning.add_argument("--pinning", action="store_true", help="write the cpusets of pods as PodCPUBindings ask")
    pinning.add_argument(
        "--daemon-set",
        type=pair("NAMESPACE/NAME", "concerto-system/concerto-agent"),
        metavar="NAMESPACE/NAME",
        help="the DaemonSet of this agent; if it is gone when the agent stops, all pins are released",
    )
    pinning.add_argument(
        "--repair-period",
        type=number(1.0, 3600.0, f"{PinningSettings().repair_seconds:g}"),
        default=PinningSettings().repair_seconds,
        metavar="SECONDS",
        help="time between two checks of every pod's cpuset, 1 to 3600 (default: %(default)g)",
    )
    pinning.add_argument(
        "--nri-socket",
        type=Path,
        metavar="FILE",
        help="socket of the container runtime for plugins of NRI (containerd 2 and CRI-O: /var/run/nri/nri.sock), so "
        "that containers are created with their cpusets (default: the runtime is not asked)",
    )
    pinning.add_argument(
        "--release",
        action="store_true",
        help="give every pod of the node its unpinned cpuset and its CPU quota back, and exit",
    )
    parser.add_argument(
        "--metrics-bind",
        type=listening,
        metavar="HOST:PORT",
        help="serve /healthz, /readyz, /debug/trace and /metrics there (default: not served)",
    )
    parser.add_argument(
        "--secure-metrics-bind",
        type=listening,
        metavar="HOST:PORT",
        help="serve /metrics there, over TLS and to callers that may get it, and not at --metrics-bind; takes the "
        "right to create TokenReviews and SubjectAccessReviews",
    )
    add_log_level(parser)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    logging.basicConfig(
        level=args.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    certificate = args.kubelet_certificate or args.kubelet_state.with_name("pki") / "kubelet.crt"
    if args.copy_kubelet_certificate:
        return _copy_certificate(certificate, args.copy_kubelet_certificate)
    where = NodeFiles(
        scope="Machine" if args.scope == "machine" else "Cgroup",
        cgroup=(args.cgroup or "/").strip("/"),
        memory_capacity_bytes=args.memory_capacity,
        proc=args.proc,
        sys=args.sys,
    )
    if where.scope == "Cgroup" and args.cgroup is None:
        text = "--scope cgroup needs --cgroup; give / where the node's cgroup is the root that this process sees"
        print(f"concerto agent: {text}", file=sys.stderr)
        return 2
    pinning = PinningSettings(
        kubelet_state=args.kubelet_state,
        daemon_set=args.daemon_set,
        repair_seconds=args.repair_period,
        nri=_nri_settings(args.nri_socket),
    )
    if args.release:
        return _release(args, where, pinning, certificate)
    raise_open_files_limit()
    try:
        config = ClusterConfig.load(args.kubeconfig)
        topology = TopologySettings(kubelet_state=args.kubelet_state, kubelet_config=args.kubelet_config)
        settings = AgentSettings(topology=topology)
        binds = metrics.Binds(args.metrics_bind, args.secure_metrics_bind, args.pod_metrics_bind)
        configz = None
        if args.pinning:  # whose component gives the right
            from concerto_agent.kubelet_configz import ConfigzSettings, KubeletConfigz

            configz = KubeletConfigz(config, args.node_name, ConfigzSettings(args.kubelet_config, certificate))
            settings = replace(settings, pinning=replace(pinning, sets_quotas=configz.sets_quotas))
        return asyncio.run(_run(config, args.node_name, where, settings, binds, configz))
    except ConfigError as error:
        print(f"concerto agent: {error}", file=sys.stderr)
        return 2


def _nri_settings(socket: Path | None) -> NriSettings | None:
    if socket is None:
        return None
    from concerto_agent.nri.client import NriSettings

    return NriSettings(socket)


def _copy_certificate(source: Path, target: Path) -> int:
    """A kubelet whose certificate the cluster's authority signs has no such file, and needs none."""
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        content = None
    except OSError as error:
        return _not_copied(f"{source} cannot be read: {error.strerror}")
    if content is None:
        if not target.parent.is_dir():  # or the mistake shows only once a kubelet has a certificate
            return _not_copied(f"{target} cannot be written: there is no folder {target.parent}")
        log.info("kubelet has no %s: its certificate has to be signed by the cluster's authority", source)
        return 0
    try:
        target.write_bytes(content)
    except OSError as error:
        return _not_copied(f"{target} cannot be written: {error.strerror}")
    return 0


def _not_copied(why: str) -> int:
    print(f"concerto agent: --copy-kubelet-certificate: {why}", file=sys.stderr)
    return 1


def _release(args: argparse.Namespace, where: NodeFiles, pinning: PinningSettings, certificate: Path) -> int:
    """Cpusets need the node alone; which quotas its pods had, the API server knows, and kubelet whether it sets any."""
    from concerto_agent.pinning_release import release

    limits, sets_quotas, problem = None, None, ""
    try:
        config = ClusterConfig.load(args.kubeconfig)
        limits, node = asyncio.run(_pods_and_node(config, args.node_name, pinning.release_timeout_seconds))
        sets_quotas = asyncio.run(kubelet_sets_quotas(node, config, args, certificate))
        if sets_quotas is None:
            problem = (
                f"neither kubelet nor {args.kubelet_config} says whether it sets CPU quotas (--kubelet-certificate, "
                "--kubelet-config)"
            )
    except (ConfigError, KubeError, TimeoutError) as error:
        problem = f"the node's pods can't be read: {error or type(error).__name__}"
    try:
        release(where, replace(pinning, sets_quotas=lambda: sets_quotas), time.time, limits)
    except (OSError, ValueError) as error:
        print(f"concerto agent: pins are not released: {error}", file=sys.stderr)
        return 1
    if problem:
        text = "cpusets are restored; a lifted CPU quota comes back only with the pod's next container"
        print(f"concerto agent: {text}: {problem}", file=sys.stderr)
        return 1
    return 0


async def _pods_and_node(
    config: ClusterConfig, node_name: str, within_seconds: float
) -> tuple[dict[str, PodLimits], Object]:
    """CPU limits of the node's pods, and the Node; that is empty if it can't be read."""
    pods: list[Object] = []
    async with asyncio.timeout(within_seconds), await Session.open(config, _SESSION) as session:
        of_node = f"spec.nodeName={node_name}"
        async for page in session.pages(PODS.path(), field_selector=of_node, decode=decode_pods):
            pods.extend(map(trim_pod, page.get("items") or ()))
        node: Object = {}
        with contextlib.suppress(KubeError):
            node = await session.get(NODES.path(name=node_name))
    return limits_of(pods), node


async def kubelet_sets_quotas(
    node: Object, config: ClusterConfig, args: argparse.Namespace, certificate: Path
) -> bool | None:
    """Whether kubelet sets CPU quotas, as it answers, else as its file says; None if neither is known.

    Args:
        node: the Node, as the API server has it.
        config: credentials and certificate authority.
        args: with name of the node and kubelet's configuration file.
        certificate: kubelet's.
    """
    from concerto_agent.kubelet_configz import ConfigzSettings, KubeletConfigz

    configz = KubeletConfigz(config, args.node_name, ConfigzSettings(args.kubelet_config, certificate))
    await configz.refresh(node)
    return configz.sets_quotas()


def _keep_tls_buffers_small() -> None:
    """Asyncio keeps a buffer of 256 KiB for each TLS connection, by default, and makes another at each read.

    An agent has five connections, on which little comes: a larger answer is read in several pieces.
    """
    sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES


async def _run(
    config: ClusterConfig,
    node_name: str,
    where: NodeFiles,
    settings: AgentSettings,
    binds: metrics.Binds,
    configz: KubeletConfigz | None,
) -> int:
    _keep_tls_buffers_small()
    async with await Session.open(config, _SESSION) as session:
        agent = Agent(session, node_name, where, own_version() or "unknown", settings, configz=configz)
        try:
            servers = await metrics.serve(binds, agent.counters, agent.gauges, agent.unwell, agent.trace.text, session)
            if binds.pod_metrics:
                servers += await _serve_pod_metrics(agent, session, node_name, binds.pod_metrics)
        except OSError as error:
            raise ConfigError(error.strerror or str(error)) from error
        work = asyncio.ensure_future(agent.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        log.info("measuring %s, scope %s %s", node_name, where.scope, where.cgroup)
        try:
            await work
        except asyncio.CancelledError:
            log.info("stopping")
            await agent.release_on_uninstall()
        finally:
            for server in servers:
                await server.cleanup()
    return 0


async def _serve_pod_metrics(agent: Agent, session: Session, node_name: str, bind: str) -> list[HttpServer]:
    """Serve them where the node can: without them the autoscaler asks metrics.k8s.io, and measuring goes on.

    Raises:
        OSError: the address can't be bound.
    """
    from concerto.kube.access_review import AccessReviewer
    from concerto.serving import certificate
    from concerto_agent import pod_metrics_server

    readings = agent.pod_metrics()
    if readings is None:
        log.error("no cgroups to read pods from: their metrics are not served")
        return []
    try:
        identity = certificate.make_certificate()
    except certificate.CertificateError as error:
        log.error("metrics of pods are not served: %s", error)
        return []
    callers = AccessReviewer(session, pod_metrics_server.read_pod_metrics(node_name))
    server, endpoint = await pod_metrics_server.serve(bind, readings, callers, identity)
    agent.serves_pod_metrics(endpoint)
    return [server]
