"""Pods by label, so that selecting a target's pods does not visit all others."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from concerto.api.selectors import LabelSelector
from concerto.autoscaling.pod_reader import read_pod
from concerto.autoscaling.pods import Gone, TargetPod
from concerto.autoscaling.settings import ControllerSettings

Key = tuple[str, str]
_GONE_SECONDS, _GONE_MOST = 300.0, 10_000
"""Seconds for which deleted pods are remembered (readings are never older), and their number per namespace."""


class PodIndex:
    """Views of pods, found by selectors that ask for at least one label's value."""

    def __init__(self) -> None:
        """Empty; fed by a reflector's ``on_change``."""
        self._views: dict[Key, tuple[Mapping[str, str], TargetPod]] = {}
        self._by_label: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        self._by_namespace: defaultdict[str, set[str]] = defaultdict(set)
        self._gone: defaultdict[str, deque[tuple[Mapping[str, str], Gone]]] = defaultdict(deque)

    def on_change(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """Take note that a pod appeared, changed or was deleted."""
        before = None
        if old is not None:
            _, before = self._views.get((old["metadata"]["namespace"], old["metadata"]["name"]), ({}, None))
            self._remove(old["metadata"])
        if new is not None:
            meta = new["metadata"]
            labels = meta.get("labels") or {}
            namespace, name = meta["namespace"], meta["name"]
            view = read_pod(new)
            if before is not None:
                view = replace(view, first_ready=_first_ready(before, view))
            self._views[namespace, name] = (labels, view)
            if before is not None and before.is_ready and view.deleting and not before.deleting:
                self._leaves(namespace, labels, Gone(before.ready_since, view.deleting_since))
            self._by_namespace[namespace].add(name)
            for label in labels.items():
                self._by_label[namespace, *label].add(name)

    def select(self, namespace: str, selector: LabelSelector) -> list[TargetPod]:
        """Views of the selected pods."""
        return [view for _, view in self._selected(namespace, selector)]

    def gone(self, namespace: str, selector: LabelSelector) -> list[Gone]:
        """Of the selected pods, those that took load in the last minutes and are deleted."""
        return [gone for labels, gone in self._gone.get(namespace, ()) if selector.matches(labels)]

    def labels(self, namespace: str, selector: LabelSelector) -> list[Mapping[str, str]]:
        """Labels of the selected pods."""
        return [labels for labels, _ in self._selected(namespace, selector)]

    def _selected(self, namespace: str, selector: LabelSelector) -> Iterable[tuple[Mapping[str, str], TargetPod]]:
        names = self._by_namespace.get(namespace, set())
        if (pair := exact_pair(selector)) is not None:
            names = self._by_label.get((namespace, *pair), set())
        found = (self._views[namespace, name] for name in sorted(names))
        return [entry for entry in found if selector.matches(entry[0])]

    def _leaves(self, namespace: str, labels: Mapping[str, str], gone: Gone) -> None:
        kept = self._gone[namespace]
        kept.append((labels, gone))
        while len(kept) > _GONE_MOST or kept[0][1].until < gone.until - _GONE_SECONDS:
            kept.popleft()

    def _remove(self, meta: Mapping[str, Any]) -> None:
        namespace, name = meta["namespace"], meta["name"]
        labels, _ = self._views.pop((namespace, name), ({}, None))
        self._by_namespace[namespace].discard(name)
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]
            self._gone.pop(namespace, None)
        for label in labels.items():
            names = self._by_label[namespace, *label]
            names.discard(name)
            if not names:
                del self._by_label[namespace, *label]


class SelectorIndex:
    """Selectors of objects: finds objects that select the same pods."""

    def __init__(self) -> None:
        self._selectors: dict[Key, LabelSelector] = {}
        self._by_pair: defaultdict[tuple[str, tuple[str, str] | None], set[Key]] = defaultdict(set)

    def put(self, key: Key, selector: LabelSelector | None) -> None:
        """Register the selector of an object; None removes the object."""
        if (before := self._selectors.pop(key, None)) is not None:
            self._by_pair[key[0], exact_pair(before)].discard(key)
        if selector is not None:
            self._selectors[key] = selector
            self._by_pair[key[0], exact_pair(selector)].add(key)

    def claimants(self, namespace: str, labels: Iterable[Mapping[str, str]]) -> list[Key]:
        """Objects that select any pod with one of these sets of labels, in order."""
        found: set[Key] = set()
        for each in labels:
            pairs: list[tuple[str, str] | None] = [None, *each.items()]
            for pair in pairs:
                for key in self._by_pair.get((namespace, pair), ()):
                    if key not in found and self._selectors[key].matches(each):
                        found.add(key)
        return sorted(found)


def _first_ready(before: TargetPod, now: TargetPod) -> float | None:
    """When it became Ready for the first time, if that was seen."""
    if before.first_ready is not None or not now.is_ready or before.is_ready:
        return before.first_ready
    # Not Ready since its very start, as far as its condition tells
    age = before.ready_since - (before.started_at or before.created_at)
    never = before.ready is None or age < ControllerSettings.initial_readiness_delay_seconds
    return now.ready_since if never else None


def exact_pair(selector: LabelSelector) -> tuple[str, str] | None:
    """A label and the one value it must have; None where the selector asks for no such thing."""
    for requirement in selector.requirements or ():
        if requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.key, requirement.values[0]
    return None
