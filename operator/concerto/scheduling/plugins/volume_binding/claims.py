"""The claims of a pod, sorted by what has to happen to them, and why a pod with such claims can go nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.api.volumes import ClaimKey, PersistentVolumeClaim
from concerto.scheduling.state.volumes import VolumeIndex

MAX_COMPARISONS = 200_000
"""Volumes times requirements and values of selectors that are compared for the claims of one pod: 0.1 s."""
VOLUMES_AT_ONCE = 20
"""Volumes, or nodes, that are looked at for a claim without a selector in the time of one comparison."""
TOO_MANY_COMPARISONS = (
    "unbound PersistentVolumeClaims of the pod, requirements of their selectors and volumes of their classes are too "
    "many to compare"
)


@dataclass(frozen=True, slots=True)
class SortedClaims:
    """The claims of a pod.

    Attributes:
        bound: those that have their volume.
        waiting: those that are to be bound once the pod has a node.
        refusal: why the pod can go nowhere as long as its claims are as they are; empty if it can.
    """

    bound: tuple[PersistentVolumeClaim, ...] = ()
    waiting: tuple[PersistentVolumeClaim, ...] = ()
    refusal: str = ""


def sort_claims(volumes: VolumeIndex, pod: PodView) -> SortedClaims:
    """The pod's claims as the API server has them. Source: ``VolumeBinding.PreFilter`` of kube-scheduler."""
    bound: dict[ClaimKey, PersistentVolumeClaim] = {}
    waiting: dict[ClaimKey, PersistentVolumeClaim] = {}  # a claim that is used in two ways needs one volume
    immediate = False
    for used in pod.volumes.claims:
        claim = volumes.claims.get(ClaimKey(pod.namespace, used.name))
        if claim is None:
            return SortedClaims(refusal=_missing(used.name, used.ephemeral))
        if problem := _problem(claim, pod, used.ephemeral):
            return SortedClaims(refusal=problem)
        if claim.bound:
            bound[claim.key] = claim
        elif volumes.waits(claim):
            waiting[claim.key] = claim
        else:
            immediate = True
    if immediate:
        return SortedClaims(refusal="pod has unbound immediate PersistentVolumeClaims")
    if _takes_too_long(volumes, waiting.values()):
        return SortedClaims(refusal=TOO_MANY_COMPARISONS)
    return SortedClaims(tuple(bound.values()), tuple(waiting.values()))


def _takes_too_long(volumes: VolumeIndex, claims: Iterable[PersistentVolumeClaim]) -> bool:
    comparisons = 0
    for claim in claims:
        if count := volumes.count_of_class(claim.storage_class):
            comparisons += max(count, volumes.use.number_of_nodes) // VOLUMES_AT_ONCE
            comparisons += 0 if claim.selector is None else count * claim.selector.parts
            if comparisons > MAX_COMPARISONS:
                return True
    return False


def _missing(name: str, ephemeral: bool) -> str:
    if ephemeral:
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
    return f'persistentvolumeclaim "{name}" not found'


def _problem(claim: PersistentVolumeClaim, pod: PodView, ephemeral: bool) -> str:
    name = claim.key.name
    if claim.phase == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume_name}"'
    if claim.deleting:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and claim.owner_uid != pod.uid:
        return f"PVC {claim.key.namespace}/{name} was not created for pod {pod.key} (pod is not owner)"
    return ""
