"""VolumeZone: the node is in the zone and region that the labels of a claim's volume name. Source: kube-scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.selectors import Requirement
from concerto.api.volume_migration import BETA_REGION, BETA_ZONE, REGION, ZONE, ZONES_DELIMITER
from concerto.api.volumes import ClaimKey, PersistentVolume
from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Rows
from concerto.scheduling.state.labels import LabelIndex
from concerto.scheduling.state.volumes import VolumeIndex

_LABELS = (BETA_ZONE, BETA_REGION, ZONE, REGION)
_CURRENT = {BETA_ZONE: ZONE, BETA_REGION: REGION}
"""Label that stands for an old one where a node lacks the old one."""


@dataclass(frozen=True)
class _State:
    """What the labels of the pod's volumes require of a node.

    Attributes:
        query: the pod and its cluster.
        required: label and values, one of which the node must have.
        refusal: why the pod can go nowhere; empty if it can.
    """

    query: Query
    required: tuple[Requirement, ...]
    refusal: str


class VolumeZone(FilterDefaults):
    """Nodes without any zone or region label can have all volumes."""

    name: ClassVar[str] = "VolumeZone"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) had no available volume zone",)
    requeue_on: ClassVar[Change] = Change.NODE | Change.VOLUMES

    def prepare(self, query: Query) -> _State | None:
        """Pods are concerned whose bound volumes have such labels."""
        required, refusal = _required(query.cluster.volumes, query.pod)
        return _State(query, required, refusal) if required or refusal else None

    def pod_refusal(self, state: _State) -> str:
        """A claim whose volume is gone."""
        return state.refusal

    def check(self, state: _State, rows: Rows) -> Codes:
        """Rows with other values are refused."""
        labels = state.query.cluster.nodes.labels
        anywhere = ~np.logical_or.reduce([labels.column(key).codes[rows] >= 0 for key in _LABELS])
        passes = np.ones_like(anywhere)
        for requirement in state.required:
            passes &= _matching(labels, requirement, rows)
        return refused_unless((passes | anywhere) & (not state.refusal))


def _required(volumes: VolumeIndex, pod: PodView) -> tuple[tuple[Requirement, ...], str]:
    required: list[Requirement] = []
    for used in pod.volumes.claims:
        claim = volumes.claims.get(ClaimKey(pod.namespace, used.name))
        if used.ephemeral or claim is None or not claim.volume_name:
            continue
        volume = volumes.volumes.get(claim.volume_name)
        if volume is None:
            return (), f'persistentvolume "{claim.volume_name}" not found'
        required += _zones(volume)
    return tuple(dict.fromkeys(required)), ""


def _zones(volume: PersistentVolume) -> list[Requirement]:
    found = []
    for key in _LABELS:
        values = tuple(value.strip() for value in volume.labels.get(key, "").split(ZONES_DELIMITER))
        if all(values):  # a label that names an empty zone is not read
            found.append(Requirement(key, "In", values))
    return found


def _matching(labels: LabelIndex, requirement: Requirement, rows: Rows) -> Bools:
    own = labels.column(requirement.key).codes[rows] >= 0
    current = Requirement(_CURRENT.get(requirement.key, requirement.key), "In", requirement.values)
    by_own = labels.matching((requirement,), rows)
    return np.where(own, by_own, labels.matching((current,), rows))
