"""Decoding of the node's Pods: of a large one, only what `trim_pod` reads is held.

Whoever may create a pod may give it 1.5 MiB of environment. Decoded whole, that takes 60 MiB, half of what an agent may
have. Each map is looked at as soon as it has been read, so that those that nobody reads are gone before the next.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from concerto.api.pod_constraints import REQUIRED
from concerto.api.pod_ownership import MIRROR
from concerto_agent.pod_census import CONFIG_HASH

Object = dict[str, Any]

_SMALL_BYTES = 256 * 1024
"""Text up to this length is decoded whole, which takes a third of the time."""
_READ = frozenset(
    {
        "items", "object", "metadata", "resourceVersion", "code",
        # of metadata
        MIRROR, CONFIG_HASH, "pod-template-hash", "controller",
        # of a spec
        "containers", "image", "action", "limits", "cpu", "nodeAffinity", REQUIRED, "nodeSelectorTerms", "matchFields",
        "values",
        # of a status
        "phase", "startTime", "containerID", "state", "running", "terminated", "startedAt", "exitCode",
    }
)  # fmt: skip
"""A map with one of these keys is held."""
_NOTHING: Object = {}


def decode_pods(text: bytes) -> Any:
    """A PodList, or an event of a watch, as the API server sends it; of a large one, maps that nobody reads are empty.

    Raises:
        ValueError: it is not JSON.
    """
    return orjson.loads(text) if len(text) <= _SMALL_BYTES else json.loads(text, object_hook=_if_read)


def _if_read(found: Object) -> Object:
    return _NOTHING if _READ.isdisjoint(found) else found
