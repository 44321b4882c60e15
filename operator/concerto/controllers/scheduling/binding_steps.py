"""What has to be ready before a pod is bound to its node [Permit, PreBind]: CPUs of its own, volumes.

The pure half of a step is ``Filter.reserve``, which puts into the assignment what the pod is to get. The assignment is
assumed in the cluster and stored in a placement record, and only then does a step write anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from concerto.api.podreservation import Assignment
from concerto.api.schedulingprofile import WorkloadAwareSettings
from concerto.controllers.pinning.preparation import PinningPreparation
from concerto.controllers.scheduling.binding_load import PipelineSettings
from concerto.scheduling.cycle_result import Decision
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState


class BindingStep(Protocol):
    """Prepares the pods that it concerns. Each pod's waiting holds back nobody else."""

    def concerns(self, assignment: Assignment) -> bool:
        """Whether the pod may be bound only after `prepare`."""
        ...

    def begin(self, decision: Decision, record: str) -> None:
        """The assignment is stored in the placement record of that name."""
        ...

    async def prepare(self, decision: Decision) -> str | None:
        """Get ready on the node [PreBind]; returns None, or why the pod cannot be bound there, for its event."""
        ...

    async def undo(self, decision: Decision) -> None:
        """The pod is not going to be bound there [Unreserve]: take back what `begin` and `prepare` did."""
        ...

    def confirm(self, decision: Decision) -> None:
        """The API server has accepted the binding [PostBind]."""
        ...


class PinningStep:
    """A pod with CPUs of its own has its PodCPUBinding, and its node's agent is ready, before it is bound."""

    def __init__(
        self,
        cluster: ClusterState,
        pins: PinningPreparation,
        profiles: Mapping[str, Profile],
        clock: Callable[[], float],
        settings: PipelineSettings,
    ) -> None:
        """Nothing is prepared yet.

        Args:
            cluster: where nodes whose agents are late are avoided.
            pins: writes PodCPUBindings.
            profiles: in use, by scheduler name.
            clock: seconds since the epoch.
            settings: how long nodes are avoided.
        """
        self._cluster = cluster
        self._pins = pins
        self._profiles = profiles
        self._clock = clock
        self._settings = settings

    def concerns(self, assignment: Assignment) -> bool:
        """Pods with CPUs of their own."""
        return assignment.pin is not None

    def begin(self, decision: Decision, record: str) -> None:
        """The pod's PodCPUBinding is valid for that node from now on."""
        self._pins.begin(decision.assignment, record)

    async def prepare(self, decision: Decision) -> str | None:
        """Create the binding, and wait until the node's agent is ready; a node whose agent is late is avoided."""
        profile = self._profiles.get(decision.pod.scheduler_name)
        timeout = (profile.settings.workload_aware if profile else WorkloadAwareSettings()).prepare_timeout_seconds
        problem = await self._pins.prepare(decision.pod, timeout)
        if problem is None:
            return None
        if problem.agent_late:
            until = self._clock() + self._settings.avoid_unprepared_factor * timeout
            self._cluster.cpus.avoid(decision.assignment.node, until)
        return problem.message

    async def undo(self, decision: Decision) -> None:
        """Delete the PodCPUBinding."""
        await self._pins.release(decision.pod.uid)

    def confirm(self, decision: Decision) -> None:
        """The PodCPUBinding stays as long as the pod."""
        self._pins.confirm(decision.pod.uid)
