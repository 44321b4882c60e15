"""Whether all containers of a pod have ended for good, although its kubelet has still to take the pod down.

Kubelet reports how each container ended as soon as it has, and the phase Succeeded or Failed only once it has taken
down the pod's sandbox and cgroups, a second or more later. The pod computes nothing any more in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from concerto.api.pod_shape import LEFT_OUT
from concerto.api.pod_start import CONTAINER_STATUSES

Raw = Mapping[str, Any]

TERMINAL = frozenset({"Succeeded", "Failed"})
"""Phases of a pod that has ended."""
OTHERS = ("initContainerStatuses", "ephemeralContainerStatuses")
"""Fields of a status with containers beside those that the pod is made for."""


def containers_have_ended(metadata: Raw, spec: Raw, status: Raw) -> bool:
    """Whether every container of the pod, which is on a node, has ended, and none will be started again.

    Where a container has rules of its own about that (``restartPolicyRules``), or the pod is too large to be held whole
    (``bound_spec``), it is taken to start again.

    Args:
        metadata: of the pod; whether it is being deleted is read.
        spec: of the pod.
        status: of the pod.
    """
    if not (may_have_ended(status) and spec.get("nodeName") and spec.get("containers")) or spec.get(LEFT_OUT):
        return False
    ends = {name: end for group in CONTAINER_STATUSES for name, end in _ends(status, group)}
    if not all(container.get("name") in ends for container in _that_must_end(spec)):
        return False
    if "deletionTimestamp" in metadata:
        return True
    if _has_rules(spec):
        return False
    return not any(_starts_again(_policy(each, spec), ends[each["name"]]) for each in spec["containers"])


def may_start_again(spec: Raw) -> bool:
    """Whether a container that has ended may be started again, unless the pod is being deleted.

    How it has ended may decide that: its status shows it.
    """
    return _has_rules(spec) or any(_policy(each, spec) != "Never" for each in spec.get("containers") or ())


def may_have_ended(status: Raw) -> bool:
    """Whether the pod has not ended, all its containers that have a status have, and no other container runs.

    An ephemeral container may outlive them, and an init container runs again if all are started again.
    """
    containers = status.get("containerStatuses")
    if not containers or status.get("phase") in TERMINAL:
        return False
    if not all(_exit_code(container) is not None for container in containers):
        return False
    return not any(_runs(each) for group in OTHERS for each in status.get(group) or ())


def trim_ended(container_status: Raw) -> dict[str, Any]:
    """The part of the status of a container that has ended that ``containers_have_ended`` reads."""
    code = _exit_code(container_status)
    name = container_status.get("name")
    return {} if code is None else {"name": name, "state": {"terminated": {"exitCode": code}}}


def _ends(status: Raw, group: str) -> Iterator[tuple[str, int]]:
    """Names of the containers that have ended, with their exit codes."""
    for each in status.get(group) or ():
        if (code := _exit_code(each)) is not None and "name" in each:
            yield each["name"], code


def _runs(container_status: Raw) -> bool:
    return (container_status.get("state") or {}).get("running") is not None


def _exit_code(container_status: Raw) -> int | None:
    end = (container_status.get("state") or {}).get("terminated")
    return None if end is None else int(end.get("exitCode") or 0)


def _that_must_end(spec: Raw) -> Iterator[Raw]:
    """All containers but init containers that others wait for: these have ended before."""
    yield from spec.get("containers") or ()
    yield from (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")


def _has_rules(spec: Raw) -> bool:
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return any(each.get("restartPolicyRules") for each in containers)


def _policy(container: Raw, spec: Raw) -> str:
    policy: str = container.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy


def _starts_again(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)
