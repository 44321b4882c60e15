"""Whether a node takes a pod beside the pods that others make room for there. Pure.

A nominated pod may go elsewhere in the end. So a node has to pass both with the nominated pods and without them.
Source: kube-scheduler's ``RunFilterPluginsWithNominatedPods``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.framework import Filter, Reach
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.resources import PODS
from concerto.scheduling.state.what_if import RowWhatIf

_BY_REQUESTS = "NodeResources"
"""Name of the filter that compares requests with what nodes have left."""

Prepared = Sequence[tuple[Filter, Any]]
"""Filters that concern a pod, with what they prepared for it."""


class Refusal(NamedTuple):
    """Why a row is refused.

    Attributes:
        reasons: each in words.
        requeue_on: changes after which the filter that refuses it may let it pass.
    """

    reasons: tuple[str, ...]
    requeue_on: Change


class RowTrial:
    """One row, to and from which pods come and go for the time of the trial; ask for nothing else meanwhile.

    Args:
        what_if: the row.
        row: the row.
        filters: what is asked. Their states follow the pods; who keeps them has to undo each change.
    """

    def __init__(self, what_if: RowWhatIf, row: int, filters: Prepared) -> None:
        self._what_if = what_if
        self._rows = np.array([row])
        self._filters = filters
        self._by_domain = [(f, state) for f, state in filters if f.reach is Reach.DOMAIN]

    def remove(self, pod: PodView) -> None:
        """Take off a pod that is on the row."""
        self._what_if.remove(pod)
        self._count(pod, -1)

    def add(self, pod: PodView) -> None:
        """Put back a pod that was taken off."""
        self._what_if.add(pod)
        self._count(pod, 1)

    def place(self, pod: PodView) -> None:
        """Put a pod on the row that is on none."""
        self._what_if.place(pod)
        self._count(pod, 1)

    def withdraw(self, pod: PodView) -> None:
        """Take a placed pod off again."""
        self._what_if.withdraw(pod)
        self._count(pod, -1)

    def passes(self) -> bool:
        """Whether all filters let the row pass as it is now."""
        self._what_if.settle()
        return all(not plugin.check(state, self._rows)[0] for plugin, state in self._filters)

    def refusal(self) -> Refusal | None:
        """Why the first filter that refuses the row does so; None if all let it pass."""
        self._what_if.settle()
        for plugin, state in self._filters:
            codes = plugin.check(state, self._rows)
            if codes[0]:
                return Refusal(tuple(plugin.reasons(state, self._rows, codes)), plugin.requeue_on)
        return None

    def _count(self, pod: PodView, sign: int) -> None:
        row = int(self._rows[0])
        for plugin, state in self._by_domain:
            if sign > 0:
                plugin.add_pod(state, pod, row)
            else:
                plugin.remove_pod(state, pod, row)


def insufficient_beside(
    cluster: ClusterState, pod: PodView, row: int, filters: Prepared, nominated: Sequence[PodView]
) -> Refusal | None:
    """What the pod requests and is not left on the row beside these pods, if a filter compares requests; else None.

    That takes a fraction of what a trial takes, and is true of most nodes while room is made for many pods.
    """
    by_requests = next((plugin for plugin, _ in filters if plugin.name == _BY_REQUESTS), None)
    if by_requests is None:
        return None
    wanted = {PODS: 1, **pod.shape.requests}
    free = cluster.resources.free((*wanted,), slice(row, row + 1))[:, 0].tolist()
    found = []
    for (resource, amount), left in zip(wanted.items(), free):
        taken = len(nominated) if resource == PODS else sum(each.requests.get(resource, 0) for each in nominated)
        if left - taken < amount:
            found.append("Too many pods" if resource == PODS else f"Insufficient {resource}")
    return Refusal(tuple(found), by_requests.requeue_on) if found else None


def names_of(filters: Prepared) -> frozenset[str]:
    """The filters' names."""
    return frozenset(plugin.name for plugin, _ in filters)


def refusal_beside(cluster: ClusterState, row: int, filters: Prepared, nominated: Sequence[PodView]) -> Refusal | None:
    """Why the filters refuse the row with these pods on it, too; None if they do not. All is as before then."""
    with RowWhatIf(cluster, row, names_of(filters)) as what_if:
        trial = RowTrial(what_if, row, filters)
        for pod in nominated:
            trial.place(pod)
        refusal = trial.refusal()
        for pod in nominated:
            trial.withdraw(pod)
    return refusal
