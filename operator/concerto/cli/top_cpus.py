"""`concerto top cpus NODE`: the machine as it is built, and who sits where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.podcpubinding import PodCPUBinding
from concerto.kube import Object, Session
from concerto.kube.resources import NODE_CPU_TOPOLOGIES, POD_CPU_BINDINGS
from concerto.pinning.topology import TopologyIndex, bits, to_mask

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


@dataclass(frozen=True)
class Seat:
    """One logical CPU.

    Attributes:
        cpu: its number.
        who: pods that run on it, by name; else whose it is, in words.
        style: how it is drawn.
    """

    cpu: int
    who: str
    style: str


async def fetch(session: Session, node: str) -> tuple[NodeCPUTopology, list[Object]]:
    """The node's topology, and the bindings on it, by namespace and name.

    Raises:
        NotFound: the node has no NodeCPUTopology.
    """
    topology = NodeCPUTopology.from_raw(await session.get(NODE_CPU_TOPOLOGIES.path(name=node)))
    listed = await session.list(POD_CPU_BINDINGS.path(), field_selector=f"status.nodeName={node}")
    return topology, sorted(listed["items"], key=lambda b: (b["metadata"]["namespace"], b["metadata"]["name"]))


def seats(node: NodeCPUTopology, bindings: Sequence[Object]) -> dict[int, Seat]:
    """Who sits on each online CPU.

    Args:
        node: with a topology.
        bindings: those on the node, raw; of those that hold no CPUs nothing is shown.
    """
    if node.topology is None:
        return {}
    index = TopologyIndex.build(node.topology)
    pods: dict[int, list[str]] = {}
    exclusive: dict[int, str] = {}
    style: dict[str, str] = {}
    for number, obj in enumerate(b for b in bindings if (b.get("status") or {}).get("cpus")):
        view = PodCPUBinding.from_raw(obj)
        style[view.pod_name] = _COLOURS[number % len(_COLOURS)]
        cpus = to_mask(parse_cpu_list(obj["status"]["cpus"]))
        for cpu in bits(cpus):
            pods.setdefault(cpu, []).append(view.pod_name)
        for cpu in bits(index.closure(cpus, view.level) & ~cpus):
            exclusive[cpu] = view.pod_name
    found = {}
    for cpu in bits(index.online):
        if cpu in pods:
            found[cpu] = Seat(cpu, ", ".join(pods[cpu]), f"bold {style[pods[cpu][0]]}")
        elif cpu in exclusive:
            found[cpu] = Seat(cpu, f"kept for {exclusive[cpu]}", f"dim {style[exclusive[cpu]]}")
        elif cpu in node.pools.kubelet_exclusive:
            found[cpu] = Seat(cpu, "kubelet's", "bold white")
        elif cpu in node.pools.reserved:
            found[cpu] = Seat(cpu, "shared, reserved", "dim")
        else:
            found[cpu] = Seat(cpu, "shared", "dim")
    return found


def draw(node: NodeCPUTopology, bindings: Sequence[Object]) -> RenderableType:
    """Sockets, in them memory nodes, in them cores, in them hardware threads; then the bindings.

    Raises:
        ImportError: rich is not installed.
    """
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    topology = node.topology
    if topology is None:
        return Text(f"NodeCPUTopology {node.name} has no status: is the agent of the node running?")
    by_cpu = seats(node, bindings)
    sockets = []
    for socket, cpus in sorted(topology.sockets.items()):
        memories = []
        for number, near in sorted(topology.numa_nodes.items()):
            boxes = []
            for core in (c for c in topology.cores if c.socket == socket and c.cpus & near):
                threads = [by_cpu[cpu] for cpu in sorted(core.cpus)]
                text = Text("\n").join(Text(f"{seat.cpu:>3} {seat.who}", seat.style) for seat in threads)
                boxes.append(Panel(text, title=f"core {core.number}", title_align="left"))
            if boxes:
                title = f"memory node {number}: CPUs {format_cpu_list(near & cpus)}"
                memories.append(Panel(Columns(boxes, equal=True), title=title, title_align="left", style="none"))
        sockets.append(Panel(Group(*memories), title=f"socket {socket}", title_align="left"))
    counts = topology.counts()
    offline = f", switched off {format_cpu_list(topology.offline)}" if topology.offline else ""
    head = Text(
        f"{node.name}: {counts['sockets']} sockets, {counts['cores']} cores, {counts['cpus']} CPUs, "
        f"{counts['numaNodes']} memory nodes{offline}"
    )
    table = Table("POD", "BINDING", "CPUS", "MEMS", "EXCLUSIVE", "STATUS", box=None, pad_edge=False)
    for obj in bindings:
        view, status = PodCPUBinding.from_raw(obj), obj.get("status") or {}
        table.add_row(
            f"{view.namespace}/{view.pod_name}",
            view.name,
            status.get("cpus", "-"),
            status.get("mems", "-"),
            view.level,
            status.get("resourceStatus", "-"),
        )
    return Group(head, *sockets, *([table] if bindings else [Text("No PodCPUBinding is on the node.")]))
