"""PodGroups that are evicted only as a whole (``disruptionMode: {all: {}}``). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from concerto.api.pod import PodView
from concerto.scheduling.state.cluster import ClusterState


def with_whole_gangs(cluster: ClusterState, victims: Iterable[PodView], priority: int) -> list[PodView]:
    """The victims, and all other pods of lower priority on nodes of the PodGroups that are only evicted as a whole.

    A pod whose binding is under way is one of them, with the node that it is assumed on: bound a moment later, it would
    run alone.

    Args:
        cluster: the cluster.
        victims: pods that are to be evicted.
        priority: of the pods that they are evicted for.
    """
    groups = cluster.pod_groups
    found = {pod.uid: pod for pod in victims}
    keys = {(pod.namespace, pod.group) for pod in found.values() if pod.group}
    for key in sorted(keys):
        group = groups.get(key)
        if group is not None and group.disrupted_as_a_whole:
            found |= _on_nodes(cluster, groups.members(key), priority)
    return list(found.values())


def _on_nodes(cluster: ClusterState, members: Mapping[str, PodView], priority: int) -> dict[str, PodView]:
    lower = ((uid, pod, cluster.node_of(uid)) for uid, pod in members.items() if pod.priority < priority)
    return {uid: pod if pod.node_name else replace(pod, node_name=node) for uid, pod, node in lower if node}
