"""The pinning part of simulated nodes' agents: their topologies, and the word that they are ready for a pod's CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.conditions import Condition, find_condition, merge_conditions
from concerto.api.nodecputopology import CPUPools, CPUTopology
from concerto.api.timestamps import format_timestamp
from concerto.kube import Reflector, Session, apply_status
from concerto.kube.apply import Target
from concerto.kube.resources import NODE_CPU_TOPOLOGIES, POD_CPU_BINDINGS
from concerto.simulation.studies.machines import regular
from e2e.testbed.hollow.objects import HollowNode, Object
from e2e.testbed.hollow.owned import create_owned
from e2e.testbed.hollow.writes import WriteQueue

FIELD_MANAGER = "concerto-agent"


@dataclass(frozen=True)
class MachineShape:
    """CPUs of a simulated node, numbered as Linux does on x86: the first threads of all cores first.

    Attributes:
        sockets: each a memory node.
        cores: of each socket.
        threads: of each core.
        answers: whether the node's agent gets ready for bindings; else it is as good as dead.
    """

    sockets: int
    cores: int
    threads: int
    answers: bool = True

    def topology(self) -> CPUTopology:
        """The machine."""
        return regular(self.sockets, self.cores, self.threads)


class Pinning:
    """Plays that part for all nodes of a fleet: it pins nothing, as there is nothing to pin."""

    def __init__(
        self, session: Session, shape: MachineShape, writes: WriteQueue, wall: Callable[[float], float]
    ) -> None:
        """Nothing is written before `publish` or `run`; ``wall``: from the monotonic clock to seconds since 1970."""
        self._session = session
        self._shape = shape
        self._writes = writes
        self._wall = wall
        self._nodes: set[str] = set()
        self._bindings = Reflector(session, POD_CPU_BINDINGS, on_change=self._on_binding)

    async def publish(self, node: HollowNode) -> None:
        """Make the node's NodeCPUTopology, which goes with its Node."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        body = {
            "apiVersion": NODE_CPU_TOPOLOGIES.api_version,
            "kind": NODE_CPU_TOPOLOGIES.kind,
            "metadata": {"name": node.name, "ownerReferences": [owner]},
            "spec": {"nodeName": node.name},
        }
        await create_owned(self._session, NODE_CPU_TOPOLOGIES, body)
        topology = self._shape.topology()
        pools = CPUPools(shared=topology.cpus)
        status = {"counts": topology.counts(), "topology": topology.to_raw(), "pools": pools.to_raw()}
        await self._session.patch(NODE_CPU_TOPOLOGIES.path(name=node.name, subresource="status"), {"status": status})
        self._nodes.add(node.name)

    async def run(self) -> None:
        """Answer bindings until cancelled."""
        await self._bindings.run()

    def _on_binding(self, old: Object | None, new: Object | None) -> None:
        status = (new or {}).get("status") or {}
        if new is None or not self._shape.answers or status.get("nodeName") not in self._nodes:
            return
        conditions = status.get("conditions")
        valid = find_condition(conditions, "Validated")
        generation = new["metadata"]["generation"]
        if valid is None or valid["status"] != "True" or status.get("observedGeneration") != generation:
            return
        prepared = find_condition(conditions, "Prepared")
        reported = (status.get("applied") or {}).get("podUID") == status["podUID"]
        if reported and prepared is not None and prepared.get("observedGeneration") == generation:
            return
        self._writes.put(("binding", new["metadata"]["uid"]), lambda: self._prepare(new))

    async def _prepare(self, binding: Object) -> None:
        metadata = binding["metadata"]
        ready = [Condition("Prepared", "True", "Prepared", "The simulated agent knows the CPUs.")]
        now = format_timestamp(self._wall(time.monotonic()))
        status = {
            "applied": {"podUID": binding["status"]["podUID"]},
            "conditions": merge_conditions([], ready, now=now, observed_generation=metadata["generation"]),
        }
        target = Target(POD_CPU_BINDINGS, metadata["name"], metadata["namespace"], metadata["uid"])
        await apply_status(self._session, target, status, field_manager=FIELD_MANAGER, force=True)
