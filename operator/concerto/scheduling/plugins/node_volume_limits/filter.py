"""NodeVolumeLimits: the node's CSI drivers can attach the pod's volumes. Source: kube-scheduler's plugin of that name.

Volumes of in-tree plugins that CSI drivers have replaced count as the drivers'. Inline volumes of CSI drivers do not
count, as they are not attached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.volume_migration import VolumeID
from concerto.api.volumes import ClaimKey
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Ints, Rows
from concerto.scheduling.state.volumes import VolumeIndex


@dataclass(frozen=True)
class _State:
    """The volumes that the pod needs attached.

    Attributes:
        query: the pod and its cluster.
        volumes: each once.
    """

    query: Query
    volumes: frozenset[VolumeID]


class NodeVolumeLimits(FilterDefaults):
    """What is attached and what the pod needs beyond that stays within each driver's limit."""

    name: ClassVar[str] = "NodeVolumeLimits"
    refusals: ClassVar[tuple[str, ...]] = (
        "CSI driver is not installed on the node",
        "node(s) exceed max volume count",
    )
    resolvable: ClassVar[frozenset[int]] = frozenset({1, 2})
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED | Change.VOLUMES

    def prepare(self, query: Query) -> _State | None:
        """Pods are concerned that need a volume of a CSI driver."""
        volumes = _volumes_of(query.cluster.volumes, query.pod)
        return _State(query, volumes) if volumes else None

    def check(self, state: _State, rows: Rows) -> Codes:
        """A driver that is missing comes before one whose limit is reached."""
        index = state.query.cluster.volumes
        codes = np.zeros(len(state.query.basis[rows]), dtype=np.int8)
        for driver, count in Counter(driver for driver, _ in state.volumes).items():
            limits = index.use.attached.limits(driver)[rows]
            there = index.use.attached.number_there(filter(lambda volume: volume[0] == driver, state.volumes), rows)
            needed = count - there
            codes[(needed > 0) & (index.use.attached.used(driver)[rows] + needed > limits)] = 2
        for driver in _required_drivers(index, state.volumes):
            codes[~_installed(state.query, driver, rows)] = 1
        return codes

    def reasons(self, state: _State, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """A driver that is missing, by its name."""
        reasons = {}
        missing = rows[codes == 1]
        for driver in _required_drivers(state.query.cluster.volumes, state.volumes):
            without = ~_installed(state.query, driver, missing)
            if count := int(np.count_nonzero(without)):
                reasons[f"{driver} {self.refusals[0]}"] = count
            missing = missing[~without]
        if count := int(np.count_nonzero(codes == 2)):
            reasons[self.refusals[1]] = count
        return reasons


def _volumes_of(index: VolumeIndex, pod: PodView) -> frozenset[VolumeID]:
    claims = (index.claims.get(ClaimKey(pod.namespace, used.name)) for used in pod.volumes.claims)
    found = (index.csi_volume(claim) for claim in claims if claim is not None)
    return frozenset(volume for volume in (*found, *pod.volumes.attached) if volume is not None)


def _required_drivers(index: VolumeIndex, volumes: frozenset[VolumeID]) -> list[str]:
    """Drivers without which a pod cannot use their volumes, by name."""
    drivers = {driver for driver, _ in volumes}
    return sorted(name for name in drivers if (found := index.drivers.get(name)) and found.required_on_node)


def _installed(query: Query, driver: str, rows: Rows) -> Bools:
    """Which of the rows have a node on which the driver has registered."""
    csi_nodes = query.cluster.volumes.use.csi_nodes
    found = (csi_nodes.get(name) for name in query.names(rows))
    return np.array([each is not None and driver in each.limits for each in found], dtype=np.bool_)
