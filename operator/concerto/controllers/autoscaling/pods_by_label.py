"""Pods by namespace and by the labels that selectors name, so that selecting a target's pods does not visit all others.

Users choose labels freely, so they are indexed only where a registered selector asks for one exact value.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector
from concerto.autoscaling.pods import Gone
from concerto.autoscaling.settings import ControllerSettings

logger = logging.getLogger(__name__)

Key = tuple[str, str]
Labels = Mapping[str, str]
_Pair = tuple[str, str]

_MAX_INDEXED = 3
"""Labels of a selector; each takes memory for each pod that has it."""
_FEW_LABELS = 64
"""Up to so many labels that selectors name, it takes less time to find pods that are alike in them."""
_LOOKUPS = 5
"""Labels that are looked for among those of selectors in the time of one comparison."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_GONE_SECONDS, _MAX_GONE = 300.0, 10_000
"""Seconds for which deleted pods are remembered (readings are never older), and their number per namespace."""


@dataclass(frozen=True)
class _GonePod:
    labels: Labels
    gone: Gone


class PodsByLabel:
    """Views of pods, found by label selectors."""

    def __init__(self) -> None:
        self._pods: defaultdict[str, dict[str, PodView]] = defaultdict(dict)
        self._by_label: defaultdict[str, dict[str, dict[str, set[str]]]] = defaultdict(dict)
        """By namespace, label key (of those that `index` was asked for) and value: names of pods."""
        self._selectors_of: Counter[tuple[str, str]] = Counter()
        self._gone: defaultdict[str, deque[_GonePod]] = defaultdict(deque)

    def on_change(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """Take note that a pod appeared, changed or was deleted."""
        before = None
        if old is not None:
            before = self._remove(old["metadata"]["namespace"], old["metadata"]["name"])
        if new is not None:
            namespace, name = new["metadata"]["namespace"], new["metadata"]["name"]
            try:
                pod = PodView.from_raw(new)
            except _MALFORMED as error:
                # One pod that cannot be read must not stop the watch of all others
                logger.warning("pod %s/%s does not count for autoscaling: %s", namespace, name, str(error)[:200])
                return
            if before is not None:
                was_gated = before.was_gated or bool(before.gates)
                pod = replace(pod, first_ready=_first_ready(before, pod), was_gated=was_gated)
            self._add(namespace, name, pod)
            if before is not None and before.is_ready and pod.deleting and not before.deleting:
                self._remember_gone(namespace, _GonePod(pod.labels, Gone(before.ready_since, pod.deleting_since)))

    def index(self, namespace: str, selector: LabelSelector) -> None:
        """Index the labels that this selector asks one exact value of; call `unindex` when the selector is gone."""
        for key, _ in exact_pairs(selector):
            self._selectors_of[namespace, key] += 1
            if key not in self._by_label[namespace]:
                values = self._by_label[namespace][key] = {}
                for name, pod in self._pods.get(namespace, {}).items():
                    if (value := pod.labels.get(key)) is not None:
                        values.setdefault(value, set()).add(name)

    def unindex(self, namespace: str, selector: LabelSelector) -> None:
        """The reverse of `index`."""
        for key, _ in exact_pairs(selector):
            self._selectors_of[namespace, key] -= 1
            if self._selectors_of[namespace, key] <= 0:
                del self._selectors_of[namespace, key]
                del self._by_label[namespace][key]
                if not self._by_label[namespace]:
                    del self._by_label[namespace]

    def select(self, namespace: str, selector: LabelSelector) -> list[PodView]:
        """The selected pods."""
        pods = self._pods.get(namespace, {})
        return [pods[n] for n in sorted(self._candidates(namespace, selector)) if selector.matches(pods[n].labels)]

    def comparisons(self, namespace: str, selector: LabelSelector) -> int:
        """How long `select` and `gone` take: one part of the selector, compared with one pod, counts once."""
        return selector.parts * (len(self._candidates(namespace, selector)) + len(self._gone.get(namespace, ())))

    def gone(self, namespace: str, selector: LabelSelector) -> list[Gone]:
        """Of the selected pods, those that took load in the last minutes and are deleted."""
        return [pod.gone for pod in self._gone.get(namespace, ()) if selector.matches(pod.labels)]

    def _candidates(self, namespace: str, selector: LabelSelector) -> Collection[str]:
        """Names of the pods that have that label, of those the selector requires one exact value of, which fewest have.

        All pods of an application may have the first one.
        """
        indexed = self._by_label.get(namespace, {})
        found: list[Collection[str]] = [
            indexed[key].get(value, ()) for key, value in exact_pairs(selector) if key in indexed
        ]
        return min(found, key=len, default=self._pods.get(namespace, {}))

    def _add(self, namespace: str, name: str, pod: PodView) -> None:
        self._pods[namespace][name] = pod
        for values, value in self._indexed(namespace, pod):
            values.setdefault(value, set()).add(name)

    def _remove(self, namespace: str, name: str) -> PodView | None:
        pod = self._pods[namespace].pop(name, None)
        if not self._pods[namespace]:
            del self._pods[namespace]
            self._gone.pop(namespace, None)
        if pod is None:
            return None
        for values, value in self._indexed(namespace, pod):
            values.get(value, set()).discard(name)
            if not values.get(value):
                values.pop(value, None)
        return pod

    def _indexed(self, namespace: str, pod: PodView) -> list[tuple[dict[str, set[str]], str]]:
        """The indexes that the pod stands in, each with the pod's value."""
        if not (indexed := self._by_label.get(namespace)):
            return []
        # Users may have thousands of selectors, each with labels of its own: Python goes through the fewer keys
        return [(indexed[key], pod.labels[key]) for key in indexed.keys() & pod.labels.keys()]

    def _remember_gone(self, namespace: str, pod: _GonePod) -> None:
        remembered = self._gone[namespace]
        remembered.append(pod)
        while len(remembered) > _MAX_GONE or remembered[0].gone.until < pod.gone.until - _GONE_SECONDS:
            remembered.popleft()


class Claimants(NamedTuple):
    """Who selects some pods.

    Attributes:
        keys: the objects, in order; None if it would take too long to compare all selectors with all pods.
        comparisons: what that takes; see `PodsByLabel.comparisons`.
    """

    keys: list[Key] | None
    comparisons: int


class SelectorIndex:
    """Selectors of objects: finds objects that select the same pods, and has their labels indexed."""

    def __init__(self, pods: PodsByLabel) -> None:
        self._pods = pods
        self._selectors: dict[Key, LabelSelector] = {}
        self._by_pair: defaultdict[str, dict[_Pair | None, set[Key]]] = defaultdict(dict)  # by namespace

    def put(self, key: Key, selector: LabelSelector | None) -> None:
        """Register the selector of an object; None removes the object."""
        before = self._selectors.get(key)
        if before == selector:
            return
        if selector is not None:
            self._selectors[key] = selector
            self._pods.index(key[0], selector)
            self._by_pair[key[0]].setdefault(exact_pair(selector), set()).add(key)
        else:
            del self._selectors[key]
        if before is not None:
            self._pods.unindex(key[0], before)
            pair, pairs = exact_pair(before), self._by_pair[key[0]]
            if selector is None or exact_pair(selector) != pair:
                pairs[pair].discard(key)
                if not pairs[pair]:
                    del pairs[pair]
                if not pairs:
                    del self._by_pair[key[0]]

    def claimants(self, namespace: str, labels: Iterable[Labels], max_comparisons: int) -> Claimants:
        """Objects that select any pod with one of these sets of labels."""
        # Those of one workload are one object, and anybody may give a pod thousands of labels
        sets = [*{id(each): each for each in labels}.values()]
        by_pair = self._by_pair.get(namespace, {})
        comparisons = sum(min(len(each), len(by_pair)) for each in sets) // _LOOKUPS
        if comparisons > max_comparisons:
            return Claimants(None, comparisons)
        pairs = {None}.union(*(each.items() & by_pair.keys() for each in sets))
        selectors = {key: self._selectors[key] for pair in pairs for key in by_pair.get(pair, ())}
        # Pods of a workload differ in labels that no selector names
        named = sorted({r.key for selector in selectors.values() for r in selector.requirements or ()})
        if len(named) <= _FEW_LABELS:
            alike = {tuple(each.get(name) for name in named): each for each in sets}
            sets = list(alike.values())
        comparisons += len(sets) * sum(selector.parts for selector in selectors.values())
        if comparisons > max_comparisons:
            return Claimants(None, comparisons)
        found = (key for key, selector in selectors.items() if any(selector.matches(each) for each in sets))
        return Claimants(sorted(found), comparisons)


def _first_ready(before: PodView, now: PodView) -> float | None:
    """When it became Ready for the first time, if that was observed."""
    if before.first_ready is not None or not now.is_ready or before.is_ready:
        return before.first_ready
    # Not Ready since its very start, as far as its condition shows
    age = before.ready_since - (before.started or before.created)
    never = before.ready is None or age < ControllerSettings.initial_readiness_delay_seconds
    return now.ready_since if never else None


def exact_pairs(selector: LabelSelector) -> list[tuple[str, str]]:
    """Labels and the one value that each must have, the first few of them."""
    exact = (r for r in selector.requirements or () if r.operator == "In" and len(r.values) == 1)
    return list(dict.fromkeys((r.key, r.values[0]) for r in itertools.islice(exact, _MAX_INDEXED)))


def exact_pair(selector: LabelSelector) -> tuple[str, str] | None:
    """The first of them; None where the selector requires no exact value."""
    return next(iter(exact_pairs(selector)), None)
