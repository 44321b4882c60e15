"""Whether the containers of a pod that is bound can't be started, as its kubelet reports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]

_STATUSES = ("initContainerStatuses", "containerStatuses")
_FAILURES = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed", "CreateContainerConfigError", "PreCreateHookError",
        "CreateContainerError",
    }
)  # fmt: skip
"""Reasons for which a container waits that can't be made. Source: docs/references.md, "Reservation ledger"."""


def start_fails(status: Raw) -> bool:
    """Whether a container of the pod with this status can't be made, and none of its containers has ever run.

    A container that is being made, whose image is being pulled for instance, has not failed.
    """
    if (status.get("phase") or "Pending") != "Pending":
        return False
    containers = [each for kind in _STATUSES for each in status.get(kind) or ()]
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
