"""What pods of simulated nodes cost, by kind, as each node's agent measures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from concerto.api.pod_kind import Kind
from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.kinds.start_cost import StartCost
from concerto.capacity.kinds.sums import PodMeasurement, recent_share
from concerto.capacity.kinds.table import NodeKinds, to_entries
from concerto.capacity.report import CapacityReport
from concerto.simulation.scheduling.node_fleet import NodeFleet


class PodKinds:
    """The costs of the counted pods of all nodes of a fleet; nodes are given by their index.

    Attributes:
        with_news: nodes on which a kind runs that `entries` has not had yet, or has ended a pod for the first time.
    """

    def __init__(self, nodes: int) -> None:
        """Nothing is known of any kind.

        Args:
            nodes: how many there are.
        """
        self.with_news: set[int] = set()
        self._kinds = [NodeKinds() for _ in range(nodes)]
        self._start_costs = [StartCost() for _ in range(nodes)]
        self._kind_of: list[dict[str, Kind]] = [{} for _ in range(nodes)]  # of each pod that runs, by UID
        # When `entries` was last called: running pods, and whether a pod of each kind had ended
        self._before: list[dict[str, PodMeasurement]] = [{} for _ in range(nodes)]
        self._published: list[dict[str, bool]] = [{} for _ in range(nodes)]

    def pod_started(self, node: int, uid: str, kind: Kind) -> None:
        """The cgroup of a pod has appeared."""
        self._kind_of[node][uid] = kind
        if kind.key not in self._published[node]:
            self.with_news.add(node)
        self._start_costs[node].started_or_ended()

    def pod_ended(self, node: int, uid: str, at: float, measured: PodMeasurement | None) -> None:
        """A pod is over.

        Args:
            node: where it ran.
            uid: the pod.
            at: monotonic seconds.
            measured: what it has used; None if it was stopped before its work was done, which says nothing of its kind.
        """
        kind = self._kind_of[node].pop(uid, None)
        if kind is None:
            return
        self._start_costs[node].started_or_ended()
        if measured is not None:
            if not self._published[node].get(kind.key):
                self.with_news.add(node)
            self._kinds[node].pod_ended(kind, self._start_costs[node].added_to(measured), at)

    def measured(self, report: CapacityReport, model: NodeFleet) -> None:
        """A batch has been measured on every node."""
        for node, start_cost in enumerate(self._start_costs):
            start_cost.spent(float(report.cpu_for_pods[node] * model.cores[node]))

    def entries(self, node: int, running: Mapping[str, PodMeasurement], now: float) -> tuple[KindEntry, ...]:
        """What is known of each kind on a node, as its SubspaceSnapshot carries it.

        Args:
            node: the node.
            running: what pods that run there have used, by UID.
            now: monotonic seconds.
        """
        before, kinds = self._before[node], self._kind_of[node]
        shown = {
            uid: replace(pod, recent=recent_share(before[uid], pod)) if uid in before else pod
            for uid, pod in running.items()
            if uid in kinds
        }
        self._before[node] = shown
        table = self._kinds[node].table(((kinds[uid], pod) for uid, pod in shown.items()), now)
        self._published[node] = published = {key: sums.ended > 0.0 for key, sums in table.items()}
        if all(kind.key in published for kind in kinds.values()):
            self.with_news.discard(node)
        return to_entries(table)
