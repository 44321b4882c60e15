"""`concerto top`: capacity and load of nodes, Trimaran's mu-sigma plot (docs/references.md), and a node's CPUs.

Each node is a point at the mean and the standard deviation of its load. Above the line sigma = 1 - mu, load is likely
to exceed the node: good placement moves points below it and together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from concerto.api.nodecapacity import NodeCapacity, Window
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.cli.explain import build_snapshot, read_kinds
from concerto.cli.top_cpus import draw, fetch
from concerto.kube import ClusterConfig, ConfigError, KubeError, NotFound, Object, Session
from concerto.kube.kubeconfig import add_cluster_arguments, load_config
from concerto.kube.resources import NODE_CAPACITIES, NODES, PODS
from concerto.scheduling.state.cluster import ClusterState

_RESOURCES = ("cpu", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto top`."""
    parser.add_argument(
        "view", nargs="?", choices=["nodes", "cpus"], default="nodes", help="cpus: draw one node's CPUs"
    )
    parser.add_argument("node", nargs="?", help="the node, with cpus")
    add_cluster_arguments(parser)
    parser.add_argument("--window", choices=["5m", "10m", "15m"], default="5m", help="over which load is averaged")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the mu-sigma plot (PNG, SVG or PDF)")
    parser.add_argument(
        "--before",
        metavar="DUMP",
        type=Path,
        help="draw these as well: what `kubectl get ncap -o json` printed earlier",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table, and draw if asked to."""
    if (args.view == "cpus") != (args.node is not None):
        print("concerto top: cpus goes with the name of a node: concerto top cpus NODE", file=sys.stderr)
        return 2
    if args.view == "cpus":
        return _run_cpus(args)
    try:
        before = read_dump(args.before) if args.before else []
        capacities, commitments = asyncio.run(_fetch(load_config(args.kubeconfig, args.context)))
    except (ConfigError, KubeError, OSError, ValueError) as error:
        print(f"concerto top: {error}", file=sys.stderr)
        return 1
    print(table(capacities, args.window, time.time(), commitments))
    if args.plot:
        try:
            plot(args.plot, args.window, capacities, before)
        except ImportError:
            print("concerto top: --plot needs matplotlib: pip install 'concerto-k8s[plots]'", file=sys.stderr)
            return 1
        except (OSError, ValueError) as error:
            print(f"concerto top: --plot {args.plot}: {error}", file=sys.stderr)
            return 1
        print(f"\n{args.plot}")
    return 0


def _run_cpus(args: argparse.Namespace) -> int:
    try:
        from rich.console import Console

        topology, bindings = asyncio.run(_fetch_cpus(load_config(args.kubeconfig, args.context), args.node))
        Console().print(draw(topology, bindings))
    except ImportError:
        print("concerto top: cpus needs rich: pip install 'concerto-k8s[plots]'", file=sys.stderr)
        return 1
    except NotFound:
        print(f"concerto top: there is no NodeCPUTopology {args.node}: is the node's agent running?", file=sys.stderr)
        return 1
    except (ConfigError, KubeError, OSError, ValueError, KeyError) as error:
        print(f"concerto top: {error}", file=sys.stderr)
        return 1
    return 0


async def _fetch_cpus(config: ClusterConfig, node: str) -> tuple[NodeCPUTopology, list[Object]]:
    async with await Session.open(config) as session:
        return await fetch(session, node)


async def _fetch(config: ClusterConfig) -> tuple[list[NodeCapacity], dict[str, Commitment]]:
    async with await Session.open(config) as session:
        capacities, nodes, pods, kinds = await asyncio.gather(
            *(session.list(kind.path()) for kind in (NODE_CAPACITIES, NODES, PODS)), read_kinds(session)
        )
    cluster = build_snapshot(nodes["items"], pods["items"], capacities["items"], (), time.time(), kinds=kinds)
    return [NodeCapacity.from_raw(obj) for obj in capacities["items"]], commitments_of(cluster)


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
        raise ValueError(f"{path} is not what `kubectl get ncap -o json` prints: {error!r}") from error


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
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


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
