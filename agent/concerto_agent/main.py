"""``concerto agent``: the command line of the node agent."""

from __future__ import annotations

import os

# One thread of arithmetic on 2x2 matrices; a pool of threads would cost memory and cache for nothing. Before numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import logging
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from concerto.api.quantities import whole
from concerto.kube import ClusterConfig, ConfigError, Session
from concerto_agent import metrics
from concerto_agent.agent import Agent, AgentSettings
from concerto_agent.sampler import SamplerSettings
from concerto_agent.topology_publisher import TopologySettings

log = logging.getLogger("concerto_agent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``concerto agent``."""
    parser.add_argument("--node-name", required=True, help="name of the Node, as its kubelet has it")
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, the pod's service account, ~/.kube/config")
    parser.add_argument(
        "--scope",
        choices=["machine", "cgroup"],
        default="machine",
        help="measure the machine, or (for nodes that share one) only the node's cgroup",
    )
    parser.add_argument(
        "--cgroup",
        help="the node's cgroup, relative to the hierarchies' roots: kubepods is looked for below it (default: /)",
    )
    parser.add_argument(
        "--memory-capacity",
        type=whole,
        metavar="QUANTITY",
        help="memory of the node in scope cgroup, such as 8Gi (default: the machine's)",
    )
    parser.add_argument("--proc", type=Path, default=Path("/proc"), help="where the node's /proc is mounted")
    parser.add_argument("--sys", type=Path, default=Path("/sys"), help="where the node's /sys is mounted")
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
    parser.add_argument("--metrics-bind", metavar="HOST:PORT", help="serve /metrics and /healthz there (default: not)")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    logging.basicConfig(
        level=args.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    where = SamplerSettings(
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
    try:
        config = ClusterConfig.load(args.kubeconfig)
        topology = TopologySettings(kubelet_state=args.kubelet_state, kubelet_config=args.kubelet_config)
        return asyncio.run(_run(config, args.node_name, where, AgentSettings(topology=topology), args.metrics_bind))
    except ConfigError as error:
        print(f"concerto agent: {error}", file=sys.stderr)
        return 2


async def _run(
    config: ClusterConfig, node_name: str, where: SamplerSettings, settings: AgentSettings, metrics_bind: str | None
) -> int:
    async with await Session.open(config) as session:
        agent = Agent(session, node_name, where, _version(), settings)
        server = None
        if metrics_bind:
            server = await metrics.serve(metrics_bind, agent.counters, agent.gauges, agent.unwell)
        work = asyncio.ensure_future(agent.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        log.info("measuring %s, scope %s %s", node_name, where.scope, where.cgroup)
        try:
            await work
        except asyncio.CancelledError:
            log.info("asked to stop")
        finally:
            if server is not None:
                await server.cleanup()
    return 0


def _version() -> str:
    try:
        return version("concerto-k8s")
    except PackageNotFoundError:
        return "unknown"
