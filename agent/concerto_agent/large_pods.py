"""What an agent reads of a Pod, as types. See `large_objects`."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Raw

from concerto.api.pod_constraints import REQUIRED
from concerto.api.pod_end import OTHERS
from concerto.api.pod_ownership import MIRROR
from concerto.api.pod_start import CONTAINER_STATUSES
from concerto_agent.partial_types import documents_of, many, struct
from concerto_agent.pod_census import CONFIG_HASH

_MAX_TERMS_BYTES = 4 * 1024
"""Of a required node affinity that is read. The DaemonSet controller's names one node, and nothing else."""
_ANNOTATIONS = {"mirror": MIRROR, "config_hash": CONFIG_HASH}
_LABELS = {"template_hash": "pod-template-hash"}

_OWNER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(struct("Owner", "apiVersion", "kind", "name", controller=bool))
_METADATA = struct(
    "Metadata", "name", "namespace", "uid", "resourceVersion", "generateName", "deletionTimestamp",
    labels=struct("Labels", *_LABELS, rename=_LABELS),
    annotations=struct("Annotations", *_ANNOTATIONS, rename=_ANNOTATIONS),
    ownerReferences=many(Raw),
)  # fmt: skip
_CPU = struct("Cpu", "cpu")
_RESOURCES = struct("Resources", limits=_CPU)
_CONTAINERS = many(
    struct(
        "Container", "name", "image", "restartPolicy",
        restartPolicyRules=many(struct("Rule", "action")), resources=_RESOURCES,
    )
)  # fmt: skip
_AFFINITY = struct("Affinity", nodeAffinity=struct("NodeAffinity", required=Raw, rename={"required": REQUIRED}))
_SPEC = struct(
    "Spec", "nodeName", "restartPolicy",
    containers=_CONTAINERS, initContainers=_CONTAINERS, resources=_RESOURCES, overhead=_CPU, affinity=_AFFINITY,
)  # fmt: skip
_STATE = struct(
    "State",
    waiting=struct("Waiting"),
    running=struct("Running", "startedAt"),
    terminated=struct("Terminated", "startedAt", exitCode=int),
)
_STATUSES = many(struct("ContainerStatus", "name", "containerID", state=_STATE, lastState=_STATE))
_STATUS = struct("Status", "phase", "startTime", **dict.fromkeys((*CONTAINER_STATUSES, *OTHERS), _STATUSES))


def _read_parts(pod: Any) -> None:
    """Decode what may have more parts than an agent can hold."""
    metadata, affinity = pod.metadata, pod.spec.affinity if pod.spec else None
    if metadata and metadata.ownerReferences:
        # One controls the pod at most, and a hundred thousand may be named
        owners = map(_OWNER.decode, metadata.ownerReferences)
        metadata.ownerReferences = [owner for owner in owners if owner.controller]
    if affinity and affinity.nodeAffinity:
        nodes = affinity.nodeAffinity
        required = b"" if nodes.required is UNSET else bytes(nodes.required)
        nodes.required = orjson.loads(required) if 0 < len(required) <= _MAX_TERMS_BYTES else UNSET


decode = documents_of(struct("Pod", metadata=_METADATA, spec=_SPEC, status=_STATUS), _read_parts)
