"""Telemetry faults: what agents measure while a node's telemetry is wrong."""

from __future__ import annotations

from concerto.capacity.cpu_demand import MAX_RUNNABLE
from concerto.simulation.scheduling.node_telemetry import Readings


class FalseTelemetry:
    """Nodes whose telemetry is wrong: frozen, always idle or always full."""

    def __init__(self) -> None:
        self._kinds: dict[int, str] = {}
        self._frozen: dict[int, Readings] = {}

    def begin(self, node: int, kind: str) -> None:
        """From now on the node's telemetry has this fault: FrozenTelemetry, IdleTelemetry or FullTelemetry."""
        self._kinds[node] = kind
        self._frozen.pop(node, None)

    def end(self, node: int) -> None:
        """The node's telemetry is right again."""
        self._kinds.pop(node, None)

    def apply(self, readings: Readings) -> Readings:
        """The readings as the policy sees them."""
        if not self._kinds:
            return readings
        seen = {name: getattr(readings, name).copy() for name in Readings.__dataclass_fields__}
        for node, kind in self._kinds.items():
            if kind == "FrozenTelemetry":
                frozen = self._frozen.setdefault(node, readings)
                for name, values in seen.items():
                    values[node] = getattr(frozen, name)[node]
            else:
                for name in ("utilisation", "pressure", "memory"):
                    seen[name][node] = 0.0 if kind == "IdleTelemetry" else 1.0
                seen["runnable"][node] = 0.0 if kind == "IdleTelemetry" else MAX_RUNNABLE
        return Readings(**seen)
