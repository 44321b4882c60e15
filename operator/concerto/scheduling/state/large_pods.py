"""What large pods take of each node's CPUs, and what is claimed for those that the agent has not named yet.

A claim is CPU that is kept for a large pod from its placement until its node's agent says what the pod takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.scheduling.state.columns import Bools, Columns, Floats, Rows
from concerto.scheduling.state.learned_sizes import LearnedSizes
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.nodes import Nodes
from concerto.scheduling.state.pod_index import PodIndex

_FREED_SHARE = 0.05
"""Share of a node's CPUs that must have come free before large pods are looked at again."""
_UNNAMED_SECONDS = 60.0
"""For so long an agent may count a pod before it is believed that it does not take what its kind takes."""


@dataclass(slots=True)
class Claim:
    """CPU that is kept for one large pod.

    Attributes:
        row: its node.
        share: of the node's CPUs.
        counted_at: time of the first status in which its agent counted it, seconds.
    """

    row: int
    share: float
    counted_at: float | None = None


class LargePods(Columns, PodIndex):
    """The account of large pods by row.

    Args:
        rows: names and rows.
        nodes: for the CPUs of the machines.
        sizes: what pods of a kind were seen to take.
        has_ended: whether the end of the pod with that UID has been seen.

    Attributes:
        sizes: as above.
        draining: by row, whether it is drained for a pod that has waited for long; only within a cycle.
        claimed_units: by row, ordinary pods that have no room because of claims.
    """

    FILLS: ClassVar[Mapping[str, float]] = {
        "draining": 0, "claimed_units": 0, "_live": 0, "_units": 0, "_claimed": 0, "_pod_share": 0, "_spare_share": 0,
        "_max_taken": 0,
    }  # fmt: skip

    def __init__(self, rows: NodeRows, nodes: Nodes, sizes: LearnedSizes, has_ended: Callable[[str], bool]) -> None:
        self.sizes = sizes
        self._has_ended = has_ended
        self.draining: Bools = np.zeros(0, dtype=np.bool_)
        self.claimed_units: Floats = np.zeros(0)
        self._rows = rows
        self._nodes = nodes
        self._live: Floats = np.zeros(0)  # pods on it that count
        self._units: Floats = np.zeros(0)  # of them, regular pods
        self._claimed: Floats = np.zeros(0)  # share of its CPUs
        self._pod_share: Floats = np.zeros(0)
        self._spare_share: Floats = np.zeros(0)
        self._max_taken: Floats = np.zeros(0)  # since the row was last reported as having gained room
        self._claims: dict[str, Claim] = {}
        self._claims_on: dict[int, set[str]] = {}
        self._set_aside: dict[str, Claim] = {}  # of pods on rows that do not count, as their start fails

    # --- what plugins ask

    def has_cpu_left(self, millicores: float, rows: Rows) -> Bools:
        """Which rows have that much CPU left beside what their pods take while they live, or no pods at all.

        A row whose agent does not report what its pods take has it.
        """
        machine = np.maximum(self._nodes.machine[0][rows], 1)
        lacks = millicores / machine + self.taken(rows) > 1.0
        left: Bools = ~lacks | (self._live[rows] == 0)
        return left

    def taken(self, rows: Rows) -> Floats:
        """Share of the rows' CPUs that what is on them takes, or will have taken; NaN where it is not reported."""
        units = self._units[rows] * self._pod_share[rows]
        taken: Floats = 1.0 - self._spare_share[rows] + self._claimed[rows] + units
        return taken

    # --- what is seen and decided

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on the row, or assumed there."""
        self.sizes.add_pod(pod, self._rows.names[row])

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """What is claimed for the pod is free while it does not count; the row is to be updated if that has changed."""
        uid = after.uid
        if before.counted and not after.counted and (claim := self.lift(uid)) is not None:
            claim.counted_at = None  # its agent has as long to name it as if it were placed when it starts
            self._set_aside[uid] = claim
        elif after.counted and (claim := self._set_aside.pop(uid, None)) is not None:
            self.put_back(uid, claim)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is not on the row any more, and claims no CPU; the row is to be updated if it did."""
        self.sizes.remove_pod(pod.uid, ended=self._has_ended(pod.uid))
        self._set_aside.pop(pod.uid, None)
        if pod.uid in self._claims:
            self._drop_claim(pod.uid)

    def has_claim(self, uid: str) -> bool:
        """Whether CPU is claimed for the pod."""
        return uid in self._claims

    def claim(self, uid: str, row: int, millicores: float) -> None:
        """Keep CPU for a large pod that is assumed on the row."""
        share = min(1.0, float(millicores / max(self._nodes.machine[0, row], 1)))
        self._claims[uid] = Claim(row, share)
        self._claims_on.setdefault(row, set()).add(uid)

    def lift(self, uid: str) -> Claim | None:
        """As if the pod were not there; returns its claim, for ``put_back``."""
        claim = self._claims.get(uid)
        if claim is not None:
            self._drop_claim(uid)
        return claim

    def put_back(self, uid: str, claim: Claim) -> None:
        """Undo ``lift``."""
        self._claims[uid] = claim
        self._claims_on.setdefault(claim.row, set()).add(uid)

    def report(self, row: int, status: NodeCapacityStatus | None, at: float) -> bool:
        """The row's agent has named its large pods, at that time.

        Returns:
            Whether claims have ended or may end, so that the row is to be updated.
        """
        large: Mapping[str, float] = {} if status is None else status.large_pods
        counted: Sequence[str] = () if status is None else status.observed_pod_uids
        machine = self._nodes.machine[0, row]
        if machine or not large:  # shares of CPUs of a Node that has not come yet wait for it
            self.sizes.report(self._rows.names[row], {uid: share * machine for uid, share in large.items()}, counted)
        for uid in self._set_aside.keys() & large.keys():
            if self._set_aside[uid].row == row:
                del self._set_aside[uid]
        claims = self._claims_on.get(row)
        if not claims:
            return False
        for uid in claims & {*counted, *large}:
            claim = self._claims[uid]
            claim.counted_at = at if claim.counted_at is None else min(at, claim.counted_at)
            if uid in large or at - claim.counted_at >= _UNNAMED_SECONDS:
                self._drop_claim(uid)
        return True

    def update(self, row: int, status: NodeCapacityStatus | None, live: Set[str]) -> None:
        """Sum up the row anew.

        Args:
            row: the row.
            status: its last status.
            live: UIDs of the pods on it that count.
        """
        self._pod_share[row] = np.nan if status is None or status.pod_share is None else status.pod_share
        self._spare_share[row] = np.nan if status is None else status.spare_share
        self._live[row] = self._units[row] = len(live)
        self._claimed[row] = self.claimed_units[row] = 0.0
        claims = self._claims_on.get(row)
        if claims or (status is not None and status.large_pods):
            self._count_large(row, claims or set(), {} if status is None else status.large_pods, live)
        if self.sizes:
            self._max_taken[row] = np.fmax(self._max_taken[row], self._taken_at(row))

    def has_freed(self, row: int) -> bool:
        """Whether so much CPU has come free that large pods are worth another look."""
        return bool(self.sizes) and bool(self._max_taken[row] - self._taken_at(row) >= _FREED_SHARE)

    def reset_freed(self, row: int) -> None:
        """That was taken note of."""
        self._max_taken[row] = np.nan

    # --- inside

    def _count_large(self, row: int, claims: Set[str], named: Mapping[str, float], live: Set[str]) -> None:
        """Pods with claims, and those that the agent names, are no regular pods of the row."""
        # An agent may name one whose end has been seen already
        self._units[row] -= len(live & (claims | named.keys()))
        claimed = sum(self._claims[uid].share for uid in claims)
        self._claimed[row] = claimed
        if claims and self._pod_share[row] > 0.0:
            self.claimed_units[row] = max(0.0, claimed / self._pod_share[row] - len(claims))

    def _taken_at(self, row: int) -> float:
        return float(self.taken(slice(row, row + 1))[0])

    def _drop_claim(self, uid: str) -> None:
        row = self._claims.pop(uid).row
        self._claims_on[row].discard(uid)
        if not self._claims_on[row]:
            del self._claims_on[row]
