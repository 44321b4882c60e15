"""Whether kubelet reports that it can't start the containers of a bound pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]

CONTAINER_STATUSES = ("initContainerStatuses", "containerStatuses")
"""Fields of a status with the containers that the pod's spec names."""
_FAILURES = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed", "CreateContainerConfigError", "PreCreateHookError",
        "CreateContainerError",
    }
)  # fmt: skip
"""Reasons of waiting containers that can't be created. Source: docs/references.md, "Reservation ledger"."""


FIELDS = ("restartCount", "state", "lastState")
"""Fields of a container's status that are read here."""


def start_fails(status: Raw) -> bool:
    """Whether a container of the pod can't be created, and none of its containers has ever run.

    A container that is still being created, for example while its image is pulled, has not failed.
    """
    if (status.get("phase") or "Pending") != "Pending":
        return False
    containers = [each for kind in CONTAINER_STATUSES for each in status.get(kind) or ()]
    return not any(map(_has_run, containers)) and any(_failure(each) for each in containers)


def trim_start(container_status: Raw) -> dict[str, Any]:
    """The part of a container's status that ``start_fails`` reads."""
    if _has_run(container_status):
        return {"restartCount": 1}
    reason = _failure(container_status)
    return {"state": {"waiting": {"reason": reason}}} if reason else {}


def _has_run(container: Raw) -> bool:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    return bool(container.get("restartCount") or last or state.keys() & {"running", "terminated"})


def _failure(container: Raw) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason: str = waiting.get("reason") or ""
    return reason if reason in _FAILURES else ""
