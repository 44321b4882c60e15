"""What an agent reads of a PodCPUBinding, as types. See `large_objects`."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import UNSET, Raw

from concerto.api.podcpubinding import WORKLOAD_TYPE_LABEL
from concerto_agent.partial_types import documents_of, struct

_LABELS = {"workload_type": WORKLOAD_TYPE_LABEL}
_METADATA = struct(
    "Metadata", "name", "namespace", "uid", "resourceVersion", "creationTimestamp",
    generation=int, labels=struct("Labels", *_LABELS, rename=_LABELS),
)  # fmt: skip


def _read_parts(binding: Any) -> None:
    """Decode spec and status, which the CRD bounds."""
    for part in ("spec", "status"):
        if (text := getattr(binding, part)) is not UNSET:
            setattr(binding, part, orjson.loads(bytes(text)))


decode = documents_of(struct("Binding", metadata=_METADATA, spec=Raw, status=Raw), _read_parts)
