"""A DeviceClass as scheduling sees it. Source: Kubernetes' resource.k8s.io/v1 API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from concerto.api.object_bounds import trim_metadata

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A class of devices that drivers publish (dynamic resource allocation).

    Attributes:
        name: its name.
        extended_resource: the extended resource by which pods may request its devices; empty without one.
    """

    name: str
    extended_resource: str

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_device_class`` leaves it.

        Raises:
            TypeError: the resource is not text.
        """
        resource = (obj.get("spec") or {}).get("extendedResourceName") or ""
        if not isinstance(resource, str):
            raise TypeError(f"spec.extendedResourceName {resource!r} is not text")
        return cls(obj["metadata"]["name"], resource)


def trim_device_class(obj: Raw) -> dict[str, Any]:
    """The part of a raw DeviceClass that ``DeviceClass`` reads: not which devices it selects, nor their settings."""
    spec = obj.get("spec") or {}
    return {
        "metadata": trim_metadata(obj),
        "spec": {key: spec[key] for key in ("extendedResourceName",) if key in spec},
    }
