"""One node is asked about many ports or volumes in a moment, whatever pods other nodes have.

Preemption asks about one node once for each of its pods that may go, all in one piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from concerto.scheduling.state.attached_volumes import AttachedVolumes
from concerto.scheduling.state.host_ports import HostPortIndex
from concerto.scheduling.state.node_rows import NodeRows
from support.scheduling_builders import pod

NUMBER, NODES, VICTIMS = 300, 1500, 50
ONE = (slice(NODES, NODES + 1), np.array([NODES]))


def seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(VICTIMS):
        act()
    return time.process_time() - began


def test_host_ports() -> None:
    rows = NodeRows()
    rows.indexes = (index := HostPortIndex(rows),)
    for row in range(NODES + 1):
        rows.row(f"n{row}")
    has = pod("p", containers=[{"name": "c", "ports": [{"hostPort": number + 1} for number in range(NUMBER)]}])
    for row in range(NODES):
        index.pod_added(has, row)
    ports = has.shape.host_ports
    for one in ONE:
        assert index.conflicts(ports, one).tolist() == [False]
        assert seconds(lambda one=one: index.conflicts(ports, one)) < 0.3  # it took 1.1 s
    assert np.flatnonzero(~index.conflicts(ports, slice(0, NODES + 1))).tolist() == [NODES]


def test_volumes() -> None:
    attached = AttachedVolumes()
    attached.grow(NODES + 1)
    volumes = [("driver", f"v{number}") for number in range(NUMBER)]
    for row in range(NODES):
        attached.add_pod(volumes, row)
    for one in ONE:
        assert attached.number_there(volumes, one).tolist() == [0]
        assert seconds(lambda one=one: attached.number_there(volumes, one)) < 0.3
    assert attached.number_there(volumes, slice(0, NODES + 1)).tolist() == [*[NUMBER] * NODES, 0]
