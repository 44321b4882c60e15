"""What an index is: something with an entry by row that follows which Nodes exist and which pods are on them."""

from __future__ import annotations

from concerto.api.node import NodeView
from concerto.api.pod import PodView


class PodIndex:
    """Base of what the cluster state keeps between cycles. Here each method does nothing.

    The cluster state calls the methods in the order of events. Before a pod is added on another row, it is removed from
    the row it was on, with the PodView that ``pod_added`` or else ``pod_updated`` gave last.
    """

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""

    def row_assigned(self, row: int) -> None:
        """The row stands for another node from now on, of which nothing is known yet."""

    def node_changed(self, row: int, node: NodeView | None) -> None:
        """The row's Node came or changed; None: it is gone, though pods may still be on the row."""

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on the row, bound or assumed."""

    def pod_bound(self, pod: PodView, row: int) -> None:
        """The API server has accepted the binding of the pod, which is on the row. It may have been seen bound."""

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """The pod on the row has changed; its requests and its shape are what they were."""

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is not on the row any more."""
