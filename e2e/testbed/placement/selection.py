"""What selectors select, by the documentation alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]
Labels = Mapping[str, str]


def labels_of(obj: Object) -> Labels:
    """Its labels."""
    found: Labels = obj["metadata"].get("labels") or {}
    return found


def selects(selector: Object | None, labels: Labels) -> bool:
    """Whether a label selector selects an object with these labels: without a selector none, with an empty one all."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(e, labels.get(e["key"])) for e in selector.get("matchExpressions") or ())


def matches_terms(terms: Iterable[Object], node: Object) -> bool:
    """Whether one of the node selector terms matches the node; an empty term matches none."""
    name = node["metadata"]["name"]
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_holds(e, labels_of(node).get(e["key"])) for e in term.get("matchExpressions") or ())
        and all(_holds(f, name) for f in term.get("matchFields") or ())
        for term in terms
    )


def _holds(expression: Object, value: str | None) -> bool:
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or not value.isdigit():
        return False
    return int(value) > int(values[0]) if expression["operator"] == "Gt" else int(value) < int(values[0])
