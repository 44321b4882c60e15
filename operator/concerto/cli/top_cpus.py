"""`concerto top cpus NODE`: the machine as it is built, and who sits where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from concerto.api.conditions import find_condition
from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.nodecputopology import CPUTopology, NodeCPUTopology
from concerto.api.podcpubinding import Level, PodCPUBinding
from concerto.cli.cluster_reading import CannotRead, put_all
from concerto.kube import NotFound, Object, Session
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
    """The node's topology, and the bindings on it that can be read, by namespace and name.

    Raises:
        CannotRead: the node has no NodeCPUTopology, or one that cannot be read, or there is no such kind.
    """
    try:
        raw = await session.get(NODE_CPU_TOPOLOGIES.path(name=node))
    except NotFound as error:
        raise CannotRead(f"there is no NodeCPUTopology {node}: is the node's agent running?") from error
    try:
        topology = NodeCPUTopology.from_raw(raw)
    except Exception as error:
        raise CannotRead(f"NodeCPUTopology {node} cannot be read: {type(error).__name__}: {error}") from error
    try:
        listed = await session.list(POD_CPU_BINDINGS.path(), field_selector=f"status.nodeName={node}")
    except NotFound as error:
        raise CannotRead("the API server knows no PodCPUBinding: `kubectl apply -k crds` installs the kind") from error
    found = list[Object]()

    def put(raw: Object) -> None:
        PodCPUBinding.from_raw(raw)
        parse_cpu_list((raw.get("status") or {}).get("cpus", ""))
        found.append(raw)

    put_all("PodCPUBinding", listed["items"], put, [])  # it holds no CPUs, so it is not drawn
    return topology, sorted(found, key=lambda b: (b["metadata"]["namespace"], b["metadata"]["name"]))


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
        for cpu in bits(index.closure(cpus, level_of(obj)) & ~cpus):
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


@dataclass(frozen=True)
class Threads:
    """How much of a node bound pods take.

    Attributes:
        asked: threads of bound pods; pods that share a CPU count one each.
        running_on: CPUs that one of them has exclusively.
        kept: CPUs that are kept free for them.
        online: CPUs of the node.
    """

    asked: int
    running_on: int
    kept: int
    online: int

    def __str__(self) -> str:
        """One line for people."""
        taken = self.running_on + self.kept
        share = f" ({100 * taken / self.online:.0f} %)" if self.online else ""
        return (
            f"{self.asked} threads of bound pods; {self.running_on} exclusive CPUs, {self.kept} kept free: "
            f"{taken} of {self.online} CPUs{share} are taken from the shared pool"
        )


def count_threads(topology: CPUTopology, bindings: Sequence[Object]) -> Threads:
    """Utilisation of a node by the threads of bound pods. Source: Stefanakis, section 8.3.1."""
    index = TopologyIndex.build(topology)
    asked, running_on, exclusive = 0, 0, 0
    for obj in bindings:
        cpus = to_mask(parse_cpu_list((obj.get("status") or {}).get("cpus", ""))) & index.online
        asked += cpus.bit_count()
        running_on |= cpus
        exclusive |= index.closure(cpus, level_of(obj))
    # CPUs at exclusiveness None are still shared with everybody
    return Threads(
        asked, (running_on & exclusive).bit_count(), (exclusive & ~running_on).bit_count(), index.online.bit_count()
    )


def level_of(obj: Object) -> Level:
    """The exclusiveness of a binding as it was validated."""
    level: Level = (obj.get("status") or {}).get("exclusivenessLevel") or PodCPUBinding.from_raw(obj).level
    return level


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
    table = Table("POD", "BINDING", "CPUS", "MEMS", "EXCLUSIVE", "STATUS", "TYPE FITS", box=None, pad_edge=False)
    for obj in bindings:
        view, status = PodCPUBinding.from_raw(obj), obj.get("status") or {}
        cells = (
            f"{view.namespace}/{view.pod_name}",
            view.name,
            status.get("cpus", "-"),
            status.get("mems", "-"),
            level_of(obj),
            status.get("resourceStatus", "-"),
            _fit(status),
        )
        table.add_row(*(Text(cell) for cell in cells))  # as a string, its brackets would be markup
    taken = Text(str(count_threads(topology, bindings)))
    return Group(head, *sockets, taken, *([table] if bindings else [Text("No PodCPUBinding is on the node.")]))


def _fit(status: Mapping[str, Any]) -> str:
    """Whether the pod uses its CPUs as its workload type says, or why not; ``-`` where that is not known."""
    found = find_condition(status.get("conditions"), "WorkloadTypeFits")
    if found is None:
        return "-"
    return "yes" if found["status"] == "True" else f"no: {found['reason']}"
