"""The Nodes as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.api.node import NodeView
from concerto.scheduling.state.columns import Bools, Columns, Ints
from concerto.scheduling.state.labels import LabelIndex
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.provided_load import RESOURCES
from concerto.scheduling.state.taints import TaintIndex


class Nodes(Columns, PodIndex):
    """What the Node objects say, but for allocatable (``ResourceTable``).

    Args:
        rows: names and rows.

    Attributes:
        views: the Nodes that exist, by row.
        exists: by row, whether its Node exists.
        unschedulable: by row, whether it is cordoned.
        ready: by row, whether it is Ready.
        avoided: by row, whether a placement on it was refused a moment ago.
        agentless: by row, whether no agent can run there: not Linux, or no kubelet of its own.
        machine: cpu millicores and memory bytes of the machine, allocatable or not; shape (2, rows).
        labels: its labels, and which rows a selector accepts.
        taints: its taints.
    """

    FILLS: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("exists", "unschedulable", "ready", "avoided", "agentless", "machine"), 0.0
    )

    def __init__(self, rows: NodeRows) -> None:
        self._rows = rows
        self.views: dict[int, NodeView] = {}
        self.exists: Bools = np.zeros(0, dtype=np.bool_)
        self.unschedulable: Bools = np.zeros(0, dtype=np.bool_)
        self.ready: Bools = np.zeros(0, dtype=np.bool_)
        self.avoided: Bools = np.zeros(0, dtype=np.bool_)
        self._avoided_until: dict[int, float] = {}
        self.agentless: Bools = np.zeros(0, dtype=np.bool_)
        self.machine: Ints = np.zeros((len(RESOURCES), 0), dtype=np.int64)
        self.labels = LabelIndex(rows, self.views)
        self.taints = TaintIndex(self.views)

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        super().grow(width)
        self.labels.grow(width)
        self.taints.grow(width)

    def node_changed(self, row: int, node: NodeView | None) -> None:
        """The row's Node exists and is like this, or is gone."""
        if node is None:
            self._remove(row)
            return
        before = self.views.get(row)
        self.views[row] = node
        self.exists[row] = True
        self.unschedulable[row] = node.unschedulable
        self.ready[row] = node.ready
        self.agentless[row] = is_agentless(node)
        self.machine[:, row] = machine_of(node)
        self.taints.put(row, node.taints)
        if (
            before is None or before.labels != node.labels
        ):  # what others know by labels holds on, where they are as before
            self.labels.put(row, node.labels)
            self.labels.forget_values()
        self.taints.forget_lists()

    def in_use(self) -> Ints:
        """Rows of the nodes that may take pods: those that exist, are Ready and are not cordoned."""
        rows: Ints = np.flatnonzero(self.exists & self.ready & ~self.unschedulable)
        return rows

    def avoid(self, row: int, until: float) -> None:
        """Place nothing on the row's node until then."""
        self.avoided[row] = True
        self._avoided_until[row] = until

    def end_avoidance(self, now: float) -> bool:
        """Nodes that were avoided for long enough take pods again; returns whether there are any."""
        over = [row for row, until in self._avoided_until.items() if until <= now]
        for row in over:
            self.avoided[row] = False
            del self._avoided_until[row]
        return bool(over)

    def cores_of(self, name: str) -> float | None:
        """CPUs of a node by its name; None while its Node object is not known."""
        row = self._rows.row_of.get(name)
        return None if row is None or row not in self.views else float(self.machine[0, row]) / 1000.0

    def memory_of(self, name: str) -> float | None:
        """Bytes of memory of a node by its name; None while its Node object is not known, or does not say."""
        row = self._rows.row_of.get(name)
        return None if row is None or row not in self.views else float(self.machine[1, row]) or None

    def row_by_address(self) -> dict[str, int]:
        """Rows by name and by internal address. An address that several nodes claim belongs to none of them."""
        owners = Counter(address for node in self.views.values() for address in {*node.addresses})
        row_of = {a: row for row, node in self.views.items() for a in node.addresses if owners[a] == 1}
        return row_of | {node.name: row for row, node in self.views.items()}

    def _remove(self, row: int) -> None:
        del self.views[row]
        self.avoided[row] = False
        self._avoided_until.pop(row, None)
        self.exists[row] = self.unschedulable[row] = self.ready[row] = self.agentless[row] = False
        self.machine[:, row] = 0
        self.taints.put(row, ())
        self.labels.put(row, {})


def machine_of(node: NodeView) -> tuple[int, ...]:
    """CPU millicores and memory bytes of the node's machine, allocatable or not, in the order of ``RESOURCES``."""
    return tuple(node.capacity.get(r, node.allocatable.get(r, 0)) for r in RESOURCES)


def is_agentless(node: NodeView) -> bool:
    """Whether no agent of Concerto can run on the node: its system is not Linux, or it is virtual.

    The node affinity of manifests/base/agent.yaml says the same of labels.
    """
    virtual = (
        node.labels.get("type") == "virtual-kubelet"
        or node.labels.get("eks.amazonaws.com/compute-type") == "fargate"
        or any(taint.key == "virtual-kubelet.io/provider" for taint in node.taints)
    )
    return virtual or node.labels.get("kubernetes.io/os", "linux") != "linux"
