"""Measured capacity of the nodes as columns: the ledger's numbers, less what large pods and exclusive CPUs take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concerto.api.schedulingprofile import MetricsPolicy
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Columns, Floats
from concerto.scheduling.state.exclusive_cpus import ExclusiveCPUs
from concerto.scheduling.state.large_pods import LargePods
from concerto.scheduling.state.ledger import Ledger
from concerto.scheduling.state.node_account import NodeAccount
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex

_NO_ACCOUNT = NodeAccount()
MEASURED, BY_REQUESTS, AVOIDED = np.int8(0), np.int8(1), np.int8(2)
"""Basis of a node: measured capacity; requests, as telemetry is missing or too old; or no pods at all."""


class MeasuredCapacity(Columns, PodIndex):
    """How many more pods each row can take.

    Args:
        rows: names and rows.
        ledger: statuses, and what is promised.
        large_pods: what is claimed for large pods.
        exclusive: which part of a node's CPUs is shared.

    Attributes:
        capacity: pods it can take by its last status, before what is in flight; NaN without a status.
        startable: ``capacity`` less what is in flight; NaN without a status.
        holdable: units that can still be held for a person's reservation; NaN without a status.
        available: of ``startable``, what no reservation holds; NaN without a status.
        last_status_at: when its last status came, seconds; NaN without one.
        live: pods on it that count.
    """

    FILLS: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("capacity", "startable", "holdable", "available", "last_status_at", "live"), 0.0
    )

    def __init__(self, rows: NodeRows, ledger: Ledger, large_pods: LargePods, exclusive: ExclusiveCPUs) -> None:
        self._rows = rows
        self._ledger = ledger
        self._large_pods = large_pods
        self._exclusive = exclusive
        self.capacity: Floats = np.zeros(0)
        self.startable: Floats = np.zeros(0)
        self.holdable: Floats = np.zeros(0)
        self.available: Floats = np.zeros(0)
        self.last_status_at: Floats = np.zeros(0)
        self.live: Floats = np.zeros(0)

    def row_assigned(self, row: int) -> None:
        """Nothing is known of the row's node."""
        self._large_pods.update(row, None, frozenset())
        self.capacity[row] = self.startable[row] = self.holdable[row] = self.available[row] = np.nan
        self.last_status_at[row] = np.nan
        self.live[row] = 0

    def update(self, row: int) -> Change:
        """Read the row's numbers afresh; returns whether it can take more than before.

        Agents measure the whole machine, so that idle exclusive CPUs look like room: only the shared part of it counts
        as room for pods that have no CPUs of their own.
        """
        account = self._ledger.nodes.get(self._rows.names[row]) or _NO_ACCOUNT
        status, before = account.status, self.available[row]
        self._large_pods.update(row, status, account.live.keys())
        claimed, shared = float(self._large_pods.claimed_units[row]), float(self._exclusive.shared_part[row])
        capacity, startable, holdable = account.room
        startable, holdable = _part(startable, shared) - claimed, _part(holdable, shared) - claimed
        self.capacity[row] = capacity
        self.startable[row], self.holdable[row] = startable, holdable
        self.available[row] = min(startable, holdable)
        self.last_status_at[row] = np.nan if status is None else account.last_status_at
        self.live[row] = len(account.live)
        return self.gained(row, before)

    def gained(self, row: int, before: float) -> Change:
        """Whether the row can take more than before, or its CPUs can, for a large pod; each gain is returned once."""
        available = self.available[row]
        if available > 0 and (self._large_pods.has_freed(row) or not available <= before):
            self._large_pods.reset_freed(row)
            return Change.CAPACITY
        return Change.NOTHING

    def basis(self, now: float, *, stale_after_seconds: float, policy: MetricsPolicy) -> NDArray[np.int8]:
        """What each row takes part by, as of now: MEASURED, BY_REQUESTS or AVOIDED.

        The last status of an agent that does not report any more, less what has been placed since, is used until it is
        ``stale_after_seconds`` old. Source: docs/references.md, "Capacity signal".
        """
        with np.errstate(invalid="ignore"):
            usable = now - self.last_status_at[: self._rows.size] <= stale_after_seconds
        otherwise = BY_REQUESTS if policy == "FallbackToRequests" else AVOIDED
        return np.where(usable, MEASURED, otherwise)


def _part(room: float, part: float) -> float:
    """That part of the room; what is missing already (a negative room) stays missing."""
    return room * part if room > 0.0 else room
