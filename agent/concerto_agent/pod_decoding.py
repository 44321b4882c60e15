"""Decoding of the node's Pods: of a large one, only what `trim_pod` reads is held.

Whoever may create a pod may give it 1.5 MiB of environment or arguments. Decoded whole, that takes 60 MiB, half of what
an agent may have. Each map is looked at as soon as it has been read: what nobody reads of it is gone before the next.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from concerto.api.pod_constraints import REQUIRED
from concerto.api.pod_end import OTHERS
from concerto.api.pod_ownership import MIRROR
from concerto.api.pod_start import CONTAINER_STATUSES
from concerto_agent.pod_census import CONFIG_HASH

Object = dict[str, Any]

_SMALL_BYTES = 256 * 1024
"""Text up to this length is decoded whole, which takes a third of the time."""
_HELD = frozenset(
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
_READ = _HELD | {
    "type", "continue", "reason", "message",
    # of metadata
    "name", "namespace", "uid", "generateName", "labels", "annotations", "ownerReferences", "deletionTimestamp",
    "apiVersion", "kind",
    # of a spec
    "spec", "nodeName", "restartPolicy", "initContainers", "restartPolicyRules", "resources", "overhead", "affinity",
    "key", "operator",
    # of a status
    "status", *CONTAINER_STATUSES, *OTHERS, "lastState",
}  # fmt: skip
"""What is held of it: arguments of a container, or labels, may be as large as its environment."""
_NOTHING: Object = {}


def decode_pods(text: bytes) -> Any:
    """A PodList, or an event of a watch, as the API server sends it; of a large one, what nobody reads is left out.

    Raises:
        ValueError: it is not JSON.
    """
    return orjson.loads(text) if len(text) <= _SMALL_BYTES else json.loads(text, object_hook=_if_read)


def _if_read(found: Object) -> Object:
    return _NOTHING if _HELD.isdisjoint(found) else {key: found[key] for key in found.keys() & _READ}
