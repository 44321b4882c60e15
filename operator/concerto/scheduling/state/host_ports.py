"""Host ports that pods on the nodes have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from concerto.api.counters import add_count_of
from concerto.api.pod import PodView
from concerto.api.pod_constraints import EVERY_PORT, WILDCARD, HostPort
from concerto.scheduling.state.columns import FEW_ROWS, Bools, Rows, numbered
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex

_MANY = 4
"""Rows that have the ports a pod asks for, times all rows, if most rows have several of them."""
_NOBODY: Mapping[str, Counter[int]] = {}


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
        taken_by = [*self._taken_by(ports)]
        if len(few := numbered(rows, self._rows.size)) <= FEW_ROWS:
            return np.array([any(row in each for each in taken_by) for row in few], dtype=np.bool_)
        if sum(map(len, taken_by)) > _MANY * self._rows.size:
            return ~self._free(taken_by)[rows]
        taken: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        for each in taken_by:
            taken[[*each]] = True
        return taken[rows]

    def _taken_by(self, ports: tuple[HostPort, ...]) -> Iterator[Counter[int]]:
        """Rows with pods that have one of the ports, by port and address."""
        yield from self._ports.get(("TCP", EVERY_PORT), _NOBODY).values()
        for port in ports:
            by_address = self._ports.get((port.protocol, port.port), _NOBODY)
            addresses = by_address if port.ip == WILDCARD else {port.ip, WILDCARD} & by_address.keys()
            yield from (by_address[address] for address in addresses)

    def _free(self, taken_by: Iterable[Counter[int]]) -> Bools:
        """The rows that are in none of them: a pod may have a thousand ports, each of which each node has.

        A row is looked at until one of them has it.
        """
        left = set(range(self._rows.size))
        for each in taken_by:
            if len(each) <= 4 * len(left):
                left.difference_update(each)
            else:
                left = {row for row in left if row not in each}
        free: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        free[[*left]] = True
        return free

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
