"""DeviceClasses, by the extended resources that pods request of them.

kube-scheduler allocates devices for such requests on nodes that do not offer the resource themselves. Concerto
allocates none: a pod that needs them waits, and its event says why.
"""

from __future__ import annotations

from concerto.api.deviceclass import DeviceClass
from concerto.scheduling.state.changes import Change

BY_NAME = "deviceclass.resource.kubernetes.io/"
"""Followed by the name of a DeviceClass, it is a resource of each, whatever else the class is requested by."""


class DeviceClasses:
    """The DeviceClasses of the cluster."""

    def __init__(self) -> None:
        self._resources: dict[str, frozenset[str]] = {}  # by the class's name
        self._classes: dict[str, dict[str, None]] = {}  # names by resource

    def offering(self, resource: str) -> str:
        """The name of a DeviceClass whose devices are requested as that resource; empty without one."""
        return min(self._classes.get(resource, ()), default="")

    def set(self, device_class: DeviceClass) -> Change:
        """A DeviceClass as the API server has it now."""
        name = device_class.name
        resources = frozenset({BY_NAME + name, device_class.extended_resource or BY_NAME + name})
        if self._resources.get(name) == resources:
            return Change.NOTHING
        self._forget(name)
        self._resources[name] = resources
        for resource in resources:
            self._classes.setdefault(resource, {})[name] = None
        return Change.NODE

    def remove(self, name: str) -> Change:
        """A DeviceClass is gone."""
        return Change.NODE if self._forget(name) else Change.NOTHING

    def _forget(self, name: str) -> bool:
        resources = self._resources.pop(name, frozenset())
        for resource in resources:
            del self._classes[resource][name]
            if not self._classes[resource]:
                del self._classes[resource]
        return bool(resources)
