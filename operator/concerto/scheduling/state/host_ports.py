"""Host ports that pods on the nodes have."""

from __future__ import annotations

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_constraints import HostPort
from concerto.scheduling.state.columns import Bools, Rows
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex


class HostPortIndex(PodIndex):
    """Ports by protocol, number and row.

    Args:
        rows: names and rows.
    """

    def __init__(self, rows: NodeRows) -> None:
        self._rows = rows
        self._ports: dict[tuple[str, int], dict[int, list[HostPort]]] = {}

    def conflicts(self, ports: tuple[HostPort, ...], rows: Rows) -> Bools:
        """Which rows have a pod that has one of these host ports."""
        taken: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        for port in ports:
            for row, others in self._ports.get((port.protocol, port.port), {}).items():
                taken[row] |= any(port.conflicts(other) for other in others)
        return taken[rows]

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod has its ports on the row."""
        for port in pod.shape.host_ports:
            self._ports.setdefault((port.protocol, port.port), {}).setdefault(row, []).append(port)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod's ports on the row are free."""
        for port in pod.shape.host_ports:
            by_row = self._ports[port.protocol, port.port]
            by_row[row].remove(port)
            if not by_row[row]:
                del by_row[row]
            if not by_row:
                del self._ports[port.protocol, port.port]
