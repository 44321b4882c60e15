"""What Concerto's cycle says of a pod in a cluster that is given as the API server has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from concerto.api.node import NodeView, trim_node
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.api.poddisruptionbudget import DisruptionBudget, trim_budget
from concerto.api.podgroup import PodGroup, trim_pod_group
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.volume_trimming import trim_claim, trim_csi_node, trim_storage_class, trim_volume
from concerto.api.volumes import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from concerto.scheduling.cycle import schedule
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.preemption.preemption import Outcome, Preemption, outcome_without_search
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.state.cluster import ClusterState
from e2e.testbed.placement.answer import Answer
from e2e.testbed.placement.rules import World

NAME = "default-scheduler"
PROFILE = Profile.build(ProfileSettings(NAME))
_NOW = 1.8e9


def ask(world: World, raw: Mapping[str, Any]) -> tuple[Answer, set[str]]:
    """What one cycle decides, and the nodes that pass all filters."""
    cluster, pod = cluster_of(world), PodView.from_raw(trim_pod(raw))
    evaluation = Evaluation(query_for(cluster, pod, PROFILE, _NOW), PROFILE, ())
    rows = np.flatnonzero(evaluation.feasible)
    feasible = {cluster.names[row] for row in rows}
    evaluation.totals()
    scores = {
        name: dict(zip((cluster.names[row] for row in rows), given.tolist()))
        for name, given in evaluation.by_plugin(rows).items()
        if not np.isnan(given).any()
    }
    result = schedule(cluster, [pod], {NAME: PROFILE}, now=_NOW, generator=np.random.default_rng(0))
    return replace(_answer(cluster, pod, result), scores=scores), feasible


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
    search = Preemption(cluster, PROFILE, pod, _NOW)
    outcome = search.begin(pod)
    while outcome is None and search.look_at_next(pod):
        pass
    return search.take(pod) if outcome is None else outcome


def cluster_of(world: World) -> ClusterState:
    """The state that the operator has once it has read these objects."""
    cluster = ClusterState()
    for name, labels in world.namespaces.items():
        cluster.namespaces.set(name, labels)
    for node in world.nodes.values():
        cluster.set_node(NodeView.from_raw(trim_node(node)))
    put: dict[str, Any] = {
        "PersistentVolume": lambda o: cluster.volumes.set_volume(PersistentVolume.from_raw(trim_volume(o))),
        "PersistentVolumeClaim": lambda o: cluster.volumes.set_claim(PersistentVolumeClaim.from_raw(trim_claim(o))),
        "StorageClass": lambda o: cluster.volumes.set_class(StorageClass.from_raw(trim_storage_class(o))),
        "CSINode": lambda o: cluster.volumes.use.set_csi_node(CSINode.from_raw(trim_csi_node(o))),
    }
    for obj in world.storage:
        put[obj["kind"]](obj)
    for service in world.services:
        metadata = service["metadata"]
        cluster.signatures.workload_selectors.set_service(
            metadata["namespace"], metadata["name"], service["spec"]["selector"]
        )
    for budget in world.budgets:
        cluster.budgets.set(DisruptionBudget.from_raw(trim_budget(budget)))
    for pod in [*world.pods, *world.nominated]:
        cluster.set_pod(PodView.from_raw(trim_pod(pod)), _NOW)
    return cluster
