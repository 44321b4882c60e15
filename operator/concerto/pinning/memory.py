"""Memory nodes of a machine and what bound pods may use of them, so that no pod is bound to too little memory.

A pod that may use more memory than its memory nodes have is killed although other nodes have memory left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class MemoryNodes:
    """Sizes of memory nodes, less the memory of pods that are bound to them.

    Args:
        sizes: bytes by number of the memory node, as far as they are known.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._free = {node: float(size) for node, size in sizes.items()}

    def free(self, nodes: Iterable[int]) -> float:
        """Bytes that are left on the nodes together; infinite if the size of one is not known."""
        return sum(self._free.get(node, float("inf")) for node in nodes)

    def fits(self, nodes: Iterable[int], memory_bytes: int) -> bool:
        """Whether a pod of that size can be bound to the nodes."""
        return memory_bytes <= self.free(nodes)

    def hold(self, nodes: Iterable[int], memory_bytes: int) -> None:
        """Count a pod that is bound to the nodes, in proportion to what is free on each."""
        known = [node for node in nodes if node in self._free]
        total = sum(self._free[node] for node in known)
        for node in known:
            if total > 0:
                self._free[node] -= memory_bytes * self._free[node] / total
