"""Host ports that pods on the nodes have."""

from __future__ import annotations

from collections import Counter

import numpy as np

from concerto.api.counters import add_count_of
from concerto.api.pod import PodView
from concerto.api.pod_constraints import EVERY_PORT, WILDCARD, HostPort
from concerto.scheduling.state.columns import Bools, Rows
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex


class HostPortIndex(PodIndex):
    """Ports by protocol, number, address and row.

    Args:
        rows: names and rows.
    """

    def __init__(self, rows: NodeRows) -> None:
        self._rows = rows
        # By address: pods may have hundreds of addresses of one port
        self._ports: dict[tuple[str, int], dict[str, Counter[int]]] = {}

    def conflicts(self, ports: tuple[HostPort, ...], rows: Rows) -> Bools:
        """Which rows have a pod that has one of these host ports."""
        taken: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        for rows_with_every in self._ports.get(("TCP", EVERY_PORT), {}).values():
            taken[[*rows_with_every]] = True
        for port in ports:
            by_address = self._ports.get((port.protocol, port.port), {})
            addresses = by_address if port.ip == WILDCARD else {port.ip, WILDCARD} & by_address.keys()
            for address in addresses:
                taken[[*by_address[address]]] = True
        return taken[rows]

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod has its ports on the row."""
        self._count(pod, row, 1)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod's ports on the row are free."""
        self._count(pod, row, -1)

    def _count(self, pod: PodView, row: int, by: int) -> None:
        for port in pod.shape.host_ports:
            key = (port.protocol, port.port)
            by_address = self._ports.setdefault(key, {})
            add_count_of(by_address, port.ip, row, by)
            if not by_address:
                del self._ports[key]
