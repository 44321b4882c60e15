"""The accounts of all nodes, and which of them have changed."""

from __future__ import annotations

from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.scheduling.state.node_account import NodeAccount, Room


class NodeAccounts:
    """Accounts by node name; a node without an entry in it has no account. The ledger writes, others only ask."""

    def __init__(self) -> None:
        self._by_name: dict[str, NodeAccount] = {}
        self._changed: set[str] = set()

    # --- what is asked

    def available(self, node: str) -> float | None:
        """Pods for which nothing is held that the node can still take, possibly negative; None without a status."""
        startable, holdable = self.startable(node), self.holdable(node)
        return None if startable is None or holdable is None else min(startable, holdable)

    def startable(self, node: str) -> float | None:
        """Pods that may still start on the node by its last status; None without a status."""
        room = self._room(node)
        return None if room is None else room.startable

    def holdable(self, node: str) -> float | None:
        """Units that can still be held on the node (``Room.holdable``); None without a status."""
        room = self._room(node)
        return None if room is None else room.holdable

    def is_committed(self, node: str) -> bool:
        """Whether anything is promised on the node."""
        account = self._by_name.get(node)
        return account is not None and (account.promised != 0 or account.held != 0)

    def in_flight(self, node: str) -> int:
        """Units assigned or bound to the node that its agent has not observed."""
        account = self._by_name.get(node)
        return account.in_flight if account is not None else 0

    def status(self, node: str) -> NodeCapacityStatus | None:
        """The node's last status."""
        account = self._by_name.get(node)
        return account.status if account is not None else None

    def last_status_at(self, node: str) -> float | None:
        """When the node's last status came, by the operator's clock; None without one."""
        account = self._by_name.get(node)
        return account.last_status_at if account is not None and account.status is not None else None

    def resource_version(self, node: str) -> str:
        """Version of the NodeCapacity that the node's numbers are from; empty without one."""
        account = self._by_name.get(node)
        return account.resource_version if account is not None else ""

    def longest_heartbeat(self) -> tuple[str, float] | None:
        """The node whose agent may stay silent for longest, the first by name of equal ones, and how long, seconds.

        None while no agent has reported.
        """
        reported = ((-a.heartbeat_seconds, name) for name, a in self._by_name.items() if a.status is not None)
        longest = min(reported, default=None)
        return None if longest is None else (longest[1], -longest[0])

    def with_stale_agent(self, now: float, heartbeats_missed: int) -> list[str]:
        """Nodes with a status whose agent has not reported for that many of its heartbeats."""
        return [
            name
            for name, a in self._by_name.items()
            if a.status is not None and now - a.last_status_at > heartbeats_missed * a.heartbeat_seconds
        ]

    # --- what the ledger does

    def get(self, node: str) -> NodeAccount | None:
        """The node's account, if it has one."""
        return self._by_name.get(node)

    def change(self, node: str) -> NodeAccount:
        """The node's account, which is about to change; a node without one gets an empty one."""
        self._changed.add(node)
        account = self._by_name.get(node)
        if account is None:
            account = self._by_name[node] = NodeAccount()
        return account

    def tidy(self, node: str) -> None:
        """Delete the account if it is empty."""
        account = self._by_name.get(node)
        if account is not None and account.empty:
            del self._by_name[node]

    def take_changed(self) -> set[str]:
        """Nodes whose numbers have changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    # --- inside

    def _room(self, node: str) -> Room | None:
        account = self._by_name.get(node)
        return None if account is None or account.status is None else account.room
