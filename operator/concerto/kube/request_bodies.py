"""Bodies of requests: patches, the options of a deletion, and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Patch:
    """A body that is a patch.

    Attributes:
        content_type: of which kind: MERGE_PATCH, APPLY_PATCH or STRATEGIC_PATCH.
        document: the patch.
    """

    content_type: str
    document: Object


def build_delete_options(
    uid: str | None = None, resource_version: str | None = None, propagation: str | None = None
) -> Object:
    """The body of a DELETE, with preconditions and a propagation policy if they are given."""
    body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    if any(preconditions.values()):
        body["preconditions"] = {key: value for key, value in preconditions.items() if value}
    if propagation:
        body["propagationPolicy"] = propagation
    return body


def encode(document: Object) -> bytes:
    """The document as JSON."""
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:  # a number beyond 64 bits, half a surrogate pair
        return json.dumps(document, separators=(",", ":")).encode()
