"""Hands what the nodes have measured of kinds of pods to the scheduler, soon after it has arrived."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from itertools import islice

from concerto.api.subspacesnapshot import CLUSTER_NAME, Placement, SubspaceSnapshot
from concerto.capacity.kinds.cluster_kinds import KEYS_A_TURN, ROWS_A_LOOK, ClusterKinds
from concerto.capacity.kinds.table import MAX_ENTRIES, Table, from_entries
from concerto.kube import Object
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
"""Shortest time between two updates by what agents have published: each blocks the event loop for milliseconds."""
_NODES_A_LOOK = 10
"""Nodes whose tables are taken in at one look, so that it does not hold the event loop; others wait for the next. Each
may have hundreds of kinds that no other knows."""
_PARTS_A_LOOK = 15
"""Further parts of the costs that are brought up to date at one look, each while others wait for the event loop."""
_UNKNOWN_CORES = 1024.0
"""CPUs that a node is taken to have while its Node object is not known."""


class KindsFeed:
    """Keeps the tables of all nodes, and brings the scheduler's costs up to date.

    The scheduler does not wait for the cluster's SubspaceSnapshot to be written and seen: what nodes publish is here
    already, also after a restart.

    Attributes:
        kinds: the tables of all nodes.
    """

    def __init__(self, cluster: ClusterState, requeue: Callable[[Change], None], *, places_by_kind: bool) -> None:
        """Nothing is handed over before `run`.

        Args:
            cluster: the scheduler's.
            requeue: called when pods that wait may find a node.
            places_by_kind: whether the scheduler uses the costs; else they are only kept for the cluster's model.
        """
        self._places_by_kind = places_by_kind
        self.kinds = ClusterKinds()
        self._cluster = cluster
        self._requeue = requeue
        self._version = 0
        self._seen: dict[str, Object | None] = {}  # snapshots to be taken in, by node; None for one that has gone
        self._arrived = asyncio.Event()
        self._of_cluster: Object | None = None
        self._leads = False
        self._are_all_read = True

    def placement(self) -> Placement:
        """What the scheduler places pods by now."""
        return "ByKind" if self._cluster.kinds else "ByUnit"

    def on_snapshot(self, old: Object | None, new: Object | None) -> None:
        """A SubspaceSnapshot appeared, changed or went."""
        name = ((new or old) or {})["metadata"]["name"]
        if name != CLUSTER_NAME:
            self._seen[name] = new
            self._arrived.set()
        elif not self._leads:
            self._of_cluster = new

    def load(self) -> None:
        """Make known what was measured before this process began, before it decides on anything.

        The cluster's own table, which an earlier process has merged, holds what nodes measured that have gone. It also
        stands for the tables of thousands of nodes until they have been taken in, which takes a while.
        """
        self.kinds.begin_with(self._read_of_cluster())
        self._leads, self._are_all_read = True, False
        self.update()
        self._arrived.set()  # more may be left than one look takes in

    def _read_of_cluster(self) -> Table:
        try:
            status = None if self._of_cluster is None else SubspaceSnapshot.from_raw(self._of_cluster).status
        except Exception as error:  # whatever is wrong with it, the nodes' tables count
            logger.warning("SubspaceSnapshot %s is not usable: %s", CLUSTER_NAME, error)
            status = None
        return {} if status is None else from_entries(status.kinds[:MAX_ENTRIES])

    async def run(self, nodes_known: asyncio.Event) -> None:
        """Hand over what arrives until cancelled: at once, or `INTERVAL_SECONDS` after the last time.

        Pods of a kind that was never measured wait for the measurements of its first ones. A standby does the same, so
        that it knows all costs when it leads, and does not hold what arrives meanwhile.

        Args:
            nodes_known: set once all Nodes are known, as what pods can cost is bounded by what their node has.
        """
        await nodes_known.wait()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while len(self._seen) > _NODES_A_LOOK:
                self._take_in()
                await asyncio.sleep(0)
            rows = 0
            while self.kinds.has_changes and rows < ROWS_A_LOOK:
                rows += self.kinds.add_up(ROWS_A_LOOK - rows, KEYS_A_TURN)
                await asyncio.sleep(0)
            self._take_in()
            await asyncio.sleep(0)
            self._hand_over(ROWS_A_LOOK - rows)
            change = Change.NOTHING
            for _ in range(_PARTS_A_LOOK):
                if not self._cluster.kinds.are_behind:
                    break
                await asyncio.sleep(0)
                change |= self._cluster.kinds.catch_up()
            if change:
                self._requeue(change)
            if self._seen or self.kinds.has_changes or self._cluster.kinds.are_behind:
                self._arrived.set()
            await asyncio.sleep(INTERVAL_SECONDS)

    def update(self) -> None:
        """Hand over what has changed; while nothing was ever measured, pods are counted as units."""
        self._take_in()
        self._hand_over(ROWS_A_LOOK)

    def _hand_over(self, max_rows: int) -> None:
        if not self._seen and not self._are_all_read:
            self._are_all_read = True
            self.kinds.all_read()
        table = self.kinds.table(max_rows)
        if self._places_by_kind and table and self.kinds.version != self._version:
            self._version = self.kinds.version
            self._requeue(self._cluster.kinds.set_table(table))
        elif self._cluster.kinds.are_behind:
            self._requeue(self._cluster.kinds.catch_up())

    def _take_in(self) -> None:
        for name in list(islice(self._seen, _NODES_A_LOOK)):
            self._take(name, self._seen.pop(name))

    def _take(self, name: str, snapshot: Object | None) -> None:
        try:
            status = None if snapshot is None else SubspaceSnapshot.from_raw(snapshot).status
        except Exception as error:  # whatever is wrong with it, the others' tables go on counting
            logger.warning("SubspaceSnapshot %s is not usable: %s", name, error)
            status = None
        if status is None:
            self.kinds.remove_node(name)
        else:
            cores = self._cluster.nodes.cores_of(name) or _UNKNOWN_CORES
            memory = self._cluster.nodes.memory_of(name) or math.inf
            self.kinds.set_entries(name, status.kinds[:MAX_ENTRIES], cores, memory)
            # They are most of a snapshot; nobody else reads them
            assert snapshot is not None
            snapshot["status"].pop("kinds", None)
