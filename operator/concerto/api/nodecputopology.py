"""NodeCPUTopology: a node's CPUs and memory nodes, which of them belong together, and what uses them.

Source: Stefanakis, listing 6.1 (docs/references.md, "CPU topology"). Sizes of memory nodes, caches, offline CPUs, kinds
of core and pools are ours. The topology is observed, so it is in the status and not, as in the listing, in the spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from concerto.api.cpulist import HIGHEST, format_cpu_list, parse_cpu_list
from concerto.api.podcpubinding import Level

Raw = Mapping[str, Any]

MAX_CORES_TIMES_GROUPS = 400_000
"""Cores, times sockets, memory nodes and shared caches. A machine of 32 sockets of 60 cores has less than 200,000, and
one of 512 virtual CPUs, each of which is a socket, 263,000."""
_LEVELS = 4
"""Of caches: all caches of one level together have each CPU once."""


@dataclass(frozen=True, order=True)
class Core:
    """One physical core.

    Attributes:
        socket: number of its processor package.
        number: its number, unique within the socket.
        cpus: its online hardware threads.
    """

    socket: int
    number: int
    cpus: frozenset[int]


@dataclass(frozen=True)
class Cache:
    """One cache that more than one core shares.

    Attributes:
        level: 2 for an L2 cache, 3 for an L3 cache.
        cpus: online CPUs that share it.
        size_bytes: its size; None where the kernel does not report it.
    """

    level: int
    cpus: frozenset[int]
    size_bytes: int | None = None


@dataclass(frozen=True)
class CPUTopology:
    """The online CPUs of a node, and what they share.

    Attributes:
        cores: all cores with at least one online CPU; their CPUs are disjoint.
        numa_nodes: online CPUs by memory node; nodes without CPUs are left out.
        caches: shared caches.
        core_kinds: online CPUs by the kernel's name of the kind; empty where all cores are alike.
        offline: CPUs that exist and are switched off. The kernel hides where they belong.
        memory_bytes: size of each memory node as far as it is known, bytes; its huge pages are part of it.
        hugepage_bytes: huge pages of each memory node as far as they are known, bytes by resource
            (``hugepages-2Mi``).
    """

    cores: tuple[Core, ...]
    numa_nodes: Mapping[int, frozenset[int]]
    caches: tuple[Cache, ...] = ()
    core_kinds: Mapping[str, frozenset[int]] = field(default_factory=dict)
    offline: frozenset[int] = frozenset()
    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    hugepage_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def cpus(self) -> frozenset[int]:
        """All online CPUs."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)

    @property
    def sockets(self) -> dict[int, frozenset[int]]:
        """Online CPUs by processor package."""
        found: dict[int, frozenset[int]] = {}
        for core in self.cores:
            found[core.socket] = found.get(core.socket, frozenset()) | core.cpus
        return found

    def closure(self, cpus: frozenset[int], level: Level) -> frozenset[int]:
        """What a binding of ``cpus`` at this level keeps from others: nothing at None, whole groups above CPU."""
        if level in ("None", "CPU"):
            return cpus if level == "CPU" else frozenset()
        groups: dict[Level, Iterable[frozenset[int]]] = {
            "Core": (core.cpus for core in self.cores),
            "Socket": self.sockets.values(),
            "NUMA": self.numa_nodes.values(),
        }
        return frozenset[int]().union(*(group for group in groups[level] if group & cpus))

    def only(self, cpus: Iterable[int]) -> Self:
        """The same machine with no other CPUs than these: what a node sees that has a part of it."""
        kept = frozenset(cpus)
        cores = tuple(Core(c.socket, c.number, c.cpus & kept) for c in self.cores if c.cpus & kept)
        caches = tuple(Cache(c.level, c.cpus & kept, c.size_bytes) for c in self.caches if c.cpus & kept)
        return type(self)(
            cores,
            {node: each & kept for node, each in self.numa_nodes.items() if each & kept},
            tuple(c for c in caches if sum(1 for core in cores if core.cpus & c.cpus) > 1),
            {kind: each & kept for kind, each in self.core_kinds.items() if each & kept},
            self.offline & kept,
            {node: size for node, size in self.memory_bytes.items() if self.numa_nodes.get(node, frozenset()) & kept},
            {node: each for node, each in self.hugepage_bytes.items() if self.numa_nodes.get(node, frozenset()) & kept},
        )

    def counts(self) -> dict[str, int]:
        """``status.counts``."""
        return {
            "sockets": len(self.sockets),
            "cores": len(self.cores),
            "cpus": len(self.cpus),
            "numaNodes": len(self.numa_nodes),
        }

    def to_raw(self) -> dict[str, Any]:
        """``status.topology``."""
        sockets: dict[str, Any] = {str(s): {"cpus": sorted(cpus), "cores": {}} for s, cpus in self.sockets.items()}
        for core in self.cores:
            sockets[str(core.socket)]["cores"][str(core.number)] = {"cpus": sorted(core.cpus)}
        raw: dict[str, Any] = {
            "cpus": sorted(self.cpus),
            "offlineCPUs": format_cpu_list(self.offline),
            "sockets": sockets,
            "numaNodes": {
                str(node): {"cpus": sorted(cpus)}
                | ({"memoryBytes": self.memory_bytes[node]} if node in self.memory_bytes else {})
                | ({"hugepageBytes": dict(self.hugepage_bytes[node])} if self.hugepage_bytes.get(node) else {})
                for node, cpus in self.numa_nodes.items()
            },
        }
        if self.caches:
            raw["caches"] = [
                {"level": c.level, "cpus": format_cpu_list(c.cpus)}
                | ({} if c.size_bytes is None else {"sizeBytes": c.size_bytes})
                for c in self.caches
            ]
        if self.core_kinds:
            raw["coreKinds"] = [{"name": n, "cpus": format_cpu_list(cpus)} for n, cpus in self.core_kinds.items()]
        return raw

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """``status.topology`` as the API server has it.

        Raises:
            ValueError: it is larger than that of any machine, and to choose CPUs would take seconds.
        """
        _check_size(raw)
        cores = [
            Core(int(socket), int(number), frozenset(core["cpus"]))
            for socket, package in raw["sockets"].items()
            for number, core in package["cores"].items()
        ]
        return cls(
            tuple(sorted(cores, key=lambda c: (c.socket, c.number))),
            {int(n): frozenset(node["cpus"]) for n, node in sorted(raw["numaNodes"].items(), key=lambda i: int(i[0]))},
            tuple(
                Cache(c["level"], cpus, c.get("sizeBytes"))
                for c, cpus in zip(raw.get("caches") or (), _cpus_of(raw.get("caches") or (), _LEVELS))
            ),
            {
                kind["name"]: cpus
                for kind, cpus in zip(raw.get("coreKinds") or (), _cpus_of(raw.get("coreKinds") or (), 1))
            },
            parse_cpu_list(raw.get("offlineCPUs", "")),
            {int(n): node["memoryBytes"] for n, node in raw["numaNodes"].items() if "memoryBytes" in node},
            {int(n): node["hugepageBytes"] for n, node in raw["numaNodes"].items() if "hugepageBytes" in node},
        )


def _cpus_of(groups: Iterable[Raw], times: int) -> Iterator[frozenset[int]]:
    """The CPUs of each group, of which all together name no CPU more often than so many times on average."""
    left = times * (HIGHEST + 1)
    for group in groups:
        cpus = parse_cpu_list(group["cpus"])
        left -= len(cpus)
        if left < 0:
            raise ValueError("caches or kinds of cores have more CPUs together than any machine has")
        yield cpus


def _check_size(raw: Raw) -> None:
    cores = sum(len(package["cores"]) for package in raw["sockets"].values())
    groups = len(raw["sockets"]) + len(raw["numaNodes"]) + len(raw.get("caches") or ())
    highest = max(
        (cpu for package in raw["sockets"].values() for core in package["cores"].values() for cpu in core["cpus"]),
        default=0,
    )
    if cores * groups > MAX_CORES_TIMES_GROUPS:
        raise ValueError(f"{cores} cores in {groups} sockets, memory nodes and caches are more than any machine has")
    if highest > HIGHEST:
        raise ValueError(f"CPU {highest} is beyond {HIGHEST}, the highest that Linux has")


@dataclass(frozen=True)
class CPUPools:
    """Who holds the online CPUs.

    Attributes:
        reserved: never given to a pod of its own; pods without a binding may run there.
        kubelet_exclusive: given to pods by kubelet's static CPU manager.
        allocated: given to pods by a PodCPUBinding.
        shared: where pods without a binding run.
        kept: kept free by the exclusiveness of a PodCPUBinding: nobody's pods run there.
    """

    reserved: frozenset[int] = frozenset()
    kubelet_exclusive: frozenset[int] = frozenset()
    allocated: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()

    def to_raw(self) -> dict[str, str]:
        """``status.pools``."""
        return {
            "allocated": format_cpu_list(self.allocated),
            "shared": format_cpu_list(self.shared),
            "reserved": format_cpu_list(self.reserved),
            "kubeletExclusive": format_cpu_list(self.kubelet_exclusive),
            "kept": format_cpu_list(self.kept),
        }

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """``status.pools`` as the API server has it."""
        return cls(
            *(
                parse_cpu_list(raw.get(name, ""))
                for name in ("reserved", "kubeletExclusive", "allocated", "shared", "kept")
            )
        )


@dataclass(frozen=True)
class NodeCPUTopology:
    """One node's object.

    Attributes:
        name: the node's.
        topology: its CPUs; None until its agent has published them.
        pools: who holds them.
        cpuset_writer: how cpusets are written there: Files, NRI or None; empty where that was not published.
    """

    name: str
    topology: CPUTopology | None
    pools: CPUPools
    cpuset_writer: str = ""

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server has it.

        Raises:
            ValueError: its status does not fit the CRD.
        """
        status = obj.get("status") or {}
        topology = status.get("topology")
        return cls(
            obj["metadata"]["name"],
            None if topology is None else CPUTopology.from_raw(topology),
            CPUPools.from_raw(status.get("pools") or {}),
            status.get("cpusetWriter", ""),
        )
