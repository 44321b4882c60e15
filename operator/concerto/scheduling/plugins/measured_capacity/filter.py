"""PodCapacity: the node's measured capacity has room for one more pod.

Source: docs/references.md, "Capacity signal".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.capacity.kinds.cost import Cost, cpu_in_words, memory_in_words
from concerto.scheduling.framework import FilterDefaults, Query, refused_unless
from concerto.scheduling.plugins.measured_capacity.pace import has_room_for_a_later_start
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Ints, Rows

RATION = 5
"""Pods that a node gets before its agent has reported for the first time, while other nodes are measured."""


class PodCapacity(FilterDefaults):
    """Available is at least ``admitFraction``. Pods that belong to their node need no capacity.

    What is not measured now is not taken for free: where a node takes part by requests, its agent's last status, less
    what was placed since, still bounds it; before the first status it gets a ration. A node where no agent can run
    takes only pods that select nodes or tolerate its taint.
    """

    name: ClassVar[str] = "PodCapacity"
    mended_by_draining: ClassVar[bool] = True
    by_measurement: ClassVar[bool] = True
    refusals: ClassVar[tuple[str, ...]] = ("Insufficient measured capacity",)
    by_amount: ClassVar[bool] = True
    resolvable: ClassVar[frozenset[int]] = frozenset({1})
    requeue_on: ClassVar[Change] = Change.NODE | Change.CAPACITY

    def prepare(self, query: Query) -> Query | None:
        """Pods that belong to their node are not concerned."""
        return query if query.pod.counted else None

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows without room are refused; why is found out where it is asked for."""
        return refused_unless(self._has_room(state, rows))

    def _has_room(self, query: Query, rows: Rows) -> Bools:
        if query.cost is not None:
            room = self._has_room_by_kind(query, query.cost, rows)
            return room | self._passes_by_requests(query, rows) if query.any_by_requests else room
        # NaN compares as False: an unmeasured node has no measured room
        room = query.available(rows) >= query.settings.admit_fraction
        if not query.all_measured:
            room &= query.is_measured(rows)
        if query.required_cpu is not None:
            room &= query.cluster.large_pods.has_cpu_left(query.required_cpu, rows)
        elif not query.ignores_size:
            room &= ~query.cluster.large_pods.draining[rows]
        return room | self._passes_by_requests(query, rows) if query.any_by_requests else room

    def _has_room_by_kind(self, query: Query, cost: Cost, rows: Rows) -> Bools:
        """Measured rows that have room for a pod of that cost, and may be given its work now."""
        kinds, draining = query.cluster.kinds, query.cluster.large_pods.draining[rows]
        held = query.held_by_others(rows)
        fits = kinds.loads.fits(cost, rows, held)
        if query.starts_together and not cost.known:
            fits |= kinds.has_unassumed_cpu(rows, held.cpu) & kinds.loads.fits_memory(cost, rows, held)
        if query.ignores_size:
            fits |= (kinds.loads.cpu_left(rows) > 0.0) & kinds.loads.fits_memory(cost, rows)
        elif draining.any() and not kinds.is_large(cost):
            fits &= ~draining
        if query.large_enough is not None:
            fits &= query.large_enough[rows]
        room = fits if query.all_measured else query.is_measured(rows) & fits
        if query.starts_together:
            return room
        room &= kinds.loads.paced(cost, rows, query.now)
        if cost.basis != "Ended":
            room &= kinds.may_run(query.pod, cost, rows)
        return room

    def _passes_by_requests(self, query: Query, rows: Rows) -> Bools:
        cluster, by_requests = query.cluster, query.is_by_requests(rows)
        agentless = cluster.nodes.agentless[rows]
        may_overflow = query.pod.shape.selects_nodes | cluster.nodes.taints.repel(rows)
        never = np.isnan(cluster.measured.capacity[rows])
        ration = (cluster.measured.live[rows] < RATION) | (not query.any_measured)
        with np.errstate(invalid="ignore"):
            last_word = query.available(rows) >= query.settings.admit_fraction
        return by_requests & np.where(agentless, may_overflow, np.where(never, ration, last_word))

    def passes_soon(self, state: Query, rows: Rows) -> Bools:
        """Rows with room, which only limit how many pods start at a time, or wait for their agent's first report."""
        never = np.isnan(state.cluster.measured.capacity[rows]) & ~state.cluster.nodes.agentless[rows]
        return has_room_for_a_later_start(state, rows) | (state.is_by_requests(rows) & never)

    def reasons(self, state: Query, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """Full, held for other pods, never measured, measured too long ago, or no place for an agent."""
        if state.cost is not None and (measured := state.is_measured(rows)).any():
            by_kind = self._reasons_by_kind(state, state.cost, rows[measured])
            return by_kind | self._reasons_by_pods(state, rows[~measured])
        return self._reasons_by_pods(state, rows)

    def _reasons_by_kind(self, query: Query, cost: Cost, rows: Ints) -> dict[str, int]:
        loads = query.cluster.kinds.loads
        fits, paced = loads.fits(cost, rows), loads.paced(cost, rows, query.now)
        enough = query.large_enough[rows] if query.large_enough is not None else np.ones(len(rows), dtype=np.bool_)
        fits &= enough
        held = fits & ~loads.fits(cost, rows, query.held_by_others(rows))
        drained = fits & ~held & query.cluster.large_pods.draining[rows]
        rest = fits & ~held & ~drained
        has_cpu, has_memory = loads.fits_cpu(cost, rows) & enough, loads.fits_memory(cost, rows)
        whose = "pods of this kind take" if cost.known else "is assumed for a pod whose kind was never measured"
        cpu, memory = cpu_in_words(cost.share), memory_in_words(loads.memory_of(cost))
        return _counts(
            {
                f"node(s) had less CPU left than the {cpu} that {whose}": ~has_cpu,
                f"node(s) had less memory left than the {memory} that {whose}": has_cpu & ~has_memory,
                "node(s) had their measured capacity held by PodReservations": held,
                "node(s) were being drained for a larger pod": drained,
                "node(s) limited how fast pods may start": rest & ~paced,
                "node(s) ran pods of this kind whose use has not been measured yet": rest & paced,
            }
        )

    def _reasons_by_pods(self, query: Query, rows: Ints) -> dict[str, int]:
        cluster = query.cluster
        measured, by_requests = query.is_measured(rows), query.is_by_requests(rows)
        never = np.isnan(cluster.measured.capacity[rows])
        agentless = by_requests & cluster.nodes.agentless[rows]
        rationed = by_requests & never & ~agentless
        bounded = measured | (by_requests & ~never & ~agentless)
        # What has room by capacity was refused for another reason
        room = measured & (query.available(rows) >= query.settings.admit_fraction)
        held = bounded & ~room & (cluster.measured.startable[rows] >= query.settings.admit_fraction)
        by_size = "node(s) were being drained for a larger pod"
        if query.required_cpu is not None:
            by_size = f"node(s) had less CPU left than the {query.required_cpu:.0f}m that pods of this kind use"
        found = {
            "Insufficient measured capacity": bounded & ~held & ~room,
            "node(s) had their measured capacity held by PodReservations": held,
            by_size: room,
            f"node(s) had their ration of {RATION} pods until their agent reports": rationed,
            "node(s) can't run Concerto's agent and were not selected by the pod": agentless,
            "node(s) had no measured capacity": ~measured & ~by_requests & never,
            "node(s) had stale telemetry": ~measured & ~by_requests & ~never,
        }
        return _counts(found)


def _counts(found: Mapping[str, Bools]) -> dict[str, int]:
    return {reason: int(np.count_nonzero(mask)) for reason, mask in found.items() if mask.any()}
