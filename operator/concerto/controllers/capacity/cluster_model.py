"""SubspaceSnapshot/cluster: the merge of all live nodes' models, republished when it has moved.

One writer, one object, watched by every agent: so at most one write in five seconds, and none while nothing moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from concerto.api.capacity_settings import MergeKind
from concerto.api.conditions import Condition, merge_conditions, with_progress
from concerto.api.subspacesnapshot import CLUSTER_NAME, Placement, SubspaceSnapshot, SubspaceStatus, model_numbers
from concerto.capacity.kinds.cluster_kinds import ROWS_A_LOOK, ClusterKinds
from concerto.capacity.kinds.cost import costliest
from concerto.capacity.kinds.sums import KindSums
from concerto.capacity.kinds.table import has_changed, to_entries
from concerto.capacity.subspace import Subspace, cluster_model, has_moved
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.runtime.metrics import Metrics
from concerto.kube import Conflict, KubeError, NotFound, Object, Session
from concerto.kube.resources import SUBSPACE_SNAPSHOTS
from concerto.kube.status_writes import write_status

logger = logging.getLogger(__name__)

_MAX_RESOURCES = 8
"""What the status of a SubspaceSnapshot can hold; the ones that fewest nodes measure are left out."""
_NODES_BETWEEN_YIELDS = 200


@dataclass(frozen=True)
class ClusterModelSettings:
    """When the cluster's model is republished, and whose model counts.

    Attributes:
        sigma_share: change of σ₁ worth a write, as a share of the published one.
        angle_degrees: turn of u₁ worth a write.
        min_interval_seconds: no two writes are closer together.
        stale_after_seconds: a node whose own model has not been received for so long is dropped (agents republish at
            least every 5 minutes).
        merge: the exact mean of all nodes' models, or the seed's streaming merge.
    """

    sigma_share: float = 0.02
    angle_degrees: float = 1.0
    min_interval_seconds: float = 5.0
    stale_after_seconds: float = 900.0
    merge: MergeKind = "Exact"


class ClusterModelPublisher:
    """Keeps the merged model from node snapshots, and writes it when it has moved."""

    def __init__(
        self,
        session: Session,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: ClusterModelSettings | None = None,
        *,
        kinds: ClusterKinds | None = None,
        placement: Callable[[], Placement] = lambda: "ByUnit",
    ) -> None:
        """Nothing is written before `run`.

        Args:
            session: the way to the API server.
            metrics: what is counted.
            clock: seconds since the epoch.
            settings: when to write.
            kinds: what all nodes know of kinds of pods.
            placement: what pods are placed by now.
        """
        self._placement = placement
        self._published_placement: Placement | None = None
        self._kinds = ClusterKinds() if kinds is None else kinds
        self._published_kinds: dict[str, KindSums] = {}
        self._session = session
        self._metrics = metrics
        self._clock = clock
        self._settings = settings or ClusterModelSettings()
        self._snapshots: dict[str, SubspaceStatus] = {}
        self._received_at: dict[str, float] = {}
        self._resources: tuple[str, ...] = ()
        self._model = cluster_model(self._settings.merge, 0)
        self._batches = 0
        self._unfolded: set[str] = set()  # names of snapshots that changed since the last fold
        self._published: Subspace | None = None
        self._dirty = asyncio.Event()

    def on_snapshot(self, old: Object | None, new: Object | None) -> None:
        """A SubspaceSnapshot appeared, changed or went (a reflector's callback). Cheap; `fold` takes it in."""
        name = ((new or old) or {})["metadata"]["name"]
        if name == CLUSTER_NAME:
            return
        status = self._parsed(name, new) if new is not None else None
        if status is None:
            known = self._snapshots.pop(name, None)
            self._received_at.pop(name, None)
            if known is None or name not in self._model:
                self._unfolded.discard(name)  # nothing of it was taken in; a standby, which folds nothing, forgets it
                return
        else:
            known = self._snapshots.get(name)
            if known is None:
                # It may have existed for long before this process started: it is as old as its status has it
                self._received_at[name] = min(self._clock(), status.observed_at)
            elif known.observed_at != status.observed_at:
                self._received_at[name] = self._clock()
            self._snapshots[name] = status
        self._unfolded.add(name)
        self._dirty.set()

    def fold(self) -> Iterator[None]:
        """Take in what has changed since the last time; yields now and then, so that others get their turn."""
        unfolded, self._unfolded = self._unfolded, set()
        resources = self._chosen_resources()
        if resources != self._resources:
            self._resources = resources
            self._model = cluster_model(self._settings.merge, len(resources))
            unfolded |= self._snapshots.keys()
        for count, name in enumerate(sorted(unfolded), 1):
            status = self._snapshots.get(name)
            if status is None:
                self._model.remove(name)
            else:
                self._take(name, status)
            if count % _NODES_BETWEEN_YIELDS == 0:
                yield

    def _parsed(self, name: str, raw: Object) -> SubspaceStatus | None:
        try:
            # Kinds are taken in elsewhere
            status = SubspaceSnapshot.from_raw({**raw, "status": {**(raw.get("status") or {}), "kinds": ()}}).status
        except Exception as error:  # whatever is wrong with it, the others' models go on counting
            logger.warning("SubspaceSnapshot %s is not usable: %s", name, error)
            return None
        return status if status is not None and status.resources else None

    def _chosen_resources(self) -> tuple[str, ...]:
        """The resources of the model: those that most nodes measure. One node alone adds none where others are."""
        nodes_with = Counter(r for status in self._snapshots.values() for r in set(status.resources))
        first = ("cpu", "memory")
        enough = min(2, len(self._snapshots))
        common = [r for r, count in nodes_with.items() if count >= enough or r in first]
        most = sorted(common, key=lambda r: (first.index(r) if r in first else len(first), -nodes_with[r], r))
        chosen = most[:_MAX_RESOURCES]
        return (*(r for r in first if r in chosen), *sorted(set(chosen).difference(first)))

    def _take(self, name: str, status: SubspaceStatus) -> None:
        if self._clock() - self._received_at[name] > self._settings.stale_after_seconds:
            self._model.remove(name)
            return
        known = {r: i for i, r in enumerate(status.resources) if r in self._resources}
        try:
            directions = np.zeros((len(self._resources), len(status.sigma)))
            # A resource that a node does not measure has a zero row: it neither adds nor hides load
            rows = [self._resources.index(r) for r in known]
            theirs = np.array(status.directions, dtype=float).reshape(len(status.sigma), len(status.resources))
            directions[rows, :] = theirs.T[list(known.values())]
            self._model.update(name, directions, np.array(status.sigma, dtype=float))
        except Exception as error:
            logger.warning("SubspaceSnapshot %s is not usable: %s", name, error)
            self._model.remove(name)
        else:
            self._batches += 1

    async def run(self) -> None:
        """Publish until cancelled; only the leader does."""
        await self._ensure_exists()
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            for _ in self.fold():
                await asyncio.sleep(0)
            self._drop_stale()
            current = self._model.subspace()
            kinds = self._kinds.published(ROWS_A_LOOK)
            self._metrics.cluster_model_nodes.set(len(self._model))
            if current is not None and (self._worth_a_write(current) or self._kinds_changed(kinds)):
                try:
                    await self._publish(current, kinds)
                except NotFound:
                    await self._ensure_exists()
                    self._dirty.set()
                except KubeError as error:
                    logger.warning("SubspaceSnapshot %s was not written: %s", CLUSTER_NAME, error)
                    self._dirty.set()
            await asyncio.sleep(self._settings.min_interval_seconds)

    def _kinds_changed(self, kinds: dict[str, KindSums]) -> bool:
        return self._published_placement != self._placement() or has_changed(self._published_kinds, kinds)

    def _drop_stale(self) -> None:
        horizon = self._clock() - self._settings.stale_after_seconds
        for name, received_at in self._received_at.items():
            if received_at < horizon:
                if name in self._model:
                    self._model.remove(name)
                self._kinds.remove_node(name)

    def _worth_a_write(self, current: Subspace) -> bool:
        published = self._published
        if published is None or published.sigma.shape != current.sigma.shape or published.nodes != current.nodes:
            return True
        return has_moved(
            published,
            current,
            sigma_share=self._settings.sigma_share,
            angle_degrees=self._settings.angle_degrees,
        )

    async def _ensure_exists(self) -> None:
        body = {
            "apiVersion": SUBSPACE_SNAPSHOTS.api_version,
            "kind": SUBSPACE_SNAPSHOTS.kind,
            "metadata": {"name": CLUSTER_NAME},
            "spec": {},
        }
        while True:
            try:
                await self._session.create(SUBSPACE_SNAPSHOTS.path(), body)
            except Conflict:
                return  # it is there
            except KubeError as error:
                logger.warning("SubspaceSnapshot %s was not created: %s", CLUSTER_NAME, error)
                await asyncio.sleep(self._settings.min_interval_seconds)
            else:
                return

    async def _publish(self, current: Subspace, kinds: dict[str, KindSums]) -> None:
        before = await self._session.get(SUBSPACE_SNAPSHOTS.path(name=CLUSTER_NAME))
        generation = before["metadata"].get("generation", 0)
        status = build_cluster_status(
            current,
            self._resources,
            observed_at=self._clock(),
            batches=self._batches,
            kinds=kinds,
            placement=(placement := self._placement()),
            generation=generation,
            conditions=merge_conditions(
                (before.get("status") or {}).get("conditions") or (),
                with_progress(
                    Condition("Ready", "True", "Merged", f"Merged from the models of {current.nodes} nodes.")
                ),
                now=wall_timestamp(),
                observed_generation=generation,
            ),
        )
        # One writer of the whole status: a merge patch replaces each list as a whole
        await write_status(self._session, SUBSPACE_SNAPSHOTS, before, status)
        self._published, self._published_kinds, self._published_placement = current, kinds, placement
        self._metrics.cluster_model_updates.inc()


def build_cluster_status(
    current: Subspace,
    resources: tuple[str, ...],
    *,
    observed_at: float,
    batches: int,
    generation: int,
    conditions: list[Object],
    kinds: dict[str, KindSums] | None = None,
    placement: Placement = "ByUnit",
) -> Object:
    """The status of SubspaceSnapshot/cluster.

    Args:
        current: the merged model; directions (m, m), column k is u_k.
        resources: m names, the order of the rows.
        observed_at: seconds since the epoch.
        batches: node models taken so far.
        generation: of the object.
        conditions: as the API is to hold them.
        kinds: the merged table of kinds.
        placement: what pods are placed by.
    """
    return SubspaceStatus(
        observed_at=observed_at,
        observed_generation=generation,
        resources=resources,
        sigma=model_numbers(current.sigma),
        directions=tuple(model_numbers(column) for column in current.directions.T),
        batches=batches,
        nodes=current.nodes,
        kinds=to_entries(kinds or {}),
        costliest=costliest(kinds or {}),
        conditions=tuple(conditions),
        placement=placement,
    ).to_raw()
