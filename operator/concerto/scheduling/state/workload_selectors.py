"""Selectors of Services and workloads, by which pods without spread constraints are spread.

Source: ``DefaultSelector`` of kube-scheduler: the selectors of the Services that select the pod, and that of the
ReplicationController, ReplicaSet or StatefulSet that controls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector, Requirement

MAX_ANSWERS = 10_000
"""Answers that are kept by namespace; they are computed again after that many."""
NO_SELECTOR = LabelSelector(None)


class _Asked(NamedTuple):
    """What a pod's selector depends on."""

    labels: frozenset[tuple[str, str]]
    owner: tuple[str, str] | None


class WorkloadSelectors:
    """Selectors by namespace.

    Args:
        on_change: called when pods that were asked about may have other selectors now.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._services: dict[str, dict[str, Mapping[str, str]]] = {}
        self._by_pair: dict[tuple[str, str, str], set[str]] = {}  # Services by namespace and the first of their labels
        self._workloads: dict[tuple[str, str, str], LabelSelector] = {}
        self._answers: dict[str, dict[_Asked, LabelSelector]] = {}

    def of(self, pod: PodView) -> LabelSelector:
        """The pod's selector; one that selects nothing where no Service or workload has any for it."""
        if not self._services and not self._workloads:
            return NO_SELECTOR
        answers = self._answers.setdefault(pod.namespace, {})
        asked = _Asked(frozenset(pod.labels.items()), pod.owner)
        answer = answers.get(asked)
        if answer is None:
            if len(answers) >= MAX_ANSWERS:
                answers.clear()
            answer = answers[asked] = self._find(pod)
        return answer

    def set_service(self, namespace: str, name: str, selector: Mapping[str, str] | None) -> None:
        """A Service has this selector; None or empty: it has none, or is gone."""
        services = self._services.setdefault(namespace, {})
        before = services.pop(name, None)
        if before:
            self._by_pair[namespace, *_first(before)].discard(name)
        if selector:
            services[name] = selector
            self._by_pair.setdefault((namespace, *_first(selector)), set()).add(name)
        if not services:
            del self._services[namespace]
        if (before or {}) != (selector or {}):
            self._forget(namespace)

    def set_workload(self, namespace: str, kind: str, name: str, selector: LabelSelector | None) -> None:
        """A ReplicationController, ReplicaSet or StatefulSet has this selector, or is gone (None)."""
        key = (namespace, kind, name)
        if self._workloads.get(key) == selector:
            return
        if selector is None:
            del self._workloads[key]
        else:
            self._workloads[key] = selector
        self._forget(namespace)

    def _find(self, pod: PodView) -> LabelSelector:
        merged: dict[str, str] = {}
        services = self._services.get(pod.namespace, {})
        for pair in pod.labels.items():
            for name in sorted(self._by_pair.get((pod.namespace, *pair), ())):
                if services[name].items() <= pod.labels.items():
                    merged |= services[name]
        requirements = tuple(Requirement(key, "In", (value,)) for key, value in sorted(merged.items()))
        workload = self._workloads.get((pod.namespace, *pod.owner)) if pod.owner is not None else None
        if workload is not None and workload.requirements:
            requirements += tuple(each for each in workload.requirements if each not in requirements)
        return LabelSelector(requirements) if requirements else NO_SELECTOR

    def _forget(self, namespace: str) -> None:
        if self._answers.pop(namespace, None):
            self._on_change()


def _first(selector: Mapping[str, str]) -> tuple[str, str]:
    return min(selector.items())
