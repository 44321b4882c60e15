"""One row as it would be without some of its pods, or with more.

The cluster's own indexes are changed and put back, so that plugins answer as they would if it were so. Nothing else may
read the cluster in between: there must be no await before the end.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.state.cpus import LiftedClaims
from concerto.scheduling.state.large_pods import Claim
from concerto.scheduling.state.ledger import UNITS_PER_POD
from concerto.scheduling.state.node_account import NodeAccount

if TYPE_CHECKING:
    from concerto.scheduling.state.cluster import ClusterState


class _Lifted(NamedTuple):
    """A pod that was taken off, and what it had of the row: units, claimed CPU, and CPUs of its own."""

    pod: PodView
    units: int
    claim: Claim | None
    cpus: LiftedClaims


class RowWhatIf:
    """What holds inside of the ``with`` block; after it, all is as before.

    A pod that is taken off is accounted as one whose end has been seen: its requests, its ports, its unit of capacity
    and its CPUs are free, and the agent's last status still counts it.

    Args:
        cluster: the cluster.
        row: the row.
        asked: names of the filters that are asked, all of which are prepared already; None if any may be prepared.
            Indexes that none of them reads any more stay as they are: pods may have hundreds of affinity terms, host
            ports or claims, and a hundred pods may come and go on a row.
    """

    def __init__(self, cluster: ClusterState, row: int, asked: Collection[str] | None = None) -> None:
        self._cluster = cluster
        self._indexes = cluster.filtered_by
        if asked is not None:
            left_out: list[object] = [cluster.terms.refusing, cluster.pod_counts]  # read when a filter is prepared
            left_out += [cluster.ports] if "NodePorts" not in asked else []
            left_out += [cluster.volumes] if "NodeVolumeLimits" not in asked else []
            self._indexes = tuple(index for index in cluster.filtered_by if index not in left_out)
        self._row = row
        self._node = cluster.names[row]
        self._account = cluster.ledger.nodes.get(self._node) or NodeAccount()
        self._off: dict[str, _Lifted] = {}
        self._more: dict[str, PodView] = {}
        self._columns: list[tuple[np.ndarray[Any, Any], Any]] = []
        self._version = 0
        self._has_changed = self._cpus_have_changed = False

    def __enter__(self) -> Self:
        """Remember what is computed from sums: numbers do not come back exactly by adding and subtracting."""
        cluster = self._cluster
        cluster.kinds.loads.settle()  # or what follows from a report would be computed inside, and be lost at the end
        parts = (cluster.measured, cluster.large_pods, cluster.exclusive, cluster.kinds.loads)
        arrays = (each for part in parts for each in vars(part).values() if isinstance(each, np.ndarray))
        self._columns = [(array, array[..., self._row].copy()) for array in arrays]
        self._version = cluster.signatures.restorable_version
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put everything back."""
        for pod in list(self._more.values()):
            self.withdraw(pod)
        for lifted in list(self._off.values()):
            self.add(lifted.pod)
        for array, values in self._columns:
            array[..., self._row] = values
        self._cluster.signatures.restorable_version = self._version

    def remove(self, pod: PodView) -> None:
        """Take off a pod that is on the row."""
        cluster, row, uid = self._cluster, self._row, pod.uid
        for index in self._indexes:
            index.pod_removed(pod, row)
        units = self._account.lift(uid) if uid in self._account.live else 0
        claim, cpus = cluster.large_pods.lift(uid), cluster.cpus.lift(self._node, uid)
        self._off[uid] = _Lifted(pod, units, claim, cpus)
        self._change(bool(cpus))

    def add(self, pod: PodView) -> None:
        """Put back a pod that was taken off."""
        cluster, lifted = self._cluster, self._off.pop(pod.uid)
        for index in self._indexes:
            index.pod_added(lifted.pod, self._row)
        if lifted.units:
            self._account.put_back(pod.uid, lifted.units)
        if lifted.claim is not None:
            cluster.large_pods.put_back(pod.uid, lifted.claim)
        cluster.cpus.put_back(self._node, lifted.cpus)
        self._change(bool(lifted.cpus))

    def place(self, pod: PodView) -> None:
        """Put a pod on the row that is on none."""
        self._more[pod.uid] = pod
        for index in self._indexes:
            index.pod_added(pod, self._row)
        if pod.counted:
            self._account.add_pod(pod.uid, UNITS_PER_POD)
        self._change(cpus=False)

    def withdraw(self, pod: PodView) -> None:
        """Take a placed pod off again."""
        del self._more[pod.uid]
        for index in self._indexes:
            index.pod_removed(pod, self._row)
        if pod.counted:
            self._account.remove_pod(pod.uid)
        self._change(cpus=False)

    def settle(self) -> None:
        """Compute anew what depends on sums; call it before filters are asked."""
        if self._has_changed:
            if self._cpus_have_changed:
                self._cluster.exclusive.recount(self._row)
            self._cluster.measured.update(self._row)
        self._has_changed = self._cpus_have_changed = False

    def _change(self, cpus: bool) -> None:
        self._has_changed = True
        self._cpus_have_changed |= cpus
