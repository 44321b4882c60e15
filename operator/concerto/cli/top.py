"""`concerto top`: capacity and load of nodes, Trimaran's mu-sigma plot (docs/references.md), and single nodes.

Each node is a point at the mean and the standard deviation of its load. Above the line sigma = 1 - mu, load is likely
to exceed the node: good placement moves points below it and together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from concerto.api.arguments import duration, http_url
from concerto.api.nodecapacity import NodeCapacity, Window
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.cli.cluster_reading import complain, list_all, printable, put_all, shortened
from concerto.cli.explain import build_snapshot, full_table_note, read_kinds, split_name
from concerto.cli.explain_phpa import fetch as fetch_phpa
from concerto.cli.node_traces import NodeTrace, TraceError, Where, read_traces
from concerto.cli.top_cpus import draw, fetch
from concerto.cli.top_node import aligned, kinds_table, plot_traces, trace_tables
from concerto.cli.top_phpa import load_table, plot_load
from concerto.kube import ClusterConfig, ConfigError, KubeError, NotFound, Object, Session
from concerto.kube.kubeconfig import add_cluster_arguments, load_config
from concerto.kube.resources import NODE_CAPACITIES, NODES, PODS
from concerto.scheduling.state.cluster import ClusterState

_RESOURCES = ("cpu", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto top`."""
    parser.add_argument(
        "view",
        nargs="?",
        choices=["nodes", "node", "cpus", "phpa"],
        default="nodes",
        help="nodes: what nodes can take, the default; node: what the kinds of pods on one node cost; cpus: draw one "
        "node's CPUs; phpa: the load of a PredictiveHPA and its forecast",
    )
    parser.add_argument("node", nargs="?", metavar="NAME", help="the node, or with phpa NAMESPACE/NAME")
    add_cluster_arguments(parser)
    parser.add_argument(
        "--window",
        choices=["5m", "10m", "15m"],
        default="5m",
        help="over which load is averaged (default: %(default)s)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw the mu-sigma plot, the trace, or the load (PNG, SVG or PDF)"
    )
    parser.add_argument(
        "--before",
        metavar="DUMP",
        type=Path,
        help="draw these as well: what `kubectl get ncap -o json` printed earlier",
    )
    trace = parser.add_argument_group("trace", "what the laws that limit a node's pods have computed, with node")
    trace.add_argument("--trace", action="store_true", help="print the numbers of the last minutes")
    for name, default, help_ in (("last", "5m", "how far back"), ("every", "10s", "a line for each")):
        trace.add_argument(
            f"--{name}",
            type=duration("100ms", "24h", default),
            default=default,
            metavar="DURATION",
            help=f"{help_} (default: %(default)s)",
        )
    trace.add_argument(
        "--operator-namespace",
        default="concerto-system",
        help="where the pods of agent and operator are (default: %(default)s)",
    )
    for name, port in (("agent", 9101), ("operator", 8080)):
        trace.add_argument(
            f"--{name}",
            metavar="URL",
            type=http_url(f"http://127.0.0.1:{port}"),
            help=f"the {name}'s HTTP endpoint, in place of its pod's",
        )


def run(args: argparse.Namespace) -> int:
    """Print the table, and draw if asked to."""
    if (args.view != "nodes") != (args.node is not None):
        complain(
            "top",
            "node, cpus and phpa go with a name, and it with them: concerto top node NODE, "
            "concerto top cpus NODE, concerto top phpa NAMESPACE/NAME",
        )
        return 2
    if (problem := _contradiction(args)) is not None:
        complain("top", problem)
        return 2
    if args.view == "cpus":
        return _run_cpus(args)
    if args.view == "node":
        return _run_node(args)
    if args.view == "phpa":
        return _run_phpa(args)
    try:
        before = read_dump(args.before) if args.before else []
        capacities, commitments = asyncio.run(_fetch(load_config(args.kubeconfig, args.context)))
    except (ConfigError, KubeError, OSError, ValueError) as error:
        complain("top", error)
        return 1
    print(printable(table(capacities, args.window, time.time(), commitments)))
    if args.plot:
        return _drawn(args.plot, lambda: plot(args.plot, args.window, capacities, before))
    return 0


def _contradiction(args: argparse.Namespace) -> str | None:
    """What is wrong with options that would have no effect; None if nothing is."""
    if args.trace and args.view != "node":
        return "--trace goes with one node: concerto top node NODE --trace"
    if (args.agent or args.operator) and not args.trace:
        return "--agent and --operator say where a trace is read: concerto top node NODE --trace"
    if args.plot and args.view == "node" and not args.trace:
        return "--plot draws the trace of one node: concerto top node NODE --trace --plot FILE"
    if args.plot and args.view == "cpus":
        return "cpus is drawn in the terminal: --plot goes with all nodes, with node NODE --trace, and with phpa"
    if args.before and not (args.plot and args.view == "nodes"):
        return "--before is drawn beside the present load of all nodes: concerto top --plot FILE --before DUMP"
    return None


def _drawn(path: Path, draw_it: Callable[[], None]) -> int:
    """Draw, and print where the picture is; the exit status."""
    try:
        draw_it()
    except ImportError:
        complain("top", "--plot needs matplotlib: pip install '.[plots]' in Concerto's folder")
        return 1
    except (OSError, ValueError) as error:
        complain("top", f"--plot {path}: {error}")
        return 1
    print(f"\n{path}")
    return 0


def _run_cpus(args: argparse.Namespace) -> int:
    try:
        from rich.console import Console

        topology, bindings = asyncio.run(_fetch_cpus(load_config(args.kubeconfig, args.context), args.node))
        Console().print(draw(topology, bindings))
    except ImportError:
        complain("top", "cpus needs rich: pip install '.[plots]' in Concerto's folder")
        return 1
    except (ConfigError, KubeError, OSError, ValueError) as error:
        complain("top", error)
        return 1
    return 0


def _run_phpa(args: argparse.Namespace) -> int:
    named = split_name(args.node)
    if named is None:
        complain("top", f"{args.node!r} is not the name of a PredictiveHPA: give NAMESPACE/NAME")
        return 2
    try:
        obj = asyncio.run(fetch_phpa(load_config(args.kubeconfig, args.context), *named))
        print(printable(load_table(obj)))
    except NotFound:
        complain("top", f"there is no PredictiveHPA {'/'.join(named)}")
        return 1
    except (ConfigError, KubeError, ValueError) as error:
        complain("top", error)
        return 1
    return _drawn(args.plot, lambda: plot_load(args.plot, obj)) if args.plot else 0


def _run_node(args: argparse.Namespace) -> int:
    now = time.time()
    try:
        capacities, cluster, traces = asyncio.run(_fetch_node(load_config(args.kubeconfig, args.context), args))
    except (ConfigError, KubeError, OSError, ValueError, TraceError) as error:
        complain("top", error)
        return 1
    found = [capacity for capacity in capacities if capacity.name == args.node]
    if not found:
        complain("top", f"there is no NodeCapacity {args.node}: is the node's agent running?")
        return 1
    print(printable(f"{table(found, args.window, now, commitments_of(cluster))}\n\n{kinds_table(cluster, args.node)}"))
    if traces is None:
        return 0
    agent, operator = (trace.every(args.every, now - args.last) for trace in traces)
    print(printable(f"\n{trace_tables(agent, operator)}"))
    if args.plot:
        whole = [trace.every(1.0, now - args.last) for trace in traces]
        return _drawn(args.plot, lambda: plot_traces(args.plot, args.node, whole[0], whole[1]))
    return 0


async def _fetch_node(
    config: ClusterConfig, args: argparse.Namespace
) -> tuple[list[NodeCapacity], ClusterState, tuple[NodeTrace, NodeTrace] | None]:
    async with await Session.open(config) as session:
        capacities, cluster = await _read(session)
        where = Where(args.operator_namespace, args.agent, args.operator)
        return capacities, cluster, await read_traces(session, args.node, where) if args.trace else None


async def _fetch_cpus(config: ClusterConfig, node: str) -> tuple[NodeCPUTopology, list[Object]]:
    async with await Session.open(config) as session:
        return await fetch(session, node)


async def _fetch(config: ClusterConfig) -> tuple[list[NodeCapacity], dict[str, Commitment]]:
    async with await Session.open(config) as session:
        capacities, cluster = await _read(session)
    return capacities, commitments_of(cluster)


async def _read(session: Session) -> tuple[list[NodeCapacity], ClusterState]:
    capacities, nodes, pods, kinds = await asyncio.gather(
        list_all(session, NODE_CAPACITIES), list_all(session, NODES), list_all(session, PODS), read_kinds(session)
    )
    found, problems = list[NodeCapacity](), list[str]()
    put_all("NodeCapacity", capacities, lambda raw: found.append(NodeCapacity.from_raw(raw)), problems)
    readable = {capacity.name for capacity in found}
    capacities = [raw for raw in capacities if raw["metadata"]["name"] in readable]
    cluster = build_snapshot(nodes, pods, capacities, (), time.time(), kinds=kinds, problems=problems)
    for note in full_table_note(kinds) + shortened(problems):
        complain("top", note)
    return found, cluster


@dataclass(frozen=True)
class Commitment:
    """What the pods of a node take by their kinds, and what they request, as fractions of the node by resource.

    Attributes:
        committed: by what pods of their kinds were measured to cost; None while agents have measured no kind.
        requested: by requests.
    """

    committed: Mapping[str, float] | None
    requested: Mapping[str, float]


def commitments_of(cluster: ClusterState) -> dict[str, Commitment]:
    """By node, what its pods take and request of it."""
    found, loads = {}, cluster.kinds.loads
    for name, row in cluster.row_of.items():
        if not cluster.nodes.exists[row] or not (machine := cluster.nodes.machine[:, row]).all():
            continue
        rows = np.array([row])
        requested = {r: float(cluster.resources.used(r, rows)[0] / machine[i]) for i, r in enumerate(_RESOURCES)}
        committed = {"cpu": float(1000 * loads.cpu[row] / machine[0]), "memory": float(loads.memory[row] / machine[1])}
        found[name] = Commitment(committed if cluster.kinds else None, requested)
    return found


def read_dump(path: Path) -> list[NodeCapacity]:
    """NodeCapacities as `kubectl get ncap -o json` prints them.

    Raises:
        ValueError: it is something else.
    """
    try:
        items = json.loads(path.read_text())["items"]
        if any(obj["kind"] != "NodeCapacity" for obj in items):
            raise ValueError("not all of it are NodeCapacities")
        return [NodeCapacity.from_raw(obj) for obj in items]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not what `kubectl get ncap -o json` prints: {why}") from error


def loads(capacity: NodeCapacity, window: str) -> dict[str, Window]:
    """What was measured of a node over a window, by resource."""
    windows = capacity.status.windows if capacity.status else ()
    return {w.resource: w for w in windows if w.window == window and w.resource in _RESOURCES and w.covered_seconds > 0}


def table(
    capacities: Sequence[NodeCapacity], window: str, now: float, commitments: Mapping[str, Commitment] | None = None
) -> str:
    """One line for each node, in percent of the node.

    Load is given as mean and standard deviation. Committed is what the pods there are taken to cost of CPU and of
    memory, and requested is what they request of each.
    """
    rows = [["NODE", "CAN TAKE", "OVER BY", "PODS", "CPU", "MEMORY", "COMMITTED", "REQUESTED", "LAST STATUS"]]
    for capacity in sorted(capacities, key=lambda c: c.name):
        status = capacity.status
        if status is None:
            rows.append([capacity.name, *"-----", *_committed(capacity.name, commitments or {}), "never"])
            continue
        found = loads(capacity, window)
        cells = [_cell(found.get(resource)) for resource in _RESOURCES]
        age = f"{max(0.0, now - status.observed_at):.0f}s ago"
        free = f"{max(status.capacity, 0.0):.1f}"
        excess = f"{-status.capacity:.1f}" if status.capacity < 0 else "-"
        rest = [*cells, *_committed(capacity.name, commitments or {}), age]
        rows.append([capacity.name, free, excess, str(status.pod_count), *rest])
    return aligned(rows)


def _committed(node: str, commitments: Mapping[str, Commitment]) -> list[str]:
    if (of := commitments.get(node)) is None:
        return ["-", "-"]
    return [
        "-" if each is None else f"{each['cpu']:.0%}, {each['memory']:.0%}" for each in (of.committed, of.requested)
    ]


def _cell(window: Window | None) -> str:
    return "-" if window is None else f"{100 * window.average:.0f}% ± {100 * window.standard_deviation:.0f}"


def plot(path: Path, window: str, now: Sequence[NodeCapacity], before: Sequence[NodeCapacity]) -> None:
    """Write the mu-sigma plot; hollow points are from before.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it draws no files with such an ending.
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for capacities, when, filled in ((before, "before", False), (now, "now", True)):
        # Of a node whose cpu and memory are alike, both are to be seen
        for resource, colour, marker in zip(_RESOURCES, ("tab:blue", "tab:orange"), ("o", "D")):
            points = [found[resource] for c in capacities if resource in (found := loads(c, window))]
            if points:
                axes.scatter(
                    [p.average for p in points],
                    [p.standard_deviation for p in points],
                    s=24,
                    marker=marker,
                    edgecolors=colour,
                    facecolors=colour if filled else "none",
                    alpha=0.6,
                    clip_on=False,
                    label=f"{resource}, {when}" if before else resource,
                )
    axes.plot([0, 1], [1, 0], color="grey", linewidth=1, label="σ = 1 - μ")
    axes.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="μ: mean of load", ylabel="σ: standard deviation", title=f"{window} windows"
    )
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format=path.suffix[1:] or "png")
