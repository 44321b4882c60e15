"""Bounds for what anybody may write into objects of any kind: in memory, 1.5 MiB of short texts take ten times as much.

Nobody needs a hundredth of it. What is larger is left out when the object is read. Else a few objects could fill the
memory of a process that reads all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import orjson

MAX_BYTES = 64 * 1024
"""JSON of one part of an object that is held."""
_PREFIXES = ("concerto.dev/", "app.kubernetes.io/managed-by")
_MAX_NAMED = 16
_IDENTITY = ("namespace", "name", "uid", "resourceVersion")
NO_OBJECT = {"matchExpressions": [{"key": "concerto.dev/none", "operator": "In", "values": []}]}
"""A label selector that selects nothing. The API server takes no such selector."""


def is_large(part: Any, max_bytes: int = MAX_BYTES) -> bool:
    """Whether the part takes more than so many bytes as JSON."""
    return len(orjson.dumps(part)) > max_bytes


def bound_metadata(obj: dict[str, Any]) -> dict[str, Any]:
    """The object; if its metadata is large, without owners, finalizers, and labels and annotations that nobody reads.

    Args:
        obj: a raw object, whose metadata is changed.
    """
    metadata = obj["metadata"]
    if is_large(metadata):
        for field in ("ownerReferences", "finalizers"):
            metadata.pop(field, None)
        for field in ("labels", "annotations"):
            if field in metadata:
                metadata[field] = _of_concerto(metadata[field])
    return obj


def trim_metadata(obj: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """What tells the object and its version from others, of its metadata; and the fields that are named besides.

    Args:
        obj: a raw object.
        others: fields of its metadata; one that the object lacks is passed over.
    """
    metadata = obj["metadata"]
    return {field: metadata[field] for field in (*_IDENTITY, *others) if field in metadata}


def controlling_owner(owners: Any) -> list[Any]:
    """Of ``metadata.ownerReferences``, the one that controls the object: the API server takes one at most."""
    return [owner for owner in owners or () if owner.get("controller")][:1]


def _of_concerto(texts: Any) -> dict[str, str]:
    items = texts.items() if isinstance(texts, dict) else ()
    return dict(islice((item for item in items if item[0].startswith(_PREFIXES)), _MAX_NAMED))
