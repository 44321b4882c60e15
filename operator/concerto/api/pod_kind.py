"""Which pods are alike: a kind, and the wider groups that stand in for it while little is known of it.

A kind is the pods of one workload with the same images and container names. Each run of a pipeline makes a Job whose
name nobody has seen before, so wider groups follow: workloads whose names differ in what was generated alone, whatever
their images, the same images in the namespace, the same images anywhere, the namespace, and the cluster. Each is the
prior of the one before it (``cost.estimate``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

CLUSTER = "*"
"""Key of the widest group: every pod of the cluster."""
MAX_NAME = 80
"""Characters of a workload's name that a key holds; the rest is in its digest."""
_MAX_KIND = 21
"""The same of the kind of a workload: an ``ownerReference`` may hold any text, and the CRD bounds keys."""

_ENDLESS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"})
"""Kinds of workloads whose pods run until somebody stops them."""
_ALWAYS = "-always"
"""End of the key of a kind of pods that run without end though their workload is of another kind than these."""
_MAX_CACHED_CONTAINERS, _MAX_CACHED_CHARACTERS = 16, 2048
"""Of a kind that is remembered, though no pod of it may be left: an image's name may have a million characters."""
_DIGEST = 8
"""Characters of a digest."""
_RUN_OF_A_CRON_JOB = re.compile(r"-\d{7,}$")
_INDEX = re.compile(r"[-.]?\d+$")
_NAMED_BY_PEOPLE = _ENDLESS | {"CronJob"}
"""Kinds of workloads that are not made anew for each run."""
_MAX_OBJECT_NAME = 253
"""Characters of an object's name; an ``ownerReference`` may have more."""
_UUID = re.compile(r"[a-f\d]{8}(?:-[a-f\d]{4}){3}-[a-f\d]{12}")
_GENERATED = re.compile(
    r"(?<![a-z\d])(?:"
    r"\d+"  # a number of a run, an index, a time
    r"|[a-z\d]*\d{4}[a-z\d]*"  # a date with letters in it
    r"|[bcdfghjklmnpqrstvwxz2456789]{5}$"  # what the API server adds to a generateName
    r"|(?=[a-f]*\d)[a-f\d]{6,}"  # a digest
    r"|(?=[a-z\d]{8})[a-z\d]*\d[a-z]+\d[a-z\d]*"  # other random text
    r")(?![a-z\d])"
)
"""What a program adds to a name, as a whole part of it. Source of the suffix: apimachinery, pkg/util/rand/rand.go."""
_ANY_NUMBER = re.compile(r"\*(?:[-._]+\*)+")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pods and its groups.

    Attributes:
        keys: from the narrowest (the kind itself) to the widest (``CLUSTER``).
        endless: whether its pods run until somebody stops them, as a Deployment's do, and those of any other owner
            whose ``restartPolicy`` is Always: kubelet never takes such a pod for completed.
    """

    keys: tuple[str, ...]
    endless: bool = False

    @property
    def key(self) -> str:
        """The kind's own key."""
        return self.keys[0]


def kind_of_pod(pod: Mapping[str, Any]) -> Kind:
    """The kind of a raw Pod: only its namespace, owner, labels, name, containers and ``restartPolicy`` matter."""
    metadata, spec = pod["metadata"], pod["spec"]
    owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
    containers = tuple((c.get("name") or "", c.get("image") or "") for c in spec.get("containers") or ())
    name, kind = workload_of(
        owner_kind=owner["kind"] if owner else "",
        owner_name=owner["name"] if owner else "",
        template_hash=(metadata.get("labels") or {}).get("pod-template-hash") or "",
        name=metadata.get("name") or "",
        generate_name=metadata.get("generateName") or "",
    )
    # The API server sets the default, so a pod without the field is not known to restart
    restarts = spec.get("restartPolicy") == "Always"
    return kind_of(metadata.get("namespace") or "", kind, name, containers, restarts=restarts)


def workload_of(
    *, owner_kind: str, owner_name: str, template_hash: str, name: str, generate_name: str
) -> tuple[str, str]:
    """Name and kind of the workload a pod belongs to, without what Kubernetes generated for this run of it.

    The root controller is read off names, as reading the objects between would take a right for each of their kinds: a
    ReplicaSet is called after its Deployment and the pod template's hash, a CronJob's Job after it and a time.

    Returns:
        (name, kind): of the Deployment, CronJob, ... ; kind ``Pod`` where nothing controls the pod.
    """
    if owner_kind == "ReplicaSet" and template_hash and owner_name.endswith("-" + template_hash):
        return owner_name.removesuffix("-" + template_hash), "Deployment"
    if owner_kind == "Job" and _RUN_OF_A_CRON_JOB.search(owner_name):
        return _RUN_OF_A_CRON_JOB.sub("", owner_name), "CronJob"
    if owner_kind:
        return owner_name, owner_kind
    return (generate_name.rstrip("-.") or _INDEX.sub("", name) or name), "Pod"


ANY = Kind((CLUSTER,))
"""The kind of a pod of which nothing is known: every pod of the cluster is like it."""


def kind_of(
    namespace: str, workload_kind: str, workload: str, containers: Sequence[tuple[str, str]], *, restarts: bool = False
) -> Kind:
    """The kind with its groups, from what identifies it.

    Args:
        namespace: the pods'.
        workload_kind: kind of the workload, ``Deployment`` for example.
        workload: its name.
        containers: (name, image) of each container.
        restarts: whether the pods' ``restartPolicy`` is Always. One owner of a kind that Kubernetes does not know may
            have pods that run without end beside others that complete, and these cost something else.
    """
    text = len(workload_kind) + len(workload) + sum(len(name) + len(image) for name, image in containers)
    is_short = len(containers) <= _MAX_CACHED_CONTAINERS and text <= _MAX_CACHED_CHARACTERS
    find = _cached_kind if is_short else _kind
    return find(namespace, workload_kind, workload, containers, restarts)


def _kind(
    namespace: str, workload_kind: str, workload: str, containers: Sequence[tuple[str, str]], restarts: bool
) -> Kind:
    images = _digest("\0".join(image for _, image in containers))
    template = _digest("\0".join(f"{name}\0{image}" for name, image in containers))
    of_kind = f"{namespace}/{_shortened(workload_kind, _MAX_KIND)}"
    key = f"{of_kind}/{_shortened(workload, MAX_NAME)}@{template}"
    recurring = workload if workload_kind in _NAMED_BY_PEOPLE else recurring_name(workload)
    path = f"{of_kind}/{_shortened(recurring, MAX_NAME)}"
    if restarts and workload_kind not in _ENDLESS:
        key += _ALWAYS
    return Kind((key, path, f"{namespace}@{images}", f"@{images}", f"{namespace}/", CLUSTER), is_endless(key))


_cached_kind = lru_cache(maxsize=4096)(_kind)


def recurring_name(name: str) -> str:
    """The name with ``*`` for what a program has generated: ``etl-20261130-x7f2k`` becomes ``etl-*``."""
    head, rest = name[:_MAX_OBJECT_NAME], name[_MAX_OBJECT_NAME:]
    return _ANY_NUMBER.sub("*", _GENERATED.sub("*", _UUID.sub("*", head))) + rest


def is_endless(key: str) -> bool:
    """Whether the pods of the kind with that key run until somebody stops them."""
    workload, _, template = key.partition("@")
    return template.endswith(_ALWAYS) or (workload.count("/") >= 2 and workload.split("/")[1] in _ENDLESS)


def _shortened(text: str, max_length: int) -> str:
    """The text if it is no longer than ``max_length`` and a digest, else its beginning and the digest."""
    return text if len(text) <= max_length + _DIGEST + 1 else f"{text[:max_length]}~{_digest(text)}"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_DIGEST // 2).hexdigest()
