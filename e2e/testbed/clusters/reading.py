"""What ``kubectl get -o json`` prints, by a request of our own: kubectl takes 50 ms of CPU, and tests look often."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from e2e.testbed.clusters.cluster import ClusterError

Object = dict[str, Any]
_SELECTORS = {"-l": "labelSelector", "--selector": "labelSelector", "--field-selector": "fieldSelector"}


@dataclass(frozen=True)
class Kind:
    """A kind that the API server serves: path of its group's version, plural, and what its items are called."""

    base: str
    plural: str
    kind: str
    is_namespaced: bool

    def path(self, namespace: str | None, name: str | None) -> str:
        """Of the collection, of all namespaces or of one; or of one object."""
        parts = [self.base]
        if self.is_namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *([name] if name else [])])


@dataclass
class Reader:
    """Reads objects as kubectl does, with the same arguments.

    Attributes:
        request: sends a GET to a path as the administrator; raises what the server refuses.
    """

    request: Callable[[str], Object]
    _kinds: dict[str, Kind] = field(default_factory=dict)

    def get(self, arguments: Sequence[str]) -> Object | None:
        """What the arguments of ``kubectl get`` ask for; None where they take kubectl itself."""
        words: list[str] = []
        params: dict[str, str] = {}
        namespace: str | None = "default"
        rest = iter(arguments)
        for argument in rest:
            flag, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
            if flag in _SELECTORS:
                params[_SELECTORS[flag]] = value if equals else next(rest)
            elif flag in ("-n", "--namespace"):
                namespace = value if equals else next(rest)
            elif flag in ("-A", "--all-namespaces"):
                namespace = None
            elif flag.startswith("-"):
                return None
            else:
                words.append(argument)
        if len(words) not in (1, 2) or (kind := self._kind(words[0])) is None:
            return None
        path = kind.path(namespace, words[1] if len(words) == 2 else None)
        return _as_printed(self.request(f"{path}?{urlencode(params)}" if params else path), kind)

    def _kind(self, name: str) -> Kind | None:
        if name not in self._kinds:
            self._kinds = self._discover()
        return self._kinds.get(name)

    def _discover(self) -> dict[str, Kind]:
        """Kinds by plural, singular, short name and plural.group, the core's before others of the same name."""
        found: dict[str, Kind] = {}
        groups = [("/api/v1", "")]
        for group in self.request("/apis")["groups"]:
            groups.append((f"/apis/{group['preferredVersion']['groupVersion']}", group["name"]))
        for base, group in groups:
            served: Object = {}
            with contextlib.suppress(ClusterError):  # an aggregated API that does not answer keeps nobody from the rest
                served = self.request(base)
            for resource in served.get("resources") or ():
                plural = resource["name"]
                if "/" in plural or "get" not in resource["verbs"]:
                    continue
                kind = Kind(base, plural, resource["kind"], resource["namespaced"])
                names = [plural, resource.get("singularName"), *resource.get("shortNames", ()), f"{plural}.{group}"]
                for name in filter(None, names):
                    found.setdefault(name, kind)
        return found


def _as_printed(document: Object, kind: Kind) -> Object:
    """Items of a list say what they are, and without a mark of which field is whose."""
    items = document.get("items") if document.get("kind") == f"{kind.kind}List" else None
    for item in [document] if items is None else items:
        item.get("metadata", {}).pop("managedFields", None)
    for item in items or ():
        version = kind.base.removeprefix("/apis/").removeprefix("/api/")
        item.update({"apiVersion": version, "kind": kind.kind})
    return document
