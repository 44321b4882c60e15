"""Which bindings, pods and nodes belong together: indexes that the validation of bindings keeps up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from concerto.api.podcpubinding import BindingKey, PodCPUBinding
from concerto.kube import Object
from concerto.pinning.validation import BoundPod

PodKey = tuple[str, str]
"""Namespace and name."""


class BindingIndex:
    """All bindings by key, by pod and by node, and the nodes whose judgement is out of date.

    Attributes:
        objects: the bindings as they were last seen, by key.
    """

    def __init__(self, pod_of: Callable[[PodKey], BoundPod | None]) -> None:
        """Empty.

        Args:
            pod_of: the pod of that namespace and name with its node, or None where there is no such pod.
        """
        self.objects: dict[BindingKey, Object] = {}
        self._pod_of = pod_of
        self._views: dict[BindingKey, PodCPUBinding] = {}
        self._by_pod: dict[PodKey, set[BindingKey]] = {}
        self._pods: dict[BindingKey, BoundPod] = {}  # of each binding, as it was last located
        self._by_node: dict[str, set[BindingKey]] = {}
        self._outdated: set[str] = set()

    def view(self, key: BindingKey) -> PodCPUBinding | None:
        """The binding of that key."""
        return self._views.get(key)

    def pod(self, key: BindingKey) -> BoundPod | None:
        """The pod of the binding of that key, as it was last located."""
        return self._pods.get(key)

    def of_pod(self, pod: PodKey) -> Iterable[BindingKey]:
        """Bindings that name the pod."""
        return self._by_pod.get(pod, ())

    def of_node(self, node: str) -> list[tuple[PodCPUBinding, BoundPod]]:
        """Bindings whose pods are on the node, each with its pod."""
        return [(self._views[key], self._pods[key]) for key in self._by_node.get(node, ())]

    def put(self, key: BindingKey, obj: Object | None) -> None:
        """The binding is like this now; None: it is gone, or is being deleted."""
        old = self._views.pop(key, None)
        if old is not None:
            self._by_pod[old.pod_key].discard(key)
            if not self._by_pod[old.pod_key]:
                del self._by_pod[old.pod_key]
            del self.objects[key]
        if obj is not None and "deletionTimestamp" not in obj["metadata"]:
            view = self._views[key] = PodCPUBinding.from_raw(obj)
            self.objects[key] = obj
            self._by_pod.setdefault(view.pod_key, set()).add(key)
        self.locate(key)
        pod = self._pods.get(key)
        if pod is not None and old != self._views.get(key):
            self._outdated.add(pod.node)

    def locate(self, key: BindingKey) -> None:
        """Look up the pod of the binding and its node again."""
        view = self._views.get(key)
        before, pod = self._pods.get(key), None if view is None else self._pod_of(view.pod_key)
        if pod == before:
            return
        if before is not None:
            self._outdated.add(before.node)
            del self._pods[key]
            self._by_node[before.node].discard(key)
            if not self._by_node[before.node]:
                del self._by_node[before.node]
        if pod is not None:
            self._outdated.add(pod.node)
            self._pods[key] = pod
            self._by_node.setdefault(pod.node, set()).add(key)

    def is_outdated(self, node: str) -> bool:
        """Whether the node, its pods or its bindings have changed since `mark_judged`."""
        return node in self._outdated

    def mark_outdated(self, node: str) -> None:
        """The node itself has changed."""
        if node in self._by_node:
            self._outdated.add(node)

    def mark_judged(self, node: str) -> None:
        """The node's bindings have been judged as they are now."""
        self._outdated.discard(node)
