"""Memory nodes of a machine and what bound pods may use of them, so that no pod is bound to too little memory.

A pod that may use more memory than its memory nodes have is killed although other nodes have memory left. Huge pages
are taken out of a node's memory when they are reserved, and a pod gets them from its memory nodes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from concerto.api.nodecputopology import CPUTopology

Needs = Mapping[str, int]
"""Bytes by resource: ``memory``, ``hugepages-2Mi`` and the like."""


class MemoryNodes:
    """Memory and huge pages of each memory node, less those of pods that are bound to them.

    What a node's agent does not report is not known, and never too little.
    """

    def __init__(self, topology: CPUTopology) -> None:
        """Everything is free.

        Args:
            topology: has the sizes, as far as they are known.
        """
        self._free: dict[str, dict[int, float]] = {"memory": {}}
        for node, size in topology.memory_bytes.items():
            self._free["memory"][node] = float(size - sum(topology.hugepage_bytes.get(node, {}).values()))
        for node, sizes in topology.hugepage_bytes.items():
            for resource, size in sizes.items():
                self._free.setdefault(resource, {})[node] = float(size)

    def free(self, nodes: Iterable[int], resource: str = "memory") -> float:
        """Bytes that are left on the nodes together; infinite if the size of one is not known."""
        sizes = self._free.get(resource, {})
        return sum(sizes.get(node, float("inf")) for node in nodes)

    def too_small_for(self, nodes: Iterable[int], needs: Needs) -> str:
        """The first resource of which the nodes have too little for a pod; empty if it can be bound to them."""
        found = list(nodes)
        return next((name for name, size in needs.items() if size > self.free(found, name)), "")

    def hold(self, nodes: Iterable[int], needs: Needs) -> None:
        """Count a pod that is bound to the nodes, in proportion to what is free on each."""
        found = list(nodes)
        for resource, size in needs.items():
            free = self._free.get(resource, {})
            known = [node for node in found if node in free]
            total = sum(free[node] for node in known)
            for node in known:
                if total > 0:
                    free[node] -= size * free[node] / total
