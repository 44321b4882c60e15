"""Measured capacity of the nodes as columns, from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from concerto.api.schedulingprofile import MetricsPolicy
from concerto.scheduling.state.columns import Columns, Floats
from concerto.scheduling.state.ledger import Ledger
from concerto.scheduling.state.node_rows import NodeRows

MEASURED, BY_REQUESTS, AVOIDED = np.int8(0), np.int8(1), np.int8(2)
"""Basis of a node: measured capacity; requests, as telemetry is missing or too old; or no pods at all."""


class MeasuredCapacity(Columns):
    """How many more pods each row can take.

    Args:
        rows: names and rows.
        ledger: where the numbers come from.

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

    def __init__(self, rows: NodeRows, ledger: Ledger) -> None:
        self._rows = rows
        self._ledger = ledger
        self.capacity: Floats = np.zeros(0)
        self.startable: Floats = np.zeros(0)
        self.holdable: Floats = np.zeros(0)
        self.available: Floats = np.zeros(0)
        self.last_status_at: Floats = np.zeros(0)
        self.live: Floats = np.zeros(0)

    def update(self, row: int, for_claims: float, shared_part: float = 1.0) -> None:
        """Read the row's numbers from the ledger.

        Args:
            row: the row.
            for_claims: pods that have no room because of what is claimed for large pods.
            shared_part: part of the node's CPUs that pods without CPUs of their own may use: agents measure the whole
                machine, so that idle exclusive CPUs look like room.
        """
        name, ledger = self._rows.names[row], self._ledger
        self.capacity[row] = _or_nan(ledger.capacity(name))
        self.startable[row] = _part(_or_nan(ledger.startable(name)), shared_part) - for_claims
        self.holdable[row] = _part(_or_nan(ledger.holdable(name)), shared_part) - for_claims
        self.available[row] = _part(_or_nan(ledger.available(name)), shared_part) - for_claims
        self.last_status_at[row] = _or_nan(ledger.last_status_at(name))
        self.live[row] = len(ledger.live(name))

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


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
