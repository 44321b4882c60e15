"""Builds /sys/devices trees of machines of known shapes, as their kernels show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concerto.api.cpulist import format_cpu_list
from support.node_trees import write


@dataclass
class Shape:
    """What a machine is made of.

    Attributes:
        cores: (package, core_id, CPUs) of each core, offline CPUs included.
        numa: CPUs of each memory node; None: a kernel without NUMA.
        offline: CPUs that are switched off.
        possible: number of CPUs that could ever be plugged in.
        l2: CPUs that share an L2, where it is not just those of a core.
        l3: CPUs that share an L3.
        kinds: CPUs by performance monitoring unit, on a hybrid.
        capacities: by CPU, on Arm.
    """

    cores: Sequence[tuple[int, int, Sequence[int]]]
    numa: Sequence[Sequence[int]] | None = None
    offline: Sequence[int] = ()
    possible: int = 0
    l2: Sequence[Sequence[int]] = ()
    l3: Sequence[Sequence[int]] = ()
    kinds: dict[str, Sequence[int]] = field(default_factory=dict)
    capacities: dict[int, int] = field(default_factory=dict)

    @property
    def present(self) -> list[int]:
        """All CPUs."""
        return sorted(cpu for _, _, cpus in self.cores for cpu in cpus)


def smt(sockets: int, cores_per_socket: int, threads: int, **more: object) -> Shape:
    """CPUs numbered as Linux does on x86: first threads of all cores first, then the second ones."""
    total = sockets * cores_per_socket
    cores = [
        (socket, core, [thread * total + socket * cores_per_socket + core for thread in range(threads)])
        for socket in range(sockets)
        for core in range(cores_per_socket)
    ]
    packages = [[cpu for s, _, cpus in cores if s == socket for cpu in cpus] for socket in range(sockets)]
    return Shape(cores, **{"numa": packages, "l3": packages, **more})  # type: ignore[arg-type]


SINGLE = Shape([(0, 0, [0])], numa=[[0]], l3=[[0]])
LAPTOP = smt(1, 4, 2)
SEED = smt(2, 5, 2)  # node-4 of Stefanakis, table 7.1
SUB_NUMA = smt(2, 8, 2, numa=[[*range(4 * n, 4 * n + 4), *range(16 + 4 * n, 20 + 4 * n)] for n in range(4)])
CCX = smt(1, 16, 2, l3=[[*range(4 * n, 4 * n + 4), *range(16 + 4 * n, 20 + 4 * n)] for n in range(4)])
HYBRID = Shape(
    [*((0, 4 * i, [2 * i, 2 * i + 1]) for i in range(4)), *((0, 32 + i, [8 + i]) for i in range(8))],
    numa=[range(16)],
    l2=[range(8, 12), range(12, 16)],
    l3=[range(16)],
    kinds={"core": range(8), "atom": range(8, 16)},
)
OFFLINE = smt(1, 4, 2, offline=[5, 7], possible=64)
DIES = Shape([(0, i % 2, [i]) for i in range(4)], numa=[range(4)])
ARM = Shape([(-1, i, [i]) for i in range(4)], capacities={0: 446, 1: 446, 2: 1024, 3: 1024})


def build(sys: Path, shape: Shape) -> Path:
    """Write the tree below ``sys``; CPUs that are offline have no topology and no caches, as with Linux."""
    root = sys / "devices/system/cpu"
    present = shape.present
    online = [cpu for cpu in present if cpu not in shape.offline]
    possible = range(max(shape.possible, len(present)))
    write(root / "online", format_cpu_list(online) + "\n")
    write(root / "present", format_cpu_list(present) + "\n")
    write(root / "possible", format_cpu_list(possible) + "\n")
    write(root / "offline", format_cpu_list(set(possible) - set(online)) + "\n")
    (root / "cpufreq").mkdir(exist_ok=True)

    def listed(cpus: Sequence[int]) -> str:
        return format_cpu_list(cpu for cpu in cpus if cpu in online) + "\n"

    for package, core, cpus in shape.cores:
        for cpu in cpus:
            directory = root / f"cpu{cpu}"
            directory.mkdir(exist_ok=True)
            if cpu not in online:
                continue
            write(directory / "topology/physical_package_id", f"{package}\n")
            write(directory / "topology/core_id", f"{core}\n")
            write(directory / "topology/thread_siblings_list", listed(cpus))
            l2 = next((group for group in shape.l2 if cpu in group), cpus)
            l3 = next((group for group in shape.l3 if cpu in group), ())
            for index, (level, group, size) in enumerate([(1, cpus, "48K"), (2, l2, "2048K"), (3, l3, "32M")]):
                if group:
                    write(directory / f"cache/index{index}/level", f"{level}\n")
                    write(directory / f"cache/index{index}/shared_cpu_list", listed(group))
                    write(directory / f"cache/index{index}/size", size + "\n")
            if cpu in shape.capacities:
                write(directory / "cpu_capacity", f"{shape.capacities[cpu]}\n")
    if shape.numa is not None:
        write(sys / "devices/system/node/online", format_cpu_list(range(len(shape.numa))) + "\n")
        for node, cpus in enumerate(shape.numa):
            write(sys / f"devices/system/node/node{node}/cpulist", listed(cpus))
    for kind, cpus in shape.kinds.items():
        write(sys / f"devices/cpu_{kind}/cpus", listed(cpus))
    return sys
