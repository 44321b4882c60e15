"""Selectors of Services and workloads, by which pods without spread constraints are spread.

Source: ``DefaultSelector`` of kube-scheduler: the selectors of the Services that select the pod, and that of the
ReplicationController, ReplicaSet or StatefulSet that controls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector, Requirement

MAX_ANSWERS = 10_000
"""Answers that are kept by namespace; they are computed again after that many."""
MAX_SERVICES = 128
"""Different selectors of Services that are compared with a pod's labels. In a namespace with more of them that have the
same label in common, the selectors of the others are left out: they are a preference, and a pod costs what it costs."""
NO_SELECTOR = LabelSelector(None)
MAX_WORKLOAD_PARTS = 1000
"""Requirements and values of a workload's selector. One with more is left out, as it is a preference."""

_Labels = frozenset[tuple[str, str]]


class WorkloadSelectors:
    """Selectors by namespace."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, _Labels]] = {}
        # By namespace and the first of their labels, the selectors, and how many Services have each
        self._by_pair: dict[tuple[str, str, str], dict[_Labels, int]] = {}
        self._workloads: dict[str, dict[tuple[str, str], LabelSelector]] = {}  # by namespace, kind and name
        # Of namespaces that have any of these. What was asked goes by its hash: each pod may have labels of its own
        self._answers: dict[str, dict[int, LabelSelector]] = {}

    def of(self, pod: PodView) -> LabelSelector:
        """The pod's selector; one that selects nothing where no Service or workload has any for it."""
        if pod.namespace not in self._services and pod.namespace not in self._workloads:
            return NO_SELECTOR
        answers = self._answers.setdefault(pod.namespace, {})
        asked = hash((frozenset(pod.labels.items()), pod.owner))
        answer = answers.get(asked)
        if answer is None:
            if len(answers) >= MAX_ANSWERS:
                answers.clear()
            answer = answers[asked] = self._find(pod)
        return answer

    def set_service(self, namespace: str, name: str, selector: Mapping[str, str] | None) -> None:
        """A Service has this selector; None or empty: it has none, or is gone."""
        services = self._services.setdefault(namespace, {})
        before = services.pop(name, frozenset())
        after = frozenset((selector or {}).items())
        if before:
            self._count(namespace, before, -1)
        if after:
            services[name] = after
            self._count(namespace, after, 1)
        if not services:
            del self._services[namespace]
        if before != after:
            self._answers.pop(namespace, None)

    def set_workload(self, namespace: str, kind: str, name: str, selector: LabelSelector | None) -> None:
        """A ReplicationController, ReplicaSet or StatefulSet has this selector, or is gone (None)."""
        if selector is not None and selector.parts > MAX_WORKLOAD_PARTS:
            selector = None
        workloads = self._workloads.get(namespace, {})
        if workloads.get((kind, name)) == selector:
            return
        if selector is None:
            del workloads[kind, name]
        else:
            workloads[kind, name] = selector
        if workloads:
            self._workloads[namespace] = workloads
        else:
            del self._workloads[namespace]
        self._answers.pop(namespace, None)

    def _count(self, namespace: str, selector: _Labels, more: int) -> None:
        pair = (namespace, *min(selector))
        counts = self._by_pair.setdefault(pair, {})
        counts[selector] = counts.get(selector, 0) + more
        if not counts[selector]:
            del counts[selector]
            if not counts:
                del self._by_pair[pair]

    def _find(self, pod: PodView) -> LabelSelector:
        merged: dict[str, str] = {}
        labels = pod.labels.items()
        found = (selector for pair in labels for selector in self._by_pair.get((pod.namespace, *pair), ()))
        for selector in islice(found, MAX_SERVICES):
            if selector <= labels:
                merged |= dict(selector)
        workloads = self._workloads.get(pod.namespace, {})
        workload = workloads.get(pod.owner) if pod.owner is not None else None
        own = (workload.requirements if workload is not None else None) or ()
        if pod.owner is not None and pod.owner[0] == "ReplicationController":
            # Its selector is a set of labels, which come in the place of those of Services
            merged |= {each.key: each.values[0] for each in own}
            own = ()
        requirements = tuple(Requirement(key, "In", (value,)) for key, value in sorted(merged.items()))
        requirements += tuple(each for each in own if each not in requirements)
        return LabelSelector(requirements) if requirements else NO_SELECTOR
