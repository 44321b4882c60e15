"""Random constraints of pods, within what the API server accepts."""

from __future__ import annotations

import random
from typing import Any

Object = dict[str, Any]

_ZONE, _HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


class Constraints:
    """Makes parts of a pod's spec.

    Args:
        rng: what they are made by.
        nodes: names of the scenario's nodes.
    """

    def __init__(self, rng: random.Random, nodes: list[str]) -> None:
        self._rng = rng
        self._nodes = nodes

    def node_labels(self) -> dict[str, str]:
        """A ``nodeSelector``."""
        found = {_ZONE: self._rng.choice("abc")} if self._rng.random() < 0.6 else {}
        return found | ({"disk": self._rng.choice(["ssd", "hdd"])} if self._rng.random() < 0.5 or not found else {})

    def node_terms(self) -> list[Object]:
        """Alternatives of a required node affinity."""
        return [self._node_term() for _ in range(self._rng.choice([1, 1, 2]))]

    def _node_term(self) -> Object:
        rng = self._rng
        term: Object = {}
        if rng.random() < 0.25:
            operator = rng.choice(["In", "In", "NotIn"])
            term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [rng.choice(self._nodes)]}]
            if rng.random() < 0.2:
                term["matchFields"].append(
                    {"key": "metadata.name", "operator": "In", "values": [rng.choice(self._nodes)]}
                )
        if not term or rng.random() < 0.3:
            term["matchExpressions"] = [self._node_expression() for _ in range(rng.choice([1, 1, 2]))]
        return term

    def _node_expression(self) -> Object:
        rng = self._rng
        match rng.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]):
            case "In" | "NotIn" as operator:
                return {"key": _ZONE, "operator": operator, "values": rng.sample("abcd", rng.choice([1, 2, 3]))}
            case "Exists" | "DoesNotExist" as operator:
                return {"key": rng.choice([_ZONE, "rack", "disk"]), "operator": operator}
            case operator:
                return {"key": "size", "operator": operator, "values": [rng.choice(["1", "5"])]}

    def tolerations(self) -> list[Object]:
        """One to three tolerations."""
        some: list[Object] = [
            {"operator": "Exists"},
            {"key": "dedicated", "operator": "Exists"},
            {"key": "dedicated", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
            {"key": "dedicated", "value": "b"},
            {"key": "dedicated", "value": "b", "effect": "NoExecute", "tolerationSeconds": 60},
            {"key": "maintenance", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "maintenance", "value": "other"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
        ]
        return self._rng.sample(some, self._rng.randint(1, 3))

    def terms(self) -> list[Object]:
        """Required terms of affinity or anti-affinity between pods."""
        return [self._term() for _ in range(self._rng.choice([1, 1, 1, 2]))]

    def _term(self) -> Object:
        rng = self._rng
        term: Object = {"topologyKey": rng.choice([_ZONE, _ZONE, _HOSTNAME, "rack", "none"])}
        if rng.random() < 0.95:
            term["labelSelector"] = self.selector()
        if rng.random() < 0.25:
            term["namespaces"] = rng.sample(["red", "blue", "bare"], rng.choice([1, 2]))
        if rng.random() < 0.25:
            term["namespaceSelector"] = rng.choice(
                [
                    {},
                    {"matchLabels": {"team": "red"}},
                    {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]},
                    {"matchExpressions": [{"key": "team", "operator": "In", "values": ["blue", "green"]}]},
                ]
            )
        if "labelSelector" in term and rng.random() < 0.2:
            term["matchLabelKeys"] = ["pod-template-hash"]
        if "labelSelector" in term and rng.random() < 0.2:
            term["mismatchLabelKeys"] = ["tenant"]
        return term

    def selector(self) -> Object:
        """A selector of pods' labels."""
        rng = self._rng
        match rng.choice(["labels", "labels", "labels", "In", "NotIn", "Exists", "DoesNotExist", "empty"]):
            case "labels":
                return {"matchLabels": {"app": rng.choice("abc")}}
            case "In" | "NotIn" as operator:
                return {"matchExpressions": [{"key": "app", "operator": operator, "values": rng.sample("abc", 2)}]}
            case "Exists" | "DoesNotExist" as operator:
                extra = {"matchLabels": {"tier": rng.choice("xy")}} if rng.random() < 0.5 else {}
                return {"matchExpressions": [{"key": "app", "operator": operator}]} | extra
        return {}

    def spread(self) -> list[Object]:
        """Topology spread constraints."""
        rng = self._rng
        keys = rng.sample([_ZONE, _HOSTNAME, "rack"], rng.choice([1, 1, 2]))
        return [self._constraint(key) for key in keys]

    def _constraint(self, key: str) -> Object:
        rng = self._rng
        hard = rng.random() < 0.8
        found: Object = {
            "maxSkew": rng.choice([1, 1, 2]),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        }
        if rng.random() < 0.95:
            found["labelSelector"] = self.selector()
            if rng.random() < 0.25:
                found["matchLabelKeys"] = ["pod-template-hash"]
        if hard and rng.random() < 0.3:
            found["minDomains"] = rng.choice([1, 2, 3, 5])
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if rng.random() < 0.3:
                found[policy] = rng.choice(["Honor", "Ignore"])
        return found
