"""The node's CPUs from sysfs, and what kubelet keeps of them from kubelet's own files.

sysfs and not ``lscpu``: its text changes between versions, and it leaves out what no option names. A file that is not
there has a meaning of its own (a kernel without NUMA, a processor of like cores) or is reported as a problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import Cache, Core, CPUTopology
from concerto.linux.cpu_manager_state import assigned_sets

_SIZE = re.compile(r"(\d+)([KMG]?)")
_FACTOR = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_HUGEPAGES = "node[0-9]*/hugepages/hugepages-*kB/nr_hugepages"
_FIRST_SHARED_LEVEL = 2  # a core's threads share its L1 as they share the core


@dataclass(frozen=True)
class TopologyReading:
    """What sysfs said.

    Attributes:
        topology: of the machine.
        problems: sentences on what could not be read; the topology holds a guess in its place.
    """

    topology: CPUTopology
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class KubeletCPUs:
    """What kubelet keeps of the CPUs.

    Attributes:
        exclusive: given to containers by its static CPU manager.
        reserved: its ``reservedSystemCPUs``, and what else it reserves (`concerto.linux.reserved_cpus`).
        problems: sentences on what could not be read, so that it is not known.
    """

    exclusive: frozenset[int] = frozenset()
    reserved: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()


def read_topology(sys: Path) -> TopologyReading:
    """The CPUs of the machine whose /sys is at ``sys``.

    Raises:
        OSError: not even the list of online CPUs can be read.
        ValueError: that list is not valid.
    """
    root = sys / "devices/system/cpu"
    online = parse_cpu_list((root / "online").read_text())
    # The kernel's own "offline" names every CPU that could ever be plugged in, too
    offline = (_cpus(root / "present") or frozenset()) - online
    untold: list[int] = []
    siblings: dict[frozenset[int], tuple[int, int]] = {}
    left = set(online)
    for cpu in sorted(online):
        if cpu not in left:
            continue
        directory = root / f"cpu{cpu}" / "topology"
        threads = _cpus(directory / "core_cpus_list") or _cpus(directory / "thread_siblings_list")
        if threads is None:
            untold.append(cpu)
        # A CPU is in one core, whatever a broken hypervisor says
        core = frozenset((threads or frozenset()) & left) | {cpu}
        left -= core
        # -1 where the firmware does not report it: one package then, as lscpu has it
        siblings[core] = (max(_number(directory / "physical_package_id") or 0, 0), _number(directory / "core_id") or 0)
    problems = []
    if untold:
        problems.append(
            f"The kernel does not report which CPUs share a core with {_names(untold)}: each is taken for a whole core."
        )
    topology = CPUTopology(
        _numbered(siblings),
        _numa_nodes(sys, online),
        _caches(root, online, siblings),
        _core_kinds(sys, online),
        offline,
        _memory_bytes(sys),
        _hugepage_bytes(sys),
    )
    return TopologyReading(topology, tuple(problems))


def _numbered(siblings: dict[frozenset[int], tuple[int, int]]) -> tuple[Core, ...]:
    """Cores under the kernel's numbers, or counted where these are not unique: they may start again in each die."""
    by_socket: dict[int, list[tuple[int, frozenset[int]]]] = {}
    for cpus, (socket, number) in siblings.items():
        by_socket.setdefault(socket, []).append((number, cpus))
    cores = []
    for socket, members in by_socket.items():
        if len({number for number, _ in members}) < len(members):
            members = list(enumerate(sorted((cpus for _, cpus in members), key=min)))
        cores += [Core(socket, number, cpus) for number, cpus in members]
    return tuple(sorted(cores, key=lambda core: (core.socket, core.number)))


def _numa_nodes(sys: Path, online: frozenset[int]) -> dict[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    for directory in (sys / "devices/system/node").glob("node[0-9]*"):
        cpus = (_cpus(directory / "cpulist") or frozenset()) & online
        if cpus:
            found[int(directory.name.removeprefix("node"))] = cpus
    known = frozenset(cpu for cpus in found.values() for cpu in cpus)
    if known < online:
        # A kernel without NUMA has no such files, and all memory is node 0
        found[min(found, default=0)] = found.get(min(found, default=0), frozenset()) | (online - known)
    return dict(sorted(found.items()))


def _memory_bytes(sys: Path) -> dict[int, int]:
    """Size of each memory node, from the line ``Node N MemTotal: SIZE kB`` of its meminfo; without unknown ones."""
    found = {}
    for directory in (sys / "devices/system/node").glob("node[0-9]*"):
        match = re.search(r"MemTotal:\s*(\d+) kB", _text(directory / "meminfo") or "")
        if match:
            found[int(directory.name.removeprefix("node"))] = int(match[1]) * 1024
    return dict(sorted(found.items()))


def _hugepage_bytes(sys: Path) -> dict[int, dict[str, int]]:
    """Huge pages of each memory node by resource, the sizes of which it has none as well."""
    found: dict[int, dict[str, int]] = {}
    for file in sorted((sys / "devices/system/node").glob(_HUGEPAGES)):
        kilobytes = re.fullmatch(r"hugepages-(\d+)kB", file.parent.name)
        pages = _number(file)
        if kilobytes is not None and pages is not None:
            size, unit = int(kilobytes[1]), "Ki"
            for larger in ("Mi", "Gi"):
                if size % 1024 == 0:
                    size, unit = size // 1024, larger
            node = int(file.parent.parent.parent.name.removeprefix("node"))
            found.setdefault(node, {})[f"hugepages-{size}{unit}"] = pages * int(kilobytes[1]) * 1024
    return dict(sorted(found.items()))


def _caches(root: Path, online: frozenset[int], cores: Iterable[frozenset[int]]) -> tuple[Cache, ...]:
    found: dict[tuple[int, frozenset[int]], int | None] = {}
    for cpu in sorted(online):
        for index in sorted((root / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
            level, cpus = _number(index / "level"), (_cpus(index / "shared_cpu_list") or frozenset()) & online
            if level is not None and level >= _FIRST_SHARED_LEVEL and cpu in cpus:
                found.setdefault((level, cpus), _size(index / "size"))
    shared = [
        Cache(level, cpus, size) for (level, cpus), size in found.items() if sum(1 for core in cores if core & cpus) > 1
    ]
    return tuple(sorted(shared, key=lambda cache: (cache.level, min(cache.cpus))))


def _core_kinds(sys: Path, online: frozenset[int]) -> dict[str, frozenset[int]]:
    """Intel's hybrids by their performance monitoring units, Arm's by capacity; empty where all cores are alike."""
    kinds = {}
    for path in sorted((sys / "devices").glob("cpu_*/cpus")):
        if cpus := (_cpus(path) or frozenset()) & online:
            kinds[path.parent.name.removeprefix("cpu_")] = cpus
    if not kinds:
        for cpu in sorted(online):
            capacity = _number(sys / "devices/system/cpu" / f"cpu{cpu}" / "cpu_capacity")
            if capacity is not None:
                name = f"capacity-{capacity}"
                kinds[name] = kinds.get(name, frozenset()) | {cpu}
    return kinds if len(kinds) > 1 else {}


def read_kubelet(state: Path, config: Path, reserved: frozenset[int] | None = None) -> KubeletCPUs:
    """What kubelet's files say.

    Args:
        state: its ``cpu_manager_state``; absent before kubelet's first start.
        config: its KubeletConfiguration; absent where it is configured by flags alone.
        reserved: its ``reservedSystemCPUs``, if it has answered; None: they are read from its configuration file.
    """
    problems: list[str] = []
    exclusive: frozenset[int] = frozenset()
    if not state.parent.is_dir():
        # A missing file says that there is no such policy; a missing folder, that it is not shown to us
        problems.append(
            f"It is unknown which CPUs kubelet's static CPU manager has assigned: there is no directory {state.parent}."
        )
    try:
        exclusive = frozenset[int]().union(
            *(cpus for sets in assigned_sets(json.loads(state.read_bytes())).values() for cpus in sets)
        )
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError, TypeError) as error:
        problems.append(
            f"It is unknown which CPUs kubelet's static CPU manager has assigned: {state}: {_words(error)}."
        )
    if reserved is not None:
        return KubeletCPUs(exclusive, reserved, tuple(problems))
    reserved = frozenset()
    try:
        settings = yaml.safe_load(config.read_bytes()) or {}
        reserved = parse_cpu_list(settings.get("reservedSystemCPUs") or "")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        problems.append(f"It is unknown which CPUs kubelet reserves: {config}: {_words(error)}. Set spec.reservedCPUs.")
    return KubeletCPUs(exclusive, reserved, tuple(problems))


def fingerprint(sys: Path, *files: Path) -> tuple[bytes | None, ...]:
    """What changes when CPUs or huge pages come or go, or when one of ``files`` does, by a few small reads."""
    cpu = sys / "devices/system/cpu"
    nodes = _bytes(sys / "devices/system/node/online")
    return nodes, *map(_bytes, (cpu / "online", cpu / "present", *_hugepage_files(sys, nodes), *files))


def memory_size(proc: Path) -> int | None:
    """Bytes of all memory of the machine whose /proc is at ``proc``; None where they can't be read.

    A virtual machine's can change while it runs (virtio-mem, DIMMs that are plugged in), and with it a memory node's.
    """
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(proc / "meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


@lru_cache(maxsize=4)
def _hugepage_files(sys: Path, nodes: bytes | None) -> tuple[Path, ...]:
    """A memory node has the same sizes of pages for as long as it is there."""
    return tuple(sorted((sys / "devices/system/node").glob(_HUGEPAGES)))


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error).split("\n")[0]) or type(error).__name__


def _names(cpus: list[int]) -> str:
    return ", ".join(map(str, cpus[:8])) + (f" and {len(cpus) - 8} more" if len(cpus) > 8 else "")


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(path: Path) -> str | None:
    data = _bytes(path)
    return None if data is None else data.decode(errors="replace").strip()


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _cpus(path: Path) -> frozenset[int] | None:
    try:
        return parse_cpu_list(_text(path) or "") or None
    except ValueError:
        return None


def _size(path: Path) -> int | None:
    match = _SIZE.fullmatch(_text(path) or "")
    return int(match[1]) * _FACTOR[match[2]] if match else None
