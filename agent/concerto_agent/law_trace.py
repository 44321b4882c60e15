"""What an agent keeps of the control law's numbers, for /debug/trace."""

from __future__ import annotations

import json
import math

from concerto.capacity.trace import AGENT_COLUMNS, Trace
from concerto_agent.measurement import Measured


class LawTrace:
    """The numbers of one node after each batch of the last minutes."""

    def __init__(self, node_name: str, batches: int) -> None:
        """Nothing is kept yet.

        Args:
            node_name: of the node.
            batches: that are kept.
        """
        self._node_name = node_name
        self._trace = Trace(AGENT_COLUMNS, batches)
        self._text: str | None = None

    def keep(self, at: float, measured: Measured, cpu: float | None, published: float | None) -> None:
        """Keep the numbers of a batch.

        Args:
            at: seconds since the epoch.
            measured: what the batch gave.
            cpu: utilisation over the last second, 0 to 1; None if unknown.
            published: capacity in the status that was written last, pods; None before the first.
        """
        report, self._text = measured.report, None
        self._trace.add(
            at,
            {
                "pods": float(report.pods[0]),
                "window": report.window,
                "demand": report.demand,
                "cpu": math.nan if cpu is None else cpu,
                "tokens": report.tokens,
                "capacity": report.capacity,
                "published": math.nan if published is None else published,
                "share": report.pod_share,
            },
        )

    def text(self) -> str:
        """The answer of /debug/trace, JSON. It takes milliseconds, so it is made once for a batch."""
        if self._text is None:
            self._text = json.dumps(self._trace.document(self._node_name, self._trace.rows(0)))
        return self._text
