"""What pods cost by kind, and what is committed on each node because of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.pod_kind import Kind
from concerto.api.podreservation import AssignmentCost
from concerto.capacity.kinds.cost import Cost, estimate
from concerto.capacity.kinds.node_loads import NodeLoads
from concerto.capacity.kinds.table import Table
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Floats, Ints, Rows
from concerto.scheduling.state.nodes import machine_of
from concerto.scheduling.state.placed_kinds import CostChange, PlacedKinds, columns
from concerto.scheduling.state.pod_index import PodIndex

_GROWTH = 4.0
"""Pods of a kind that a node may run for each one there that has shown its load, while none of them has ended."""


class KindLoads(PodIndex):
    """Costs of kinds and what they commit, by row.

    Attributes:
        loads: what is committed on each row.
        pods_wait: whether the last cycle left pods without a node.
        large_pods_wait: whether one of those was large (``is_large``) and had waited for long.
        on_new_cost: called with the rows of the pods of a kind once more is known of what they cost.
    """

    def __init__(self) -> None:
        self.on_new_cost: Callable[[Ints], None] = lambda rows: None
        self.loads = NodeLoads()
        self.pods_wait = False
        self.large_pods_wait = False
        self._measured = False
        self._kinds = PlacedKinds()
        self._assumed: Floats = np.zeros(0)  # (N,) cores committed to pods whose kinds were never measured

    def __bool__(self) -> bool:
        """Whether agents measure what pods cost; until they have something, nothing is known of any kind."""
        return self._measured

    @property
    def table(self) -> Table:
        """What is known of all kinds."""
        return self._kinds.table

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self.loads.grow(width)
        self._assumed = np.concatenate([self._assumed, np.zeros(max(0, width - len(self._assumed)))])

    def row_assigned(self, row: int) -> None:
        """Nothing is committed on the row."""
        self.loads.clear(row)
        self._assumed[row] = 0.0

    def node_changed(self, row: int, node: NodeView | None) -> None:
        """The row's Node says how large its machine is; what is known of it stays when the Node has gone."""
        if node is not None:
            millicores, memory_bytes = machine_of(node)
            self.loads.set_node(row, millicores / 1000.0, float(memory_bytes))

    def cost_of(self, pod: PodView) -> Cost:
        """What such a pod costs; while nothing is known of its memory, what it requests."""
        cost = self.cost_of_kind(pod.kind)
        if cost.memory is None and (requested := pod.requests.get("memory")):
            return replace(cost, memory=float(requested))
        return cost

    def cost_of_kind(self, kind: Kind) -> Cost:
        """What a pod of the kind costs, whatever it requests."""
        known = self._kinds.get(kind.key)
        return known.cost if known is not None else estimate(self.table, kind)

    def is_large(self, cost: Cost) -> bool:
        """Whether the end of one pod of ordinary size makes no room for such a pod.

        While others wait, each such end would be followed by one more ordinary pod, and a large one never find a node.
        """
        pods = float(self.loads.pods.sum())
        mean_share = float(self.loads.cpu.sum()) / pods if pods else 0.0
        return cost.known and self.loads.settings.overhang * cost.share > mean_share > 0.0

    def may_run(self, pod: PodView, cost: Cost, rows: Rows) -> Bools:
        """Rows that may run one more pod like it, as far as pods like it have shown what they use.

        Until one has ended nobody knows how long they go on and how their use changes. So a node is given few of them
        at first, and then some for each that has shown its load.
        """
        limit = self.loads.blind_pods(rows)
        known = self._kinds.get(pod.kind.key)
        if cost.basis == "Ended" or known is None:
            return limit > 0.0
        limit = np.maximum(limit, _GROWTH * cost.pods / max(1, len(known.pods)))
        may: Bools = known.counts(rows, len(self.loads.pods)) < limit
        return may

    def has_unassumed_cpu(self, rows: Rows, held: Floats | float = 0.0) -> Bools:
        """Rows with CPU left beside what was measured, whatever is assumed of pods whose kinds were never measured.

        A gang starts as a whole or not at all: were its pods counted by what is assumed of each, none of them would
        ever run to be measured where they fit by their requests alone.

        Args:
            rows: the rows.
            held: for each, cores that room is held for.
        """
        has: Bools = self.loads.cpu_left(rows) + self._assumed[rows] > held
        return has

    def set_table(self, table: Table) -> Change:
        """More is known of kinds: what is committed is counted afresh where it has changed.

        Returns:
            CAPACITY if anything differs: a pod that waits may be of a kind that no pod in the cluster is of.
        """
        differs, changes = self._kinds.set_table(table)
        differs |= not self._measured
        self._measured = True
        self._change_costs(changes)
        return Change.CAPACITY if differs else Change.NOTHING

    @property
    def are_behind(self) -> bool:
        """Whether more is known of kinds than is counted on nodes, as there are very many of them."""
        return self._kinds.are_behind

    def catch_up(self) -> Change:
        """Count more of what is known."""
        self._change_costs(changes := self._kinds.catch_up())
        return Change.CAPACITY if changes else Change.NOTHING

    def _change_costs(self, changes: Iterable[CostChange]) -> None:
        for change in changes:
            self._change_cost(change)

    def _change_cost(self, change: CostChange) -> None:
        on, pods = columns(change.pods)
        self.loads.change_cost(on, change.before, change.after, pods)
        self._assumed[on] += pods * (_assumed(change.after) - _assumed(change.before))
        self.on_new_cost(on)

    def cores_of(self, pods: Sequence[PodView], max_of_one_kind: int, have_room: Mapping[str, int]) -> float:
        """What pods that wait for a node take together.

        Args:
            pods: the pods.
            max_of_one_kind: if there are as many of one kind, more of them may wait, and the sum is infinite.
            have_room: pods for which room is held, by the key of their kind; they are not counted.
        """
        kinds = {pod.kind.key: pod for pod in pods if pod.counted}
        counts = Counter(pod.kind.key for pod in pods)
        if any(counts[key] >= max_of_one_kind for key in kinds):
            return math.inf
        return sum(max(0, counts[key] - have_room.get(key, 0)) * self.cost_of(pod).share for key, pod in kinds.items())

    def on_row(self, row: int) -> list[tuple[str, Cost, int]]:
        """Kinds with pods on the row's node: key, cost of one pod, and number of pods; those that take most first."""
        found = [(known.kind.key, known.cost, known.pods[row]) for known in self._kinds if row in known.pods]
        return sorted(found, key=lambda each: (-each[1].share * each[2], each[0]))

    def left(self, row: int) -> tuple[float, float]:
        """Cores and bytes of memory that the row's node has left, signed; none while kinds are not measured."""
        return self.loads.left(row) if self._measured else (0.0, 0.0)

    def gained(self, row: int, before: tuple[float, float]) -> Change:
        """Whether the row's node has more room than before (``left``); a node may be over by units and have it."""
        cpu, memory = self.left(row)
        gained = (cpu > before[0] or memory > before[1]) and self.loads.has_room(row)
        return Change.CAPACITY if gained else Change.NOTHING

    def report(self, row: int, status: NodeCapacityStatus | None, now: float) -> Change:
        """What the row's agent has measured of the whole node.

        Args:
            row: the row.
            status: its last status; None without one.
            now: when it came, seconds.

        Returns:
            CAPACITY if the node has more room than before.
        """
        loads, left = self.loads, self.left(row)
        resources = {} if status is None else {r.name: r for r in status.resources}
        cpu, memory = resources.get("cpu"), resources.get("memory")
        # What a node does to start and end pods is in what those cost, and would count twice
        system_cpu = status.system_cpu if status is not None else None
        if system_cpu is None and cpu is not None:
            system_cpu = cpu.non_pod
        own_memory = loads.memory_bytes[row] * _part(memory.non_pod if memory else None)
        loads.set_own(row, loads.cores[row] * _part(system_cpu), own_memory)
        if status is not None and cpu is not None:
            # y is half the runnable threads per CPU, up to two of them: from one on no CPU idles
            used = min(1.0, 2.0 * cpu.usage) if status.cpu_used is None else _part(status.cpu_used)
            loads.observe(row, used, self.pods_wait, now, status.pods_wanting)
        return self.gained(row, left)

    def recorded(self, cost: Cost, row: int) -> AssignmentCost:
        """What a placement record says of a pod of that cost, before it is placed on the row."""
        cpu, memory = self.left(row)
        beyond, more = self.loads.beyond_for(cost, row)
        return AssignmentCost(
            cpu_millicores=round(1000 * cost.share),
            cpu_seconds=cost.work,
            memory_bytes=round(self.loads.memory_of(cost)),
            known_from=cost.basis,
            head_room=float(self.loads.head_room[row]) + beyond,
            cpu_left_millicores=round(1000 * (cpu + more)),
            memory_left_bytes=round(memory),
        )

    def give_work(self, pod: PodView, row: int, now: float) -> None:
        """The pod has just been placed on the row: its node has its work to do."""
        if (known := self._kinds.get(pod.kind.key)) is not None and pod.counted:
            self.loads.give_work(row, known.cost, now)

    def recall_work(self, pod: PodView, row: int, recorded: AssignmentCost, at: float) -> None:
        """An earlier process placed the pod on the row: pace and head room go on from there.

        Args:
            pod: the pod, which is on the row.
            row: the row.
            recorded: what the placement record says.
            at: when it was placed, seconds.
        """
        self.give_work(pod, row, at)
        self.loads.set_head_room(row, recorded.head_room)

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on the row, and uses what its kind costs."""
        if not pod.counted:
            return
        cost = self._kinds.add_pod(pod.kind, row).cost
        self.loads.add_pod(row, cost)
        self._assumed[row] += _assumed(cost)

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """The pod may be of another kind now: labels and images can change."""
        if (before.kind, before.counted) != (after.kind, after.counted):
            self.pod_removed(before, row)
            self.pod_added(after, row)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod uses nothing of the row's node any more."""
        if not pod.counted or (cost := self._kinds.remove_pod(pod.kind, row)) is None:
            return
        self.loads.remove_pod(row, cost)
        self._assumed[row] -= _assumed(cost)


def _assumed(cost: Cost) -> float:
    return 0.0 if cost.known else cost.share


def _part(said: float | None) -> float:
    return min(max(0.0, said or 0.0), 1.0)  # in this order NaN is 0
