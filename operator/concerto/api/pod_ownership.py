"""Which pods belong to their node: static pods and those of DaemonSets.

A pod is a DaemonSet's only if it has both marks of the DaemonSet controller: a controlling owner of kind DaemonSet in
the API group ``apps``, and the required node affinity that names its one node. Anybody may write an owner of a made-up
group, which the garbage collector leaves alone; one of group ``apps`` whose owner does not exist is collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.api.pod_constraints import REQUIRED
from concerto.api.pod_shape import constraint
from concerto.api.selectors import FIELD_NAME

Raw = Mapping[str, Any]

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod: the API object of a static pod."""


_SPREADING = {
    ("v1", "ReplicationController"), ("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"),
}  # fmt: skip
"""Kinds of workloads whose pods are spread by default (kube-scheduler's ``DefaultSelector``)."""


def spreading_owner(metadata: Raw) -> tuple[str, str] | None:
    """Kind and name of the controller by which a pod with this metadata is spread by default; None without one."""
    owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
    if owner is None or (owner.get("apiVersion"), owner.get("kind")) not in _SPREADING:
        return None
    return owner["kind"], owner["name"]


def belongs_to_node(pod: Raw) -> bool:
    """Whether a raw Pod, whole or trimmed, is a mirror pod or a DaemonSet's, which takes no measured capacity."""
    return MIRROR in (pod["metadata"].get("annotations") or ()) or is_of_daemon_set(pod)


def is_of_daemon_set(pod: Raw) -> bool:
    """Whether the DaemonSet controller made the raw Pod, whole or trimmed."""
    owners = pod["metadata"].get("ownerReferences") or ()
    owned = any(
        owner.get("controller")
        and owner.get("kind") == "DaemonSet"
        and (owner.get("apiVersion") or "").partition("/")[0] == "apps"
        for owner in owners
    )
    return owned and _names_one_node(pod.get("spec") or {})


def _names_one_node(spec: Raw) -> bool:
    required = ((constraint(spec, "affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    return bool(terms) and all(
        any(
            field.get("key") == FIELD_NAME and field.get("operator") == "In" and len(field.get("values") or ()) == 1
            for field in term.get("matchFields") or ()
        )
        for term in terms
    )
