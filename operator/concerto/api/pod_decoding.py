"""Decoding of Pods to what `trim_pod` leaves of them.

Managed fields, environments and mounts are most of what the API server sends of a pod: msgspec passes over them and
makes no objects of them. What is kept and equal in many pods is compared as text, and is made into objects once
(`pytest -s -m bench e2e/bench/test_bench_kube.py` measures it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sys import intern
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args

import msgspec
import orjson
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import astuple

from concerto.api import pod_start
from concerto.api import pod_trimming as kept
from concerto.api.object_bounds import controlling_owner
from concerto.api.pod_bounds import bound_spec, bound_status
from concerto.api.pod_end import OTHERS, may_have_ended
from concerto.api.pod_ownership import MIRROR
from concerto.api.pod_shape import MAX_UNPACKED_BYTES, pack_constraints
from concerto.api.pod_start import CONTAINER_STATUSES
from concerto.api.pod_volumes import SOURCES, trim_volumes
from concerto.api.shared_parts import SharedParts

Trim = Callable[[dict[str, Any]], dict[str, Any]]

_SURELY_FEW_LABEL_BYTES = kept.MAX_LABEL_BYTES // 2
_SURELY_UNPACKED_BYTES = MAX_UNPACKED_BYTES // 3
_Change = Literal["ADDED", "MODIFIED", "DELETED"]
_CHANGES = get_args(_Change)


class PodDecoder:
    """Makes of the JSON of pods what `trim_pod` makes of them. What is equal in many pods is shared: it may not change.

    Args:
        parts: holds what is shared.
        trim: `trim_pod`, or what reports its errors. It is given the pods that lack a field which each pod has, or of
            which a field has another type.
    """

    def __init__(self, parts: SharedParts, trim: Trim = kept.trim_pod) -> None:
        self._parts = parts
        self._trim = trim

    def page(self, payload: bytes) -> Any:
        """A PodList as the API server sends it, with trimmed items, which can be read once.

        Each is decoded as it is read: a page may have 20 pods that take 0.1 s each.

        Raises:
            ValueError: it is not JSON; also while items are read.
        """
        try:
            found = _ITEMS.decode(payload)
        except Exception:
            whole = orjson.loads(payload)
            if isinstance(whole, dict) and whole.get("items"):
                whole["items"] = map(self._trim, whole["items"])
            return whole
        return {"metadata": orjson.loads(bytes(found.metadata)), "items": map(self._item, found.items)}

    def event(self, line: bytes) -> Any:
        """A watch event as the API server sends it. A pod in it is trimmed; a bookmark and an error are whole.

        Raises:
            ValueError: it is not JSON.
        """
        try:
            found = _EVENT.decode(line)
            return {"type": found.type, "object": self._pod(found.object)}
        except Exception:
            whole = orjson.loads(line)
            if isinstance(whole, dict) and whole.get("type") in _CHANGES:
                whole["object"] = self._trim(whole["object"])
            return whole

    def _item(self, item: Raw) -> dict[str, Any]:
        try:
            return self._pod(_ITEM.decode(item))
        except Exception:  # whatever is wrong, it costs this pod
            return self._trim(orjson.loads(bytes(item)))

    def _pod(self, pod: Any) -> dict[str, Any]:
        status = {} if pod.status is UNSET else self._status(pod.status)
        return {"metadata": self._metadata(pod.metadata), "spec": self._spec(pod.spec), "status": status}

    def _metadata(self, metadata: _Metadata) -> dict[str, Any]:
        found: dict[str, Any] = {
            "namespace": intern(metadata.namespace),
            "name": metadata.name,
            "uid": metadata.uid,
            "resourceVersion": metadata.resourceVersion,
        }
        if metadata.labels is not UNSET:
            labels = self._parts.read(text := bytes(metadata.labels))
            surely_few = len(text) < _SURELY_FEW_LABEL_BYTES and type(labels) is dict
            found["labels"] = labels if surely_few else kept.trim_labels(labels)
        if metadata.ownerReferences is not UNSET:
            found["ownerReferences"] = self._parts.read(bytes(metadata.ownerReferences), _read_owners)
        if metadata.annotations is not UNSET and metadata.annotations.mirror is not UNSET:
            found["annotations"] = {MIRROR: ""}
        for key in _OTHER_METADATA:
            if (value := getattr(metadata, key)) is not UNSET:
                found[key] = value
        return found

    def _spec(self, spec: Any) -> dict[str, Any]:
        # All but its node and its volumes is equal in the pods of one workload
        node, volumes, spec.volumes = spec.nodeName, spec.volumes, UNSET
        if node is not UNSET:
            spec.nodeName = ""
        found: dict[str, Any] = self._parts.read(_encode(spec), _read_spec).copy()
        if node is not UNSET:
            found["nodeName"] = intern(node)
        if volumes is not UNSET and (trimmed := _volumes(volumes)):
            found["volumes"] = trimmed
        return found

    def _status(self, status: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in _STATUS_TEXTS:
            if (value := getattr(status, key)) is not UNSET:
                found[key] = intern(value)
        for key in _STATUS_PARTS:
            if (value := getattr(status, key)) is not UNSET:
                found[key] = self._parts.read(bytes(value))
        ended = _may_have_ended(status)
        for key in CONTAINER_STATUSES:
            statuses = getattr(status, key)
            if statuses is not UNSET and (reported := self._container_statuses(statuses, status.phase, ended)):
                found[key] = reported
        if status.conditions is not UNSET and (conditions := _conditions(status.conditions)):
            found["conditions"] = conditions
        return bound_status(found)

    def _container_statuses(self, statuses: list[Any], phase: Any, ended: bool) -> Any:
        if phase == "Pending" or ended:
            read = orjson.loads(_encode(statuses))
            trimmed = (kept.trim_container_status(each, phase, ended=ended) for each in read)
            return [each for each in trimmed if each]
        resized = [each for each in statuses if each.resources is not UNSET or each.allocatedResources is not UNSET]
        for each in resized:
            each.restartCount = each.state = each.lastState = UNSET
        return self._parts.read(_encode(resized)) if resized else None


def _may_have_ended(status: Any) -> bool:
    """``may_have_ended``, for which few statuses are decoded: most pods have a container without an end."""
    statuses = status.containerStatuses
    if not statuses or not all(each.state is not UNSET and _END in bytes(each.state) for each in statuses):
        return False
    groups = {key: each for key in ("containerStatuses", *OTHERS) if (each := getattr(status, key)) is not UNSET}
    return may_have_ended({"phase": status.phase, **orjson.loads(_encode(groups))})


def _read_spec(text: bytes) -> dict[str, Any]:
    """A map whose copies take less memory than those of the map that orjson makes."""
    found = dict(orjson.loads(text).items())
    if len(text) <= _SURELY_UNPACKED_BYTES:
        return found
    return pack_constraints(bound_spec(found))


def _read_owners(text: bytes) -> list[Any]:
    return controlling_owner(orjson.loads(text))


def _volumes(volumes: list[Any]) -> list[dict[str, Any]]:
    some = [each for each in volumes if astuple(each)[1:] != _NO_SOURCE]
    return trim_volumes(orjson.loads(_encode(some))) if some else []


def _conditions(conditions: list[_Condition]) -> list[dict[str, Any]]:
    found = []
    for each in conditions:
        if (keys := kept.CONDITIONS.get(each.type)) is not None:
            values = {key: value for key in keys if (value := getattr(each, key)) is not UNSET}
            values["type"] = intern(each.type)
            found.append(values)
    return found


def _struct(name: str, fields: Iterable[str], *typed: tuple[str, Any]) -> Any:
    """Objects of which these fields are decoded, those without a type as text; what is not there stays so."""
    types = dict.fromkeys(fields, Raw) | dict(typed)
    return msgspec.defstruct(name, [(field, kind, UNSET) for field, kind in types.items()], gc=False)


def _many(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType


class _Annotations(Struct, rename={"mirror": MIRROR}, gc=False):
    mirror: Raw | UnsetType = UNSET


class _Metadata(Struct, gc=False):
    namespace: str
    name: str
    uid: str
    resourceVersion: str
    labels: Raw | UnsetType = UNSET
    ownerReferences: Raw | UnsetType = UNSET
    annotations: _Annotations | UnsetType = UNSET
    generateName: str | UnsetType = UNSET
    creationTimestamp: str | UnsetType | None = UNSET
    deletionTimestamp: str | UnsetType | None = UNSET
    deletionGracePeriodSeconds: _Number = UNSET


class _Condition(Struct, gc=False):
    type: str
    status: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    lastTransitionTime: str | UnsetType | None = UNSET


_END = b'"terminated"'
_NO_SOURCE = (UNSET,) * len(SOURCES)
_OTHER_METADATA = ("generateName", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_STATUS_TEXTS = ("phase", "startTime", "hostIP", "nominatedNodeName")
_STATUS_PARTS = ("resources", "allocatedResources")
_CONTAINERS = _many(_struct("Container", kept.CONTAINER))
_REPORTS = _many(_struct("ContainerStatus", (*kept.CONTAINER_STATUS, *pod_start.FIELDS)))
_SPEC = _struct(
    "Spec", kept.SPEC, ("nodeName", str), ("containers", _CONTAINERS), ("initContainers", _CONTAINERS),
    ("volumes", _many(_struct("Volume", ("name", *SOURCES)))),
)  # fmt: skip
_STATUS = _struct(
    "Status", (*_STATUS_PARTS, "ephemeralContainerStatuses"), *((field, str) for field in _STATUS_TEXTS),
    *((field, _REPORTS) for field in CONTAINER_STATUSES), ("conditions", _many(_Condition)),
)  # fmt: skip
_POD = msgspec.defstruct("Pod", [("metadata", _Metadata), ("spec", _SPEC), ("status", _STATUS, UNSET)], gc=False)
_ITEMS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct("Items", [("metadata", Raw), ("items", _many(Raw))], gc=False)
)
_ITEM: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_POD)
_EVENT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct("Event", [("type", _Change), ("object", _POD)], gc=False)
)
_encode = msgspec.json.Encoder().encode
