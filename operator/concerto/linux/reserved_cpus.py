"""CPUs that kubelet reserves: the ones that its configuration names, and as many as its Node has not allocatable.

This is used unless kubelet names its ``reservedSystemCPUs`` at ``/configz``. A Node shows how many CPUs its kubelet
reserves, wherever the settings come from: a file, a drop-in folder or flags. It does not show which ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.api.cpulist import format_cpu_list
from concerto.api.nodecputopology import CPUTopology
from concerto.api.quantities import milli
from concerto.linux.cpu_topology import KubeletCPUs


def reserved_count(node: Mapping[str, Any]) -> int | None:
    """CPUs that a Node has and pods can't request (kubeReserved, systemReserved, reservedSystemCPUs), rounded up.

    Kubelet's static CPU manager reserves as many whole CPUs.

    Args:
        node: the Node, as the API server has it.

    Returns:
        None where the Node does not state both amounts.

    Raises:
        ValueError: one of them is not a quantity.
    """
    status = node.get("status") or {}
    capacity, allocatable = ((status.get(name) or {}).get("cpu") for name in ("capacity", "allocatable"))
    if capacity is None or allocatable is None:
        return None
    return max(-(-(milli(capacity) - milli(allocatable)) // 1000), 0)


def reserved_cpus(topology: CPUTopology, kubelet: KubeletCPUs, count: int | None) -> tuple[frozenset[int], str]:
    """CPUs that kubelet reserves.

    Args:
        topology: of the node.
        kubelet: what its configuration file says.
        count: CPUs that the Node has not allocatable; None: not known.

    Returns:
        The CPUs that the file names, and up to ``count`` further ones: cores in their order, as kubelet's static CPU
        manager takes them. A sentence on what contradicts; empty if nothing does.
    """
    named = kubelet.reserved
    if count is None or len(named) == count:
        return named, ""
    reserved = set(named)
    for core in topology.cores:
        for cpu in sorted(core.cpus - named):
            if len(reserved) < count:
                reserved.add(cpu)
    if not named:
        return frozenset(reserved), ""
    text = (
        f"Kubelet's configuration file reserves CPUs {format_cpu_list(named)}, and the Node reserves {count}: kubelet "
        f"uses other settings. CPUs {format_cpu_list(reserved)} are taken for reserved. Set spec.reservedCPUs."
    )
    return frozenset(reserved), text
