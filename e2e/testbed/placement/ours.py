"""What Concerto's cycle says of a pod in a cluster that is given as the API server has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from concerto.api.node import NodeView, trim_node
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.api.poddisruptionbudget import DisruptionBudget, trim_budget
from concerto.api.podgroup import PodGroup, trim_pod_group
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.selectors import LabelSelector
from concerto.api.volume_trimming import trim_bare, trim_claim, trim_csi_node, trim_storage_class, trim_volume
from concerto.api.volumes import (
    ClaimKey,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from concerto.scheduling.cycle import schedule
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.preemption.preemption import Outcome, Preemption, outcome_without_search
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from e2e.testbed.placement import profiles
from e2e.testbed.placement.answer import Answer
from e2e.testbed.placement.rules import World

NAME = "default-scheduler"
PROFILE = Profile.build(ProfileSettings(NAME))
PROFILES = {spec["schedulerName"]: Profile.build(ProfileSettings.from_raw(spec)) for spec in profiles.CONCERTO}
"""Those that kube-scheduler has, too, with all of its scores."""
_NOW = 1.8e9


def ask(cluster: ClusterState, raw: Mapping[str, Any]) -> tuple[Answer, set[str]]:
    """What one cycle decides, and the nodes that pass all filters. The cluster is as before then."""
    pod = PodView.from_raw(trim_pod(raw))
    profile = PROFILES[pod.scheduler_name]
    evaluation = Evaluation(query_for(cluster, pod, profile, _NOW), profile, ())
    rows = np.flatnonzero(evaluation.feasible)
    feasible = {cluster.names[row] for row in rows}
    evaluation.totals()
    scores = {
        name: dict(zip((cluster.names[row] for row in rows), given.tolist()))
        for name, given in evaluation.by_plugin(rows).items()
        if not np.isnan(given).any()
    }
    cluster.nominations.set_pod(pod)  # now: the evaluation of pods like it keeps its room from them
    result = schedule(cluster, [pod], PROFILES, now=_NOW, generator=np.random.default_rng(0))
    answer = replace(_answer(cluster, pod, result), scores=scores)
    cluster.forget(pod.uid)
    cluster.nominations.withdraw(pod.uid)
    return answer, feasible


def ask_gang(world: World, group: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Where one cycle places pods of a gang: names of pods and nodes, in the order in which it decides."""
    cluster = cluster_of(world)
    cluster.pod_groups.set_group(PodGroup.from_raw(trim_pod_group(group)))
    views = [PodView.from_raw(trim_pod(pod)) for pod in pods]
    for view in views:
        cluster.set_pod(view, _NOW)
    result = schedule(cluster, views, {NAME: PROFILE}, now=_NOW, generator=np.random.default_rng(0))
    for failure in result.unschedulable:
        if failure.error is not None:
            raise failure.error
    return [(decision.pod.name, decision.assignment.node) for decision in result.decisions]


def _answer(cluster: ClusterState, pod: PodView, result: CycleResult) -> Answer:
    if result.decisions:
        return Answer(node=result.decisions[0].assignment.node)
    if not result.unschedulable:
        return Answer(waits=True)
    failure = result.unschedulable[0]
    if failure.error is not None:
        raise failure.error
    outcome = outcome_without_search(cluster, pod, failure.diagnosis) or _search(cluster, pod)
    message = f"{failure.diagnosis.message} {outcome.message}".strip()
    if outcome.candidate is None:
        return Answer(message=message)
    victims = frozenset(victim.key for victim in outcome.candidate.victims.pods)
    return Answer(message=message, nominated=outcome.candidate.node, victims=victims)


def _search(cluster: ClusterState, pod: PodView) -> Outcome:
    search = Preemption(cluster, PROFILES[pod.scheduler_name], pod, _NOW)
    outcome = search.begin(pod)
    while outcome is None and search.look_at_next(pod):
        pass
    return search.take(pod) if outcome is None else outcome


def cluster_of(world: World) -> ClusterState:
    """The state that the operator has once it has read these objects."""
    return Followed().as_in(world)


class Followed:
    """The state of the operator that reads the objects of a world one after another, and what changes of them.

    Attributes:
        changes: what the changes of the last call may have made possible.
    """

    def __init__(self) -> None:
        self.changes = Change.NOTHING
        self._cluster = cluster = ClusterState()
        self._seen: dict[tuple[str, str, str], Any] = {}
        volumes, use = cluster.volumes, cluster.volumes.use
        self._set: Mapping[str, Callable[[Any], object]] = {
            "Namespace": lambda o: cluster.namespaces.set(*o),
            "Node": lambda o: cluster.set_node(NodeView.from_raw(trim_node(o))),
            "StorageClass": lambda o: volumes.set_class(StorageClass.from_raw(trim_storage_class(o))),
            "CSIDriver": lambda o: volumes.set_driver(CSIDriver.from_raw(trim_bare(o))),
            "CSINode": lambda o: use.set_csi_node(CSINode.from_raw(trim_csi_node(o))),
            "CSIStorageCapacity": lambda o: volumes.set_capacity(CSIStorageCapacity.from_raw(trim_bare(o))),
            "VolumeAttachment": lambda o: volumes.set_attachment(VolumeAttachment.from_raw(trim_bare(o))),
            "PersistentVolume": lambda o: volumes.set_volume(PersistentVolume.from_raw(trim_volume(o))),
            "PersistentVolumeClaim": lambda o: volumes.set_claim(PersistentVolumeClaim.from_raw(trim_claim(o))),
            "Service": self._set_service,
            "Workload": self._set_workload,
            "PodDisruptionBudget": lambda o: cluster.budgets.set(DisruptionBudget.from_raw(trim_budget(o))),
            "Pod": lambda o: cluster.set_pod(PodView.from_raw(trim_pod(o)), _NOW),
        }
        self._remove: Mapping[str, Callable[[Any], object]] = {
            "Node": lambda o: cluster.remove_node(o["metadata"]["name"]),
            "PersistentVolumeClaim": lambda o: volumes.remove_claim(ClaimKey(*_key(o))),
            "CSIStorageCapacity": lambda o: volumes.remove_capacity(_key(o)),
            "VolumeAttachment": lambda o: use.remove_attachment(o["metadata"]["name"]),
            "Pod": lambda o: cluster.remove_pod(o["metadata"]["uid"]),
        }

    def as_in(self, world: World) -> ClusterState:
        """The state after the changes since the last call: what is gone, and what is new or different."""
        now: dict[tuple[str, str, str], Any] = {("Namespace", "", each[0]): each for each in world.namespaces.items()}
        for kind, objects in (
            ("Node", world.nodes.values()), ("", world.storage), ("Service", world.services),
            ("Workload", world.workloads), ("PodDisruptionBudget", world.budgets),
            ("Pod", [*world.pods, *world.nominated]),
        ):  # fmt: skip
            now |= {(kind or o["kind"], *_key(o)): o for o in objects}
        results = [self._remove[key[0]](self._seen.pop(key)) for key in [*self._seen] if key not in now]
        results += [self._set[key[0]](obj) for key, obj in now.items() if self._seen.get(key) != obj]
        self.changes = reduce(or_, (each for each in results if isinstance(each, Change)), Change.NOTHING)
        self._seen = now
        return self._cluster

    def _set_service(self, service: Mapping[str, Any]) -> None:
        selectors = self._cluster.signatures.workload_selectors
        selectors.set_service(*_key(service), service["spec"]["selector"])

    def _set_workload(self, workload: Mapping[str, Any]) -> None:
        selector, kind = workload["spec"]["selector"], workload["kind"]
        if kind == "ReplicationController":
            selector = {"matchLabels": selector}
        namespace, name = _key(workload)
        selectors = self._cluster.signatures.workload_selectors
        selectors.set_workload(namespace, kind, name, LabelSelector.from_raw(selector))


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
