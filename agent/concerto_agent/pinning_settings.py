"""How an agent pins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concerto_agent.nri.client import NriSettings


@dataclass(frozen=True)
class FitSettings:
    """What counts as a fit.

    Attributes:
        window_seconds: time that a pod is looked at before anything is said of it.
        idle: share of its CPUs below which a pod does nothing.
        low: share of its CPUs below which a pod does not compute.
        high: share of its CPUs from which on a pod computes.
        waits: share of time from which on a pod waits for something.
    """

    window_seconds: float = 600.0
    idle: float = 0.05
    low: float = 0.25
    high: float = 0.8
    waits: float = 0.2


@dataclass(frozen=True)
class PinningSettings:
    """Which files pinning reads, and how cpusets are written.

    Attributes:
        kubelet_state: kubelet's ``cpu_manager_state``; its ``memory_manager_state`` lies beside it.
        daemon_set: namespace and name of the DaemonSet that the agent belongs to; None: of none.
        repair_seconds: between two looks at every pod, and at the topology.
        attempts: how often a pod is looked at again whose cgroups change while they are written.
        retry_seconds: wait after a status could not be written; doubles with each further time.
        max_retry_seconds: the doubling ends there.
        write_timeout_seconds: for one write of a status, which an admission webhook may keep.
        release_timeout_seconds: how long the API server may take to answer whether the DaemonSet is gone.
        fit: when a pod uses its CPUs as its workload type says.
        nri: how to register with the container runtime; None: it is not asked.
        sets_quotas: returns whether kubelet makes CPU quotas of limits; None while that is not known.
    """

    kubelet_state: Path = Path("/var/lib/kubelet/cpu_manager_state")
    daemon_set: tuple[str, str] | None = None
    repair_seconds: float = 15.0
    attempts: int = 5
    retry_seconds: float = 2.0
    max_retry_seconds: float = 15.0
    write_timeout_seconds: float = 5.0
    release_timeout_seconds: float = 5.0
    fit: FitSettings = field(default_factory=FitSettings)
    nri: NriSettings | None = None
    sets_quotas: Callable[[], bool | None] = lambda: None


def kubelet_unknown(settings: PinningSettings) -> str:
    """Why no cpuset is given back: kubelet's state cannot be read."""
    return f"{settings.kubelet_state} can't be read, so that any cpuset could be kubelet's (--kubelet-state)"
