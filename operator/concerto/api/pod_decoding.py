"""Decoding of Pods without what `trim_pod` leaves out.

Managed fields, environments and mounts are most of what the API server sends of a pod. msgspec passes over them and
makes no objects of them. To decode and trim a list of pods so takes a third of the CPU time that orjson takes
(`pytest -s -m bench e2e/bench/test_bench_kube.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import GenericAlias
from typing import Any

import msgspec
import orjson

from concerto.api import pod_start
from concerto.api import pod_trimming as kept


def decode_pod_list(payload: bytes) -> Any:
    """A PodList as the API server sends it; its items are such that `trim_pod` makes of them what it always does.

    Raises:
        ValueError: it is not JSON.
    """
    return _decoded(_LIST, payload)


def decode_pod_event(line: bytes) -> Any:
    """A watch event as the API server sends it; a Pod in it as of `decode_pod_list`.

    Raises:
        ValueError: it is not JSON.
    """
    return _decoded(_EVENT, line)


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:
    try:
        return msgspec.to_builtins(decoder.decode(text))
    except (msgspec.DecodeError, RecursionError):
        # A bookmark, an error, or a pod of which one field has another type than pods have: all of it is
        # decoded, and the reader of the object reports what is wrong
        return orjson.loads(text)


def _struct(name: str, fields: Iterable[str], **typed: Any) -> Any:
    """Objects of which these fields are decoded; those that are not there stay so."""
    types: dict[str, Any] = dict.fromkeys(fields, Any) | typed
    return msgspec.defstruct(name, [(field, kind, msgspec.UNSET) for field, kind in types.items()], gc=False)


def _many(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_CONTAINER = _struct("Container", kept.CONTAINER)
_CONTAINER_STATUS = _struct("ContainerStatus", (*kept.CONTAINER_STATUS, *pod_start.FIELDS))
_POD = _struct(
    "Pod",
    ("apiVersion", "kind"),
    metadata=_struct("Metadata", (*kept.METADATA, "annotations")),
    spec=_struct("Spec", (*kept.SPEC, "volumes"), containers=_many(_CONTAINER), initContainers=_many(_CONTAINER)),
    status=_struct(
        "Status",
        (*kept.STATUS, "conditions"),
        containerStatuses=_many(_CONTAINER_STATUS),
        initContainerStatuses=_many(_CONTAINER_STATUS),
    ),
)
_LIST: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_struct("List", ("metadata",), items=_many(_POD)))
_EVENT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_struct("Event", ("type",), object=_POD))
